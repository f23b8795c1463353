"""What is to be joined, and every way to say it wrongly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace.core.errors import ConfigError, SchemaError
from millrace.core.spec import JoinSpec

STREAM = pa.schema({"k": pa.int64(), "x": pa.string()})
MASTER = pa.schema({"k": pa.int64(), "x": pa.string(), "y": pa.bool_()})


def test_on_may_be_a_name_several_or_a_mapping() -> None:
    assert JoinSpec.of("k").stream_key == ("k",)
    both = JoinSpec.of(["a", "b"])
    assert both.stream_key == both.master_key == ("a", "b")
    mapped = JoinSpec.of({"cust": "custkey", "d": "day"})
    assert (mapped.stream_key, mapped.master_key) == (("cust", "d"), ("custkey", "day"))


@pytest.mark.parametrize("bad", [3, None, [], {}, [1], {"a": 2}, [["a"]]])
def test_other_keys_are_refused(bad: Any) -> None:
    with pytest.raises(SchemaError, match="on: expected a column name, a list of names, or a mapping; got"):
        JoinSpec.of(bad)


@pytest.mark.parametrize("bad", ["outer", "INNER", None, 1])
def test_other_kinds_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="how: expected one of 'inner', 'left', 'semi', 'anti'; got"):
        JoinSpec.of("k", bad)


def test_output_has_the_stream_first_then_the_master_without_its_key() -> None:
    schema = JoinSpec.of("k").output_schema(pa.schema({"k": pa.int64(), "s": pa.int8()}), MASTER)
    assert schema.names == ["k", "s", "x", "y"]
    assert all(schema.field(name).nullable for name in ("x", "y"))
    chosen = JoinSpec.of("k", columns=["y"]).output_schema(STREAM, MASTER)
    assert chosen.names == ["k", "x", "y"]


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_semi_and_anti_have_only_the_stream(how: str) -> None:
    assert JoinSpec.of("k", how).output_schema(STREAM, MASTER).names == ["k", "x"]


def test_clashes_are_refused_or_told_apart() -> None:
    with pytest.raises(SchemaError, match=r"both the stream and the master have a column 'x'.*suffix"):
        JoinSpec.of("k").output_schema(STREAM, MASTER)
    assert JoinSpec.of("k", suffix="_m").output_schema(STREAM, MASTER).names == ["k", "x", "x_m", "y"]
    taken = pa.schema({"k": pa.int64(), "x": pa.int8(), "x_m": pa.int8()})
    with pytest.raises(SchemaError, match=r"a column 'x_m'.*choose another suffix"):
        JoinSpec.of("k", suffix="_m").output_schema(taken, MASTER)
    with pytest.raises(SchemaError, match="'k'"):
        JoinSpec.of("k", columns=["k"]).output_schema(STREAM, MASTER)


def test_columns_are_checked() -> None:
    with pytest.raises(SchemaError, match=r"the master has no 'z'; it has k, x, y"):
        JoinSpec.of("k", columns=["z"]).master_columns(MASTER)
    with pytest.raises(SchemaError, match="twice"):
        JoinSpec.of("k", columns=["x", "x"]).master_columns(MASTER)
    with pytest.raises(SchemaError, match="list of column names; got the text 'xy'"):
        JoinSpec.of("k", columns="xy")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (pa.int64(), pa.int64()),
        (pa.int16(), pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.dictionary(pa.int8(), pa.int32()), pa.int64()),
        (pa.large_binary(), pa.binary()),
        (pa.decimal128(10, 2), pa.decimal128(10, 2)),
    ],
)
def test_key_types_that_fit(ours: pa.DataType, theirs: pa.DataType) -> None:
    JoinSpec.of("k").check_keys(pa.schema({"k": ours}), pa.schema({"k": theirs}), ["k"])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (pa.int64(), pa.int32()),
        (pa.string(), pa.int64()),
        (pa.uint32(), pa.int64()),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.string(), pa.binary()),
        (pa.float64(), pa.int64()),
    ],
)
def test_key_types_that_do_not_fit(ours: pa.DataType, theirs: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"stream: key column 'k' is .* cast the stream's column") as raised:
        JoinSpec.of("k").check_keys(pa.schema({"k": ours}), pa.schema({"k": theirs}), ["k"])
    assert str(ours) in str(raised.value)
    assert str(theirs) in str(raised.value)


def test_keys_must_be_those_of_the_store() -> None:
    with pytest.raises(SchemaError, match="keyed by k, x; got k"):
        JoinSpec.of("k").check_keys(STREAM, MASTER, ["k", "x"])
    with pytest.raises(SchemaError, match="has no key column 'id'; it has k, x"):
        JoinSpec.of({"id": "k"}).check_keys(STREAM, MASTER, ["k"])
    twice = pa.schema([("k", pa.int64()), ("x", pa.int8()), ("x", pa.int8())])
    with pytest.raises(SchemaError, match="more than once: x"):
        JoinSpec.of("k").check_keys(twice, MASTER, ["k"])
