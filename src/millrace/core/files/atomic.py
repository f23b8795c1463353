"""Files and directories that get their name only once they are complete, and survive a power cut.

Each step is on the disk before the next begins::

    write under a temporary name ─► fsync the file ─► rename ─► fsync the directory that has the name

A reader sees either the old content or the complete new content. If a writer fails, its temporary file is removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CURRENT_DIRECTORY = -100  # AT_FDCWD
_NO_REPLACE, _EXCHANGE = 1, 2  # RENAME_NOREPLACE, RENAME_EXCHANGE


def flush(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, and flush their names to the disk."""
    made = []
    missing = path
    while not missing.exists():
        made.append(missing)
        missing = missing.parent
    path.mkdir(parents=True, exist_ok=True)
    for directory in reversed(made):
        flush(directory.parent)


def temporary_name(path: Path) -> Path:
    """Return a hidden name in the same directory that no other writer uses.

    >>> temporary_name(Path("/data/table.parquet")).match("/data/.table.parquet-????????????")
    True
    """
    return path.with_name(f".{path.name}-{uuid.uuid4().hex[:12]}")


def take_name(temporary: Path, path: Path) -> None:
    """Rename a complete file to ``path``, replacing a file there; flush the file and its new name to the disk."""
    flush(temporary)
    os.replace(temporary, path)
    flush(path.parent)


@contextmanager
def replaced_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; the file is renamed to ``path`` if the block ends without an error.

    Parameters
    ----------
    durable
        Flush the file and its directory, so that a power cut leaves either the old or the new content. If false, other
        processes still never see half a file, which is enough for a cache whose readers check what they read.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "counts.json")
    >>> with replaced_file(path) as temporary:
    ...     _ = temporary.write_text("[1, 2]")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('[1, 2]', 1)
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        if durable:
            take_name(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write ``content`` to a file, replacing the file there, if any; see :func:`replaced_file`."""
    with replaced_file(path, durable=durable) as temporary:
        temporary.write_bytes(content)


def take_new_name(temporary: Path, path: Path) -> None:
    """Rename a directory to ``path``; raise an ``OSError`` if there is already something of this name."""
    _rename(temporary, path, _NO_REPLACE)
    flush(path.parent)


def swap_names(one: Path, other: Path) -> None:
    """Swap the names of two directories, on Linux in one step."""
    _rename(one, other, _EXCHANGE)
    flush(other.parent)


def _rename(source: Path, target: Path, flag: int) -> None:
    """Swap two names, or rename without replacing anything, depending on ``flag``.

    On Linux this is one system call. On other systems it takes several calls.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # not Linux: several calls, not atomic
        if flag == _EXCHANGE:
            aside = source.with_name(source.name + "-old")
            target.rename(aside)
            source.rename(target)
            aside.rename(source)
        elif os.path.lexists(target):
            raise OSError(errno.EEXIST, "already exists", str(target))
        else:
            source.rename(target)
    elif renameat2(_CURRENT_DIRECTORY, os.fsencode(source), _CURRENT_DIRECTORY, os.fsencode(target), flag):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))
