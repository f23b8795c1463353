"""No test sees what was measured on this machine before, nor leaves anything behind for later; Spark starts seldom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

_TOGETHER = ("tests/spark/", "tests/millrace_bench/test_warehouse.py", "tests/test_docs.py")
"""Files whose tests share what they have set up."""


@pytest.fixture(autouse=True, scope="session")
def own_cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that run Spark go first, and after them the pages of docs/, which take the session that is there."""
    spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: 0 if item.path in spark else 1 if item.path.name == "test_docs.py" else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup``: one process begins with Spark, the others at the far end, until they meet.

    So one Java is started and warmed up, not one in every process, and nobody is idle before the end. The groups of
    pytest-xdist itself are of no use: it writes their names where pytest 9.2 does not read them.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FromBothEnds(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.split("::")[0] if nodeid.startswith(_TOGETHER) else nodeid

        def _assign_work_unit(self, node: Any) -> None:
            if node is not self.nodes[0]:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False
    return FromBothEnds(config, log)
