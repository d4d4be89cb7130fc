"""Handing out cache blocks."""

from __future__ import annotations

from forebay_engine.kv_pool import BlockPool


def test_table_grows_by_whole_blocks() -> None:
    pool, table = BlockPool(4, 32), list[int]()
    assert pool.grow(table, 1)
    assert pool.grow(table, 32)
    assert table == [0]
    assert pool.grow(table, 33)
    assert table == [0, 1]


def test_growth_that_does_not_fit_takes_nothing() -> None:
    pool, table = BlockPool(2, 32), list[int]()
    assert not pool.grow(table, 65)
    assert (table, pool.free) == ([], 2)


def test_released_blocks_are_used_again_in_the_same_order() -> None:
    pool, table = BlockPool(3, 32), list[int]()
    pool.grow(table, 96)
    pool.release(table)
    assert (table, pool.free) == ([], 3)
    pool.grow(table, 64)
    assert table == [0, 1]
