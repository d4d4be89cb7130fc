"""Hands out the blocks of the attention cache. Knows numbers only; the memory itself belongs to the backend."""

from __future__ import annotations


class BlockPool:
    """The free blocks of a pool. A sequence keeps its own table: a list of block numbers, grown here."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        # Lowest numbers first: pages of the pool that were never used take no memory.
        self._free = list(range(blocks))[::-1]

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Tokens that all blocks together hold."""
        return self.blocks * self.block_tokens

    def missing(self, table: list[int], tokens: int) -> int:
        """Blocks that `table` needs beyond its own to hold `tokens`."""
        return max(0, -(-tokens // self.block_tokens) - len(table))

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend `table` until it holds `tokens`; False, and nothing taken, when too few blocks are free."""
        missing = self.missing(table, tokens)
        if missing > len(self._free):
            return False
        table.extend(self._free.pop() for _ in range(missing))
        return True

    def release(self, table: list[int]) -> None:
        """Take all blocks of `table` back and empty it."""
        self._free.extend(reversed(table))
        table.clear()
