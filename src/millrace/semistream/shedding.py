"""Load shedding: drops some stream tuples because more come than can be joined. Off by default.

::

    arrived ──► kept ──► joined exactly
       └──────► shed: counted

``"random"`` keeps each tuple with the same probability: counts and sums over the output, divided by that probability,
estimate those of the whole join. ``"key"`` keeps all tuples of some keys, whose part of the join is exact.

References
----------
N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: Meshing streaming updates with persistent data
in an active data warehouse. TKDE 20(7), 2008.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.clock import Clock, RealClock
from millrace.core.errors import ConfigError, one_of
from millrace.kernels.sampling import sampled
from millrace.rows.keyed_rows import Codes

Sampling = Literal["random", "key"]
_ALL = 2**64
_CATCH_UP = 10.0  # seconds in which a backlog should be gone


class Shedding:
    """Decides which tuples of a stream are kept.

    Parameters
    ----------
    by
        ``"random"`` decides for each tuple on its own, ``"key"`` for all tuples of a key together. All null keys count
        as one key.
    keep
        Share of the tuples, or of the keys, that is kept. ``"auto"``: as many as can be joined, worked out
        from the arrivals passed to :meth:`observe` and the measured rate of the join; 1 until both are known.
    spare_hits
        Drop only tuples that would have to wait, not those that the cache answers at once.
    seed
        The same seed keeps the same tuples of the same stream, however it is cut into batches.
    clock
        Clock that measures the time of the join.

    Examples
    --------
    >>> shedding = Shedding("random", keep=0.25)
    >>> shedding.keep = 0.5
    >>> Shedding("key", keep=1.5)
    Traceback (most recent call last):
    millrace.core.errors.ConfigError: keep: expected a share from 0 to 1, or 'auto'; got 1.5
    """

    def __init__(
        self,
        by: str,
        keep: float | str = "auto",
        *,
        spare_hits: bool = False,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.by = one_of("shed", by, get_args(Sampling))
        if not isinstance(spare_hits, bool):
            raise ConfigError(f"spare_hits: expected True or False; got {spare_hits!r}")
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ConfigError(f"seed: expected a whole number from 0 to 2**63 - 1; got {seed!r}")
        self.spare_hits = spare_hits
        self._seed = seed
        self._clock = clock or RealClock()
        self._busy = 0.0
        self._seen_busy, self._seen_done = 0.0, 0
        self.done = 0
        """Number of tuples that the join has finished."""
        self.service_rate = 0.0
        """Tuples that the join finished per second of work, as of the last :meth:`observe`; 0 if not known yet."""
        self.keep = keep

    # how many

    @property
    def keep(self) -> float:
        """Share kept now, of the tuples or, with ``"key"``, of the keys. It may be set to a share or ``"auto"``."""
        return self._keep

    @keep.setter
    def keep(self, keep: float | str) -> None:
        number = isinstance(keep, int | float) and not isinstance(keep, bool)
        if keep != "auto" and not (number and 0 <= float(keep) <= 1):
            raise ConfigError(f"keep: expected a share from 0 to 1, or 'auto'; got {keep!r}")
        self.adapts = keep == "auto"
        """Whether the share adapts to the load."""
        self._keep = 1.0 if isinstance(keep, str) else float(keep)

    def count_done(self, tuples: int) -> None:
        """Add to the number of tuples that the join has finished."""
        self.done += tuples

    def observe(self, arrived_per_second: float, backlog: int = 0) -> float:
        """Adapt the share to the arrival rate, and to a backlog of tuples not pushed yet; return the share kept.

        With ``keep="auto"`` the share becomes service rate / arrival rate, at most 1. A backlog counts as if it
        arrived within ten seconds.
        """
        for name, value in (("arrived_per_second", arrived_per_second), ("backlog", backlog)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
                raise ConfigError(f"{name}: expected a number of at least 0; got {value!r}")
        busy, done = self._busy - self._seen_busy, self.done - self._seen_done
        if busy > 0 and done > 0:
            self.service_rate = done / busy
            self._seen_busy, self._seen_done = self._busy, self.done
        arrival = arrived_per_second + backlog / _CATCH_UP
        if self.adapts and self.service_rate:
            self._keep = min(1.0, self.service_rate / arrival) if arrival else 1.0
        return self._keep

    def timed(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a call and add up the time spent on producing them, not on consuming them."""
        while True:
            began = self._clock.now()
            try:
                batch = next(work)
            except StopIteration:
                return
            finally:
                self._busy += self._clock.now() - began
            yield batch

    # which ones

    def kept(self, arrived: npt.NDArray[np.int64], codes: Codes, nulls: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which tuples are kept, given their numbers in the stream, their key codes, and which keys are null."""
        keeps = np.ones(len(codes), np.bool_)
        threshold = int(self._keep * _ALL)
        if threshold >= _ALL:
            return keeps
        numbers = arrived if self.by == "random" else np.where(nulls, 0, codes)
        sampled(numbers, self._seed, np.uint64(threshold), keeps)
        return keeps

    def __str__(self) -> str:
        what = "of the tuples" if self.by == "random" else "of the keys"
        spared = ", and all that the cache answers" if self.spare_hits else ""
        follows = ", following the load" if self.adapts else ""
        return f"sheds load: keeps {self._keep:.1%} {what}{spared}{follows}"
