"""The Jinja environment of chat templates: sandboxed, with the functions that they expect, and a time limit.

The limit is looked at where a loop begins and where anything is called, so nested loops and recursion end in time; what
can overrun it is a single plain loop or filter over one long list, which is linear in the size of the request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_SECONDS = 10.0
"""Ordinary chats render in 10 to 1,300 microseconds."""


class RenderTimeout(Exception):
    """A template ran for longer than its limit."""


_clock = threading.local()


class Sandbox(ImmutableSandboxedEnvironment):
    """Templates can neither reach Python's insides nor change what they are given."""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _within_limit()
        return super().call(__context, __obj, *args, **kwargs)


def _within_limit() -> None:
    if time.monotonic() > getattr(_clock, "until", float("inf")):
        raise RenderTimeout


@pass_context  # keeps the compiler from folding it away over constant lists
def _timed(_context: Context, iterable: Any) -> Any:
    _within_limit()
    return iterable


class Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; a server only renders what is inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes the characters that matter in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment() -> Environment:
    """A sandbox with the white-space rules, tags, filters and functions that chat templates are written for."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters["timed"] = _timed
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def compile_template(environment: Environment, tree: nodes.Template) -> Template:
    """Compile a syntax tree, which is changed: every loop looks at the time limit when it begins."""
    for loop in list(tree.find_all(nodes.For)):
        guard = nodes.Filter(loop.iter, "timed", [], [], None, None, lineno=loop.lineno)
        loop.iter = guard.set_environment(environment)
    return Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def render(template: Template, variables: Mapping[str, Any], seconds: float = RENDER_SECONDS) -> str:
    """Render within a time limit; raises `RenderTimeout`, and whatever the template raises."""
    _clock.until = time.monotonic() + seconds
    try:
        return template.render(variables)
    finally:
        _clock.until = float("inf")
