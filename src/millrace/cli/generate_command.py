"""``millrace generate``: make seeded data for trying joins."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from millrace.cli.display import say
from millrace.core.errors import ConfigError, one_of
from millrace.core.sizes import format_size

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(no_args_is_help=True, help="Make seeded data: streams, masters, TPC-H tables.")

Target = Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .parquet or .arrow.")]
Rows = Annotated[int, typer.Option(help="Rows to generate.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same rows, whatever the batch size.")]
BatchRows = Annotated[int, typer.Option(help="Rows generated at a time.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]


@app.command()
def stream(
    target: Target,
    rows: Rows = 1_000_000,
    domain: Annotated[int, typer.Option(help="Keys are drawn from 1..DOMAIN.")] = 1_000_000,
    skew: Annotated[float, typer.Option(help="The Zipf exponent: 0 is uniform, 1 the usual skew.")] = 1.0,
    seed: Seed = 0,
    batch_rows: BatchRows = 65_536,
    order: Annotated[
        str,
        typer.Option(help="shuffled: any key can be popular. sorted: key 1 is the most popular, then 2, …"),
    ] = "shuffled",
    overwrite: Overwrite = False,
) -> None:
    """Write a stream of 20-byte tuples (key, sid, qty) whose keys follow a Zipf law.

    Example: millrace generate stream orders.parquet --rows 5_000_000 --domain 1_000_000 --skew 1
    """
    from millrace.datasets import STREAM_SCHEMA
    from millrace.datasets.synthetic import Order

    spread = one_of("order", order, get_args(Order)) == "shuffled"
    _write(target, STREAM_SCHEMA, zipf_rows(rows, domain, skew, seed, batch_rows, spread), rows, overwrite)


def zipf_rows(
    rows: int, domain: int, skew: float, seed: int = 0, batch_rows: int = 65_536, shuffled: bool = True
) -> Iterable[pa.RecordBatch]:
    """Return a stream of exactly ``rows`` tuples with Zipf-distributed keys, in batches."""
    from millrace.datasets import zipf_stream

    if rows < 0 or batch_rows < 1:
        raise ConfigError(f"rows, batch-rows: expected rows >= 0 and batch-rows >= 1; got {rows} and {batch_rows}")
    batches = zipf_stream(
        domain, skew, batch_rows=batch_rows, batches=-(-rows // batch_rows), seed=seed, shuffled=shuffled
    )
    return (batch.slice(0, rows - number * batch_rows) for number, batch in enumerate(batches))


@app.command()
def master(
    target: Target,
    rows: Rows = 1_000_000,
    seed: Seed = 0,
    unique: Annotated[
        bool, typer.Option("--unique/--duplicates", help="Every key once, or keys drawn at random with repetition.")
    ] = True,
    domain: Annotated[
        int | None,
        typer.Option(help="With --duplicates: keys are drawn from 1..DOMAIN; DOMAIN is ROWS if not given."),
    ] = None,
    order: Annotated[str, typer.Option(help="shuffled or sorted by key.")] = "shuffled",
    batch_rows: BatchRows = 65_536,
    overwrite: Overwrite = False,
) -> None:
    """Write a master like that of the research papers: rows of 120 bytes (key, a1…a5, x1…x6, label).

    Example: millrace generate master customers.parquet --rows 1_000_000
    """
    from millrace.datasets import MASTER_SCHEMA, synthetic_master
    from millrace.datasets.synthetic import Order

    batches = synthetic_master(
        rows, seed=seed, unique=unique, domain=domain, order=cast(Order, order), batch_rows=batch_rows
    )
    _write(target, MASTER_SCHEMA, batches, rows, overwrite)


@app.command()
def tpch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the table into.")],
    table: Annotated[str, typer.Option(help="customer or orders.")] = "customer",
    scale: Annotated[float, typer.Option(help="Scale 1 is 150 000 customers and 1 500 000 orders.")] = 0.1,
    overwrite: Overwrite = False,
) -> None:
    """Write a TPC-H table as Parquet, with the scale in its name. A table that exists is kept.

    Needs tpchgen-cli: `pip install 'millrace[tpch]'`

    Example: millrace generate tpch data --table orders --scale 0.1
    """
    import pyarrow.parquet as pq

    from millrace.cli.progress import spinner
    from millrace.datasets import tpch as generated
    from millrace.datasets.tpch import Table

    chosen = cast(Table, table)
    there = set(directory.glob("*.parquet"))
    began = time.perf_counter()
    with spinner(f"TPC-H {table} at scale {scale:g}"):
        if overwrite and directory.is_dir():
            with tempfile.TemporaryDirectory(dir=directory, prefix=".tpch-") as unfinished:
                made = generated(chosen, scale, Path(unfinished))
                path = made.replace(directory / made.name)
        else:
            path = generated(chosen, scale, directory)
    if path in there and not overwrite:
        say(f"{path}: already exists and is kept ({pq.read_metadata(path).num_rows:,} rows)")
    else:
        _report(path, pq.read_metadata(path).num_rows, path.stat().st_size, time.perf_counter() - began)


def _write(target: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows: int, overwrite: bool) -> None:
    from millrace.cli.files import TableWriter
    from millrace.cli.progress import row_progress

    began = time.perf_counter()
    with TableWriter(target, schema, overwrite=overwrite) as writer, row_progress(target.name, rows) as done:
        for batch in batches:
            writer.write(batch)
            done(writer.rows)
    _report(target, writer.rows, writer.nbytes, time.perf_counter() - began)


def _report(path: Path, rows: int, nbytes: int, seconds: float) -> None:
    say(f"{path}: {rows:,} rows, {format_size(nbytes)}, in {seconds:.1f} s ({rows / seconds:,.0f} rows/s)")
