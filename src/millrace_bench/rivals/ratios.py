"""Compare rates: by how much Millrace is ahead of each peer, and where a peer is ahead of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from millrace.core.errors import ConfigError
from millrace_bench.rivals.cell import Cell, CellResult, CellSetting

Rates = dict[CellSetting, dict[str, CellResult]]


@dataclass(frozen=True)
class Matrix:
    """All results of a run, by setting and engine."""

    rates: Rates
    memories: Rates
    """Results of the one setting that was measured with several budgets."""
    mine: tuple[str, ...]
    """Engines that are Millrace's own."""

    @classmethod
    def of(cls, found: Iterable[tuple[Cell, CellResult]], mine: Iterable[str]) -> Matrix:
        """Return the matrix of some results; ``mine`` names the engines that are Millrace's own.

        Its ``rates`` hold only the results with the memory budget that most results have.
        """
        every = list(found)
        if not every:
            raise ConfigError("rivals: expected results of at least one cell; there are none")
        usual, _ = Counter(cell.memory for cell, _ in every).most_common(1)[0]
        other = [cell for cell, _ in every if cell.memory != usual]
        places, engines = [(c.rows, c.skew, c.batch_rows) for c in other][:1], {c.engine for c in other}
        varied = ((c, one) for c, one in every if (c.rows, c.skew, c.batch_rows) in places and c.engine in engines)
        return cls(by_setting(every, usual), by_setting(varied), tuple(mine))


@dataclass(frozen=True)
class Win:
    """A setting in which a peer is faster than every engine of Millrace."""

    setting: CellSetting
    peer: str
    best: str
    factor: float
    """The peer's rate divided by the rate of ``best``, the fastest engine of Millrace."""

    def __str__(self) -> str:
        return f"{describe(self.setting)}: {self.peer} is {self.factor:.2f} times as fast as {self.best}"


@dataclass(frozen=True)
class Summary:
    """A comparison of a peer with the fastest engine of Millrace over all settings in which the peer has a result."""

    peer: str
    settings: int
    wins: int
    least: float
    middle: float
    most: float
    """Greatest ratio of the rates of Millrace's fastest engine and the peer; ``middle`` is the median ratio."""
    failures: int

    def __str__(self) -> str:
        if not self.settings:
            return f"{self.peer}: no result in {self.failures} settings"
        ahead = "is never ahead" if not self.wins else f"is ahead in {self.wins} of {self.settings} settings"
        failed = f"; no result in {self.failures}" if self.failures else ""
        times = f"{self.middle:.2f} times its rate (median; {self.least:.2f} to {self.most:.2f})"
        return f"{self.peer} {ahead}; the best of Millrace has {times}{failed}"


def by_setting(found: Iterable[tuple[Cell, CellResult]], memory: str | None = None) -> Rates:
    """Return the results by setting, in ascending order, and by engine.

    Of several rounds of an engine in a setting, the one with the median rate is kept. If ``memory`` is given, results
    with another budget are left out.
    """
    rounds: dict[CellSetting, dict[str, list[CellResult]]] = {}
    for cell, one in found:
        if memory is None or cell.memory == memory:
            rounds.setdefault(cell.setting, {}).setdefault(cell.engine, []).append(one)
    return {setting: {engine: _middle(runs) for engine, runs in rounds[setting].items()} for setting in sorted(rounds)}


def _middle(runs: list[CellResult]) -> CellResult:
    good = sorted((run for run in runs if not run.failed), key=lambda run: run.rate)
    return good[(len(good) - 1) // 2] if good else runs[0]


def best_of(here: dict[str, CellResult], engines: Collection[str]) -> str | None:
    """Return the name of the fastest of some engines in one setting; None if none of them has a result."""
    given = [engine for engine in here if engine in engines and not here[engine].failed]
    return max(given, key=lambda engine: here[engine].rate, default=None)


def ratio(here: dict[str, CellResult], peer: str, mine: Collection[str]) -> float | None:
    """Return the rate of Millrace's fastest engine divided by the peer's; None if either has no result."""
    best = best_of(here, mine)
    if best is None or peer not in here or here[peer].failed:
        return None
    return here[best].rate / here[peer].rate


def wins(rates: Rates, mine: Collection[str]) -> list[Win]:
    """Return the settings in which a peer is faster than every engine of Millrace, the greatest lead first."""
    found = []
    for setting, here in rates.items():
        best = best_of(here, mine)
        for peer in here:
            times = None if peer in mine else ratio(here, peer, mine)
            if best is not None and times is not None and times < 1:
                found.append(Win(setting, peer, best, 1 / times))
    return sorted(found, key=lambda win: -win.factor)


def summaries(rates: Rates, mine: Collection[str]) -> list[Summary]:
    """Return a summary of how each peer compares with Millrace."""
    peers = dict.fromkeys(engine for here in rates.values() for engine in here if engine not in mine)
    found = []
    for peer in peers:
        times = [t for here in rates.values() if (t := ratio(here, peer, mine)) is not None]
        failures = sum(bool(here[peer].failed) for here in rates.values() if peer in here)
        spread = (min(times), median(times), max(times)) if times else (math.nan,) * 3
        found.append(Summary(peer, len(times), sum(t < 1 for t in times), *spread, failures))
    return found


def differing(rates: Rates) -> list[str]:
    """Return a line for each setting in which engines returned different rows, with their checksums."""
    found = []
    for setting, here in rates.items():
        sums = {engine: one.checksum for engine, one in here.items() if not one.failed and one.checksum}
        if len(set(sums.values())) > 1:
            found.append(f"{describe(setting)}: ROWS DIFFER: {sums}")
    return found


def table(
    rates: Rates, engines: Sequence[str], mine: Collection[str], rows: int
) -> Iterator[tuple[float, int, list[str]]]:
    """Yield the skew, the batch size and the engines' rates as texts, for each setting with ``rows`` master rows.

    A peer's rate is followed by how many times as fast Millrace's fastest engine is.
    """
    for setting, here in rates.items():
        if setting.rows == rows:
            yield setting.skew, setting.batch_rows, [_text(here, engine, mine) for engine in engines]


def _text(here: dict[str, CellResult], engine: str, mine: Collection[str]) -> str:
    if engine not in here:
        return ""
    one = here[engine]
    if one.failed:
        return one.failed
    times = None if engine in mine else ratio(here, engine, mine)
    return short(one.rate) + ("" if times is None else f" ({_times(times)}×)")


def short(rate: float) -> str:
    """Return a rate as a short text.

    >>> short(3_448_123), short(56_776), short(840)
    ('3.45 M', '57 k', '840')
    """
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k" if rate >= 1e4 else f"{rate:,.0f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def describe(setting: CellSetting) -> str:
    """Return a setting's rows, skew and batch size in words."""
    return f"{amount(setting.rows)} rows, skew {setting.skew:g}, batches of {setting.batch_rows:,}"


def amount(rows: int) -> str:
    """Return a number of rows in millions, as a short text.

    >>> amount(50_000_000), amount(200_000)
    ('50 M', '0.2 M')
    """
    return f"{rows / 1e6:g} M"
