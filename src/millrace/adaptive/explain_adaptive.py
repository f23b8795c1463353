"""What a join is going to do, and how it splits its budget, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.core.sizes import format_size

if TYPE_CHECKING:
    from millrace.adaptive.lifecycle import AdaptiveJoin


def explained(join: AdaptiveJoin) -> str:
    """The plan and the split of the budget, to read."""
    budget, m = join.budget, join.metrics
    came = listed(f"{rows:,} {name}" for name, rows in m.rows_in.items())
    lines = [
        f"{join.algorithm.name}: {join.algorithm.summary}",
        f"  {join.condition}, memory {format_size(budget.total)}",
        f"  {came} rows came; {m.in_memory:,} are in memory, {m.on_disk:,} on disk",
    ]
    parts = sorted(budget.parts().items(), key=lambda item: -item[1])
    width = max(10, *(len(part) for part, _ in parts))
    for part, nbytes in parts:
        lines.append(f"  {part:>{width}} {format_size(nbytes):>10}  {nbytes / budget.total:6.1%}")
    lines.append(f"  {'free':>{width}} {format_size(budget.available):>10}")
    return "\n".join(lines)


def listed(words: Iterable[str]) -> str:
    """Words as one says them.

    >>> listed(["left", "right"]), listed(["a", "b", "c"])
    ('left and right', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
