"""Temporary directories and files: how they are made, and how those of killed processes are removed.

A work directory has a lock file beside it, held as long as the directory is in use::

    <parent>/.spill-0123456789ab.lock
    <parent>/.spill-0123456789ab/…

A lock that no process holds means that the owner was killed, and the directory may be removed. Files without a lock are
removed once they have not been used for some time.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from millrace.core.files.locks import lock_at_once

_LOCK = ".lock"  # beside the directory, and made before it


class WorkDirectory:
    """A new directory with a unique name, and a lock file beside it; :meth:`remove` removes both.

    Parameters
    ----------
    parent
        The directory in which to make it, which must exist.
    prefix
        The beginning of the directory's name; a leading dot hides the directory.
    mode
        Permissions of the directory, before the process's umask is applied.

    Examples
    --------
    >>> import tempfile
    >>> parent = Path(tempfile.mkdtemp())
    >>> work = WorkDirectory(parent, ".sorting-")
    >>> work.path.is_dir(), len(list(parent.iterdir()))
    (True, 2)
    >>> remove_leftovers(parent, ".sorting-")  # it is in use
    >>> work.path.is_dir()
    True
    >>> work.remove(); list(parent.iterdir())
    []
    """

    def __init__(self, parent: Path, prefix: str, mode: int = 0o777) -> None:
        self._owner = os.getpid()
        while True:
            self.path = parent / f"{prefix}{uuid.uuid4().hex[:12]}"
            lock = _lock_of(self.path)
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                lock_at_once(self._lock)
                if os.path.samestat(os.fstat(self._lock), os.stat(lock)):
                    self.path.mkdir(mode)
                    return
            except (BlockingIOError, FileNotFoundError):
                pass  # another process took it for a leftover before it was locked
            except BaseException:
                lock.unlink(missing_ok=True)
                os.close(self._lock)
                raise
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the directory and its lock. A process that was forked from the owner leaves both alone."""
        if os.getpid() == self._owner:
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                _lock_of(self.path).unlink()
        os.close(self._lock)


def remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove the work directories in ``parent`` that have this prefix and whose process was killed."""
    lock_name = re.compile(re.escape(prefix) + "[0-9a-f]{12}" + re.escape(_LOCK))
    for path in parent.glob(f"*{_LOCK}"):
        if not lock_name.fullmatch(path.name):
            continue
        with suppress(OSError), path.open("r+") as lock:  # an error: it is in use, or belongs to another user
            lock_at_once(lock.fileno())
            shutil.rmtree(path.with_name(path.name.removesuffix(_LOCK)), ignore_errors=True)
            path.unlink(missing_ok=True)


def remove_unused(directory: Path, pattern: str, seconds: float) -> None:
    """Remove files whose names match ``pattern`` and that were last modified more than ``seconds`` ago."""
    oldest = time.time() - seconds
    for path in directory.glob(pattern):
        with suppress(OSError):  # another process may remove it too
            if path.stat().st_mtime < oldest:
                path.unlink()


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LOCK)
