"""Show results on the terminal, as Markdown, as a part of an HTML page, and as a picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.core.sizes import format_size, parse_size
from millrace_bench.rivals import ratios
from millrace_bench.rivals.cell import CellResult
from millrace_bench.rivals.ratios import Matrix, Rates

_MOST_WINS = 20
_ROW = 120  # bytes of a master row, about
_COLOURS = {
    "ssbj": "#1f6f8b",
    "meshjoin": "#99a8b2",
    "lookup": "#0f4c63",
    "duckdb": "#e0a030",
    "polars": "#8a3b12",
    "sqlite": "#5b8c3a",
    "pandas": "#b08fbf",
    "spark": "#e0a030",
    "spark-cached": "#5b8c3a",
    "spark-sort-merge": "#b5651d",
    "drain": "#1f6f8b",
}
_OTHERS = ("#7d8f9b", "#c0504d", "#d9a066", "#3f8aa8")


def show(console: Console, found: Matrix) -> None:
    """Print tables and conclusions on the terminal."""
    for grid in grids(found):
        table = Table(title=grid.title.replace("`", ""))
        for column in grid.head:
            table.add_column(column, justify="right")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    for line in verdicts(found):
        console.print(line, markup=False, highlight=False)


def _by_memory(rates: Rates, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for setting in sorted(rates, key=lambda setting: parse_size(setting.memory, of=setting.rows * _ROW)):
        here = rates[setting]
        yield setting.memory, [_with_memory(here[name]) if name in here else "" for name in names]


def _with_memory(one: CellResult) -> str:
    return one.failed or f"{ratios.short(one.rate)} ({format_size(one.memory_growth)})"


def verdicts(found: Matrix) -> list[str]:
    """Return lines of text: a comparison with each peer, and the settings in which a peer is faster.

    The last lines say whether the engines returned the same rows.
    """
    rates, mine = found.rates, found.mine
    lines = [str(summary) for summary in ratios.summaries(rates, mine)]
    won = ratios.wins(rates, mine)
    lines += [str(win) for win in won[:_MOST_WINS]]
    if len(won) > _MOST_WINS:
        lines.append(f"and in {len(won) - _MOST_WINS} more, by less: see the table")
    compared = [sum(bool(one.checksum) for one in here.values()) for here in rates.values()]
    results = sum(not one.failed for here in rates.values() for one in here.values())
    lines += ratios.differing(rates) or [
        f"the first batch has the same rows, by count and checksum, with all engines that were compared, in "
        f"{sum(each > 1 for each in compared)} settings; {sum(compared)} of {results} results were"
    ]
    return lines


@dataclass(frozen=True)
class Grid:
    """A table of results: its title, the heads of its columns, and its rows as texts."""

    title: str
    head: tuple[str, ...]
    rows: list[list[str]]


def grids(found: Matrix) -> Iterator[Grid]:
    """Yield the tables: rates for each master size, rates as the budget varies, and latency with memory growth."""
    rates, memories = found.rates, found.memories
    names = engines(rates)
    for rows in _sizes(rates):
        lines = [
            [f"{skew:g}", f"{batch:,}", *texts] for skew, batch, texts in ratios.table(rates, names, found.mine, rows)
        ]
        title = f"{ratios.amount(rows)} master rows, tuples/s (best of Millrace / peer)"
        yield Grid(title, ("skew", "batch", *names), lines)
    if len(memories) > 1:
        varied = engines(memories)
        title = f"As memory varies ({ratios.describe(next(iter(memories)))}), tuples/s and what `RssAnon` grew by"
        yield Grid(title, ("memory", *varied), [[memory, *texts] for memory, texts in _by_memory(memories, varied)])
    lines = []
    for rows in _sizes(rates):
        for batch in sorted({setting.batch_rows for setting in rates if setting.rows == rows}):
            here = [every for s, every in rates.items() if (s.rows, s.batch_rows) == (rows, batch)]
            waits = (_waits([every[name] for every in here if name in every]) for name in names)
            lines.append([ratios.amount(rows), f"{batch:,}", *waits])
    title = "Latency of a batch, p50 / p99, and what `RssAnon` grew by, the most over all skews"
    yield Grid(title, ("master rows", "batch", *names), lines)


def settings(rates: Rates) -> dict[str, str]:
    """Return each engine's settings as a text; a setting that varies is shown by its first and its last value."""
    return {name: _settings(rates, name) for name in engines(rates)}


def markdown(found: Matrix, picture: str | None = None) -> str:
    """Return the results as Markdown."""
    lines = [f"![rates]({picture})", ""] if picture else []
    lines += [*(f"- {line}" for line in verdicts(found)), ""]
    for grid in grids(found):
        lines += [f"{grid.title}:", "", _line(*grid.head), "|---" * len(grid.head) + "|"]
        lines += [*(_line(*row) for row in grid.rows), ""]
    lines += ["Settings:", "", *(f"- `{name}`: {text}" for name, text in settings(found.rates).items())]
    return "\n".join(lines) + "\n"


def html(found: Matrix, name: str) -> str:
    """Return the results as HTML that can be put into a page."""
    picture = base64.b64encode(png(found.rates)).decode()
    parts = [f"<img alt='rates of {escape(name)}' src='data:image/png;base64,{picture}'>"]
    parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in verdicts(found)) + "</ul>")
    for grid in grids(found):
        head = "".join(f"<th class=number>{escape(cell)}</th>" for cell in grid.head)
        rows = ("".join(f"<td class=number>{escape(cell)}</td>" for cell in row) for row in grid.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        parts.append(f"<h4>{escape(grid.title.replace('`', ''))}</h4><table><tr>{head}</tr>{body}</table>")
    words = "".join(f"<dt>{escape(n)}</dt><dd>{escape(text)}</dd>" for n, text in settings(found.rates).items())
    return "\n".join(parts) + f"<h4>Settings</h4><dl class=quiet>{words}</dl>"


def _waits(runs: Sequence[CellResult]) -> str:
    good = [run for run in runs if not run.failed]
    if not good:
        return ""
    p50, p99 = max(run.p50 for run in good), max(run.p99 for run in good)
    return f"{_seconds(p50)} / {_seconds(p99)}; {format_size(max(run.memory_growth for run in good))}"


def _seconds(value: float) -> str:
    """Return seconds as a short text with a unit.

    >>> _seconds(0.0123), _seconds(2.5)
    ('12 ms', '2.5 s')
    """
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _settings(rates: Rates, name: str) -> str:
    values: dict[str, list[str]] = {}
    for here in rates.values():
        for key, value in (here[name].settings if name in here else {}).items():
            values.setdefault(key, []).append(value)
    texts = []
    for key, found in values.items():
        several = list(dict.fromkeys(found))
        texts.append(f"{key}: {' … '.join(dict.fromkeys((several[0], several[-1])))}")
    return "; ".join(texts)


def _line(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def engines(rates: Rates) -> list[str]:
    """Return the names of all engines with results."""
    return list(dict.fromkeys(engine for here in rates.values() for engine in here))


def _sizes(rates: Rates) -> list[int]:
    return sorted({setting.rows for setting in rates})


def png(rates: Rates) -> bytes:
    """Return a PNG picture of the rate by batch size, with a panel for each master size and skew."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    sizes, skews = _sizes(rates), sorted({setting.skew for setting in rates})
    batches = sorted({setting.batch_rows for setting in rates})
    inches = (2.9 * len(skews) + 0.6, 2.3 * len(sizes) + 0.7)
    shape = (len(sizes), len(skews))
    figure, panels = plt.subplots(*shape, squeeze=False, sharex=True, sharey=True, figsize=inches)
    names = engines(rates)
    for i, rows in enumerate(sizes):
        for j, skew in enumerate(skews):
            axes = panels[i][j]
            for number, name in enumerate(names):
                _draw_line(axes, rates, (rows, skew), name, _COLOURS.get(name, _OTHERS[number % len(_OTHERS)]))
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(batches, [f"{batch:,}" for batch in batches], fontsize=8)
            axes.minorticks_off()
            axes.set_title(f"{ratios.amount(rows)} rows, skew {skew:g}", fontsize=9)
            axes.grid(color="#e6e9eb", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, frameon=False, ncols=2 * len(skews), loc="upper center", fontsize=9)
    figure.supxlabel("rows of a batch", fontsize=9)
    figure.supylabel("stream tuples per second", fontsize=9)
    legend = 0.1 + 0.22 * -(-len(names) // (2 * len(skews)))
    figure.tight_layout(rect=(0, 0, 1, 1 - legend / figure.get_figheight()))
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=130, metadata={"Software": None})
    plt.close(figure)
    return held.getvalue()


def _draw_line(axes: Any, rates: Rates, panel: tuple[int, float], name: str, colour: str) -> None:
    points = [
        (setting.batch_rows, here[name].rate)
        for setting, here in rates.items()
        if (setting.rows, setting.skew) == panel and name in here and not here[name].failed
    ]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, "o-", color=colour, linewidth=1.3, markersize=3.5, label=name)
