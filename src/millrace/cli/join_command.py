"""``millrace join``: join a stream in files with a store."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.display import facts_table, names, out, say_json
from millrace.core.errors import ConfigError, MillraceError
from millrace.core.sizes import format_size

if TYPE_CHECKING:
    from millrace.cli.progress import WatchedJoin


def join(
    stream: Annotated[
        Path,
        typer.Argument(metavar="STREAM", help="A Parquet file or folder, or an Arrow file, read in batches."),
    ],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store made by `millrace master build`.")],
    target: Annotated[Path | None, typer.Argument(metavar="OUT", help="The file to write: .parquet or .arrow.")] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="Key column, or STREAM=MASTER if the names differ; repeat it for each key column."
        ),
    ] = None,
    how: Annotated[str, typer.Option(help="inner, left, semi or anti.")] = "inner",
    algorithm: Annotated[str, typer.Option(help="A name from `millrace algorithms`.")] = "ssbj",
    memory: Annotated[str, typer.Option(help="Memory budget: 64MB, 64MiB, or 1% of the master.")] = "64MB",
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Master columns in the output; all but the key if not given."),
    ] = None,
    suffix: Annotated[
        str | None, typer.Option(help="Appended to names of master columns that the stream has too.")
    ] = None,
    b: Annotated[int | None, typer.Option("--b", help="Master rows of a load or page; tuned if not given.")] = None,
    w: Annotated[int | None, typer.Option("--w", help="Stream tuples let in per step; tuned if not given.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the algorithm; may be repeated."),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="Disk to simulate on a virtual clock: none, hdd-2007, hdd-2013, ssd-2016 or nvme."),
    ] = "none",
    batch_rows: Annotated[int, typer.Option(help="Stream rows read at a time.")] = 65_536,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    no_output: Annotated[bool, typer.Option("--no-output", help="Count the rows and write none, to measure.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show the plan and how the budget is divided.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")] = False,
) -> None:
    """Join a stream with a store under one byte budget.

    Example: millrace join orders.parquet customers.store enriched.parquet --on cust=custkey --memory 1%
    """
    from millrace.cli.files import StreamFiles, TableWriter, validate_target
    from millrace.cli.progress import WatchedJoin
    from millrace.master.device import Device
    from millrace.semistream.join import SemiStreamJoin

    if (target is None) != no_output:
        raise ConfigError(
            "OUT: expected a file to write or --no-output, which only counts the rows; "
            f"got {'both' if no_output else 'neither'}"
        )
    if target is not None:
        validate_target(target, overwrite)
    source = StreamFiles(stream)
    options = dict(_option(text) for text in option or [])
    try:
        joined = SemiStreamJoin(
            store,
            _pairs(on or []),
            how,
            algorithm=algorithm,
            memory=memory,
            columns=names(columns),
            suffix=suffix,
            b=b,
            w=w,
            device=Device(device),
            **options,
        )
        schema = joined.bind(source.schema)
    except TypeError as error:
        if isinstance(error, MillraceError) or not options:
            raise
        raise ConfigError(f"option: a value in {', '.join(option or [])} has the wrong type: {error}") from error
    watched = WatchedJoin(joined, source.rows, shown=not as_json)
    began = time.perf_counter()
    with ExitStack() as stack:
        writer = stack.enter_context(TableWriter(target, schema, overwrite=overwrite)) if target else None
        if writer is not None:
            writer.open()
        for batch in watched.run(source.batches(batch_rows)):
            if writer is not None:
                writer.write(batch)
    seconds = time.perf_counter() - began
    if as_json:
        say_json(_facts(watched, seconds, target) | ({"explain": joined.explain()} if explain else {}))
        return
    out().print(_summary(watched, seconds, target))
    if explain:
        out().print("\n" + joined.explain(), highlight=False, markup=False, soft_wrap=True)


def _pairs(on: list[str]) -> dict[str, str]:
    """Return a mapping from stream columns to master columns, from arguments such as ``KEY`` or ``STREAM=MASTER``.

    >>> _pairs(["day", "cust=custkey"])
    {'day': 'day', 'cust': 'custkey'}
    """
    if not on:
        raise ConfigError("on: expected --on KEY or --on STREAM=MASTER; got none")
    pairs: dict[str, str] = {}
    for text in on:
        ours, _, theirs = text.partition("=")
        if not ours or text.endswith("="):
            raise ConfigError(f"on: expected KEY or STREAM=MASTER; got {text!r}")
        if ours in pairs:
            raise ConfigError(f"on: the stream's column {ours!r} is given twice")
        pairs[ours] = theirs or ours
    return pairs


def _option(text: str) -> tuple[str, Any]:
    """Return the name and the value in ``NAME=VALUE``; the value is a number if it can be read as one.

    >>> _option("evict_every=5"), _option("switching_factor=1.5"), _option("migration=three-cycle")
    (('evict_every', 5), ('switching_factor', 1.5), ('migration', 'three-cycle'))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"option: expected NAME=VALUE; got {text!r}")
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    return name, value


def _rates(watched: WatchedJoin, seconds: float) -> dict[str, float]:
    join = watched.join
    tuples, device = join.metrics.tuples_in, join.device
    modelled = device.clock.now() if device.disk else 0.0
    busy = watched.seconds + modelled
    return {
        "wall_seconds": round(seconds, 3),
        "join_seconds": round(watched.seconds, 3),
        "device_seconds": round(modelled, 3),
        "service_rate": round(tuples / busy, 1) if busy else 0.0,
    }


def _facts(watched: WatchedJoin, seconds: float, target: Path | None) -> dict[str, Any]:
    """Return the results of a finished join by name, for ``--json``."""
    join = watched.join
    return {
        "algorithm": join.algorithm.name,
        "how": join.spec.how,
        "on": dict(zip(join.spec.stream_key, join.spec.master_key, strict=True)),
        "store": str(join.store.path),
        "output": None if target is None else str(target),
        "device": join.device.name,
        "b": join.b,
        "k": join.k,
        **_rates(watched, seconds),
        **join.metrics.as_dict(),
        "peak_parts": watched.peak_parts,
    }


def _summary(watched: WatchedJoin, seconds: float, target: Path | None) -> Any:
    join, m = watched.join, watched.join.metrics
    rates = _rates(watched, seconds)
    parts = sorted(watched.peak_parts.items(), key=lambda item: -item[1])
    timing = f"{rates['wall_seconds']:.2f} s, of which the join {rates['join_seconds']:.2f} s"
    if rates["device_seconds"]:
        timing += f"; {join.device.name} would take {rates['device_seconds']:.2f} s more"
    share = f" = {m.peak_bytes / m.budget_bytes:.1%}"
    return facts_table(
        f"{join.algorithm.name}, {join.spec.how} join" + (f" → {target}" if target else ", only counted"),
        [
            ("tuples in", f"{m.tuples_in:,}"),
            ("rows out", f"{m.rows_out:,}"),
            ("matched", f"{m.matched:,}"),
            ("unmatched", f"{m.unmatched:,}"),
            ("service rate", f"{rates['service_rate']:,.0f} tuples/s"),
            ("hit rate", f"{m.hit_rate:.1%}"),
            ("cycles", f"{m.cycles:,.2f}, each of at most {m.steps_per_cycle:,} steps"),
            ("read", f"{m.pages_read:,} pages, {format_size(m.bytes_read)}, {m.seeks:,} seeks"),
            ("peak memory", f"{format_size(m.peak_bytes)} of {format_size(m.budget_bytes)}{share}"),
            ("by part", ", ".join(f"{part} {format_size(nbytes)}" for part, nbytes in parts)),
            (
                "wait",
                f"p50 {m.waits.quantile(0.5):,}, p99 {m.waits.quantile(0.99):,} of {m.steps_per_cycle:,} steps",
            ),
            ("time", timing),
        ],
    )
