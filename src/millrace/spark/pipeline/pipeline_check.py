"""Checks a pipeline's file before Spark starts, and reports all problems at once, each with its line number."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from millrace.core.errors import ConfigError, MillraceError
from millrace.core.spec import JoinSpec
from millrace.master.manifest import Manifest, is_store
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.arguments import AUTO
from millrace.spark.pipeline.pipeline_keys import (
    FILES,
    FREE,
    JOIN_OPTIONS,
    KEYS,
    PATHS,
    REQUIRED,
    TABLE,
    WITH_COLUMNS,
    WITHOUT_CHECKPOINT,
    label,
)
from millrace.spark.pipeline.toml_lines import Name, TomlLines


class PipelineError(ConfigError):
    """A pipeline's file cannot be run; ``problems`` holds a message for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def checked(file: Path, lines: TomlLines, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a file with paths made absolute; if there are problems, raise an error that lists them."""
    check = _Check(file, lines, tables)
    check.resolve(file.absolute().parent)
    for check_table in (check.spark, check.source, check.master, check.join, check.sink, check.trigger):
        check_table()
    if check.problems:
        raise PipelineError(check.problems)
    return check.tables


class _Check:
    """Checks a file's tables and collects problems; ``tables`` holds the known keys with values of the right kind."""

    def __init__(self, file: Path, lines: TomlLines, tables: dict[str, Any]) -> None:
        self._file, self._lines = file, lines
        self._found: list[tuple[int, str]] = []
        self._meant: set[Name] = set()
        self.tables = self._table((), tables)

    @property
    def problems(self) -> list[str]:
        """The problems as messages, in the order of their lines."""
        return [f"{self._file}:{line}: {problem}" for line, problem in sorted(self._found)]

    def report(self, name: Name, problem: str, line: int | None = None) -> None:
        """Record a problem with a table or key; by default, ``line`` is the line where that table or key is named."""
        found = line or self._lines.find(name)
        self._found.append((found, f"{label(name)}: {problem}"))

    # names and types

    def _table(self, name: Name, table: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of a table that are known and have values of the right kind; report the others."""
        known = KEYS[name]
        right: dict[str, Any] = {}
        for key, value in table.items():
            kind = known.get(key)
            if kind is None:
                self._unknown((*name, key), isinstance(value, dict))
            elif not kind.fits(value):
                guess = _close(value, kind.choices)
                hint = f'; did you mean "{guess}"?' if guess else ""
                self.report((*name, key), f"expected {kind.expected}; got {_shown(value)}{hint}")
            elif kind is TABLE:
                right[key] = self._table((*name, key), value)
            else:
                right[key] = self._free((*name, key), value) if kind is FREE else value
        for key in REQUIRED.get(name, ()):
            if key not in table and (*name, key) not in self._meant:
                kind = known[key]
                if kind is TABLE:
                    self.report((key,), "expected this table; the file ends without it", self._lines.last)
                else:
                    self.report(name, f"expected the key {key} ({kind.expected}); it is missing")
        return right

    def _unknown(self, name: Name, is_table: bool) -> None:
        """Report an unknown table or key; the name that was probably meant is then not reported as missing."""
        *table, key = name
        known = KEYS[tuple(table)]
        guess = _close(key, known)
        homes = [label(home) for home, keys in KEYS.items() if key in keys and home]
        if guess is not None:
            hint = f"did you mean {guess}?"
            self._meant.add((*table, guess))
        elif homes:
            hint = f"it belongs in {' or '.join(homes)}"
        else:
            hint = f"expected one of {', '.join(known)}"
        self.report(name, f"unknown {'table' if is_table else 'key'}; {hint}")

    def _free(self, name: Name, table: dict[str, Any]) -> dict[str, Any]:
        """Return settings under their dotted names, such as ``a.b``, which TOML reads as nested tables."""
        right: dict[str, Any] = {}
        for key, value in table.items():
            if isinstance(value, dict):
                right |= {f"{key}.{rest}": deep for rest, deep in self._free((*name, key), value).items()}
            elif isinstance(value, str | int | float):
                right[key] = value
            else:
                self.report((*name, key), f"expected text, a number or a boolean; got {_shown(value)}")
        return right

    def resolve(self, folder: Path) -> None:
        """Make relative paths absolute, starting from the folder."""
        for *name, key in PATHS:
            table = self._at(tuple(name))
            if isinstance(table.get(key), str) and _is_local(table[key]):
                table[key] = str(folder / table[key])

    # tables

    def files(self, name: Name, folder: bool) -> None:
        """Check that the path of a table that reads files exists and, if ``folder`` is set, is a folder."""
        table = self._at(name)
        if table.get("format") not in FILES:
            return
        path = table.get("path")
        if path is None:
            self._missing(name, "path", f"the folder of the {table['format']} files")
        elif _is_local(path) and not re.search(r"[*?\[{]", path):
            if not os.path.exists(path):
                self.report((*name, "path"), f"no such file or folder: {path}")
            elif folder and not os.path.isdir(path):
                self.report((*name, "path"), f"expected a folder, whose files are the stream; {path} is a file")

    def spark(self) -> None:
        """Check that ``[spark.settings]`` has no key that belongs in ``[spark]``."""
        for setting in self._at(("spark", "settings")):
            if setting in KEYS["spark",]:
                self.report(("spark", "settings", setting), "not a setting of Spark; it belongs in [spark]")

    def source(self) -> None:
        """Check the source: its files and its schema."""
        table = self._at(("source",))
        self.files(("source",), folder=True)
        kind = table.get("format")
        if kind in FILES and kind not in WITH_COLUMNS and "schema" not in table:
            self._missing(("source",), "schema", f'the columns of the {kind} files, such as "key BIGINT, name STRING"')

    def master(self) -> None:
        """Check that the master store exists, or that the pipeline file says how to build it."""
        table = self._at(("master",))
        store = table.get("store")
        if store is None:
            return
        if not _is_local(store):
            self.report(("master", "store"), f"expected a path that all executors see; {store} is a URL")
        elif is_store(Path(store)):
            return
        elif os.path.lexists(store):
            self.report(("master", "store"), f"expected a master store; {store} is not one")
        elif "build" not in table:
            build = "add [master.build] to build it when the query starts, or run `millrace master build`"
            self.report(("master", "store"), f"there is no master store at {store}; {build}")
        else:
            self.files(("master", "build"), folder=False)

    def join(self) -> None:
        """Check the options of the join, and its columns if the store exists already."""
        table = self._at(("join",))
        self._join_with_store(table)
        name = table.get("algorithm", AUTO)
        own = [] if name == AUTO else [o for o in (*ALGORITHMS[name].sizes, *ALGORITHMS[name].options) if o != "w"]
        known = [*JOIN_OPTIONS, *own]
        settable = {"b"}.union(*(algorithm.options for algorithm in ALGORITHMS.values()))
        for option in table.get("options", {}):
            if name == AUTO and option in settable:
                chosen = 'algorithm = "auto" chooses it; name an algorithm to set it'
                self.report(("join", "options", option), chosen)
            elif option not in known:
                guess = _close(option, known)
                hint = f"did you mean {guess}?" if guess else f"expected one of {', '.join(known)}"
                self.report(("join", "options", option), f"unknown option; {hint}")

    def _join_with_store(self, table: dict[str, Any]) -> None:
        """Check the keys and columns of the join against the store, if it exists already."""
        store = self._at(("master",)).get("store")
        if store is None or "on" not in table or not _is_local(store) or not is_store(Path(store)):
            return
        try:
            found = Manifest.read(Path(store))
        except MillraceError as error:
            self.report(("master", "store"), str(error))
            return
        spec = JoinSpec.of(table["on"], columns=table.get("columns"))
        if sorted(spec.master_key) != sorted(found.key):
            keys = f"the master store is keyed by {', '.join(found.key)}; got {', '.join(spec.master_key)}"
            self.report(("join", "on"), keys)
        names = [field.name for field in found.schema]
        for column in table.get("columns", ()):
            if column not in names:
                guess = _close(column, names)
                hint = f"did you mean {guess}?" if guess else f"it has {', '.join(names)}"
                self.report(("join", "columns"), f'the master has no "{column}"; {hint}')

    def sink(self) -> None:
        """Check the sink and its checkpoint."""
        table = self._at(("sink",))
        if table.get("format") in FILES and "path" not in table:
            self._missing(("sink",), "path", f"the folder to write {table['format']} files to")
        if "checkpoint" in table and "checkpoint" in self.tables:
            self.report(("sink", "checkpoint"), f"given twice; it is on line {self._lines.find(('checkpoint',))} too")
        above = ("checkpoint",) in self._meant or ("checkpoint",) in self._lines.of
        if table.get("format", "noop") not in WITHOUT_CHECKPOINT and not above:
            self._missing(("sink",), "checkpoint", "the folder in which the query records its progress")
        self._sink_and_checkpoint(table)

    def _sink_and_checkpoint(self, table: dict[str, Any]) -> None:
        """Check that existing output belongs to the checkpoint: otherwise, Spark would skip some micro-batches."""
        path, checkpoint = table.get("path"), table.get("checkpoint", self.tables.get("checkpoint"))
        if table.get("format") not in FILES or path is None or checkpoint is None:
            return
        if _is_local(path) and _is_local(checkpoint):
            written, begun = _latest(Path(path, "_spark_metadata")), _latest(Path(checkpoint, "offsets"))
            if written > begun:
                self.report(
                    ("sink", "path"),
                    f"{path} has the output of another query: its last micro-batch is {written}, and the last in the "
                    f"checkpoint is {begun if begun >= 0 else 'none'}. Spark would skip micro-batches whose numbers "
                    "the output has already; use the checkpoint that belongs to the output, or another path",
                )

    def trigger(self) -> None:
        """Check the trigger, and that the join works with it."""
        table = self._at(("trigger",))
        if len(table) > 1:
            self.report(("trigger",), f"expected one of {', '.join(KEYS['trigger',])}; got {' and '.join(table)}")
        if table.get("available_now") and self._at(("join",)).get("pending") == "carry":
            self.report(
                ("join", "pending"),
                '"carry" lets tuples wait from one micro-batch to the next, so a query with available_now never ends '
                'by itself; use pending = "drain", which completes every micro-batch, or another trigger',
            )

    def _at(self, name: Name) -> dict[str, Any]:
        table = self.tables
        for key in name:
            table = table.get(key, {})
        return table

    def _missing(self, name: Name, key: str, what: str) -> None:
        """Report a missing key, described by ``what``. A misspelled key or a wrong value is reported already."""
        if (*name, key) not in self._lines.of and (*name, key) not in self._meant:
            self.report(name, f"expected the key {key}, {what}; it is missing")


def _is_local(path: str) -> bool:
    """Return whether a path is in this machine's file system, and not a URL such as ``s3://…``."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path) is None


def _latest(log: Path) -> int:
    """Return the number of the last micro-batch in a log of Spark, a folder of numbered files; -1 if there is none."""
    numbers = (file.name.removesuffix(".compact") for file in log.glob("*"))
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _close(name: Any, known: Iterable[str]) -> str | None:
    """Return the known name that is most like ``name``; None if none is similar."""
    return next(iter(get_close_matches(name.lower(), list(known), 1)), None) if isinstance(name, str) else None


def _shown(value: Any) -> str:
    """Return a value as one line of TOML, or the words "a table" if the value is a table."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "a table"
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)
