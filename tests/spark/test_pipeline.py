"""Pipelines in TOML files: what is wrong with one is told with its line, and what is right runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.cli.run_command import QueryCounts
from millrace.core.errors import ConfigError, StateError
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.spark import enrich
from millrace.spark.pipeline import pipeline as pipelines
from millrace.spark.pipeline.pipeline import Pipeline, PipelineError, TomlLines, readable

ROOT = Path(__file__).parents[2]
BRIEFLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for a Java that does not live long
FINE = """\
checkpoint = "checkpoint"

[source]
format = "parquet"
path = "orders"

[master]
store = "customers"

[join]
on = { cust = "custkey" }
how = "left"
memory = "1MB"

[sink]
format = "parquet"
path = "out"

[trigger]
available_now = true
"""

Write = Callable[[str], Path]
_ALGORITHMS = ", ".join(f'"{name}"' for name in ALGORITHMS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream in three files, and a master, as a table and as a store."""
    root = tmp_path_factory.mktemp("pipeline")
    customers = pa.table({"custkey": pa.array(range(500)), "name": [f"customer {i}" for i in range(500)]})
    pq.write_table(customers, root / "customers.parquet")
    MasterStore.build(customers, root / "customers", key="custkey")
    (root / "orders").mkdir()
    for number in range(3):
        pq.write_table(_orders(number), root / "orders" / f"{number}.parquet")
    return root


@pytest.fixture
def write(place: Path, tmp_path: Path) -> Write:
    """Write a pipeline next to the data."""
    for name in ("orders", "customers", "customers.parquet"):
        (tmp_path / name).symlink_to(place / name)

    def written(text: str) -> Path:
        file = tmp_path / "pipeline.toml"
        file.write_text(text)
        return file

    return written


def _orders(number: int, rows: int = 400) -> pa.Table:
    sid = range(number * rows, (number + 1) * rows)
    return pa.table({"cust": pa.array([i * i % 700 for i in sid], pa.int64()), "sid": pa.array(sid, pa.int64())})


def _changed(*changes: tuple[str, str]) -> str:
    text = FINE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def _problems(file: Path, **options: Any) -> list[str]:
    """What is wrong with a file, without its name: ``line: problem``."""
    with pytest.raises(ConfigError) as caught:
        Pipeline.load(file, **options)
    assert isinstance(caught.value, PipelineError)
    return [problem.removeprefix(f"{file}:") for problem in caught.value.problems]


# lines


def test_lines_of_every_way_to_write_a_key() -> None:
    text = '''# [not.a.table]
top = "a # b" # c = 1
a.b."c.d" = """
x = 1
[no]
"""
list = [ # comment = 1
  "]", { deep = 1 },
  '[x]',
]

[ table . "sub \\u0041" ]  # [other]
when = 1979-05-27 07:32:00.5
rate = 1.5
'quoted' = { one = 1, two.three = [1, 2], four = { five = "}" } }
[[several]]
x = 1
[[several]]
y = 2
'''
    lines = TomlLines(text).of
    assert lines == {
        ("top",): 2,
        ("a",): 3,
        ("a", "b"): 3,
        ("a", "b", "c.d"): 3,
        ("list",): 7,
        ("list", "deep"): 8,
        ("table",): 12,
        ("table", "sub A"): 12,
        ("table", "sub A", "when"): 13,
        ("table", "sub A", "rate"): 14,
        ("table", "sub A", "quoted"): 15,
        ("table", "sub A", "quoted", "one"): 15,
        ("table", "sub A", "quoted", "two"): 15,
        ("table", "sub A", "quoted", "two", "three"): 15,
        ("table", "sub A", "quoted", "four"): 15,
        ("table", "sub A", "quoted", "four", "five"): 15,
        ("several",): 16,
        ("several", "x"): 17,
        ("several", "y"): 19,
    }


def test_lines_of_nothing() -> None:
    assert TomlLines("").find(("join", "on")) == 1


# what can be wrong


def test_a_file_without_faults(write: Write) -> None:
    file = write(FINE)
    pipeline = Pipeline.load(file)
    assert pipeline.name == "pipeline"
    assert pipeline.checkpoint == str(file.parent / "checkpoint")
    assert pipeline.tables["source"]["path"] == str(file.parent / "orders")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('how = "left"', 'hwo = "left"', "12: [join] hwo: unknown key; did you mean how?"),
        ("[sink]", "[snik]", "15: snik: unknown table; did you mean sink?"),
        ("[trigger]", "[triggers]", "19: triggers: unknown table; did you mean trigger?"),
        ("checkpoint =", "checkpont =", "1: checkpont: unknown key; did you mean checkpoint?"),
        ('path = "out"', 'path = "out"\nmemory = 5', "18: [sink] memory: unknown key; it belongs in [join]"),
        (
            'store = "customers"',
            'store = "customers"\nzebra = 1',
            "9: [master] zebra: unknown key; expected one of store, build",
        ),
        (
            'how = "left"',
            'how = "lfet"',
            '12: [join] how: expected one of "inner", "left", "semi", "anti"; got "lfet"; did you mean "left"?',
        ),
        ('how = "left"', "how = true", '12: [join] how: expected one of "inner", "left", "semi", "anti"; got true'),
        (
            'how = "left"',
            'algorithm = "sbj"',
            f'12: [join] algorithm: expected one of "auto", {_ALGORITHMS}; got "sbj"; did you mean "ssbj"?',
        ),
        (
            'how = "left"',
            'how = "to the\\nleft"',
            r'12: [join] how: expected one of "inner", "left", "semi", "anti"; got "to the\nleft"',
        ),
        ('how = "left"', "suffix = 5", "12: [join] suffix: expected text; got 5"),
        ('how = "left"', "turns = 0", "12: [join] turns: expected a whole number of at least 1; got 0"),
        ('how = "left"', "turns = true", "12: [join] turns: expected a whole number of at least 1; got true"),
        (
            'how = "left"',
            'columns = ["name", 5]',
            '12: [join] columns: expected a list such as ["a", "b"]; got ["name", 5]',
        ),
        ('"1MB"', '"1 lot"', '13: [join] memory: expected bytes, or text such as "256MB" or "1%"; got "1 lot"'),
        ('"1MB"', "1.5", '13: [join] memory: expected bytes, or text such as "256MB" or "1%"; got 1.5'),
        (
            '{ cust = "custkey" }',
            "{ cust = 5 }",
            '11: [join] on: expected "key", ["a", "b"], or { stream = "master" } with the names of columns; '
            "got a table",
        ),
        (
            '{ cust = "custkey" }',
            "[]",
            '11: [join] on: expected "key", ["a", "b"], or { stream = "master" } with the names of columns; got []',
        ),
        (
            'on = { cust = "custkey" }\n',
            "",
            '10: [join]: expected the key on ("key", ["a", "b"], or { stream = "master" } with the names of columns); '
            "it is missing",
        ),
        ('cust = "custkey"', 'cust = "custkeyy"', "11: [join] on: the master store is keyed by custkey; got custkeyy"),
        ('how = "left"', 'columns = ["nmae"]', '12: [join] columns: the master has no "nmae"; did you mean name?'),
        (
            'how = "left"',
            'algorithm = "ssbj"\noptions.evict_evry = 5',
            "13: [join] options.evict_evry: unknown option; did you mean evict_every?",
        ),
        (
            'how = "left"',
            "options.b = 5",
            '12: [join] options.b: algorithm = "auto" chooses it; name an algorithm to set it',
        ),
        (
            'how = "left"',
            'algorithm = "lookup"\noptions = { b = 5 }',
            "13: [join] options.b: unknown option; expected one of leave_early, output_rows, scratch",
        ),
        (
            'how = "left"',
            'algorithm = "meshjoin"\noptions = { evict_every = 5 }',
            "13: [join] options.evict_every: unknown option; expected one of leave_early, output_rows, scratch, b",
        ),
        (
            'path = "orders"\n',
            "",
            "3: [source]: expected the key path, the folder of the parquet files; it is missing",
        ),
        (
            '"orders"',
            '"customers.parquet"',
            "5: [source] path: expected a folder, whose files are the stream; {} is a file",
        ),
        (
            'format = "parquet"\npath = "orders"',
            'format = "json"\npath = "orders"',
            '3: [source]: expected the key schema, the columns of the json files, such as "key BIGINT, name STRING"; '
            "it is missing",
        ),
        (
            'path = "orders"',
            'path = "orders"\n[source.options]\nheader = true\na.list = [1]',
            "8: [source] options.a.list: expected text, a number or a boolean; got [1]",
        ),
        (
            'path = "out"\n',
            "",
            "15: [sink]: expected the key path, the folder to write parquet files to; it is missing",
        ),
        ('path = "out"', 'path = "out"\nmode = "complete"', '18: [sink] mode: expected "append"; got "complete"'),
        ('path = "out"', 'path = "out"\ncheckpoint = "c"', "18: [sink] checkpoint: given twice; it is on line 1 too"),
        (
            'checkpoint = "checkpoint"\n',
            "\n",
            "15: [sink]: expected the key checkpoint, the folder in which the query records its progress; "
            "it is missing",
        ),
        ("= true", "= false", "20: [trigger] available_now: expected true; got false"),
        (
            "available_now = true",
            'processing_time = "often"',
            '20: [trigger] processing_time: expected text such as "5 seconds"; got "often"',
        ),
        (
            "available_now = true",
            'available_now = true\nprocessing_time = "5 seconds"',
            "19: [trigger]: expected one of available_now, processing_time, once; "
            "got available_now and processing_time",
        ),
        (
            'store = "customers"',
            'store = "customers"\nbuild = { format = "parquet", key = [] }',
            '9: [master.build] key: expected text, or a list such as ["a", "b"]; got []',
        ),
        (
            'store = "customers"',
            'store = "customers"\n[master.build]\nformat = "parquet"\nkeys = "custkey"',
            "11: [master.build] keys: unknown key; did you mean key?",
        ),
        ('store = "customers"', 'store = "orders"', "8: [master] store: expected a master store; {} is not one"),
        (
            'store = "customers"',
            'store = "s3://bucket/new"\nbuild = { format = "parquet", path = "customers.parquet", key = "custkey" }',
            "8: [master] store: expected a path that all executors see; s3://bucket/new is a URL",
        ),
        (
            "[trigger]",
            '[spark.settings]\nmaster = "local"\n\n[trigger]',
            "20: [spark] settings.master: not a setting of Spark; it belongs in [spark]",
        ),
    ],
)
def test_a_fault_is_told_with_its_line(write: Write, old: str, new: str, problem: str) -> None:
    file = write(_changed((old, new)))
    (found,) = _problems(file)
    assert re.sub(re.escape(str(file.parent)) + r"/\S+", "{}", found) == problem


def test_paths_that_lead_nowhere(write: Write) -> None:
    file = write(_changed(('"orders"', '"nothing"'), ('"customers"', '"none"')))
    source, master = _problems(file)
    assert source == f"5: [source] path: no such file or folder: {file.parent}/nothing"
    assert master.startswith(f"8: [master] store: there is no master store at {file.parent}/none; add [master.build]")
    file.write_text(_changed(('"customers"', '"none"\nbuild = { format = "csv", path = "x.csv", key = "k" }')))
    assert _problems(file) == [f"9: [master.build] path: no such file or folder: {file.parent}/x.csv"]


def test_addresses_are_left_alone(write: Write) -> None:
    file = write(_changed(('"orders"', '"s3://bucket/orders"'), ('"out"', '"hdfs:/out"')))
    tables = Pipeline.load(file).tables
    assert (tables["source"]["path"], tables["sink"]["path"]) == ("s3://bucket/orders", "hdfs:/out")


def test_the_folder_of_what_workers_learn_is_relative_to_the_file_too(write: Write) -> None:
    file = write(_changed(('how = "left"', 'options.scratch = "learned"')))
    assert Pipeline.load(file).tables["join"]["options"] == {"scratch": str(file.parent / "learned")}


def test_the_output_of_another_query_is_left_alone(write: Write, tmp_path: Path) -> None:
    """Spark would take the first micro-batches for those that are already there, and leave them out."""
    for log, batch in [("out/_spark_metadata", "9.compact"), ("checkpoint/offsets", "8")]:
        (tmp_path / log).mkdir(parents=True)
        (tmp_path / log / batch).touch()
    file = write(FINE)
    (problem,) = _problems(file)
    assert problem.startswith(f"17: [sink] path: {tmp_path}/out has the output of another query: its last micro-batch")
    (tmp_path / "checkpoint" / "offsets" / "9").touch()
    Pipeline.load(file)
    file.write_text(FINE.replace('"checkpoint"', '"new"'))
    assert "is 9, and the last in the checkpoint is none" in _problems(file)[0]


def test_all_faults_are_told_at_once_in_the_order_of_lines(write: Write) -> None:
    join, source = "[join]\non = 5\nmemry = 1\n\n", '[source]\nformat = "csv"\npath = 1\n\n'
    text = join + source + "[spark]\nmaster = []\n[sink]\n# the end\n"
    assert _problems(write(text)) == [
        '2: [join] on: expected "key", ["a", "b"], or { stream = "master" } with the names of columns; got 5',
        "3: [join] memry: unknown key; did you mean memory?",
        '5: [source]: expected the key schema, the columns of the csv files, such as "key BIGINT, name STRING"; '
        "it is missing",
        "7: [source] path: expected text; got 1",
        "10: [spark] master: expected text; got []",
        "11: [sink]: expected the key format (text); it is missing",
        "12: [master]: expected this table; the file ends without it",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[join\non = 1\n", "1: not TOML: "),
        ('a = 1\n[join]\non = "key\n', "3: not TOML: "),
        ("a = 1\na = 2\n", "2: not TOML: "),
        ("a = 1\n\nb = [1,\n2\n", "4: not TOML: "),
    ],
)
def test_what_is_not_toml(write: Write, text: str, problem: str) -> None:
    (found,) = _problems(write(text))
    assert found.startswith(problem)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'a = "\xff"\n')
    for name, why in [("none.toml", "could not be read"), (".", "could not be read"), ("latin.toml", "UTF-8")]:
        with pytest.raises(PipelineError, match=why):
            Pipeline.load(tmp_path / name)


def test_a_byte_order_mark_and_the_ends_of_lines_of_windows(write: Write, tmp_path: Path) -> None:
    file = write("")
    file.write_bytes(b"\xef\xbb\xbf" + _changed(("how", "hwo")).replace("\n", "\r\n").encode())
    assert _problems(file) == ["12: [join] hwo: unknown key; did you mean how?"]


def test_carry_does_not_end_by_itself(write: Write) -> None:
    carried = ('how = "left"', 'pending = "carry"')
    (problem,) = _problems(write(_changed(carried)))
    assert problem.startswith('12: [join] pending: "carry" lets tuples wait')
    assert 'use pending = "drain"' in problem
    file = write(_changed(carried, ("available_now = true", 'processing_time = "1 second"')))
    Pipeline.load(file)
    assert _problems(file, available_now=True) == [problem]


def test_settings_may_be_dotted_or_quoted(write: Write) -> None:
    text = FINE + '[spark.settings]\nspark.sql.shuffle.partitions = 2\n"spark.ui.enabled" = false\n'
    settings = Pipeline.load(write(text)).tables["spark"]["settings"]
    assert settings == {"spark.sql.shuffle.partitions": 2, "spark.ui.enabled": False}


def test_the_examples_have_no_faults(place: Path, tmp_path: Path) -> None:
    """The file in examples/ and every whole file on the page about them."""
    page = (ROOT / "docs" / "how-to" / "run-a-pipeline.md").read_text()
    blocks = [block for block in re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S) if "[source]" in block]
    assert blocks
    for text in [*blocks, (ROOT / "examples" / "pipeline.toml").read_text()]:
        for folder in re.findall(r'^path = "(data/[^"]+)"', text, re.M):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for table in re.findall(r'path = "(data/[^"]+\.parquet)"', text):
            (tmp_path / table).touch()
        (tmp_path / "pipeline.toml").write_text(text)
        Pipeline.load(tmp_path / "pipeline.toml")


# --check


def test_check_tells_the_plan(write: Write) -> None:
    file = write(_changed(("[sink]", '[select]\ncolumns = "upper(name)"\n\n[sink]\npartition_by = "sid"')))
    done = CliRunner().invoke(app, ["run", str(file), "--check", "--json"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert plan["source"].startswith("parquet at ")
    assert "500 rows" in plan["master"]
    assert plan["join"] == (
        "left join on cust = custkey by lookup (chosen because the master has an index, and no disk is modelled); "
        "1MB of memory per executor; every micro-batch is joined completely before it ends"
    )
    assert plan["select"] == "upper(name)"
    assert "partitioned by sid" in plan["sink"]
    assert plan["trigger"] == "processes the available input, then ends"
    shown = CliRunner().invoke(app, ["run", str(file), "--check"])
    assert "pipeline.tomlisvalid" in "".join(shown.output.split()), "wherever the line was broken"


def test_check_tells_that_a_master_will_be_built(write: Write) -> None:
    build = 'store = "new"\nbuild = { format = "parquet", path = "customers.parquet", key = "custkey" }'
    file = write(_changed(('store = "customers"', build)))
    done = CliRunner().invoke(app, ["run", str(file), "--check", "--json"])
    assert "does not exist yet; it will be built from parquet" in json.loads(done.stdout)["master"]
    assert "by the algorithm that suits the master once it is built" in json.loads(done.stdout)["join"]


def test_check_tells_every_fault_in_a_line(write: Write) -> None:
    file = write(_changed(("how", "hwo"), ('"1MB"', "true")))
    done = CliRunner().invoke(app, ["run", str(file), "--check"])
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"error: {file}:12: [join] hwo: unknown key; did you mean how?",
        f'error: {file}:13: [join] memory: expected bytes, or text such as "256MB" or "1%"; got true',
    ]


def test_without_spark_there_is_help_and_a_hint() -> None:
    program = "import sys; sys.modules |= {'pyspark': None, 'py4j': None}; from millrace.cli.main import app; app()"
    for arguments, code, says in [(["run", "--help"], 0, "--available-now"), (["run", "x.toml"], 1, "millrace[spark]")]:
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert says in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


# runs


def _expected(spark: SparkSession, place: Path, stream: DataFrame | None = None) -> list[Any]:
    """What Spark's own left join gives."""
    orders = spark.read.parquet(str(place / "orders")) if stream is None else stream
    customers = spark.read.parquet(str(place / "customers.parquet"))
    joined = orders.join(customers, orders["cust"] == customers["custkey"], "left")
    return sorted(map(tuple, joined.select("cust", "sid", "name").collect()))


def _got(spark: SparkSession, folder: Path) -> list[Any]:
    return sorted(map(tuple, spark.read.parquet(str(folder)).select("cust", "sid", "name").collect()))


def test_from_parquet_to_parquet(spark: SparkSession, place: Path, write: Write, tmp_path: Path) -> None:
    """The master is built in the first run and found in the second, which has nothing left to do."""
    build = 'store = "new"\nbuild = { format = "parquet", path = "customers.parquet", key = "custkey", shards = 2 }'
    source = 'path = "orders"\noptions = { maxFilesPerTrigger = 2 }'
    select = '[select]\ncolumns = ["cust", "sid", "name", "sid % 2 AS half"]\n\n[sink]\npartition_by = "half"'
    pipeline = Pipeline.load(
        write(_changed(('store = "customers"', build), ('path = "orders"', source), ("[sink]", select)))
    )
    counts = QueryCounts()
    counts.add(pipeline.run(spark).recentProgress)
    assert (counts.batches, counts.tuples, counts.rows_out) == (2, 1200, 1200)
    expected = _expected(spark, place)
    assert len(expected) == 1200
    assert _got(spark, tmp_path / "out") == expected
    assert (tmp_path / "out" / "half=1").is_dir()
    assert MasterStore.open(tmp_path / "new").shards == 2
    assert all(one.numInputRows == 0 for one in pipeline.run(spark).recentProgress)
    assert _got(spark, tmp_path / "out") == expected


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_from_text(spark: SparkSession, place: Path, write: Write, tmp_path: Path, kind: str) -> None:
    (tmp_path / "lines").mkdir()
    orders = _orders(1)
    if kind == "json":
        (tmp_path / "lines" / "1.json").write_text("\n".join(map(json.dumps, orders.to_pylist())))
    else:
        pa.csv.write_csv(orders, tmp_path / "lines" / "1.csv")
    source = f'format = "{kind}"\npath = "lines"\nschema = "cust BIGINT, sid BIGINT"\noptions.header = true'
    Pipeline.load(write(_changed(('format = "parquet"\npath = "orders"', source)))).run(spark)
    assert _got(spark, tmp_path / "out") == _expected(
        spark, place, spark.read.parquet(str(place / "orders" / "1.parquet"))
    )


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('path = "orders"', 'path = "orders"\nschema = "cust BIGINT sid"', r"6: \[source\] schema: .*Syntax error"),
        ('format = "parquet"\npath = "orders"', 'format = "parkett"', r"3: \[source\]: .*the data source: parkett"),
        ('{ cust = "custkey" }', '"custkey"', r"10: \[join\]: stream: has no key column 'custkey'"),
        ('"1MB"', "10", r"10: \[join\]: .*the least is"),
        ("[sink]", '[select]\ncolumns = ["nam"]\n[sink]', r"16: \[select\] columns: .*`nam` cannot be resolved"),
        ('path = "out"', 'path = "out"\npartition_by = "nam"', r"15: \[sink\]: .*nam"),
    ],
)
def test_what_only_spark_can_find_is_told_with_a_line_too(
    spark: SparkSession, write: Write, old: str, new: str, problem: str
) -> None:
    pipeline = Pipeline.load(write(_changed((old, new))))
    with pytest.raises(PipelineError, match=problem) as caught:
        pipeline.start(spark)
    (message,) = caught.value.problems
    assert not re.search(r"\n|\tat |SQLSTATE|Project", message)


def test_an_error_of_a_worker_is_told_in_its_own_words(
    spark: SparkSession, place: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place / "customers", tmp_path / "replaced")
    pipeline = Pipeline.load(write(_changed(('store = "customers"', 'store = "replaced"'))))

    def replace_the_master(*arguments: Any, **options: Any) -> DataFrame:
        joined = enrich(*arguments, **options)
        MasterStore.build(place / "customers.parquet", tmp_path / "replaced", key="custkey", overwrite=True)
        return joined

    monkeypatch.setattr(pipelines, "enrich", replace_the_master)
    with pytest.raises(pipelines.SPARK_ERRORS) as caught:
        pipeline.run(spark)
    assert readable(caught.value).startswith(f"{tmp_path}/replaced: the master store was replaced after the query")
    assert "\n" not in readable(caught.value)


def test_an_error_of_java_is_told_with_its_cause(spark: SparkSession, write: Write, tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "1.parquet").write_text("nothing of the kind")
    torn = 'path = "torn"\nschema = "cust BIGINT, sid BIGINT"'
    with pytest.raises(pipelines.SPARK_ERRORS) as caught:
        Pipeline.load(write(_changed(('path = "orders"', torn)))).run(spark)
    message = readable(caught.value)
    assert "1.parquet" in message
    assert "is not a Parquet file" in message
    assert not re.search(r"\n|\tat |SQLSTATE|STREAM_FAILED", message)


def test_other_errors_are_readable_as_they_are() -> None:
    assert readable(StateError("not now")) == "not now"


# processes


class Process:
    """``millrace run`` or ``spark-submit`` in a process of its own."""

    def __init__(self, *command: object, folder: Path) -> None:
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=240)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


def _millrace(*arguments: object) -> list[object]:
    return [sys.executable, "-m", "millrace", *arguments]


@pytest.mark.thorough
def test_ctrl_c_and_on_again(spark: SparkSession, place: Path, write: Write, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(12):
        pq.write_table(_orders(number, 50), tmp_path / "many" / f"{number:02d}.parquet")
    file = write(
        _changed(
            ('path = "orders"', 'path = "many"\noptions.maxFilesPerTrigger = 1'),
            ("available_now = true", 'processing_time = "0 seconds"'),
        )
        + f'[spark]\nmaster = "local[1]"\nsettings.spark.driver = {{ memory = "1g", extraJavaOptions = "{BRIEFLY}" }}\n'
    )
    running = Process(*_millrace("run", file, "--json"), folder=Path("/"))
    deadline = time.monotonic() + 200
    while not (tmp_path / "checkpoint" / "commits" / "0").exists():
        assert running.process.poll() is None, running.end()
        assert time.monotonic() < deadline, "never began"
        time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    code, out, err = running.end()
    first = json.loads(out)
    assert code == 130, err
    assert first["interrupted"]
    assert 1 <= first["batches"] < 12
    assert err.endswith(f"running it again continues from the checkpoint in {tmp_path}/checkpoint\n")
    assert "Traceback" not in err

    code, out, err = Process(*_millrace("run", file, "--available-now", "--json"), folder=Path("/")).end()
    assert code == 0, err
    second = json.loads(out)
    assert second["batches"] >= 12 - first["batches"]
    assert _got(spark, tmp_path / "out") == _expected(spark, place, spark.read.parquet(str(tmp_path / "many")))


@pytest.mark.thorough
def test_spark_submit_of_the_example(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "pipeline.toml", tmp_path)
    cli = CliRunner()
    sizes = {"master": ["customers.parquet", "2_000"], "stream": ["orders/1.parquet", "3_000", "--domain", "2_500"]}
    for what, (name, *sized) in sizes.items():
        made = cli.invoke(app, ["generate", what, str(tmp_path / "data" / name), "--rows", *sized])
        assert made.exit_code == 0, made.output
    submit = Path(sys.executable).parent / "spark-submit"
    command = [submit, "--master", "local[1]", "--driver-memory", "1g", "--driver-java-options", BRIEFLY]
    script = ROOT / "src" / "millrace" / "spark" / "pipeline" / "pipeline.py"
    code, _, err = Process(*command, script, tmp_path / "pipeline.toml", folder=tmp_path).end()
    assert code == 0, err
    rows = spark.read.parquet(str(tmp_path / "data" / "enriched"))
    assert rows.count() == 3_000
    assert rows.columns == ["sid", "key", "qty", "amount", "label"]


def test_a_module_run_with_faults(write: Write) -> None:
    file = write(_changed(("how", "hwo")))
    command = [sys.executable, "-W", "error", "-m", "millrace.spark.pipeline.pipeline"]
    code, out, err = Process(*command, file, folder=file.parent).end()
    assert (code, out) == (1, "")
    assert err == f"error: {file}:12: [join] hwo: unknown key; did you mean how?\n"
    assert Process(*command, folder=file.parent).end()[0] == 2
