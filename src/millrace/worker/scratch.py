"""Where workers of one executor keep files that need not outlive it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def local_directory(given: str | None = None) -> Path:
    """The directory that was asked for, or Spark's local one, which goes with the executor."""
    return Path(given or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
