"""Memory for blocks on their way from and to disk."""

from __future__ import annotations

from millrace.adaptive.disk.block_directory import BlockList
from millrace.core.budget import MemoryBudget


class BlockBuffers:
    """A reservation for blocks on their way from and to disk, which can borrow memory of rows for a while.

    Parameters
    ----------
    nbytes
        Bytes for such blocks.
    block
        Bytes of a block.
    """

    def __init__(self, budget: MemoryBudget, nbytes: int, block: int) -> None:
        self.block = block
        self._budget = budget
        self._reservation = budget.reserve("transfer", nbytes)
        self._own = 0  # bytes without those that are borrowed; 0 while none are

    @property
    def nbytes(self) -> int:
        """Bytes for blocks, borrowed ones included."""
        return self._reservation.nbytes

    @property
    def own_bytes(self) -> int:
        """Bytes for blocks, without those that are borrowed."""
        return self._own or self.nbytes

    def try_resize(self, nbytes: int) -> bool:
        """Hold so many bytes from now on; return False if the budget does not allow it."""
        return self._reservation.try_resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Hold so many bytes from now on."""
        self._reservation.resize(nbytes)

    def take_rest(self) -> None:
        """Hold all of the budget that is free."""
        self.resize(self.nbytes + self._budget.available)

    def begin_loan(self) -> None:
        """Note the size to which :meth:`end_loan` returns."""
        self._own = self._own or self.nbytes

    def end_loan(self) -> None:
        """Give borrowed bytes back."""
        if self._own:
            self._reservation.resize(self._own)
            self._own = 0

    def fitting(self, blocks: BlockList, first: int, most: int) -> int:
        """Return how many blocks from the first on there is memory for, at least one.

        Each takes its memory twice while blocks are merged.
        """
        left, count = self.nbytes - 2 * self.block, 0
        while first + count < len(blocks) and count < most:
            left -= 2 * blocks[first + count].nbytes
            if left < 0:
                break
            count += 1
        return max(1, count)
