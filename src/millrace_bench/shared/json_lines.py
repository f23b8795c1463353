"""A file with a JSON value in each line that grows as a benchmark goes on, and survives being cut off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millrace.core.errors import CorruptStoreError

_BEGIN = b'{"version"'


class Lines:
    """What a run has kept, line by line; a line is an object whose first key is the version that wrote it.

    A line that was being written when a run was stopped does not count. It is cut off when the next one is written,
    so reading changes nothing.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._torn: tuple[int, int] | None = None  # where the unfinished line begins and ends

    def read(self, take: Callable[[Any], None]) -> None:
        """Give every value to ``take``; a line that it cannot take is named."""
        for number, line in enumerate(self._whole(), 1):
            try:
                take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorruptStoreError(
                    f"{self.path}, line {number}: expected {self._what}; got {line[:60].decode(errors='replace')!r}"
                ) from error

    def _whole(self) -> Iterator[bytes]:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            self._torn = (end, len(data))
        yield from data[:end].splitlines()
        if data[end:][: len(_BEGIN)] != _BEGIN[: len(data) - end]:  # nothing that was written here
            yield data[end:]

    def keep_only(self, wanted: Callable[[Any], bool]) -> None:
        """Forget all other lines; the file is as it was or as it shall be, whatever happens."""
        if not self.path.exists():
            return
        kept = [line for line in self._whole() if wanted(json.loads(line))]
        new = self.path.with_suffix(f".{os.getpid()}")
        try:
            new.write_bytes(b"".join(line + b"\n" for line in kept))
            new.replace(self.path)
        finally:
            new.unlink(missing_ok=True)
        self._torn = None

    def append(self, value: Any) -> None:
        """Write a line; it is there whatever happens next."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._torn is not None:
            begin, end = self._torn
            if self.path.stat().st_size == end:  # nobody else has gone on with it
                os.truncate(self.path, begin)
            self._torn = None
        with self.path.open("a") as file:
            file.write(json.dumps(value) + "\n")
