"""Copies of values of the state store, on a disk of the executor.

A value of the state store is pickled twice and sent through a socket before Python has it, which takes tens of
milliseconds for a few megabytes. The state store also contains the digest of each value. A copy is found by the digest,
and is used only if its contents match it. So a copy that is lost, damaged or old costs time, but changes no result.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from millrace.core.files.atomic import write_file
from millrace.core.files.leftovers import remove_unused

_SUFFIX = ".copy"
_UNUSED_SECONDS = 600.0
"""Time after its last use at which a copy is removed, in seconds."""


def digest_of(blob: bytes) -> str:
    """Return the digest by which a copy of these bytes is found.

    >>> digest_of(b"rows")[:8]
    'bc51e9e6'
    """
    return hashlib.sha256(blob).hexdigest()[:32]


class LocalCopies:
    """Copies, on a local disk, of the values in one shard's state."""

    def __init__(self, folder: Path, shard: int) -> None:
        self._folder, self._prefix = folder, f"shard-{shard:04d}-"

    def _path(self, digest: str) -> Path:
        return self._folder / f"{self._prefix}{digest}{_SUFFIX}"

    def get(self, digest: str) -> bytes | None:
        """Return the bytes with this digest; None if there is no intact copy."""
        path = self._path(digest)
        try:
            blob = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return blob if digest_of(blob) == digest else None

    def put(self, digest: str, blob: bytes) -> None:
        """Write a copy; errors of the disk are ignored."""
        with suppress(OSError):
            write_file(self._path(digest), blob, durable=False)

    def forget(self, digests: Iterable[str]) -> None:
        """Remove the copies with these digests, and all copies of the shard that have not been used for ten minutes."""
        for digest in digests:
            with suppress(OSError):
                self._path(digest).unlink()
        remove_unused(self._folder, f"{self._prefix}*", _UNUSED_SECONDS)
