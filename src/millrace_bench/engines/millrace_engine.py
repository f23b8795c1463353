"""Millrace as an engine: with a given algorithm, or with ``auto``, which may use the master's index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.core.sizes import format_size
from millrace.datasets import zipf_stream
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.engines.batch_engine import BatchEngine, MasterFiles


class Millrace(BatchEngine):
    """An engine that joins with :class:`SemiStreamJoin`; ``algorithm`` is the name of an algorithm, or ``auto``."""

    def __init__(self, files: MasterFiles, algorithm: str) -> None:
        super().__init__(files)
        self._algorithm = algorithm
        self._steps = 0

    def prepare(self) -> Sequence[Path]:
        return [path for path in self.files.store().path.rglob("*") if path.is_file()]

    def _join(self, memory: str | int) -> SemiStreamJoin:
        return SemiStreamJoin(self.files.store(), on="key", algorithm=self._algorithm, memory=memory)

    def load(self) -> None:
        warm = self._join(max(400_000, self.files.store().nbytes // 2000))
        for batch in zipf_stream(self.files.rows, 1.0, batch_rows=20_000, batches=3, seed=3):
            for _ in warm.push(batch):
                continue
        for _ in warm.finish():
            continue

    def open(self) -> None:
        self._running = self._join(max(400_000, self.files.budget))

    def join(self, batch: pa.RecordBatch) -> Iterable[Any]:
        return self._running.push(batch)

    def whole(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        alone = self._join(self._running.budget.total)
        yield from alone.push(batch)
        yield from alone.finish()

    def settled(self) -> bool:
        join = self._running
        index = "found through the index" if join.algorithm.at_once else "no index used"
        self.settings = {
            "algorithm": join.algorithm.name + (" (auto)" if self._algorithm == "auto" else ""),
            "memory": format_size(join.budget.total),
            "master": f"store, {index}",
        }
        self._steps = join.metrics.steps
        return True

    def latency(self, durations: Sequence[float], share: float) -> float:
        """Return the quantile ``share`` of the seconds per call plus, if tuples wait, the same quantile of their waits.

        Waits are counted in steps and converted to seconds by the mean time of a step.
        """
        metrics = self._running.metrics
        steps = metrics.steps - self._steps
        waited = 0.0
        if steps and not self._running.algorithm.at_once:
            waited = metrics.waits.quantile(share) * sum(durations) / steps
        return super().latency(durations, share) + waited
