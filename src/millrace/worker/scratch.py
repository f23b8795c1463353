"""Where the workers of one executor keep files that are not needed after it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def local_directory(given: str | None = None) -> Path:
    """Return ``given``, or Spark's local directory (removed with the executor), or the system's for temporary files."""
    return Path(given or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
