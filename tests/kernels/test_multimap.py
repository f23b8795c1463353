"""The multimap against a dictionary of lists, through any sequence of calls, with its own check after each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millrace.core.space import FileSpace, HeapSpace, Space
from millrace.kernels import bitfilter, multimap
from millrace.kernels import code_index as index
from millrace.kernels.multimap import HIGH, LIVE, RINGS, SLOT, Multimap

CAPACITY = 120
codes_ = st.integers(-6, 6).map(lambda i: [0, -(2**63), 2**63 - 1][i] if 0 <= i < 3 else i * 2**32)


def ints(values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


class MultimapMachine(RuleBasedStateMachine):
    """``model`` has for each code its slots, oldest first."""

    space: Space

    @initialize(places=st.sampled_from([CAPACITY + 1, CAPACITY * 2, 509]))
    def start(self, places: int) -> None:
        made: Any = self.space.array("directory", np.int32, 600)
        self.directory: npt.NDArray[np.int32] = made
        slots: npt.NDArray[Any] = self.space.array("slots", SLOT, CAPACITY)
        self.m = Multimap(self.directory[:places], slots, np.zeros(4, np.int64))
        multimap.clear(self.m)
        self.model: dict[int, list[int]] = {}

    @property
    def live(self) -> list[int]:
        return sorted(slot for ring in self.model.values() for slot in ring)

    @rule(codes=st.lists(codes_, max_size=12))
    def insert(self, codes: list[int]) -> None:
        codes = codes[: CAPACITY - len(self.live)]
        slots, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        multimap.insert(self.m, np.array(codes, np.int64), slots, counts)
        for code, slot, count in zip(codes, slots.tolist(), counts.tolist(), strict=True):
            assert slot not in self.live
            self.model.setdefault(code, []).append(slot)
            assert count == len(self.model[code])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_any(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(self.live), unique=True, max_size=8))
        self._remove(gone)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), most=st.integers(1, 20))
    def remove_oldest(self, data: st.DataObject, most: int) -> None:
        code = data.draw(st.sampled_from(sorted(self.model)))
        self._remove(self.model[code][:most])

    def _remove(self, gone: list[int]) -> None:
        touched = 0
        for slot in gone:
            code = next(code for code, ring in self.model.items() if slot in ring)
            touched += len(self.model[code])
            self.model[code].remove(slot)
            if not self.model[code]:
                del self.model[code]
        assert multimap.remove(self.m, ints(gone)) == touched

    @rule(asked=st.lists(codes_, max_size=30), room=st.integers(16, 40), extra=st.booleans())
    def find_all(self, asked: list[int], room: int, extra: bool) -> None:
        bits = np.zeros(bitfilter.filter_words(len(self.model) * (9 if extra else 1)), np.uint64)
        bitfilter.fill(bits, np.array(sorted(self.model), np.int64))
        codes = np.array(asked, np.int64)
        positions, newest, found = np.empty(room, np.int32), np.empty(room, np.int32), np.zeros(2, np.int64)
        got: list[tuple[int, int]] = []
        while found[1] < len(codes):
            multimap.find_all(self.m, bits, codes, int(found[1]), positions, newest, found)
            made = int(found[0])
            assert made <= room
            got += zip(positions[:made].tolist(), newest[:made].tolist(), strict=True)
        assert got == [(i, self.model[code][-1]) for i, code in enumerate(asked) if code in self.model]

    @rule(asked=st.lists(codes_, max_size=10), room=st.integers(1, 7))
    def expand(self, asked: list[int], room: int) -> None:
        newest = ints([self.model[code][-1] if code in self.model else -1 for code in asked])
        cursor = np.array([0, -1], np.int64)
        index, slots = np.empty(room, np.int32), np.empty(room, np.int32)
        got: list[tuple[int, int]] = []
        while cursor[0] < len(newest):
            made = multimap.expand(self.m, newest, cursor, index, slots)
            got += zip(index[:made].tolist(), slots[:made].tolist(), strict=True)
        assert got == [(i, slot) for i, code in enumerate(asked) for slot in self.model.get(code, [])]

    @rule(asked=st.lists(codes_, max_size=10))
    def ends_and_sizes(self, asked: list[int]) -> None:
        codes, out = np.array(asked, np.int64), np.empty(len(asked), np.int32)
        rings = [self.model.get(code, []) for code in asked]
        multimap.oldest(self.m, codes, out)
        assert out.tolist() == [ring[0] if ring else -1 for ring in rings]
        multimap.newest(self.m, codes, out)
        assert out.tolist() == [ring[-1] if ring else -1 for ring in rings]
        multimap.ring_sizes(self.m, codes, out)
        assert out.tolist() == [len(ring) for ring in rings]

    @rule()
    def trim(self) -> None:
        assert multimap.trim(self.m) == max(self.live, default=-1) + 1

    @rule(more=st.integers(1, 200))
    def rebuild(self, more: int) -> None:
        places = min(600, len(self.model) + more)
        if places > CAPACITY or places > len(self.model) + 13:
            self.m = Multimap(self.directory[: max(places, CAPACITY + 1)], self.m.slots, self.m.state)
            multimap.rebuild(self.m)

    @rule()
    def clear(self) -> None:
        if len(self.live) > CAPACITY // 2:
            multimap.clear(self.m)
            self.model = {}

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "m"):
            return
        assert multimap.check(self.m) == 0
        assert self.m.state[LIVE] == len(self.live)
        assert self.m.state[RINGS] == len(self.model)
        assert self.m.state[HIGH] <= CAPACITY
        out = np.empty(max(1, len(self.live)), np.int32)
        assert multimap.live_slots(self.m, out) == len(self.live)
        assert out[: len(self.live)].tolist() == self.live


STATEFUL = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_on_the_heap() -> None:
    class OnHeap(MultimapMachine):
        space = HeapSpace()

    run_state_machine_as_test(OnHeap, settings=STATEFUL)


def test_in_files_that_hold_what_an_earlier_run_left() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class InFiles(MultimapMachine):
            space = FileSpace(Path(folder))

        run_state_machine_as_test(InFiles, settings=settings(STATEFUL, max_examples=15))


def test_check_finds_damage() -> None:
    m = Multimap(np.full(50, -1, np.int32), np.zeros(20, SLOT), np.zeros(4, np.int64))
    multimap.clear(m)
    multimap.insert(m, np.array([5, 5, 9], np.int64), np.empty(3, np.int32), np.empty(3, np.int32))
    assert multimap.check(m) == 0
    for place, value in (("code", 77), ("next", 2), ("count", 3)):
        kept = m.slots[0][place]
        m.slots[place][0] = value
        assert multimap.check(m) != 0, place
        m.slots[place][0] = kept
    m.state[LIVE] = 4
    assert multimap.check(m) != 0


# what the calls above seldom meet


def filled(codes: list[int], places: int = 50) -> tuple[Multimap, npt.NDArray[np.int32]]:
    """A multimap with these codes, and their slots."""
    m = Multimap(np.full(places, -1, np.int32), np.zeros(20, SLOT), np.zeros(4, np.int64))
    multimap.clear(m)
    slots = np.empty(len(codes), np.int32)
    multimap.insert(m, np.array(codes, np.int64), slots, np.empty(len(codes), np.int32))
    return m, slots


def newest_of(m: Multimap, codes: list[int]) -> npt.NDArray[np.int32]:
    out = np.empty(len(codes), np.int32)
    multimap.newest(m, np.array(codes, np.int64), out)
    return out


def expanded(m: Multimap, newest: npt.NDArray[np.int32], cursor: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The next pairs, nine at most."""
    index, slots = np.empty(9, np.int32), np.empty(9, np.int32)
    made = multimap.expand(m, newest, cursor, index, slots)
    return list(zip(index[:made].tolist(), slots[:made].tolist(), strict=True))


def test_rings_that_went_after_they_were_found_give_nothing() -> None:
    """Rows that left between a look-up and the output of its matches must not come out with it."""
    m, slots = filled([5, 6, 5, 7])
    newest = newest_of(m, [5, 6, 7])
    multimap.remove(m, slots[[0, 2]])
    assert expanded(m, newest, np.array([0, -1])) == [(1, slots[1]), (2, slots[3])]
    multimap.clear(m)
    assert expanded(m, newest, np.array([0, -1])) == []


def test_a_ring_that_goes_while_it_is_given_out_does_not_disturb_the_next() -> None:
    m, slots = filled([5] * 12 + [6, 6])
    newest, cursor = newest_of(m, [5, 6]), np.array([0, -1])
    assert expanded(m, newest, cursor) == [(0, slot) for slot in slots[:9].tolist()]
    multimap.remove(m, slots[:12])
    assert expanded(m, newest, cursor) == [(1, slot) for slot in slots[12:].tolist()]
    assert cursor[0] == 2


def test_gaps_close_across_the_end_of_the_directory() -> None:
    """Codes whose places are the last ones and the first: whichever goes, all others are still found."""
    places = 7
    numbers = np.arange(2_000)
    mixed = np.empty(len(numbers), np.uint64)
    index.mixed(numbers, mixed)
    homes = [int(bits) * places >> 32 for bits in mixed >> np.uint64(32)]
    at = {home: [code for code, where in enumerate(homes) if where == home] for home in range(places)}
    for wanted in ([6, 6, 0, 0], [5, 6, 6, 6], [6, 5, 6, 0], [6, 0, 6, 1], [5, 5, 5, 0, 6], [0, 6, 5, 1, 6, 5]):
        codes = [at[home][i] for i, home in enumerate(wanted)]
        for first in codes:
            for second in codes:
                m, _ = filled(codes, places)
                left = list(codes)
                for gone in dict.fromkeys([first, second]):
                    multimap.remove(m, newest_of(m, [gone]))
                    left.remove(gone)
                    assert multimap.check(m) == 0
                    slots = newest_of(m, codes)
                    assert [code for code, slot in zip(codes, slots, strict=True) if slot >= 0] == left


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50),
    st.integers(1, 400),
)
def test_the_filter_lets_everything_through_that_was_put_in(there: list[int], others: list[int], size: int) -> None:
    bits = np.zeros(bitfilter.filter_words(size), np.uint64)
    bitfilter.fill(bits, np.array(there, np.int64))
    asked = np.array(there + others, np.int64)
    out = np.empty(max(1, len(asked)), np.int32)
    passed = out[: bitfilter.candidates(bits, asked, out)].tolist()
    assert set(range(len(there))) <= set(passed)
    assert passed == sorted(set(passed))


def test_the_filter_stops_most_of_what_was_not_put_in() -> None:
    bits = np.zeros(bitfilter.filter_words(1000), np.uint64)
    bitfilter.fill(bits, np.arange(1000))
    out = np.empty(100_000, np.int32)
    assert bitfilter.candidates(bits, np.arange(10**6, 10**6 + 100_000), out) < 25_000
