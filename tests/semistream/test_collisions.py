"""Real xxhash64 collisions of composite keys: equal codes, other keys, exact results all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.spec import JoinSpec
from millrace.rows.key_codes import KeyCoder
from millrace.testing.cases import HOWS
from millrace.testing.collisions import colliding_pair
from millrace.testing.conformance import Subject, subjects
from millrace.testing.oracle import assert_same_rows, oracle_join

pytestmark = pytest.mark.sampled(4)


def colliding_keys(count: int) -> list[tuple[int, int]]:
    """Keys ``(a, b)`` that all have one hash."""
    return [(1, 2)] + [(a, colliding_pair(1, 2, a)) for a in range(2, count + 1)]


def tables(unique: bool, present: int) -> tuple[pa.Table, pa.Table]:
    """Stream keys of one code, of which only the first ``present`` are in the master, and some ordinary ones."""
    colliding = colliding_keys(5)
    ordinary = [(10 + i, i) for i in range(20)]
    rng = np.random.default_rng(present)
    there = colliding[:present] + ordinary[:10]
    rows = there if unique else [there[i] for i in rng.integers(0, len(there), 60)]
    keys = colliding + ordinary
    came = [keys[i] for i in np.minimum(rng.zipf(1.3, 600) - 1, len(keys) - 1)]
    stream = {"a": [a for a, _ in came], "b": [b for _, b in came], "seq": list(range(len(came)))}
    master = {"a": [a for a, _ in rows], "b": [b for _, b in rows], "row": list(range(len(rows)))}
    return pa.table(stream), pa.table(master)


def test_the_keys_do_collide() -> None:
    keys = colliding_keys(5)
    columns = [pa.array([a for a, _ in keys]), pa.array([b for _, b in keys])]
    assert len(set(KeyCoder([pa.int64(), pa.int64()]).codes(columns)[0].tolist())) == 1


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("unique", [True, False], ids=["unique", "many"])
@pytest.mark.parametrize("present", [0, 1, 3])
@pytest.mark.parametrize("subject", subjects(["meshjoin", "ssbj", "sscj", "hybridjoin-pq", "lookup"]), ids=str)
def test_collisions_are_told_apart(subject: Subject, how: str, unique: bool, present: int, tmp_path: Path) -> None:
    stream, master = tables(unique, present)
    store = mr.MasterStore.build(master, tmp_path / "store", ["a", "b"], page_rows=7)
    arguments = {"algorithm": subject.algorithm, "memory": 9_000, **subject.sizes(b=6), **subject.options}
    join = mr.SemiStreamJoin(store, ["a", "b"], how, **arguments)
    got = []
    for batch in stream.to_batches(max_chunksize=20):
        got += [*join.push(batch), *join.step(), *join.step()]
        join.check_invariants()
    got += list(join.finish())
    assert_same_rows(got, oracle_join(stream, master, JoinSpec.of(["a", "b"], how)), str(subject))
    if subject.algorithm == "ssbj":
        assert join.metrics.cache_hits > 0, "the cache was never asked"
