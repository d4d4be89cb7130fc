"""Tokenizers and chat templates that the tests build in memory: small, but each of a usual family."""

from __future__ import annotations

import logging
from array import array
from functools import cache
from typing import Any

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from forebay.errors import RequestError
from forebay.wire.messages import ChatPrompt, Ids, OpenItem, RequestHead, SamplingParams, WorkItem
from forebay_tokenizer.admission import Admission, Admitter
from forebay_tokenizer.bounds import byte_alphabet
from forebay_tokenizer.caches import Segments
from forebay_tokenizer.checks import Limits
from forebay_tokenizer.encode import Encoder
from forebay_tokenizer.templates import ChatTemplates

LOG = logging.getLogger("tests.tokenizer")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]"]
CHARACTERS = (
    "abc hello<|>[]\n\t.,'09éäß\u0301\u0308漢字かな\u1100\u1161\u11a8ﬁ\u2126\u212a\U0001f642\U0001d41a\u00a0\u2581\x00"
)
"""Enough of Unicode for random texts: characters of every length, some that a normal form shortens."""
WORDS = ["user", "assistant", "system", "Ġthe", "Ġhello", "hello", "Ġworld", "ĊĊ", "ĠĠ", "Ã¤", "ing"]


def _merges(words: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Vocabulary entries and merges that build each word from its left."""
    made: dict[str, tuple[str, str]] = {}
    for word in words:
        for end in range(2, len(word) + 1):
            made.setdefault(word[:end], (word[: end - 1], word[end - 1]))
    return list(made), list(made.values())


def byte_level(*, bos: bool = False, extra: list[AddedToken] | None = None) -> Tokenizer:
    """A GPT-like tokenizer; with `bos` plain text begins with `<s>`."""
    entries, merges = _merges(WORDS)
    vocab = {token: at for at, token in enumerate([*byte_alphabet(), *entries])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    split = Regex(r"'s|'t| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    if extra:
        tokenizer.add_tokens(extra)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


@cache
def plain() -> Tokenizer:
    """One `byte_level()` for all tests that do not change it: its pattern takes 70 ms to compile."""
    return byte_level()


@cache
def with_bos() -> Tokenizer:
    """One `byte_level(bos=True)` for all tests that do not change it."""
    return byte_level(bos=True)


def sentence_piece(*, metaspace: str | None = None) -> Tokenizer:
    """A Llama-2-like tokenizer; `metaspace` is the prepend scheme when that takes the place of the normalizer."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    entries, merges = _merges(["▁the", "▁hello", "hello", "user"])
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, *entries]
    vocab = {token: at for at, token in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace is None:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=metaspace, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>")])
    return tokenizer


CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""
BOS_FIRST = """\
{{- bos_token }}
{%- for message in messages %}
    {{- message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant\\n\\n' }}{% endif %}
"""
ALTERNATING = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ ' ' + message['content'] + eos_token }}
{% else %}
{{ raise_exception('Only user and assistant roles are supported!') }}
{% endif %}
{% endfor %}
"""
PARTS = """\
{% for message in messages %}{{ message.role }}:
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}
{% if part['type'] == 'text' %}<{{ part['text'] }}>{% endif %}
{% endfor %}{% endif %}
{% endfor %}
"""
PARTS_ONLY = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
TOOLS = """\
{%- if tools %}{{ '<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '</tools>' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls %}
{{- '<call>' + call.function.name + ':' + call.function.arguments | tojson + '</call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endfor %}
"""


def chat(messages: Any, **fields: Any) -> ChatPrompt:
    """A chat as the api sends it: `messages`, `tools` and `chat_template_kwargs` as JSON text."""
    for name in ("tools", "chat_template_kwargs"):
        if fields.get(name) is not None:
            fields[name] = msgspec.json.encode(fields[name])
    raw = messages if isinstance(messages, bytes) else msgspec.json.encode(messages)
    return ChatPrompt(messages=raw, **fields)


def user(text: Any = "hello") -> list[dict[str, Any]]:
    """A chat of one message."""
    return [{"role": "user", "content": text}]


def work(**fields: Any) -> WorkItem:
    """A work item of one sample, `r0`, or of as many as `rids` has."""
    sampling = fields.pop("sampling", None) or SamplingParams(max_new_tokens=4)
    rids = fields.pop("rids", ["r0"])
    head = RequestHead(rid=rids[0], api=2, sampling=sampling, **fields.pop("head", {}))
    return WorkItem(head=head, rids=rids, open=OpenItem(rid=rids[0]), **fields)


def admitter(
    tokenizer: Tokenizer | None = None, template: str = CHATML, *, context: int | None = 100, **limits: Any
) -> Admitter:
    """Everything between a work item and its admission, over a tokenizer of this file."""
    encoder = Encoder(tokenizer or plain())
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    templates = ChatTemplates({"default": template} if template else {}, special_tokens=special)
    bounds = Limits(**{"vocab_size": encoder.vocab_size, "context_length": context, **limits})
    return Admitter(Segments(encoder, hint=template), templates, bounds, LOG)


def admit(one: Admitter, item: WorkItem, ids: Ids | None = None) -> Admission:
    """The admission of a single item; raises its refusal."""
    result = one.admit_many([(item, ids if ids is not None else array("q"))])[0]
    if isinstance(result, RequestError):
        raise result
    return result
