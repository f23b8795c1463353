from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from millrace.master.store import MasterStore

Cli = Callable[..., Result]


def test_build_tells_what_it_did(cli: Cli, tmp_path: Path, customers: pa.Table) -> None:
    done = cli("master", "build", tmp_path / "customers.parquet", tmp_path / "s", "--key", "custkey", "--shards", 3)
    assert done.exit_code == 0, done.output
    assert "6 rows" in done.output
    assert "3 shard(s)" in done.output
    assert "1 rows without a key left out" in done.output
    assert MasterStore.open(tmp_path / "s").shards == 3


def test_a_key_of_two_columns_and_chosen_columns(cli: Cli, tmp_path: Path, customers: pa.Table) -> None:
    source = tmp_path / "customers.parquet"
    options = ("--key", "custkey", "--key", "name", "--columns", "qty", "--page-rows", 2)
    assert cli("master", "build", source, tmp_path / "s", *options).exit_code == 0
    store = MasterStore.open(tmp_path / "s")
    assert store.key == ("custkey", "name")
    assert store.schema.names == ["custkey", "name", "qty"]
    assert store.manifest.page_rows == 2


def test_build_from_a_folder_and_from_an_arrow_file(cli: Cli, tmp_path: Path, customers: pa.Table) -> None:
    (tmp_path / "folder").mkdir()
    for number in range(2):
        pq.write_table(customers, tmp_path / "folder" / f"part-{number}.parquet")
    cli("generate", "master", tmp_path / "m.arrow", "--rows", 100)
    assert cli("master", "build", tmp_path / "folder", tmp_path / "s", "--key", "custkey").exit_code == 0
    assert cli("master", "build", tmp_path / "m.arrow", tmp_path / "t", "--key", "key").exit_code == 0
    assert MasterStore.open(tmp_path / "s").rows == 12
    assert MasterStore.open(tmp_path / "t").rows == 100


def test_info(cli: Cli, store: Path) -> None:
    shown = cli("master", "info", store)
    assert shown.exit_code == 0
    assert "custkey" in shown.output
    assert "5 (up to 2 rows each)" in shown.output
    facts = json.loads(cli("master", "info", store, "--json").stdout)
    assert facts == MasterStore.open(store).info()


def test_verify(cli: Cli, store: Path) -> None:
    done = cli("master", "verify", store)
    assert done.exit_code == 0
    assert "sound, 6 rows" in done.output
    codes = store / "shard-0000" / "codes.i64"
    codes.write_bytes(bytes([codes.read_bytes()[0] ^ 1]) + codes.read_bytes()[1:])
    done = cli("master", "verify", store)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {codes}: its bytes were changed")


def test_an_existing_store_is_replaced_only_if_asked(cli: Cli, store: Path, tmp_path: Path) -> None:
    build = ("master", "build", tmp_path / "customers.parquet", store, "--key", "custkey")
    before = MasterStore.open(store).manifest.snapshot
    done = cli(*build)
    assert done.exit_code == 1
    assert done.stderr == f"error: {store}: already exists; pass --overwrite to replace it\n"
    assert MasterStore.open(store).manifest.snapshot == before
    assert cli(*build, "--overwrite").exit_code == 0
    assert MasterStore.open(store).manifest.snapshot != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "{}/none.parquet", "{}/s", "--key", "custkey"], "no such file or folder"),
        (["build", "{}/torn.parquet", "{}/s", "--key", "custkey"], "not readable as Parquet"),
        (["build", "{}/customers.parquet", "{}/s", "--key", "id"], "has no column 'id'; it has custkey, name, qty"),
        (["build", "{}/customers.parquet", "{}/s", "--key", "custkey", "--columns", "zip"], "has no column 'zip'"),
        (["build", "{}/customers.parquet", "{}/s", "--key", "custkey", "--shards", "0"], "shards: expected"),
        (["info", "{}/none"], "there is no master store here"),
        (["info", "{}"], "not a master store"),
        (["verify", "{}/none"], "there is no master store here"),
    ],
)
def test_errors(cli: Cli, tmp_path: Path, customers: pa.Table, arguments: list[str], message: str) -> None:
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "customers.parquet").read_bytes()[:-10])
    done = cli("master", *(argument.format(tmp_path) for argument in arguments))
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "s").exists()
