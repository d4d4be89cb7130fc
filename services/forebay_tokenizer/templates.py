"""Chat templates: which one a request uses, with which variables, and the text that it makes of a chat.

Compiled once. Runs in the worker threads only: a template is somebody's program.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, TemplateSyntaxError

from forebay.errors import RequestError, SettingsError
from forebay.wire.messages import ChatPrompt
from forebay_tokenizer.conversation import conversation, read_messages, read_object, read_tools, text_of
from forebay_tokenizer.files import TokenizerFiles
from forebay_tokenizer.sandbox import RENDER_SECONDS, RenderTimeout, compile_template, make_environment, render
from forebay_tokenizer.traits import Traits, traits_of

REQUEST_TEMPLATES = 16
"""Compiled templates that came with requests (only where the operator trusts them); one costs 2 to 16 ms."""
MESSAGE_LIMIT = 1000
"""Characters of a template's error that a client is shown."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token")


class Rendered(NamedTuple):
    """A prompt as text. `continuation` is the begun answer that is to be encoded apart and appended."""

    text: str
    continuation: str | None = None


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template and what it expects."""

    template: Template
    traits: Traits


class ChatTemplates:
    """The templates of one model. `trust_requests` lets a request bring its own template and variables."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        default_kwargs: Mapping[str, Any] | None = None,
        trust_requests: bool = False,
        render_seconds: float = RENDER_SECONDS,
    ) -> None:
        """Compile all; raises `jinja2.TemplateSyntaxError`."""
        self._environment = make_environment()
        self._base = {"bos_token": "", "eos_token": "", "documents": None, **(special_tokens or {})}
        self._defaults = dict(default_kwargs or {})
        self._trust = trust_requests
        self._seconds = render_seconds
        self._reserved = {*_OWN_VARIABLES, *self._environment.globals}
        self._templates = {name: self._compile(source) for name, source in sources.items()}
        self._compile_request = lru_cache(REQUEST_TEMPLATES)(self._compile)

    @classmethod
    def load(
        cls,
        files: TokenizerFiles,
        log: logging.Logger,
        *,
        default_kwargs: Mapping[str, Any] | None = None,
        trust_requests: bool = False,
        chosen: bool = False,
    ) -> ChatTemplates:
        """The templates of a model's files. One that cannot be compiled stops the start if the operator chose it
        (`SettingsError`); if it came with the model, chats are refused and all else is served."""
        options: dict[str, Any] = {
            "special_tokens": files.special_tokens,
            "default_kwargs": default_kwargs,
            "trust_requests": trust_requests,
        }
        try:
            return cls(files.templates, **options)
        except TemplateSyntaxError as error:
            reason = f"the chat template cannot be compiled: {error.message} (line {error.lineno})"
            if chosen:
                raise SettingsError(reason) from error
            log.warning("%s; chat requests will be refused", reason)
            return cls({}, **options)

    def render(self, chat: ChatPrompt) -> Rendered:
        """The text of a chat; raises `RequestError` 400 with the template's own words where it objects."""
        tools = (read_tools(chat.tools, "tools") or None) if chat.tools else None
        kwargs = self._kwargs(chat)
        template = self._choose(chat.chat_template or kwargs.pop("chat_template", None), tools)
        messages = conversation(read_messages(chat.messages, "messages"), template.traits)
        variables: dict[str, Any] = {
            **self._base,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": chat.add_generation_prompt or chat.continue_final_message,
            **self._defaults,
            **_effort_variables(chat.reasoning_effort),
            **kwargs,
        }
        continuation = _take_last(messages) if chat.continue_final_message else None
        return Rendered(self._render(template, variables), continuation)

    def _compile(self, source: str) -> ChatTemplate:
        tree = self._environment.parse(source)
        traits = traits_of(tree)
        return ChatTemplate(compile_template(self._environment, tree), traits)

    def _kwargs(self, chat: ChatPrompt) -> dict[str, Any]:
        """The request's own variables; raises `RequestError` for those that it may not set."""
        kwargs = read_object(chat.chat_template_kwargs, "chat_template_kwargs") if chat.chat_template_kwargs else {}
        if self._trust:
            return kwargs
        if chat.chat_template is not None or "chat_template" in kwargs:
            param = "chat_template" if chat.chat_template is not None else "chat_template_kwargs.chat_template"
            raise RequestError("This server does not take chat templates from requests.", param=param)
        for name in kwargs:
            if name in self._reserved:
                raise RequestError(
                    f"chat_template_kwargs cannot set '{name}': the name is the server's own.",
                    param=f"chat_template_kwargs.{name}",
                )
        return kwargs

    def _choose(self, source: Any, tools: list[dict[str, Any]] | None) -> ChatTemplate:
        if source is not None:
            if not isinstance(source, str):
                raise RequestError("chat_template must be a string.", param="chat_template")
            try:
                return self._compile_request(source)
            except (TemplateSyntaxError, RecursionError) as error:
                reason = f"chat_template cannot be compiled: {error}"
                raise RequestError(reason[:MESSAGE_LIMIT], param="chat_template") from error
        found = self._templates.get("tool_use") if tools else None
        found = found or self._templates.get("default")
        if found is None:
            raise RequestError("this model has no usable chat template")
        return found

    def _render(self, template: ChatTemplate, variables: dict[str, Any]) -> str:
        try:
            return self._attempt(template, variables)
        except RequestError as first:
            tools = variables["tools"]
            if not tools or isinstance(first.__cause__, RenderTimeout):
                raise
            try:
                return self._attempt(template, {**variables, "tools": [_bare(tool) for tool in tools]})
            except RequestError:
                raise first from None

    def _attempt(self, template: ChatTemplate, variables: dict[str, Any]) -> str:
        try:
            return render(template.template, variables, self._seconds)
        except RenderTimeout as error:
            raise RequestError(f"The chat template took longer than {self._seconds:g} s.", param="messages") from error
        except TemplateError as error:
            raise RequestError((error.message or type(error).__name__)[:MESSAGE_LIMIT], param="messages") from error
        except Exception as error:  # a template is a program: it can fail in any way that Python can
            reason = f"The chat template failed: {type(error).__name__}: {error}"
            raise RequestError(reason[:MESSAGE_LIMIT], param="messages") from error


def _bare(tool: Any) -> Any:
    """The function of a tool: some templates read its name and parameters at the tool's top level."""
    return tool["function"] if isinstance(tool, dict) and isinstance(tool.get("function"), dict) else tool


def check_effort(effort: Any) -> None:
    """Raises `RequestError` unless the value is one of the words, a number from 0 to 0.99, or None."""
    number = isinstance(effort, (int, float)) and not isinstance(effort, bool) and 0 <= effort <= 0.99
    if effort is not None and effort not in EFFORTS and not number:
        raise RequestError(
            f"reasoning_effort must be one of {', '.join(EFFORTS)}, or a number from 0 to 0.99.",
            param="reasoning_effort",
        )


def _effort_variables(effort: str | float | None) -> dict[str, Any]:
    """`reasoning_effort` and the switches that templates have for thinking."""
    check_effort(effort)
    if effort is None:
        return {}
    return {"reasoning_effort": effort, "thinking": effort != "none", "enable_thinking": effort != "none"}


def _take_last(messages: list[dict[str, Any]]) -> str:
    """Remove the begun answer from a chat and return its text."""
    last = messages.pop()
    if last["role"] != "assistant":
        raise RequestError(
            "continue_final_message needs a last message of the assistant.", param="continue_final_message"
        )
    for name in ("tool_calls", "reasoning_content"):
        if last.get(name):
            raise RequestError(
                f"continue_final_message continues a text; the last message must not have {name}.",
                param="continue_final_message",
            )
    return text_of(last)
