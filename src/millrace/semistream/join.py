"""``SemiStreamJoin``: a stream joined with a master store under one byte budget."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.errors import (
    BudgetExceededError,
    BudgetTooSmallError,
    ConfigError,
    SchemaError,
    StateError,
)
from millrace.core.lanes import Lanes
from millrace.core.metrics import JoinMetrics
from millrace.core.sizes import format_size, parse_size
from millrace.core.space import HeapSpace, Space
from millrace.core.spec import JoinSpec, On
from millrace.cost.plan import LEAST_PAIRS, LOAD_ROW_BYTES, PAIR_BYTES, plan, rows_by_share
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.rows.batch_builder import BATCH_ROWS
from millrace.rows.code_filter import LEAST_MATCHES, Sieve
from millrace.rows.columns import plain_batch, plain_schema
from millrace.rows.keyed_rows import holds_its_code
from millrace.semistream.access.access_policy import Access, Surroundings
from millrace.semistream.algorithms import Algorithm
from millrace.semistream.algorithms import algorithm as named
from millrace.semistream.cache.cache_policy import Cache
from millrace.semistream.choose.auto import AUTO, Auto, Decision, Past, check_free
from millrace.semistream.choose.explain_join import explained
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.conditions.residual import Residual
from millrace.semistream.loop import PIECE
from millrace.semistream.output.order_buffer import WAITING, OrderBuffer
from millrace.semistream.output.output_columns import Batches, Output
from millrace.semistream.output.row_numbers import NumberedRows
from millrace.semistream.resumable import Surviving
from millrace.semistream.shedding import Shedding
from millrace.semistream.waiting.condition_room import OpenRoom, Search
from millrace.semistream.waiting.waiting_room import WaitingRoom


class Unchanged(Enum):
    """Stands for an argument that was not given, where None means something."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


class SemiStreamJoin(Surviving):
    """Join a stream with a master store.

    Parameters
    ----------
    master
        A :class:`MasterStore` or its path.
    on
        Key column of both sides; several; or a mapping from the stream's names to the master's. None to join by
        ``where`` alone; the master's key then comes out like its other columns.
    how
        ``"inner"``, ``"left"``, ``"semi"`` or ``"anti"``.
    where
        A condition that a pair has to meet beside having the same key: see :func:`band <millrace.band>`, ``between``,
        ``compare`` and ``predicate``.
    algorithm
        A name from the table of algorithms, or an ``Algorithm`` of your own; by default ``"ssbj"``, or ``"meshjoin"``
        without ``on``. ``"auto"``: the join chooses, and chooses again when the stream turns out to be different; see
        :mod:`millrace.semistream.choose.auto`.
    memory
        The budget: bytes, ``"64MB"``, or ``"1%"`` of the master. It covers the cache, the waiting tuples, their index
        and queue, and the buffer of a load. Batches on their way in and out (at most about 8 MB each) are not in it.
    columns
        Master columns that come out; all but the key by default. Only these are cached.
    suffix
        Appended to master columns whose name the stream has too; without it that is an error.
    b
        Master rows per load (the papers' b), or of a page that is found through the index (their d); all of the master
        if it has no more. By default an eighth of the budget goes to the load buffer, and a page has 256 rows.
    w
        Stream tuples let in per step (the papers' w). By default what keeps the waiting room evenly full. Where nobody
        waits (``lookup``, ``inl``) there is neither b nor w.
    device
        What reads are charged to; by default they are only counted.
    space
        Where arrays live; by default in this process's memory.
    leave_early
        Let a tuple leave with its match when there can be only one that matters (a unique master, a semi or anti join).
        MESHJOIN and SSBJ keep every tuple for a whole turn; False is for comparing with them, and changes nothing where
        pages are found through the index.
    threads
        1 or 2; by default 2 where there are two cores.
    output_rows
        Most rows of an output batch.
    ordered
        Put rows out in the order their stream tuples came. What is found early is held back, inside the budget. By
        default only the algorithm of that name does.
    shed, keep
        Drop tuples when more come than can be joined: ``"random"`` ones or all of some ``"key"``, keeping this share of
        them. Without ``keep`` it is ``"auto"``: as many as can be served, once :meth:`Shedding.observe` was told what
        arrives. Or a :class:`Shedding`. Nothing is dropped by default.
    **options
        Options of the algorithm, such as ``migration="three-cycle"`` for ``ssbj``.

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
        self.store = master if isinstance(master, MasterStore) else MasterStore.open(master)
        if where is not None and not isinstance(where, Condition):
            raise ConfigError(f"where: expected a condition, such as band(…) or compare(…); got {where!r}")
        self.where = where
        self.search: Search | None = None
        if on is not None:
            self.spec = JoinSpec.of(on, how, columns, suffix).in_order_of(self.store.key)
        elif where is not None:
            self.spec = JoinSpec.without_key(how, columns, suffix)
        else:
            raise SchemaError("on: expected a column name, several, or a mapping, or where= without on; got None")
        self.spec.master_columns(self.store.schema)
        if algorithm == AUTO:
            check_free([*options, *(["b"] if b is not None else [])])
        usual = "ssbj" if self.spec.stream_key else "meshjoin"
        self.algorithm = named(usual if algorithm is None or algorithm == AUTO else algorithm)
        if not self.spec.stream_key:
            self.algorithm.check_keyless()
        for name, value in (("b", b), ("w", w), ("threads", threads), ("output_rows", output_rows)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}: expected a whole number of at least 1; got {value!r}")
        sizes = [name for name, value in (("b", b), ("w", w)) if value is not None]
        self.algorithm.check_options([*sizes, *options])
        self.algorithm.check_store(self.store)
        b = None if b is None else self._most_rows(b)
        self.budget = MemoryBudget(parse_size(memory, of=self.store.nbytes))
        self.auto = Auto(self.budget.total) if algorithm == AUTO else None
        """Who chooses the algorithm, if the user does not."""
        if device is not None and not isinstance(device, Device):
            raise ConfigError(f"device: expected a Device, such as Device('hdd-2007'); got {device!r}")
        self.device = device or Device()
        if ordered is not None and not isinstance(ordered, bool):
            raise ConfigError(f"ordered: expected True or False; got {ordered!r}")
        self.ordered = self.algorithm.ordered if ordered is None else ordered
        """Whether rows come out in the order their stream tuples came."""
        self.shedding = self._shedding(shed, keep)
        if not self.spec.stream_key and (self.ordered or (self.shedding is not None and self.shedding.by == "key")):
            what = "ordered" if self.ordered else "shed"
            raise ConfigError(f"{what}: tuples are told apart by their keys, so on= has to name one")
        self._options, self._given_space, self._output_rows = options, space, output_rows
        self._space = space or HeapSpace()
        self._b, self._w, self._leave_early = b, w, leave_early
        self._metrics = JoinMetrics(budget_bytes=self.budget.total)
        self._lanes = Lanes(threads or os.cpu_count() or 1)
        self._step = self._arrivals = 0
        self._past = Past()
        self._finished = False
        self._schema: pa.Schema | None = None
        self._output: Output
        self._check_least(b or 1, self._least_room(pa.schema([]), None))

    # wiring

    def _most_rows(self, b: int) -> int:
        """No load has more rows than the master."""
        return min(b, max(1, self.store.rows))

    def _shedding(self, shed: str | Shedding | None, keep: float | str | None) -> Shedding | None:
        if keep is not None and not isinstance(shed, str):
            raise ConfigError(f"keep: goes with shed='random' or 'key'; got keep={keep!r} with shed={shed!r}")
        if shed is None or isinstance(shed, Shedding):
            shedding = shed
        else:
            shedding = Shedding(shed, "auto" if keep is None else keep)
        if shedding is not None and shedding.spare_hits and (self.ordered or self.algorithm.at_once):
            why = "a hit may have to wait too" if self.ordered else f"{self.algorithm.name} lets nobody wait"
            raise ConfigError(f"spare_hits: cannot tell who has to wait: {why}")
        return shedding

    def _least_room(self, stream: pa.Schema, code_column: int | None) -> int:
        """What a few tuples cost, wherever they are kept."""
        if self.search is not None:
            return OpenRoom.least_bytes_of(self.search, stream)
        if not self.ordered:
            return WaitingRoom.least_bytes(stream, code_column)
        return WaitingRoom.least_bytes(WAITING, None) + OrderBuffer.least_bytes(stream)

    def _check_least(self, b: int, room: int) -> None:
        least = b * LOAD_ROW_BYTES + LEAST_PAIRS * PAIR_BYTES + room + 1024
        least += 3 * Sieve.least_bytes(self._lanes, LEAST_MATCHES)
        if self.budget.total < least:
            raise BudgetTooSmallError(
                f"memory: {format_size(self.budget.total)} is too little for {self.algorithm.name} with b={b}; "
                f"the least is {least} bytes ({format_size(least)})",
                least,
            )

    def bind(self, stream: pa.Schema) -> pa.Schema:
        """Fix the stream's schema, check that everything fits, and return the output's schema.

        The first :meth:`push` does this by itself.
        """
        stream = plain_schema(stream)
        if self._schema is not None:
            if (self._schema.names, self._schema.types) != (stream.names, stream.types):
                raise SchemaError(_difference(self._schema, stream))
            return self._output.schema
        store, spec = self.store, self.spec
        spec.check_keys(stream, store.schema, store.key)
        if self.where is not None:
            self.where.check(stream, store.schema)
        self._output = Output(spec, stream, store.schema, self._metrics, self._lanes, self._output_rows)
        self._key_columns = [stream.get_field_index(name) for name in spec.stream_key]
        self._key_types = [store.schema.field(name).type for name in store.key]
        if self.where is not None and not spec.stream_key:
            self.search = Search(self.where, stream, store.schema)
        code_column = None
        if len(self._key_columns) == 1 and holds_its_code(stream.field(self._key_columns[0]).type, store.coder.exact):
            code_column = self._key_columns[0]
        residual = self.where if self.search is None else self.search.rest
        judging = 0 if residual is None else Residual.least_bytes(residual, stream, store.schema)
        self._check_least(self._b or 1, self._least_room(stream, code_column) + judging)
        self._code_column, self._judged = code_column, residual
        if self.auto is not None:
            self._follow(self.auto.begin(self, stream))
        self._wire(stream)
        self._schema = stream
        return self._output.schema

    def _wire(self, stream: pa.Schema) -> None:
        """Divide the budget and make the parts of the algorithm."""
        store, spec, residual, code_column = self.store, self.spec, self._judged, self._code_column
        if self.auto is not None and self.auto.nbytes:
            self.budget.reserve("statistics", self.auto.nbytes)
        paged = self.algorithm.paged
        sizes = plan(self.budget.total, store.rows, paged=paged, b=self._b, threads=self._lanes.threads)
        self.b, self._pair_bytes, matches = sizes.b, sizes.pair_bytes, sizes.matches
        self._load = self.budget.reserve("load", sizes.load_bytes)
        one_match_settles = spec.how in ("semi", "anti")
        self._single = store.unique or (one_match_settles and store.coder.exact and self.where is None)
        self._numbered = NumberedRows(store)
        if self.ordered:
            several = spec.emits_master and not self._single
            rows_per_key = store.rows / max(1, store.manifest.keys) if several else None
            self._order = OrderBuffer(stream, self.budget, self._space, rows_per_key)
            code_column = None
        waiting = WAITING if self.ordered else stream
        sized = (waiting, self.budget, self._space, self._lanes, store.rows, matches, sizes.pairs)
        if self.search is not None:
            self._single = False
            self._room = OpenRoom(self.search, store, *sized, self._leave_early and one_match_settles)
        else:
            self._room = WaitingRoom(*sized, code_column, (self._leave_early or paged) and self._single)
        cached = list(self._output.master_columns)
        if not store.coder.exact:
            keys = [store.schema.get_field_index(name) for name in store.key]
            self._cached_keys = range(len(cached), len(cached) + len(keys))
            cached += keys
        self._residual = None
        if residual is not None:
            judged = [store.schema.get_field_index(name) for name in residual.master]
            cached += [column for column in judged if column not in cached]
            self._residual = Residual(residual, stream, store.schema, cached, self.budget)
        self._cached_columns = cached
        self._around = Surroundings(
            store,
            self.device,
            self._room,
            self.budget,
            self._space,
            self._lanes,
            cached,
            self._single,
            matches,
            self.b,
            self._w,
            self._metrics,
            sizes.step_rows,
            self._numbered if self.ordered else None,
        )
        self._access, self._cache = self.algorithm.make(self._around, self._options)
        self._last_cycle = 0

    # another algorithm

    def _follow(self, decision: Decision) -> None:
        options = dict(decision.options)
        self.algorithm = named(decision.algorithm)
        self._b, self._options = options.pop("b", None), options

    def sized_as(self, algorithm: str, **options: Any) -> SemiStreamJoin:
        """The same join with another algorithm and a device of its own: to be asked for its sizes, not to be run."""
        on = dict(zip(self.spec.stream_key, self.spec.master_key, strict=True))
        return SemiStreamJoin(
            self.store, on or None, self.spec.how, where=self.where, algorithm=algorithm, memory=self.budget.total,
            columns=self.spec.columns, suffix=self.spec.suffix, device=Device(reads=self.device.reads),
            leave_early=self._leave_early, threads=self._lanes.threads, ordered=self.ordered, **options,
        )  # fmt: skip

    def _reconsidered(self, auto: Auto) -> Batches:
        """Go on with another algorithm, once those who wait have been answered by this one."""
        decision = auto.reconsider(self, self._stream_schema)
        if decision is not None:
            yield from self._drain()
            yield from self._output.flush()
            self._become(decision)

    def _become(self, decision: Decision) -> None:
        """Nobody waits: begin with another algorithm, an empty cache and the whole budget."""
        assert not len(self._room)
        self._past = Past.of(self.metrics, self.k)
        peak = self.budget.peak
        self.budget = MemoryBudget(self.budget.total)
        self._space = self._given_space or HeapSpace()  # what the old one holds goes with it
        self._follow(decision)
        self._wire(self._stream_schema)
        self.budget.peak = max(peak, self.budget.peak)

    @property
    def options(self) -> dict[str, Any]:
        """Options that the algorithm runs with, where they are not its own defaults."""
        return {**({} if self._b is None else {"b": self._b}), **self._options}

    @property
    def access(self) -> Access:
        """The policy that decides which master rows come next."""
        return self._access

    @property
    def cache(self) -> Cache:
        """The policy that decides who is answered at once."""
        return self._cache

    @property
    def waits(self) -> bool:
        """Whether tuples may have to wait; if not, they are answered as they come and take no memory."""
        return not self._access.at_once

    @property
    def k(self) -> int:
        """Steps that no tuple waits longer than: the loads of one turn, where the master passes by in turns."""
        return max(self._access.longest_wait, self._past.longest_wait)

    @property
    def bound(self) -> bool:
        """Whether the stream's schema is known."""
        return self._schema is not None

    @property
    def tuple_bytes(self) -> float:
        """What a waiting tuple costs on average."""
        return self._room.tuple_bytes

    @property
    def whole_bytes(self) -> float | None:
        """What it takes to have all of the master in memory, where that ends all waiting; None where it does not."""
        return self._cache.whole_bytes

    @property
    def stream_schema(self) -> pa.Schema:
        """The stream's columns, or an error if they are not known yet."""
        return self._stream_schema

    @property
    def _stream_schema(self) -> pa.Schema:
        if self._schema is None:
            raise StateError("the join has not seen a stream yet: push a batch or call bind(schema) first")
        return self._schema

    def _guarded(self, work: Batches) -> Batches:
        watched = work if self.shedding is None else self._watched(self.shedding, work)
        return super()._guarded(self._flushed(watched))

    def _flushed(self, work: Batches) -> Batches:
        yield from work
        yield from self._output.flush()

    def _watched(self, shedding: Shedding, work: Batches) -> Batches:
        """Let shedding see how many tuples are done with, and how long that takes."""
        m = self._metrics
        before = m.matched + m.unmatched
        yield from shedding.timed(work)
        shedding.done += m.matched + m.unmatched - before

    # the life cycle

    def push(self, batch: pa.RecordBatch) -> Batches:
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"push: expected a pyarrow.RecordBatch; got {type(batch).__name__}")
        if self._finished:
            raise StateError("push after finish: make a new join for a new stream")
        self.bind(batch.schema)
        cuts = (batch.slice(at, PIECE) for at in range(0, len(batch), PIECE))
        pieces = (plain_batch(cut, self._stream_schema) for cut in cuts)
        return self._guarded(self._pushed(pieces))

    def _pushed(self, pieces: Iterable[pa.RecordBatch]) -> Batches:
        for piece in pieces:
            yield from self._take_in(self._thinned(piece))
            if self.auto is not None and self.auto.due:
                yield from self._reconsidered(self.auto)

    def step(self) -> Batches:
        self.bind(self._stream_schema)
        return self._guarded(self._turn())

    def idle(self) -> Batches:
        return self.step() if self.bound and len(self._room) else iter(())

    def finish(self) -> Batches:
        self._finished = True
        return self._guarded(self._drain()) if self.bound else iter(())

    def retune(self, *, b: int | Unchanged | None = UNCHANGED, w: int | Unchanged | None = UNCHANGED) -> None:
        """Change ``b`` or ``w`` between two calls; None gives the choice back to the join.

        No tuple misses a master row or meets one twice. With another ``b`` the load's buffer grows or shrinks; if it
        does not fit beside those who wait, that is an error and nothing has changed. A tuple that is here when ``b``
        changes, or comes within a turn of that, may wait for the steps of a turn with either; :attr:`k` says so.
        """
        self._check_between_calls("retune")
        for name, value in (("b", b), ("w", w)):
            if not isinstance(value, Unchanged | None) and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}: expected a whole number of at least 1, or None; got {value!r}")
        name = self.algorithm.name
        if self.auto is not None and not isinstance(b, Unchanged):
            raise ConfigError("b: algorithm='auto' chooses it itself; name an algorithm to set it")
        if self.algorithm.at_once and not (isinstance(b, Unchanged) and isinstance(w, Unchanged)):
            raise ConfigError(f"retune: {name} answers tuples as they come; it has no b and no w")
        if not isinstance(b, Unchanged):
            if self.algorithm.paged:
                raise ConfigError(f"b: {name} knows the master by pages of b rows, which cannot change; w can")
            self._load_at_a_time(b)
        if not isinstance(w, Unchanged):
            self._w = w
            if self.bound:
                self._around.w = w

    def _load_at_a_time(self, b: int | None) -> None:
        b = None if b is None else self._most_rows(b)
        if not self.bound:
            self._check_least(b or 1, self._least_room(pa.schema([]), None))
            self._b = b
            return
        rows = self._most_rows(b or rows_by_share(self.budget.total))
        self._check_least(rows, self._least_room(self._stream_schema, None))
        nbytes = rows * LOAD_ROW_BYTES + self._pair_bytes
        if not self._load.try_resize(nbytes):
            self._room.rows.trim()
            if self._order is not None:
                self._order.trim()
            if not self._load.try_resize(nbytes):
                raise BudgetExceededError(
                    f"b: loads of {rows:,} rows need {format_size(nbytes - self._load.nbytes)} more, but only "
                    f"{format_size(self.budget.available)} of {format_size(self.budget.total)} are left. "
                    "step() lets tuples leave that take it"
                )
        self._b, self.b = b, rows
        self._around.step_rows = rows
        self._access.retune(rows)

    def run(self, stream: Any) -> Batches:
        """Join a whole stream: record batches in any iterable, a table, a reader or a dataset."""
        yield from super().run(batches_of(stream))

    def __repr__(self) -> str:
        store, size = self.store.path.name, format_size(self.budget.total)
        return f"SemiStreamJoin({store!r}, {self.matching}, how={self.spec.how}, {self.algorithm.name}, memory={size})"

    # what it tells

    @property
    def matching(self) -> str:
        """What makes a match, in words."""
        words = [f"on {', '.join(self.spec.stream_key)}"] if self.spec.stream_key else []
        return " ".join([*words, *([f"where {self.where}"] if self.where is not None else [])])

    @property
    def nbytes(self) -> int:
        return self.budget.used

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of the output, known once the stream's schema is."""
        return self.bind(self._stream_schema)

    @property
    def metrics(self) -> JoinMetrics:
        m = self._metrics
        m.pages_read, m.bytes_read, m.seeks = self.device.pages_read, self.device.bytes_read, self.device.seeks
        m.used_bytes, m.peak_bytes, m.parts = self.budget.used, self.budget.peak, self.budget.parts()
        m.steps = self._step
        if self._schema is not None:
            m.waiting = len(self._room) if self._order is None else len(self._order)
            m.held_back = m.waiting - len(self._room)
            m.cycles = self._past.cycles + self._access.cycles
            m.steps_per_cycle = self.k
            m.removal_shifts = self._past.removal_shifts + self._room.removal_shifts
            rows = self._cache.rows
            m.cached_keys, m.cached_rows = (0, 0) if rows is None else (rows.keys, len(rows))
            m.admitted_keys = self._past.admitted_keys + getattr(self._cache, "admitted_keys", 0)
            m.evicted_keys = self._past.evicted_keys + getattr(self._cache, "evicted_keys", 0)
        return m

    def explain(self) -> str:
        """The plan, the split of the budget, the predicted rate and wait, and the alternatives; to read.

        Nothing is measured for it: predictions are for a modelled disk, or for unit costs that were measured before, or
        for a typical machine, and say so.
        """
        return explained(self)

    def check_invariants(self) -> None:
        self.budget.check_invariants()
        m = self.metrics
        assert m.tuples_in == m.matched + m.unmatched + m.waiting + m.shed, "a tuple is not accounted for"
        if self._schema is not None:
            self._room.check_invariants()
            if self._order is not None:
                self._order.check_invariants(self._sequences(self._room.rows.live()))
            self._cache.check_invariants()
            self._access.check_invariants()
            assert m.waits.most <= self.k, "a tuple waited longer than a turn"


def batches_of(stream: Any) -> Iterable[pa.RecordBatch]:
    """The record batches of whatever a caller may have as a stream."""
    if isinstance(stream, pa.RecordBatch):
        return [stream]
    if hasattr(stream, "to_batches"):
        stream = stream.to_batches()
    if not isinstance(stream, Iterable):
        raise SchemaError(f"run: expected record batches, a table, a reader or a dataset; got {stream!r}")
    return stream


def _difference(bound: pa.Schema, came: pa.Schema) -> str:
    """What is wrong with a batch whose schema is not that of the first."""
    for field in bound:
        at = came.get_field_index(field.name)
        if at < 0:
            return f"stream: column {field.name!r} ({field.type}) is missing from a later batch"
        if came.field(at).type != field.type:
            return f"stream: column {field.name!r} was {field.type} and is {came.field(at).type} in a later batch"
    if sorted(came.names) == sorted(bound.names):
        return f"stream: a later batch has its columns in another order: {', '.join(came.names)}"
    extra = [name for name in came.names if name not in bound.names]
    return f"stream: a later batch has other columns: {', '.join(extra) or ', '.join(came.names)}"
