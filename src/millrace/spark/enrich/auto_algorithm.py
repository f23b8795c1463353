"""``algorithm="auto"`` on Spark: decided once, on the driver, from what is known without the stream.

The driver and all workers have to run the same algorithm, and a query that is started again from its checkpoint has to
go on with the tuples that wait in it. So the choice depends on the store and on ``pending`` alone, and travels with the
plan::

    pending    index    algorithm
    drain      yes      lookup    nothing outlives a micro-batch: a store that has got an index since is looked up in
    drain      no       ssbj
    carry      any      ssbj      tuples wait in the state of the query, for a turn of the wheel, index or not
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.core.errors import ConfigError, one_of
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.arguments import AUTO, check_no_options
from millrace.semistream.choose.auto import Decision, best_without_disk_model

ANY = ("where", "leave_early", "output_rows")
"""Options of a join by any algorithm, even one that is not known yet."""
_WHEEL = "tuples that are carried to the next micro-batch wait for a turn of the wheel"


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that a join has and :func:`enrich` has not."""
    unknown = [option for option in options if option in ("w", "threads", "space", "device")]
    if unknown:
        raise ConfigError(f"{unknown[0]}: not an option on Spark, where it is chosen by enrich")
    embedded = [option for option in options if option in ("ordered", "shed", "keep")]
    if embedded:
        raise ConfigError(f"{embedded[0]}: an option of the embedded SemiStreamJoin only, not of enrich")
    if options.get("migration") == "three-cycle":
        raise ConfigError("migration: three-cycle needs three turns of one join; on Spark only rolling makes sense")


def decided(algorithm: str, store: MasterStore, pending: str, options: Mapping[str, Any]) -> Decision:
    """The algorithm that all workers run, and why; an error if it cannot do what ``pending`` and options ask for."""
    check_options(options)
    if algorithm == AUTO:
        check_no_options(option for option in options if option not in ANY)
        return best_without_disk_model(store, wheel=_WHEEL if pending == "carry" else "")
    name = one_of("algorithm", algorithm, (AUTO, *ALGORITHMS))
    if pending == "carry" and not ALGORITHMS[name].turns:
        able = [other.name for other in ALGORITHMS.values() if other.turns]
        raise ConfigError(
            f"pending: 'carry' is for algorithms whose tuples wait for a turn of the wheel: {', '.join(able)}; "
            f"{name} works with 'drain'"
        )
    return Decision(name, {}, "it was asked for")
