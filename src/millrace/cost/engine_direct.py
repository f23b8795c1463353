"""A model of Millrace's ``lookup``: the rows of a batch are found through the index and read in one sweep.

No tuple waits. The rows of the different keys in a batch are scattered over pages, each of which is read once. A tuple
whose key came before in the batch costs as much as one that a cache answers.
"""

from __future__ import annotations

import math

from millrace.cost.prediction import Prediction
from millrace.cost.workload import Workload

_PAGE = 8192


def predict(workload: Workload, memory: int) -> Prediction:
    s, costs = workload, workload.unit_costs(memory)
    rows = s.frequencies.distinct(s.batch) * s.rows_per_key
    pages = max(1.0, s.rows * (s.read_row_bytes or s.read_bytes) / _PAGE)
    different = pages * -math.expm1(-rows / pages)
    computing = s.batch * s.rows_per_key * costs.hit + rows * costs.c_L
    seconds = s.disk.sweep(different, _PAGE, pages) + computing
    return Prediction("lookup", memory, 0, None, seconds, float(s.batch), 0.0, 0.0, 0.0, 0.0, {})
