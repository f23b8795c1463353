"""A directory that becomes a store all at once, or leaves no trace.

Everything is written under a temporary name beside the target. If the build fails (a full disk, Ctrl-C, a bad batch),
the temporary directory is removed and what was at the target before is still there. What a killed build leaves
behind is removed by the next build of the same store.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

from millrace.core.errors import StoreError, StoreExistsError
from millrace.core.files.atomic import flush, make_directory, swap_names, take_new_name
from millrace.core.files.leftovers import WorkDirectory, remove_leftovers
from millrace.master.manifest import is_store


class StagingDirectory:
    """The directory in which a store is built, as a context manager. Nothing is visible before :meth:`commit`.

    Parameters
    ----------
    target
        The path of the store to build.
    overwrite
        Replace a store that is there already.
    """

    def __init__(self, target: Path, overwrite: bool) -> None:
        self.target = Path(os.path.realpath(target))
        self._overwrite = overwrite
        self._work: WorkDirectory | None = None

    @property
    def directory(self) -> Path:
        """The directory to write to, inside of the ``with`` block."""
        assert self._work is not None
        return self._work.path

    def __enter__(self) -> StagingDirectory:
        self._check_target()
        prefix = f".building-{self.target.name}-"
        try:
            make_directory(self.target.parent)
            remove_leftovers(self.target.parent, prefix)
            self._work = WorkDirectory(self.target.parent, prefix)
        except OSError as error:
            raise self._failure(error) from error
        return self

    def commit(self) -> None:
        """Make the directory visible under the name of the store, in one rename."""
        for folder in (*(f for f in self.directory.iterdir() if f.is_dir()), self.directory):
            flush(folder)
        if self._overwrite and os.path.lexists(self.target):
            self._check_target()
            swap_names(self.directory, self.target)  # the old store is removed with the temporary directory
            return
        try:
            take_new_name(self.directory, self.target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise StoreExistsError(f"{self.target}: was made by another process meanwhile; it was left alone") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._work is not None:
            self._work.remove()
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> StoreError:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        return StoreError(f"{self.target}: could not be built: {reason}; nothing was written there")

    def _check_target(self) -> None:
        """Raise an error if there is already something at the target that must not be replaced."""
        try:
            if os.path.lexists(self.target) and not self._overwrite:
                raise StoreExistsError(f"{self.target}: already exists; pass overwrite=True to replace it")
            if os.path.lexists(self.target) and not is_store(self.target):
                raise StoreExistsError(f"{self.target}: exists and is not a master store, so it is not replaced")
        except (OSError, ValueError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self.target}: a store cannot be built there: {error}") from None
