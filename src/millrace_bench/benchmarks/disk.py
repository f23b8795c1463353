"""Compare SSBJ with MESHJOIN where the disk is the bottleneck, on the device model's virtual clock.

Service rate is tuples per second of device time, over whole turns of the wheel after a warm-up, with tuples always
available. Loads transfer whole rows, and tuples stay for a whole turn, as in the papers. A join that keeps a list of
tuples for each key, and removes expired tuples from the list by value, would be slower. To estimate its rate, the list
entries that it would move are counted in the same run, and the time to move one entry is measured on this machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.datasets import zipf_stream
from millrace.master.device import Device
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.shared import data


def run(
    directory: Path,
    *,
    rows: int = 20_000_000,
    shares: tuple[float, ...] = (1, 2, 5, 10),
    skew: float = 1.0,
    disk: str = "hdd-2007",
    warm_up: float = 24,
    turns: float = 4,
    migrations: tuple[str, ...] = ("rolling", "three-cycle"),
    console: Console | None = None,
) -> dict[str, Any]:
    """Run SSBJ and MESHJOIN with several budgets; print and return rates at equal memory and memory at equal rate."""
    console = console or Console()
    store = data.master(directory, rows, unique=False)
    shift = seconds_per_shift()
    runs: dict[str, list[dict[str, Any]]] = {}
    with Progress(transient=True) as progress:
        task = progress.add_task("turning", total=len(shares) * (1 + len(migrations)))
        variants: list[tuple[str, dict[str, Any]]] = [("meshjoin", {})]
        variants += [("ssbj " + m, {"migration": m}) for m in migrations]
        for name, options in variants:
            runs[name] = []
            for share in shares:
                progress.update(task, description=f"{name} {share:g}%")
                device = Device(disk, reads="rows")
                join = SemiStreamJoin(
                    store,
                    on="key",
                    algorithm=name.split()[0],
                    memory=f"{share}%",
                    device=device,
                    leave_early=False,
                    **options,
                )
                runs[name].append({"share": share, **_steady(join, device, rows, skew, warm_up, turns, shift)})
                progress.advance(task)
    best = max(migrations, key=lambda m: runs["ssbj " + m][-1]["rate"])
    _print(console, runs, best, rows, skew, disk, shift)
    return {
        "rows": rows,
        "skew": skew,
        "disk": disk,
        "seconds_per_shift": shift,
        "runs": runs,
        "memory_ratio": _memory_ratio(runs["meshjoin"], runs["ssbj " + best]),
    }


def _steady(
    join: SemiStreamJoin, device: Device, rows: int, skew: float, warm_up: float, turns: float, shift: float
) -> dict[str, Any]:
    """Push batches until ``warm_up`` turns of the wheel are over; return figures of the next ``turns`` turns."""
    marks: list[tuple[float, int, int, int, int]] = []
    for batch in zipf_stream(rows, skew, batch_rows=max(100, min(20_000, rows // 1_000)), seed=11):
        for _ in join.push(batch):
            continue
        m = join.metrics
        if m.cycles >= warm_up:
            marks.append((device.clock.now(), m.tuples_in, m.cache_hits, m.removal_shifts, m.removals))
        if m.cycles >= warm_up + turns:
            break
    seconds, tuples, hits, shifts, _ = (last - first for first, last in zip(marks[0], marks[-1], strict=True))
    m = join.metrics
    return {
        "rate": tuples / seconds,
        "rate_by_value": tuples / (seconds + shifts * shift),
        "shifts_per_tuple": shifts / tuples,
        "hit_share": hits / tuples,
        "cached_keys": m.cached_keys,
        "peak_bytes": m.peak_bytes,
        "budget_bytes": m.budget_bytes,
        "parts": dict(m.parts),
    }


def seconds_per_shift() -> float:
    """Return how many seconds it takes to move a 4-byte entry of a list by one place, measured on a long list."""
    entries = np.zeros(200_000, np.int32)
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        entries[:-1] = entries[1:]
        best = min(best, time.perf_counter() - start)
    return best / len(entries)


def _memory_ratio(mesh: list[dict[str, Any]], ssbj: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the memory that each join needs for the same rate, in percent of the master.

    The rates are the measured ones of SSBJ; MESHJOIN's memory for them is interpolated on its measured curve. Rates
    outside that curve are left out.
    """
    out = []
    for point in ssbj:
        rates = [run["rate"] for run in mesh]
        if rates[0] <= point["rate"] <= rates[-1]:
            share = float(np.exp(np.interp(np.log(point["rate"]), np.log(rates), np.log([r["share"] for r in mesh]))))
            ratio = share / point["share"]
            out.append({"rate": point["rate"], "ssbj": point["share"], "meshjoin": share, "ratio": ratio})
    return out


def _print(
    console: Console, runs: dict[str, list[dict[str, Any]]], best: str, rows: int, skew: float, disk: str, shift: float
) -> None:
    table = Table(title=f"{disk} model, {rows:,} rows (keys repeat), skew {skew:g}: tuples per second of device time")
    names = list(runs)
    for column in ["memory", *names, "ratio", "hit share", "by value: meshjoin", "ssbj", "ratio"]:
        table.add_column(column, justify="right")
    for i, mesh in enumerate(runs["meshjoin"]):
        ssbj = runs["ssbj " + best][i]
        table.add_row(
            f"{mesh['share']:g}%",
            *(f"{runs[name][i]['rate']:,.0f}" for name in names),
            f"{ssbj['rate'] / mesh['rate']:.2f}",
            f"{ssbj['hit_share']:.0%}",
            f"{mesh['rate_by_value']:,.0f}",
            f"{ssbj['rate_by_value']:,.0f}",
            f"{ssbj['rate_by_value'] / mesh['rate_by_value']:.2f}",
        )
    console.print(table)
    for point in _memory_ratio(runs["meshjoin"], runs["ssbj " + best]):
        console.print(
            f"{point['rate']:,.0f} tuples/s: ssbj needs {point['ssbj']:g}% of the master, "
            f"meshjoin {point['meshjoin']:.2f}%: {point['ratio']:.1f}×"
        )
    console.print(f"(one list entry moves in {shift * 1e9:.2f} ns here)")
