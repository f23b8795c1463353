"""A file that ``bench rivals`` wrote, read again."""

from __future__ import annotations

from pathlib import Path

from millrace.core.errors import ConfigError
from millrace_bench.rivals.cell import Journal
from millrace_bench.rivals.engines import MILLRACE
from millrace_bench.rivals.ratios import Matrix


def kept(path: Path) -> Matrix:
    """What is in the file, whichever version measured it."""
    found = list(Journal(path, every_version=True)) if path.is_file() else []
    if not found:
        raise ConfigError(f"peers: expected a file of cells that `millrace bench rivals` wrote; got {path}")
    return Matrix.of(found, MILLRACE)
