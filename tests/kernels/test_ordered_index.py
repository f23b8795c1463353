"""The ordered multimap against a sorted list."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.adaptive.memory.key_ordered_rows import FIRST, LAST, KeyOrderedRows
from millrace.adaptive.memory.row_index import Workspace
from millrace.core.budget import MemoryBudget
from millrace.core.space import HeapSpace
from millrace.kernels.radix_sort import order_of
from millrace.testing.strategies import examples

SCHEMA = pa.schema([("v", pa.int64())])
keys = st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 3, 4, 50, 2**63 - 1]), max_size=30)
actions = st.lists(st.tuples(st.sampled_from(["insert", "lowest", "range", "clock", "pack"]), keys), max_size=20)


@examples(80)
@given(actions=actions)
def test_against_a_list(actions: list[tuple[str, list[int]]]) -> None:
    rows = KeyOrderedRows("rows", SCHEMA, MemoryBudget(100_000), HeapSpace(), 8)
    model: list[tuple[int, int]] = []  # key, stamp
    hand = np.zeros(2, np.int64)
    clock = 0
    for action, given_keys in actions:
        if action == "insert":
            codes = np.array(given_keys, np.int64)
            order = order_of(codes)
            assert order.tolist() == np.argsort(codes, kind="stable").tolist()
            stamps = np.arange(clock + 1, clock + 1 + len(codes))
            clock += len(codes)
            assert rows.make_room(codes[order], 0)
            rows.insert(codes[order], order, [pa.array(stamps)], stamps, np.zeros(len(codes), np.uint8))
            model += zip(given_keys, stamps.tolist(), strict=True)
            model.sort()
        elif action == "pack":
            rows.pack()
        else:
            limit = len(given_keys)
            low, high = (-5, 3) if action == "range" else (int(FIRST), int(LAST))
            if action == "clock":
                taken = rows.sweep(low, high, hand, limit)
            else:
                taken = rows.take_out(low, high, limit)
            out = list(zip(taken[0].tolist(), rows.stamps[taken[1]].tolist(), strict=True))
            inside = [entry for entry in model if low <= entry[0] <= high]
            assert len(out) == min(limit, len(inside))
            if action != "clock":
                assert out == inside[:limit]
            assert rows.batch(taken[1])["v"].to_pylist() == [stamp for _, stamp in out]
            rows.forget(taken[1])
            model = [entry for entry in model if entry not in out]
        rows.check_invariants()
        codes, slots = rows.entries()
        assert list(zip(codes.tolist(), rows.stamps[slots].tolist(), strict=True)) == model
        assert rows.below(2) == sum(key < 2 for key, _ in model)
        assert [rows.key_at(rank) for rank in range(len(model))] == [key for key, _ in model]
        lows = np.array([-6, 0, 1], np.int64)
        found = [
            (row, key)
            for pairs in rows.matches(lows, lows + 2, Workspace(3))
            for row, key in zip(pairs.rows.tolist(), pairs.keys.tolist(), strict=True)
        ]
        assert found == [(i, key) for i, low in enumerate(lows.tolist()) for key, _ in model if low <= key <= low + 2]
