"""Which rows MINER gives up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.adaptive.flush.miner_regions import MinerRegions
from millrace.adaptive.join import StreamJoin


def _took(rows: int) -> StreamJoin:
    """A join of three inputs that meet nobody, with more rows than there is room for."""
    join = StreamJoin(on=[("a.x", "b.x"), ("b.y", "c.y")], algorithm="miner", memory=40_000)
    values = np.random.default_rng(3).permutation(rows)
    parts = {
        "a": {"x": 2 * values, "p": values},
        "b": {"x": 2 * values + 1, "y": 2 * values, "q": values},
        "c": {"y": 2 * values + 1, "r": values},
    }
    for at in range(0, rows, 10):
        for name, columns in parts.items():
            assert not list(join.push(name, pa.record_batch(columns).slice(at, 10)))
    return join


def test_where_nobody_has_met_all_inputs_keep_low_values() -> None:
    """The upper region goes first among equals, so what stays in all inputs can meet."""
    join = _took(1000)
    assert join.metrics.flushes > 10
    for relation in join.engine.inputs.sides:
        codes = relation.memory.entries()[0]
        assert len(codes) < 500
        assert np.median(codes) - codes.min() < 700, relation.name
    join.close()


def test_results_age_at_a_flush() -> None:
    join = _took(1000)
    flushing = join.engine.flushing
    assert isinstance(flushing, MinerRegions)
    for regions in flushing.regions:
        regions.joins[:] = (1000, 7, 0)
    list(flushing.flush())
    found = {tuple(regions.joins.tolist()) for regions in flushing.regions}
    assert found == {(750, 5, 0), (1000, 7, 0)}
    join.close()
