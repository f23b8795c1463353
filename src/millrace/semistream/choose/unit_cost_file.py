"""Unit costs of this machine, measured once and saved in the user's cache directory.

A file is valid for one kind of machine, one set of versions, and similar masters: with the same columns, key and index,
and about as many rows. If it cannot be read, costs are measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from millrace.core.files.atomic import write_file
from millrace.cost.measured import Calibration, MeasuredCosts
from millrace.cost.symbols import Disk
from millrace.master.store import MasterStore

_FORM = 2


def remembered(master: MasterStore, directory: Path | None = None) -> Calibration | None:
    """Return the unit costs saved for this machine and masters like this one; None if there are none."""
    return _read(remembered_at(master, directory))


def remembered_at(master: MasterStore, directory: Path | None = None) -> Path:
    """Return the path of the file with the unit costs of this machine for masters like this one."""
    if directory is None:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"
    like = [
        _FORM, processor(), os.cpu_count(), platform.python_version(),
        *(version(name) for name in ("millrace", "numpy", "numba", "pyarrow")),
        str(master.schema), list(master.key), master.indexed, master.unique, master.shards, master.rows.bit_length(),
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(like).encode()).hexdigest()[:16]
    return directory / f"costs-{name}.json"


def processor() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _read(path: Path) -> Calibration | None:
    try:
        plain: dict[str, Any] = json.loads(path.read_text())
        return Calibration(
            MeasuredCosts.from_plain(plain["costs"]), Disk(plain["page"], float("inf")), dict(plain["spread"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(path: Path, found: Calibration) -> None:
    """Write unit costs to a file; ignore errors, because the costs can be measured again next time."""
    plain = {"costs": found.costs.to_plain(), "page": found.disk.seek, "spread": found.spread}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(plain, indent=1).encode() + b"\n", durable=False)
