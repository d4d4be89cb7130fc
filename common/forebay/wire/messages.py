"""The structs that travel between the processes: typed, array-like msgpack, no dicts where a field is known.

Which process sends which: see the table in `forebay.wire`. Token ids never stand in these structs; they
travel as raw columns behind the msgpack header (see `columns`). `rid` is the request id on the wire: unique
over the life of the front, never parsed for meaning. What a client calls its request id is `public_rid`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    Ids = array[int]
else:  # array is not subscriptable at run time before Python 3.12
    Ids = array

NO_IDS: Ids = array("q")
"""Of a request whose ids are not there yet. Shared, so it must not grow: an array with a view on it refuses to."""
_holds_no_ids = memoryview(NO_IDS)
ALL_TOKENS = 1 << 30
"""`top_k` of a request that does not limit the number of candidate tokens."""


class SamplingParams(msgspec.Struct, array_like=True, gc=False):
    """Sampling parameters after normalisation (spec: sampling parameters, section 4).

    Greedy decoding always arrives as `top_k == 1` with `temperature == 1.0`; "no limit" as `top_k == 2**30`.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = ALL_TOKENS
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    stop_regex: list[str] = []
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    n: int = 1
    stream_interval: int | None = None
    logit_bias: dict[int, float] | None = None
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    custom_params: Any = None
    stop_str_max_len: int = 0
    stop_regex_max_len: int = 0


class RequestName(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """Which request it is, and whose: the first fields of its head.

    `rid` stands first so that it can be read even when another field cannot be decoded.
    """

    rid: str
    api: int = 0
    life: int = 0
    """The life (`Hello.incarnation`) of the api process that owns the request: another one knows nothing of it."""
    attempt: int = 0
    """0 for the first sending; more when a request is sent again after a tokenizer died."""
    public_rid: str | None = None


class RequestHead(RequestName, array_like=True, kw_only=True):
    """What the engine is told of one request; `input_ids` travel in the int64 column of the frame."""

    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    return_hidden_states: bool = False
    embedding: bool = False
    priority: int | None = None
    lora_path: str | None = None
    extra: dict[str, Any] | None = None
    """Fields that the front passes through to the engine by name (session, routing, cache salt ...)."""


class GenerateRequest(RequestHead, array_like=True, kw_only=True):
    """A request as the engine gets it from `Front.drain`: the head and its prompt ids (`array('q')`)."""

    input_ids: Ids = NO_IDS


class AbortRequest(msgspec.Struct, array_like=True):
    """Stop a request. `reason`: `client` left, `user` called abort, `stop` string matched, `lost` in the front.

    After `user` the engine should push a last row with the finish reason `{"type": "abort", ...}`; after the
    other reasons nobody waits for one, and late rows are dropped.
    """

    rid: str
    reason: str = "client"
    message: str = "Aborted"
    abort_all: bool = False


class ControlRequest(msgspec.Struct, array_like=True):
    """A control call for the engine (or the tokenizer): its type by name and its fields.

    Types that forebay itself sends: `FlushCache`, `GetInternalState` and those of `docs/api.md` to the engine; to the
    tokenizer `Tokenize`, `Detokenize` and `FlushCache`; `ConfigureLogging` and `FreezeGc` to every process.
    """

    rid: str
    api: int
    type: str
    fields: dict[str, Any] = {}
    exclusive: bool = False
    """The engine gets it when it has no request, and no request before it has answered."""


class ControlReply(msgspec.Struct, array_like=True):
    """The answer to a `ControlRequest`: `payload` is a map of field names, or any msgpack value."""

    rid: str
    payload: Any = None


STALE = "stale"
"""`RequestFault.type` of work that seems to be of an earlier life of its api process. An api process that has the
request was taken for another one, so it greets again."""


class RequestFault(msgspec.Struct, array_like=True):
    """One request ends with an error before or instead of its finish row."""

    rid: str
    status: int
    message: str
    type: str | None = None
    """The type of error that the client sees (`..._error`), where the status does not say it; or `STALE`."""
    param: str | None = None


class WorkItem(msgspec.Struct, array_like=True, kw_only=True):
    """One prompt on its way to the tokenizer, with the head of the engine request it will become.

    Exactly one of `text`, `chat` and the id column (`has_ids`) holds the prompt. `rids` has one wire id a
    sample (`n` of them): the prompt is tokenised once, and `head` is sent once for each of them.
    """

    head: RequestHead
    rids: list[str]
    open: OpenItem
    text: str | None = None
    chat: ChatPrompt | None = None
    has_ids: bool = False
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    max_new_tokens_given: bool = True
    """False when neither the client nor the operator set a limit: the second length check is skipped."""


class ChatPrompt(msgspec.Struct, array_like=True, kw_only=True):
    """A chat to be rendered. The values are JSON texts as the client sent them, parsed by the tokenizer only."""

    messages: bytes
    tools: bytes | None = None
    chat_template_kwargs: bytes | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    reasoning_effort: str | float | None = None
    chat_template: str | None = None


class OpenItem(msgspec.Struct, array_like=True, kw_only=True):
    """What the detokenizer must know of a request before its first row arrives."""

    rid: str
    api: int = 0
    life: int = 0
    """The life of that api process."""
    stream: bool = False
    """False: text, ids and families are kept in the detokenizer and sent once, in the `End`."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stop: list[str] = []
    stop_regex: list[str] = []
    min_new_tokens: int = 0
    prompt_tokens: int = 0
    prompt_tail: list[int] = []
    """The last ids of the prompt: the context that decides about a first space."""
    want_ids: bool = False
    want_prompt_ids: bool = False
    """The tokenizer sends the prompt ids to the api (`Admitted`)."""
    want_prompt_text: bool = False
    """The same for the prompt's text, decoded from its ids (echo of a prompt that came as ids)."""
    want_token_bytes: bool = False
    """Send the bytes of each token that a logprob family names, so that the api can show them."""
    return_logprob: bool = False
    return_hidden_states: bool = False
    stream_interval: int = 1
    """Tokens an event: rows are held until this many have come."""


class Unheard(msgspec.Struct, array_like=True):
    """Announced requests that have had no row for a while. The api process aborts those that it does not have."""

    source: int
    """Number of the detokenizer that asks."""
    rids: list[str]


class Mark(msgspec.Struct, array_like=True):
    """A mark behind the frames of a link, and the same on its way back; see `forebay.backlog`."""

    role: str
    index: int
    """Role and number of the process that this frame comes from."""
    link: int
    """Names the link that the mark belongs to."""
    sent: int
    """Bytes that this link had been given before the mark."""


class Pairs(msgspec.Struct, array_like=True):
    """One request's positions of a flat family: a value and an id each. A NaN or null value is None."""

    values: list[float | None]
    ids: list[int]


class Extra(msgspec.Struct, array_like=True):
    """The families of one request in one delta (or of its whole answer). Absent families are None.

    The `top` and `token_ids` families have one entry a position: None where the engine has no data.
    """

    output_logprobs: Pairs | None = None
    input_logprobs: Pairs | None = None
    output_top: list[Pairs | None] | None = None
    input_top: list[Pairs | None] | None = None
    output_token_ids: list[Pairs | None] | None = None
    input_token_ids: list[Pairs | None] | None = None
    hidden_states: list[list[float]] | None = None
    token_bytes: dict[int, bytes] | None = None
    """The bytes of each id that the families above name (special tokens: their text), if wanted."""


class End(msgspec.Struct, array_like=True, kw_only=True):
    """The end of one request: exactly one for each request that the detokenizer knows.

    `text`: what has not been sent yet (all of it when the request does not stream). `ids`: the same for the ids,
    raw little-endian int64, None if not wanted.
    """

    rid: str
    reason: dict[str, Any]
    text: str = ""
    ids: bytes | None = None
    tokens: int = 0
    """Number of output tokens that `text` and `ids` stand for."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    extra: Extra | None = None
    trailing: dict[str, Any] | None = None
    """Trailing columns of the engine for this request by name (`weight_version`, ...)."""


class Hello(msgspec.Struct, array_like=True, kw_only=True):
    """Sent on every link when it comes up, by both sides.

    A changed `incarnation` says that the peer has died and started again; later lives have larger ones. `blob` is the
    engine's launch facts as JSON text (secrets already taken out), None from the other roles.
    """

    role: str
    index: int
    incarnation: int
    pid: int
    version: str
    cores: list[int] = []
    blob: bytes | None = None
    status: str = "up"
    """`up`, `stopping` from the moment an ordered stop begins (give it no new work), or `paused` (the engine only)."""
    replays: bool = False
    """Of the engine: it tells a detokenizer that has started what it missed (`forebay.wire.replay`)."""


class Admitted(msgspec.Struct, array_like=True, kw_only=True):
    """Tokenizer to api, only when the client asked for it: the prompt as it went to the engine."""

    rid: str
    prompt_ids: bytes
    """Raw little-endian int64."""
    prompt_text: str | None = None
    """The prompt as text (ids decoded), when `OpenItem.want_prompt_text` is set."""
