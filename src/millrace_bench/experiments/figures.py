"""Draw experiments as lines with intervals, on the paper's axes: one figure, or all figures of a paper."""

from __future__ import annotations

import io
import math
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

_COLOURS = {
    "meshjoin": "#7d8f9b",
    "r-meshjoin": "#b08fbf",
    "ssbj": "#1f6f8b",
    "inl": "#c0504d",
    "hybridjoin": "#b5651d",
    "hybridjoin-l": "#d9a066",
    "hybridjoin-pq": "#8a3b12",
    "cachejoin-l": "#8fbf8f",
    "cachejoin-pq": "#2f7d4f",
    "sscj": "#5b8c3a",
    "diner": "#1f6f8b",
    "rpj": "#b5651d",
    "hmj": "#5b8c3a",
    "xjoin": "#c0504d",
    "dphj": "#7d8f9b",
    "miner": "#1f6f8b",
    "mjoin": "#7d8f9b",
}
_OTHERS = ("#b8d8e3", "#7fb3c8", "#3f8aa8", "#0f4c63", "#e0a030")
_PREDICTED = ", predicted"
_DECADES, _APART, _BEYOND = 50, 2, 1.5
_COLUMNS, _TITLE = 3, 48


def png(figure: dict[str, Any], dpi: int = 120) -> bytes:
    """Return a PNG picture of the results of one experiment."""
    drawing = Figure(figsize=(5.6, 3.4))
    drawing.subplots_adjust(left=0.14, right=0.98, bottom=0.14, top=0.95 - 0.05 * _legend_rows(figure))
    _fill(drawing.add_subplot(), figure)
    return _saved(drawing, dpi)


def sheet(figures: dict[str, dict[str, Any]], dpi: int = 80) -> bytes:
    """Return a PNG picture of several experiments side by side, each under its name."""
    rows = -(-len(figures) // _COLUMNS)
    drawing = Figure(figsize=(5.0 * _COLUMNS, 3.4 * rows))
    drawing.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
    for number, (name, figure) in enumerate(figures.items(), 1):
        axes = drawing.add_subplot(rows, _COLUMNS, number)
        _fill(axes, figure)
        title = fill(f"{name}: {figure['title']}", _TITLE)
        above = 8 + 12 * _legend_rows(figure)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=above)
    return _saved(drawing, dpi)


def _saved(drawing: Figure, dpi: int) -> bytes:
    FigureCanvasAgg(drawing)
    held = io.BytesIO()
    drawing.savefig(held, format="png", dpi=dpi, metadata={"Software": None})
    return held.getvalue()


def _fill(axes: Axes, figure: dict[str, Any]) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e9eb", linewidth=0.7)
    axes.set_axisbelow(True)
    scale = 1e-6 if figure["varies"] == "rows" else 1.0
    for number, (name, line) in enumerate(figure["series"].items()):
        if line:
            _draw(axes, name, line, scale, _OTHERS[number % len(_OTHERS)])
    _scales(axes, figure, scale)
    axes.set_xlabel(figure["x_label"])
    axes.set_ylabel(figure["y_label"])
    if len(figure["series"]) > 1:
        if any(name.endswith(_PREDICTED) for name in figure["series"]):
            axes.plot([], [], "--x", color="#3a4a52", linewidth=1.2, markersize=5, label="predicted")
        columns = _legend_columns(figure)
        names = {"frameon": False, "fontsize": 8, "ncols": columns, "columnspacing": 1.2, "handlelength": 1.6}
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderaxespad=0.2, **names)


def _legend_columns(figure: dict[str, Any]) -> int:
    """Return how many names fit beside each other in the legend."""
    longest = max(len(name.removesuffix(_PREDICTED)) for name in figure["series"])
    return max(1, min(5, 75 // (6 + longest)))


def _legend_rows(figure: dict[str, Any]) -> int:
    names = {name if not name.endswith(_PREDICTED) else _PREDICTED for name in figure["series"]}
    return -(-len(names) // _legend_columns(figure))


def _draw(axes: Axes, name: str, line: list[dict[str, Any]], scale: float, other: str) -> None:
    """Draw measured values as a line with marks and intervals, predicted values as a dashed line."""
    xs, ys = [p["x"] * scale for p in line], [p["mean"] for p in line]
    predicted = name.endswith(_PREDICTED)
    colour = _COLOURS.get(name.removesuffix(_PREDICTED), other)
    if predicted:
        axes.plot(xs, ys, "--x", color=colour, linewidth=1.2, markersize=5)
        return
    axes.plot(xs, ys, "-o", color=colour, linewidth=1.6, markersize=4.5, label=name)
    if all(p["low"] is not None for p in line):
        axes.fill_between(
            xs, [p["low"] for p in line], [p["high"] for p in line], color=colour, alpha=0.15, linewidth=0
        )


def _scales(axes: Axes, figure: dict[str, Any], scale: float) -> None:
    points = [p for line in figure["series"].values() for p in line]
    means = [p["mean"] for p in points]
    if figure["log_x"]:
        axes.set_xscale("log")
    if figure["log_y"] and min(means) > 0 and max(means) > _APART * min(means):
        axes.set_yscale("log")
        axes.set_ylim(0.7 * min(means), 1.4 * max(means))
    else:
        highest = max([1e-12, *(p["high"] for p in points if p["high"] is not None)])
        axes.set_ylim(0, 1.12 * max(1e-12, *means, min(highest, _BEYOND * max(means))))
    places = sorted({p["x"] * scale for line in figure["series"].values() for p in line})
    if figure["log_x"] or len(places) <= 6:
        labels = _apart(places, figure["log_x"])
        axes.set_xticks(places, [_number(place) if place in labels else "" for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _number(y)))
    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        few = high < _DECADES * low  # the axis then has at most one power of ten
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: _number(y)) if few else NullFormatter())


def _apart(places: list[float], log: bool) -> list[float]:
    """Return the places on an axis that have room for a label, from the last to the first.

    >>> _apart([0.2, 0.5, 1, 2, 5, 10], False), _apart([1, 2, 3, 4, 4.9], True)
    ([10, 5, 2, 1, 0.5], [4.9, 4, 3, 2, 1])
    """
    at = [math.log(place) if log else place for place in places]
    least = 0.05 * (at[-1] - at[0])
    kept: list[int] = []
    for i in reversed(range(len(at))):
        if not kept or at[kept[-1]] - at[i] >= least:
            kept.append(i)
    return [places[i] for i in kept]


def _number(y: float) -> str:
    """Return a number on an axis as a short text.

    >>> _number(0), _number(250_000), _number(0.004), _number(12)
    ('0', '250 k', '0.004', '12')
    """
    if y == 0 or not math.isfinite(y):
        return "0"
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if abs(y) >= unit:
            return f"{y / unit:g}{name}"
    return f"{y:.3g}"
