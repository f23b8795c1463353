"""Join streams with master data on disk, exactly and inside one byte budget.

>>> import tempfile, pyarrow as pa
>>> import millrace as mr
>>> customers = pa.table({"custkey": [1, 2, 3], "name": ["Ann", "Bo", "Cy"]})
>>> store = mr.MasterStore.build(customers, tempfile.mkdtemp() + "/customers", key="custkey")
>>> orders = [pa.record_batch({"custkey": [3, 1], "total": [30, 10]})]
>>> join = mr.SemiStreamJoin(store, on="custkey", memory="1MB")
>>> sum(batch.num_rows for batch in join.run(orders))
2
>>> join.metrics.matched
2
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.adaptive.join import StreamJoin
    from millrace.core.errors import MillraceError
    from millrace.core.metrics import JoinMetrics
    from millrace.core.spec import JoinSpec
    from millrace.master.device import Device
    from millrace.master.store import MasterStore
    from millrace.semistream.algorithms import ALGORITHMS
    from millrace.semistream.conditions.condition import Condition, band, between, compare, predicate
    from millrace.semistream.join import SemiStreamJoin
    from millrace.semistream.shedding import Shedding
    from millrace.semistream.star.arms import Arm
    from millrace.semistream.star.star_join import StarJoin

__all__ = [
    "ALGORITHMS",
    "Arm",
    "Condition",
    "Device",
    "JoinMetrics",
    "JoinSpec",
    "MasterStore",
    "MillraceError",
    "SemiStreamJoin",
    "Shedding",
    "StarJoin",
    "StreamJoin",
    "band",
    "between",
    "compare",
    "predicate",
]

_HOMES = {
    "StreamJoin": "millrace.adaptive.join",
    "MillraceError": "millrace.core.errors",
    "JoinMetrics": "millrace.core.metrics",
    "JoinSpec": "millrace.core.spec",
    "Device": "millrace.master.device",
    "MasterStore": "millrace.master.store",
    "ALGORITHMS": "millrace.semistream.algorithms",
    "Arm": "millrace.semistream.star.arms",
    "Condition": "millrace.semistream.conditions.condition",
    "band": "millrace.semistream.conditions.condition",
    "between": "millrace.semistream.conditions.condition",
    "compare": "millrace.semistream.conditions.condition",
    "predicate": "millrace.semistream.conditions.condition",
    "SemiStreamJoin": "millrace.semistream.join",
    "StarJoin": "millrace.semistream.star.star_join",
    "Shedding": "millrace.semistream.shedding",
}


def __getattr__(name: str) -> object:
    """Import and return a public name when it is first used, as loading the compiler of kernels takes a second."""
    if name not in _HOMES:
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List all public names, including those not imported yet, for completion in a shell."""
    return sorted({*globals(), *__all__})
