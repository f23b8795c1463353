"""A file that ``bench rivals`` wrote, read again."""

from __future__ import annotations

from pathlib import Path

from millrace.bench.rivals.cell import Journal
from millrace.bench.rivals.engines import MILLRACE
from millrace.bench.rivals.ratios import Matrix
from millrace.core.errors import ConfigError


def kept(path: Path) -> Matrix:
    """What is in the file, whichever version measured it."""
    found = list(Journal(path, every_version=True)) if path.is_file() else []
    if not found:
        raise ConfigError(f"peers: expected a file of cells that `millrace bench rivals` wrote; got {path}")
    return Matrix.of(found, MILLRACE)
