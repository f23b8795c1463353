from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.core.errors import ConfigError
from millrace.datasets.adaptive_inputs import (
    chain_inputs,
    drifting_normal,
    normal_values,
    partially_sorted,
    star_inputs,
    stock_orders,
    weather_stations,
    wide_tuples,
    zipf_values,
)
from millrace.datasets.arrival_times import with_stalls


@pytest.mark.parametrize("skew", [1, 3, 5])
def test_zipf_values_fall_with_their_rank(skew: int) -> None:
    values = zipf_values(50_000, skew, seed=1)
    counts = np.bincount(values, minlength=1000)
    weights = np.arange(1, 1000, dtype=float) ** -skew
    assert values.min() == 1
    assert values.max() <= 999
    assert counts[1:6] / 50_000 == pytest.approx(weights[:5] / weights.sum(), abs=0.01)


def test_shuffled_zipf_values_agree_on_what_is_frequent() -> None:
    one, other = (zipf_values(20_000, 1.5, low=-5, high=494, shuffle=7, seed=seed) for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert min(one.min(), other.min()) >= -5
    assert max(one.max(), other.max()) <= 494
    top = [set(np.argsort(np.bincount(values + 5, minlength=500))[-3:].tolist()) for values in (one, other)]
    assert top[0] == top[1]
    assert top[0] != {0, 1, 2}


def test_normal_values() -> None:
    values = normal_values(100_000, 520, 80, seed=1)
    assert values.mean() == pytest.approx(520, abs=0.2)
    assert values.var() == pytest.approx(80, rel=0.02)
    assert not np.array_equal(values, normal_values(100_000, 520, 80, seed=2))


@pytest.mark.parametrize("intervals", [1, 7, 100])
def test_partially_sorted_values_are_sorted_inside_intervals(intervals: int) -> None:
    values = zipf_values(1000, 1.0)
    partly = partially_sorted(values, intervals, seed=4)
    assert np.array_equal(np.sort(partly), np.sort(values))
    assert (np.diff(partly) < 0).sum() <= intervals - 1
    assert (np.diff(partly) < 0).sum() >= intervals // 4
    assert not np.array_equal(partly, values)


def test_the_mean_moves_from_period_to_period() -> None:
    values = drifting_normal(100_000, 20, seed=3)
    for period in range(10):
        part = values[period * 10_000 : (period + 1) * 10_000]
        assert part.mean() == pytest.approx(75 + 20 * period, abs=0.3)
        assert part.var() == pytest.approx(15, rel=0.1)


def test_periods_follow_the_times_of_arrival() -> None:
    times = with_stalls(np.arange(1, 1001) / 100, 300, fragments=2)  # 5 s, a stall of 15 s, 5 s
    values = drifting_normal(1000, 1000, periods=5, times=times, variance=0)
    assert values.tolist() == [75] * 500 + [75 + 4000] * 500
    assert len(drifting_normal(0, 5)) == 0


def test_tuples_take_200_bytes() -> None:
    table = wide_tuples({"key": zipf_values(500, 1.0)}, seed=1)
    assert table.schema == pa.schema([("key", pa.int64()), ("row", pa.int64()), ("filler", pa.string())])
    table.validate(full=True)
    assert table["row"].to_pylist() == list(range(500))
    assert pc.unique(pc.utf8_length(table["filler"])).to_pylist() == [184]
    assert pc.count_distinct(table["filler"]).as_py() == 500
    bare = wide_tuples({"key": np.arange(3)}, tuple_bytes=16)
    assert bare["filler"].to_pylist() == ["", "", ""]
    assert wide_tuples({"key": np.arange(0)}).num_rows == 0


@pytest.mark.parametrize(
    ("inputs", "names"), [(2, ["R2", "R3"]), (3, ["R1", "R2", "R3"]), (4, ["R1", "R2", "R3", "R4"])]
)
def test_more_inputs_of_the_chain_keep_the_number_of_results(inputs: int, names: list[str]) -> None:
    tables = chain_inputs(inputs, rows=2000, keys=500, seed=6)
    assert list(tables) == names
    joined = tables["R2"].join(tables["R3"], "a2", join_type="inner", right_suffix="_3")
    pairs = joined.num_rows
    if inputs > 2:
        joined = joined.join(tables["R1"], "a1", join_type="inner", right_suffix="_1")
    if inputs > 3:
        joined = joined.join(tables["R4"], "a3", join_type="inner", right_suffix="_4")
    assert joined.num_rows == pairs > 0
    for name in set(names) & {"R1", "R4"}:
        keys = tables[name].column(0).to_numpy()
        assert np.array_equal(np.sort(keys), np.arange(500))
        assert not np.array_equal(keys, np.arange(500))
    for name in ("R2", "R3"):
        first, second = (tables[name].column(i).to_numpy() for i in (0, 1))
        assert np.bincount(first).argmax() == np.bincount(second).argmax() == 0
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_the_star_has_one_attribute() -> None:
    tables = star_inputs(rows=1000, keys=50, shuffle=1)
    assert [table.column_names[0] for table in tables.values()] == ["a"] * 4
    assert [table.num_rows for table in tables.values()] == [50, 1000, 1000, 50]
    most = [int(np.bincount(tables[name]["a"].to_numpy()).argmax()) for name in ("R2", "R3")]
    assert most[0] == most[1] != 0


def test_stock_orders_have_the_documented_shape() -> None:
    orders = stock_orders(seed=2)
    assert {name: table.num_rows for name, table in orders.items()} == {"buy": 10_355, "sell": 10_355}
    buy, sell = (orders[name]["price"].to_numpy() for name in ("buy", "sell"))
    assert sell.mean() - buy.mean() == pytest.approx(6, abs=0.5)
    assert buy.max() <= 2060
    assert sell.min() >= 1940
    assert len(np.intersect1d(buy, sell)) > 20
    assert np.abs(np.diff(buy)).mean() < 6, "a walk, not independent draws"
    assert not orders["buy"].equals(stock_orders(seed=3)["buy"])


def test_weather_has_the_documented_shape() -> None:
    stations = weather_stations(3 * 8766, seed=1)
    north, south = (stations[name]["temperature"].to_numpy().astype(float) for name in ("north", "south"))
    assert south.mean() - north.mean() == pytest.approx(3, abs=0.2)
    assert np.corrcoef(north, south)[0, 1] > 0.9
    years = south.reshape(3, -1).mean(axis=0)
    assert years[4000:4800].mean() - years[:400].mean() > 25, "summers and winters"
    hours = south[: 24 * 1000].reshape(-1, 24).mean(axis=0)
    assert hours.max() - hours.min() == pytest.approx(16, abs=1)
    assert {table.num_rows for table in weather_stations(50).values()} == {50}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: chain_inputs(5), "inputs: expected a whole number from 2 to 4; got 5"),
        (lambda: star_inputs(1), "inputs: expected a whole number from 2 to 4; got 1"),
        (lambda: normal_values(5, variance=-1), "variance: expected a number of at least 0; got -1"),
        (lambda: drifting_normal(5, 1, times=[1.0]), r"times: expected 5 times, one for each tuple; got shape \(1,\)"),
        (lambda: partially_sorted(np.arange(3), 0), "intervals: expected a whole number of at least 1; got 0"),
        (lambda: wide_tuples({"k": np.arange(3)}, tuple_bytes=10), "tuple_bytes: expected at least 16, .*; got 10"),
        (lambda: stock_orders(1), "total: expected a whole number of at least 2; got 1"),
    ],
)
def test_bad_options_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
