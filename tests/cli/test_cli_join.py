from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

Cli = Callable[..., Result]

JOIN_TYPES = {"inner": "inner", "left": "left outer", "semi": "left semi", "anti": "left anti"}


def expected(stream: pa.Table, master: pa.Table, how: str, ours: str, theirs: str) -> pa.Table:
    """The join by pyarrow; master columns that the stream has too end in ``_m``."""
    return stream.join(master, ours, theirs, join_type=JOIN_TYPES[how], right_suffix="_m")


def multiset(table: pa.Table, columns: Iterable[str]) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))


@pytest.fixture
def run(cli: Cli, tmp_path: Path, store: Path, orders: pa.Table) -> Callable[..., dict[str, Any]]:
    """Join the orders with the customers; return the JSON."""

    def join(*options: object, stream: str = "orders.parquet", out: str | None = "out.parquet") -> dict[str, Any]:
        target = ["--no-output"] if out is None else [tmp_path / out]
        done = cli(
            "join", tmp_path / stream, store, *target, "--on", "cust=custkey", "--suffix", "_m", "--json", *options
        )
        assert done.exit_code == 0, done.output
        assert done.stderr == ""
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    return join


@pytest.mark.parametrize("how", JOIN_TYPES)
@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj", "sscj", "hybridjoin-l", "lookup"])
def test_the_output_is_the_join(
    run: Callable[..., dict[str, Any]],
    tmp_path: Path,
    orders: pa.Table,
    customers: pa.Table,
    how: str,
    algorithm: str,
) -> None:
    facts = run("--how", how, "--algorithm", algorithm, "--memory", "20kB", "--batch-rows", 128)
    right = expected(orders, customers, how, "cust", "custkey")
    written = pq.read_table(tmp_path / "out.parquet")
    assert set(written.column_names) == set(right.column_names)
    assert multiset(written, right.column_names) == multiset(right, right.column_names)
    matched = expected(orders, customers, "semi", "cust", "custkey").num_rows
    assert facts["tuples_in"] == orders.num_rows
    assert facts["rows_out"] == right.num_rows
    assert facts["matched"] == matched
    assert facts["unmatched"] == orders.num_rows - matched
    assert facts["waiting"] == 0
    assert facts["peak_bytes"] <= facts["budget_bytes"] == 20_000
    assert sum(facts["peak_parts"].values()) >= facts["used_bytes"]
    assert facts["algorithm"] == algorithm
    assert facts["how"] == how
    assert facts["on"] == {"cust": "custkey"}
    assert facts["output"] == str(tmp_path / "out.parquet")


def test_no_output_counts_the_same(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    written, counted = run(), run(out=None)
    assert written["rows_out"] == counted["rows_out"] > 0
    assert counted["output"] is None
    assert counted["wall_seconds"] >= counted["join_seconds"]


def test_a_folder_and_an_arrow_file_are_streams_too(
    run: Callable[..., dict[str, Any]], tmp_path: Path, orders: pa.Table
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "_SUCCESS").touch()
    for number in range(2):
        pq.write_table(orders, tmp_path / "folder" / f"part-{number}.parquet")
    with pa.ipc.new_file(str(tmp_path / "orders.arrow"), orders.schema) as writer:
        writer.write_table(orders, max_chunksize=400)
    once = run(out=None)
    assert run(stream="orders.arrow", out=None)["rows_out"] == once["rows_out"]
    assert run(stream="folder", out=None)["rows_out"] == 2 * once["rows_out"]


def test_an_empty_stream_gives_an_empty_file(
    run: Callable[..., dict[str, Any]], tmp_path: Path, orders: pa.Table
) -> None:
    pq.write_table(orders.slice(0, 0), tmp_path / "empty.parquet")
    assert run("--columns", "name", stream="empty.parquet")["rows_out"] == 0
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["cust", "sid", "qty", "name"]


def test_options_reach_the_engine(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    facts = run(
        *("--b", 2, "--w", 10, "--device", "hdd-2007", "--option", "migration=three-cycle"),
        *("--option", "evict_every=3", "--columns", "name", "--memory", "1MB", "--explain"),
    )
    assert (facts["b"], facts["k"], facts["device"]) == (2, 3, "hdd-2007")
    assert facts["device_seconds"] > 0
    assert facts["explain"].startswith("ssbj: ")
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["cust", "sid", "qty", "name"]


def test_the_output_may_be_an_arrow_file(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    facts = run(out="out.arrow")
    with pa.memory_map(str(tmp_path / "out.arrow")) as file:
        assert pa.ipc.open_file(file).read_all().num_rows == facts["rows_out"]


def test_the_summary_has_the_facts(cli: Cli, tmp_path: Path, store: Path, orders: pa.Table) -> None:
    done = cli(
        *("join", tmp_path / "orders.parquet", store, "--no-output", "--on", "cust=custkey"),
        *("--columns", "name", "--explain", "--memory", "1MB", "--device", "hdd-2007"),
    )
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    for name in ("tuples in", "rows out", "matched", "unmatched", "service rate", "hit rate", "cycles", "read"):
        assert name in shown
    for name in ("peak memory", "by part", "wait", "hdd-2007 would take", "waiting room for"):
        assert name in shown


def test_tpch_orders_with_customers(cli: Cli, tmp_path: Path) -> None:
    """Text is string_view in these files and comes out as plain text."""
    for table in ("customer", "orders"):
        assert cli("generate", "tpch", tmp_path, "--table", table, "--scale", 0.001).exit_code == 0
    customer, orders = tmp_path / "customer-sf0.001.parquet", tmp_path / "orders-sf0.001.parquet"
    assert cli("master", "build", customer, tmp_path / "s", "--key", "c_custkey").exit_code == 0
    done = cli(
        "join", orders, tmp_path / "s", tmp_path / "out.parquet", "--on", "o_custkey=c_custkey", "--memory", "60kB"
    )
    assert done.exit_code == 0, done.output
    stream, master = pq.read_table(orders), pq.read_table(customer)
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.field("o_comment").type == written.schema.field("c_name").type == pa.string()
    rows_of = {row["c_custkey"]: row for row in master.to_pylist()}
    right = Counter(
        tuple((order | rows_of[order["o_custkey"]])[name] for name in written.column_names)
        for order in stream.to_pylist()
    )
    assert multiset(written, written.column_names) == right


ERRORS = {
    "no stream": ("{}/none.parquet {}/customers.store {}/out.parquet --on cust=custkey", "no such file or folder"),
    "torn stream": ("{}/torn.parquet {}/customers.store {}/out.parquet --on cust=custkey", "not readable as Parquet"),
    "torn arrow": ("{}/torn.arrow {}/customers.store {}/out.parquet --on cust=custkey", "not readable as Arrow"),
    "empty folder": ("{}/empty {}/customers.store {}/out.parquet --on cust=custkey", "no Parquet files"),
    "no store": ("{}/orders.parquet {}/none {}/out.parquet --on cust=custkey", "there is no master store here"),
    "no key": ("{}/orders.parquet {}/customers.store {}/out.parquet", "--on"),
    "bad key": ("{}/orders.parquet {}/customers.store {}/out.parquet --on cust=", "expected KEY or STREAM=MASTER"),
    "key twice": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust --on cust=custkey",
        "given twice",
    ),
    "key not in stream": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on custkey",
        "has no key column 'custkey'; it has cust, sid, qty",
    ),
    "memory": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --memory lots",
        "or text such as '64MB'",
    ),
    "too little memory": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --suffix _m --memory 100B",
        "is too little",
    ),
    "algorithm": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --algorithm magic",
        "algorithm: expected one of 'meshjoin'",
    ),
    "how": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --how outer",
        "how: expected one of 'inner'",
    ),
    "device": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --device tape",
        "device: expected one of 'none'",
    ),
    "column": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --columns zip",
        "the master has no 'zip'",
    ),
    "clash": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey",
        "both the stream and the master have a column 'qty'",
    ),
    "option": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --option speed=9",
        "unknown option speed",
    ),
    "option without value": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --option speed",
        "expected NAME=VALUE",
    ),
    "option of another type": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --columns name --option evict_every=x",
        "evict_every",
    ),
    "batch rows": (
        "{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --columns name --batch-rows 0",
        "batch-rows: expected",
    ),
    "b": ("{}/orders.parquet {}/customers.store {}/out.parquet --on cust=custkey --b 0", "b: expected"),
    "format": ("{}/orders.parquet {}/customers.store {}/out.csv --on cust=custkey", "ending in .parquet or .arrow"),
    "existing": ("{}/orders.parquet {}/customers.store {}/old.parquet --on cust=custkey", "pass --overwrite"),
    "neither": ("{}/orders.parquet {}/customers.store --on cust=custkey", "or --no-output"),
    "both": ("{}/orders.parquet {}/customers.store {}/out.parquet --no-output --on cust=custkey", "or --no-output"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(cli: Cli, tmp_path: Path, store: Path, orders: pa.Table, case: str) -> None:
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "orders.parquet").read_bytes()[:-10])
    (tmp_path / "torn.arrow").write_bytes(b"ARROW1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "old.parquet").write_text("precious")
    before = sorted(tmp_path.iterdir())
    line, message = ERRORS[case]
    done = cli("join", *(word.format(tmp_path) for word in line.split()))
    assert done.exit_code == 1, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "old.parquet").read_text() == "precious"


def test_a_later_file_with_another_type_is_named(cli: Cli, tmp_path: Path, store: Path, orders: pa.Table) -> None:
    (tmp_path / "folder").mkdir()
    pq.write_table(orders, tmp_path / "folder" / "a.parquet")
    other = orders.set_column(2, "qty", orders["qty"].cast(pa.float64()))
    pq.write_table(other, tmp_path / "folder" / "b.parquet")
    done = cli(
        "join", tmp_path / "folder", store, tmp_path / "out.parquet", "--on", "cust=custkey", "--columns", "name"
    )
    assert done.exit_code == 1
    assert "'qty' was int32 and is double in a later batch" in done.stderr
    assert not list(tmp_path.glob("*out.parquet*"))


def test_overwrite_replaces_the_output(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("precious")
    assert run("--overwrite")["rows_out"] == pq.read_table(tmp_path / "out.parquet").num_rows


@pytest.fixture
def slow(cli: Cli, tmp_path: Path) -> list[Any]:
    """A join that takes long: with this little memory, many turns of the wheel."""
    cli("generate", "master", tmp_path / "m.parquet", "--rows", 200_000)
    cli("generate", "stream", tmp_path / "s.arrow", "--rows", 2_000_000, "--domain", 200_000, "--skew", 0)
    cli("master", "build", tmp_path / "m.parquet", tmp_path / "store", "--key", "key")
    inputs = [tmp_path / "s.arrow", tmp_path / "store"]
    return ["join", *inputs, tmp_path / "out.parquet", "--on", "key", "--memory", "30kB"]


def test_ctrl_c_leaves_nothing_behind(start: Callable[..., Any], tmp_path: Path, slow: list[Any]) -> None:
    running = start(*slow)
    code, out, err = running.interrupt_once(lambda: bool(list(tmp_path.glob(".out.parquet*"))))
    assert (code, out, err) == (130, "", "interrupted\n")
    assert not list(tmp_path.glob("*out.parquet*"))


def test_ctrl_c_while_progress_is_shown(start: Callable[..., Any], tmp_path: Path, slow: list[Any]) -> None:
    running = start(*slow, terminal=True)
    assert running.process.stderr is not None
    shown = ""
    while "tuples/s" not in shown:
        shown += running.process.stderr.read(1)
    code, out, err = running.interrupt_once(lambda: True)
    assert (code, out) == (130, "")
    assert "hit" in shown + err
    assert "waiting" in shown + err
    assert "interrupted" in err
    assert not list(tmp_path.glob("*out.parquet*"))
