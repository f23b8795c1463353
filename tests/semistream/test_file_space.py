"""Arrays in files that an earlier join has left behind: what it wrote there changes neither rows nor counts.

A part that reads what it has not written sees the earlier join's counts: in memory of its own it would see zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.space import FileSpace
from millrace.datasets import zipf_stream
from millrace.testing.conformance import Subject, subjects

KEYS = 300
CACHING = [
    Subject("ssbj", {"migration": "rolling", "evict_every": 2}),
    Subject("ssbj", {"migration": "three-cycle", "evict_every": 3, "leave_early": False}),
    *subjects(["sscj", "cachejoin", "hybridjoin-pq-balanced", "ordered"]),
]
UNIQUE = subjects(["ssbj", "cmeshjoin", "ssij", "partitioned"])


def store_of(rows_of_key: int, path: Path) -> mr.MasterStore:
    keys = np.random.default_rng(4).permutation(np.repeat(np.arange(KEYS), rows_of_key))
    master = pa.table({"key": keys, "value": [f"row {i} of {'x' * (i % 7)}" for i in range(len(keys))]})
    return mr.MasterStore.build(master, path, "key", page_rows=64)


def run(
    store: mr.MasterStore, subject: Subject, seed: int, **where: Any
) -> tuple[list[pa.RecordBatch], dict[str, Any]]:
    """What comes out of a skewed stream in which some keys have no row, and the counts at the end."""
    join = subject.join(
        store, "key", "left", algorithm=subject.algorithm, **{"memory": 24_000, "b": 20, **subject.options, **where}
    )
    got: list[pa.RecordBatch] = []
    for batch in zipf_stream(KEYS + 20, 1.1, batch_rows=40, batches=30, seed=seed):
        got += [*join.push(batch), *join.step()]
    got += list(join.finish())
    join.check_invariants()
    return got, join.metrics.as_dict()


@pytest.mark.parametrize(
    ("subject", "rows_of_key"), [(s, 2) for s in CACHING] + [(s, 1) for s in UNIQUE], ids=lambda value: str(value)
)
def test_what_an_earlier_join_left_in_the_files_changes_nothing(
    subject: Subject, rows_of_key: int, tmp_path: Path
) -> None:
    store = store_of(rows_of_key, tmp_path / "store")
    expected, counts = run(store, subject, seed=5)
    assert counts["cache_hits"] > 0
    run(store, subject, seed=1, space=FileSpace(tmp_path / "arrays"))
    got, again = run(store, subject, seed=5, space=FileSpace(tmp_path / "arrays"))
    assert again == counts
    assert pa.Table.from_batches(got).equals(pa.Table.from_batches(expected))


def test_what_another_algorithm_left_in_the_files_changes_nothing(tmp_path: Path) -> None:
    """One that remembers absent keys marks their slots; another with arrays of the same lengths never looks at them."""
    store = store_of(2, tmp_path / "store")
    subject = Subject("sscj", {"ordered": True})
    expected, counts = run(store, subject, seed=5)
    run(store, Subject("ordered"), seed=1, space=FileSpace(tmp_path / "arrays"))
    got, again = run(store, subject, seed=5, space=FileSpace(tmp_path / "arrays"))
    assert again == counts
    assert pa.Table.from_batches(got).equals(pa.Table.from_batches(expected))


def test_a_main_memory_join_in_files_that_another_join_has_used(tmp_path: Path) -> None:
    """Slots that stood for absent keys, or for groups being collected, hold rows that answer."""
    store = store_of(2, tmp_path / "store")
    space = tmp_path / "arrays"
    run(store, Subject("ssbj", {"main_memory": False}), seed=1, memory=250_000, space=FileSpace(space))
    stream = pa.record_batch({"key": [*range(KEYS), 5_000]})
    answers = []
    for where in (None, FileSpace(space)):
        join = mr.SemiStreamJoin(store, "key", "left", memory=250_000, b=20, space=where)
        answers.append(pa.Table.from_batches(join.push(stream)))
        assert (join.metrics.cache_hits, join.metrics.waiting) == (KEYS + 1, 0)
        assert answers[-1].num_rows == 2 * KEYS + 1
        join.check_invariants()
    assert answers[0].equals(answers[1])
