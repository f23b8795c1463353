"""Scheduled arrivals: every tuple once, in order, at its time; silences where the times say so; the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adaptive.arrivals.events import Arrivals, Arrived, Ended, ScheduledArrivals, Silent
from millrace.core.clock import VirtualClock
from millrace.core.errors import ConfigError
from millrace.testing.strategies import examples

Heard = list[tuple[float, str, list[int]]]


def rows(count: int, first: int = 0) -> pa.Table:
    return pa.table({"n": np.arange(first, first + count)})


def heard(arrivals: ScheduledArrivals, cost: float = 0.0) -> Heard:
    """All events with their times; every tuple costs the consumer something."""
    events: Heard = []
    as_any: Arrivals = arrivals
    for event in as_any:
        now = round(arrivals.clock.now(), 6)
        match event:
            case Arrived(name, batch):
                events.append((now, name, batch["n"].to_pylist()))
                arrivals.spend(cost * batch.num_rows)
            case Silent():
                events.append((now, "silent", []))
            case Ended(name):
                events.append((now, f"end of {name}", []))
    return events


def test_tuples_come_alone_where_the_consumer_is_quick() -> None:
    arrivals = ScheduledArrivals({"a": (rows(3), [0.1, 0.11, 0.2]), "b": (rows(2, 10), [0.105, 0.2])})
    assert heard(arrivals) == [
        (0.025, "silent", []),
        (0.1, "a", [0]),
        (0.105, "b", [10]),
        (0.11, "a", [1]),
        (0.135, "silent", []),
        (0.2, "a", [2]),
        (0.2, "end of a", []),
        (0.2, "b", [11]),
        (0.2, "end of b", []),
    ]


def test_what_arrives_while_the_consumer_works_comes_in_batches() -> None:
    times = np.arange(10) / 100
    arrivals = ScheduledArrivals({"a": (rows(10), times), "b": (rows(10, 50), times + 0.005)}, batch_rows=6)
    assert heard(arrivals, cost=0.03) == [
        (0.0, "a", [0]),
        (0.03, "b", [50, 51, 52]),
        (0.12, "a", [1, 2, 3]),
        (0.21, "b", [53, 54, 55]),
        (0.3, "a", [4, 5, 6]),
        (0.39, "b", [56, 57, 58]),
        (0.48, "a", [7, 8, 9]),
        (0.57, "end of a", []),
        (0.57, "b", [59]),
        (0.6, "end of b", []),
    ]
    assert arrivals.most_buffered == 13


def test_silence_is_counted_from_the_last_arrival() -> None:
    table = (rows(3), [0.0, 0.02, 0.1])
    assert [moment for moment, what, _ in heard(ScheduledArrivals({"a": table})) if what == "silent"] == [0.045]
    slow = heard(ScheduledArrivals({"a": table}), cost=0.03)
    assert [moment for moment, what, _ in slow if what == "silent"] == [0.06], "at once: it was busy during the wait"
    assert "silent" not in [what for _, what, _ in heard(ScheduledArrivals({"a": table}), cost=0.06)]


def test_silence_comes_once_and_the_buffer_fills_while_it_is_used() -> None:
    arrivals = ScheduledArrivals({"a": (rows(101), [0.0, *(1 + np.arange(100) / 100)])})
    assert isinstance(next(arrivals), Arrived)
    assert isinstance(next(arrivals), Silent)
    arrivals.spend(0.5)
    assert arrivals.buffered == 0
    arrivals.spend(0.6)
    assert arrivals.clock.now() == pytest.approx(1.125)
    assert arrivals.buffered == 13
    event = next(arrivals)
    assert isinstance(event, Arrived)
    assert event.batch.num_rows == 13
    assert arrivals.buffered == 0
    assert not any(isinstance(event, Silent) for event in arrivals)


def test_lingering_collects_tuples() -> None:
    times = np.arange(1, 1001) / 1000
    sizes = [len(ns) for _, what, ns in heard(ScheduledArrivals({"a": (rows(1000), times)}, linger=0.0095)) if ns]
    assert sizes == [10] * 100
    full = ScheduledArrivals({"a": (rows(1000), times)}, linger=0.0095, batch_rows=4)
    assert {len(ns) for _, _, ns in heard(full) if ns} == {4}


def test_empty_inputs_end_at_once() -> None:
    arrivals = ScheduledArrivals({"a": (rows(0), []), "b": (rows(1).to_batches()[0], [0.0])})
    assert heard(arrivals) == [(0.0, "end of a", []), (0.0, "b", [0]), (0.0, "end of b", [])]
    assert arrivals.schemas == {"a": rows(0).schema, "b": rows(0).schema}
    assert arrivals.inputs == ("a", "b")


def test_nothing_comes_after_close() -> None:
    arrivals = ScheduledArrivals({"a": (rows(10), np.arange(10))})
    next(arrivals)
    arrivals.close()
    arrivals.close()
    assert list(arrivals) == []


@examples(60)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.03, 1.0]), max_size=30), min_size=1, max_size=3),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([0.0, 0.004, 0.05]),
    st.sampled_from([0.0, 0.01]),
)
def test_every_tuple_comes_once_in_order_and_not_before_its_time(
    gaps: list[list[float]], batch_rows: int, cost: float, linger: float
) -> None:
    times = {f"i{n}": np.cumsum(each) for n, each in enumerate(gaps)}

    def run() -> Heard:
        inputs = {name: (rows(len(each)), each) for name, each in times.items()}
        return heard(ScheduledArrivals(inputs, batch_rows=batch_rows, linger=linger), cost)

    events = run()
    assert events == run(), "repeatable"
    arrived = np.sort(np.concatenate([np.asarray(each) for each in times.values()]))
    for name, each in times.items():
        mine = [(moment, ns) for moment, what, ns in events if what == name]
        assert [n for _, ns in mine for n in ns] == list(range(len(each)))
        assert all(len(ns) <= batch_rows and each[ns[-1]] <= moment + 1e-6 for moment, ns in mine)
        assert [what for _, what, _ in events].count(f"end of {name}") == 1
    before = 0.0
    for moment, what, _ in events:
        assert moment >= before
        if what == "silent":
            assert not ((arrived > moment - 0.025 + 1e-6) & (arrived < moment - 1e-6)).any()
        before = moment


def test_clocks_of_others_move_on() -> None:
    clock = VirtualClock()
    clock.advance(5.0)
    arrivals = ScheduledArrivals({"a": (rows(3), [1.0, 2.0, 9.0])}, clock=clock)
    assert heard(arrivals) == [(5.0, "a", [0, 1]), (5.0, "silent", []), (9.0, "a", [2]), (9.0, "end of a", [])]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScheduledArrivals({}), "inputs: expected at least one"),
        (lambda: ScheduledArrivals({"a": (rows(2), [1.0])}), r"input 'a': expected 2 times .*; .*shape \(1,\)"),
        (lambda: ScheduledArrivals({"a": (rows(2), [1.0, 0.5])}), "input 'a': expected finite .* in ascending order"),
        (lambda: ScheduledArrivals({"a": (rows(2), [-1.0, 0.5])}), "input 'a': expected finite times of arrival"),
        (lambda: ScheduledArrivals({"a": (rows(2), [1.0, np.nan])}), "input 'a': expected finite times"),
        (
            lambda: ScheduledArrivals({"a": (rows(1), [1.0])}, wait=0),
            "wait: expected a finite number of seconds above 0; got 0",
        ),
        (lambda: ScheduledArrivals({"a": (rows(1), [1.0])}, linger=0.025), "linger: expected at least 0 and less than"),
        (lambda: ScheduledArrivals({"a": (rows(1), [1.0])}, batch_rows=0), "batch_rows: expected at least 1; got 0"),
    ],
)
def test_bad_options_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
