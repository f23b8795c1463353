"""What was found, on the terminal, as a piece of Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.bench.rivals import ratios
from millrace.bench.rivals.cell import Found
from millrace.bench.rivals.ratios import Rates
from millrace.core.sizes import format_size

_MOST_WINS = 12
_COLOURS = {
    "ssbj": "#1f6f8b",
    "meshjoin": "#99a8b2",
    "lookup": "#0f4c63",
    "duckdb": "#e0a030",
    "polars": "#8a3b12",
    "sqlite": "#5b8c3a",
    "pandas": "#b08fbf",
    "spark": "#e0a030",
    "spark-sort-merge": "#b5651d",
    "drain": "#1f6f8b",
}
_OTHERS = ("#7d8f9b", "#c0504d", "#d9a066", "#3f8aa8")


def show(console: Console, rates: Rates, mine: Collection[str]) -> None:
    """A table for each master: tuples per second, and for peers how many times as quick the best of Millrace is."""
    names = engines(rates)
    for rows in _sizes(rates):
        grid = Table(title=f"{rows:,} master rows: tuples/s (best of Millrace / peer)")
        for column in ("skew", "batch", *names):
            grid.add_column(column, justify="right")
        for skew, batch, texts in ratios.table(rates, names, mine, rows):
            grid.add_row(f"{skew:g}", f"{batch:,}", *texts)
        console.print(grid)
    for line in verdicts(rates, mine):
        console.print(line, markup=False, highlight=False)


def show_memory(console: Console, rates: Rates) -> None:
    """The same setting with one memory after the other."""
    names = engines(rates)
    grid = Table(title="tuples/s as memory varies, and what RssAnon grew by")
    for column in ("memory", *names):
        grid.add_column(column, justify="right")
    for memory, texts in _by_memory(rates, names):
        grid.add_row(memory, *texts)
    console.print(grid)


def _by_memory(rates: Rates, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    shares = sorted(rates, key=lambda setting: float(setting.memory.rstrip("%")))
    for setting in shares:
        here = rates[setting]
        yield (
            setting.memory,
            [f"{here[n].rate:,.0f} ({format_size(here[n].memory_growth)})" if n in here else "" for n in names],
        )


def verdicts(rates: Rates, mine: Collection[str]) -> list[str]:
    """Each peer in a line, where peers win, and whether all gave the same rows."""
    lines = [str(summary) for summary in ratios.summaries(rates, mine)]
    won = ratios.wins(rates, mine)
    lines += [str(win) for win in won[:_MOST_WINS]]
    if len(won) > _MOST_WINS:
        lines.append(f"and in {len(won) - _MOST_WINS} more, by less: see the table")
    compared = sum(len(here) > 1 for here in rates.values())
    differing = ratios.differing(rates)
    lines += differing or [f"all engines gave the same rows in all {compared} settings (count and checksum)"]
    return lines


def markdown(rates: Rates, memories: Rates, mine: Collection[str], picture: str | None = None) -> str:
    """The same for the documentation."""
    names = engines(rates)
    lines = [f"![rates]({picture})", ""] if picture else []
    for rows in _sizes(rates):
        lines += [f"{ratios.amount(rows)} master rows, tuples/s (best of Millrace / peer):", ""]
        lines += _head("skew", "batch", *names)
        for skew, batch, texts in ratios.table(rates, names, mine, rows):
            lines.append(_line(f"{skew:g}", f"{batch:,}", *texts))
        lines.append("")
    lines += [f"- {line}" for line in verdicts(rates, mine)]
    if len(memories) > 1:
        some = next(iter(memories))
        lines += ["", f"As memory varies ({ratios.described(some)}), tuples/s and what `RssAnon` grew by:", ""]
        varied = engines(memories)
        lines += _head("memory", *varied)
        lines += [_line(memory, *texts) for memory, texts in _by_memory(memories, varied)]
    lines += ["", "Latency of a batch, p50 / p99, and what `RssAnon` grew by, the most over all skews:", ""]
    lines += _head("master rows", "batch", *names)
    for rows in _sizes(rates):
        for batch in sorted({setting.batch_rows for setting in rates if setting.rows == rows}):
            here = [found for s, found in rates.items() if (s.rows, s.batch_rows) == (rows, batch)]
            waits = (_waits([found[name] for found in here if name in found]) for name in names)
            lines.append(_line(ratios.amount(rows), f"{batch:,}", *waits))
    lines += ["", "Settings:", ""]
    lines += [f"- `{name}`: {_settings(rates, name)}" for name in names]
    return "\n".join(lines) + "\n"


def _waits(runs: Sequence[Found]) -> str:
    good = [run for run in runs if not run.failed]
    if not good:
        return ""
    p50, p99 = max(run.p50 for run in good), max(run.p99 for run in good)
    return f"{_seconds(p50)} / {_seconds(p99)}; {format_size(max(run.memory_growth for run in good))}"


def _seconds(value: float) -> str:
    """A time in few characters.

    >>> _seconds(0.0123), _seconds(2.5)
    ('12 ms', '2.5 s')
    """
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _settings(rates: Rates, name: str) -> str:
    """What an engine was set to; a value that differs between settings is given as the first and the last."""
    values: dict[str, list[str]] = {}
    for here in rates.values():
        for key, value in (here[name].settings if name in here else {}).items():
            values.setdefault(key, []).append(value)
    texts = []
    for key, found in values.items():
        several = list(dict.fromkeys(found))
        texts.append(f"{key}: {' … '.join(dict.fromkeys((several[0], several[-1])))}")
    return "; ".join(texts)


def _head(*columns: str) -> list[str]:
    return [_line(*columns), "|---" * len(columns) + "|"]


def _line(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def engines(rates: Rates) -> list[str]:
    return list(dict.fromkeys(engine for here in rates.values() for engine in here))


def _sizes(rates: Rates) -> list[int]:
    return sorted({setting.rows for setting in rates})


def draw(rates: Rates, path: Path) -> None:
    """Rate by batch size, a panel for each master and skew."""
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_line(axes: Any, rates: Rates, panel: tuple[int, float], name: str, colour: str) -> None:
    points = [
        (setting.batch_rows, here[name].rate)
        for setting, here in rates.items()
        if (setting.rows, setting.skew) == panel and name in here and not here[name].failed
    ]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, "o-", color=colour, linewidth=1.3, markersize=3.5, label=name)
