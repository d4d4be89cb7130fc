"""The requests that the SGLang comparison sends to both fronts: text, ids, batches, logprobs, stops, aborts, bad ones.

Only data, and only the standard library: the recorder (`sglang_record`) sends them, a test replays their answers.
Sampling is greedy everywhere, so that two fronts of one model must give the same texts and the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]
"""`name`, `path`, `body` (None: GET), and for some `action`: what the client does while the answer runs."""

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time there was a",
    "1, 2, 3, 4, 5,",
    "La capitale de l'Allemagne est",
    "The emoji for a smile is 😀 and the emoji for a heart is",
    "日本の首都は",
    "Water boils at a temperature of",
    "A B C D E F",
    "Line one\nLine two\nLine",
)
IDS = [504, 3575, 282, 4649, 314]
LONG = "one two three four five six seven eight nine ten " * 40
CHAT = [{"role": "user", "content": "What is the capital of France?"}]
TALK = [
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another one."},
]


def greedy(tokens: int = 8, **more: Any) -> dict[str, Any]:
    """Sampling parameters of the native route."""
    return {"temperature": 0, "max_new_tokens": tokens, **more}


def _both(name: str, path: str, body: dict[str, Any]) -> Iterator[Case]:
    """A request as one whole answer and as a stream."""
    yield {"name": name, "path": path, "body": body}
    yield {"name": name + "-stream", "path": path, "body": {**body, "stream": True}}


def _native(name: str, **body: Any) -> Iterator[Case]:
    """A case of `/generate`; its rid is its name, by which recorded steps of the engine are found again."""
    for case in _both("generate-" + name, "/generate", body):
        case["body"] = {**case["body"], "rid": _rid(body.get("rid"), case["name"])}
        yield case


def _rid(given: Any, name: str) -> Any:
    return [f"{name}-{one}" for one in given] if isinstance(given, list) else name


def _texts() -> Iterator[Case]:
    for at, prompt in enumerate(PROMPTS):
        yield from _native(f"text-{at}", text=prompt, sampling_params=greedy(10))
    yield from _native("ids", input_ids=IDS, sampling_params=greedy())
    yield from _native("ids-long", input_ids=IDS * 50, sampling_params=greedy(4))
    yield from _native("long", text=LONG, sampling_params=greedy(4))
    yield from _native("batch", text=list(PROMPTS[:3]), sampling_params=greedy(5))
    yield from _native("batch-of-one", text=[PROMPTS[0]], sampling_params=greedy(5))
    yield from _native("batch-ids", input_ids=[IDS, IDS[:3]], sampling_params=greedy(5))
    several = [greedy(3), greedy(6)]
    yield from _native("batch-params", text=list(PROMPTS[:2]), sampling_params=several, rid=["first", "second"])
    yield from _native("n", text=PROMPTS[0], sampling_params=greedy(4, n=2))
    yield from _native("prompt-ids", text=PROMPTS[0], sampling_params=greedy(3), return_prompt_token_ids=True)
    yield from _native("nothing-new", text=PROMPTS[0], sampling_params=greedy(0))
    yield from _native("one-token", text=PROMPTS[0], sampling_params=greedy(1))
    yield from _native("hundred", text=PROMPTS[3], sampling_params=greedy(60, ignore_eos=True))


def _logprobs() -> Iterator[Case]:
    base = {"text": PROMPTS[0], "sampling_params": greedy(4), "return_logprob": True}
    kinds: dict[str, dict[str, Any]] = {
        "output": {},
        "from-0": {"logprob_start_len": 0},
        "from-2": {"logprob_start_len": 2},
        "from-last": {"logprob_start_len": 4},
        "from-end": {"logprob_start_len": 5},
        "beyond": {"logprob_start_len": 6},
        "top-3": {"top_logprobs_num": 3},
        "top-2-from-0": {"top_logprobs_num": 2, "logprob_start_len": 0},
        "ids": {"token_ids_logprob": [198, 260, 0]},
        "ids-from-0": {"token_ids_logprob": [7042], "logprob_start_len": 0},
        "all": {"top_logprobs_num": 2, "token_ids_logprob": [1, 2], "logprob_start_len": 0},
        "text": {"return_text_in_logprobs": True, "top_logprobs_num": 2, "logprob_start_len": 0},
    }
    for name, more in kinds.items():
        yield from _native("logprob-" + name, **base, **more)
    yield from _native("logprob-of-one-in-batch", text=list(PROMPTS[:3]), sampling_params=greedy(4),
                       return_logprob=[False, True, False], top_logprobs_num=[0, 2, 0])  # fmt: skip
    yield from _native("logprob-prefill", text=PROMPTS[2], sampling_params=greedy(0), return_logprob=True,
                       logprob_start_len=0)  # fmt: skip
    yield from _native("logprob-long", text=LONG, sampling_params=greedy(2), return_logprob=True, logprob_start_len=300)


def _hidden() -> Iterator[Case]:
    yield from _native("hidden", text=PROMPTS[0], sampling_params=greedy(3), return_hidden_states=True)
    yield from _native("hidden-one", input_ids=IDS[:1], sampling_params=greedy(2), return_hidden_states=True)
    yield from _native("hidden-batch", text=list(PROMPTS[:2]), sampling_params=greedy(2),
                       return_hidden_states=[True, False])  # fmt: skip
    yield from _native("hidden-and-logprob", text=PROMPTS[0], sampling_params=greedy(2), return_hidden_states=True,
                       return_logprob=True, top_logprobs_num=2, logprob_start_len=0)  # fmt: skip


def _stops() -> Iterator[Case]:
    numbers = PROMPTS[3]
    kinds: dict[str, dict[str, Any]] = {
        "string": {"stop": " 8"},
        "list": {"stop": ["zzz", "9", "10"]},
        "over-tokens": {"stop": ", 8, 9"},
        "kept": {"stop": " 8", "no_stop_trim": True},
        "never": {"stop": "never comes"},
        "at-once": {"stop": " "},
        "token": {"stop_token_ids": [28]},
        "token-kept": {"stop_token_ids": [28], "no_stop_trim": True},
        "regex": {"stop_regex": "[89],"},
        "min": {"stop": ",", "min_new_tokens": 4},
        "min-token": {"stop_token_ids": [28], "min_new_tokens": 5},
    }
    for name, more in kinds.items():
        yield from _native("stop-" + name, text=numbers, sampling_params=greedy(16, **more))
    chat = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    yield from _native("eos", text=chat, sampling_params=greedy(24))
    yield from _native("eos-ignored", text=chat, sampling_params=greedy(20, ignore_eos=True))
    yield from _native("special-shown", text=chat,
                       sampling_params=greedy(20, ignore_eos=True, skip_special_tokens=False))  # fmt: skip


def _sampling() -> Iterator[Case]:
    kinds: dict[str, dict[str, Any]] = {
        "top-k-1": {"temperature": 1.0, "top_k": 1},
        "bias": {"logit_bias": {"7042": -100}},
        "bias-up": {"logit_bias": {"198": 100}},
        "repetition": {"repetition_penalty": 1.5},
        "frequency": {"frequency_penalty": 1.5},
        "presence": {"presence_penalty": 1.5},
        "interval": {"stream_interval": 3},
        "nulls": {"top_p": None, "top_k": None, "stop": None, "min_new_tokens": None},
        "custom": {"custom_params": {"a": 1}},
        "seed": {"sampling_seed": 7},
        "min-p": {"min_p": 0.5, "top_p": 0.9},
    }
    for name, more in kinds.items():
        yield from _native("sampling-" + name, text=PROMPTS[0], sampling_params=greedy(8) | more)


def _bad() -> Iterator[Case]:
    ok = {"text": PROMPTS[0], "sampling_params": greedy(4)}
    bodies: dict[str, Any] = {
        "nothing": {},
        "both": {"text": "a", "input_ids": [1]},
        "empty-batch": {"text": []},
        "empty-ids": {"input_ids": []},
        "empty-inner": {"input_ids": [[1], []]},
        "empty-text": {"text": ""},
        "id-too-large": {"input_ids": [49152]},
        "id-negative": {"input_ids": [-1]},
        "id-text": {"input_ids": ["a"]},
        "text-number": {"text": 5},
        "too-long": {"input_ids": [1] * 9000},
        "too-many-new": {**ok, "sampling_params": {"max_new_tokens": 9000}},
        "temperature": {**ok, "sampling_params": {"temperature": -1}},
        "temperature-type": {**ok, "sampling_params": {"temperature": "hot"}},
        "top-p": {**ok, "sampling_params": {"top_p": 0}},
        "top-k": {**ok, "sampling_params": {"top_k": 0}},
        "min-p": {**ok, "sampling_params": {"min_p": 2}},
        "frequency": {**ok, "sampling_params": {"frequency_penalty": 3}},
        "repetition": {**ok, "sampling_params": {"repetition_penalty": 0}},
        "max-new": {**ok, "sampling_params": {"max_new_tokens": -1}},
        "min-new": {**ok, "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
        "bias-key": {**ok, "sampling_params": {"logit_bias": {"60000": 1}}},
        "n-zero": {**ok, "sampling_params": {"n": 0}},
        "stops-too-many": {**ok, "sampling_params": {"stop": ["x"] * 33}},
        "stop-regex": {**ok, "sampling_params": {"stop_regex": "("}},
        "two-grammars": {**ok, "sampling_params": {"regex": "a", "ebnf": "b"}},
        "seed": {**ok, "sampling_params": {"sampling_seed": 2**70}},
        "top-logprobs": {**ok, "return_logprob": True, "top_logprobs_num": -1},
        "token-ids-nested": {**ok, "return_logprob": True, "token_ids_logprob": [[0]]},
        "token-ids-range": {**ok, "return_logprob": True, "token_ids_logprob": [60000]},
        "lora": {**ok, "lora_path": "no-such-adapter"},
        "session": {**ok, "session_params": {"id": "no-such-session"}, "sampling_params": greedy(2)},
        "processor": {**ok, "custom_logit_processor": "{}"},
        "batch-lengths": {"text": ["a", "b"], "sampling_params": [{}]},
        "rid-twice": {"text": ["a", "b"], "rid": ["x", "x"]},
        "stream-late": {"input_ids": [1] * 9000, "stream": True},
        "grammar-off": {**ok, "sampling_params": greedy(4, regex="[0-9]+")},
    }
    for name, body in bodies.items():
        yield {"name": "bad-" + name, "path": "/generate", "body": body}


def _aborts() -> Iterator[Case]:
    running = {"text": PROMPTS[3], "sampling_params": greedy(400, ignore_eos=True)}
    yield {"name": "abort-stream", "path": "/generate", "body": {**running, "rid": "a1", "stream": True},
           "action": "abort after 3"}  # fmt: skip
    yield {"name": "abort-whole", "path": "/generate", "body": {**running, "rid": "a2"}, "action": "abort after 1 s"}
    yield {"name": "abort-all", "path": "/generate", "body": {**running, "stream": True}, "action": "abort all after 3"}
    yield {"name": "leave-stream", "path": "/generate", "body": {**running, "stream": True}, "action": "leave after 3"}
    yield {"name": "abort-unknown", "path": "/abort_request", "body": {"rid": "nobody"}}


def _openai() -> Iterator[Case]:
    completion: dict[str, dict[str, Any]] = {
        "plain": {},
        "usage": {"stream_options": {"include_usage": True}},
        "logprobs": {"logprobs": 3},
        "echo": {"echo": True},
        "echo-logprobs": {"echo": True, "logprobs": 2},
        "stop": {"stop": [" 8"], "prompt": PROMPTS[3]},
        "ids": {"prompt": IDS},
        "batch": {"prompt": list(PROMPTS[:2])},
        "n": {"n": 2},
        "one": {"max_tokens": 1},
    }
    for name, more in completion.items():
        body = {"model": "m", "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 8, **more}
        yield from _both("completion-" + name, "/v1/completions", body)
    chat: dict[str, dict[str, Any]] = {
        "plain": {},
        "talk": {"messages": TALK},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "stop": {"stop": "Paris"},
        "short": {"max_tokens": 2},
        "completion-tokens": {"max_completion_tokens": 3},
        "n": {"n": 2},
        "usage": {"stream_options": {"include_usage": True}},
        "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}]},
        "continue": {"messages": [*CHAT, {"role": "assistant", "content": "The capital"}],
                     "continue_final_message": True},
    }  # fmt: skip
    for name, more in chat.items():
        body = {"model": "m", "messages": CHAT, "temperature": 0, "max_tokens": 10, **more}
        yield from _both("chat-" + name, "/v1/chat/completions", body)
    bad: dict[str, dict[str, Any]] = {
        "no-messages": {"messages": []},
        "role": {"messages": [{"role": "nobody", "content": "x"}]},
        "top-logprobs": {"messages": CHAT, "top_logprobs": 2},
        "temperature": {"messages": CHAT, "temperature": -1},
        "too-long": {"messages": [{"role": "user", "content": LONG * 25}]},
    }
    for name, more in bad.items():
        yield {
            "name": "bad-chat-" + name,
            "path": "/v1/chat/completions",
            "body": {"model": "m", "max_tokens": 4, **more},
        }


def _others() -> Iterator[Case]:
    for path in ("/v1/models", "/model_info", "/server_info", "/health", "/health_generate", "/flush_cache"):
        yield {"name": "get" + path.replace("/", "-"), "path": path, "body": None}
    yield {"name": "tokenize", "path": "/tokenize", "body": {"prompt": PROMPTS[0]}}
    yield {"name": "detokenize", "path": "/detokenize", "body": {"tokens": IDS}}
    yield {"name": "internal-state", "path": "/get_internal_state", "body": None}


def all_cases() -> list[Case]:
    """Every case, in the order in which they are sent."""
    parts = (_texts, _logprobs, _hidden, _stops, _sampling, _bad, _openai, _aborts, _others)
    return [case for part in parts for case in part()]
