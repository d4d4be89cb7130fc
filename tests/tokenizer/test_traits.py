"""What a template's syntax tree says about the messages it wants."""

from __future__ import annotations

import pytest

from forebay_tokenizer.sandbox import make_environment
from forebay_tokenizer.traits import Traits, traits_of
from tests.tokenizer.samples import ALTERNATING, CHATML, PARTS, PARTS_ONLY


def traits(source: str) -> Traits:
    return traits_of(make_environment().parse(source))


@pytest.mark.parametrize("source", [CHATML, ALTERNATING, "{{ messages[0].content }}", "no messages at all"])
def test_a_template_that_prints_contents_takes_text(source: str) -> None:
    assert traits(source) == Traits(parts=False, text=True)


LOOPS = [
    "{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for p in m.get('content') %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set c = m.content %}{% set d = c %}{% for p in d %}{{ p.text }}{% endfor %}{% endfor %}",
    "{% macro show(body) %}{% for p in body %}{{ p.text }}{% endfor %}{% endmacro %}{{ show(messages[0].content) }}",
    "{% macro show(body) %}{% for p in body %}{{ p.text }}{% endfor %}{% endmacro %}{{ show(body=m.content) }}",
    "{% for p in messages[0].content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}",
    "{% for p in messages[0].content or [] %}{{ p.text }}{% endfor %}",
    "{% for p in (m.content if m.content else []) %}{{ p.text }}{% endfor %}",
    PARTS_ONLY,
]


@pytest.mark.parametrize("source", LOOPS)
def test_a_template_that_only_loops_over_contents_takes_parts_alone(source: str) -> None:
    assert traits(source) == Traits(parts=True, text=False)


def test_a_template_that_asks_for_strings_first_takes_both() -> None:
    assert traits(PARTS) == Traits(parts=True, text=True)


def test_a_loop_over_the_lines_of_a_content_is_not_a_loop_over_parts() -> None:
    assert not traits("{% for line in messages[0].content.split('\\n') %}{{ line }}{% endfor %}").parts


def test_a_template_that_names_the_developer_knows_that_role() -> None:
    assert traits("{% if messages[0].role in ['system', 'developer'] %}x{% endif %}").developer
    assert not traits(CHATML).developer
