"""Draw the benchmarks' figures: ``python -m millrace_bench.benchmarks.plots results.json docs/images``."""

from __future__ import annotations

import json
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from millrace_bench.benchmarks.spark_streams import ENGINES, memory_in_use, sampled_points

_COLOURS = {
    "ssbj": "#1f6f8b",
    "meshjoin": "#99a8b2",
    "duckdb": "#e0a030",
    "hybridjoin": "#b5651d",
    "sscj": "#5b8c3a",
}
_STREAMS = {"millrace": "#1f6f8b", "spark": "#c0504d", "spark-rocksdb": "#e0a030"}
_LABELS = {"ssbj": "Millrace ssbj", "meshjoin": "Millrace meshjoin", "duckdb": "DuckDB, one join per batch"}


def draw(figures: dict[str, Any], directory: Path) -> list[Path]:
    """Draw a picture of each benchmark that has figures; return the paths of the PNG files."""
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, make in _PICTURES.items():
        if name in figures:
            figure = make(figures[name])
            drawn.append(directory / f"{name}.png")
            figure.savefig(drawn[-1], dpi=130, bbox_inches="tight")
            plt.close(figure)
    return drawn


def _peers(result: dict[str, Any]) -> Any:
    figure, axes = plt.subplots(figsize=(6.4, 2.6))
    sizes = sorted({f["batch_rows"] for f in result["figures"]})
    engines = ["ssbj", "meshjoin", "duckdb"]
    for i, engine in enumerate(engines):
        by_size = {f["batch_rows"]: f["rate"] for f in result["figures"] if f["engine"] == engine}
        rates = [by_size[size] for size in sizes]
        places = [j + (1 - i) * 0.26 for j in range(len(sizes))]
        bars = axes.barh(places, rates, 0.24, color=_COLOURS[engine], label=_LABELS[engine])
        axes.bar_label(bars, [f"{rate / 1e6:.2f} M/s" for rate in rates], padding=3)
    axes.set_yticks(range(len(sizes)), [f"batches of\n{size:,}" for size in sizes])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1e6:g} M"))
    setting = f"{result['rows'] / 1e6:g} M master rows, Zipf 1, memory {result['memory']}"
    axes.set_xlabel(f"stream tuples per second; {setting}")
    axes.margins(x=0.15)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.28), ncols=3)
    return figure


def _scaling(result: dict[str, Any]) -> Any:
    figure, axes = plt.subplots(figsize=(4.6, 3))
    rows = [f["rows"] / 1e6 for f in result["figures"]]
    for name in ("meshjoin", "ssbj"):
        axes.loglog(rows, [f[f"{name}_us"] for f in result["figures"]], "o-", color=_COLOURS[name], label=name)
    axes.set_xlabel("master rows, millions")
    axes.set_ylabel("µs per stream tuple")
    axes.legend(frameon=False)
    return figure


def _disk(result: dict[str, Any]) -> Any:
    figure, (rates, hits) = plt.subplots(1, 2, figsize=(7.2, 3))
    styles = {"meshjoin": "-", "ssbj rolling": "-", "ssbj three-cycle": "--"}
    for name, runs in result["runs"].items():
        shares = [run["share"] for run in runs]
        colour = _COLOURS[name.split()[0]]
        rates.plot(shares, [run["rate"] / 1e3 for run in runs], styles[name], marker="o", color=colour, label=name)
        if name != "meshjoin":
            shares_hit = [run["hit_share"] * 100 for run in runs]
            hits.plot(shares, shares_hit, styles[name], marker="o", color=colour, label=name)
    rates.set_ylabel("thousand tuples per second of device time")
    hits.set_ylabel("% of tuples answered by the cache")
    hits.set_ylim(0, 100)
    for axes in (rates, hits):
        axes.set_xlabel("memory, % of the master")
        axes.legend(frameon=False)
    figure.suptitle(f"{result['disk']} model, {result['rows'] / 1e6:g} M rows, skew {result['skew']:g}")
    return figure


def _family(result: dict[str, Any]) -> Any:
    """Draw rates as dots: a panel for each skew, a row for each algorithm, and a dot for each memory size."""
    points = result["points"]
    skews, shares = (sorted({p[key] for p in points}) for key in ("skew", "share"))
    at = {(p["algorithm"], p["skew"], p["share"]): p["rate"] for p in points}
    names = sorted({p["algorithm"] for p in points}, key=lambda name: at[name, skews[-1], shares[-1]])
    figure, panels = plt.subplots(1, len(skews), figsize=(3 * len(skews) + 1, 0.26 * len(names) + 1.2), sharey=True)
    for axes, skew in zip(mpl.cbook.flatten([panels]), skews, strict=True):
        for i, share in enumerate(shares):
            rates = [at[name, skew, share] for name in names]
            shade = plt.get_cmap("YlGnBu")(0.35 + 0.6 * i / max(1, len(shares) - 1))
            axes.plot(rates, names, "o", color=shade, markersize=5, label=f"{share:g} %")
        axes.set_xscale("log")
        axes.grid(axis="both", color="#e6e9eb", linewidth=0.6)
        axes.axvline(100_000, color="#c0504d", linewidth=0.8, linestyle="--")
        axes.set_title(f"skew {skew:g}", fontsize=9)
        axes.set_xlabel("tuples per second")
    axes.legend(frameon=False, title="memory", loc="lower right")
    return figure


def _drift(result: dict[str, Any]) -> Any:
    """Draw the hit rate along a stream whose hot keys move, and, as a dashed line, the hit rate if they stay."""
    columns = 4
    lines = -(-len(result["series"]) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(9.6, 1.9 * lines), sharex=True, sharey=True, squeeze=False)
    panels = list(mpl.cbook.flatten(grid.tolist()))
    for axes, entry in zip(panels, result["series"], strict=False):
        places = [(i + 1) * result["window"] / 1e6 for i in range(len(entry["moving"]))]
        axes.axhline(entry["stationary"], color="#99a8b2", linestyle="--", linewidth=1)
        axes.plot(places, entry["moving"], color="#1f6f8b", linewidth=1.2)
        axes.set_title(entry["algorithm"], fontsize=9)
        axes.set_ylim(0, 100)
    for axes in panels[len(result["series"]) :]:
        axes.set_visible(False)
    figure.supxlabel(f"million tuples; hot keys move after every {result['period'] / 1e6:g} million", fontsize=9)
    figure.supylabel("% answered by the cache (dashed: hot keys stay)", fontsize=9)
    figure.tight_layout()
    return figure


def _cost(result: dict[str, Any]) -> Any:
    """Draw predicted rates as lines and measured rates as points, in a panel for each skew."""
    skews = sorted({p["skew"] for p in result["points"]})
    figure, panels = plt.subplots(1, len(skews), figsize=(3.7 * len(skews), 3.4), sharey=True, squeeze=False)
    for axes, skew in zip(panels[0], skews, strict=True):
        mine = [p for p in result["points"] if p["skew"] == skew]
        for name, disk in dict.fromkeys((p["algorithm"], p["disk"]) for p in mine):
            points = [p for p in mine if (p["algorithm"], p["disk"]) == (name, disk)]
            shares = [p["share"] for p in points]
            kept = all(p["leave_early"] for p in points)
            style, label = ("-", name) if kept else ("--", f"{name}, {disk}, whole turns")
            axes.loglog(shares, [p["predicted"]["rate"] for p in points], style, color=_COLOURS[name], label=label)
            measured = [p["measured"]["rate"] for p in points]
            axes.loglog(shares, measured, "o" if kept else "s", color=_COLOURS[name], markersize=4)
        axes.set_title(f"skew {skew:g}")
        axes.set_xlabel("memory, % of the master")
        axes.set_xticks(
            sorted({p["share"] for p in mine}), [f"{share:g}" for share in sorted({p["share"] for p in mine})]
        )
        axes.minorticks_off()
    panels[0][0].set_ylabel("tuples per second of device time")
    panels[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    setting = f"{result['rows'] / 1e6:g} M rows, hdd-2013 model unless said"
    figure.suptitle(f"lines predicted, points measured; {setting}", y=1.03)
    return figure


def _streams(result: dict[str, Any]) -> Any:
    """Draw memory and time by the number of rows in the state, a line for each engine."""
    figure, (memory, time) = plt.subplots(1, 2, figsize=(9.2, 3.2))
    for one in result["series"]:
        colour, label = _STREAMS[one["engine"]], ENGINES[one["engine"]]
        points = sampled_points(one)
        kept = _kept(points, one["points"])
        memory.plot(
            kept, [memory_in_use(point) / 1e6 for point in points], "-o", color=colour, markersize=3, label=label
        )
        seconds = [point["seconds"] for point in one["points"]]
        time.plot(_kept(one["points"], one["points"])[2:], seconds[2:], color=colour, label=label)
    memory.set_ylabel("MB in use")
    time.set_ylabel("seconds per micro-batch")
    for axes in (memory, time):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("million rows kept, both sides")
    memory.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.2), ncols=3)
    figure.tight_layout()
    return figure


def _kept(some: list[dict[str, Any]], points: list[dict[str, Any]]) -> list[float]:
    """Return how many million rows had arrived by each point in ``some``; ``points`` are all points of the series."""
    so_far = dict(zip((p["batch"] for p in points), accumulate(p["rows_in"] for p in points), strict=True))
    return [so_far[point["batch"]] / 1e6 for point in some]


_PICTURES = {
    "peers": _peers,
    "scaling": _scaling,
    "disk": _disk,
    "family": _family,
    "drift": _drift,
    "cost": _cost,
    "streams": _streams,
}

if __name__ == "__main__":
    for path in draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])):
        print(path)
