"""The description of a join for users: its plan, and how its memory budget is divided."""

from __future__ import annotations

from millrace.adaptive.adaptive_algorithm import AdaptiveAlgorithm
from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.word_list import in_words
from millrace.core.budget import MemoryBudget
from millrace.core.sizes import format_size


def explain_join(algorithm: AdaptiveAlgorithm, condition: str, budget: MemoryBudget, metrics: AdaptiveMetrics) -> str:
    """Return the plan of a join and the division of its memory budget, as readable text."""
    came = in_words(f"{rows:,} {name}" for name, rows in metrics.rows_in.items())
    lines = [
        f"{algorithm.name}: {algorithm.summary}",
        f"  {condition}, memory {format_size(budget.total)}",
        f"  {came} rows have arrived; {metrics.in_memory:,} are in memory, {metrics.on_disk:,} on disk",
    ]
    parts = sorted(budget.parts().items(), key=lambda item: -item[1])
    width = max(10, *(len(part) for part, _ in parts))
    for part, nbytes in parts:
        lines.append(f"  {part:>{width}} {format_size(nbytes):>10}  {nbytes / budget.total:6.1%}")
    lines.append(f"  {'free':>{width}} {format_size(budget.available):>10}")
    return "\n".join(lines)
