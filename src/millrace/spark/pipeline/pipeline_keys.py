"""The definition of a pipeline's file: its tables, their keys, and the values that each key may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from millrace.core.errors import ConfigError
from millrace.core.sizes import parse_size
from millrace.core.spec import How
from millrace.semistream.algorithms import ALGORITHMS
from millrace.spark.pipeline.toml_lines import Name


@dataclass(frozen=True)
class Kind:
    """The values that a key may have, described in words (``expected``) and as a test (``fits``)."""

    expected: str
    fits: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_some(value: Any) -> bool:
    return _is_text(value) or (_are_texts(value) and value != [])


def _is_on(value: Any) -> bool:
    return _is_some(list(value.values()) if isinstance(value, dict) else value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_size(value: Any) -> bool:
    try:
        return parse_size(value, of=2**40) > 0
    except ConfigError:
        return False


def _is_interval(value: Any) -> bool:
    pattern = r"\s*(interval )?(\d+ (milli|micro)?(second|minute|hour|day|week)s?\s*)+"
    return isinstance(value, str) and re.fullmatch(pattern, value, re.IGNORECASE) is not None


def _one_of(*choices: str) -> Kind:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return Kind(f"one of {listed}" if len(choices) > 1 else listed, lambda value: value in choices, choices)


TEXT = Kind("text", _is_text)
TEXTS = Kind('a list such as ["a", "b"]', _are_texts)
SOME = Kind('text, or a list such as ["a", "b"]', _is_some)
WHOLE = Kind("a whole number of at least 1", _is_whole)
TRUE = Kind("true", lambda value: value is True)
SIZE = Kind('bytes, or text such as "256MB" or "1%"', _is_size)
INTERVAL = Kind('text such as "5 seconds"', _is_interval)
ON = Kind('"key", ["a", "b"], or { stream = "master" } with the names of columns', _is_on)
FREE = Kind("a table whose values are text, numbers or booleans", lambda value: isinstance(value, dict))
TABLE = Kind("a table", lambda value: isinstance(value, dict))

KEYS: dict[Name, dict[str, Kind]] = {
    (): {"checkpoint": TEXT} | dict.fromkeys(("spark", "source", "master", "join", "select", "sink", "trigger"), TABLE),
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
"""The keys that each table may have, and the kind of value of each key."""

REQUIRED: dict[Name, tuple[str, ...]] = {
    (): ("source", "master", "join", "sink"),
    ("source",): ("format",),
    ("master",): ("store",),
    ("master", "build"): ("format", "key"),
    ("join",): ("on",),
    ("select",): ("columns",),
    ("sink",): ("format",),
}
"""The keys that each table must have."""

PATHS: tuple[Name, ...] = (
    ("checkpoint",),
    ("source", "path"),
    ("master", "store"),
    ("master", "build", "path"),
    ("join", "options", "scratch"),
    ("sink", "path"),
    ("sink", "checkpoint"),
)
"""The keys whose values are paths. Relative paths start from the folder of the pipeline's file."""

JOIN_OPTIONS = ("leave_early", "output_rows", "scratch")
"""Options of a join that work with every algorithm."""

FILES = ("parquet", "orc", "json", "csv", "text", "xml", "avro")
"""The formats that read or write files, and so need a path."""

WITH_COLUMNS = ("parquet", "orc", "text")
"""The file formats that need no ``schema``, because Spark knows their columns without one."""

WITHOUT_CHECKPOINT = ("console", "memory", "noop")
"""The formats of sinks that need no checkpoint."""


def label(name: Name) -> str:
    """Return the name of a table or key as it appears in messages.

    >>> label(("join",)), label(("join", "how")), label(("master", "build", "key")), label(("checkpoint",))
    ('[join]', '[join] how', '[master.build] key', 'checkpoint')
    """
    deep = max(deep for deep in range(len(name) + 1) if name[:deep] in KEYS)
    table, key = ".".join(name[:deep]), ".".join(name[deep:])
    return f"[{table}] {key}".rstrip() if table else key


def listed(value: str | list[str]) -> list[str]:
    """Return a string as a list with one item, and a list unchanged.

    >>> listed("a"), listed(["a", "b"])
    (['a'], ['a', 'b'])
    """
    return [value] if isinstance(value, str) else value
