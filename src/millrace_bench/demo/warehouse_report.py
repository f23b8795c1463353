"""Describe the demo's warehouse in words and numbers, and write an HTML page with plots that needs no other file."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.core.sizes import format_size
from millrace_bench.demo.warehouse import FILES_PER_BATCH, LEFT_OUT, WARM, Moment, SparkComparison, Warehouse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _AMBER, _GREY, _RED, _GREEN = "#1f6f8b", "#e0a030", "#99a8b2", "#b03a2e", "#4c8c4a"


# in words


def story(warehouse: Warehouse) -> str:
    """Return a paragraph that says what was joined, in how many micro-batches and in how much memory."""
    result, setting = warehouse.result, warehouse.setting
    law = (
        f"was drawn anew by a Zipf law with exponent {setting.skew:g}, so that some customers are popular"
        if setting.skew
        else "was drawn anew from all customers alike"
    )
    return (
        f"{result.orders:,} TPC-H orders (all columns but {LEFT_OUT}) came in {setting.batches} micro-batches of "
        f"{FILES_PER_BATCH} files each and were enriched with {result.customers:,} TPC-H customers. The customers "
        f"take {format_size(result.master_bytes)} on disk; the join had {format_size(result.budget)} of memory, "
        f"{result.budget / result.master_bytes:.1%} of that. TPC-H's own orders are spread evenly over its customers; "
        f"here each order's customer {law}."
    )


def exactness(warehouse: Warehouse) -> str:
    """Return a sentence that says how the warehouse's rows compare with those of a batch join."""
    result = warehouse.result
    return (
        f"The warehouse's {result.checked_rows:,} rows are exactly those of a batch join by Spark of the same files: "
        f"as many, and with the same sum of two 64-bit hashes over all columns ({result.fingerprint})."
    )


def verdict(comparison: SparkComparison) -> str:
    """Return a paragraph that says which join was faster, and how both were measured."""
    ours, own = comparison.medians
    if max(ours, own) < 1.05 * min(ours, own):
        outcome = "they are level"
    elif ours < own:
        outcome = f"Millrace is {own / ours:.1f} times as fast here"
    else:
        outcome = f"Spark's own join is {ours / own:.1f} times as fast here"
    return (
        f"A micro-batch of {comparison.rows:,} orders takes Millrace {ours:.2f} s and Spark's own stream-static join "
        f"({comparison.plan}) {own:.2f} s: {outcome}. Both are medians of {len(comparison.spark)} micro-batches after "
        f"warm-up, into a sink that throws rows away, in one session one after the other. Here both answer every order "
        "in its own micro-batch (pending='drain'); in the warehouse above, orders the cache cannot answer wait for "
        "up to one turn of the wheel. Spark reads all columns of the customers anew for each micro-batch, so its time "
        "grows with them; Millrace reads eight bytes of each, and keeps within its budget."
    )


def facts(warehouse: Warehouse) -> list[tuple[str, str]]:
    """Return the demo's figures as pairs of a name and a text."""
    result, moments = warehouse.result, warehouse.moments()
    filled = [moment for moment in moments if moment.arrived]
    steady = filled[WARM:] or filled
    seconds = sum(moment.seconds for moment in moments)
    peak = max((moment.memory_bytes for moment in moments), default=0)
    rows = [
        ("orders enriched", f"{result.checked_rows:,}, checked" if result.checked_rows is not None else "not checked"),
        ("micro-batches", f"{len(filled)} with orders, {len(moments) - len(filled)} until none waited"),
        ("service rate, all of it", f"{_rate(moments):,.0f} orders/s ({seconds:.1f} s)"),
        (f"service rate after {WARM} batches", f"{_rate(steady):,.0f} orders/s"),
        ("answered by the cache", f"{_share(steady):.1%} after {WARM} batches, {_share(filled):.1%} in all"),
        ("waiting at most", f"{max((m.waiting for m in moments), default=0):,} orders"),
        ("turns of the wheel", f"{sum(m.scanned for m in moments) / max(1, result.customers):.1f}"),
        ("memory at most", f"{format_size(peak)} of {format_size(result.budget)}"),
        ("the master on disk", f"{format_size(result.master_bytes)}, {result.customers:,} customers"),
    ]
    if result.comparison is not None:
        ours, own = result.comparison.medians
        rows += [
            ("a micro-batch by Millrace", f"{ours:.2f} s"),
            ("a micro-batch by Spark's own join", f"{own:.2f} s"),
        ]
    return rows


def files(warehouse: Warehouse) -> list[tuple[str, str]]:
    """Return the demo's files and folders as pairs of a name and a path."""
    place = warehouse.place
    return [
        ("report", str(place / "report.html")),
        ("warehouse", str(place / "warehouse")),
        ("checkpoint", str(place / "checkpoint")),
        ("master store", str(place / "store")),
        ("orders", str(place / "orders")),
        ("customers", str(place / "tpch")),
        ("progress", str(place / "progress.jsonl")),
        ("Spark's log", str(place / "spark.log")),
    ]


def _rate(moments: Sequence[Moment]) -> float:
    seconds = sum(moment.seconds for moment in moments)
    return sum(moment.answered for moment in moments) / seconds if seconds else 0.0


def _share(moments: Sequence[Moment]) -> float:
    arrived = sum(moment.arrived for moment in moments)
    return sum(moment.hits for moment in moments) / arrived if arrived else 0.0


# the page


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Millrace: an active warehouse</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #23303a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.6rem; margin-bottom: .2rem }}
h2 {{ font-size: 1.1rem; margin: 1.6rem 0 .4rem; color: {blue} }}
.plots {{ display: grid; grid-template-columns: 1fr 1fr; gap: .5rem 1rem }}
img {{ width: 100% }}
table {{ border-collapse: collapse }}
td {{ padding: .15rem 1.2rem .15rem 0; border-bottom: 1px solid #e3e8ec; vertical-align: top }}
td:first-child {{ color: #5b6b77 }}
code {{ font-size: .9em; overflow-wrap: anywhere }}
@media (max-width: 45rem) {{ .plots {{ grid-template-columns: 1fr }} }}
</style>
<h1>An active warehouse</h1>
<p>{story}</p>
<h2>How it went</h2>
<div class="plots">
{plots}
</div>
<p>Time is that of the micro-batches, one after the other. The first ones load kernels and warm Java up, and the cache
starts empty.</p>
<h2>Exact</h2>
<p>{exactness}</p>
<h2>Beside Spark's own join</h2>
<p>{verdict}</p>
<h2>Numbers</h2>
<table>{facts}</table>
<h2>Files</h2>
<table>{files}</table>
</html>
"""


def write_report(warehouse: Warehouse) -> Path:
    """Write the report as an HTML page with plots; return its path."""
    comparison = warehouse.result.comparison
    assert comparison is not None
    moments, budget = warehouse.moments(), warehouse.result.budget
    plots = {
        "service rate over time": _service(moments),
        "hit rate over time": _hits(moments),
        "memory by part over time": _memory(moments, budget),
        "seconds per micro-batch": _versus(comparison),
    }
    page = _PAGE.format(
        blue=_BLUE,
        story=escape(story(warehouse)),
        exactness=escape(exactness(warehouse)),
        verdict=escape(verdict(comparison)),
        plots="\n".join(f'<img alt="{name}" src="{_embedded(figure)}">' for name, figure in plots.items()),
        facts=_rows(facts(warehouse)),
        files=_rows(files(warehouse), code=True),
    )
    path = warehouse.place / "report.html"
    path.write_text(page)
    return path


def _rows(pairs: list[tuple[str, str]], code: bool = False) -> str:
    cell = "<code>{}</code>" if code else "{}"
    return "\n".join(f"<tr><td>{escape(name)}<td>{cell.format(escape(value))}" for name, value in pairs)


# plots


def _embedded(figure: Figure) -> str:
    """Return a figure as a ``data:`` URL that contains it as a PNG image."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=150)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def _axes(title: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 2.9), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def _ends(moments: Sequence[Moment]) -> list[float]:
    """Return the time at the end of each micro-batch, in seconds: the running sum of the micro-batches' seconds."""
    return list(accumulate(moment.seconds for moment in moments))


def _over_time(axes: Any, ends: Sequence[float], label: str) -> None:
    axes.set_xlabel("seconds", fontsize=8)
    axes.set_ylabel(label, fontsize=8)
    axes.set_xlim(0, 1.02 * ends[-1] if ends else 1)
    axes.set_ylim(bottom=0)


def _service(moments: Sequence[Moment]) -> Figure:
    figure, axes = _axes("Orders per second")
    ends = _ends(moments)
    for rates, colour, width, label in (
        ([m.arrival_rate / 1000 for m in moments], _AMBER, 1.2, "arrived"),
        ([m.service_rate / 1000 for m in moments], _BLUE, 1.8, "answered"),
    ):
        axes.plot([0.0, *ends], [*rates[:1], *rates], drawstyle="steps-pre", lw=width, color=colour, label=label)
    _over_time(axes, ends, "thousands per second")
    axes.legend(frameon=False, fontsize=8, loc="lower center")
    return figure


def _hits(moments: Sequence[Moment]) -> Figure:
    figure, axes = _axes("Answered by the cache")
    ends, filled = _ends(moments), [m.arrived > 0 for m in moments]
    shown = [(end, 100 * m.hit_rate) for end, m, some in zip(ends, moments, filled, strict=True) if some]
    axes.plot([end for end, _ in shown], [rate for _, rate in shown], "o-", ms=3, color=_GREEN)
    _over_time(axes, ends, "% of the arriving orders")
    axes.set_ylim(0, 100)
    return figure


def _memory(moments: Sequence[Moment], budget: int) -> Figure:
    figure, axes = _axes("Memory of the join")
    ends = _ends(moments)
    parts = {
        "cache": ([m.cache_bytes / 1e6 for m in moments], _GREEN),
        "waiting orders": ([m.waiting_bytes / 1e6 for m in moments], _AMBER),
        "rest, at its peak": ([m.rest_bytes / 1e6 for m in moments], _GREY),
    }
    heights, colours = zip(*(([0.0, *part], colour) for part, colour in parts.values()), strict=True)
    axes.stackplot([0.0, *ends], *heights, labels=list(parts), colors=colours)
    axes.axhline(budget / 1e6, color=_RED, lw=1.2, ls="--", label="budget")
    _over_time(axes, ends, "MB")
    axes.set_ylim(0, budget / 1e6 * 1.35)
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper left", columnspacing=1, handlelength=1.2)
    return figure


def _versus(comparison: SparkComparison) -> Figure:
    figure, axes = _axes(f"Seconds per micro-batch of {comparison.rows:,} orders")
    names = ["Millrace", "Spark's own join"]
    runs, medians = (comparison.millrace, comparison.spark), comparison.medians
    bars = axes.barh(names, medians, 0.5, color=[_BLUE, _GREY])
    axes.bar_label(bars, [f"{seconds:.2f} s" for seconds in medians], padding=4, label_type="edge", fontsize=9)
    for place, seconds in enumerate(runs):
        axes.plot(seconds, [place + 0.33] * len(seconds), "|", color="black", ms=7, mew=1)
    axes.invert_yaxis()
    axes.set_xlabel("median (bar) and each micro-batch (strokes)", fontsize=8)
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    return figure
