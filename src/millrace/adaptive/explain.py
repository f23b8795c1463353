"""What a join is going to do, and how it splits its budget, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.core.sizes import format_size

if TYPE_CHECKING:
    from millrace.adaptive.join import StreamJoin


def explained(join: StreamJoin) -> str:
    """The plan and the split of the budget, to read."""
    spec, budget, m = join.spec, join.budget, join.metrics
    keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in zip(*spec.keys, strict=True))
    lines = [
        f"{join.algorithm.name}: {join.algorithm.summary}",
        f"  {spec.how} join on {keys}{' within a band' if spec.ranged else ''}, memory {format_size(budget.total)}",
        f"  {m.left_in:,} left and {m.right_in:,} right rows came; "
        f"{m.in_memory:,} are in memory, {m.on_disk:,} on disk",
    ]
    for part, nbytes in sorted(budget.parts().items(), key=lambda item: -item[1]):
        lines.append(f"  {part:>10} {format_size(nbytes):>10}  {nbytes / budget.total:6.1%}")
    lines.append(f"  {'free':>10} {format_size(budget.available):>10}")
    return "\n".join(lines)
