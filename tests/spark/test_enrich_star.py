"""``enrich_star`` gives what Spark's own joins give, one after the other, for streams and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from streams import KINDS, run_to_parquet, same_rows

from millrace import Arm
from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError
from millrace.master.store import MasterStore
from millrace.spark import enrich, enrich_star
from millrace.spark.watch import observed

pytestmark = pytest.mark.sampled(4)

ROWS, FILES = 1_000, 2
STREAM = "cust long, part int, supplier string, sid long"
MEMORY = "2MB"


def _masters(spark: SparkSession) -> dict[str, tuple[DataFrame, str]]:
    return {
        "customers": (
            spark.range(0, 900).selectExpr("id as custkey", "concat('c', id) as name", "id % 11 as nation"),
            "custkey",
        ),
        "parts": (
            spark.range(0, 600).selectExpr("id % 300 as partkey", "concat('brand ', id) as brand", "id as size"),
            "partkey",
        ),
        "suppliers": (spark.range(0, 50).selectExpr("concat('s', id) as code", "id * 2 as rating"), "code"),
        "nations": (spark.range(0, 9).selectExpr("id as nation", "concat('land ', id) as land"), "nation"),
    }


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stream, and stores of one and three shards."""
    root = tmp_path_factory.mktemp("star")
    (root / "in").mkdir()
    rng = np.random.default_rng(7)
    for number in range(FILES):
        rows = np.arange(ROWS)
        table = pa.table(
            {
                "cust": pa.array(rng.zipf(1.3, ROWS) % 1_000, mask=rows % 17 == 3),
                "part": pa.array(rng.integers(0, 330, ROWS).astype(np.int32), mask=rows % 13 == 1),
                "supplier": pa.array([f"s{i}" for i in rng.integers(0, 70, ROWS)], mask=rows % 11 == 2),
                "sid": rows + number * ROWS,
            }
        )
        pq.write_table(table, root / "in" / f"{number:04d}.parquet")
    for name, (frame, key) in _masters(spark).items():
        for shards in (1, 3):
            MasterStore.build(frame.toArrow(), root / f"{shards}" / name, key, shards=shards)
    return root


def _arms(place: Path, hows: tuple[str, str, str], shards: tuple[int, int, int], **options: str) -> list[Arm]:
    keys = {"customers": {"cust": "custkey"}, "parts": {"part": "partkey"}, "suppliers": {"supplier": "code"}}
    return [
        Arm(place / f"{count}" / name, on, how, **{"algorithm": "ssbj", **options})
        for (name, on), how, count in zip(keys.items(), hows, shards, strict=True)
    ]


def _joined(spark: SparkSession, stream: DataFrame, arms: list[Arm]) -> DataFrame:
    """The same by Spark's own joins."""
    masters = _masters(spark)
    for arm in arms:
        master, key = masters[arm.store.path.name]
        ours = arm.spec.stream_key[0]
        stream = stream.join(master, stream[ours] == master[key], KINDS[arm.how])
        if arm.spec.emits_master:
            stream = stream.drop(master[key])
    return stream


def _batch(spark: SparkSession, place: Path) -> DataFrame:
    return spark.read.schema(STREAM).parquet(str(place / "in"))


def _streamed(spark: SparkSession, place: Path) -> DataFrame:
    return spark.readStream.schema(STREAM).option("maxFilesPerTrigger", 1).parquet(str(place / "in"))


def _workers(df: DataFrame) -> int:
    """How often rows go to Python and back."""
    return df._jdf.queryExecution().executedPlan().toString().count("MapInArrow ")  # type: ignore[no-any-return]


def _shuffles(df: DataFrame) -> int:
    return df._jdf.queryExecution().executedPlan().toString().count("Exchange ")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("hows", "shards"),
    [
        (("inner", "left", "anti"), (1, 1, 1)),
        (("left", "semi", "inner"), (3, 3, 3)),
        (("anti", "inner", "left"), (1, 3, 1)),
    ],
)
def test_a_batch_frame(
    spark: SparkSession, place: Path, hows: tuple[str, str, str], shards: tuple[int, int, int]
) -> None:
    stream, arms = _batch(spark, place), _arms(place, hows, shards)
    out = enrich_star(stream, arms, memory=MEMORY)
    expected = _joined(spark, stream, arms)
    assert out.columns == expected.columns
    same_rows(out, expected)


@pytest.mark.parametrize("shards", [(1, 1, 1), (3, 1, 3)])
def test_a_stream(spark: SparkSession, place: Path, tmp_path: Path, shards: tuple[int, int, int]) -> None:
    arms = _arms(place, ("inner", "left", "anti"), shards)
    out = enrich_star(_streamed(spark, place), arms, memory=MEMORY)
    query = run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=False, rows=ROWS * FILES)
    expected = _joined(spark, _batch(spark, place), arms)
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)
    told = [observed(progress) for progress in query.recentProgress]
    assert _total(told, "suppliers", "tuples_in") == ROWS * FILES, "the arm that drops comes first"
    assert _total(told, "suppliers", "rows_out") == _total(told, "customers", "tuples_in")
    assert _total(told, "customers", "rows_out") == _total(told, "parts", "tuples_in")
    assert _total(told, "parts", "rows_out") == expected.count()
    for each in told:
        assert list(each) == ["millrace customers", "millrace parts", "millrace suppliers"]
        assert all((m["memory_bytes"] or 0) <= (m["budget_bytes"] or 0) for m in each.values())
        if shards == (1, 1, 1):  # no more tasks than run at a time
            assert sum(m["budget_bytes"] or 0 for m in each.values()) <= 2_000_000


def _total(told: list[dict[str, dict[str, Any]]], arm: str, number: str) -> int:
    return sum(each[f"millrace {arm}"][number] or 0 for each in told if f"millrace {arm}" in each)


@pytest.mark.thorough
def test_tuples_wait_across_micro_batches_in_every_arm(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    """Two arms carry, one shard and several; the third looks up, where nobody waits."""
    arms = _arms(place, ("inner", "left", "anti"), (3, 1, 3))
    arms[2] = Arm(arms[2].store, arms[2].on, "anti", algorithm="lookup")
    out = enrich_star(_streamed(spark, place), arms, memory=MEMORY, pending="carry", turns=2)
    query = run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=True, rows=ROWS * FILES, patience=400)
    expected = _joined(spark, _batch(spark, place), arms)
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)
    told = [observed(progress) for progress in query.recentProgress]
    for arm in ("customers", "parts"):
        assert _total(told, arm, "waiting") > 0, "somebody waits from one batch to the next"
    assert _total(told, "suppliers", "waiting") == 0
    assert _total(told, "parts", "rows_out") == expected.count()
    with pytest.raises(ConfigError, match="arm 'customers': pending: 'carry' needs an algorithm"):
        enrich_star(_streamed(spark, place), _arms(place, ("inner",) * 3, (3, 3, 3), algorithm="sscj"), pending="carry")


def test_arms_without_a_shuffle_share_a_task(spark: SparkSession, place: Path) -> None:
    stream = _batch(spark, place)
    whole = enrich_star(stream, _arms(place, ("left", "left", "left"), (1, 1, 1)), memory=MEMORY)
    assert (_workers(whole), _shuffles(whole)) == (1, 0)
    sharded = enrich_star(stream, _arms(place, ("left", "left", "left"), (3, 1, 1)), memory=MEMORY, reorder=False)
    assert (_workers(sharded), _shuffles(sharded)) == (2, 1)
    arms = _arms(place, ("inner", "left", "anti"), (3, 3, 3), algorithm="lookup")
    looked_up = enrich_star(stream, arms, memory=MEMORY)
    assert (_workers(looked_up), _shuffles(looked_up)) == (1, 0), "looked up where the rows are"
    same_rows(looked_up, _joined(spark, stream, arms))


def test_a_snowflake(spark: SparkSession, place: Path) -> None:
    stream = _batch(spark, place)
    arms = [
        Arm(place / "3" / "customers", {"cust": "custkey"}, "left_outer"),
        Arm(place / "1" / "nations", "nation", "left"),
        Arm(place / "1" / "suppliers", {"supplier": "code"}, "leftanti"),
    ]
    masters = _masters(spark)
    customers, nations, suppliers = (masters[name][0] for name in ("customers", "nations", "suppliers"))
    expected = (
        stream.join(customers, stream.cust == customers.custkey, "left")
        .drop("custkey")
        .join(nations, "nation", "left")
        .join(suppliers, stream.supplier == suppliers.code, "left_anti")
    )
    out = stream.transform(enrich_star, arms, memory=MEMORY)
    assert out.columns == ["cust", "part", "supplier", "sid", "name", "nation", "land"]
    same_rows(out, expected)


def test_keys_in_another_zone_than_the_streams(spark: SparkSession, tmp_path: Path) -> None:
    days = pa.array(range(0, 10**9, 10**8), pa.timestamp("us", "Europe/Berlin"))
    MasterStore.build(pa.table({"day": days, "n": range(10)}), tmp_path / "days", "day")
    MasterStore.build(
        pa.table(
            {
                "id": range(10),
                "at": days.cast(pa.timestamp("us", "UTC")),
                "text": pa.array(["x"] * 10, pa.large_string()),
            }
        ),
        tmp_path / "things",
        "id",
    )
    stream = spark.range(12)
    out = enrich_star(stream, [(tmp_path / "things", "id", "left"), (tmp_path / "days", {"at": "day"}, "left")])
    assert sorted((row.id, row.n) for row in out.where("n is not null").collect()) == [(i, i) for i in range(10)]
    assert out.count() == 12


def test_what_is_refused(spark: SparkSession, place: Path) -> None:
    stream = _batch(spark, place)
    customers = Arm(place / "1" / "customers", {"cust": "custkey"})

    def refused(*arms: object, memory: str | int = MEMORY, **more: str) -> None:
        enrich_star(stream, arms, memory=memory, **more)  # type: ignore[arg-type]

    with pytest.raises(SchemaError, match="arm 'again': output: arm 'customers on cust' has a column 'name' already"):
        refused(customers, Arm(place / "1" / "customers", {"cust": "custkey"}, name="again"))
    with pytest.raises(SchemaError, match="arm 'parts': on: neither the stream nor an earlier arm has a column 'nix'"):
        refused(customers, (place / "1" / "parts", {"nix": "partkey"}))
    with pytest.raises(SchemaError, match="arm 'parts': stream: key column 'supplier' is string"):
        refused(customers, (place / "1" / "parts", {"supplier": "partkey"}))
    with pytest.raises(ConfigError, match="arm 'customers': w: not an option on Spark"):
        refused(Arm(place / "1" / "customers", {"cust": "custkey"}, w=3))
    with pytest.raises(ConfigError, match="arm 'customers': how: expected one of"):
        refused((place / "1" / "customers", {"cust": "custkey"}, "outer"))
    with pytest.raises(BudgetTooSmallError, match=r"memory: 9\.0 kB is too little for 2 arms") as small:
        refused(customers, (place / "3" / "parts", {"part": "partkey"}), memory="9kB")
    least = small.value.minimum
    enrich_star(stream, [customers, (place / "3" / "parts", {"part": "partkey"})], memory=least)
    with pytest.raises(BudgetTooSmallError):
        refused(customers, (place / "3" / "parts", {"part": "partkey"}), memory=least - 1)
    with pytest.raises(ConfigError, match="pending: expected one of"):
        refused(customers, pending="later")
    with pytest.raises(ConfigError, match="arm 'customers': pending: expected 'drain' for a batch; got 'carry'"):
        refused(customers, pending="carry")
    with pytest.raises(ConfigError, match="arms: expected"):
        refused()
    with pytest.raises(SchemaError, match="expected a DataFrame; got list"):
        enrich_star([], [customers])  # type: ignore[arg-type]
    before = enrich(stream, place / "1" / "customers", {"cust": "custkey"}, columns=[])
    with pytest.raises(ConfigError, match="arm 'customers': the DataFrame already has metrics named 'millrace "):
        enrich_star(before, [customers])


def test_a_share_is_kept(spark: SparkSession, place: Path) -> None:
    stream, arms = _batch(spark, place), _arms(place, ("left", "left", "left"), (1, 3, 1))
    arms[1].share = "50%"
    assert arms[1].fixed(2_000_000) == 1_000_000
    same_rows(enrich_star(stream, arms, memory=MEMORY), _joined(spark, stream, arms))
