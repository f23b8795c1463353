"""``millrace master``: build, describe and check stores of master data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.display import facts_table, names, out, say, say_json
from millrace.core.sizes import format_size

app = typer.Typer(no_args_is_help=True, help="Build, describe and check stores of master data.")

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The store's directory.")]


@app.command()
def build(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A Parquet file or folder, or an Arrow file.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The directory to create.")],
    key: Annotated[list[str], typer.Option(help="The key column; repeat it for a key of several columns.")],
    shards: Annotated[int, typer.Option(help="Parts that rows are divided into by key, as Spark divides them.")] = 1,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns to keep besides the key; all if not given.")
    ] = None,
    page_rows: Annotated[int, typer.Option(help="Rows per page.")] = 65_536,
    index: Annotated[bool, typer.Option(help="Also write an index from keys to rows.")] = True,
    records: Annotated[
        bool,
        typer.Option(help="With an index, also store each row contiguously: faster look-ups, twice the disk space."),
    ] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False,
) -> None:
    """Build a store from a table. The store becomes visible when all of it is written.

    Example: millrace master build customers.parquet customers.store --key custkey
    """
    from millrace.cli.files import StreamFiles, refuse_existing
    from millrace.cli.progress import row_progress
    from millrace.master.store import MasterStore

    refuse_existing(store, overwrite)
    total = StreamFiles(source).rows
    began = time.perf_counter()
    with row_progress(store.name, total) as done:
        built = MasterStore.build(
            source,
            store,
            key,
            shards=shards,
            columns=names(columns),
            page_rows=page_rows,
            index=index,
            records=records,
            overwrite=overwrite,
            progress=done,
        )
    seconds = time.perf_counter() - began
    left_out = built.manifest.null_keys
    say(
        f"{store}: {built.rows:,} rows, {format_size(built.nbytes)}, {built.shards} shard(s), "
        f"in {seconds:.1f} s ({built.rows / seconds:,.0f} rows/s)"
        + (f"; {left_out:,} rows without a key left out" if left_out else "")
    )


@app.command()
def info(
    store: Store,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show what a store contains."""
    from millrace.master.store import MasterStore

    facts = MasterStore.open(store).info()
    if as_json:
        say_json(facts)
        return
    repeats = "unique" if facts["unique"] else f"up to {facts['largest_group']:,} rows each"
    shown = [
        ("rows", f"{facts['rows']:,}"),
        ("key", ", ".join(facts["key"])),
        ("distinct keys", f"{facts['keys']:,} ({repeats})"),
        ("rows left out", f"{facts['null_keys_left_out']:,} (no key)"),
        ("size", f"{format_size(facts['data_bytes'])}, {facts['row_bytes']} bytes a row"),
        ("shards", ", ".join(f"{rows:,}" for rows in facts["shards"]) + " rows"),
        ("page", f"{facts['page_rows']:,} rows"),
        ("index", "yes" if facts["indexed"] else "no"),
        ("records", "yes" if facts["records"] else "no"),
        ("columns", ", ".join(f"{name} {type_}" for name, type_ in facts["columns"].items())),
        ("snapshot", facts["snapshot"]),
    ]
    out().print(facts_table(str(store), shown))


@app.command()
def index(store: Store) -> None:
    """Add an index to a store that was built without one, and also store each row contiguously, for faster look-ups."""
    from millrace.master.store import MasterStore

    began = time.perf_counter()
    indexed = MasterStore.add_index(store)
    say(f"{store}: index of {indexed.rows:,} rows, in {time.perf_counter() - began:.1f} s")


@app.command()
def verify(store: Store) -> None:
    """Read all of a store and check its checksums, pages, key codes and shards. Exit code 1 means damage."""
    from millrace.cli.progress import row_progress
    from millrace.master.store import MasterStore

    opened = MasterStore.open(store)
    with row_progress(f"verifying {store.name}", opened.rows) as done:
        opened.verify(done)
    say(f"{store}: sound, {opened.rows:,} rows in {opened.shards} shard(s)")
