"""The files of counters: what one process counts, another reads, also after its death; never half a number."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.counters import SIZE, Counters, Sample, counts_path, read_counts
from forebay.topology import Peer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return counts_path(tmp_path, Peer("api", 3))


def samples(path: Path) -> dict[str, Sample]:
    return {sample.name: sample for sample in read_counts(path)[1]}


def test_a_reader_sees_what_has_been_counted(path: Path) -> None:
    cell = Counters(path).counter("seen_total", colour="red")
    cell.add()
    cell.add(2)
    assert read_counts(path)[1] == [Sample("counter", "seen_total", (("colour", "red"),), [3.0])]


def test_a_missing_file_has_no_numbers(path: Path) -> None:
    assert read_counts(path) == (0.0, [])


def test_the_same_name_and_labels_are_the_same_number(path: Path) -> None:
    counters = Counters(path)
    counters.counter("seen_total", a="1", b="2").add()
    counters.counter("seen_total", b="2", a="1").add()
    assert samples(path)["seen_total"].values == [2.0]


def test_a_histogram_puts_a_value_on_its_bound_into_that_bucket(path: Path) -> None:
    histogram = Counters(path).histogram("size", (1, 2, 4))
    for value in (0.5, 2, 2.5, 9):
        histogram.observe(value)
    assert samples(path)["size"].values == [1, 1, 1, 1, 14]


def test_a_value_can_count_many_times(path: Path) -> None:
    Counters(path).histogram("size", (1,)).observe(0.5, 64)
    assert samples(path)["size"].values == [64, 0, 32]


def test_a_restarted_process_counts_on_and_its_gauges_are_zero(path: Path) -> None:
    first = Counters(path)
    first.counter("seen_total").add(5)
    first.gauge("waiting").set(7)
    second = Counters(path)
    second.counter("seen_total").add()
    assert samples(path)["seen_total"].values == [6.0]
    assert samples(path)["waiting"].values == [0.0]


def test_other_buckets_after_a_restart_are_another_number(path: Path) -> None:
    Counters(path).histogram("size", (1, 2)).observe(1)
    Counters(path).histogram("size", (1,)).observe(1)
    assert [len(sample.values) for sample in read_counts(path)[1]] == [4, 3]


def test_a_file_that_is_not_ours_is_begun_anew(path: Path) -> None:
    path.write_bytes(b"FBC1" + b"\xff" * 60)
    Counters(path).counter("seen_total").add()
    assert samples(path)["seen_total"].values == [1.0]


@pytest.mark.parametrize("size", range(60))
def test_no_part_of_a_file_makes_the_reader_fail(path: Path, size: int) -> None:
    counters = Counters(path)
    counters.counter("seen_total", colour="red").add()
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert len(read_counts(path)[1]) <= 1


def test_a_full_file_drops_numbers_and_not_the_process(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters(path)
    for number in range(SIZE // 8000 + 1):
        counters.histogram("size", tuple(range(1000)), number=str(number)).observe(1)
    counters.histogram("size", tuple(range(1000)), number="last").observe(1)
    assert caplog.text.count("is full") == 1


def test_the_sign_of_life_is_read(path: Path) -> None:
    Counters(path).alive(1234.5)
    assert read_counts(path)[0] == 1234.5
