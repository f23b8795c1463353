"""Memory for blocks that are read or written: how many blocks fit, and what a loan leaves behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millrace.adaptive.inputs.block_buffers import BlockBuffers
from millrace.core.budget import MemoryBudget


def test_as_many_blocks_fit_as_there_is_twice_their_memory_for() -> None:
    buffers = BlockBuffers(MemoryBudget(20_000), 10_000, 1_000)
    blocks: Any = [SimpleNamespace(nbytes=nbytes) for nbytes in (1_000, 900, 800, 700, 600, 500, 9_000)]
    assert buffers.fitting(blocks, 0, 10) == 5, "2 * (1,000 + 900 + 800 + 700 + 600) of 8,000, and nothing more"
    assert buffers.fitting(blocks, 0, 3) == 3
    assert buffers.fitting(blocks, 5, 10) == 1
    assert buffers.fitting(blocks, 6, 10) == 1, "one block is always read"
    assert buffers.fitting(blocks[:2], 0, 10) == 2


def test_a_loan_is_given_back() -> None:
    budget = MemoryBudget(20_000)
    buffers = BlockBuffers(budget, 10_000, 1_000)
    buffers.begin_loan()
    buffers.take_rest()
    assert (buffers.nbytes, buffers.own_bytes, budget.available) == (20_000, 10_000, 0)
    buffers.begin_loan()
    buffers.end_loan()
    assert (buffers.nbytes, buffers.own_bytes, budget.available) == (10_000, 10_000, 10_000)
    buffers.end_loan()
    assert buffers.nbytes == 10_000
