"""Predictions for Millrace's joins: the papers' models, adapted to the sizes and disk reads of this implementation.

Differences from the papers' models:

- a waiting tuple takes all bytes that are charged for it (slot, index, queue, filter), and a load holds only key codes;
- the wheel reads on where it stopped, so it seeks once a turn and not at every load;
- if only one match of a tuple matters, the tuple leaves with the first one, after half a turn on average;
- a step loads several pages, and reads the index to find them;
- caches find frequent keys by counting, so keys near the threshold enter and leave repeatedly.

Rates are those of the steady state, with a stream that always has the next tuple ready. All keys are assumed to have
the same number of master rows.
"""

from __future__ import annotations

from millrace.core.errors import BudgetTooSmallError, ConfigError, one_of
from millrace.core.sizes import format_size
from millrace.cost import engine_cyclic, engine_direct, engine_paged
from millrace.cost.engine_room import least_memory
from millrace.cost.plan import rows_by_share
from millrace.cost.prediction import Prediction
from millrace.cost.workload import Workload

PREDICTED = ("meshjoin", "r-meshjoin", "ssbj", "hybridjoin", "cachejoin", "sscj", "lookup")
"""The algorithms whose performance can be predicted."""


def predict(
    workload: Workload,
    algorithm: str,
    memory: int,
    *,
    b: int | None = None,
    cache_share: float = 0.3,
    l: int = 4,  # noqa: E741
) -> Prediction:
    """Predict the rate, the waits and the memory use of a join with a budget of ``memory`` bytes.

    Parameters
    ----------
    algorithm
        One of :data:`PREDICTED`.
    b, cache_share, l
        Options of the join: master rows per load or page (by default as many as the join chooses), the cache's share of
        the budget for ``cachejoin`` and ``sscj``, and loads per step for ``r-meshjoin``.
    """
    one_of("algorithm", algorithm, PREDICTED)
    asked = 1 if b is None or b <= rows_by_share(memory) else b  # the load's share of the budget has room for b rows
    least = least_memory(workload, min(asked, workload.rows))
    if memory < least:
        raise BudgetTooSmallError(
            f"memory: {format_size(memory)} is too little for {algorithm} with b={b or 1}; "
            f"the least is {least} bytes ({format_size(least)})",
            least,
        )
    if algorithm in ("cachejoin", "sscj", "ssbj") and not workload.cached_bytes > 0:
        raise ConfigError(
            f"cached_bytes: {algorithm} caches rows; expected the bytes of a key's rows, above 0; "
            f"got {workload.cached_bytes!r}"
        )
    if algorithm == "lookup":
        return engine_direct.predict(workload, memory)
    if algorithm in ("hybridjoin", "cachejoin", "sscj"):
        share = None if algorithm == "hybridjoin" else cache_share
        return engine_paged.predict(workload, algorithm, memory, b, share)
    return engine_cyclic.predict(workload, algorithm, memory, b, l if algorithm == "r-meshjoin" else 1)
