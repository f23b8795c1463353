"""``choose``: what makes no sense is refused, and what cannot be had is answered with the nearest that can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.core.errors import BudgetTooSmallError, ConfigError, MillraceError, OutOfReachError
from millrace.cost.frequencies import Frequencies
from millrace.cost.symbols import Disk, UnitCosts
from millrace.datasets import synthetic_master
from millrace.semistream.choose.choice import Choice, choose

ROWS = 20_000
ZIPF, DISK = Frequencies.zipf(1.0, ROWS), mr.Device("hdd-2013")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    return mr.MasterStore.build(synthetic_master(ROWS), tmp_path_factory.mktemp("m") / "s", "key")


def chosen(store: Any, **given: Any) -> Choice:
    return choose(store, **{"frequencies": ZIPF, "device": DISK, **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "memory, rate: expected exactly one of the two; got neither"),
        ({"memory": 1, "rate": 2}, "expected exactly one of the two; got memory=1 and rate=2"),
        ({"memory": 2.5}, "memory: expected bytes, or text .*; got 2.5"),
        ({"rate": "fast"}, "rate: expected tuples per second, above 0 .*; got 'fast'"),
        ({"rate": True}, "rate: .* got True"),
        ({"rate": 0}, "rate: .* got 0"),
        ({"rate": float("nan")}, "rate: .* got nan"),
        ({"rate": 1e30}, r"rate: .* at most 1e\+12; got 1e\+30"),
        ({"memory": "5%", "frequencies": [1, 2]}, r"frequencies: expected Frequencies, such as .*; got \[1, 2\]"),
        ({"memory": "5%", "device": "hdd-2013"}, "^device: expected a Device, such as .*; got 'hdd-2013'"),
        ({"memory": "5%", "device": mr.Device()}, "^disk: the device does not model a disk"),
        ({"memory": "5%", "disk": "hdd-2013"}, "disk: expected a Disk"),
        ({"memory": "5%", "costs": 1.0}, "costs: expected unit costs"),
        ({"memory": "5%", "stream": "key"}, "stream: expected a pyarrow.Schema; got str"),
        ({"memory": "5%", "on": "nix"}, "on: the master store is keyed by key; got nix"),
        ({"memory": "5%", "columns": ["nix"]}, "columns: the master has no 'nix'"),
        ({"memory": "5%", "algorithms": "ssbj"}, "algorithms: expected a list .*; got 'ssbj'"),
        ({"memory": "5%", "algorithms": []}, r"algorithms: expected a list .*; got \[\]"),
        ({"memory": "5%", "algorithms": ["inl"]}, "algorithms: expected one of 'meshjoin'.*; got 'inl'"),
    ],
)
def test_what_makes_no_sense(store: mr.MasterStore, given: dict[str, Any], words: str) -> None:
    with pytest.raises(MillraceError, match=words):
        chosen(store, **given)


def test_masters_that_say_nothing(store: mr.MasterStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="master: expected a MasterStore"):
        chosen(str(store.path), memory="5%")
    empty = mr.MasterStore.build(store.to_table().slice(0, 0), tmp_path / "empty", "key")
    with pytest.raises(ConfigError, match="is empty; there is nothing to predict"):
        chosen(empty, rate=100)
    bare = mr.MasterStore.build(store.to_table(), tmp_path / "bare", "key", index=False)
    with pytest.raises(ConfigError, match=r"^hybridjoin: needs an index"):
        chosen(bare, memory="5%", algorithms=["hybridjoin"])
    assert "hybridjoin: needs an index" in chosen(bare, memory="5%").explain()


def test_too_little_memory_is_answered_with_the_least(store: mr.MasterStore) -> None:
    for memory in (1, 1_000, "0.1%"):
        with pytest.raises(BudgetTooSmallError, match="the least is") as small:
            chosen(store, memory=memory)
        least = chosen(store, memory=small.value.minimum)
        mr.SemiStreamJoin(store, "key", device=DISK, **least.options)


def test_too_high_a_rate_is_answered_with_the_highest(store: mr.MasterStore) -> None:
    costs = UnitCosts(c_H=1e-8, c_O=1e-6, c_E=1e-6, c_S=1e-8, c_A=1e-6)
    measured: dict[str, Any] = {"device": mr.Device(), "disk": Disk(1e-4, float("inf")), "costs": costs}
    with pytest.raises(OutOfReachError, match=r"the highest rate is .*: a tuple takes at least") as high:
        chosen(store, rate=1e9, **measured)
    assert high.value.nearest < 1e6
    assert chosen(store, rate=0.99 * high.value.nearest, **measured).best.rate >= 0.99 * high.value.nearest
    with pytest.raises(OutOfReachError, match="the disk is the limit"):
        chosen(store, rate=1e11, algorithms=["meshjoin"])


def test_next_to_no_rate_takes_next_to_no_memory(store: mr.MasterStore) -> None:
    with pytest.raises(BudgetTooSmallError) as small:
        chosen(store, memory=1)
    for rate in (1e-12, 0.001, np.float32(1.0)):
        assert chosen(store, rate=rate).best.memory <= small.value.minimum + 100


def test_any_memory_can_be_asked_about_without_having_it(store: mr.MasterStore) -> None:
    most = chosen(store, memory="100TB")
    assert most.best.algorithm == "ssbj"
    assert most.best.hit_share == 1.0
