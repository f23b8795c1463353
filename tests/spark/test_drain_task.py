"""One task of drain without Spark: what it keeps for the tasks of later micro-batches."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millrace.datasets import synthetic_master, zipf_stream
from millrace.master.store import MasterStore
from millrace.semistream.join import SemiStreamJoin
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.tasks.drain_task import DrainTask

ROWS = 4_000


def _plan(store: MasterStore, schema: pa.Schema, scratch: Path) -> EnrichPlan:
    sent = SemiStreamJoin(store, "key", memory=60_000).bind(schema)
    return EnrichPlan(
        path=str(store.path),
        snapshot=store.manifest.snapshot,
        shards=1,
        on={"key": "key"},
        key_types=("bigint",),
        how="inner",
        algorithm="sscj",
        memory=60_000,
        columns=None,
        suffix=None,
        options={"b": 50},
        stream=schema.serialize().to_pybytes(),
        sent=sent.serialize().to_pybytes(),
        scratch=str(scratch),
    )


def test_a_task_begins_with_the_cache_that_an_earlier_one_kept(tmp_path: Path) -> None:
    store = MasterStore.build(synthetic_master(ROWS), tmp_path / "store", key="key")
    batches = list(zipf_stream(ROWS, 1.2, batch_rows=2_000, batches=4, seed=5))

    def hits(scratch: Path, several: list[pa.RecordBatch]) -> int:
        task = DrainTask(_plan(store, batches[0].schema, scratch))
        assert sum(len(out) for out in task.rows(iter(several))) == sum(map(len, several))
        assert task.metrics is not None
        return task.metrics.cache_hits

    hits(tmp_path / "one", batches[:3])
    warm, cold = hits(tmp_path / "one", batches[3:]), hits(tmp_path / "other", batches[3:])
    assert warm > cold + 100
