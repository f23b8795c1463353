"""Checks of the rules that every semi-stream join must keep, for a given algorithm.

The rules: (1) the output is exactly the join; (2) memory in use never exceeds the budget; (3) a join that restores a
snapshot continues like the one that took it; (4) every tuple is counted as matched, unmatched, waiting or shed; (5) no
tuple waits longer than promised; (6) bad input raises an error that says what is wrong, and loses no rows.

Each ``check_…`` function raises an ``AssertionError`` if a rule is broken. A :class:`Subject` is an algorithm with
options, and the class that runs it. To test an algorithm of your own, add it to ``millrace.ALGORITHMS``, and then::

    from hypothesis import given
    from millrace.testing.conformance import Subject, check_run
    from millrace.testing.strategies import join_cases

    @given(join_cases())
    def test_mine(case):
        check_run(Subject("mine"), case)
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import (
    BudgetExceededError,
    BudgetTooSmallError,
    ConfigError,
    CorruptStoreError,
    MillraceError,
    SchemaError,
    StateError,
    StoreNotFoundError,
)
from millrace.master.store import MasterStore
from millrace.rows.arena import Arena
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace.testing.cases import JoinCase
from millrace.testing.oracle import assert_same_rows

CHOICES: dict[str, list[Any]] = {"migration": ["rolling", "three-cycle"]}
"""A mapping from option names to the values that are tested."""


@dataclass(frozen=True)
class Subject:
    """An algorithm to be tested.

    Parameters
    ----------
    algorithm
        The algorithm's name in ``millrace.ALGORITHMS``.
    options
        Keyword arguments of every join.
    join
        The class that runs the algorithm; negative tests pass a broken one.
    """

    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    join: Callable[..., SemiStreamJoin] = SemiStreamJoin

    def __str__(self) -> str:
        return "-".join([self.algorithm, *(f"{name}={value}" for name, value in self.options.items())])

    def sizes(self, **sizes: int | None) -> dict[str, int | None]:
        """Return the given sizes (``b``, ``w``) that the algorithm has as options, without the others."""
        return {name: value for name, value in sizes.items() if name in ALGORITHMS[self.algorithm].sizes}

    def fit(self, case: JoinCase) -> JoinCase:
        """Return the case, with unique keys if the algorithm requires them."""
        return case if ALGORITHMS[self.algorithm].many else replace(case, unique=True)

    def make(self, store: MasterStore, case: JoinCase, **other: Any) -> SemiStreamJoin:
        """Create the join of a case; the arguments in ``other`` take precedence."""
        arguments: dict[str, Any] = {
            "on": None if case.keyless else case.on,
            "where": case.where,
            "how": case.how,
            "algorithm": self.algorithm,
            **self.sizes(b=case.b, w=case.w),
            "output_rows": case.output_rows,
            **self.options,
            **other,
        }
        if "memory" not in arguments:
            arguments["memory"] = self.least_memory(store, case) + case.extra
        return self.join(store, **arguments)

    def least_memory(self, store: MasterStore, case: JoinCase) -> int:
        """Return the smallest budget that the join accepts, plus the bytes of text and lists in the widest tuple."""
        schema = case.stream().schema
        memory, named = 0, 1
        while memory < named:
            memory = named
            try:
                self.make(store, case, memory=memory).bind(schema)
            except BudgetTooSmallError as error:
                named = error.minimum
            else:
                return memory + _widest(case)
        raise AssertionError(f"{self}: the join reports a minimum of {named} bytes, but does not accept them")


def subjects(algorithms: Iterable[str] | None = None) -> list[Subject]:
    """Return a subject for every algorithm with every combination of values of its options, from ``CHOICES``.

    ``leave_early`` is both True and False for algorithms that scan the whole master.
    """
    found: list[Subject] = []
    for name in algorithms or ALGORITHMS:
        choices = {key: values for key, values in CHOICES.items() if key in ALGORITHMS[name].options}
        if ALGORITHMS[name].turns:
            choices["leave_early"] = [True, False]
        every = itertools.product(*choices.values())
        found += [Subject(name, dict(zip(choices, values, strict=True))) for values in every]
    return found


@contextmanager
def built(case: JoinCase, **other: Any) -> Iterator[MasterStore]:
    """Yield a store of the case's master table, in shared memory if the system has that; remove it at the end."""
    shared = Path("/dev/shm")
    parent = tempfile.mkdtemp(prefix="millrace-", dir=shared if shared.is_dir() else None)
    try:
        arguments = {"shards": case.shards, "page_rows": case.page_rows, **other}
        yield MasterStore.build(case.master(), f"{parent}/store", case.master_key, **arguments)
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def calls(join: SemiStreamJoin, case: JoinCase) -> Iterator[Iterator[pa.RecordBatch]]:
    """Run a case and yield the output of each call: ``push``, ``step`` and ``idle`` for each batch, then ``finish``."""
    for number, batch in enumerate(case.batches()):
        yield join.push(batch)
        for _ in range(case.steps[number % len(case.steps)]):
            yield join.step()
        yield join.idle()
    yield join.finish()


def check_exact(subject: Subject, case: JoinCase, **other: Any) -> None:
    """Check rule 1: the output is exactly the join; ``other`` are further arguments of the join."""
    case = subject.fit(case)
    with built(case) as store:
        join = subject.make(store, case, **other)
        got = [batch for call in calls(join, case) for batch in call]
    assert_same_rows(got, expected_of(case), f"{subject}")


# rules 1, 2, 4 and 5, checked after every call


def check_run(subject: Subject, case: JoinCase, **other: Any) -> None:
    """Check rules 1, 2, 4, 5: exact output, within budget, every tuple counted, and no wait longer than promised.

    ``other`` are further arguments of the join.
    """
    case = subject.fit(case)
    with built(case) as store:
        join = subject.make(store, case, **other)
        schema = join.bind(case.stream().schema)
        got, pushed = [], 0
        batches = [len(batch) for batch in case.batches()]
        for call in calls(join, case):
            for batch in call:
                assert batch.schema.equals(schema), (
                    f"{subject}: the columns of a batch differ from the schema that bind returned"
                )
                assert 0 < len(batch) <= case.output_rows, f"{subject}: an output batch has {len(batch)} rows"
                check_budget(subject, join)
                batch.validate(full=True)
                got.append(batch)
            check_budget(subject, join)
            join.check_invariants()
            pushed = max(pushed, join.metrics.tuples_in)
            check_accounting(subject, join, pushed)
        assert pushed == sum(batches), f"{subject}: {sum(batches)} tuples were pushed, but {pushed} are counted"
        assert join.metrics.waiting == 0, f"{subject}: {join.metrics.waiting} tuples still wait after finish"
    assert_same_rows(got, expected_of(case), f"{subject}")
    check_counts(subject, case, join)
    if join.ordered:
        check_order(subject, got)


def check_order(subject: Subject, got: Iterable[pa.RecordBatch]) -> None:
    """Check that the rows of ordered output are in the order of their stream tuples."""
    came = np.concatenate([np.empty(0, np.int64), *(batch.column("seq").to_numpy() for batch in got)])
    late = np.flatnonzero(np.diff(came) < 0)
    assert not len(late), f"{subject}: a row of tuple {came[late[0]]} comes before one of tuple {came[late[0] + 1]}"


def check_budget(subject: Subject, join: SemiStreamJoin) -> None:
    """Check rule 2: memory in use never exceeds the budget, and is the sum of the parts."""
    assert join.nbytes <= join.budget.total, f"{subject}: {join.nbytes} bytes in use exceed {join.budget.total}"
    assert join.budget.peak <= join.budget.total, f"{subject}: a peak of {join.budget.peak} bytes exceeds the budget"
    assert sum(join.budget.parts().values()) == join.nbytes, f"{subject}: the parts do not add up to all bytes in use"


def check_accounting(subject: Subject, join: SemiStreamJoin, pushed: int) -> None:
    """Check by the join's metrics that every tuple is counted (rule 4) and that none has waited too long (rule 5)."""
    m = join.metrics
    there = m.matched + m.unmatched + m.waiting + m.shed
    assert m.tuples_in == there == pushed, f"{subject}: {pushed} tuples were pushed, but {there} are counted"
    assert m.waits.most <= m.steps_per_cycle, f"{subject}: a wait of {m.waits.most} steps exceeds {m.steps_per_cycle}"


def check_counts(subject: Subject, case: JoinCase, join: SemiStreamJoin) -> None:
    """Check that the join counts as many matched tuples, unmatched tuples and output rows as the oracle."""
    expected, m = expected_of(case), join.metrics
    matched = expected_of(replace(case, how="semi")).num_rows
    assert m.rows_out == expected.num_rows, f"{subject}: {m.rows_out} rows counted, {expected.num_rows} expected"
    assert m.matched == matched, f"{subject}: {m.matched} tuples counted as matched, {matched} expected"
    assert m.unmatched == case.stream_rows - matched


def check_drained(subject: Subject, case: JoinCase) -> None:
    """Check that after ``finish`` no tuple waits, and the waiting room takes no more memory than at the start."""
    case = subject.fit(case)
    with built(case) as store:
        join = subject.make(store, case)
        join.bind(case.stream().schema)
        at_rest = join.budget.parts()
        for call in calls(join, case):
            for _ in call:
                continue
        parts = join.budget.parts()
        assert join.metrics.waiting == 0, f"{subject}: {join.metrics.waiting} tuples still wait after finish"
        assert parts["waiting"] == at_rest["waiting"], (
            f"{subject}: the empty waiting room holds {parts['waiting']} bytes, {at_rest['waiting']} at the start"
        )


def check_waits(subject: Subject, case: JoinCase) -> None:
    """Check rule 5 on the output: a tuple's last row is output at most ``join.k`` steps after its push."""
    case = subject.fit(case)
    case = replace(case, output_rows=1)
    with built(case) as store:
        join = subject.make(store, case)
        join.bind(case.stream().schema)
        entered: dict[int, int] = {}
        last: dict[int, int] = {}
        came = 0
        for call in calls(join, case):
            for batch in call:
                last[batch.column("seq")[0].as_py()] = join.metrics.steps
            for seq in range(came, join.metrics.tuples_in):
                entered[seq] = join.metrics.steps
            came = join.metrics.tuples_in
        for seq, step in last.items():
            waited = step - entered[seq]
            assert waited <= join.k, f"{subject}: tuple {seq} waited {waited} steps; k is {join.k}"


# rule 3


def check_snapshot(subject: Subject, case: JoinCase, stop: int) -> None:
    """Check rule 3: a new join that restores a snapshot taken after call number ``stop`` continues like the old one."""
    case = subject.fit(case)
    with built(case) as store:
        first = subject.make(store, case)
        first.bind(case.stream().schema)
        got: list[pa.RecordBatch] = []
        counts = first.metrics
        total = len([list(call) for call in calls(first, case)])
        joins = {"now": subject.make(store, case)}
        joins["now"].bind(case.stream().schema)
        stop = stop % max(1, total)
        for number, call in enumerate(_calls_of(joins, case)):
            got += list(call)
            if number == stop:
                state = joins["now"].snapshot()
                counts = replace(joins["now"].metrics)
                joins["now"] = subject.make(store, case)
                joins["now"].restore(state)
                joins["now"].check_invariants()
                m = joins["now"].metrics
                for name in ("tuples_in", "rows_out", "matched", "unmatched", "waiting", "shed", "steps"):
                    before, after = getattr(counts, name), getattr(m, name)
                    assert before == after, f"{subject}: {name} was {before} and is {after} after restore"
                assert joins["now"].snapshot() == state, (
                    f"{subject}: the snapshot of a restored join differs from the one restored"
                )
            joins["now"].check_invariants()
            check_budget(subject, joins["now"])
        check_counts(subject, case, joins["now"])
    assert_same_rows(got, expected_of(case), f"{subject} restored after call {stop}")
    if first.ordered:
        check_order(subject, got)


def _calls_of(joins: Mapping[str, SemiStreamJoin], case: JoinCase) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield output as :func:`calls` does, but of ``joins["now"]``, which the caller may replace between calls."""
    for number, batch in enumerate(case.batches()):
        yield joins["now"].push(batch)
        for _ in range(case.steps[number % len(case.steps)]):
            yield joins["now"].step()
        yield joins["now"].idle()
    yield joins["now"].finish()


# changes that must not affect the output


def check_deterministic(subject: Subject, case: JoinCase) -> None:
    """Check that the same input gives the same batches in the same order, and the same counts."""
    case = subject.fit(case)
    with built(case) as store:
        runs = []
        for _ in range(2):
            join = subject.make(store, case)
            got = [batch for call in calls(join, case) for batch in call]
            runs.append((got, join.metrics.as_dict()))
    (first, counts), (second, again) = runs
    assert len(first) == len(second), f"{subject}: {len(first)} batches, then {len(second)}"
    for one, other in zip(first, second, strict=True):
        if not one.equals(other):
            assert one.to_pylist().__repr__() == other.to_pylist().__repr__(), (
                f"{subject}: the order differs between two runs"
            )
    assert counts == again, f"{subject}: counts differ between two runs"


def check_metamorphic(subject: Subject, case: JoinCase, seed: int = 0) -> None:
    """Check that master order, w, b, page sizes, shards, batches and memory do not change the output rows."""
    case = subject.fit(case)
    rng = np.random.default_rng(seed)
    expected = expected_of(case)
    master = case.master()
    shuffled = master.take(pa.array(rng.permutation(master.num_rows)))
    variations = [
        replace(case, b=int(rng.integers(1, 40)), w=int(rng.integers(1, 40))),
        replace(case, page_rows=int(rng.integers(1, 80)), shards=int(rng.integers(1, 4))),
        replace(case, extra=case.extra + int(rng.integers(0, 300_000)), b=None, w=None),
        replace(case, sizes=tuple(int(n) for n in rng.integers(0, 60, 4)), steps=(2, 0, 1)),
    ]
    for varied in variations:
        with built(varied) as store:
            join = subject.make(store, varied)
            got = [batch for call in calls(join, varied) for batch in call]
        assert_same_rows(got, expected, f"{subject} as {varied}")
    with tempfile.TemporaryDirectory() as parent:
        store = MasterStore.build(shuffled, f"{parent}/store", case.master_key, page_rows=case.page_rows)
        join = subject.make(store, case)
        got = [batch for call in calls(join, case) for batch in call]
    assert_same_rows(got, expected, f"{subject} with a permuted master")


# rule 6


def check_repeats_refused(subject: Subject, directory: Path) -> None:
    """Check that an algorithm for unique keys refuses repeated keys, and that its error names algorithms for them."""
    store = MasterStore.build(pa.table({"k": [1, 2, 2]}), directory / "repeats", "k")
    able = [name for name, algorithm in ALGORITHMS.items() if algorithm.many]
    words = [subject.algorithm, "repeat", "2 rows", *able]
    refused(ConfigError, words, lambda: subject.join(store, "k", algorithm=subject.algorithm, **subject.options))


def check_refusals(subject: Subject, directory: Path) -> None:
    """Check rule 6: bad input raises an error that says what was expected and what was given; no rows are lost."""
    if not ALGORITHMS[subject.algorithm].many:
        check_repeats_refused(subject, directory)
        return
    path = directory / "refusals"
    master = pa.table({"k": pa.array([1, 2, 2], pa.int64()), "name": ["a", "b", "c"], "twin": [7, 8, 9]})
    store = MasterStore.build(master, path, "k")

    def make(**other: Any) -> SemiStreamJoin:
        arguments = {"master": store, "on": "k", "algorithm": subject.algorithm, **subject.options, **other}
        return subject.join(**arguments)

    def pushed(columns: dict[str, Any], **other: Any) -> None:
        list(make(**other).push(pa.record_batch(columns)))

    refused(ConfigError, ["algorithm", "'nonsense'", *ALGORITHMS], lambda: make(algorithm="nonsense"))
    refused(ConfigError, [subject.algorithm, "turbo"], lambda: make(turbo=True))
    refused(ConfigError, ["how", "'outer'", "'inner'", "'anti'"], lambda: make(how="outer"))
    refused(ConfigError, ["memory", "'lots'", "64MB"], lambda: make(memory="lots"))
    if not ALGORITHMS[subject.algorithm].sizes:
        refused(ConfigError, [subject.algorithm, "unknown option b, w"], lambda: make(b=2, w=2))
    for name in ("b", "w", "output_rows"):
        refused(ConfigError, [name, "at least 1", "0"], partial(make, **{name: 0}))
        refused(ConfigError, [name, "whole number", "2.5"], partial(make, **{name: 2.5}))
    refused(SchemaError, ["columns", "'nope'", "name", "twin"], lambda: make(columns=["nope"]))
    refused(SchemaError, ["columns", "twice"], lambda: make(columns=["name", "name"]))
    refused(SchemaError, ["columns", "list", "'name'"], lambda: make(columns="name"))
    refused(SchemaError, ["on", "3"], lambda: make(on=3))
    refused(SchemaError, ["on", "[]"], lambda: make(on=[]))
    too_small = refused(BudgetTooSmallError, ["memory", "10 B", subject.algorithm, "least"], lambda: make(memory=10))
    assert isinstance(too_small, BudgetTooSmallError)
    assert str(too_small.minimum) in str(too_small)
    refused(StoreNotFoundError, [str(directory / "void")], lambda: subject.join(directory / "void", "k"))
    foreign = directory / "foreign"
    foreign.mkdir()
    refused(CorruptStoreError, [str(foreign), "manifest"], lambda: subject.join(foreign, "k"))

    refused(SchemaError, ["stream", "'k'", "string", "int64"], lambda: pushed({"k": ["1"]}))
    refused(SchemaError, ["stream", "'k'", "double", "int64"], lambda: pushed({"k": [1.5]}))
    refused(SchemaError, ["stream", "'k'", "other"], lambda: pushed({"other": [1]}))
    refused(SchemaError, ["on", "keyed by k", "name"], lambda: pushed({"name": ["x"]}, on="name"))
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["k", "x", "x"])
    refused(SchemaError, ["stream", "more than once", "x"], lambda: list(make().push(twice)))
    refused(SchemaError, ["both", "'twin'", "suffix"], lambda: pushed({"k": [1], "twin": [1]}))
    refused(SchemaError, ["RecordBatch", "dict"], lambda: list(make().push({"k": [1]})))
    refused(SchemaError, ["RecordBatch", "Table"], lambda: list(make().push(pa.table({"k": [1]}))))
    refused(StateError, ["push", "bind"], lambda: list(make().step()))
    refused(StateError, ["push", "bind"], lambda: make().snapshot())
    refused(StateError, ["snapshot"], lambda: make().restore(b"not a snapshot"))
    refused(StateError, ["snapshot"], lambda: make().restore(b""))
    _check_still_usable(subject, make)
    _check_snapshots_refused(make, directory)


def _check_still_usable(subject: Subject, make: Callable[..., SemiStreamJoin]) -> None:
    """Check that refused batches and calls at the wrong moment neither add nor remove rows."""
    join = make(how="left", memory=20_000)
    good = pa.record_batch({"k": [2, 9], "x": ["p", "q"]})
    got = list(join.push(good))
    bad: list[tuple[list[str], Any]] = [
        (["'k'", "int64", "int32"], pa.record_batch({"k": pa.array([1], pa.int32()), "x": ["p"]})),
        (["'x'", "string", "missing"], pa.record_batch({"k": [1]})),
        (["columns", "y"], pa.record_batch({"k": [1], "x": ["p"], "y": [1]})),
    ]
    for words, batch in bad:
        refused(SchemaError, words, partial(_push_all, join, batch))
        join.check_invariants()
        assert join.metrics.tuples_in == 2, f"{subject}: a refused batch was counted"
    unread = join.push(good)
    first = next(unread, None)
    if first is not None:
        refused(StateError, ["read", "end"], lambda: list(join.push(good)))
        refused(StateError, ["read", "end"], lambda: join.snapshot())
        got += [first, *unread]
    got += list(join.push(good)) if first is None else []
    got += list(join.finish())
    refused(StateError, ["finish"], lambda: list(join.push(good)))
    rows = pa.Table.from_batches(got)
    assert join.metrics.tuples_in in (4, 6)
    assert rows.num_rows == join.metrics.tuples_in // 2 * 3, f"{subject}: {rows.num_rows} rows after refusals"
    assert pc.sum(pc.is_null(rows.column("name"))).as_py() == join.metrics.tuples_in // 2


def _check_snapshots_refused(make: Callable[..., SemiStreamJoin], directory: Path) -> None:
    join = make(how="left", memory=20_000)
    batch = pa.record_batch({"k": [2, 9]})
    list(join.push(batch))
    state = join.snapshot()
    refused(StateError, ["restore", "fresh"], lambda: join.restore(state))
    refused(StateError, ["restore", "kind of join"], lambda: make(how="inner", memory=20_000).restore(state))
    refused(StateError, ["snapshot"], lambda: make(how="left", memory=20_000).restore(state[: len(state) // 2]))
    other = MasterStore.build(pa.table({"k": [1]}), directory / "other", "k")
    refused(StateError, ["another master"], lambda: make(how="left", memory=20_000, master=other).restore(state))


def check_too_wide(subject: Subject, directory: Path) -> None:
    """Check rule 6: a tuple that does not fit into memory raises an error; tuples before and after it are joined."""
    if not ALGORITHMS[subject.algorithm].many:
        check_repeats_refused(subject, directory)
        return
    store = MasterStore.build(pa.table({"k": [1, 2, 2]}), directory / "narrow", "k")
    join = subject.join(store, "k", "left", algorithm=subject.algorithm, memory=20_000, **subject.options)
    got = list(join.push(pa.record_batch({"k": [1, 2], "text": ["a", "b"]})))
    wide = pa.record_batch({"k": [1, 2], "text": ["c", "d" * 50_000]})
    if join.waits:
        refused((BudgetExceededError,), ["stream", "tuple", "20.0 kB"], lambda: got.extend(join.push(wide)))
    join.check_invariants()
    got += list(join.push(pa.record_batch({"k": [2], "text": ["e"]})))
    got += list(join.finish())
    texts = [text for batch in got for text in batch.column("text").to_pylist()]
    assert [texts.count(text) for text in "abe"] == [1, 2, 2], f"{subject}: the output has {texts}"


def refused(
    error: type[MillraceError] | tuple[type[MillraceError], ...], words: list[str], call: Callable[[], Any]
) -> MillraceError:
    """Call a function and return the error that it must raise, whose message must contain all the words."""
    raised: MillraceError | None = None
    try:
        call()
    except MillraceError as came:
        raised = came
    assert raised is not None, f"expected {error} about {words}; nothing was raised"
    assert isinstance(raised, error), f"expected {error}; got {type(raised).__name__}: {raised}"
    lacking = [word for word in words if word not in str(raised)]
    assert not lacking, f"the message {str(raised)!r} does not contain {lacking}"
    return raised


def _push_all(join: SemiStreamJoin, batch: Any) -> list[pa.RecordBatch]:
    return list(join.push(batch))


@lru_cache(maxsize=100)  # many subjects are tested with the same case
def expected_of(case: JoinCase) -> pa.Table:
    """Return the expected output of a case."""
    return case.expected()


@lru_cache(maxsize=100)
def _widest(case: JoinCase) -> int:
    """Return the bytes that text, lists and other values of variable length take in the widest tuple of a case."""
    stream = case.stream()
    batches = stream.to_batches()
    if not batches or not stream.num_rows:
        return 0
    columns = batches[0].columns
    rows = (pa.array([row]) for row in range(stream.num_rows))
    return max(Arena.heap_bytes_of([column.take(row) for column in columns]) for row in rows)
