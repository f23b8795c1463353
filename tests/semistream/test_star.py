"""A star gives what joining with one master after the other gives, whatever its arms, its memory and its batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import (
    BudgetExceededError,
    BudgetTooSmallError,
    ConfigError,
    SchemaError,
    StateError,
)
from millrace.master.device import Device
from millrace.semistream.sizing.arm_shares import Need, split
from millrace.testing.cases import HOWS
from millrace.testing.oracle import assert_same_rows, oracle_join
from millrace.testing.strategies import examples

pytestmark = pytest.mark.sampled(4)

ALGORITHMS = ("ssbj", "meshjoin", "lookup", "sscj", "auto")
ROOMY = 3_000
"""Bytes for the strings of a tuple, beside the least an arm starts with."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, mr.MasterStore]:
    root = tmp_path_factory.mktemp("star")
    rng = np.random.default_rng(5)
    masters = {
        "customers": (
            {
                "custkey": list(range(30)),
                "city": [f"city {i % 9}" for i in range(30)],
                "nation": rng.integers(0, 8, 30),
            },
            "custkey",
        ),
        "parts": (  # keys repeat, some are null
            {"partkey": [None if i % 11 == 5 else i % 14 for i in range(40)], "brand": [f"b{i}" for i in range(40)]},
            "partkey",
        ),
        "suppliers": ({"code": [f"s{i}" for i in range(12)], "rating": rng.random(12)}, "code"),
        "nations": ({"nation": list(range(6)), "land": ["é" * i for i in range(6)]}, "nation"),
    }
    return {
        name: mr.MasterStore.build(pa.table(columns), root / name, key, shards=1 + (name == "parts"), page_rows=7)
        for name, (columns, key) in masters.items()
    }


def _stream(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)

    def some_null(values: Sequence[Any]) -> list[Any]:
        return [None if gone else value for value, gone in zip(values, rng.random(rows) < 0.1, strict=True)]

    return pa.table(
        {
            "custkey": pa.array(some_null((rng.zipf(1.4, rows) % 40).tolist()), pa.int64()),
            "part": pa.array(some_null(rng.integers(0, 20, rows).tolist()), pa.int32()),
            "supplier": pa.array(some_null([f"s{i}" for i in rng.integers(0, 16, rows)]), pa.string()),
            "seq": np.arange(rows),
        }
    )


def _arms(stores: dict[str, mr.MasterStore], hows: Sequence[str], names: Sequence[str], **options: Any) -> list[mr.Arm]:
    keys = ({"custkey": "custkey"}, {"part": "partkey"}, {"supplier": "code"})
    return [
        mr.Arm(stores[store], on, how, algorithm=name, **_taken(name, options))
        for store, on, how, name in zip(("customers", "parts", "suppliers"), keys, hows, names, strict=False)
    ]


def _taken(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options without ``b``, where nobody waits and where it is chosen."""
    return {name: value for name, value in options.items() if name != "b" or algorithm not in ("lookup", "auto")}


def _expected(stream: pa.Table, arms: Sequence[mr.Arm]) -> pa.Table:
    for arm in arms:
        stream = oracle_join(stream, arm.store.to_table(), arm.spec)
    return stream


def _star(arms: Sequence[mr.Arm], stream: pa.Table, extra: int = ROOMY, **more: Any) -> mr.StarJoin:
    """A star with so many bytes above the least, and room for the strings of a tuple in every arm."""
    least = 1
    while True:
        try:
            mr.StarJoin(arms, memory=least, **more).bind(stream.schema)
        except BudgetTooSmallError as error:
            least = max(least + 1, error.minimum)
        else:
            return mr.StarJoin(arms, memory=least + extra + len(arms) * ROOMY, **more)


def _cuts(stream: pa.Table, sizes: Sequence[int]) -> Iterator[pa.RecordBatch]:
    whole = stream.combine_chunks().to_batches()[0] if len(stream) else pa.RecordBatch.from_pylist([], stream.schema)
    at = turn = 0
    while at < len(whole) or turn == 0:
        size = sizes[turn % len(sizes)] if any(sizes) else len(whole) + 1
        yield whole.slice(at, size)
        at, turn = at + size, turn + 1


def _calls(star: dict[str, mr.StarJoin], stream: pa.Table, sizes: Sequence[int]) -> Iterator[Iterator[pa.RecordBatch]]:
    for number, batch in enumerate(_cuts(stream, sizes)):
        yield star["now"].push(batch)
        if number % 3 == 1:
            yield star["now"].step()
        yield star["now"].idle()
    yield star["now"].finish()


def _run(star: mr.StarJoin, stream: pa.Table, sizes: Sequence[int]) -> list[pa.RecordBatch]:
    """Everything that comes out, with every rule checked after every call."""
    got = []
    for call in _calls({"now": star}, stream, sizes):
        for batch in call:
            assert star.nbytes <= star.budget.total
            assert batch.schema.equals(star.output_schema)
            got.append(batch)
        star.check_invariants()
        assert star.nbytes <= star.budget.total
    assert star.metrics.tuples_in == len(stream)
    assert star.metrics.rows_out == sum(map(len, got))
    assert star.metrics.waiting == 0
    assert star.metrics.peak_bytes <= star.budget.total
    return got


@pytest.mark.parametrize("names", list(product(ALGORITHMS, repeat=2)), ids="-".join)
def test_every_pair_of_algorithms(stores: dict[str, mr.MasterStore], names: tuple[str, str]) -> None:
    stream = _stream(150)
    for hows in (("inner", "left"), ("left", "inner"), ("anti", "left"), ("semi", "inner")):
        arms = _arms(stores, hows, names)
        got = _run(_star(arms, stream), stream, (40, 0, 7))
        assert_same_rows(got, _expected(stream, arms), f"{names} {hows}")


@examples(30)
@given(data=st.data())
def test_three_arms(stores: dict[str, mr.MasterStore], data: st.DataObject) -> None:
    stream = _stream(data.draw(st.integers(0, 200)), data.draw(st.integers(0, 99)))
    arms = _arms(
        stores,
        data.draw(st.lists(st.sampled_from(HOWS), min_size=3, max_size=3)),
        data.draw(st.lists(st.sampled_from(ALGORITHMS), min_size=3, max_size=3)),
        b=data.draw(st.none() | st.integers(1, 9)),
        output_rows=data.draw(st.sampled_from([1, 5, 65_536])),
    )
    extra = data.draw(st.one_of(st.integers(0, 3_000), st.integers(3_000, 400_000)))
    star = _star(arms, stream, extra, reorder=data.draw(st.booleans()))
    got = _run(star, stream, data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=5)))
    assert_same_rows(got, _expected(stream, arms))


@examples(12)
@given(
    hows=st.lists(st.sampled_from(HOWS), min_size=3, max_size=3),
    names=st.lists(st.sampled_from(ALGORITHMS), min_size=3, max_size=3),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    stop=st.integers(0, 40),
)
def test_a_restored_star_goes_on_as_if_nothing_had_happened(
    stores: dict[str, mr.MasterStore], hows: list[str], names: list[str], sizes: list[int], stop: int
) -> None:
    stream = _stream(120, 3)
    arms = _arms(stores, hows, names)
    total = sum(1 for call in _calls({"now": _star(arms, stream)}, stream, sizes) for _ in [list(call)])
    star, got = {"now": _star(arms, stream)}, []
    for number, call in enumerate(_calls(star, stream, sizes)):
        got += list(call)
        if number == stop % total:
            before, state = star["now"].metrics, star["now"].snapshot()
            star["now"] = _star(arms, stream)
            star["now"].restore(state)
            after = star["now"].metrics
            for name in ("tuples_in", "rows_out", "matched", "unmatched", "waiting", "steps"):
                assert getattr(before, name) == getattr(after, name)
            assert star["now"].snapshot() == state
        star["now"].check_invariants()
    assert_same_rows(got, _expected(stream, arms))


def test_an_arm_on_a_column_of_another(stores: dict[str, mr.MasterStore]) -> None:
    stream = _stream(150)
    for hows in product(("inner", "left"), HOWS, ("left", "anti")):
        arms = [
            mr.Arm(stores["customers"], "custkey", hows[0]),
            mr.Arm(stores["nations"], "nation", hows[1]),
            mr.Arm(stores["suppliers"], {"supplier": "code"}, hows[2]),
        ]
        star = _star(arms, stream)
        assert_same_rows(_run(star, stream, (50,)), _expected(stream, arms), f"{hows}")
        order = list(star.joins)
        assert order.index("customers") < order.index("nations")


def test_an_arm_waits_for_the_column_its_condition_needs(stores: dict[str, mr.MasterStore]) -> None:
    arms = [
        mr.Arm(stores["customers"], "custkey", "left"),
        mr.Arm(stores["suppliers"], {"supplier": "code"}, "semi", where=mr.compare("nation", ">=", "rating")),
    ]
    stream = _stream(200)
    rows = [batch.to_pylist() for batch in mr.StarJoin(arms, memory="64kB").run(stream)]
    straight = [batch.to_pylist() for batch in mr.StarJoin(arms, memory="64kB", reorder=False).run(stream)]
    assert sorted(row["seq"] for part in rows for row in part) == sorted(
        row["seq"] for part in straight for row in part
    )
    with pytest.raises(SchemaError, match="where: 'nation' is a column of arm 'customers', which comes later"):
        mr.StarJoin(arms[::-1], memory="64kB").bind(stream.schema)


def test_a_star_with_an_ordered_arm_is_restored(stores: dict[str, mr.MasterStore]) -> None:
    def star() -> mr.StarJoin:
        return mr.StarJoin([mr.Arm(stores["customers"], "custkey", "left", ordered=True)], memory="64kB")

    before, after, batch = star(), star(), _stream(200).to_batches()[0]
    came = [row for part in before.push(batch) for row in part.to_pylist()]
    after.restore(before.snapshot())
    came += [row for part in after.finish() for row in part.to_pylist()]
    assert [row["seq"] for row in came] == list(range(200))


def test_an_arm_that_counts_for_every_page(tmp_path: Path) -> None:
    keys = np.arange(100_000)
    store = mr.MasterStore.build(pa.table({"k": keys, "v": keys}), tmp_path / "s", "k")
    star = mr.StarJoin([mr.Arm(store, "k", algorithm="partitioned")], memory="1MB")
    assert sum(len(batch) for batch in star.run([pa.record_batch({"k": keys[::100]})])) == 1_000


def test_arms_that_drop_come_first_and_columns_stay_in_order(stores: dict[str, mr.MasterStore]) -> None:
    stream = _stream(150)
    arms = [
        mr.Arm(stores["parts"], {"part": "partkey"}),
        mr.Arm(stores["customers"], "custkey", "left"),
        mr.Arm(stores["suppliers"], {"supplier": "code"}, "anti"),
    ]
    given, ordered = _star(arms, stream, reorder=False), _star(arms, stream)
    rows = [_run(star, stream, (60,)) for star in (given, ordered)]
    assert list(given.joins) == ["parts", "customers", "suppliers"]
    assert list(ordered.joins) == ["suppliers", "customers", "parts"]
    assert given.output_schema.equals(ordered.output_schema)
    assert given.output_schema.names == [*stream.column_names, "brand", "city", "nation"]
    assert_same_rows(rows[0], rows[1])
    work = [sum(arm.tuples_in for arm in star.metrics.arms.values()) for star in (given, ordered)]
    assert work[1] < work[0]


def test_the_same_master_twice(stores: dict[str, mr.MasterStore], tmp_path: Path) -> None:
    airports = mr.MasterStore.build(
        pa.table({"code": ["A", "B"], "town": ["Ulm", "Bonn"]}), tmp_path / "airports", "code"
    )
    flights = pa.table({"start": ["A", "B", "A", None], "goal": ["B", "B", "C", "A"]})
    arms = [
        mr.Arm(airports, {"goal": "code"}, "left", suffix="_goal"),
        mr.Arm(airports, {"start": "code"}, "anti"),
        mr.Arm(airports, {"goal": "code"}, "left", suffix="_again", name="again"),
    ]
    star = mr.StarJoin(arms, memory="1MB")
    got = _run(star, flights, (1,))
    assert list(star.joins) == ["airports on goal", "airports on start", "again"], "a suffix keeps the order given"
    assert pa.Table.from_batches(got).to_pylist() == [{"start": None, "goal": "A", "town": "Ulm", "town_again": "Ulm"}]
    with pytest.raises(ConfigError, match="two arms have the name 'airports on goal'; set other names with name="):
        mr.StarJoin([arms[0], mr.Arm(airports, {"goal": "code"})])


def test_tuples_and_mappings_are_arms_too(stores: dict[str, mr.MasterStore]) -> None:
    stream = _stream(50)
    plain = [
        (stores["customers"], "custkey", "left"),
        {"master": stores["parts"].path, "on": {"part": "partkey"}, "columns": ["brand"]},
    ]
    arms = [mr.Arm(stores["customers"], "custkey", "left"), mr.Arm(stores["parts"], {"part": "partkey"})]
    star = mr.StarJoin(plain, memory="1MB")
    assert_same_rows(list(star.run(stream)), _expected(stream, arms))
    for wrong in (("customers",), {"master": "x"}, 7):
        with pytest.raises(ConfigError, match="arms: expected Arm"):
            mr.StarJoin([wrong])
    nothing: list[Any] = [[], "customers", {"a": 1}, arms[0]]
    for wrong_list in nothing:
        with pytest.raises(ConfigError, match="arms: expected"):
            mr.StarJoin(wrong_list)


# memory


def test_memory_goes_where_it_helps(tmp_path: Path) -> None:
    stores = {
        rows: mr.MasterStore.build(
            pa.table({f"k{rows}": np.arange(rows), f"v{rows}": np.arange(rows)}), tmp_path / f"{rows}", f"k{rows}"
        )
        for rows in (400, 10_000, 40_000)
    }
    arms = [mr.Arm(store, f"k{rows}", algorithm="ssbj", name=f"{rows}") for rows, store in stores.items()]
    arms.append(mr.Arm(stores[400], {"look": "k400"}, "semi", algorithm="lookup", name="look"))
    stream = pa.table({name: np.arange(500) for name in ("k400", "k10000", "k40000", "look")})
    star, shares = _shared(arms, stream, 1_200_000)
    assert shares["look"] < 5_000, "nobody waits there"
    assert 1.9 < shares["40000"] / shares["10000"] < 2.2, "the square root of four, and tuples grow on their way"
    assert_same_rows(_run(star, stream, (200,)), _expected(stream, arms))

    star, shares = _shared(arms, stream, 2_400_000)
    for name, most in (("400", 110_000), ("10000", 660_000)):
        assert star.joins[name].cache.whole, "its master fits"  # type: ignore[attr-defined]
        assert shares[name] < most, "and it does not get more than that takes"
    assert_same_rows(_run(star, stream, (200,)), _expected(stream, arms))

    arms[1] = mr.Arm(stores[10_000], "k10000", algorithm="ssbj", name="10000", share="60%")
    _, shares = _shared(arms, stream, 1_200_000)
    assert shares["10000"] == 720_000


def _shared(arms: Sequence[mr.Arm], stream: pa.Table, memory: int) -> tuple[mr.StarJoin, dict[str, int]]:
    """A star, and what each arm has got of nearly all there is."""
    star = mr.StarJoin(arms, memory=memory)
    star.bind(stream.schema)
    shares = {name: join.budget.total for name, join in star.joins.items()}
    assert memory - 10 < sum(shares.values()) <= memory
    return star, shares


@examples(200)
@given(
    total=st.integers(1, 10_000),
    needs=st.lists(
        st.tuples(
            st.integers(1, 500),
            st.one_of(st.just(0.0), st.floats(0.1, 1e6)),
            st.one_of(st.just(float("inf")), st.floats(1, 1e5)),
            st.none() | st.integers(1, 2_000),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_shares_add_up(total: int, needs: list[tuple[int, float, float, int | None]]) -> None:
    made = [Need(f"{place}", *need) for place, need in enumerate(needs)]
    least = sum(need.least if need.fixed is None else need.fixed for need in made)
    if total < least or any(need.fixed and need.fixed < need.least for need in made):
        with pytest.raises(BudgetTooSmallError, match="the least is"):
            split(total, made)
        return
    shares = split(total, made)
    assert sum(shares) <= total
    for share, need in zip(shares, made, strict=True):
        assert share >= need.least
        assert need.fixed is None or share == need.fixed
    growing = [share for share, need in zip(shares, made, strict=True) if need.fixed is None and need.weight]
    assert not growing or sum(shares) > total - 2 * len(growing), "memory was left lying"


def test_too_little_memory_says_how_much_it_takes(stores: dict[str, mr.MasterStore]) -> None:
    stream, arms = _stream(20), _arms(stores, ("inner", "left", "anti"), ALGORITHMS)
    with pytest.raises(
        BudgetTooSmallError, match=r"memory: 500 B is too little for 3 arms.*customers .*, parts "
    ) as tiny:
        mr.StarJoin(arms, memory=500)
    with pytest.raises(BudgetTooSmallError, match="the least is") as small:
        mr.StarJoin(arms, memory=tiny.value.minimum).bind(stream.schema)
    mr.StarJoin(arms, memory=small.value.minimum).bind(stream.schema)
    with pytest.raises(BudgetTooSmallError, match="arm 'customers': share: 10 B is too little"):
        mr.StarJoin([mr.Arm(stores["customers"], "custkey", share=10)])
    with pytest.raises(ConfigError, match=r"arm 'customers': share: expected bytes.*got 'half'"):
        mr.StarJoin([mr.Arm(stores["customers"], "custkey", share="half")])
    with pytest.raises(ConfigError, match="arm 'customers': memory: the arms of a star share its memory"):
        mr.StarJoin([mr.Arm(stores["customers"], "custkey", memory="1MB")])


# what is refused


def test_errors_name_the_arm(stores: dict[str, mr.MasterStore]) -> None:
    def bound(*arms: mr.Arm) -> None:
        mr.StarJoin(arms, memory="1MB").bind(_stream(1).schema)

    customers = mr.Arm(stores["customers"], "custkey")
    with pytest.raises(
        SchemaError,
        match=r"arm 'parts': on: neither the stream nor an earlier arm .*'nix'; the columns are custkey.*city",
    ):
        bound(customers, mr.Arm(stores["parts"], {"nix": "partkey"}))
    with pytest.raises(
        SchemaError, match="arm 'nations': on: 'nation' is a column of arm 'customers', which comes later"
    ):
        bound(mr.Arm(stores["nations"], "nation"), customers)
    with pytest.raises(
        SchemaError, match=r"'again': output: arm 'customers on custkey' has a column 'city' already.*suffix="
    ):
        bound(customers, mr.Arm(stores["customers"], "custkey", name="again"))
    with pytest.raises(SchemaError, match=r"'again': output: arm 'b' has a column 'city_b' already.*another suffix"):
        bound(
            customers,
            mr.Arm(stores["customers"], "custkey", suffix="_b", name="b"),
            mr.Arm(stores["customers"], "custkey", suffix="_b", name="again"),
        )
    with pytest.raises(SchemaError, match="arm 'customers': stream: key column 'supplier' is string"):
        bound(mr.Arm(stores["customers"], {"supplier": "custkey"}))
    with pytest.raises(SchemaError, match="arm 'customers': columns: the output has the key 'custkey' already"):
        bound(mr.Arm(stores["customers"], "custkey", columns=["custkey"]))
    with pytest.raises(SchemaError, match="arm 'customers': columns: the master has no 'nix'"):
        bound(mr.Arm(stores["customers"], "custkey", columns=["nix"]))
    with pytest.raises(ConfigError, match="arm 'customers': how: expected one of"):
        bound(mr.Arm(stores["customers"], "custkey", "outer"))
    with pytest.raises(ConfigError, match="arm 'customers': ssbj: unknown option turbo"):
        bound(mr.Arm(stores["customers"], "custkey", algorithm="ssbj", turbo=1))
    with pytest.raises(ConfigError, match="arm 'customers': evict_every: algorithm='auto' chooses options itself"):
        bound(mr.Arm(stores["customers"], "custkey", evict_every=1))
    with pytest.raises(ConfigError, match="arm 'customers': algorithm: expected one of"):
        bound(mr.Arm(stores["customers"], "custkey", algorithm="nix"))


def test_calls_at_the_wrong_moment(stores: dict[str, mr.MasterStore]) -> None:
    stream = _stream(200)
    arms = _arms(stores, ("left", "inner", "left"), ("meshjoin", "meshjoin", "lookup"), output_rows=5)
    batch = next(_cuts(stream, (200,)))
    star = _star(arms, stream)
    with pytest.raises(StateError, match="push a batch or call bind"):
        star.step()
    with pytest.raises(SchemaError, match=r"expected a pyarrow.RecordBatch; got Table"):
        star.push(stream)
    assert list(star.idle()) == []
    got = [*star.push(batch)]
    unread = star.finish()
    got.append(next(unread))
    with pytest.raises(StateError, match="read to their end"):
        star.step()
    with pytest.raises(StateError, match="snapshot: the batches of the last call have not been read to their end"):
        star.snapshot()
    got += unread
    with pytest.raises(StateError, match="push after finish"):
        star.push(batch)
    assert_same_rows(got, _expected(stream, arms))

    left = _star(arms, stream)
    list(left.push(batch))
    unread = left.finish()
    next(unread)
    unread.close()  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="cannot go on: the output of a call was not read to its end"):
        left.step()


def test_snapshots_of_others_are_refused(stores: dict[str, mr.MasterStore]) -> None:
    stream, arms = _stream(100), _arms(stores, ("left", "inner", "left"), ("meshjoin",) * 3)
    star = _star(arms, stream)
    list(star.push(next(_cuts(stream, (100,)))))
    state = star.snapshot()
    with pytest.raises(StateError, match="already begun"):
        star.restore(state)
    for place in (0, 9, 12, 20, len(state) // 2, len(state) - 1):
        torn = bytearray(state)
        torn[place] ^= 4
        with pytest.raises(StateError, match="restore: "):
            _star(arms, stream).restore(bytes(torn))
    with pytest.raises(StateError, match=r"a star with arms customers, parts; got customers, suppliers, parts$"):
        mr.StarJoin(arms[:2]).restore(state)
    with pytest.raises(StateError, match=r"a star that runs its arms in the order customers, parts, suppliers; got "):
        mr.StarJoin(arms, reorder=False).restore(state)
    with pytest.raises(StateError, match="arm 'customers': restore: the snapshot was taken from another kind of join"):
        mr.StarJoin(_arms(stores, ("inner", "inner", "inner"), ("meshjoin",) * 3)).restore(state)


def test_arms_that_choose_go_on_with_what_they_ran(stores: dict[str, mr.MasterStore], tmp_path: Path) -> None:
    """The store has got an index, but in the snapshot tuples wait for the wheel."""
    bare = mr.MasterStore.build(stores["customers"].to_table(), tmp_path / "bare", "custkey", index=False)
    stream = _stream(150)

    def star(store: mr.MasterStore) -> mr.StarJoin:
        arms = [mr.Arm(store, "custkey", "left", name="bare"), mr.Arm(stores["parts"], {"part": "partkey"})]
        return mr.StarJoin(arms, memory="16kB")

    before = star(bare)
    got = list(before.push(next(_cuts(stream, (100,)))))
    assert {name: join.algorithm.name for name, join in before.joins.items()} == {"bare": "ssbj", "parts": "lookup"}
    assert before.metrics.waiting > 0
    after = star(mr.MasterStore.add_index(bare.path))
    after.bind(stream.schema)
    assert after.joins["bare"].algorithm.name == "lookup"
    after.restore(before.snapshot())
    assert after.joins["bare"].algorithm.name == "ssbj"
    assert after.metrics.waiting == before.metrics.waiting
    for batch in list(_cuts(stream, (100, 50)))[1:]:
        got += after.push(batch)
    got += after.finish()
    after.check_invariants()
    assert_same_rows(got, _expected(stream, before.arms))


def test_a_tuple_too_wide_for_a_later_arm_is_not_lost_in_silence(tmp_path: Path) -> None:
    wide = mr.MasterStore.build(pa.table({"k": [1, 2], "text": ["a", "b" * 40_000]}), tmp_path / "wide", "k")
    other = mr.MasterStore.build(pa.table({"j": [1]}), tmp_path / "other", "j")
    arms = [mr.Arm(wide, "k", algorithm="lookup"), mr.Arm(other, "j", "left", algorithm="meshjoin")]

    def star(memory: str) -> mr.StarJoin:
        return mr.StarJoin(arms, memory=memory, reorder=False)

    small, large = star("40kB"), star("400kB")
    list(small.push(pa.record_batch({"k": [1], "j": [5]})))
    state = small.snapshot()
    with pytest.raises(BudgetExceededError, match=r"arm 'other': stream: a tuple of .* Continue from a snapshot"):
        list(small.push(pa.record_batch({"k": [2], "j": [6]})))
    with pytest.raises(StateError, match="cannot go on: a tuple did not fit in arm 'other'"):
        small.finish()
    large.restore(state)
    got = [*large.push(pa.record_batch({"k": [2], "j": [6]})), *large.finish()]
    assert sorted(j for batch in got for j in batch["j"].to_pylist()) == [5, 6]

    narrow = [mr.Arm(other, "j", "left", algorithm="meshjoin"), mr.Arm(wide, "k", "semi", algorithm="lookup")]
    sound = mr.StarJoin(narrow, memory="40kB", reorder=False)
    list(sound.push(pa.record_batch({"k": [1], "j": [1], "text": ["x"]})))
    with pytest.raises(BudgetExceededError, match="arm 'other': stream: a tuple"):
        list(sound.push(pa.record_batch({"k": [1], "j": [1], "text": ["y" * 60_000]})))
    assert [len(batch) for batch in sound.finish()] == [1], "nothing is lost where the first arm refuses"
    sound.check_invariants()


# what it tells


def test_metrics_of_every_arm_and_of_all(stores: dict[str, mr.MasterStore]) -> None:
    stream, device = _stream(300), Device()
    arms = _arms(stores, ("inner", "left", "semi"), ("ssbj", "meshjoin", "lookup"), device=device)
    star = _star(arms, stream)
    assert star.metrics.tuples_in == 0
    _run(star, stream, (64,))
    m = star.metrics
    assert list(m.arms) == ["suppliers", "customers", "parts"]
    for before, after in pairwise(m.arms.values()):
        assert before.rows_out == after.tuples_in
    assert m.tuples_in == m.arms["suppliers"].tuples_in == 300
    assert m.rows_out == m.arms["parts"].rows_out
    assert m.matched == sum(arm.matched for arm in m.arms.values())
    assert m.bytes_read == device.bytes_read, "a device that arms share is counted once"
    assert m.waits.total == sum(arm.waits.total for arm in m.arms.values())
    assert m.waits.most <= m.steps_per_cycle == star.k
    plain = m.as_dict()
    assert plain["arms"]["customers"]["tuples_in"] == m.arms["customers"].tuples_in
    assert 0 <= plain["hit_rate"] <= 1
    assert sum(m.parts.values()) == m.used_bytes == star.nbytes


def test_explain_tells_order_and_split(stores: dict[str, mr.MasterStore]) -> None:
    stream, arms = _stream(10), _arms(stores, ("inner", "left", "semi"), ALGORITHMS)
    star = mr.StarJoin(arms, memory="2MB")
    assert "Arm('parts', on=part, how=left)" in star.explain()
    assert "once the stream's schema is known" in star.explain()
    star.bind(stream.schema)
    told = star.explain()
    assert told.index("suppliers:") < told.index("customers:") < told.index("parts:")
    assert "lookup: every tuple" in told
    assert repr(star) == "StarJoin(customers, parts, suppliers, memory=2.0 MB)"


def test_an_empty_stream(stores: dict[str, mr.MasterStore]) -> None:
    star = mr.StarJoin(_arms(stores, ("inner", "left", "semi"), ALGORITHMS), memory="1MB")
    assert list(star.run([])) == []
    assert list(mr.StarJoin(star.arms, memory="1MB").run([pa.RecordBatch.from_pylist([], _stream(1).schema)])) == []
