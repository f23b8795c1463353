"""``millrace tune``: predict rates and choose an algorithm and its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.display import err, say, say_json


def tune(
    store: Annotated[Path, typer.Argument(help="The master: a store made by `millrace master build`.")],
    memory: Annotated[str | None, typer.Option(help="Memory available: bytes, `64MB`, or `1%` of the master.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Rate required, in tuples per second, instead of --memory.")
    ] = None,
    skew: Annotated[
        float, typer.Option(help="Zipf exponent of the stream's keys; 0 if all are equally frequent.")
    ] = 1.0,
    keys: Annotated[
        int | None, typer.Option(help="Distinct keys of the stream; as many as the master has if not given.")
    ] = None,
    disk: Annotated[str, typer.Option(help="`none` to measure this machine, or a disk to model.")] = "none",
    again: Annotated[
        bool, typer.Option("--again", help="Measure this machine again, although results are stored.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw predicted rates over memory into this PNG.")] = None,
) -> None:
    """Predict service rates, choose the algorithm and its parameters, and explain the choice.

    Give **--memory** to ask for the highest rate, or **--rate** to ask for the least memory:

        millrace tune customers --memory 1% --skew 1

        millrace tune customers --rate 200000 --disk hdd-2013

    Without a modelled disk, unit costs of this machine are measured first, which takes up to 20 seconds, and stored for
    similar masters. **--again** measures them again; do that while nothing else runs.
    """
    from millrace.core.errors import ConfigError
    from millrace.core.sizes import parse_size
    from millrace.cost.frequencies import Frequencies
    from millrace.cost.measured import MeasuredCosts
    from millrace.cost.symbols import Disk
    from millrace.master.device import Device
    from millrace.master.store import MasterStore
    from millrace.semistream.calibrate.calibration import calibrated
    from millrace.semistream.choose.choice import choose
    from millrace.semistream.choose.validate import check_goal, check_master

    if (memory is None) == (rate is None):
        raise ConfigError(
            "tune: expected one of --memory (for the highest rate) and --rate (for the least memory); "
            f"got {'neither' if memory is None else 'both'}"
        )
    master = MasterStore.open(store)
    device = Device(disk)
    check_master(master)
    check_goal(memory, rate)
    frequencies = Frequencies.zipf(skew, max(1, master.manifest.keys) if keys is None else keys)
    if memory is not None:
        parse_size(memory, of=master.nbytes)
    if plot is not None and (plot.suffix.lower() != ".png" or not plot.absolute().parent.is_dir()):
        raise ConfigError(f"plot: expected a file name ending in .png, in an existing folder; got {plot}")
    measured: Disk | None = None
    costs: MeasuredCosts | None = None
    if device.disk is None:
        with err().status("measuring unit costs on this machine"):
            found = calibrated(master, again=again)
        measured, costs = found.disk, found.costs
    choice = choose(
        master, frequencies=frequencies, memory=memory, rate=rate, device=device, disk=measured, costs=costs
    )
    if json:
        say_json(choice.as_dict())
    else:
        say(choice.explain())
    if plot is not None:
        from millrace.cli.tune_plot import draw

        draw(plot, choice, lambda m: choose(
            master, frequencies=frequencies, memory=m, device=device, disk=measured, costs=costs
        ))  # fmt: skip
        if not json:
            say(f"drawn: {plot}")
