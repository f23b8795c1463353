"""``enrich_star``: a DataFrame joined with several master stores under one budget.

An arm is the join with one of the stores. Consecutive arms that need no shuffle (the store has one shard, or its rows
are looked up through an index) share a task; every other arm is an ``enrich`` of its own::

    rows ─► [customers ─► parts] ─► shuffle ─► [suppliers] ─► rows
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.core.errors import SchemaError, one_of
from millrace.core.sizes import parse_size
from millrace.semistream.star import arms as star_arms
from millrace.semistream.star.arms import naming
from millrace.spark.enrich import enrich
from millrace.spark.enrichment.drain_query import drain_through
from millrace.spark.enrichment.planned_arms import PlannedArm, plan_arms, read_arms, task_groups
from millrace.spark.transport.routing import quoted


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
        The masters, each as a :class:`millrace.Arm`, a tuple ``(master, on, how)``, or a mapping with the arguments
        of an arm. The metrics of an arm are named ``"millrace "`` followed by its name.
    memory
        The budget of one executor, shared by the arms and their tasks: a number of bytes, or text such as ``"256MB"``
        or ``"1%"`` (of all masters together).
    pending
        As for :func:`enrich`. Even with ``"carry"``, no rows wait in arms that look master rows up through an index.
    reorder
        Whether to run the arms in the cheapest order that gives the same rows. In any case, the output's columns are in
        the order in which the arms were given.
    turns, scratch
        As for :func:`enrich`.

    Returns
    -------
    DataFrame
        The DataFrame's columns, then the columns of the arms in the order in which the arms were given. The session's
        settings, views and cache are not changed.
    """
    one_of("pending", pending, ("drain", "carry"))
    if not isinstance(df, DataFrame):
        raise SchemaError(f"enrich_star: expected a DataFrame; got {type(df).__name__}")
    found = read_arms(arms, pending)
    names = star_arms.output_names(found, df.columns)
    order = star_arms.run_order(found, df.columns) if reorder else list(range(len(found)))
    running = [found[place] for place in order]
    total = parse_size(memory, of=sum(arm.store.nbytes for arm in running))
    out = df
    for group in task_groups(plan_arms(df, running, pending, scratch, total)):
        out = _in_one_task(out, group) if group[0].in_place else _alone(out, group[0], pending, turns, scratch)
    return out if order == sorted(order) else out.select(*(F.col(quoted(name)) for name in names))


def _in_one_task(df: DataFrame, group: Sequence[PlannedArm]) -> DataFrame:
    """Return the DataFrame joined with the masters of a group of arms, in one task and without a shuffle."""
    plans = {str(each.arm.name): each.task_plan for each in group}
    return drain_through(df, plans, group[-1].fields, [each.label for each in group])


def _alone(
    df: DataFrame, planned: PlannedArm, pending: str, turns: int, scratch: str | os.PathLike[str] | None
) -> DataFrame:
    """Return the DataFrame joined with one master, by an ``enrich`` of its own, which routes each row to its shard."""
    arm = planned.arm
    with naming(arm.name):
        return enrich(
            df,
            arm.store,
            arm.on,
            arm.how,
            algorithm=arm.algorithm,
            memory=planned.memory,
            pending=pending,
            columns=arm.columns,
            suffix=arm.suffix,
            turns=turns,
            name=planned.label,
            scratch=scratch,
            **arm.options,
        )
