"""The part of a chat that is rendered: messages, tools and template variables, checked as far as that is cheap.

They stay JSON text. What is in a message is read by the tokenizer process, once.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from forebay.errors import RequestError
from forebay.wire.messages import ChatPrompt
from forebay_api.fields import present
from forebay_api.jsonbody import decoded
from forebay_api.openai_bodies import ChatBody
from forebay_api.plan import AdmissionContext
from forebay_api.tools import offered_tools
from forebay_api.typeerrors import describe, wrong_type

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
TEMPLATE_TRUST = "a request cannot bring its own chat template on this server"
_VARIABLES = msgspec.json.Decoder(dict[str, Raw])
_TEXT = msgspec.json.Decoder(str)


def chat_prompt(body: ChatBody, ctx: AdmissionContext) -> ChatPrompt:
    """The prompt of a chat body. Raises `RequestError` (400)."""
    messages = messages_of(present(body.messages))
    tools = offered_tools(present(body.tools), present(body.tool_choice))
    if body.continue_final_message and body.add_generation_prompt:
        text = "add_generation_prompt and continue_final_message cannot both be true."
        raise RequestError(text, param="continue_final_message")
    variables = present(body.chat_template_kwargs)
    return ChatPrompt(
        messages=messages,
        tools=tools,
        chat_template_kwargs=variables,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        reasoning_effort=_effort(body),
        chat_template=_template(body.chat_template, variables, ctx),
    )


def messages_of(text: bytes | None) -> bytes:
    """The messages of a body, looked at from outside. Raises `RequestError`."""
    if text is None:
        raise RequestError("missing field `messages`", param="messages")
    if not text.startswith(b"["):
        raise wrong_type(msgspec.json.decode(text), "a sequence", "messages")
    if len(text) < 64 and not text[1:-1].strip():
        raise RequestError("Messages cannot be empty.", param="messages")
    return text


def _template(template: str | None, variables: bytes | None, ctx: AdmissionContext) -> str | None:
    """The template that the client brings, in its own field or among the variables, if the operator allows it."""
    param = "chat_template"
    if variables is not None:
        given = decoded(_VARIABLES, variables, {}, "chat_template_kwargs").get("chat_template")
        if template is None and (text := present(given) if given is not None else None) is not None:
            param = "chat_template_kwargs.chat_template"
            template = decoded(_TEXT, text, {}, param)
    if template is not None and not ctx.settings.trust_request_chat_template:
        raise RequestError(TEMPLATE_TRUST, param=param)
    return template


def _effort(body: ChatBody) -> str | float | None:
    """The reasoning effort: the plain field, else that of the `reasoning` object."""
    effort, param = body.reasoning_effort, "reasoning_effort"
    if effort is None and body.reasoning is not None:
        effort, param = body.reasoning.effort, "reasoning.effort"
        if body.reasoning.enabled is False:
            effort = "none"
        elif body.reasoning.enabled and effort is None:
            effort = "medium"
    if isinstance(effort, str) and effort not in EFFORTS:
        raise RequestError(f"{param} must be one of {', '.join(EFFORTS)}, got {describe(effort)}", param=param)
    if isinstance(effort, float) and not 0 <= effort <= 0.99:
        raise RequestError(f"{param} must be in [0, 0.99], got {effort}.", param=param)
    return effort
