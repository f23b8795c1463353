"""``explain``: a description of what ``enrich`` would do with the same arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from millrace.core.sizes import format_size, parse_size
from millrace.core.spec import On
from millrace.master.store import MasterStore
from millrace.semistream.arguments import AUTO
from millrace.semistream.conditions.condition import Condition
from millrace.spark.enrichment.auto_algorithm import choose_algorithm
from millrace.spark.enrichment.carry_query import check_turns
from millrace.spark.enrichment.enrich_arguments import enrich_plan, open_store, with_condition
from millrace.spark.tasks.task_join import task_join


def explain(
    df: DataFrame,
    master: str | os.PathLike[str] | MasterStore,
    on: On,
    how: str = "inner",
    *,
    algorithm: str = AUTO,
    memory: str | int = "256MB",
    pending: str = "drain",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    where: Condition | None = None,
    turns: int = 2,
    **options: Any,
) -> str:
    """Return a text that says what :func:`enrich` would do: the algorithm it would run and why, and how one task joins.

    The arguments are those of :func:`enrich`, and wrong ones raise the same errors. No query runs.
    """
    store = open_store(df, master, pending)
    options = {name: value for name, value in options.items() if name not in ("name", "scratch")}
    options = with_condition(options, where, pending)
    chosen = choose_algorithm(algorithm, store, pending, options)
    plan, _ = enrich_plan(df, store, on, how, chosen.algorithm, memory, columns, suffix, None, options)
    join = task_join(plan, 0 if plan.shards > 1 else None, check_turns(turns) if pending == "carry" else 1)
    total = parse_size(memory, of=store.nbytes)
    part = (
        f"shard 0 of {plan.shards}, where {store.shard(0).rows:,} of {store.rows:,} rows are" if plan.shards > 1 else ""
    )
    lines = [
        f"{chosen.algorithm} on the driver and in all workers, because {chosen.why}",
        f"  {_PENDING[pending]}",
        f"  memory {format_size(total)} per executor, {format_size(plan.memory)} per task",
        f"the join of a task{f' with {part}' if part else ''}:",
        *(f"  {line}" for line in join.explain().splitlines()),
    ]
    return "\n".join(lines)


_PENDING = {
    "drain": "every micro-batch is completed before it ends; a query that is started again chooses again",
    "carry": "tuples may wait for later micro-batches in the state of the query, which keeps this algorithm",
}
