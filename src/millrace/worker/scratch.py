"""The directory in which the workers of an executor keep files that are not needed after the executor has ended."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def local_directory(given: str | None = None) -> Path:
    """Return ``given`` or, without it, Spark's local directory on the executor or else the temporary directory."""
    return Path(given or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
