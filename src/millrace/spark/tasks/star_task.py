"""A task of ``enrich_star``: several joins in sequence; between them, rows are not shuffled and stay in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.output.output_columns import Batches
from millrace.semistream.star.chain import Chain
from millrace.spark import arrow_types as types
from millrace.spark.metrics.enrich_metrics import JoinMeter
from millrace.spark.metrics.metric_fields import metrics_row, with_metrics
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.state.soft_cache import keep_cache, recall_cache
from millrace.spark.tasks.task_join import stream_batches, task_join


def drain_star(plans: dict[str, EnrichPlan], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the rows of one task with one whole master after the other; yield the output, then a row of metrics."""
    every = list(plans.values())
    first, last = every[0], every[-1]
    joins: dict[str, SemiStreamJoin] = {}
    chain: MeteredChain | None = None
    for batch in stream_batches(first, batches):
        if chain is None:
            for name, plan in plans.items():
                joins[name] = task_join(plan, None)
                recall_cache(plan, joins[name], None)
            chain = MeteredChain(joins)
        for out in chain.push(batch):
            yield with_metrics(types.conform(out, last.sent_schema))
    if chain is None:
        return
    for out in chain.finish():
        yield with_metrics(types.conform(out, last.sent_schema))
    for name, plan in plans.items():
        keep_cache(plan, joins[name], None)
    yield metrics_row(last.sent_schema, chain.metrics_line())


class MeteredChain(Chain):
    """A chain of joins that measures how long each of them runs."""

    def __init__(self, joins: Mapping[str, SemiStreamJoin]) -> None:
        super().__init__(joins)
        self._meters = [JoinMeter(join, running=False) for join in self.joins]

    def metrics_line(self) -> str:
        """Return the metrics of all joins, in one line."""
        return " ".join(meter.metrics().line() for meter in self._meters)

    def _call(self, place: int, call: Callable[..., Batches], *arguments: Any) -> Batches:
        work, meter = super()._call(place, call, *arguments), self._meters[place]
        while True:
            meter.resume()
            batch = next(work, None)
            meter.pause()
            if batch is None:
                return
            yield batch
