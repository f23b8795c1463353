"""Measure what the papers claim about each other's algorithms, on a modelled disk as in the papers.

A rate is tuples per second of device time in a join's steady state; loads transfer whole rows, and tuples are always
available. On a modelled disk the disk is the bottleneck, as it was in the papers, and the result does not depend on the
machine. Every algorithm is run with each of its ``OPTIONS`` and judged by its best rate. A ratio is given with its
least and its greatest value over several seeds of the stream. In ``meshjoin*``, a variant of MESHJOIN, tuples leave
with their match, as in the index-based algorithms; in the paper they stay for the whole turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.datasets import zipf_stream
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.experiments.steady import saturated
from millrace_bench.shared import data

_BATCHES = 1_000  # a batch has 1/1,000 of the master's number of rows, but at most 20,000


@dataclass(frozen=True)
class ClaimSetting:
    """A setting in which algorithms are compared."""

    disk: str
    rows: int
    memory: str
    skew: float
    sorted_by_use: bool = False
    """Whether master rows are sorted by how often their keys occur in the stream."""
    pages: tuple[int, ...] = ()
    """Page sizes to try, in rows."""
    settle: int = 12
    """Number of periods before the measurement; a period is a turn of the wheel, or a waiting room full of tuples."""

    def __str__(self) -> str:
        order = ", R sorted by use" if self.sorted_by_use else ""
        page = f", pages of {self.pages[0]:,}" if len(self.pages) == 1 else ""
        return f"{self.disk}, {self.rows / 1e6:g} M rows, {self.memory}, skew {self.skew:g}{order}{page}"


@dataclass(frozen=True)
class Claim:
    """The ratio of two algorithms' rates, with what the paper says about it."""

    faster: str
    slower: str
    setting: ClaimSetting
    wanted: str
    """Bound for the ratio, such as ``≥ 2`` or ``≤ 1``; empty where the ratio is only reported."""
    paper: str

    def holds(self, ratio: float) -> bool | None:
        """Return whether a ratio is within the bound ``wanted``; None if there is no bound."""
        if not self.wanted:
            return None
        sign, bound = self.wanted.split()
        return ratio >= float(bound) if sign == "≥" else ratio <= float(bound)


OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "hybridjoin-l": {"position": (0.3, 0.6)},
    "hybridjoin-pq": {"times_average": (1.5, 2.0, 4.0)},
    "cachejoin": {"cache_share": (0.1,)},
    "cachejoin-l": {"cache_share": (0.1,)},
    "cachejoin-pq": {"cache_share": (0.1,), "times_average": (2.0,)},
    "sscj": {"cache_share": (0.1, 0.2, 0.3)},
    "cmeshjoin": {"cache_share": (0.1, 0.3)},
    "ssij": {"cache_share": (0.1, 0.3), "b": (100, 1_000)},
    "partitioned": {"cache_share": (0.1, 0.3), "b": (1_000, 10_000)},
}
"""Values of options to try, by algorithm and option."""


def claims(scale: float = 1.0) -> list[Claim]:
    """Return all claims; ``scale`` multiplies the masters' numbers of rows."""
    large, small = int(10_000_000 * scale), int(2_000_000 * scale)
    wide, narrow = large // 100, large // 300
    sscj = {
        "1%": ClaimSetting("hdd-2013", large, "1%", 1.0, pages=(wide, narrow)),
        "10%": ClaimSetting("hdd-2013", large, "10%", 1.0, pages=(wide,)),
    }
    uniform = ClaimSetting("hdd-2013", small, "10%", 0.0, pages=(small // 100,), settle=3)
    pq = partial(ClaimSetting, "hdd-2013", small, "20%", pages=(max(50, small // 2_000),), settle=6)
    found = [
        Claim("sscj", "hybridjoin", sscj["1%"], "≥ 2", "3x"),
        Claim("sscj", "hybridjoin", sscj["10%"], "≥ 3", "4.5x in one figure, about 3x in another"),
        Claim("sscj", "cachejoin", sscj["1%"], "", "least frequent victim better than random"),
        Claim("hybridjoin", "meshjoin", sscj["1%"], "≥ 1", "above"),
        Claim("hybridjoin", "meshjoin", sscj["10%"], "≥ 1", "above"),
        Claim("sscj", "meshjoin", replace(uniform, pages=(small // 1000,)), "≤ 1", "slightly below 1"),
        Claim("sscj", "meshjoin*", uniform, "≤ 1", "slightly below 1"),
        Claim("sscj", "meshjoin", uniform, "", "slightly below 1"),
        Claim("r-meshjoin", "meshjoin", sscj["1%"], "", "better with little memory"),
        Claim("cmeshjoin", "meshjoin", sscj["1%"], "", "better when skewed"),
        Claim("meshjoin", "inl", ClaimSetting("hdd-2007", large, "0.5%", 1.0), "≥ 10", "12.8x at 0.5 %"),
        Claim("meshjoin", "inl", ClaimSetting("hdd-2007", large, "1%", 0.0), "≥ 10", "about 10x"),
        Claim("hybridjoin", "ssij", sscj["1%"], "", "not compared in the papers"),
        Claim("hybridjoin", "partitioned", sscj["1%"], "", "not compared in the papers"),
        Claim("hybridjoin-pq-balanced", "hybridjoin-pq", sscj["1%"], "", "ours"),
        Claim("hybridjoin-pq-balanced", "sscj", sscj["1%"], "", "ours"),
    ]
    for order in (False, True):
        where = pq(1.0, order)
        found += [
            Claim("hybridjoin-pq", "hybridjoin", where, "≥ 1.2", "better"),
            Claim("hybridjoin-pq", "hybridjoin-l", where, "≥ 1", "better in all settings"),
            Claim("hybridjoin-l", "hybridjoin", where, "", "better at skew 1"),
            Claim("cachejoin-l", "cachejoin", where, "", "better at skew 1"),
            Claim("cachejoin-pq", "cachejoin-l", where, "", "better, less so than without a cache"),
        ]
    for skew in (0.25, 0.5, 0.75):
        found.append(Claim("hybridjoin-pq", "hybridjoin-l", pq(skew), "", "gain of -pq largest at small skew"))
        found.append(Claim("hybridjoin-pq", "hybridjoin", pq(skew), "", "no number"))
    return found


def run(
    directory: Path, *, scale: float = 1.0, seeds: tuple[int, ...] = (11, 12), console: Console | None = None
) -> dict[str, Any]:
    """Measure every claim, print it beside the paper's words, and return the figures."""
    console = console or Console()
    compared = claims(scale)
    needed = dict.fromkeys((name, c.setting) for c in compared for name in (c.faster, c.slower))
    rates: dict[tuple[str, ClaimSetting], dict[str, Any]] = {}
    with Progress(transient=True) as progress:
        task = progress.add_task("joining", total=len(needed))
        for name, setting in needed:
            progress.update(task, description=f"{name}: {setting}")
            rates[name, setting] = _best(directory, name, setting, seeds)
            progress.advance(task)
    results = [_judged(claim, rates) for claim in compared]
    _print(console, results)
    points = [{"algorithm": name, **asdict(setting), **best} for (name, setting), best in rates.items()]
    return {"claims": results, "points": points}


def _best(directory: Path, name: str, setting: ClaimSetting, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Find an algorithm's best options with the first seed; return them, the rate with each seed, and other figures."""
    store = _master(directory, setting)
    swept = [(model_rate(store, name, setting, seeds[0], options), options) for options in _variants(name, setting)]
    first, options = max(swept, key=lambda pair: float(pair[0]["rate"]))
    others = [model_rate(store, name, setting, seed, options) for seed in seeds[1:]]
    tried = [{"rate": point["rate"], **tried_options} for point, tried_options in swept]
    return {"rates": [p["rate"] for p in (first, *others)], "hits": first["hits"], "options": options, "swept": tried}


def _variants(name: str, setting: ClaimSetting) -> Iterator[dict[str, Any]]:
    swept = dict(OPTIONS.get(name, {}))
    if ALGORITHMS[name.rstrip("*")].paged:
        swept.setdefault("b", setting.pages)
    for values in product(*swept.values()):
        yield dict(zip(swept, values, strict=True))


def _master(directory: Path, setting: ClaimSetting) -> MasterStore:
    store = data.master(directory, setting.rows, ordered=setting.sorted_by_use)
    return store if store.indexed else MasterStore.add_index(store.path)


def model_rate(
    store: MasterStore, name: str, setting: ClaimSetting, seed: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Run a join to its steady state; return its tuples per second of device time and its share of cache hits."""
    device = Device(setting.disk, reads="rows")
    join = SemiStreamJoin(
        store,
        on="key",
        algorithm=name.rstrip("*"),
        memory=setting.memory,
        device=device,
        leave_early=name.endswith("*"),
        **options,
    )
    rows = max(1, min(20_000, store.rows // _BATCHES))
    stream = zipf_stream(store.rows, setting.skew, batch_rows=rows, seed=seed, shuffled=not setting.sorted_by_use)
    found = saturated(join, stream, setting.settle)
    return {"rate": found["rate"], "hits": found["hits"]}


def _judged(claim: Claim, rates: dict[tuple[str, ClaimSetting], dict[str, Any]]) -> dict[str, Any]:
    faster, slower = rates[claim.faster, claim.setting], rates[claim.slower, claim.setting]
    ratios = [a / b for a, b in zip(faster["rates"], slower["rates"], strict=True)]
    return {
        "faster": claim.faster,
        "slower": claim.slower,
        "setting": str(claim.setting),
        "paper": claim.paper,
        "wanted": claim.wanted,
        "ratio": fmean(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
        "holds": claim.holds(fmean(ratios)),
        "rates": [fmean(faster["rates"]), fmean(slower["rates"])],
        "options": [faster["options"], slower["options"]],
        "hits": [faster["hits"], slower["hits"]],
    }


def _print(console: Console, results: list[dict[str, Any]]) -> None:
    table = Table(title="Claims of the papers on modelled disks: ratio of service rates (least to greatest over seeds)")
    for column in ("", "the paper", "wanted", "measured", "", "tuples/s"):
        table.add_column(column)
    for setting in dict.fromkeys(r["setting"] for r in results):
        table.add_section()
        table.add_row(f"[bold]{setting}")
        for r in results:
            if r["setting"] == setting:
                measured = f"{r['ratio']:.2f} ({r['least']:.2f} to {r['greatest']:.2f})"
                rates = f"{r['rates'][0]:,.0f} / {r['rates'][1]:,.0f}"
                mark = {None: "", True: "✓", False: "✗"}[r["holds"]]
                table.add_row(f"{r['faster']} / {r['slower']}", r["paper"], r["wanted"], measured, mark, rates)
    console.print(table)
