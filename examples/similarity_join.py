"""A similarity join: misspelt company names are matched with the right ones, without a key in common.

Names are alike when they share most of their trigrams. A name's trigrams are hashed to 64 bits, so that the Jaccard
measure of a pair is two bit counts, taken for many pairs at a time. Names that are alike are about equally long: a band
on the length leaves few pairs to be measured.
"""

from __future__ import annotations

import itertools
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import millrace as mr

FIRST = ["Northern", "Southern", "Golden", "Silver", "United", "Pacific", "Alpine", "Coastal", "Crystal", "Summit"]
SECOND = ["Timber", "Textile", "Grain", "Optical", "Shipping", "Copper", "Paper", "Glass", "Motor", "Dairy", "Salt"]
THIRD = ["Works", "Trading", "Company", "Brothers", "Partners", "Mills"]


def signature(name: str) -> int:
    """Return the trigrams of a name, hashed into the 64 bits of a signed integer."""
    text = f"  {name.lower()} "
    grams = {text[i : i + 3] for i in range(len(text) - 2)}
    bits = sum({1 << zlib.crc32(gram.encode()) % 64 for gram in grams})
    return bits - (bits >> 63 << 64)  # as a signed number


def named(names: list[str], prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}name": names,
        f"{prefix}length": pa.array([len(name) for name in names], pa.int32()),
        f"{prefix}grams": pa.array([signature(name) for name in names], pa.int64()),
    }


def alike(stream: pa.RecordBatch, master: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each pair whether the trigrams of its names have a Jaccard measure of at least 0.6."""
    ours, theirs = stream["grams"].to_numpy().view(np.uint64), master["their_grams"].to_numpy().view(np.uint64)
    common = np.bitwise_count(ours & theirs).astype(np.float64)
    return np.asarray(common >= 0.6 * np.bitwise_count(ours | theirs))


def misspelt(name: str, rng: np.random.Generator) -> str:
    """Return the name with two neighbouring letters in the wrong order, or with one letter left out."""
    at = int(rng.integers(1, len(name) - 2))
    if rng.random() < 0.5:
        return name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    return name[:at] + name[at + 1 :]


def main() -> None:
    rng = np.random.default_rng(7)
    companies = [" ".join(words) for words in itertools.product(FIRST, SECOND, THIRD)]
    meant = [companies[i] for i in rng.integers(0, len(companies), 500)]
    stream = pa.table({"seq": range(500), **named([misspelt(name, rng) for name in meant], "")})

    with tempfile.TemporaryDirectory() as folder:
        master = pa.table({"id": range(len(companies)), **named(companies, "their_")})
        store = mr.MasterStore.build(master, Path(folder) / "companies", key="id")
        similar = mr.band("length", "their_length", below=1, above=1) & mr.predicate(
            alike, stream=["grams"], master=["their_grams"]
        )
        join = mr.SemiStreamJoin(store, where=similar, how="left", memory="20kB", columns=["their_name"])
        join.bind(stream.schema)
        print(join.explain(), end="\n\n")
        found = pa.Table.from_batches(join.run(stream.to_batches(max_chunksize=100))).to_pylist()

    right = {row["seq"] for row in found if row["their_name"] == meant[row["seq"]]}
    for row in found[:5]:
        print(f"{row['name']:>28}  ~  {row['their_name'] or '(nothing)'}")
    print(f"{len(right)} of 500 names found the company they mean, in {len(found)} rows")
    assert len(right) > 400


if __name__ == "__main__":
    main()
