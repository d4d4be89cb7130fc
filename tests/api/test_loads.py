"""/v1/loads: sections, filters and the Prometheus form, from an engine's state."""

from __future__ import annotations

import pytest

from forebay.errors import RequestError
from forebay_api.routes.loads import CORE, as_text, load_of, read_include

STATE = {
    "num_running_reqs": 3,
    "num_used_tokens": 40,
    "max_running_requests": 4,
    "memory": {"kv_gib": 1.5, "kind": "paged"},
    "queues": {"grammar": 2},
}


def test_all_sections_are_included_unless_some_are_named() -> None:
    load = load_of(STATE, read_include(None), 5.0)
    assert load["memory"] == {"kv_gib": 1.5, "kind": "paged"}
    assert load["queues"] == {"grammar": 2}
    assert load["num_running_reqs"] == 3
    assert load["utilization"] == 0.75
    assert load["num_total_tokens"] == 40
    assert set(CORE) <= set(load)


def test_only_named_sections_are_included() -> None:
    assert load_of(STATE, read_include("memory, queues"), 5.0).keys() == {"timestamp", "dp_rank", "memory", "queues"}


@pytest.mark.parametrize("text", ["cores", "core,,memory", "ALL", "core memory"])
def test_an_unknown_section_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_include(text)
    assert caught.value.status == 400


def test_the_prometheus_form_has_a_gauge_for_each_number() -> None:
    text = as_text([load_of(STATE, read_include("all"), 5.0)]).decode()
    assert 'sglang_num_running_reqs{dp_rank="0"} 3.0' in text
    assert 'sglang_memory_kv_gib{dp_rank="0"} 1.5' in text
    assert "kind" not in text
