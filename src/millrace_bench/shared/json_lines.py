"""A file with one JSON value per line that grows during a benchmark and survives a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millrace.core.errors import CorruptStoreError
from millrace.core.files.atomic import write_file

_BEGIN = b'{"version"'


class JsonLinesFile:
    """A file of results, one JSON object per line; each begins with the version of Millrace that wrote it.

    ``what`` says in error messages what a line should contain. An unfinished last line, left by a run that was stopped,
    is ignored. The next ``append`` removes it; reading does not change the file.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._torn: tuple[int, int] | None = None  # offsets in the file at which the unfinished line begins and ends

    def read(self, take: Callable[[Any], None]) -> None:
        """Pass each line's value to ``take``; raise CorruptStoreError where a line is not JSON or ``take`` fails."""
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
        if data[end:][: len(_BEGIN)] != _BEGIN[: len(data) - end]:  # a line that no benchmark wrote
            yield data[end:]

    def keep_only(self, wanted: Callable[[Any], bool]) -> None:
        """Remove every line for which ``wanted`` is false; the file is replaced as a whole or stays as it was."""
        if not self.path.exists():
            return
        kept = [line for line in self._whole() if wanted(json.loads(line))]
        write_file(self.path, b"".join(line + b"\n" for line in kept))
        self._torn = None

    def append(self, value: Any) -> None:
        """Append a value as one line, which is in the file when the method returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._torn is not None:
            begin, end = self._torn
            if self.path.stat().st_size == end:  # no other process has appended to it
                os.truncate(self.path, begin)
            self._torn = None
        with self.path.open("a") as file:
            file.write(json.dumps(value) + "\n")
