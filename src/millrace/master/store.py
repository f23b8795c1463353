"""``MasterStore``: master data in a directory, opened without reading the rows, and read through memory maps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError, CorruptStoreError, StoreError
from millrace.core.sizes import format_size
from millrace.master.manifest import Manifest
from millrace.master.read.mapped_rows import MappedRows
from millrace.master.read.record_file import Records
from millrace.master.read.shard_index import ShardIndex
from millrace.master.store_files import map_codes
from millrace.master.write.build_store import build_store, write_index
from millrace.rows.key_codes import KeyCoder

if TYPE_CHECKING:
    import pyarrow.dataset

Progress = Callable[[int], None]


class MasterStore:
    """Master data on disk, made by :meth:`build`, opened by :meth:`open`.

    Examples
    --------
    >>> import tempfile
    >>> customers = pa.table({"custkey": [1, 2, 3], "name": ["Ann", "Bo", "Cy"]})
    >>> store = MasterStore.build(customers, tempfile.mkdtemp() + "/customers", key="custkey")
    >>> store.rows, store.key, store.unique
    (3, ('custkey',), True)
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        key_fields = [manifest.schema.field(name) for name in manifest.key]
        self.coder = KeyCoder([field.type for field in key_fields], manifest.key)
        self._codes: dict[int, npt.NDArray[np.int64]] = {}
        self._rows: dict[int, MappedRows] = {}
        self._indexes: dict[int, ShardIndex] = {}

    @staticmethod
    def build(
        source: pa.Table
        | pa.RecordBatchReader
        | pyarrow.dataset.Dataset
        | str
        | os.PathLike[str]
        | Iterable[pa.RecordBatch],
        path: str | os.PathLike[str],
        key: str | Iterable[str],
        *,
        shards: int = 1,
        columns: Iterable[str] | None = None,
        page_rows: int = 65_536,
        index: bool = True,
        records: bool = True,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> MasterStore:
        """Write master data to a new store.

        Parameters
        ----------
        source
            A table, a reader, a dataset, an iterable of record batches, or the path of a Parquet file or folder or an
            Arrow file.
        path
            The directory to make. Nothing is visible there before everything is written.
        key
            The key column, or several.
        shards
            Number of parts into which the rows are split, by ``pmod(xxhash64(key), shards)`` as Spark SQL computes it.
        columns
            Columns to keep besides the key; all by default.
        page_rows
            Number of rows in a page; each page is one record batch of the data file.
        index
            Write an index from keys to rows too (about 14 bytes a row). Algorithms that only scan need none.
        records
            With an index, also write every row in one piece, so that a look-up reads one place instead of one for every
            column. Look-ups are then several times as fast; the records take about as much disk space as the rows.
        overwrite
            Replace a store that is already there.
        progress
            Called with the number of rows written so far.
        """
        build_store(
            source,
            Path(path),
            (key,) if isinstance(key, str) else tuple(key or ()),
            shards=shards,
            columns=None if columns is None else list(columns),
            page_rows=page_rows,
            index=index,
            records=records,
            overwrite=overwrite,
            progress=progress,
        )
        return MasterStore.open(path)

    @staticmethod
    def add_index(path: str | os.PathLike[str], *, records: bool = True) -> MasterStore:
        """Write the index of a store that was built without one, and open the store.

        ``records`` says whether to write records too. Stores that are open already do not use the new files.
        """
        write_index(Path(path), MasterStore.open(path), records)
        return MasterStore.open(path)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> MasterStore:
        """Open a store. Checks that every file is there in its full length; :meth:`verify` checks contents."""
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"master: expected a MasterStore or the path of one; got {type(path).__name__}. "
                "MasterStore.build(source, path, key=…) writes a store"
            )
        path = Path(path)
        manifest = Manifest.read(path)
        while True:  # until the store has not been replaced while it was mapped
            try:
                store = MasterStore._mapped(path, manifest)
            except (StoreError, OSError) as error:
                again = Manifest.read(path)
                if again.snapshot == manifest.snapshot:
                    if isinstance(error, StoreError):
                        raise
                    raise StoreError(f"{path}: could not be read: {error}") from None
            else:
                again = Manifest.read(path)
                if again.snapshot == manifest.snapshot:
                    return store
            manifest = again

    @staticmethod
    def _mapped(path: Path, manifest: Manifest) -> MasterStore:
        """Return the store with all of its files mapped, so that it does not change when it is replaced on disk."""
        for shard in manifest.shards:
            for entry in shard.files:
                entry.check_size(path)
            sizes = ShardIndex.nbytes_of(shard.rows)
            if len(shard.index) not in (0, len(sizes)):
                raise CorruptStoreError(
                    f"{path}: expected {len(sizes)} files of an index, or none; the manifest lists {len(shard.index)}"
                )
            for entry, nbytes in zip(shard.index, sizes, strict=False):
                if entry.nbytes != nbytes:
                    raise CorruptStoreError(
                        f"{path / entry.path}: the index has the wrong size for {shard.rows:,} rows: "
                        f"expected {nbytes:,} bytes; got {entry.nbytes:,}"
                    )
            if shard.records and (
                shard.layout is None or shard.records.nbytes != Records.nbytes_of(shard.rows, shard.layout)
            ):
                raise CorruptStoreError(
                    f"{path / shard.records.path}: the file has the wrong size for {shard.rows:,} rows: "
                    f"{shard.records.nbytes:,} bytes"
                )
            if shard.codes.nbytes != 8 * shard.rows:
                raise CorruptStoreError(
                    f"{path / shard.codes.path}: expected {8 * shard.rows} bytes of key codes; got {shard.codes.nbytes}"
                )
        store = MasterStore(path, manifest)
        for number in range(store.shards):
            store.codes(number)
            store.mapped(number)
            if manifest.indexed:
                store.index(number)
        return store

    # contents

    @property
    def schema(self) -> pa.Schema:
        return self.manifest.schema

    @property
    def key(self) -> tuple[str, ...]:
        return self.manifest.key

    @property
    def rows(self) -> int:
        return self.manifest.rows

    @property
    def unique(self) -> bool:
        """Whether no two rows share a key."""
        return self.manifest.unique

    @property
    def shards(self) -> int:
        return len(self.manifest.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows as Arrow data. A memory given in percent, such as ``"1%"``, refers to this size."""
        return self.manifest.data_bytes

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row as Arrow data."""
        return self.nbytes / self.rows if self.rows else 0.0

    def complete(self, column: str) -> bool:
        """Return whether a column is known to have no nulls."""
        return self.manifest.nulls.get(column) == 0

    @property
    def indexed(self) -> bool:
        """Whether every shard has an index from keys to rows."""
        return self.manifest.indexed

    def codes(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the key codes of a shard's rows, in row order, as a memory-mapped array."""
        if shard not in self._codes:
            entry = self.manifest.shards[shard]
            self._codes[shard] = map_codes(self.path / entry.codes.path, entry.rows)
        return self._codes[shard]

    def index(self, shard: int) -> ShardIndex:
        """Return the memory-mapped index of a shard."""
        if shard not in self._indexes:
            entry = self.manifest.shards[shard]
            if not entry.index:
                raise StoreError(f"{self.path}: the store has no index; add one with MasterStore.add_index(path)")
            self._indexes[shard] = ShardIndex((self.path / entry.index[0].path).parent, entry.rows)
        return self._indexes[shard]

    def mapped(self, shard: int) -> MappedRows:
        """Return the memory-mapped rows of a shard."""
        if shard not in self._rows:
            entry = self.manifest.shards[shard]
            path = self.path / entry.data.path
            m, records = self.manifest, None
            if entry.records is not None and entry.layout is not None:
                records = Records(self.path / entry.records.path, self.schema, entry.rows, entry.layout)
            self._rows[shard] = MappedRows(path, self.schema, entry.rows, m.page_rows, m.longest, records)
        return self._rows[shard]

    def shard(self, number: int) -> MasterStore:
        """Return a store of one shard alone, which can be joined like any other store."""
        part = MasterStore(self.path, replace(self.manifest, shards=[self.manifest.shards[number]]))
        part._codes, part._rows = {0: self.codes(number)}, {0: self.mapped(number)}
        if self.indexed:
            part._indexes = {0: self.index(number)}
        return part

    def to_table(self) -> pa.Table:
        """Return all rows as a memory-mapped table, shard by shard."""
        batches = []
        for shard in range(self.shards):
            rows = self.mapped(shard)
            batches += [rows.page(i) for i in range(-(-rows.rows // rows.page_rows))]
        return pa.Table.from_batches(batches, self.schema)

    def verify(self, progress: Progress | None = None) -> None:
        """Read all files and check their contents; raise an error at the first fault.

        This checks checksums, pages, key codes, the index, the records, and the shard of every row.
        """
        if Manifest.read(self.path).snapshot != self.manifest.snapshot:
            raise StoreError(f"{self.path}: the store was replaced after it was opened; open it again")
        done = 0
        for number, shard in enumerate(self.manifest.shards):
            for entry in shard.files:
                entry.check_content(self.path)
            codes, rows = self.codes(number), self.mapped(number)
            if shard.index and not self.index(number).check(codes):
                raise CorruptStoreError(
                    f"{self.path / shard.index[1].path}: the index does not match the key codes of the shard"
                )
            for page in range(-(-shard.rows // rows.page_rows)):
                batch = rows.page(page)
                try:
                    batch.validate(full=True)
                except pa.ArrowInvalid as error:
                    raise CorruptStoreError(f"{self.path / shard.data.path}: page {page} is damaged: {error}") from None
                keys = [batch.column(batch.schema.get_field_index(name)) for name in self.key]
                first = page * rows.page_rows
                made, valid = self.coder.codes(keys)
                if valid is not None or not np.array_equal(made, codes[first : first + len(batch)]):
                    raise CorruptStoreError(f"{self.path / shard.codes.path}: key codes of page {page} are wrong")
                if rows.records is not None and shard.records and not rows.records.check(batch, first):
                    raise CorruptStoreError(f"{self.path / shard.records.path}: records of page {page} are wrong")
                if self.shards > 1 and (self.coder.shards(keys, self.shards) != number).any():
                    raise CorruptStoreError(f"{self.path / shard.data.path}: page {page} has rows of another shard")
                done += len(batch)
                if progress:
                    progress(done)

    def info(self) -> dict[str, Any]:
        """Return all facts about the store as plain values."""
        m = self.manifest
        return {
            "path": str(self.path),
            "rows": m.rows,
            "key": list(m.key),
            "columns": {field.name: str(field.type) for field in m.schema},
            "keys": m.keys,
            "unique": m.unique,
            "largest_group": m.largest_group,
            "null_keys_left_out": m.null_keys,
            "data_bytes": m.data_bytes,
            "row_bytes": round(self.row_bytes, 1),
            "shards": [shard.rows for shard in m.shards],
            "page_rows": m.page_rows,
            "indexed": m.indexed,
            "records": all(shard.records for shard in m.shards),
            "snapshot": m.snapshot,
        }

    def __repr__(self) -> str:
        return (
            f"MasterStore({str(self.path)!r}, key={', '.join(self.key)}, rows={self.rows:,}, "
            f"{format_size(self.nbytes)}, shards={self.shards})"
        )
