"""Saving keyed rows to a file, or to bytes, so that another process can continue with them.

The file is written under a temporary name and renamed when it is complete. A reader copies it into memory and checks
the copy, so later changes of the file do no harm::

    "MILLSOFT" | checksum of head and arrays | length of the head | head (JSON: identity, facts, more) | arrays

The *identity* is a string that says what the rows belong to; a reader only accepts the identity that it expects. The
*facts* are the numbers that are needed besides the arrays, see :meth:`KeyedRows.facts`.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.files.atomic import replaced_file
from millrace.kernels.checksum import checksum
from millrace.rows.keyed_rows import KeyedRows

_MAGIC = b"MILLSOFT"
_MOST_HEAD = 1 << 20


PathOrBuffer = Path | io.BytesIO
"""The path of a file, or an open file in memory."""


def write_rows(path: PathOrBuffer, rows: KeyedRows, identity: str, more: dict[str, Any]) -> None:
    """Write rows to a file, replacing it if it exists, together with ``more``, which :func:`read_rows` returns."""
    if isinstance(path, io.BytesIO):
        _dump(path, rows, identity, more)
        return
    with replaced_file(path, durable=False) as temporary, temporary.open("wb", buffering=0) as file:
        _dump(file, rows, identity, more)


def read_rows(path: PathOrBuffer, rows: KeyedRows, identity: str) -> dict[str, Any] | None:
    """Fill ``rows`` from a file and return the values ``more`` that :func:`write_rows` wrote with them.

    Returns None and leaves ``rows`` empty if the file is missing, damaged, too large, or of another identity.
    """
    if isinstance(path, io.BytesIO):
        return _load(path, rows, identity)
    try:
        with path.open("rb", buffering=0) as file:
            return _load(file, rows, identity)
    except OSError:
        rows.clear()
        return None


def _dump(file: io.RawIOBase | io.BytesIO, rows: KeyedRows, identity: str, more: dict[str, Any]) -> None:
    rows.trim()
    facts = rows.facts()
    arrays = rows.arrays(facts)
    head = json.dumps({"identity": identity, "facts": facts, "more": more}).encode()
    _write_all(file, _MAGIC + _number(_sum(head, arrays)) + _number(len(head)) + head)
    for array in arrays:
        _write_all(file, array.view(np.uint8).data if array.size else b"")


def _load(file: io.RawIOBase | io.BytesIO, rows: KeyedRows, identity: str) -> dict[str, Any] | None:
    try:
        if file.read(8) != _MAGIC:
            return None
        total, length = (int.from_bytes(file.read(8) or b"", "little") for _ in range(2))
        if length > _MOST_HEAD:
            return None
        written = file.read(length) or b""
        head = json.loads(written)
        facts = head["facts"]
        if head["identity"] != identity or not rows.make_room_for(facts):
            return None
        arrays = rows.arrays(facts)
        if all(_fill(file, array) for array in arrays) and _sum(written, arrays) == total:
            rows.accept(facts)
            more: dict[str, Any] = head["more"]
            return more
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        pass
    rows.clear()
    return None


def _sum(head: bytes, arrays: list[npt.NDArray[Any]]) -> int:
    total = 0
    for array in (np.frombuffer(head, np.uint8), *arrays):
        total = checksum(array, total)
    return total


def _number(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _write_all(file: io.RawIOBase | io.BytesIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def _fill(file: io.RawIOBase | io.BytesIO, array: npt.NDArray[Any]) -> bool:
    """Fill an array from a file; return False if the file ends too early."""
    view = array.view(np.uint8).data if array.size else memoryview(b"")
    while view:
        got = file.readinto(view)
        if not got:
            return False
        view = view[got:]
    return True
