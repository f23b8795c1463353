"""``enrich_star``: a DataFrame through several master stores under one budget.

Arms that need no shuffle (their store has one shard, or rows are looked up) and follow each other share a task; every
other arm is an ``enrich`` of its own::

    rows ─► [customers ─► parts] ─► shuffle ─► [suppliers] ─► rows
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError, one_of
from millrace.core.sizes import parse_size
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.star import arms as arms_of
from millrace.semistream.star.arm_shares import Need, need_of, split
from millrace.semistream.star.arms import Arm, naming
from millrace.spark import task_metrics as metrics
from millrace.spark.enrichment.auto_algorithm import decided
from millrace.spark.enrichment.enrich_planning import SPARKS_WORDS, enrich, planned
from millrace.spark.plans.enrich_plan import JoinPlan
from millrace.spark.transport.routing import quoted
from millrace.worker.shipping import shipped


def enrich_star(
    df: DataFrame,
    arms: Sequence[Any],
    *,
    memory: str | int = "256MB",
    pending: str = "drain",
    reorder: bool = True,
    turns: int = 2,
    scratch: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Join a DataFrame with several master stores.

    Parameters
    ----------
    df
        A streaming or batch DataFrame.
    arms
        The masters, each as a :class:`millrace.Arm`, a tuple ``(master, on, how)``, or a mapping of an arm's arguments.
        An arm's metrics are called ``"millrace "`` and its name.
    memory
        The budget of one executor, shared by the arms and their tasks: bytes, ``"256MB"``, or ``"1%"`` of all masters.
    pending
        As for :func:`enrich`. With ``"carry"``, arms whose rows are looked up drain all the same: nobody waits there.
    reorder
        Run the arms in the order in which they are cheapest, where that makes no difference to the output. Columns come
        out in the order given all the same.
    turns, scratch
        As for :func:`enrich`.

    Returns
    -------
    DataFrame
        The DataFrame's columns, then the arms' in the order given. The session's settings, views and cache are left
        alone.
    """
    one_of("pending", pending, ("drain", "carry"))
    if not isinstance(df, DataFrame):
        raise SchemaError(f"enrich_star: expected a DataFrame; got {type(df).__name__}")
    found = _read(arms, pending)
    names = arms_of.output_names(found, df.columns)
    order = arms_of.run_order(found, df.columns) if reorder else list(range(len(found)))
    running = [found[place] for place in order]
    total = parse_size(memory, of=sum(arm.store.nbytes for arm in running))
    steps = _steps(df, running, pending, scratch, total)
    for share, step in zip(split(total, [step.need for step in steps]), steps, strict=True):
        step.share = share
    out = df
    for stage in _stages(steps):
        out = _together(out, stage) if stage[0].stays else _alone(out, stage[0], pending, turns, scratch)
    return out if order == sorted(order) else out.select(*(F.col(quoted(name)) for name in names))


@dataclass
class _Step:
    """An arm as far as it is planned."""

    arm: Arm
    plan: JoinPlan
    fields: StructType
    """What comes out of it."""
    emitted: pa.Schema
    """The same in the engine's types."""
    stays: bool
    """Whether rows can be joined where they are."""
    tasks: int
    """How many share its memory."""
    need: Need
    share: int = 0

    @property
    def label(self) -> str:
        return f"{metrics.PREFIX} {self.arm.name}"


def _read(arms: Any, pending: str) -> list[Arm]:
    """The arms, Spark's words for kinds of join put into ours, and each with the algorithm that all workers run."""
    if isinstance(arms, list | tuple):
        every = [Arm.of(arm) for arm in arms]
        arms = [arm.with_how(SPARKS_WORDS.get(arm.how, arm.how)) for arm in every]
    found = arms_of.read(arms)
    for place, arm in enumerate(found):
        with naming(arm.name):
            waits = pending if arm.algorithm not in ALGORITHMS or not ALGORITHMS[arm.algorithm].at_once else "drain"
            found[place] = arm.with_algorithm(decided(arm.algorithm, arm.store, waits, arm.options).algorithm)
    return found


def _steps(
    df: DataFrame, arms: Sequence[Arm], pending: str, scratch: str | os.PathLike[str] | None, total: int
) -> list[_Step]:
    """Each arm with the least memory it takes, checked as far as it can be before the query runs."""
    steps: list[_Step] = []
    frame = df
    for arm in arms:
        stays = ALGORITHMS[arm.algorithm].at_once or (pending == "drain" and arm.store.shards == 1)
        with naming(arm.name):
            plan, fields, least = _least_plan(frame, arm, scratch)
            tasks = least // plan.memory
            if stays and steps and steps[-1].stays and _same_zones(steps[-1].emitted, plan):
                plan = replace(plan, stream=steps[-1].emitted.serialize().to_pybytes())
            join = _least_join(plan, None if stays or plan.shards == 1 else 0)
        label = f"{metrics.PREFIX} {arm.name}"
        if metrics.has(df, label):
            raise ConfigError(f"arm {arm.name!r}: the DataFrame has metrics called {label!r} already; use name=")
        need = need_of(str(arm.name), join, arm.fixed(total), tasks)
        steps.append(_Step(arm, plan, fields, join.output_schema, stays, tasks, need))
        frame = df.sparkSession.createDataFrame([], fields)
    return steps


def _least_plan(frame: DataFrame, arm: Arm, scratch: str | os.PathLike[str] | None) -> tuple[JoinPlan, StructType, int]:
    """The plan of an arm with the least memory, the fields that come out, and that memory."""
    least = 1
    while True:
        try:
            plan, fields = planned(
                frame,
                arm.store,
                arm.on,
                arm.how,
                arm.algorithm,
                least,
                arm.columns,
                arm.suffix,
                scratch,
                arm.options,
            )
        except BudgetTooSmallError as error:
            least = max(least + 1, error.minimum)
        else:
            return plan, fields, least


def _least_join(plan: JoinPlan, shard: int | None) -> SemiStreamJoin:
    """The join of a task with the least memory; the engine's types may take a little more than Spark's."""
    while True:
        try:
            return plan.join(shard)
        except BudgetTooSmallError as error:
            plan = replace(plan, memory=max(plan.memory + 1, error.minimum))


def _same_zones(emitted: pa.Schema, plan: JoinPlan) -> bool:
    """Whether keys come in the zone the master has them in, without a cast."""
    return not any(
        pa.types.is_timestamp(emitted.field(key).type) and emitted.field(key).type != plan.stream_schema.field(key).type
        for key in plan.on
    )


def _stages(steps: Sequence[_Step]) -> list[list[_Step]]:
    """Arms that follow each other and whose rows stay where they are go together."""
    stages: list[list[_Step]] = []
    for step in steps:
        before = stages[-1][-1] if stages else None
        if before and before.stays and step.stays and step.plan.stream_schema.equals(before.emitted):
            stages[-1].append(step)
        else:
            stages.append([step])
    return stages


def _together(df: DataFrame, steps: Sequence[_Step]) -> DataFrame:
    """Rows through several masters where they are."""
    plans = {str(step.arm.name): replace(step.plan, memory=step.share // step.tasks) for step in steps}
    sent = StructType([*steps[-1].fields, StructField(metrics.COLUMN, StringType())])
    out = df.mapInArrow(shipped("millrace.spark.tasks.star_task", "drain", plans), sent)
    for place, step in enumerate(steps):
        out = metrics.observed(out, step.label, step.plan.algorithm, place)
    return out.where(F.col(metrics.COLUMN).isNull()).drop(metrics.COLUMN)


def _alone(df: DataFrame, step: _Step, pending: str, turns: int, scratch: str | os.PathLike[str] | None) -> DataFrame:
    """Rows through one master, each where its shard is."""
    arm = step.arm
    with naming(arm.name):
        return enrich(
            df,
            arm.store,
            arm.on,
            arm.how,
            algorithm=arm.algorithm,
            memory=step.share,
            pending=pending,
            columns=arm.columns,
            suffix=arm.suffix,
            turns=turns,
            name=step.label,
            scratch=scratch,
            **arm.options,
        )
