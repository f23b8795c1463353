"""An engine that looks keys up in a pandas frame through an index that is built once, or merges the frame with batches.

Merging is the most common way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace_bench.engines.batch_engine import BatchEngine, MasterFiles, arrow_file, map_rows


class Pandas(BatchEngine):
    """An engine that joins with pandas: by ``DataFrame.merge``, or, if keys are unique, by an index that is built once.

    Notes
    -----
    ``merge`` hashes the master anew for every batch.
    Numbers are arrays over the mapped file and text stays in Arrow's format, so opening the master copies nothing.
    The joined rows are frames.
    """

    def __init__(self, files: MasterFiles, merge: bool = False) -> None:
        super().__init__(files)
        self._merge = merge or not files.unique

    def prepare(self) -> Sequence[Path]:
        return [arrow_file(self.files)]

    def load(self) -> None:
        import pandas as pd

        pd.DataFrame({"key": [1]}).merge(pd.DataFrame({"key": [1]}), on="key")

    def open(self) -> None:
        import pandas as pd

        table = map_rows(self.files)
        text = {pa.string(): pd.ArrowDtype(pa.string())}
        rows = table if self._merge else table.drop_columns("key")
        self._master = rows.to_pandas(split_blocks=True, types_mapper=text.get)
        self.settings = {"master": "frame over a mapped Arrow file", "threads": "1", "version": pd.__version__}
        if self._merge:
            self.settings["join"] = "merge"
            return
        self._index = pd.Index(table["key"].to_numpy())
        self._index.get_indexer(self._index[:1])
        self.settings["join"] = "get_indexer of an index built once, take"

    def join(self, batch: pa.RecordBatch) -> Iterable[Any]:
        return [self.frame(batch.to_pandas())]

    def frame(self, batch: Any) -> Any:
        """Return the joined rows of a batch that is given as a frame."""
        import pandas as pd

        if self._merge:
            return batch.merge(self._master, on="key")
        places = self._index.get_indexer(batch["key"].to_numpy())
        found = places >= 0
        if not found.all():
            batch, places = batch[found], places[found]
        rows = self._master.take(places)
        rows.index = batch.index
        return pd.concat([batch, rows], axis=1)

    def whole(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        for out in self.join(batch):
            yield from pa.Table.from_pandas(out, preserve_index=False).to_batches()
