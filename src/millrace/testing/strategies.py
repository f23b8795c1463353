"""Hypothesis strategies for joins with a master. Hypothesis is installed with the extra ``testing``."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from millrace.semistream.conditions.condition import Condition, Inclusive, Sign, band, between, compare, predicate
from millrace.testing.cases import HOWS, KEY_KINDS, PAYLOADS, SPREADS, JoinCase, KeyKind, Payload

small = st.integers(1, 25)
"""Strategy for page sizes, ``b`` and ``w``: small enough that every boundary case occurs."""

batch_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple)
"""Strategy for the numbers of rows in consecutive batches, some of which are empty."""

payloads = st.lists(st.sampled_from(PAYLOADS), unique=True, max_size=3).map(tuple)
"""Strategy for the types of the columns besides the key."""

extra_memory = st.one_of(st.just(0), st.integers(0, 500), st.integers(500, 6_000), st.integers(6_000, 200_000))
"""Strategy for bytes of memory above the minimum: from about one tuple at a time to a master that fits in memory."""


_PAIRS = 3_000
"""Approximate limit of matching pairs in a case; with one row per output batch, ten times as many take 30 seconds."""
_MORE = int(os.environ.get("MILLRACE_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Return settings that draw the same examples in every run, so that a failure can be reproduced on any machine.

    The environment variable ``MILLRACE_EXAMPLES`` multiplies ``count``.
    """
    return settings(
        max_examples=count * _MORE,
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def join_cases(draw: st.DrawFn, /, **fixed: Any) -> JoinCase:
    """Draw a :class:`JoinCase`; parameters in ``fixed`` keep the given values."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "key": st.sampled_from(KEY_KINDS),
        "how": st.sampled_from(HOWS),
        "stream_rows": st.one_of(st.integers(0, 60), st.integers(0, 400)),
        "master_rows": st.one_of(st.integers(0, 30), st.integers(0, 200)),
        "domain": st.integers(1, 60),
        "spread": st.sampled_from(SPREADS),
        "unique": st.booleans(),
        "nulls": st.booleans(),
        "missing": st.booleans(),
        "stream_payload": payloads,
        "master_payload": payloads,
        "sizes": batch_sizes,
        "steps": st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
        "page_rows": small,
        "shards": st.integers(1, 3),
        "b": st.none() | small,
        "w": st.none() | small,
        "extra": extra_memory,
        "output_rows": st.sampled_from([1, 7, 65_536]),
        "seed": st.integers(0, 2**16),
    }
    found = {**{name: draw(values) for name, values in drawn.items() if name not in fixed}, **fixed}
    if "stream_rows" not in fixed and not found["unique"]:
        partners = found["master_rows"] // (1 if found["spread"] == "equal" else found["domain"])
        found["stream_rows"] = min(found["stream_rows"], _PAIRS // max(1, partners))
    return JoinCase(**found)


COMPARED: tuple[Payload, ...] = ("int", "float", "bool", "string", "decimal")
"""Types of the columns that the conditions from :func:`conditions` compare, besides the key and the row numbers."""

_NUMBERS = [("s_int", "m_int"), ("s_int", "m_float"), ("s_float", "m_float"), ("s_float", "m_int"), ("seq", "row")]
_OTHERS = [("s_string", "m_string"), ("s_bool", "m_bool"), ("s_decimal", "m_decimal"), ("seq", "m_decimal")]
_INTERVALS = [("s_int", "m_int", "row"), ("s_float", "m_int", "m_float"), ("seq", "m_float", "row")]
_KEY_WIDTHS: dict[KeyKind, st.SearchStrategy[Any]] = {
    "int32": st.integers(0, 30),
    "int64": st.integers(0, 2**34) | st.just(2**62),
    "date32": st.timedeltas(timedelta(0), timedelta(days=90)),
    "timestamp": st.timedeltas(timedelta(0), timedelta(days=3)),
    "decimal(10,2)": st.integers(0, 5) | st.decimals(0, 5, places=3) | st.sampled_from([0.29, 1.31]),
}


def third_of_pairs(stream: pa.RecordBatch, master: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return a mask of the pairs whose row numbers have a sum that is divisible by three."""
    thirds: npt.NDArray[np.bool_] = (stream["seq"].to_numpy() + master["row"].to_numpy()) % 3 == 0
    return thirds


@st.composite
def conditions(draw: st.DrawFn, key: KeyKind, most: int = 3) -> Condition:
    """Draw conditions of up to ``most`` parts, for a :class:`JoinCase` with the payload ``COMPARED`` on both sides."""
    keys = [] if key == "composite" else [("key", "k")]
    widths = st.integers(0, 400) | st.floats(0, 300)
    choices: list[st.SearchStrategy[Condition]] = [
        st.builds(lambda on, b, a: band(*on, below=b, above=a), st.sampled_from(_NUMBERS), widths, widths),
        st.builds(
            lambda on, ends: between(*on, inclusive=ends),
            st.sampled_from(_INTERVALS),
            st.sampled_from(get_args(Inclusive)),
        ),
        st.builds(
            lambda on, sign: compare(on[0], sign, on[1]),
            st.sampled_from([*_NUMBERS, *_OTHERS, *keys]),
            st.sampled_from(get_args(Sign)),
        ),
        st.just(predicate(third_of_pairs, stream=["seq"], master=["row"])),
    ]
    if key in _KEY_WIDTHS:
        widths = _KEY_WIDTHS[key]
        choices.append(st.builds(lambda b, a: band("key", "k", below=b, above=a), widths, widths))
    return reduce(and_, draw(st.lists(st.one_of(choices), min_size=1, max_size=most)))


@st.composite
def conditional_cases(draw: st.DrawFn, /, **fixed: Any) -> JoinCase:
    """Draw a :class:`JoinCase` with a condition and with few rows, since the oracle compares every pair of rows."""
    key = fixed.get("key") or draw(st.sampled_from(KEY_KINDS))
    usual: dict[str, Any] = {
        "where": draw(conditions(key)) if "where" not in fixed else None,
        "stream_rows": draw(st.integers(0, 50)),
        "master_rows": draw(st.integers(0, 40)),
        "stream_payload": COMPARED,
        "master_payload": COMPARED,
    }
    return draw(join_cases(**{**usual, "key": key, **fixed}))
