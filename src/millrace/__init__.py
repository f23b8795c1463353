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

from millrace.core.errors import MillraceError
from millrace.core.metrics import JoinMetrics
from millrace.core.spec import JoinSpec
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin

__all__ = ["ALGORITHMS", "Device", "JoinMetrics", "JoinSpec", "MasterStore", "MillraceError", "SemiStreamJoin"]
