"""``algorithm="auto"`` on Spark: the driver chooses the algorithm once, before it has seen any of the stream.

The driver and all workers must run the same algorithm, and a query that is started again from its checkpoint must
continue with the tuples that wait in it. So the choice depends only on the store and on ``pending``, and is sent with
the plan::

    pending    index    algorithm
    drain      yes      lookup    no tuple waits for another micro-batch; an index added before a restart is used too
    drain      no       ssbj
    carry      any      ssbj      tuples wait in the query's state for one scan of the master, index or not
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.core.errors import ConfigError, one_of
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.arguments import AUTO, check_no_options
from millrace.semistream.choose.auto import Decision, best_without_disk_model

_WITH_ANY_ALGORITHM = ("where", "leave_early", "output_rows")
_NOT_ON_SPARK = ("w", "threads", "space", "device")
_EMBEDDED_ONLY = ("ordered", "shed", "keep")
_CARRY_NEEDS_WHEEL = "tuples that are carried to the next micro-batch wait for a scan of the whole master"


def choose_algorithm(algorithm: str, store: MasterStore, pending: str, options: Mapping[str, Any]) -> Decision:
    """Return the algorithm that all workers run, and why; raise an error if it cannot work with the arguments."""
    _check_options(options)
    if algorithm == AUTO:
        check_no_options(option for option in options if option not in _WITH_ANY_ALGORITHM)
        return best_without_disk_model(store, wheel=_CARRY_NEEDS_WHEEL if pending == "carry" else "")
    name = one_of("algorithm", algorithm, (AUTO, *ALGORITHMS))
    if pending == "carry" and not ALGORITHMS[name].turns:
        able = [other.name for other in ALGORITHMS.values() if other.turns]
        raise ConfigError(
            f"pending: 'carry' needs an algorithm that scans the whole master ({', '.join(able)}); "
            f"{name} works with 'drain'"
        )
    return Decision(name, {}, "it was given as algorithm=")


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise an error for options that a ``SemiStreamJoin`` has but :func:`enrich` does not have."""
    chosen_here = [option for option in options if option in _NOT_ON_SPARK]
    if chosen_here:
        raise ConfigError(f"{chosen_here[0]}: not an option on Spark, where enrich sets it itself")
    embedded = [option for option in options if option in _EMBEDDED_ONLY]
    if embedded:
        raise ConfigError(f"{embedded[0]}: not an option of enrich; only SemiStreamJoin, without Spark, has it")
    if options.get("migration") == "three-cycle":
        raise ConfigError(
            "migration: 'three-cycle' needs three scans of the whole master in one join, and a task on Spark makes "
            "fewer; use 'rolling'"
        )
