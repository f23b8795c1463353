"""Files that keep the caches of joins with ``pending="drain"`` for later micro-batches; losing one costs only time."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

from millrace.semistream.join import SemiStreamJoin
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.worker.scratch import local_directory

_SNAPSHOT = "snapshot"
_WORTH_KEEPING = 0.02


def worth_keeping(join: SemiStreamJoin) -> bool:
    """Return whether the cache has changed enough in this micro-batch to be worth writing."""
    m = join.metrics
    return m.admitted_keys + m.evicted_keys > _WORTH_KEEPING * m.cached_keys


def soft_folder(plan: EnrichPlan) -> Path:
    """Return the folder for caches and copies that all workers of this executor share; create it if possible.

    Without ``scratch``, it is in Spark's local directory and removed with the executor. Before it is created, the
    folders of older masters at the same path are removed.
    """
    folder = _folder(plan)
    if not folder.exists():
        with suppress(OSError):
            _remove_stale(plan, folder.parent)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / _SNAPSHOT).write_text(plan.snapshot)
    return folder


def recall_cache(plan: EnrichPlan, join: SemiStreamJoin, shard: int | None) -> None:
    """Fill the join's cache from the file that an earlier task wrote, if there is one."""
    join.recall_cache(_cache_file(plan, shard))


def keep_cache(plan: EnrichPlan, join: SemiStreamJoin, shard: int | None) -> None:
    """Write the join's cache to a file for later tasks, if it has changed enough."""
    if not worth_keeping(join):
        return
    soft_folder(plan)
    with suppress(OSError):  # without the file, the next task only begins with an empty cache
        join.keep_cache(_cache_file(plan, shard))


def _cache_file(plan: EnrichPlan, shard: int | None) -> Path:
    name = "whole" if shard is None else f"shard-{shard:04d}"
    return _folder(plan) / f"{name}.soft"


def _folder(plan: EnrichPlan) -> Path:
    return local_directory(plan.scratch) / f"millrace-{_path_digest(plan)}-{plan.identity}-{plan.memory}"


def _path_digest(plan: EnrichPlan) -> str:
    """Return a digest of the master's path, short enough for a file name."""
    return hashlib.sha256(plan.path.encode()).hexdigest()[:8]


def _remove_stale(plan: EnrichPlan, parent: Path) -> None:
    """Remove the folders with caches and copies of an older master that was at the same path."""
    for other in parent.glob(f"millrace-{_path_digest(plan)}-*"):
        try:
            stale = (other / _SNAPSHOT).read_text() != plan.snapshot
        except OSError:
            continue
        if stale:
            shutil.rmtree(other, ignore_errors=True)
