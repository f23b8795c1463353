"""Plans the arms of ``enrich_star`` on the driver, splits memory between them, and groups those that share a task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from millrace.core.errors import ConfigError
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.sizing.arm_shares import Need, need_of, split
from millrace.semistream.star import arms as star_arms
from millrace.semistream.star.arms import Arm, naming
from millrace.spark.enrichment.auto_algorithm import choose_algorithm
from millrace.spark.enrichment.enrich_arguments import SPARK_JOIN_KINDS, enrich_plan, tasks_sharing_memory
from millrace.spark.metrics.metric_fields import PREFIX
from millrace.spark.metrics.observe import is_observed
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.tasks.task_join import least_task_memory, task_join


@dataclass(frozen=True)
class PlannedArm:
    """One arm of a star, with its plan and memory. An arm is the join with one of the masters."""

    arm: Arm
    plan: EnrichPlan
    fields: StructType
    """The columns of the arm's output, in Spark's types."""
    emitted: pa.Schema
    """The columns of the arm's output, in Arrow's types."""
    in_place: bool
    """Whether rows can be joined in the task that has them, without a shuffle."""
    tasks: int
    """Number of tasks that share the arm's memory."""
    need: Need
    memory: int = 0
    """Memory of the arm in one executor, in bytes."""

    @property
    def label(self) -> str:
        """The name of the arm's metrics."""
        return f"{PREFIX} {self.arm.name}"

    @property
    def task_plan(self) -> EnrichPlan:
        """The arm's plan, with the memory that one task gets."""
        return replace(self.plan, memory=self.memory // self.tasks)


def read_arms(arms: Any, pending: str) -> list[Arm]:
    """Return the arms of a star, with Millrace's names for kinds of join, and with an algorithm chosen for each arm."""
    if isinstance(arms, list | tuple):
        every = [Arm.of(arm) for arm in arms]
        arms = [arm.with_how(SPARK_JOIN_KINDS.get(arm.how, arm.how)) for arm in every]
    found = star_arms.read(arms)
    for place, arm in enumerate(found):
        with naming(arm.name):
            waits = pending if arm.algorithm not in ALGORITHMS or not ALGORITHMS[arm.algorithm].at_once else "drain"
            algorithm = choose_algorithm(arm.algorithm, arm.store, waits, arm.options).algorithm
            found[place] = arm.with_algorithm(algorithm)
    return found


def plan_arms(
    df: DataFrame, arms: Sequence[Arm], pending: str, scratch: str | os.PathLike[str] | None, total: int
) -> list[PlannedArm]:
    """Check and plan every arm before the query runs, and split ``total`` bytes of memory between them."""
    planned: list[PlannedArm] = []
    frame = df
    for arm in arms:
        before = planned[-1] if planned else None
        planned.append(_planned_arm(frame, arm, before, pending, scratch, total))
        if is_observed(df, planned[-1].label):
            label = planned[-1].label
            raise ConfigError(
                f"arm {arm.name!r}: the DataFrame already has metrics named {label!r}; give the arm another name=…"
            )
        frame = df.sparkSession.createDataFrame([], planned[-1].fields)
    shares = split(total, [each.need for each in planned])
    return [replace(each, memory=memory) for each, memory in zip(planned, shares, strict=True)]


def task_groups(planned: Sequence[PlannedArm]) -> list[list[PlannedArm]]:
    """Group consecutive arms that can share a task, because rows need neither a shuffle nor a cast between them."""
    groups: list[list[PlannedArm]] = []
    for each in planned:
        before = groups[-1][-1] if groups else None
        if before and before.in_place and each.in_place and each.plan.stream_schema.equals(before.emitted):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _planned_arm(
    frame: DataFrame,
    arm: Arm,
    before: PlannedArm | None,
    pending: str,
    scratch: str | os.PathLike[str] | None,
    total: int,
) -> PlannedArm:
    """Plan an arm, with the least memory that it can work with; ``before`` is the arm that runs before it."""
    in_place = ALGORITHMS[arm.algorithm].at_once or (pending == "drain" and arm.store.shards == 1)
    with naming(arm.name):
        plan, fields = enrich_plan(
            frame, arm.store, arm.on, arm.how, arm.algorithm, None, arm.columns, arm.suffix, scratch, arm.options
        )
        if in_place and before and before.in_place and _needs_no_cast(before.emitted, plan):
            plan = replace(plan, stream=before.emitted.serialize().to_pybytes())
        shard = None if in_place or plan.shards == 1 else 0
        least = least_task_memory(plan, shard)  # more than in the plan if the stream's types were changed above
        join = task_join(replace(plan, memory=max(plan.memory, least)), shard)
    tasks = tasks_sharing_memory(frame, arm.store)
    need = need_of(str(arm.name), join, arm.fixed(total), tasks)
    return PlannedArm(arm, plan, fields, join.output_schema, in_place, tasks, need)


def _needs_no_cast(emitted: pa.Schema, plan: EnrichPlan) -> bool:
    """Return whether key timestamps in the output of the previous arm already have the type that this plan needs."""
    return not any(
        pa.types.is_timestamp(emitted.field(key).type) and emitted.field(key).type != plan.stream_schema.field(key).type
        for key in plan.on
    )
