"""Copies of what is in the state store, on a disk of the executor.

Values of the state store come to Python through two pickles and a socket, tens of milliseconds for a few megabytes. A
copy is found by a digest that the state store has, and is read only if that is the digest of what is in it: one that is
lost, damaged or old costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_SUFFIX = ".copy"
_UNUSED_SECONDS = 600.0
"""After this time nobody has use for a copy that nobody has used."""


def digest_of(blob: bytes) -> str:
    """What a copy of these bytes is found by.

    >>> digest_of(b"rows")[:8]
    'bc51e9e6'
    """
    return hashlib.sha256(blob).hexdigest()[:32]


class LocalCopies:
    """Copies of one shard's values."""

    def __init__(self, folder: Path, shard: int) -> None:
        self._folder, self._prefix = folder, f"shard-{shard:04d}-"

    def _path(self, digest: str) -> Path:
        return self._folder / f"{self._prefix}{digest}{_SUFFIX}"

    def get(self, digest: str) -> bytes | None:
        """The bytes with this digest, if there is a copy of them."""
        path = self._path(digest)
        try:
            blob = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return blob if digest_of(blob) == digest else None

    def put(self, digest: str, blob: bytes) -> None:
        """Keep a copy, if the disk will have it."""
        path = self._path(digest)
        aside = path.with_suffix(f".{os.getpid()}")
        try:
            aside.write_bytes(blob)
            aside.replace(path)
        except OSError:
            with suppress(OSError):
                aside.unlink()

    def forget(self, digests: Iterable[str]) -> None:
        """Remove these copies, and all of the shard that have not been used for long."""
        for digest in digests:
            with suppress(OSError):
                self._path(digest).unlink()
        long_ago = time.time() - _UNUSED_SECONDS
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.startswith(self._prefix) and entry.stat().st_mtime < long_ago:
                    os.unlink(entry.path)
