"""``SemiStreamJoin``: a stream joined with a master store under one byte budget."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetExceededError, ConfigError, SchemaError, StateError
from millrace.core.metrics import JoinMetrics
from millrace.core.operator import StreamOperator
from millrace.core.sizes import format_size
from millrace.core.space import Space
from millrace.core.spec import JoinSpec, On
from millrace.cost.plan import rows_by_share
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.rows.arena import Slots
from millrace.rows.batch_builder import BATCH_ROWS
from millrace.rows.columns import plain_batch, plain_schema
from millrace.semistream import saved_state, snapshot_format
from millrace.semistream.access.access_policy import Access
from millrace.semistream.algorithms import ALGORITHMS, Algorithm
from millrace.semistream.arguments import JoinArguments, most_rows
from millrace.semistream.binding import bind
from millrace.semistream.cache.cache_policy import Cache
from millrace.semistream.choose.auto import Auto, Decision
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.explain_join import explained
from millrace.semistream.loop import JoinLoop
from millrace.semistream.output.cache_hits import PIECE
from millrace.semistream.output.output_columns import Batches, JoinOutput
from millrace.semistream.shedding import Shedding
from millrace.semistream.sizing.least_memory import check_least
from millrace.semistream.snapshot_format import Progress, WaitingChunk
from millrace.semistream.wiring import wire


class Unchanged(Enum):
    """Default of the arguments of :meth:`SemiStreamJoin.retune`: the setting stays as it is. (None resets it.)"""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True)
class EarlierCounts:
    """Counts of the algorithms that this join ran before it switched to the current one."""

    cycles: float = 0.0
    longest_wait: int = 0
    removal_shifts: int = 0


class SemiStreamJoin(StreamOperator):
    """Join a stream with a master store.

    Parameters
    ----------
    master
        A :class:`MasterStore` or its path.
    on
        Name of the key column on both sides; a list of names; or a mapping from the stream's names to the master's.
        None to join by ``where`` alone; the output then includes the master's key like its other columns.
    how
        ``"inner"``, ``"left"``, ``"semi"`` or ``"anti"``.
    where
        A condition that a stream row and a master row have to meet besides equal keys: see :func:`band
        <millrace.band>`, ``between``, ``compare`` and ``predicate``.
    algorithm
        A name from the table of algorithms, or an ``Algorithm`` of your own; by default ``"ssbj"``, or ``"meshjoin"``
        without ``on``. With ``"auto"`` the join chooses, and chooses again when the stream changes; see
        :mod:`millrace.semistream.choose.auto`.
    memory
        The budget: bytes, ``"64MB"``, or ``"1%"`` of the master. It covers the cache, the waiting tuples, their index
        and queue, and the load buffer. Input and output batches (at most about 8 MB each) are not part of it.
    columns
        Master columns that come out; all but the key by default. Only these, and those that verify a match, are cached.
    suffix
        Appended to the names of master columns that the stream has too; without it a name on both sides is an error.
    b
        Master rows per load (the papers' b), or per page that is found through the index (their d); at most all rows of
        the master. By default an eighth of the budget goes to the load buffer, and a page has 256 rows.
    w
        Stream tuples let in per step (the papers' w); by default as many as keep the waiting room evenly full. Where
        no tuple waits (``lookup``, ``inl``) there is neither b nor w.
    device
        The device that counts reads and may model their time; by default they are only counted.
    space
        Where arrays are allocated; by default in this process's memory.
    leave_early
        Let a tuple leave at its first match when only one match matters (unique keys in the master, a semi or anti
        join). MESHJOIN and SSBJ, as published, keep every tuple for a whole scan of the master; use False to compare
        with them. It has no effect where pages are found through the index.
    threads
        1 or 2; by default 2 where there are two cores.
    output_rows
        Largest number of rows in an output batch.
    ordered
        Emit rows in the order in which their stream tuples came. Matches found early are held back, within the budget.
        By default only the algorithm named ``"ordered"`` does so.
    shed, keep
        Drop tuples when more come than can be joined: ``"random"`` tuples, or all tuples of some keys with ``"key"``;
        ``keep`` is the share that is kept. Its default ``"auto"`` keeps as many as can be joined, given the arrivals
        passed to :meth:`Shedding.observe`. ``shed`` may also be a :class:`Shedding`. Nothing is dropped by default.
    **options
        Options of the algorithm, such as ``migration="three-cycle"`` for ``ssbj``. Names are checked here, values when
        the stream is bound.

    Examples
    --------
    >>> import tempfile
    >>> customers = pa.table({"custkey": [1, 2, 3], "name": ["Ann", "Bo", "Cy"]})
    >>> store = MasterStore.build(customers, tempfile.mkdtemp() + "/customers", key="custkey")
    >>> orders = pa.record_batch({"custkey": [3, 9, 1], "total": [30, 90, 10]})
    >>> join = SemiStreamJoin(store, on="custkey", how="left", memory="1MB")
    >>> pa.Table.from_batches(join.run([orders])).sort_by("total").to_pylist()[1:]
    [{'custkey': 3, 'total': 30, 'name': 'Cy'}, {'custkey': 9, 'total': 90, 'name': None}]
    """

    def __init__(
        self,
        master: MasterStore | str | os.PathLike[str],
        on: On | None = None,
        how: str = "inner",
        *,
        where: Condition | None = None,
        algorithm: str | Algorithm | None = None,
        memory: str | int = "64MB",
        columns: Sequence[str] | None = None,
        suffix: str | None = None,
        b: int | None = None,
        w: int | None = None,
        device: Device | None = None,
        space: Space | None = None,
        leave_early: bool = True,
        threads: int | None = None,
        output_rows: int = BATCH_ROWS,
        ordered: bool | None = None,
        shed: str | Shedding | None = None,
        keep: float | str | None = None,
        **options: Any,
    ) -> None:
        self.arguments = JoinArguments.checked(
            master,
            on,
            how,
            where=where,
            algorithm=algorithm,
            memory=memory,
            columns=columns,
            suffix=suffix,
            b=b,
            w=w,
            device=device,
            space=space,
            leave_early=leave_early,
            threads=threads,
            output_rows=output_rows,
            ordered=ordered,
            shed=shed,
            keep=keep,
            options=options,
        )
        self.budget = MemoryBudget(self.arguments.memory)
        self.auto = Auto(self.budget.total) if self.arguments.automatic else None
        """The object that chooses the algorithm; None if the user has named one."""
        self._metrics = JoinMetrics(budget_bytes=self.budget.total)
        self._loop: JoinLoop | None = None
        self._earlier = EarlierCounts()
        self._finished = False
        check_least(self.arguments, None)

    # wiring

    def bind(self, stream: pa.Schema) -> pa.Schema:
        """Fix the stream's schema, check that the join can run with it, and return the output's schema.

        The first :meth:`push` calls it.
        """
        stream = plain_schema(stream)
        if self._loop is not None:
            known = self.stream_schema
            if (known.names, known.types) != (stream.names, stream.types):
                raise SchemaError(_difference(known, stream))
            return self._loop.parts.binding.output
        arguments = self.arguments
        binding = bind(arguments, stream)
        check_least(arguments, binding)
        if self.auto is not None:
            decision = self.auto.begin(arguments, binding)
            arguments = arguments.with_algorithm(decision.algorithm, decision.options)
        lanes = arguments.lanes
        output = JoinOutput(arguments.spec, stream, arguments.store.schema, self._metrics, lanes, arguments.output_rows)
        self._loop = wire(arguments, binding, self.budget, self._metrics, output, self.auto)
        self.arguments = arguments
        return binding.output

    @property
    def loop(self) -> JoinLoop:
        """The loop and its parts; raises an error before the stream's columns are known."""
        if self._loop is None:
            raise StateError("the join has no stream yet: push a batch or call bind(schema) first")
        return self._loop

    def _reconsider(self, auto: Auto) -> Batches:
        """Choose the algorithm again; if another is predicted to be better, drain and switch; yield the output."""
        decision = auto.reconsider(self.arguments, self.loop.parts.binding)
        if decision is not None:
            yield from self.loop.drain()
            yield from self.loop.parts.output.flush()
            self._switch(decision)

    def _switch(self, decision: Decision) -> None:
        """Replace the algorithm while no tuple waits; the next one begins with an empty cache and the whole budget."""
        before = self.loop
        assert not len(before.room)
        m = self.metrics
        m.evicted_keys += m.cached_keys
        self._earlier = EarlierCounts(m.cycles, self.k, m.removal_shifts)
        budget = MemoryBudget(self.budget.total, self.budget.peak)
        arguments = self.arguments.with_algorithm(decision.algorithm, decision.options)
        self._loop = wire(arguments, before.parts.binding, budget, self._metrics, before.parts.output, self.auto)
        self._loop.resume(before.steps)
        self.budget, self.arguments = budget, arguments

    # the life cycle

    def push(self, batch: pa.RecordBatch) -> Batches:
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"push: expected a pyarrow.RecordBatch; got {type(batch).__name__}")
        if self._finished:
            raise StateError("push after finish: make a new join for a new stream")
        self.bind(batch.schema)
        cuts = (batch.slice(at, PIECE) for at in range(0, len(batch), PIECE))
        pieces = (plain_batch(cut, self.stream_schema) for cut in cuts)
        if self.auto is None:
            return self._call(chain.from_iterable(map(self.loop.push, pieces)))
        return self._call(self._push_pieces(pieces, self.auto))

    def _push_pieces(self, pieces: Iterable[pa.RecordBatch], auto: Auto) -> Batches:
        """Join the pieces of a batch and yield the output; choose the algorithm again between pieces when it is due."""
        for piece in pieces:
            yield from self.loop.push(piece)
            if auto.due:
                yield from self._reconsider(auto)

    def step(self) -> Batches:
        return self._call(self.loop.step())

    def idle(self) -> Batches:
        return self.step() if self._loop is not None and len(self._loop.room) else iter(())

    def finish(self) -> Batches:
        self._finished = True
        return self._call(self._loop.drain()) if self._loop is not None else iter(())

    def run(self, stream: Any) -> Batches:
        """Join a whole stream (an iterable of record batches, a table, a reader or a dataset) and yield the output."""
        yield from super().run(batches_of(stream))

    def _call(self, work: Batches) -> Batches:
        """Return the output of one call (push, step or finish); only the last batch may be smaller than a full one."""
        shedding = self.arguments.shedding
        work = work if shedding is None else self._timed(shedding, work)
        return self._guarded(chain(work, self.loop.parts.output.flush()))

    def _timed(self, shedding: Shedding, work: Batches) -> Batches:
        """Yield the batches of a call; for load shedding, count the tuples that it finishes and the time it takes."""
        m = self._metrics
        before = m.matched + m.unmatched
        yield from shedding.timed(work)
        shedding.count_done(m.matched + m.unmatched - before)

    def retune(self, *, b: int | Unchanged | None = UNCHANGED, w: int | Unchanged | None = UNCHANGED) -> None:
        """Change ``b`` (rows per load) or ``w`` (tuples let in per step) between two calls; with None the join chooses.

        No tuple misses a master row or meets one twice. With another ``b`` the load buffer grows or shrinks; if it does
        not fit beside the waiting tuples, an error is raised and nothing changes. A tuple that waits when ``b``
        changes, or comes within one scan of the master afterwards, may wait longer: up to about the steps of one scan
        with the old ``b`` and one with the new. :attr:`k` allows for that.
        """
        self._check_between_calls("retune")
        for name, value in (("b", b), ("w", w)):
            if not isinstance(value, Unchanged | None) and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}: expected a whole number of at least 1, or None; got {value!r}")
        algorithm = self.arguments.algorithm
        if self.auto is not None and not isinstance(b, Unchanged):
            raise ConfigError("b: algorithm='auto' chooses b itself; name an algorithm to set it")
        if algorithm.at_once and not (isinstance(b, Unchanged) and isinstance(w, Unchanged)):
            raise ConfigError(f"retune: {algorithm.name} answers tuples as they come; it has no b and no w")
        if not isinstance(b, Unchanged):
            if algorithm.paged:
                raise ConfigError(f"b: {algorithm.name} has pages of b rows, which cannot change; only w can")
            self._set_b(b)
        if not isinstance(w, Unchanged):
            self.arguments = replace(self.arguments, w=w)
            if self._loop is not None:
                self._loop.access.limit_admission(w)

    def _set_b(self, b: int | None) -> None:
        store = self.arguments.store
        b = None if b is None else most_rows(store, b)
        arguments = replace(self.arguments, b=b)
        if self._loop is None:
            check_least(arguments, None)
        else:
            rows = most_rows(store, b or rows_by_share(self.budget.total))
            check_least(arguments, self._loop.parts.binding, rows)
            self._loop.retune(rows)
        self.arguments = arguments

    # snapshots and kept caches

    def snapshot(self) -> bytes:
        """Return the waiting tuples, their progress and the counts as bytes, without the cache, which refills."""
        self._check_between_calls("snapshot")
        order = self.loop.order
        waiting = snapshot_format.to_bytes(order.waiting_schema, self.progress(), saved_state.waiting_chunks(self.loop))
        held = order.held_tuples()
        return waiting if held is None else snapshot_format.ordered_to_bytes(waiting, held.rows, held.head)

    def restore(self, state: bytes) -> None:
        if self._loop is not None and (self._loop.steps or self._metrics.tuples_in):
            raise StateError("restore: this join has already begun; restore into a fresh one")
        saved = snapshot_format.read(state, ordered=self.arguments.ordered)
        self.bind(saved.stream)
        self._check_same_join(saved.progress)
        if saved.held is not None and not self.loop.order.restore_held(saved.held):
            self._broken = saved_state.RESTORE_FAILED
            raise BudgetExceededError(
                f"restore: the held-back tuples do not fit in {format_size(self.budget.total)} of memory"
            )
        self.resume(saved.progress, saved.chunks)

    def progress(self) -> Progress:
        """Return the progress of the join: everything to save besides the waiting tuples."""
        return saved_state.progress(self.loop, self._kind, self.metrics)

    def resume(self, progress: Progress, chunks: Iterable[WaitingChunk]) -> None:
        """Continue from saved progress with the waiting tuples of ``chunks``, oldest first."""
        self._check_same_join(progress)
        try:
            saved_state.resume(self.loop, self._metrics, progress, chunks)
        except BudgetExceededError:
            self._broken = saved_state.RESTORE_FAILED
            raise

    def rows_at(self, slots: Slots) -> tuple[pa.RecordBatch, snapshot_format.Tally]:
        """Return the waiting tuples at these slots and their tallies.

        If output is ordered, the batch holds only the tuples' sequence numbers. A tally is how many master rows the
        tuple has met, and whether one matched; see :meth:`tally_at`.
        """
        return saved_state.rows_at(self.loop, slots)

    def tally_at(self, slots: Slots) -> snapshot_format.Tally:
        """Return for each waiting tuple how many master rows with its key code it has met, and whether one matched."""
        return saved_state.tally_at(self.loop, slots)

    def queue(self) -> list[tuple[int, int, Slots]]:
        """Return the chunks of waiting tuples, oldest first, with the scan position and step at which each entered."""
        return self.loop.room.queue()

    @property
    def _kind(self) -> str:
        return f"{self.arguments.algorithm.name}, {self._kind_without_algorithm}"

    @property
    def _kind_without_algorithm(self) -> str:
        """Kind of join, keys and condition as text, without the algorithm."""
        return f"{self.spec.how} {self.matching}"

    def _check_same_join(self, progress: Progress) -> None:
        if progress.store != self.store.manifest.snapshot:
            raise StateError("restore: the snapshot was taken from a join with another master")
        algorithm, _, rest = progress.join.partition(", ")
        same = self.auto is not None and algorithm in ALGORITHMS and rest == self._kind_without_algorithm
        if progress.join != self._kind and not same:
            raise StateError(
                f"restore: the snapshot was taken from another kind of join: {progress.join}; this one is {self._kind}"
            )
        if self.auto is not None and algorithm != self.algorithm.name:
            if ALGORITHMS[algorithm].at_once and self.shedding is not None and self.shedding.spare_hits:
                raise StateError(
                    f"restore: the snapshot was taken from {algorithm}, which answers every tuple at once; "
                    "spare_hits needs an algorithm in which tuples wait"
                )
            self.auto.explain_choice("the snapshot was taken from a join with this algorithm")
            self._switch(Decision(algorithm, {}, self.auto.why))

    def keep_cache(self, path: str | os.PathLike[str] | io.BytesIO) -> bool:
        """Write the cache to a file or a buffer in memory; return False if there is no cache that can be saved."""
        return self.loop.cache.save_to(path if isinstance(path, io.BytesIO) else Path(path), self._cache_identity)

    def recall_cache(self, path: str | os.PathLike[str] | io.BytesIO) -> bool:
        """Load the cache that an earlier join saved; return False if this join cannot use the saved cache."""
        where = path if isinstance(path, io.BytesIO) else Path(path)
        if self.loop.cache.load_from(where, self._cache_identity):
            return True
        chosen = self.algorithm.name
        if self.auto is None or chosen != "r-meshjoin" or self.metrics.tuples_in:
            return False
        self._switch(Decision("ssbj", {}, "an earlier join kept a cache of this algorithm"))
        if isinstance(where, io.BytesIO):
            where.seek(0)
        if self.loop.cache.load_from(where, self._cache_identity):
            self.auto.explain_choice("an earlier join kept a cache of this algorithm")
            return True
        self._switch(Decision(chosen, {}, self.auto.why))
        return False

    @property
    def _cache_identity(self) -> str:
        """Text that is saved with a cache; a join whose text differs cannot use the cache."""
        return saved_state.cache_identity(self.loop, self.algorithm.name, self.ordered)

    # properties

    @property
    def store(self) -> MasterStore:
        """The master store."""
        return self.arguments.store

    @property
    def spec(self) -> JoinSpec:
        """Keys, kind of join, and columns."""
        return self.arguments.spec

    @property
    def where(self) -> Condition | None:
        """Condition that a pair of rows has to meet besides equal keys; None if there is none."""
        return self.arguments.where

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that runs now."""
        return self.arguments.algorithm

    @property
    def device(self) -> Device:
        """Device that counts reads and may model their time."""
        return self.arguments.device

    @property
    def ordered(self) -> bool:
        """Whether rows come out in the order in which their stream tuples came."""
        return self.arguments.ordered

    @property
    def shedding(self) -> Shedding | None:
        """Load shedding; None if no tuples are dropped."""
        return self.arguments.shedding

    @property
    def options(self) -> dict[str, Any]:
        """Options that were set for the algorithm, including ``b``; defaults are left out."""
        return self.arguments.given_options

    @property
    def matching(self) -> str:
        """Join keys and condition as text, such as ``on custkey``."""
        return self.arguments.matching

    @property
    def access(self) -> Access:
        """The policy that decides which master rows are loaded next."""
        return self.loop.access

    @property
    def cache(self) -> Cache:
        """The policy that decides which tuples are answered at once."""
        return self.loop.cache

    @property
    def b(self) -> int:
        """Master rows per load, or per page where pages are loaded."""
        return self.loop.access.b

    @property
    def waits(self) -> bool:
        """Whether tuples may have to wait; if not, they are answered as soon as they arrive and take no memory."""
        return not self.loop.access.at_once

    @property
    def k(self) -> int:
        """Upper bound of a tuple's wait, in steps; where the whole master is scanned, usually the steps of one scan."""
        return max(self.loop.access.longest_wait, self._earlier.longest_wait)

    @property
    def capacity(self) -> int:
        """Number of tuples that the waiting room may hold, with memory left for the cache and its growth."""
        return self.loop.order.capacity

    @property
    def tuple_bytes(self) -> float:
        """Average bytes that a waiting tuple takes."""
        return self.loop.room.tuple_bytes

    @property
    def whole_bytes(self) -> float | None:
        """Bytes that the cache needs to hold the whole master, so that no tuple waits; None if it cannot hold it."""
        return self.loop.cache.whole_bytes

    @property
    def bound(self) -> bool:
        """Whether the stream's schema is known."""
        return self._loop is not None

    @property
    def stream_schema(self) -> pa.Schema:
        """The stream's columns; raises an error before they are known."""
        return self.loop.parts.binding.stream

    @property
    def output_schema(self) -> pa.Schema:
        """The output's columns; raises an error before the stream's columns are known."""
        return self.loop.parts.binding.output

    @property
    def nbytes(self) -> int:
        return self.budget.used

    @property
    def metrics(self) -> JoinMetrics:
        m, device, budget = self._metrics, self.device, self.budget
        m.pages_read, m.bytes_read, m.seeks = device.pages_read, device.bytes_read, device.seeks
        m.used_bytes, m.peak_bytes, m.parts = budget.used, budget.peak, budget.parts()
        loop, earlier = self._loop, self._earlier
        if loop is not None:
            m.steps, m.waiting = loop.steps, loop.order.waiting
            m.held_back = m.waiting - len(loop.room)
            m.cycles = earlier.cycles + loop.access.cycles
            m.steps_per_cycle = self.k
            m.removal_shifts = earlier.removal_shifts + loop.room.removal_shifts
            rows = loop.cache.rows
            m.cached_keys, m.cached_rows = (0, 0) if rows is None else (rows.keys, len(rows))
        return m

    def explain(self) -> str:
        """Return the plan, the split of the budget, the predicted rate and wait, and the alternatives, as text.

        Nothing is measured for it. The text says whether predictions are for a modelled disk, for unit costs that were
        measured before, or for a typical machine.
        """
        return explained(self.arguments, self.budget, self.auto, self._metrics.shed, self._loop)

    def __repr__(self) -> str:
        store, size = self.store.path.name, format_size(self.budget.total)
        return f"SemiStreamJoin({store!r}, {self.matching}, how={self.spec.how}, {self.algorithm.name}, memory={size})"

    def check_invariants(self) -> None:
        self.budget.check_invariants()
        m = self.metrics
        assert m.tuples_in == m.matched + m.unmatched + m.waiting + m.shed, "a tuple is not accounted for"
        if self._loop is not None:
            self._loop.check_invariants()
            assert m.waits.most <= self.k, "a tuple waited longer than k steps"


def batches_of(stream: Any) -> Iterable[pa.RecordBatch]:
    """Return the record batches of a stream, given as a batch, a table, a reader, a dataset, or an iterable."""
    if isinstance(stream, pa.RecordBatch):
        return [stream]
    if hasattr(stream, "to_batches"):
        stream = stream.to_batches()
    if not isinstance(stream, Iterable):
        raise SchemaError(f"run: expected record batches, a table, a reader or a dataset; got {stream!r}")
    return stream


def _difference(bound: pa.Schema, later: pa.Schema) -> str:
    """Return how the schema of a later batch differs from that of the first batch, as text."""
    for field in bound:
        at = later.get_field_index(field.name)
        if at < 0:
            return f"stream: column {field.name!r} ({field.type}) is missing from a later batch"
        if later.field(at).type != field.type:
            return f"stream: column {field.name!r} was {field.type} and is {later.field(at).type} in a later batch"
    if sorted(later.names) == sorted(bound.names):
        return f"stream: a later batch has its columns in another order: {', '.join(later.names)}"
    extra = [name for name in later.names if name not in bound.names]
    return f"stream: a later batch has other columns: {', '.join(extra) or ', '.join(later.names)}"
