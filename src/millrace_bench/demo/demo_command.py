"""Run an active warehouse on Spark, check its rows, and compare it with Spark's own join: ``millrace demo``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from millrace.cli.display import err, facts_table, out, short
from millrace.cli.interrupts import INTERRUPTED, Held
from millrace.cli.progress import row_progress, spinner
from millrace.core.errors import ConfigError, MillraceError
from millrace.core.sizes import format_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace_bench.demo.warehouse import Moment, Warehouse

_NEEDED = {"pyspark": "spark", "pandas": "spark", "matplotlib": "plot"}


def demo(
    directory: Annotated[Path, typer.Option(help="Folder of the demo.")] = Path("demo"),
    scale: Annotated[float, typer.Option(help="TPC-H scale of the customers: 1 is 150,000 of them.")] = 6.0,
    orders: Annotated[int, typer.Option(help="Orders of the stream.")] = 1_500_000,
    batches: Annotated[int, typer.Option(help="Micro-batches of these orders.")] = 12,
    skew: Annotated[
        float, typer.Option(help="Zipf exponent by which customers of orders are drawn; 0 is evenly.")
    ] = 1.0,
    memory: Annotated[str, typer.Option(help="The budget of the join: 8MB, or 10% of the master.")] = "10%",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: remove the files of an earlier demo.")] = False,
) -> None:
    """Watch a warehouse on Spark take in orders and enrich them with customers, inside a small budget.

    TPC-H customers become a master store on disk; TPC-H orders stream in, are joined with them, and land in Parquet
    files. Then every row is checked against a batch join, Spark's own stream-static join is timed beside it, and a
    page with plots is written. Ctrl-C stops it at any time; run it again to continue.
    """
    began = time.perf_counter()
    for module, extra in _NEEDED.items():
        if find_spec(module) is None:
            raise ConfigError(f"demo: needs {module}, which is not installed: pip install 'millrace[{extra}]'")
    from millrace.spark.pipeline.pipeline import SPARK_ERRORS, readable
    from millrace_bench.demo.warehouse import Warehouse, WarehouseSetting
    from millrace_bench.demo.warehouse_report import write_report

    warehouse = Warehouse(directory, WarehouseSetting(scale, orders, skew, memory, batches))
    warehouse.claim(fresh)
    if warehouse.finished:
        _say(f"[yellow]The demo in {directory} is already finished[/yellow]; --fresh starts over.")
        if not (warehouse.place / "report.html").exists():
            write_report(warehouse)
    else:
        try:
            _run(warehouse)
        except KeyboardInterrupt:
            err().print(Text("stopped; running it again continues where it was", style="yellow"), soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from None
        except SPARK_ERRORS as error:
            raise MillraceError(f"{readable(error)} (Spark's log is {warehouse.place / 'spark.log'})") from None
    _summarize(warehouse, time.perf_counter() - began)


def _say(text: str = "") -> None:
    out().print(text, highlight=False, soft_wrap=True)


# the steps


def _run(warehouse: Warehouse) -> None:
    """Run the steps of the demo that are not finished yet."""
    with _step(warehouse, "data"), row_progress("making orders", warehouse.setting.orders) as done:
        warehouse.make_data(done)
    with SparkInterrupts() as interrupts:
        _say("starting Spark …")
        with warehouse.spark() as spark:
            interrupts.watch(spark)
            _run_on(spark, warehouse, interrupts)


def _run_on(spark: SparkSession, warehouse: Warehouse, interrupts: SparkInterrupts) -> None:
    from millrace_bench.demo.warehouse_report import write_report

    with _step(warehouse, "master"), spinner("building the master store"):
        store = warehouse.build(spark)
    result = warehouse.result
    _say(
        f"[bold]The master:[/bold] {result.customers:,} TPC-H customers, {format_size(store.nbytes)} on disk in "
        f"{store.shards} shards; the join may use {format_size(result.budget)}"
    )
    skew = warehouse.setting.skew
    law = f"by a Zipf law with exponent {skew:g}" if skew else "from all alike"
    _say(
        f"[bold]The stream:[/bold] {result.orders:,} TPC-H orders in {warehouse.setting.batches} micro-batches. "
        f"TPC-H's own are spread evenly over the customers; here each order's customer is drawn anew, {law}"
    )
    interrupts.check()
    if not result.enriched:
        with _step(warehouse, "enrich"):
            _watch(spark, warehouse, interrupts)
    interrupts.check()
    if result.checked_rows is None:
        with _step(warehouse, "check"), spinner("checking every row against a batch join"):
            warehouse.check(spark)
        _say(f"[green]exact[/green]: {result.checked_rows:,} rows, the same as by a batch join, in every column")
    interrupts.check()
    with _step(warehouse, "compare"), spinner("timing Spark's own stream-static join beside it"):
        warehouse.compare(spark, interrupts.check)
    write_report(warehouse)


@contextmanager
def _step(warehouse: Warehouse, name: str) -> Iterator[None]:
    before = warehouse.result.seconds.get(name, 0.0)
    with warehouse.step(name):
        yield
    seconds = warehouse.result.seconds[name] - before
    if seconds > 0.5:
        out().print(Text(f"{name}: {seconds:.1f} s", style="dim"))


class SparkInterrupts:
    """A context manager that delays Ctrl-C until a call to Spark is over, and cancels Spark's jobs meanwhile.

    An exception in the middle of a call would leave that call's answer for the next call to read. So Ctrl-C is only
    recorded, a thread cancels all of Spark's jobs, and ``check`` or the end of the block raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._held = Held(self._cancel_in_thread)
        self._spark: SparkSession | None = None
        self._ended = threading.Event()

    def __enter__(self) -> SparkInterrupts:
        self._held.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._held.__exit__()
        self.check()

    def watch(self, spark: SparkSession) -> None:
        """Cancel a session's jobs on Ctrl-C from now on; raise KeyboardInterrupt if it has been pressed already."""
        self.check()
        self._spark = spark

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C has been pressed; to be called between calls to Spark."""
        if self._held.interrupted:
            raise KeyboardInterrupt from None

    def _cancel_in_thread(self) -> None:
        threading.Thread(target=self._cancel, daemon=True).start()

    def _cancel(self) -> None:
        """Cancel all jobs over and over, since a job may just be about to start."""
        with suppress(Exception):  # Spark may have ended meanwhile
            while self._spark is not None:
                self._spark.sparkContext.cancelAllJobs()
                if self._ended.wait(0.3):
                    return


# the view


def _watch(spark: SparkSession, warehouse: Warehouse, interrupts: SparkInterrupts) -> None:
    """Run the query to its end, and show its progress."""
    console = out()
    view = WarehouseView(warehouse)
    query = warehouse.start(spark)
    live = Live(console=console, get_renderable=view.panel, refresh_per_second=4) if console.is_terminal else None
    try:
        with live or nullcontext():
            for moment in warehouse.follow(query):
                interrupts.check()
                if moment is not None:
                    view.add(moment)
                    if live is None:
                        console.print(view.line(), highlight=False, soft_wrap=True)
    finally:
        query.stop()


class WarehouseView:
    """The state of the join after the last micro-batch, for the terminal."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._taken = self._answered = self._scanned = self._done = 0
        self._last: Moment | None = None
        self._since = time.monotonic()
        for moment in warehouse.moments():
            self._count(moment)

    def add(self, moment: Moment) -> None:
        """Add the figures of a finished micro-batch."""
        self._count(moment)
        self._last, self._since = moment, time.monotonic()

    def _count(self, moment: Moment) -> None:
        self._taken += moment.arrived
        self._answered += moment.answered
        self._scanned += moment.scanned
        self._done += moment.arrived > 0

    @property
    def _turns(self) -> float:
        return self._scanned / max(1, self._warehouse.result.customers)

    def line(self) -> str:
        """Return the state as a line of text, for output that is not a terminal."""
        m, budget = self._last, self._warehouse.result.budget
        assert m is not None
        name = f"batch {self._done:>3}/{self._warehouse.setting.batches}" if m.arrived else "turning on   "
        return (
            f"{name}  {m.seconds:5.1f} s  in {short(m.arrival_rate):>6}/s  out {short(m.service_rate):>6}/s  "
            f"cache {m.hit_rate:4.0%}  waiting {m.waiting:>7,}  "
            f"memory {format_size(m.memory_bytes)} of {format_size(budget)}  turn {self._turns:.1f}"
        )

    def panel(self) -> Panel:
        """Return the state as a panel, for a terminal."""
        result, m = self._warehouse.result, self._last
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_row("batches", _bar((self._done / self._warehouse.setting.batches, "blue")), self._doing())
        answered = f"{self._answered:,} of {result.orders:,}"
        grid.add_row("answered", _bar((self._answered / result.orders, "blue")), answered)
        if m is None:
            return _panel(grid, Text("the first micro-batch takes longer: workers start and load kernels"))
        top = max(1.0, m.arrival_rate, m.service_rate)
        grid.add_row("arriving", _bar((m.arrival_rate / top, "yellow")), f"{m.arrival_rate:,.0f} orders/s")
        grid.add_row("service", _bar((m.service_rate / top, "cyan")), f"{m.service_rate:,.0f} orders/s")
        hits = f"{m.hit_rate:.1%} by the cache" if m.arrived else "none came"
        grid.add_row("hits", _bar((m.hit_rate, "green")), hits)
        grid.add_row("wheel", _bar((m.wheel, "magenta")), f"{m.wheel:.0%} of a turn; {self._turns:.1f} so far")
        held = {
            "cache": (m.cache_bytes / result.budget, "green", f", {m.cached_keys:,} customers"),
            "waiting": (m.waiting_bytes / result.budget, "yellow", f", {m.waiting:,} orders"),
            "rest": (m.rest_bytes / result.budget, "blue", ""),
        }
        whole = _bar(*((share, colour) for share, colour, _ in held.values()))
        grid.add_row("memory", whole, f"{format_size(m.memory_bytes)} of {format_size(result.budget)}")
        for name, (share, colour, more) in held.items():
            grid.add_row(f"  {name}", _bar((share, colour)), format_size(share * result.budget) + more)
        return _panel(grid)

    def _doing(self) -> str:
        left = max(0, self._warehouse.setting.batches - self._done)
        now = f"{time.monotonic() - self._since:.0f} s"
        return f"{self._done} done, {left} left; {now} on the next" if left else "all in; waiting orders come out"


def _panel(*rows: Any) -> Panel:
    return Panel(Group(*rows), title="orders ► customers ► warehouse", title_align="left", expand=False)


def _bar(*parts: tuple[float, str], width: int = 30) -> Text:
    """Return a bar of text that shows one or more shares of a total, one after the other, each in its own color.

    >>> _bar((0.5, "red"), (0.25, "blue"), width=8).plain
    '██████░░'
    """
    bar = Text()
    drawn = total = 0.0
    for share, colour in parts:
        total += share
        cells = max(0, min(width, round(total * width)) - int(drawn))
        bar.append("█" * cells, style=colour)
        drawn += cells
    return bar.append("░" * (width - int(drawn)), style="dim")


# the story


def _summarize(warehouse: Warehouse, seconds: float) -> None:
    from millrace_bench.demo.warehouse_report import exactness, facts, files, story, verdict

    comparison = warehouse.result.comparison
    assert comparison is not None
    console = out()
    _say()
    console.print(facts_table("What came out", facts(warehouse)))
    _say("\n[bold]What you saw[/bold]")
    for text in (story(warehouse), exactness(warehouse), verdict(comparison)):
        console.print(text, highlight=False, markup=False)
    _say()
    console.print(facts_table("Where everything is", files(warehouse)), soft_wrap=True)
    _say(f"\n{seconds:.0f} s in all. Open [cyan]{warehouse.place / 'report.html'}[/cyan] in a browser.")
