"""What a join is going to do, and how it splits its budget, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.core.sizes import format_size

if TYPE_CHECKING:
    from millrace.semistream.join import SemiStreamJoin


def explained(join: SemiStreamJoin) -> str:
    """The plan and the split of the budget, to read."""
    store, spec, budget = join.store, join.spec, join.budget
    lines = [
        f"{join.algorithm.name}: {join.algorithm.summary}",
        f"  {spec.how} join {join.matching} with {store.rows:,} master rows "
        f"({format_size(store.nbytes)}, {'unique keys' if store.unique else 'keys repeat'})",
        f"  memory {format_size(budget.total)}"
        + (f" = {budget.total / store.nbytes:.1%} of the master" if store.nbytes else ""),
    ]
    if join.auto is not None:
        lines[0] = f"auto, now {lines[0]}" if join.bound else "auto: the algorithm is chosen with the first batch"
        lines += [f"  chosen because {join.auto.why}"] if join.auto.why else []
    if join.shedding is not None:
        lines.append(f"  {join.shedding}; {join.metrics.shed:,} tuples shed so far")
    if not join.bound:
        lines.append("  (the split follows once the stream's schema is known)")
        return "\n".join(lines)
    lines.append(f"  {join.access.explain()}")
    if join.search is not None:
        lines.append(f"  {join.search.explain()}")
    if join.waits:
        lines.append(f"  waiting room for {join.capacity:,} tuples of {join.tuple_bytes:.0f} bytes")
    if join.ordered:
        lines.append("  rows come out in the order of the stream; what is found early is held back")
    for part, nbytes in sorted(budget.parts().items(), key=lambda item: -item[1]):
        lines.append(f"  {part:>10} {format_size(nbytes):>10}  {nbytes / budget.total:6.1%}")
    lines.append(f"  {'free':>10} {format_size(budget.available):>10}")
    return "\n".join(lines)
