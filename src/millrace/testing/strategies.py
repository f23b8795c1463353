"""Hypothesis strategies for joins. The only module of Millrace that imports hypothesis (extra ``testing``)."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from millrace.testing.cases import HOWS, KEY_KINDS, PAYLOADS, SPREADS, JoinCase

small = st.integers(1, 25)
"""Page sizes, loads and windows: small enough that every edge is met."""

batch_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple)
"""Rows of consecutive batches, empty ones among them."""

payloads = st.lists(st.sampled_from(PAYLOADS), unique=True, max_size=3).map(tuple)
"""Types of further columns."""

extra_memory = st.one_of(st.just(0), st.integers(0, 500), st.integers(500, 6_000), st.integers(6_000, 200_000))
"""Bytes above the least: from hardly a tuple at a time to a master that fits as a whole."""


@st.composite
def join_cases(draw: st.DrawFn, /, **fixed: Any) -> JoinCase:
    """Random :class:`JoinCase`; arguments given by name are not drawn."""
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
    return JoinCase(**{name: fixed[name] if name in fixed else draw(values) for name, values in drawn.items()})
