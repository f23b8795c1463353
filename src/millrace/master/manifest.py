"""The manifest: what a store holds, in one JSON file that is written last."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.core.errors import CorruptStoreError, StoreError, StoreNotFoundError, StoreVersionError
from millrace.core.files.atomic import write_file
from millrace.master.record_layout import RecordLayout
from millrace.master.store_files import FileEntry

FORMAT = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class ShardEntry:
    """The files of one shard, and its numbers of rows, distinct keys, rows of the most frequent key, and data bytes."""

    rows: int
    keys: int
    largest_group: int
    data_bytes: int
    codes: FileEntry
    data: FileEntry
    index: tuple[FileEntry, ...] = ()
    """The two files of the index, if there is one."""
    records: FileEntry | None = None
    """The file that holds each row in one piece, if there is one."""
    layout: RecordLayout | None = None
    """The layout of the records."""

    @property
    def files(self) -> tuple[FileEntry, ...]:
        return (self.codes, self.data, *self.index, *((self.records,) if self.records else ()))

    def as_json(self) -> dict[str, Any]:
        """Return the entry as plain values, for JSON."""
        files = {"codes": vars(self.codes), "data": vars(self.data), "index": [vars(entry) for entry in self.index]}
        records = {
            "records": self.records and vars(self.records),
            "layout": self.layout and self.layout.as_json(),
        }
        return vars(self) | files | records

    @staticmethod
    def from_json(body: dict[str, Any]) -> ShardEntry:
        """Make an entry from what :meth:`as_json` returned; the fields of index and records may be missing."""
        records, layout = body.get("records"), body.get("layout")
        return ShardEntry(
            **{name: int(body[name]) for name in ("rows", "keys", "largest_group", "data_bytes")},
            codes=FileEntry(**body["codes"]),
            data=FileEntry(**body["data"]),
            index=tuple(FileEntry(**entry) for entry in body.get("index", [])),
            records=FileEntry(**records) if records else None,
            layout=RecordLayout.from_json(layout) if layout else None,
        )


@dataclass(frozen=True)
class Manifest:
    """The contents of the manifest: schema, key, counts, and an entry for each shard."""

    schema: pa.Schema
    key: tuple[str, ...]
    page_rows: int
    null_keys: int
    snapshot: str
    longest: dict[str, int] = field(default_factory=dict)
    """Bytes of the longest value of every string and binary column."""
    nulls: dict[str, int] = field(default_factory=dict)
    """Number of nulls by column; a column that is not listed may have nulls."""
    shards: list[ShardEntry] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def keys(self) -> int:
        """Number of distinct keys. No key is counted twice, because all rows of a key are in the same shard."""
        return sum(shard.keys for shard in self.shards)

    @property
    def largest_group(self) -> int:
        """Rows of the most frequent key."""
        return max((shard.largest_group for shard in self.shards), default=0)

    @property
    def data_bytes(self) -> int:
        """Bytes of the rows as Arrow data."""
        return sum(shard.data_bytes for shard in self.shards)

    @property
    def unique(self) -> bool:
        """Whether no two rows share a key."""
        return self.largest_group <= 1

    @property
    def indexed(self) -> bool:
        """Whether every shard has an index."""
        return all(shard.index for shard in self.shards)

    def write(self, directory: Path) -> None:
        """Write the manifest to a directory, replacing the one there; flush the file and its name to the disk."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "written_by": "millrace",
            "key": list(self.key),
            "page_rows": self.page_rows,
            "rows": self.rows,
            "keys": self.keys,
            "largest_group": self.largest_group,
            "unique": self.unique,
            "null_keys": self.null_keys,
            "data_bytes": self.data_bytes,
            "snapshot": self.snapshot,
            "longest": self.longest,
            "nulls": self.nulls,
            "columns": {f.name: str(f.type) for f in self.schema},
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "shards": [shard.as_json() for shard in self.shards],
        }
        body["checksum"] = _checksum(body)
        write_file(directory / MANIFEST, json.dumps(body, indent=1).encode())

    @staticmethod
    def read(directory: Path) -> Manifest:
        """Read and check the manifest of a store; if it cannot be read, raise an error with the reason."""
        path = directory / MANIFEST
        try:
            there = directory.is_dir()
        except (OSError, ValueError) as error:
            raise StoreError(f"{directory}: could not be read: {error}") from None
        if not there:
            raise StoreNotFoundError(f"{directory}: there is no master store here (no such directory)")
        if not path.is_file():
            raise CorruptStoreError(
                f"{directory}: not a master store: it has no {MANIFEST}. "
                "Build a store with MasterStore.build or `millrace master build`"
            )
        try:
            body = json.loads(path.read_text())
            foreign = not isinstance(body, dict) or body.get("written_by") != "millrace"
        except (ValueError, RecursionError) as error:
            raise CorruptStoreError(f"{path}: not readable as JSON ({error}); the file is damaged") from None
        except OSError as error:
            raise StoreError(f"{path}: could not be read: {error.strerror}") from None
        if foreign:
            raise CorruptStoreError(f"{path}: not the manifest of a master store")
        if body.get("format") != FORMAT:
            raise StoreVersionError(
                f"{path}: written in format {body.get('format')!r}; this version of millrace reads format {FORMAT}. "
                "Build the store again with this version"
            )
        if body.pop("checksum", None) != _checksum(body):
            raise CorruptStoreError(f"{path}: damaged: it was changed after it was written")
        try:
            return Manifest(
                schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"]))),
                key=tuple(body["key"]),
                page_rows=int(body["page_rows"]),
                null_keys=int(body["null_keys"]),
                snapshot=str(body["snapshot"]),
                longest={str(name): int(nbytes) for name, nbytes in body["longest"].items()},
                nulls={str(name): int(count) for name, count in body.get("nulls", {}).items()},
                shards=[ShardEntry.from_json(shard) for shard in body["shards"]],
            )
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowInvalid) as error:
            raise CorruptStoreError(
                f"{path}: damaged: its fields cannot be read ({type(error).__name__}: {error})"
            ) from None


def is_store(directory: Path) -> bool:
    """Return whether a directory holds a store of any version, perhaps a damaged one."""
    try:
        return re.search(r'"written_by":\s*"millrace"', (directory / MANIFEST).read_text(errors="replace")) is not None
    except OSError:
        return False


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
