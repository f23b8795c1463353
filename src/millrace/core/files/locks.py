"""Locks between processes, on files. The system releases a lock when the process that holds it ends or is killed."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_at_once(descriptor: int) -> None:
    """Lock an open file; raise a ``BlockingIOError`` if another process holds the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file during the block, after waiting until no other process holds the lock. The file is not removed."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
