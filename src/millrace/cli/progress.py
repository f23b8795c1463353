"""Shows the progress of joins and of other work on rows, only on a terminal and at most five times a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from millrace.cli.display import err, short
from millrace.core.sizes import format_size

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.semistream.join import SemiStreamJoin

_PER_SECOND = 5


class _RateColumn(ProgressColumn):
    """A column that shows the number of units per second since the start."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        rate = task.completed / task.elapsed if task.elapsed else 0.0
        return Text(f"{short(rate)} {self._unit}/s", style="cyan")


def _progress(*columns: ProgressColumn, shown: bool = True) -> Progress:
    console = err()
    return Progress(
        *columns,
        console=console,
        disable=not (shown and console.is_terminal),
        transient=True,
        refresh_per_second=_PER_SECOND,
    )


@contextmanager
def row_progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar for rows, and yield a function to call with the number of rows done so far."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,.0f} rows"),
        _RateColumn("rows"),
    )
    with _progress(*columns) as progress:
        task = progress.add_task(what, total=total)

        def done(rows: int) -> None:
            progress.update(task, completed=rows)

        yield done


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Show a spinner and the text ``what`` during the block; for work whose progress cannot be measured."""
    with _progress(SpinnerColumn(), TextColumn("{task.description}")) as progress:
        progress.add_task(what, total=None)
        yield


class WatchedJoin:
    """Runs a join, shows its progress, and measures the time spent in it, excluding the reading and writing of files.

    ``peak_parts`` holds the most bytes that each part of the budget has used, as observed between output batches.
    """

    def __init__(self, join: SemiStreamJoin, total: int, *, shown: bool = True) -> None:
        self.join = join
        self.peak_parts: dict[str, int] = {}
        self.total = total
        self._shown = shown
        self._spent = 0.0
        self._began: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds spent inside the join so far."""
        began = self._began
        return self._spent + (time.perf_counter() - began if began is not None else 0.0)

    @property
    def served(self) -> int:
        """Number of tuples whose result is complete."""
        m = self.join.metrics
        return m.matched + m.unmatched

    @property
    def service_rate(self) -> float:
        """Tuples whose result is complete, per second spent inside the join."""
        return self.served / self.seconds if self.seconds else 0.0

    def run(self, stream: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Push all batches, finish the join, and yield its output."""
        name = TextColumn("{task.description}", style="bold")
        with _progress(name, _JoinBar(self), _JoinState(self), shown=self._shown) as progress:
            progress.add_task(self.join.algorithm.name, total=None)
            for batch in stream:
                yield from self._timed(self.join.push(batch))
            yield from self._timed(self.join.finish())

    def _timed(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            self._began = time.perf_counter()
            batch = next(work, None)
            self._spent, self._began = self.seconds, None
            for part, nbytes in self.join.budget.parts().items():
                self.peak_parts[part] = max(nbytes, self.peak_parts.get(part, 0))
            if batch is None:
                return
            yield batch


# A push can take many steps. Rich draws these columns in its own thread from the join's counts, so that they change
# during a push.


class _JoinBar(ProgressColumn):
    def __init__(self, watched: WatchedJoin) -> None:
        super().__init__()
        self._watched = watched

    def render(self, task: Task) -> ProgressBar:
        return ProgressBar(total=max(1, self._watched.total), completed=self._watched.served, width=6)


class _JoinState(ProgressColumn):
    def __init__(self, watched: WatchedJoin) -> None:
        super().__init__()
        self._watched = watched

    def render(self, task: Task) -> Text:
        watched, m = self._watched, self._watched.join.metrics
        return Text.assemble(
            f"{short(watched.served)}/{short(watched.total)} ",
            (f"{short(watched.service_rate)} tuples/s", "cyan"),
            f" hit {m.hit_rate:.0%} {_used(m.used_bytes, m.budget_bytes)} waiting {short(m.waiting)}",
        )


def _used(used: int, budget: int) -> str:
    """Format the memory used and the budget, with only one unit if the unit is the same for both.

    >>> _used(2_400_000, 2_480_000), _used(900, 2_000)
    ('2.4/2.5 MB', '900 B/2.0 kB')
    """
    (number, unit), whole = format_size(used).split(), format_size(budget)
    return f"{number}/{whole}" if whole.endswith(f" {unit}") else f"{number} {unit}/{whole}"
