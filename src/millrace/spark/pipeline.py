"""A whole query in one TOML file: source, master, join, sink. Checked before Spark is asked for anything.

``Pipeline.load`` reports everything that is wrong with a file at once, each with its line. ``millrace run`` is the
usual way to start one; this module can also be given to ``spark-submit``.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run as a script, this folder comes first, and its types.py would stand for Python's
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.core.errors import ConfigError, MillraceError
from millrace.core.sizes import parse_size
from millrace.core.spec import How
from millrace.master.manifest import is_store
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.spark.build import build_master
from millrace.spark.enrich import AUTO, enrich
from millrace.spark.session import session

SPARK_ERRORS = (PySparkException, Py4JError)
"""What Spark raises in the driver."""

Name = tuple[str, ...]
"""A table or key by the parts of its dotted name."""


class PipelineError(ConfigError):
    """A pipeline's file cannot work; ``problems`` has one line for everything that is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


# what a file may say


@dataclass(frozen=True)
class Kind:
    """What a key may hold: in words, and as a test."""

    expected: str
    fits: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_on(value: Any) -> bool:
    texts = list(value.values()) if isinstance(value, dict) else value
    return _is_text(value) or (_are_texts(texts) and texts != [])


def _is_size(value: Any) -> bool:
    try:
        return parse_size(value, of=2**40) > 0
    except ConfigError:
        return False


def _is_some(value: Any) -> bool:
    return _is_text(value) or (_are_texts(value) and value != [])


_INTERVAL = re.compile(r"\s*(interval )?(\d+ (milli|micro)?(second|minute|hour|day|week)s?\s*)+", re.IGNORECASE)


def _is_interval(value: Any) -> bool:
    return isinstance(value, str) and _INTERVAL.fullmatch(value) is not None


def _one_of(*choices: str) -> Kind:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return Kind(f"one of {listed}" if len(choices) > 1 else listed, lambda value: value in choices, choices)


TEXT = Kind("text", _is_text)
TEXTS = Kind('a list of texts such as ["a", "b"]', _are_texts)
SOME = Kind('text, or a list of texts such as ["a", "b"]', _is_some)
WHOLE = Kind("a whole number of at least 1", _is_whole)
TRUE = Kind("true", lambda value: value is True)
SIZE = Kind('bytes, or text such as "256MB" or "1%"', _is_size)
INTERVAL = Kind('text such as "5 seconds"', _is_interval)
ON = Kind('"key", ["a", "b"], or { stream = "master" } with the names of columns', _is_on)
FREE = Kind("a table of texts, numbers and booleans", lambda value: isinstance(value, dict))
TABLE = Kind("a table", lambda value: isinstance(value, dict))

KEYS: dict[Name, dict[str, Kind]] = {
    (): {"checkpoint": TEXT}
    | dict.fromkeys(("spark", "source", "master", "join", "select", "sink", "trigger"), TABLE),
    ("spark",): {"name": TEXT, "master": TEXT, "settings": FREE},
    ("source",): {"format": TEXT, "path": TEXT, "schema": TEXT, "options": FREE},
    ("master",): {"store": TEXT, "build": TABLE},
    ("master", "build"): {
        "format": TEXT,
        "path": TEXT,
        "schema": TEXT,
        "options": FREE,
        "key": SOME,
        "shards": WHOLE,
        "columns": TEXTS,
    },
    ("join",): {
        "on": ON,
        "how": _one_of(*get_args(How)),
        "algorithm": _one_of("auto", *ALGORITHMS),
        "memory": SIZE,
        "pending": _one_of("drain", "carry"),
        "columns": TEXTS,
        "suffix": TEXT,
        "turns": WHOLE,
        "name": TEXT,
        "options": FREE,
    },
    ("select",): {"columns": SOME},
    ("sink",): {
        "format": TEXT,
        "path": TEXT,
        "mode": _one_of("append"),
        "options": FREE,
        "partition_by": SOME,
        "checkpoint": TEXT,
    },
    ("trigger",): {"available_now": TRUE, "processing_time": INTERVAL, "once": TRUE},
}
"""Every key of every table."""

REQUIRED: dict[Name, tuple[str, ...]] = {
    (): ("source", "master", "join", "sink"),
    ("source",): ("format",),
    ("master",): ("store",),
    ("master", "build"): ("format", "key"),
    ("join",): ("on",),
    ("select",): ("columns",),
    ("sink",): ("format",),
}

_FILES = ("parquet", "orc", "json", "csv", "text", "xml", "avro")
_WITH_COLUMNS = ("parquet", "orc", "text")  # formats whose columns need not be said
_WITHOUT_CHECKPOINT = ("console", "memory", "noop")
_PATHS = (
    ("checkpoint",),
    ("source", "path"),
    ("master", "store"),
    ("master", "build", "path"),
    ("sink", "path"),
    ("sink", "checkpoint"),
)
_JOIN_OPTIONS = ("b", "leave_early", "output_rows", "scratch")


# where things are in a TOML text


_TOKEN = re.compile(
    r'''("""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')'''
    r"""|(?P<comment>\#[^\n]*)|\n|[\[\]{}=,.]|[^\s\[\]{}=,."'#]+""",
    re.DOTALL,
)


class Lines:
    """The lines on which the tables and keys of a TOML text stand. The text must be one that ``tomllib`` reads.

    >>> Lines('a.b = 1\\n[t."x y"]\\n\\nk = { u = [1,\\n 2], v = "[no]" }\\n').of
    {('a',): 1, ('a', 'b'): 1, ('t',): 2, ('t', 'x y'): 2, ('t', 'x y', 'k'): 4, ('t', 'x y', 'k', 'u'): 4, \
('t', 'x y', 'k', 'v'): 5}
    """

    def __init__(self, text: str) -> None:
        self.of: dict[Name, int] = {}
        self.last = text.rstrip().count("\n") + 1
        found = (match for match in _TOKEN.finditer(text) if not match["comment"])
        self._tokens = [(match.group(), text.count("\n", 0, match.start()) + 1) for match in found]
        self._at = 0
        table: Name = ()
        while self._at < len(self._tokens):
            if self._skip("\n"):
                continue
            if self._skip("["):
                several = self._skip("[")
                table = self._name((), "]")
                if several:
                    self._skip("]")
            else:
                self._value(self._name(table, "="))

    def find(self, name: Name) -> int:
        """The line of a table or key; of what it should be in, if it is not there; at last the end of the file."""
        while name and name not in self.of:
            name = name[:-1]
        return self.of.get(name, self.last)

    def _skip(self, token: str) -> bool:
        here = self._tokens[self._at][0] == token
        self._at += here
        return here

    def _name(self, under: Name, end: str) -> Name:
        """Read a name, dots and all, and note its line."""
        name = under
        while not self._skip(end):
            token, line = self._tokens[self._at]
            self._at += 1
            if token != ".":
                name = (*name, tomllib.loads(f"text = {token}")["text"] if token[0] in "\"'" else token)
                self.of.setdefault(name, line)
        return name

    def _value(self, name: Name) -> None:
        """Pass a value over; note the names in it if it is a table."""
        if self._skip("{"):
            while not self._skip("}"):
                if not (self._skip(",") or self._skip("\n")):
                    self._value(self._name(name, "="))
        elif self._skip("["):
            while not self._skip("]"):
                if not (self._skip(",") or self._skip("\n")):
                    self._value(name)
        else:
            while self._at < len(self._tokens) and self._tokens[self._at][0] not in ("\n", ",", "]", "}"):
                self._at += 1


# checking


class _Check:
    """Goes through a file's tables and collects what is wrong with them. ``tables`` keeps what is right."""

    def __init__(self, file: Path, lines: Lines, tables: dict[str, Any]) -> None:
        self._file, self._lines = file, lines
        self._found: list[tuple[int, str]] = []
        self._meant: set[Name] = set()
        self.tables = self._table((), tables)

    @property
    def problems(self) -> list[str]:
        """In the order of lines."""
        return [f"{self._file}:{line}: {problem}" for line, problem in sorted(self._found)]

    def blame(self, name: Name, problem: str, line: int | None = None) -> None:
        found = line or self._lines.find(name)
        self._found.append((found, f"{label(name)}: {problem}"))

    # names and types

    def _table(self, name: Name, table: dict[str, Any]) -> dict[str, Any]:
        """The keys of a table that are known and hold what they should."""
        known = KEYS[name]
        right: dict[str, Any] = {}
        for key, value in table.items():
            kind = known.get(key)
            if kind is None:
                self._unknown((*name, key), isinstance(value, dict))
            elif not kind.fits(value):
                guess = _close(value, kind.choices)
                hint = f'; did you mean "{guess}"?' if guess else ""
                self.blame((*name, key), f"expected {kind.expected}; got {_shown(value)}{hint}")
            elif kind is TABLE:
                right[key] = self._table((*name, key), value)
            else:
                right[key] = self._free((*name, key), value) if kind is FREE else value
        for key in REQUIRED.get(name, ()):
            if key not in table and (*name, key) not in self._meant:
                kind = known[key]
                if kind is TABLE:
                    self.blame((key,), "expected this table; the file ends without it", self._lines.last)
                else:
                    self.blame(name, f"expected the key {key} ({kind.expected}); it is not there")
        return right

    def _unknown(self, name: Name, is_table: bool) -> None:
        """Blame an unknown name, and do not miss what was probably meant by it."""
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
        self.blame(name, f"unknown {'table' if is_table else 'key'}; {hint}")

    def _free(self, name: Name, table: dict[str, Any]) -> dict[str, Any]:
        """A table of settings, whose names may have dots, quoted or not."""
        right: dict[str, Any] = {}
        for key, value in table.items():
            if isinstance(value, dict):
                right |= {f"{key}.{rest}": deep for rest, deep in self._free((*name, key), value).items()}
            elif isinstance(value, str | int | float):
                right[key] = value
            else:
                self.blame((*name, key), f"expected text, a number or a boolean; got {_shown(value)}")
        return right

    # what belongs together

    def files(self, name: Name, folder: bool) -> None:
        """A table that reads files says which, and they are there."""
        table = self._at(name)
        if table.get("format") not in _FILES:
            return
        path = table.get("path")
        if path is None:
            self._missing(name, "path", f"the folder of the {table['format']} files")
        elif is_local(path) and not re.search(r"[*?\[{]", path):
            if not os.path.exists(path):
                self.blame((*name, "path"), f"there is nothing at {path}")
            elif folder and not os.path.isdir(path):
                self.blame((*name, "path"), f"expected a folder, whose files are the stream; {path} is a file")

    def source(self) -> None:
        table = self._at(("source",))
        self.files(("source",), folder=True)
        kind = table.get("format")
        if kind in _FILES and kind not in _WITH_COLUMNS and "schema" not in table:
            self._missing(("source",), "schema", f'the columns of the {kind} files, such as "key BIGINT, name STRING"')

    def master(self) -> None:
        table = self._at(("master",))
        store = table.get("store")
        if store is None or not is_local(store) or is_store(Path(store)):
            return
        if os.path.lexists(store):
            self.blame(("master", "store"), f"expected a master store; {store} is something else")
        elif "build" not in table:
            build = "[master.build] says how to build one, or `millrace master build` builds it"
            self.blame(("master", "store"), f"there is no master store at {store}; {build}")
        else:
            self.files(("master", "build"), folder=False)

    def join(self) -> None:
        table = self._at(("join",))
        name = table.get("algorithm", "auto")
        known = (*_JOIN_OPTIONS, *ALGORITHMS[AUTO if name == "auto" else name].options)
        for option in table.get("options", {}):
            if option not in known:
                guess = _close(option, known)
                hint = f"did you mean {guess}?" if guess else f"expected one of {', '.join(known)}"
                self.blame(("join", "options", option), f"unknown option; {hint}")

    def sink(self) -> None:
        table = self._at(("sink",))
        if table.get("format") in _FILES and "path" not in table:
            self._missing(("sink",), "path", f"the folder to write {table['format']} files to")
        if "checkpoint" in table and "checkpoint" in self.tables:
            self.blame(("sink", "checkpoint"), f"given twice; it is on line {self._lines.find(('checkpoint',))} too")
        above = ("checkpoint",) in self._meant or ("checkpoint",) in self._lines.of
        if table.get("format", "noop") not in _WITHOUT_CHECKPOINT and not above:
            self._missing(("sink",), "checkpoint", "the folder where the query keeps how far it has come")

        self._sink_and_checkpoint(table)

    def _sink_and_checkpoint(self, table: dict[str, Any]) -> None:
        """Spark's file sink takes micro-batches for written by their number alone, whichever query they are of."""
        path, checkpoint = table.get("path"), table.get("checkpoint", self.tables.get("checkpoint"))
        if table.get("format") not in _FILES or path is None or checkpoint is None:
            return
        if is_local(path) and is_local(checkpoint):
            written, begun = _latest(Path(path, "_spark_metadata")), _latest(Path(checkpoint, "offsets"))
            if written > begun:
                self.blame(
                    ("sink", "path"),
                    f"{path} has the output of another query: its last micro-batch is {written}, and the last in the "
                    f"checkpoint is {begun if begun >= 0 else 'none'}. Spark would leave out all rows up to that one; "
                    "use the checkpoint that belongs to the output, or another path",
                )

    def trigger(self) -> None:
        table = self._at(("trigger",))
        if len(table) > 1:
            self.blame(("trigger",), f"expected one of {', '.join(KEYS['trigger',])}; got {' and '.join(table)}")
        if table.get("available_now") and self._at(("join",)).get("pending") == "carry":
            self.blame(
                ("join", "pending"),
                '"carry" lets tuples wait from one micro-batch to the next, so a query with available_now never ends '
                'by itself; use pending = "drain", which completes every micro-batch, or another trigger',
            )

    def _at(self, name: Name) -> dict[str, Any]:
        table: Any = self.tables
        for key in name:
            table = table.get(key, {})
        return dict(table)

    def _missing(self, name: Name, key: str, what: str) -> None:
        """A key is needed that is not always needed. Nothing new if it is there, though misspelt or of a wrong type."""
        if (*name, key) not in self._lines.of and (*name, key) not in self._meant:
            self.blame(name, f"expected the key {key}, {what}; it is not there")


def label(name: Name) -> str:
    """How a table or key is named to people.

    >>> label(("join",)), label(("join", "how")), label(("master", "build", "key")), label(("checkpoint",))
    ('[join]', '[join] how', '[master.build] key', 'checkpoint')
    """
    tables = max((deep for deep in range(len(name) + 1) if name[:deep] in KEYS), default=0)
    if not tables and len(name) == 1:
        return name[0]
    table, key = name[:tables], name[tables:]
    return f"[{'.'.join(table)}]" + (f" {'.'.join(key)}" if key else "")


def is_local(path: str) -> bool:
    """Whether a path is one of this machine rather than an address such as ``s3://…``."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path) is None


def _latest(log: Path) -> int:
    """The last micro-batch in one of Spark's logs, which are folders of files with numbers for names; -1 if none."""
    numbers = (file.name.removesuffix(".compact") for file in log.glob("*"))
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _close(name: Any, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(name.lower(), list(known), 1)), None) if isinstance(name, str) else None


def _shown(value: Any) -> str:
    """A value as a TOML file has it, or what it is if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "a table"
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)


def _resolved(tables: dict[str, Any], folder: Path) -> None:
    """Make relative paths relative to the folder."""
    for *where, key in _PATHS:
        table: Any = tables
        for name in where:
            table = table.get(name, {})
        if key in table and is_local(table[key]):
            table[key] = str(folder / table[key])


# the pipeline


@dataclass(frozen=True)
class Pipeline:
    """A query as its file describes it: ``tables`` as in the file, with paths made absolute.

    Examples
    --------
    >>> Pipeline.load("/nowhere/pipeline.toml")
    Traceback (most recent call last):
    millrace.spark.pipeline.PipelineError: /nowhere/pipeline.toml: could not be read: No such file or directory
    """

    file: Path
    tables: Mapping[str, Any]
    lines: Lines

    @staticmethod
    def load(path: str | os.PathLike[str], *, available_now: bool = False) -> Pipeline:
        """Read and check a file.

        Parameters
        ----------
        path
            The TOML file. Relative paths in it are relative to its folder.
        available_now
            Take in what is there and end, whatever the file's ``[trigger]`` says.

        Raises
        ------
        PipelineError
            Lists everything that is wrong with the file.
        """
        file = Path(path)
        try:
            text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            raise PipelineError([f"{file}: could not be read: {error.strerror}"]) from None
        except UnicodeDecodeError as error:
            raise PipelineError([f"{file}: expected text in UTF-8; {error}"]) from None
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            what, _, where = str(error).removesuffix(")").partition(" (at ")
            line = re.search(r"line (\d+)", where)
            number = line[1] if line else text.rstrip().count("\n") + 1
            raise PipelineError([f"{file}:{number}: not TOML: {what}" + (f" ({where})" if where else "")]) from None
        lines = Lines(text)
        if available_now:
            tables["trigger"] = {"available_now": True}
        check = _Check(file, lines, tables)
        _resolved(check.tables, file.absolute().parent)
        for belongs in (check.source, check.master, check.join, check.sink, check.trigger):
            belongs()
        if check.problems:
            raise PipelineError(check.problems)
        return Pipeline(file, check.tables, lines)

    @property
    def name(self) -> str:
        """What the application and the query are called."""
        return str(self.tables.get("spark", {}).get("name", self.file.stem))

    @property
    def checkpoint(self) -> str | None:
        """Where the query keeps how far it has come."""
        found = self.tables["sink"].get("checkpoint", self.tables.get("checkpoint"))
        return None if found is None else str(found)

    def session(self, **settings: object) -> SparkSession:
        """A session as the file's ``[spark]`` wants it. Under ``spark-submit``, that says which master to use.

        ``settings`` are used where the file says nothing.
        """
        spark = self.tables.get("spark", {})
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        master = None if submitted else spark.get("master")
        return session(self.name, master=master, **settings | spark.get("settings", {}))

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Build the master if it is not there yet, and start the query. Errors name the file and the line."""
        store = self._store(spark)
        stream = self._stream(spark)
        join = {name: value for name, value in self.tables["join"].items() if name != "options"}
        with self._blaming(("join",)):
            joined = enrich(stream, store, **join, **self.tables["join"].get("options", {}))
        if "select" in self.tables:
            with self._blaming(("select", "columns")):
                joined = joined.selectExpr(*listed(self.tables["select"]["columns"]))
        with self._blaming(("sink",)):
            return self._started(joined)

    def run(self, spark: SparkSession) -> StreamingQuery:
        """Start the query and wait until it ends; the ended query."""
        query = self.start(spark)
        query.awaitTermination()
        return query

    # parts

    def _stream(self, spark: SparkSession) -> DataFrame:
        source = self.tables["source"]
        kind, path, options = source["format"], source.get("path"), source.get("options", {})
        _make_known(spark, kind)
        reader = spark.readStream.format(kind).options(**options)
        schema = source.get("schema")
        with self._blaming(("source", "schema")):
            if schema is None and kind in _WITH_COLUMNS:
                schema = spark.read.format(kind).options(**options).load(path).schema
            if schema is not None:
                reader = reader.schema(schema)
        with self._blaming(("source",)):
            return reader.load(path)

    def _store(self, spark: SparkSession) -> MasterStore:
        master = self.tables["master"]
        path, build = Path(master["store"]), master.get("build")
        with self._blaming(("master",)):
            if build is None or is_store(path):
                return MasterStore.open(path)
            _make_known(spark, build["format"])
            reader = spark.read.format(build["format"]).options(**build.get("options", {}))
            if "schema" in build:
                reader = reader.schema(build["schema"])
            rows = reader.load(build.get("path"))
            return build_master(rows, path, build["key"], build.get("shards", 1), build.get("columns"))

    def _started(self, joined: DataFrame) -> StreamingQuery:
        sink = self.tables["sink"]
        writer = joined.writeStream.format(sink["format"]).outputMode("append").queryName(self.name)
        writer = writer.options(**sink.get("options", {}))
        if self.checkpoint is not None:
            writer = writer.option("checkpointLocation", self.checkpoint)
        if "partition_by" in sink:
            writer = writer.partitionBy(*listed(sink["partition_by"]))
        trigger = self.tables.get("trigger", {})
        if "processing_time" in trigger:
            writer = writer.trigger(processingTime=trigger["processing_time"])
        elif "available_now" in trigger:
            writer = writer.trigger(availableNow=True)
        elif "once" in trigger:
            writer = writer.trigger(once=True)
        return writer.start(sink.get("path"))

    @contextmanager
    def _blaming(self, name: Name) -> Iterator[None]:
        """Have errors name the part of the file they come from."""
        try:
            yield
        except (MillraceError, *SPARK_ERRORS) as error:
            problem = f"{self.file}:{self.lines.find(name)}: {label(name)}: {readable(error)}"
            raise PipelineError([problem]) from error


def _make_known(spark: SparkSession, kind: str) -> None:
    """Register a format of Millrace's own before it is used."""
    if kind == "millrace-zipf":
        from millrace.spark import zipf

        zipf.register(spark)


def listed(value: str | list[str]) -> list[str]:
    """One text or several, as a list."""
    return [value] if isinstance(value, str) else value


# errors of Spark


_TRACEBACK = "Traceback (most recent call last):"
_NOISE = (
    (r"\n=== Streaming Query ===.*|\n== SQL ==.*|\nJVM stacktrace:.*|\n\s*at [\w.$]+\(.*|;\n['+ ]*\w.*", ""),
    (r"An error occurred while calling \S+\n: ", ""),
    (r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", ""),
    (r"Job aborted due to stage failure: .*?: Lost task .*?\): ", ""),
    (r"\s*SQLSTATE: \w{5}", ""),
    (r"^(?:[a-z]\w*\.)+[\w$]+(?:Exception|Error): ", ""),
    (r"\s+", " "),
)


def readable(error: BaseException) -> str:
    """What an error of Spark says, without stack traces, plans and identifiers.

    If a Python worker has raised it, it is what was raised there, which for an error of Millrace is its message.
    """
    text = str(error)
    if not isinstance(error, SPARK_ERRORS):
        return text
    if _TRACEBACK in text:
        return _raised(text.rpartition(_TRACEBACK)[2])
    said = _tidy(text)
    cause = getattr(error, "_cause", None)
    while cause is not None:
        if _TRACEBACK in str(cause):
            return readable(cause)
        deeper = _tidy(str(cause))
        if deeper and deeper not in said:
            said = f"{said} {deeper}"
        cause = getattr(cause, "_cause", None)
    return said or type(error).__name__


def _tidy(text: str) -> str:
    for noise, instead in _NOISE:
        text = re.sub(noise, instead, text, flags=re.DOTALL)
    return text.strip()


def _raised(traceback: str) -> str:
    """The last line of a traceback, or its last lines if the message has several."""
    lines = traceback.splitlines()
    first = next((i for i, line in enumerate(lines) if line and not line[0].isspace()), 0)
    message = [lines[first]]
    for line in lines[first + 1 :]:
        if not line.strip() or re.match(r"\s*SQLSTATE: |\s*at [\w.$]+\(|===", line):
            break
        message.append(line.strip())
    kind, _, what = " ".join(message).partition(": ")
    return what if kind.startswith("millrace.") and what else f"the Python worker failed: {' '.join(message)}"


def main(arguments: Sequence[str]) -> int:
    """Run a pipeline until it ends; the exit code."""
    if len(arguments) != 1:
        print("usage: spark-submit pipeline.py PIPELINE.toml", file=sys.stderr)
        return 2
    try:
        pipeline = Pipeline.load(arguments[0])
        with pipeline.session() as spark:
            pipeline.run(spark)
    except PipelineError as error:
        print("\n".join(f"error: {problem}" for problem in error.problems), file=sys.stderr)
        return 1
    except (MillraceError, *SPARK_ERRORS) as error:
        print(f"error: {readable(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
