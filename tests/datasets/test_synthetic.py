from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import ConfigError
from millrace.datasets import MASTER_SCHEMA, synthetic_master

LAYOUTS: list[dict[str, Any]] = [
    {},
    {"order": "sorted"},
    {"unique": False},
    {"unique": False, "order": "sorted"},
]


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 2000), batch_rows=st.integers(1, 700), seed=st.integers(0, 99))
def test_unique_masters_hold_every_key_once(rows: int, batch_rows: int, seed: int) -> None:
    keys = synthetic_master(rows, seed=seed, batch_rows=batch_rows).read_all()["key"].to_numpy()
    assert np.array_equal(np.sort(keys), np.arange(1, rows + 1))


def test_shuffled_and_sorted_unique_masters_hold_the_same_rows() -> None:
    shuffled = synthetic_master(5000, seed=3).read_all()
    ascending = synthetic_master(5000, seed=3, order="sorted").read_all()
    assert not shuffled.equals(ascending)
    assert abs(np.corrcoef(shuffled["key"].to_numpy(), np.arange(5000))[0, 1]) < 0.1
    assert shuffled.sort_by("key").equals(ascending)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_do_not_depend_on_batch_rows(layout: dict[str, Any]) -> None:
    whole = synthetic_master(1000, seed=2, **layout).read_all()
    assert whole.equals(synthetic_master(1000, seed=2, batch_rows=37, **layout).read_all())
    assert not whole.equals(synthetic_master(1000, seed=4, **layout).read_all())


@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_repeated_keys_are_poisson(order: Any) -> None:
    rows = 100_000
    keys = synthetic_master(rows, unique=False, order=order, seed=6).read_all()["key"].to_numpy()
    assert keys.min() >= 1
    assert keys.max() <= rows
    multiplicities = np.bincount(np.bincount(keys, minlength=rows + 1)[1:], minlength=5)
    for multiplicity in range(5):
        share = math.exp(-1) / math.factorial(multiplicity)
        assert multiplicities[multiplicity] / rows == pytest.approx(share, abs=0.01)
    assert (np.diff(keys) >= 0).all() == (order == "sorted")
    # uniform over the domain: every tenth of it gets a tenth of the rows
    tenths = np.bincount((keys - 1) * 10 // rows, minlength=10)
    assert np.abs(tenths - rows / 10).max() < 5 * math.sqrt(rows / 10)


@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_repeated_keys_come_from_the_whole_domain(order: Any) -> None:
    keys = synthetic_master(20_000, unique=False, domain=7, order=order).read_all()["key"].to_numpy()
    assert set(keys.tolist()) == set(range(1, 8))
    wide = synthetic_master(20_000, unique=False, domain=10**12, order=order).read_all()["key"].to_numpy()
    assert len(np.unique(wide)) == 20_000
    assert wide.max() > 0.99e12


def test_rows_of_one_key_differ() -> None:
    table = synthetic_master(1000, unique=False, domain=1).read_all()
    for name in MASTER_SCHEMA.names[1:]:
        assert pc.count_distinct(table[name]).as_py() > 990


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_take_120_bytes(layout: dict[str, Any]) -> None:
    rows = 1000
    (batch,) = synthetic_master(rows, **layout)
    assert batch.schema == MASTER_SCHEMA
    batch.validate(full=True)
    fixed = sum(batch[name].nbytes for name in MASTER_SCHEMA.names[:-1])
    text = pc.sum(pc.binary_length(batch["label"])).as_py()
    assert fixed + text == 120 * rows
    assert pc.all(pc.string_is_ascii(batch["label"])).as_py()
    assert pc.unique(pc.binary_length(batch["label"])).to_pylist() == [24]
    digits = pc.utf8_slice_codeunits(batch["label"], 0, 14)
    assert digits.cast(pa.int64()).equals(batch["key"])


def test_attributes_are_uniform_and_independent() -> None:
    table = synthetic_master(20_000).read_all()
    columns = np.array([table[name].to_numpy() for name in MASTER_SCHEMA.names[1:-1]], dtype=np.float64)
    columns[:5] /= 2**32
    assert columns.min() >= 0
    assert columns.max() < 1
    assert np.abs(columns.mean(axis=1) - 0.5).max() < 0.01
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < 0.04


def test_memory_is_one_batch() -> None:
    synthetic_master(10).read_all()  # compile
    tracemalloc.start()
    try:
        rows = sum(batch.num_rows for batch in synthetic_master(200_000, batch_rows=1000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 200_000
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows: expected a whole number from 1 to .*; got 0"),
        ({"rows": 10, "batch_rows": 0}, "batch_rows: .*; got 0"),
        ({"rows": 10, "order": "random"}, "order: expected one of 'shuffled', 'sorted'; got 'random'"),
        ({"rows": 10, "domain": 20}, "domain: expected 10, the number of rows, as the keys are unique; got 20"),
        ({"rows": 10, "domain": 0, "unique": False}, "domain: .*; got 0"),
        ({"rows": 10, "seed": -1}, "seed: .*; got -1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        synthetic_master(**options)
