"""The control calls that the tokenizer answers: Tokenize, Detokenize (in the shape of their routes), FlushCache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from forebay.errors import RequestError
from forebay.wire.messages import ChatPrompt, ControlRequest, Ids, OpenItem, RequestHead, WorkItem
from forebay_tokenizer import checks
from forebay_tokenizer.admission import Admitter, Piece, joined

FLAGS = ("add_special_tokens", "skip_special_tokens", "continue_final_message", "return_token_strs")


def call_size(request: ControlRequest) -> int:
    """What a call costs, roughly, in characters: decides about its lane."""
    fields = request.fields
    return _weight(fields.get("prompt")) + _weight(fields.get("messages")) + 4 * _weight(fields.get("tokens"))


def _weight(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_weight, value.values()))
    return sum(map(_weight, value)) if isinstance(value, list) else 1


class Calls:
    """Answers calls with the parts that requests use, so that the counts are the same."""

    def __init__(self, admitter: Admitter, model_max_length: int | None = None) -> None:
        self._admitter = admitter
        self._encoder = admitter.encoder
        self._model_max_length = model_max_length

    def answer(self, request: ControlRequest) -> dict[str, Any]:
        """The JSON object of the route; raises `RequestError`."""
        fields = {name: value for name, value in request.fields.items() if value is not None}
        for name in FLAGS:
            if not isinstance(fields.get(name, True), bool):
                raise RequestError(f"{name} must be true or false.", param=name)
        if request.type == "Tokenize":
            return self._tokenize(fields)
        if request.type == "Detokenize":
            return self._detokenize(fields)
        if request.type == "FlushCache":
            self._admitter.segments.cache.clear()
            return {"success": True, "message": "Segment cache flushed."}
        raise RequestError(f"the tokenizer has no control call '{request.type[:80]}'", 501)

    def _tokenize(self, fields: dict[str, Any]) -> dict[str, Any]:
        if ("prompt" in fields) == ("messages" in fields):
            raise RequestError("Exactly one of 'prompt' or 'messages' must be provided.")
        many = isinstance(fields.get("prompt"), list)
        ids = [self._chat(fields)] if "messages" in fields else self._prompts(fields)
        tokens = [one.tolist() for one in ids]
        counts = [len(one) for one in ids]
        out: dict[str, Any] = {
            "tokens": tokens if many else tokens[0],
            "count": counts if many else counts[0],
            "max_model_len": self._model_max_length or self._admitter.limits.context_length,
        }
        if fields.get("return_token_strs"):
            texts = [self._encoder.token_texts(one) for one in tokens]
            out["token_strs"] = texts if many else texts[0]
        return out

    def _prompts(self, fields: dict[str, Any]) -> list[Ids]:
        prompt = fields["prompt"]
        texts = prompt if isinstance(prompt, list) else [prompt]
        special = fields.get("add_special_tokens", True)
        for text in texts:
            if not isinstance(text, str):
                raise RequestError("prompt must be a string or a list of strings.", param="prompt")
            checks.text_bytes(text, "prompt")
        encoded = self._admitter.encode([Piece(text, add_special_tokens=special) for text in texts])
        return [joined([one]) for one in encoded]

    def _chat(self, fields: dict[str, Any]) -> Ids:
        """The ids of a chat, by the very way that a chat request goes."""
        continues = fields.get("continue_final_message", False)
        generation = fields.get("add_generation_prompt")
        if not isinstance(generation, (bool, type(None))):
            raise RequestError("add_generation_prompt must be true or false.", param="add_generation_prompt")
        if continues and generation:
            raise RequestError(
                "add_generation_prompt and continue_final_message cannot both be true.", param="continue_final_message"
            )
        chat = ChatPrompt(
            messages=_json(fields["messages"]),
            tools=_json(fields["tools"]) if "tools" in fields and fields.get("tool_choice") != "none" else None,
            chat_template_kwargs=_json(fields["chat_template_kwargs"]) if "chat_template_kwargs" in fields else None,
            add_generation_prompt=generation is not False,
            continue_final_message=continues,
            reasoning_effort=fields.get("reasoning_effort"),
            chat_template=fields.get("chat_template"),
        )
        item = WorkItem(head=RequestHead(rid=""), rids=[], open=OpenItem(rid=""), chat=chat)
        pieces = self._admitter.chat_pieces(item)
        for piece in pieces:
            checks.text_bytes(piece.text, "messages")
        return joined(self._admitter.encode(pieces))

    def _detokenize(self, fields: dict[str, Any]) -> dict[str, Any]:
        tokens = fields.get("tokens")
        if not isinstance(tokens, list):
            raise RequestError("tokens must be a list of token ids.", param="tokens")
        many = any(isinstance(one, list) for one in tokens)
        texts = self._texts(tokens if many else [tokens], fields.get("skip_special_tokens", True))
        text = texts if many else texts[0]
        return {"text": text, "prompt": text}

    def _texts(self, lists: Sequence[Any], skip_special_tokens: bool) -> list[str]:
        vocab_size = max(self._encoder.vocab_size, self._admitter.limits.vocab_size)
        for one in lists:
            if not isinstance(one, list):
                raise RequestError("tokens must be a list of ids or a list of such lists.", param="tokens")
        ids = [checks.id_array(one, vocab_size, "tokens") for one in lists]
        return self._encoder.decode_many(ids, skip_special_tokens=skip_special_tokens)


def _json(value: Any) -> bytes:
    """A field as JSON text: the api may send it as it came, or decoded."""
    if isinstance(value, bytes):
        return value
    return msgspec.json.encode(value)
