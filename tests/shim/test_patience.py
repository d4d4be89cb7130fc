"""When and how often a process is restarted."""

from __future__ import annotations

from forebay.patience import Patience


def test_delays_double_up_to_five_seconds() -> None:
    patience = Patience(limit=8, window=60)
    assert [patience.next_delay(0) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_one_restart_over_the_limit_is_the_end() -> None:
    patience = Patience(limit=2, window=60)
    assert [patience.next_delay(second) for second in (0, 30, 59)] == [0.1, 0.2, None]


def test_restarts_outside_the_window_are_forgotten() -> None:
    patience = Patience(limit=2, window=60)
    assert [patience.next_delay(second) for second in (0, 30, 61, 200)] == [0.1, 0.2, 0.2, 0.1]


def test_limit_of_zero_allows_no_restart() -> None:
    assert Patience(limit=0, window=60).next_delay(0) is None
