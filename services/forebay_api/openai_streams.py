"""The chunks of the OpenAI streams: completions and chat completions, in the order that their clients expect.

Completions set the finish reason in the last text chunk of a choice. Chat begins each choice with its role, and ends
it with an empty chunk that has the finish reason.
"""

from __future__ import annotations

from array import array
from typing import Any

from forebay.wire.messages import End, Extra, WorkItem
from forebay_api import logprobs, replies
from forebay_api.calls import ids_of
from forebay_api.streams import StreamCall, StreamChoice, event


class CompletionChoice(StreamChoice):
    """Chunks of `/v1/completions`."""

    __slots__ = ("_begun", "_offset")

    def __init__(self, call: StreamCall, rid: str, index: int, item: WorkItem, prompt: int) -> None:
        super().__init__(call, rid, index, item, prompt)
        self._begun = False
        self._offset = 0
        self.prepare()

    def affixes(self) -> tuple[bytes, bytes]:
        return replies.split_at_text(replies.completion_chunk(self.call, self.index, replies.MARK, None))

    def is_plain(self) -> bool:
        plan = self.call.plan
        return not (plan.return_logprob or plan.return_token_ids or plan.continuous_usage)

    def events(self, text: str, ids: array[int] | None, extra: Extra | None) -> list[bytes]:
        if self.is_plain() and (self._begun or not self.call.plan.echo):
            self._begun = True
            return [self.plain_event(text)]
        return [event(self._chunk(text, ids.tolist() if ids is not None else [], extra, None))]

    def end_events(self, end: End) -> list[bytes]:
        last = event(self._chunk(end.text, ids_of(end.ids), end.extra, end))
        if not self.call.plan.return_hidden_states:
            return [last]
        body = replies.completion_chunk(self.call, self.index, "", None)
        body["choices"][0]["hidden_states"] = logprobs.nested(self.hidden, self.call.plan.hidden_size)
        return [last, event(body)]

    def _chunk(self, text: str, ids: list[int], extra: Extra | None, end: End | None) -> dict[str, Any]:
        plan, first = self.call.plan, not self._begun
        self._begun = True
        if first and plan.echo:
            text = replies.prompt_text(self) + text
        body = replies.completion_chunk(self.call, self.index, text, end)
        choice = body["choices"][0]
        if plan.return_logprob:
            choice["logprobs"], self._offset = logprobs.completions(
                extra, plan.top_logprobs, self._offset, plan.echo and first
            )
        if plan.return_token_ids:
            choice["token_ids"] = ids
            if first:
                choice["prompt_token_ids"] = replies.prompt_ids(self)
        if plan.continuous_usage:
            body["usage"] = replies.usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens, 0, plan)
        return body


class ChatChoice(StreamChoice):
    """Chunks of `/v1/chat/completions`."""

    __slots__ = ("_begun",)

    def __init__(self, call: StreamCall, rid: str, index: int, item: WorkItem, prompt: int) -> None:
        super().__init__(call, rid, index, item, prompt)
        self._begun = False
        self.prepare()

    def affixes(self) -> tuple[bytes, bytes]:
        return replies.split_at_text(self._content(replies.MARK))

    def is_plain(self) -> bool:
        plan = self.call.plan
        return not (plan.return_logprob or plan.return_token_ids or plan.continuous_usage)

    def events(self, text: str, ids: array[int] | None, extra: Extra | None) -> list[bytes]:
        out = [] if self._begun else [self._role()]
        if text and self.is_plain():
            out.append(self.plain_event(text))
        elif text or extra is not None or ids:
            out.append(event(self._filled(text, ids.tolist() if ids is not None else [], extra)))
        return out

    def end_events(self, end: End) -> list[bytes]:
        out = [] if self._begun else [self._role()]
        plan = self.call.plan
        if end.text or (plan.return_logprob and end.extra is not None) or (plan.return_token_ids and end.ids):
            out.append(event(self._filled(end.text, ids_of(end.ids), end.extra)))
        out.append(event(self._with_usage(replies.chat_chunk(self.call, self.index, {}, end))))
        if plan.return_hidden_states:
            body = replies.chat_chunk(self.call, self.index, {}, None)
            body["choices"][0]["hidden_states"] = logprobs.nested(self.hidden, plan.hidden_size)
            out.append(event(body))
        return out

    def _role(self) -> bytes:
        self._begun = True
        body = replies.chat_chunk(
            self.call, self.index, {"role": "assistant", "content": "", "reasoning_content": None}, None
        )
        if self.call.plan.return_token_ids:
            body["choices"][0]["prompt_token_ids"] = replies.prompt_ids(self)
        return event(self._with_usage(body))

    def _content(self, text: str) -> dict[str, Any]:
        delta = {"reasoning_content": None, "content": text} if text else {}
        return replies.chat_chunk(self.call, self.index, delta, None)

    def _filled(self, text: str, ids: list[int], extra: Extra | None) -> dict[str, Any]:
        plan = self.call.plan
        body = self._content(text)
        if plan.return_logprob:
            body["choices"][0]["logprobs"] = logprobs.chat(extra, plan.top_logprobs)
        if plan.return_token_ids:
            body["choices"][0]["token_ids"] = ids
        return self._with_usage(body)

    def _with_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        plan = self.call.plan
        if plan.continuous_usage:
            body["usage"] = replies.usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens, 0, plan)
        return body
