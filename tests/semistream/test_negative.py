"""Bugs put in on purpose, one by one: the suite has to notice each of them, or it proves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from millrace.kernels.groups import ABSENT, COLLECTING, EMPTY, MISS
from millrace.master.read.wheel import Load
from millrace.rows.code_filter import CodeFilter
from millrace.rows.key_codes import KeyCoder
from millrace.rows.keyed_rows import Codes
from millrace.semistream.cache.balanced import BalancedCache
from millrace.semistream.cache.three_cycle import ThreeCycle
from millrace.semistream.waiting.waiting_room import WaitingRoom
from millrace.testing.cases import JoinCase
from millrace.testing.collisions import colliding_pair
from millrace.testing.conformance import Subject, check_exact

MESHJOIN = Subject("meshjoin", {"leave_early": False})
ROLLING = Subject("ssbj", {"migration": "rolling"})
THREE_CYCLE = Subject("ssbj", {"migration": "three-cycle"})


def cases(**fixed: Any) -> Iterator[JoinCase]:
    """A dozen ordinary many-to-many joins with hot keys."""
    usual = JoinCase(
        stream_rows=500, master_rows=60, domain=15, sizes=(13, 4), steps=(1,), b=7, w=20, extra=15_000, nulls=False
    )
    for seed in range(12):
        yield replace(usual, seed=seed, **fixed)


def noticed(subject: Subject, **fixed: Any) -> int:
    """How many of the cases come out wrong."""
    wrong = 0
    for case in cases(**fixed):
        try:
            check_exact(subject, case)
        except AssertionError:
            wrong += 1
    return wrong


@pytest.mark.parametrize("subject", [MESHJOIN, ROLLING, THREE_CYCLE], ids=str)
def test_without_a_bug_nothing_is_noticed(subject: Subject) -> None:
    assert noticed(subject) == 0


def test_expiry_only_when_more_than_k_batches_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that stays one load too long meets its first load twice."""
    expired = WaitingRoom.expired

    def late(self: WaitingRoom, turned: int) -> Any:
        return expired(self, turned - 1)

    monkeypatch.setattr(WaitingRoom, "expired", late)
    monkeypatch.setattr(WaitingRoom, "rows_until_expiry", lambda self, turned: self._cycle_rows)
    assert noticed(MESHJOIN) == 12


@pytest.mark.parametrize("off", [-7, 7], ids=["early", "late"])
def test_a_chunk_that_notes_its_start_one_load_off(monkeypatch: pytest.MonkeyPatch, off: int) -> None:
    """The papers count batches, so forgetting an empty one shifts all that follow. Here a chunk notes where the wheel
    stood, and empty batches cannot be forgotten because they are nothing; the equivalent mistake is a wrong note."""
    admit = WaitingRoom.admit

    def shifted(self: WaitingRoom, codes: Codes, columns: Sequence[pa.Array], turned: int, step: int) -> Any:
        return admit(self, codes, columns, turned + off, step)

    monkeypatch.setattr(WaitingRoom, "admit", shifted)
    assert noticed(MESHJOIN) == 12


def test_empty_batches_change_nothing() -> None:
    for case in cases():
        for sizes in ((13, 4), (0, 13, 0, 0, 4), (0, 0, 0, 500)):
            check_exact(MESHJOIN, replace(case, sizes=sizes))


def test_a_filter_that_hides_waiting_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, refresh = CodeFilter.watch, CodeFilter.refresh
    monkeypatch.setattr(CodeFilter, "watch", lambda self, codes: watch(self, codes[codes % 3 != 0]))
    monkeypatch.setattr(CodeFilter, "refresh", lambda self, live: refresh(self, live[live % 3 != 0]))
    assert noticed(MESHJOIN, domain=40) >= 6


def test_the_inequality_for_every_row_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As published: a row is copied if at that moment the waiting tuples are dearer, so groups may be in part."""

    def mark(self: ThreeCycle) -> None:
        slots = self._watch.live()
        codes = self._watch.map.code[slots].copy()
        counts = self._watch.marks["rows"][slots].copy()
        self._counted = dict(zip(codes.tolist(), counts.tolist(), strict=True))
        self._marked = self.groups.open(codes, 0)
        self._watch.remove(slots)
        self._watch.trim()

    def on_load(self: ThreeCycle, load: Load) -> None:
        if self._role != "switching":
            on_load_before(self, load)
            return
        counts = self.context.room.rows.counts(load.codes)
        rows = np.array([self._counted.get(code, 10**6) for code in load.codes.tolist()], np.int32)
        dear = self.inequality.worthwhile(counts, rows)
        codes = np.where(dear, load.codes, np.int64(-77))
        for _ in self.groups.collect(Load(load.shard, load.first, codes), self.collecting):
            continue

    def publish(self: ThreeCycle) -> None:
        heads = self.groups.rows.oldest(self._marked)
        heads = heads[heads >= 0]
        self.groups.publish(heads[self.groups.rows.marks["state"][heads] & COLLECTING > 0])
        self._marked, self._counted = np.empty(0, np.int64), {}

    on_load_before = ThreeCycle.on_load
    monkeypatch.setattr(ThreeCycle, "_mark", mark)
    monkeypatch.setattr(ThreeCycle, "on_load", on_load)
    monkeypatch.setattr(ThreeCycle, "_publish", publish)
    assert noticed(THREE_CYCLE) >= 6


def test_a_cache_that_answers_from_groups_still_being_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(self: BalancedCache, codes: Codes) -> npt.NDArray[np.int32]:
        newest, heads = self.rows.newest(codes), self.rows.oldest(codes)
        empty = (heads >= 0) & (self.rows.marks["state"][np.maximum(heads, 0)] & EMPTY > 0)
        return np.where(empty, ABSENT, np.where(heads < 0, MISS, newest)).astype(np.int32)

    monkeypatch.setattr(BalancedCache, "look_up", look_up)
    assert noticed(ROLLING) == 12


class Colliding(JoinCase):
    """Five composite keys of one hash, two of them in the master."""

    @property
    def on(self) -> dict[str, str]:
        return {"a": "a", "b": "b"}

    def _table(self, picked: npt.NDArray[np.int64], number: str) -> pa.Table:
        keys = [(1, 2)] + [(a, colliding_pair(1, 2, a)) for a in range(2, 6)]
        a, b = ([keys[i][part] for i in picked.tolist()] for part in (0, 1))
        return pa.table({"a": a, "b": b, number: np.arange(len(picked))})

    def stream(self) -> pa.Table:
        return self._table(np.random.default_rng(self.seed).integers(0, 5, 40), "seq")

    def master(self) -> pa.Table:
        return self._table(np.array([0, 1]), "row")


@pytest.mark.parametrize("subject", [MESHJOIN, ROLLING, THREE_CYCLE], ids=str)
def test_codes_taken_for_keys(monkeypatch: pytest.MonkeyPatch, subject: Subject) -> None:
    case = Colliding(key="composite", stream_rows=40, master_rows=2, extra=15_000)
    check_exact(subject, case)
    monkeypatch.setattr(KeyCoder, "equal", lambda self, left, right: np.ones(len(left[0]), np.bool_))
    with pytest.raises(AssertionError, match="surplus"):
        check_exact(subject, case)
