"""What ``make test`` leaves to ``make thorough``: long tests, and most combinations of those that have many.

Of a test marked ``sampled(4)`` every fourth combination of parameters stays, one at least. Which ones differs from test
to test, and neighbours in one parameter differ in the others, so every algorithm, type and kind of join is met.
"""

from __future__ import annotations

from collections import defaultdict
from zlib import crc32

import pytest

collect_ignore = ["conftest.py"]  # no examples here, and other folders have one of this name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests: dict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("sampled"):
            tests[item.parent, item.originalname].append(item)
    for (_, name), combinations in tests.items():
        values = max(index + 1 for item in combinations for index in item.callspec.indices.values())
        marker = combinations[0].get_closest_marker("sampled")
        assert marker is not None
        step = min(marker.args[0], values)
        for item in combinations:
            if (crc32(name.encode()) + sum(item.callspec.indices.values())) % step:
                item.add_marker(pytest.mark.thorough)
