"""Several joins in one task, one behind the other: no shuffle and no way through Java between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.output.output_columns import Batches
from millrace.semistream.star.chain import Chain
from millrace.spark import arrow_types as types
from millrace.spark.enrich.join_plan import JoinPlan
from millrace.spark.task_metrics import Meter, metrics_row, with_metrics


def drain(plans: dict[str, JoinPlan], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take the rows of one task through the masters, each as a whole. Runs in a Python worker."""
    every = list(plans.values())
    first, last = every[0], every[-1]
    joins: dict[str, SemiStreamJoin] = {}
    chain: MeteredChain | None = None
    for batch in first.arriving(batches):
        if chain is None:
            for name, plan in plans.items():
                joins[name] = plan.join(None)
                plan.recall(joins[name], None)
            chain = MeteredChain(joins)
        for out in chain.push(batch):
            yield with_metrics(types.conform(out, last.sent_schema))
    if chain is None:
        return
    for out in chain.finish():
        yield with_metrics(types.conform(out, last.sent_schema))
    for name, plan in plans.items():
        plan.keep(joins[name], None)
    yield metrics_row(last.sent_schema, chain.numbers())


class MeteredChain(Chain):
    """A chain that knows how long each of its joins was at work."""

    def __init__(self, joins: Mapping[str, SemiStreamJoin]) -> None:
        super().__init__(joins)
        self._meters = [Meter(join) for join in self.joins]
        self._busy = [0.0] * len(self.joins)

    def numbers(self) -> list[float]:
        """The metrics of all joins, one after the other."""
        numbers: list[float] = []
        for meter, busy in zip(self._meters, self._busy, strict=True):
            meter.away = time.perf_counter() - meter.began - busy
            numbers += meter.numbers()
        return numbers

    def _call(self, place: int, call: Callable[..., Batches], *arguments: Any) -> Batches:
        work = super()._call(place, call, *arguments)
        while True:
            began = time.perf_counter()
            batch = next(work, None)
            self._busy[place] += time.perf_counter() - began
            if batch is None:
                return
            yield batch
