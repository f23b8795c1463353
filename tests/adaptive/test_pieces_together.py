"""The simplest join there can be, fed by both kinds of arrivals: what stands beside the joins fits together."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.adaptive.arrivals.events import Arrivals, Arrived, Ended, ScheduledArrivals, Silent
from millrace.adaptive.arrivals.live import LiveArrivals
from millrace.adaptive.disk.spill_files import SpillArea
from millrace.datasets.adaptive_inputs import chain_inputs, stock_orders, wide_tuples, zipf_values
from millrace.datasets.arrival_times import bursts, exponential, with_stalls
from millrace.testing.oracle import assert_same_rows
from millrace.testing.pair_oracle import Equal, Link, Near, equal_keys, oracle_multi, oracle_pair


def spilled_join(arrivals: Arrivals, links: list[Link], area: SpillArea) -> tuple[pa.Table, int]:
    """Put every batch aside as it comes; join it with all that came before from the other input. Counts silences."""
    blocks: dict[str, list[int]] = {name: [] for name in arrivals.inputs}
    results, silences, ended = [], 0, set()
    for event in arrivals:
        match event:
            case Arrived(name, batch):
                assert name not in ended
                other = "right" if name == "left" else "left"
                if blocks[other]:
                    schema = arrivals.schemas[other]
                    read = [pa.ipc.read_record_batch(pa.py_buffer(area.read(block)), schema) for block in blocks[other]]
                    pair = {name: pa.Table.from_batches([batch]), other: pa.Table.from_batches(read)}
                    results.append(oracle_pair(pair["left"], pair["right"], links))
                blocks[name].append(area.write(name, [batch.serialize()]))
                arrivals.spend(1e-5 * batch.num_rows)
            case Silent():
                silences += 1
            case Ended(name):
                ended.add(name)
    assert ended == set(blocks)
    return pa.concat_tables(results), silences


@pytest.mark.parametrize("kind", ["scheduled", "live"])
@pytest.mark.parametrize("banded", [False, True])
def test_a_join_of_two_inputs(kind: str, banded: bool) -> None:
    left = wide_tuples({"key": zipf_values(400, 1.0, seed=1)}, seed=1)
    right = wide_tuples({"key": zipf_values(300, 1.0, seed=2)}, seed=2)
    links: list[Link] = [Near("left.key", "right.key", 2, 1)] if banded else equal_keys("key")
    arrivals: Arrivals
    if kind == "scheduled":
        times = with_stalls(exponential(400, 0.005, seed=1), 50), bursts(300, tuples=50, pause=0.5, seed=2)
        arrivals = ScheduledArrivals({"left": (left, times[0]), "right": (right, times[1])}, linger=0.01)
    else:
        pieces = {"left": left.to_batches(max_chunksize=30), "right": right.to_batches(max_chunksize=20)}
        arrivals = LiveArrivals(pieces, buffer=20_000)
    with SpillArea() as area:
        joined, silences = spilled_join(arrivals, links, area)
        assert area.counts.bytes_written > 700 * 200
    arrivals.close()
    assert_same_rows(joined, oracle_pair(left, right, links))
    if kind == "scheduled":
        assert silences > 0


def test_oracles_take_the_experiments_data() -> None:
    chain = chain_inputs(rows=200, keys=50)
    links: list[Link] = [Equal("R1.a1", "R2.a1"), Equal("R2.a2", "R3.a2"), Equal("R3.a3", "R4.a3")]
    four = oracle_multi(chain, links, {name: f"{name}.row" for name in chain})
    two = oracle_multi({name: chain[name] for name in ("R2", "R3")}, links[1:2], {"R2": "R2.row", "R3": "R3.row"})
    assert_same_rows(four.select(["R2", "R3"]), two)
    orders = stock_orders(600)
    near = oracle_pair(orders["buy"], orders["sell"], [Near("left.price", "right.price", 4, 4)])
    equal = oracle_pair(orders["buy"], orders["sell"], equal_keys("price"))
    assert near.num_rows > equal.num_rows > 0
