"""A directory that becomes a store all at once, or leaves no trace.

Everything is written under a temporary name beside the target. If anything goes wrong on the way (a full disk,
Ctrl-C, a bad batch) the temporary directory is removed and what was at the target before is still there. A build that
was killed is recognised by its lock, which nobody holds any more, and removed by the next build of the same store.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from millrace.core.errors import StoreError, StoreExistsError
from millrace.master.manifest import is_store

_PREFIX = ".building-"
_LOCK = ".lock"  # beside the directory, and made before it
_HERE = -100  # AT_FDCWD
_NO_REPLACE, _EXCHANGE = 1, 2  # RENAME_NOREPLACE, RENAME_EXCHANGE


class Building:
    """The place where a store is built. Use as a context; nothing is visible before :meth:`commit`."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self.path = Path(os.path.realpath(path))
        self._overwrite = overwrite
        self.directory = self.path.parent / f"{_PREFIX}{self.path.name}-{uuid.uuid4().hex[:12]}"
        self._lock: TextIO | None = None

    def __enter__(self) -> Building:
        self._check_target()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self.path)
            self._lock = _lock_of(self.directory).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.directory.mkdir()
        except BaseException as error:
            self._remove()
            if isinstance(error, OSError):
                raise self._failure(error) from error
            raise
        return self

    def commit(self) -> None:
        """Make the directory visible under its name, in one rename."""
        for folder in (*(f for f in self.directory.iterdir() if f.is_dir()), self.directory):
            _flush(folder)
        if self._overwrite and os.path.lexists(self.path):
            self._check_target()
            _rename(self.directory, self.path, _EXCHANGE)  # what was there is removed with the temporary directory
        else:
            try:
                _rename(self.directory, self.path, _NO_REPLACE)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
                raise StoreExistsError(f"{self.path}: was made by somebody else meanwhile; it was left alone") from None
        _flush(self.path.parent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise self._failure(error) from error

    def _remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):
            _lock_of(self.directory).unlink()
        if self._lock is not None:
            self._lock.close()

    def _failure(self, error: OSError) -> StoreError:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        return StoreError(f"{self.path}: could not be built: {reason}; nothing was written there")

    def _check_target(self) -> None:
        """Refuse to build where something is already, unless it is a store that may be replaced."""
        try:
            if os.path.lexists(self.path) and not self._overwrite:
                raise StoreExistsError(f"{self.path}: already exists; pass overwrite=True to replace it")
            if os.path.lexists(self.path) and not is_store(self.path):
                raise StoreExistsError(f"{self.path}: exists and is not a master store, so it is not replaced")
        except (OSError, ValueError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self.path}: cannot be built there: {error}") from None


def _rename(source: Path, target: Path, flag: int) -> None:
    """Rename by one system call that either swaps two directories or refuses to replace anything."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # not Linux: two steps have to do
        if flag == _EXCHANGE:
            aside = source.with_name(source.name + "-old")
            target.rename(aside)
            source.rename(target)
            aside.rename(source)
        elif os.path.lexists(target):
            raise OSError(errno.EEXIST, "already exists", str(target))
        else:
            source.rename(target)
    elif renameat2(_HERE, os.fsencode(source), _HERE, os.fsencode(target), flag):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _remove_leftovers(path: Path) -> None:
    """Remove what builds of the same store left behind when their process was killed."""
    ours = re.compile(re.escape(_PREFIX + path.name) + "-[0-9a-f]{12}" + re.escape(_LOCK))
    for found in path.parent.glob(f"{_PREFIX}*{_LOCK}"):
        if not ours.fullmatch(found.name):
            continue
        try:
            with found.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(found.with_name(found.name.removesuffix(_LOCK)), ignore_errors=True)
                found.unlink(missing_ok=True)
        except OSError:
            continue  # somebody is at work there


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LOCK)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
