"""Live arrivals: real threads, held in step by events, never by measured time."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.adaptive.arrivals import live
from millrace.adaptive.arrivals.events import Arrivals, Arrived, Ended, Silent
from millrace.adaptive.arrivals.live import LiveArrivals
from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetExceededError, ConfigError, SchemaError, SourceError
from millrace.testing.faults import failing

_LONG = 30


def batch(count: int, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(first, first + count)})


def batches(count: int, rows: int = 10) -> list[pa.RecordBatch]:
    return [batch(rows, i * rows) for i in range(count)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace-")]


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    gc.collect()
    assert threads() == []


def test_all_kinds_of_sources_give_every_tuple_in_order() -> None:
    everything = batches(7)
    table = pa.Table.from_batches(everything)
    inputs = {
        "list": everything,
        "generator": (each for each in everything),
        "function": lambda: iter(everything),
        "table": table,
        "batch": everything[0],
        "reader": table.to_reader(),
        "empty": [batch(0)],
        "nothing": [],
    }
    got: dict[str, list[int]] = {name: [] for name in inputs}
    ended = []
    with LiveArrivals(inputs) as arrivals:
        as_any: Arrivals = arrivals
        for event in as_any:
            if isinstance(event, Arrived):
                assert event.input not in ended
                got[event.input] += event.batch["n"].to_pylist()
            elif isinstance(event, Ended):
                ended.append(event.input)
        arrivals.spend(1.0)
        assert arrivals.buffered == arrivals.nbytes == 0
    assert sorted(ended) == sorted(inputs)
    lengths = {name: len(ns) for name, ns in got.items()}
    assert lengths == {**dict.fromkeys(inputs, 70), "batch": 10, "empty": 0, "nothing": 0}
    assert all(ns == list(range(len(ns))) for ns in got.values())
    assert set(arrivals.schemas) == set(inputs) - {"nothing"}


def test_the_reactive_phase_overlaps_waiting() -> None:
    """The source gives more only after the consumer was told of silence, and the consumer sees it come."""
    go_on, given = threading.Event(), threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(5)
        assert go_on.wait(_LONG)
        yield batch(3)
        yield batch(4)
        given.set()

    seen: list[Any] = []
    with LiveArrivals({"a": source, "b": []}, wait=0.001) as arrivals:
        for event in arrivals:
            seen.append(type(event).__name__)
            if isinstance(event, Silent) and "Arrived" in seen and not go_on.is_set():
                assert arrivals.buffered == 0
                go_on.set()
                assert given.wait(_LONG)
                assert arrivals.buffered == 7
    assert seen.count("Arrived") == 3
    silences = [i for i, name in enumerate(seen) if name == "Silent"]
    assert silences
    assert all(seen[i + 1] != "Silent" for i in silences), "once for each silence"
    assert arrivals.most_buffered == 7


def test_no_silence_while_the_wait_lasts() -> None:
    with LiveArrivals({"a": batches(20), "b": batches(20)}, wait=_LONG) as arrivals:
        assert not any(isinstance(event, Silent) for event in arrivals)


def test_a_fast_source_is_held_back() -> None:
    made = 0
    each = batch(10)

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal made
        for _ in range(100):
            made += 1
            yield each

    budget = MemoryBudget(2000)
    with LiveArrivals({"fast": source, "none": []}, buffer=8 * each.nbytes, budget=budget) as arrivals:
        assert budget.parts() == {"input buffer": 640}
        assert arrivals.nbytes == 0
        taken = 0
        for event in arrivals:
            if isinstance(event, Arrived):
                taken += 1
                # four fit in its share, the one at work among them; a further one may be in the source's hands
                assert made <= taken + 4
                assert 0 < arrivals.nbytes <= arrivals.most_nbytes <= 320
        assert taken == 100
    assert budget.used == 0
    budget.check_invariants()


def test_large_batches_come_in_pieces() -> None:
    wide = pa.record_batch({"text": ["x" * (i % 90) for i in range(500)]})
    with LiveArrivals({"a": [wide]}, buffer=300) as arrivals:
        pieces = [event.batch for event in arrivals if isinstance(event, Arrived)]
    assert len(pieces) > 50
    assert max(piece.nbytes for piece in pieces) <= 300
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([wide]).combine_chunks())


def test_columns_without_bytes_are_bounded_too() -> None:
    nothing = pa.record_batch([pa.nulls(1000)], ["z"])
    with LiveArrivals({"a": [nothing] * 10}, buffer=1500) as arrivals:
        assert sum(event.batch.num_rows for event in arrivals if isinstance(event, Arrived)) == 10_000
    assert arrivals.most_nbytes <= 1500


# errors


def drain(arrivals: LiveArrivals, came: dict[str, int]) -> None:
    """Count the tuples of every input."""
    for event in arrivals:
        if isinstance(event, Arrived):
            came[event.input] = came.get(event.input, 0) + event.batch.num_rows


def test_a_source_that_fails_is_named_with_how_far_it_got() -> None:
    came: dict[str, int] = {}
    arrivals = LiveArrivals({"left": failing(batches(9), after=3), "right": batches(2)})
    with pytest.raises(SourceError) as raised:
        drain(arrivals, came)
    assert came["left"] == 30
    assert str(raised.value) == "input 'left' failed after 30 tuples in 3 batches: [Errno 104] the source went away"
    error = raised.value
    assert (error.source, error.tuples, error.batches) == ("left", 30, 3)
    assert isinstance(error.__cause__, OSError)
    assert list(arrivals) == []
    assert threads() == []


@pytest.mark.parametrize(
    ("source", "message", "cause"),
    [
        (lambda: 1 / 0, "after 0 tuples in 0 batches: division by zero", ZeroDivisionError),
        (lambda: 5, "left: expected record batches, .* got 5", SchemaError),
        (
            [batch(3), pa.table({"n": [1]})],
            "after 3 tuples in 1 batches: expected record batches; got Table",
            SchemaError,
        ),
        (
            [batch(3), pa.record_batch({"m": ["x"]})],
            r"expected batches with columns n \(int64\); got m \(string\)",
            SchemaError,
        ),
        ([pa.record_batch({"t": ["x" * 9000]})], "a tuple of 9.0 kB does not fit into the", BudgetExceededError),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt()), "failed .*: KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_bad_sources(source: Any, message: str, cause: type[BaseException]) -> None:
    with LiveArrivals({"left": source}, buffer=8000) as arrivals, pytest.raises(SourceError, match=message) as raised:
        drain(arrivals, {})
    assert isinstance(raised.value.__cause__, cause)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LiveArrivals({}), "inputs: expected at least one"),
        (lambda: LiveArrivals({"a": [], "b": []}, buffer=1), "buffer: expected at least one byte for each of 2 inputs"),
        (lambda: LiveArrivals({"a": []}, wait=-1), "wait: expected a finite number of seconds above 0; got -1"),
    ],
)
def test_bad_options_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_buffer_that_the_budget_cannot_give() -> None:
    with pytest.raises(BudgetExceededError, match="input buffer: needs"):
        LiveArrivals({"a": []}, buffer=2000, budget=MemoryBudget(1000))


# the end


class Blocking:
    """A source that gives one batch and then blocks, unless it is cancelled; it notes that it was closed."""

    def __init__(self, cancellable: bool = True) -> None:
        self.blocked, self.released, self.closed = threading.Event(), threading.Event(), threading.Event()
        if cancellable:
            self.cancel = self.released.set

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield batch(1)
            self.blocked.set()
            assert self.released.wait(_LONG)
        finally:
            self.closed.set()


def endless() -> Iterator[pa.RecordBatch]:
    while True:
        yield batch(10)


@pytest.mark.parametrize("events", [0, 1, 5])
def test_close_stops_sources_wherever_they_are(events: int) -> None:
    blocking = Blocking()
    arrivals = LiveArrivals({"blocking": blocking, "endless": endless}, buffer=500)
    for _ in range(events):
        next(arrivals)
    arrivals.close()
    arrivals.close()
    assert arrivals.abandoned == ()
    assert threads() == []
    assert list(arrivals) == []
    assert events == 0 or blocking.closed.is_set()


def test_generators_are_closed_in_their_own_thread() -> None:
    closed = []

    def source() -> Iterator[pa.RecordBatch]:
        try:
            yield from endless()
        finally:
            closed.append(threading.current_thread().name)

    with LiveArrivals({"g": source}, buffer=500) as arrivals:
        next(arrivals)
    assert closed == ["millrace-g"]


def test_an_error_of_the_consumer_stops_the_sources() -> None:
    with pytest.raises(ZeroDivisionError), LiveArrivals({"e": endless}, buffer=500) as arrivals:
        1 / isinstance(next(arrivals), Ended)
    assert threads() == []


def test_arrivals_that_nobody_holds_any_more_stop_their_sources() -> None:
    blocking = Blocking()
    arrivals = LiveArrivals({"blocking": blocking, "endless": endless}, buffer=500)
    next(arrivals)
    del arrivals
    gc.collect()
    assert threads() == []


def test_a_source_that_cannot_be_stopped_is_left_behind_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_GRACE", 0.05)
    blocking = Blocking(cancellable=False)
    arrivals = LiveArrivals({"stubborn": blocking, "endless": endless}, buffer=500)
    next(arrivals)
    assert blocking.blocked.wait(_LONG)
    arrivals.close()
    assert arrivals.abandoned == ("stubborn",)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "millrace-stubborn"]
    assert thread.daemon
    blocking.released.set()
    thread.join(_LONG)
    assert blocking.closed.is_set()


def interrupt_when_waiting(arrivals: LiveArrivals) -> None:
    while not arrivals._buffer._changed._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_ctrl_c_while_waiting_stops_everything() -> None:
    blocking = Blocking()
    arrivals = LiveArrivals({"blocking": blocking}, wait=_LONG)
    assert isinstance(next(arrivals), Arrived)
    assert blocking.blocked.wait(_LONG)
    other = threading.Thread(target=interrupt_when_waiting, args=(arrivals,))
    other.start()
    with pytest.raises(KeyboardInterrupt):
        next(arrivals)
    other.join()
    assert threads() == []
    assert blocking.closed.is_set()
