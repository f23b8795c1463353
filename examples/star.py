"""One stream of sales joined with three masters (customers, products, closed stores) under one memory budget."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import millrace as mr


def masters(folder: Path) -> dict[str, mr.MasterStore]:
    tables = {
        "customers": pa.table({"customer": np.arange(40_000), "segment": ["retail", "industry"] * 20_000}),
        "products": pa.table({"product": np.arange(10_000), "weight": np.arange(10_000) / 8}),
        "closed": pa.table({"store": np.arange(0, 100, 7)}),
    }
    return {
        name: mr.MasterStore.build(table, folder / name, key=table.column_names[0]) for name, table in tables.items()
    }


def sales() -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(1)
    for number in range(10):
        yield pa.record_batch(
            {
                "sale": np.arange(2_000) + 2_000 * number,
                "customer": rng.zipf(1.2, 2_000) % 45_000,
                "product": rng.zipf(1.3, 2_000) % 10_000,
                "store": rng.integers(0, 100, 2_000),
            }
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = masters(Path(folder))
        star = mr.StarJoin(
            [
                mr.Arm(store["customers"], on="customer", how="left", algorithm="ssbj"),
                mr.Arm(store["products"], on="product", algorithm="ssbj"),
                mr.Arm(store["closed"], on="store", how="anti"),
            ],
            memory="500kB",
        )
        rows = sum(len(batch) for batch in star.run(sales()))
        print(star.explain())
        for name, arm in star.metrics.arms.items():
            print(f"{name:>10}: {arm.tuples_in:,} in, {arm.rows_out:,} out, {arm.hit_rate:.0%} from memory")
        assert star.metrics.peak_bytes <= 500_000
        assert rows == star.metrics.rows_out
        print(f"{rows:,} rows with {', '.join(star.output_schema.names)}")


if __name__ == "__main__":
    main()
