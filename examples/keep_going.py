"""A join that survives: stop in the middle of a stream, start again from a snapshot, lose nothing, repeat nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import millrace as mr
from millrace.datasets import synthetic_master, zipf_stream


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = mr.MasterStore.build(synthetic_master(50_000), Path(folder) / "master", key="key")
        stream = list(zipf_stream(50_000, 1.0, batch_rows=5_000, batches=8))

        first = mr.SemiStreamJoin(store, on="key", memory="2%", columns=["label"])
        seen = [row for batch in stream[:4] for out in first.push(batch) for row in out["sid"].to_pylist()]
        state = first.snapshot()  # put it wherever the position in the stream is kept
        print(f"stopped with {first.metrics.waiting:,} tuples waiting; the snapshot has {len(state):,} bytes")

        second = mr.SemiStreamJoin(store, on="key", memory="2%", columns=["label"])
        second.restore(state)
        seen += [row for batch in stream[4:] for out in second.push(batch) for row in out["sid"].to_pylist()]
        seen += [row for out in second.finish() for row in out["sid"].to_pylist()]

        assert sorted(seen) == list(range(40_000)), "every tuple once"
        print(f"all {second.metrics.tuples_in:,} tuples answered once; {second.metrics.hit_rate:.0%} by the cache")


if __name__ == "__main__":
    main()
