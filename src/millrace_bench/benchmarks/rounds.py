"""Measure settings side by side: each in its own process, in turn, over several rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import median

from rich.progress import Progress

from millrace_bench.benchmarks.join_worker import JoinSetting, Measurement


def measure_apart(setting: JoinSetting) -> Measurement:
    """Measure a setting in a fresh process."""
    command = [sys.executable, "-m", "millrace_bench.benchmarks.join_worker", json.dumps(asdict(setting))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and nothing was printed"]
        raise RuntimeError(f"{setting.engine}: its process failed: {lines[-1]}")
    plain = json.loads(done.stdout.strip().splitlines()[-1])
    return Measurement(**{**plain, "setting": JoinSetting(**plain["setting"])})


def side_by_side(settings: Sequence[JoinSetting], rounds: int) -> list[list[Measurement]]:
    """Measure all settings, round after round; return the measurements of each setting."""
    results: list[list[Measurement]] = [[] for _ in settings]
    with Progress(transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(settings))
        for _ in range(rounds):
            for setting, measured in zip(settings, results, strict=True):
                progress.update(task, description=f"{setting.engine}, batches of {setting.batch_rows:,}")
                measured.append(measure_apart(setting))
                progress.advance(task)
    return results


def checked(setting: JoinSetting) -> str:
    """Return the checksum of a setting's output, from a run in a fresh process."""
    return measure_apart(replace(setting, check=True)).checksum


def middle(values: Sequence[float]) -> float:
    """Return the median of the values."""
    return float(median(values))
