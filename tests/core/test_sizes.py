"""Sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.core.errors import ConfigError
from millrace.core.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        (17, 17),
        ("64MB", 64_000_000),
        ("64 mb", 64_000_000),
        ("64MiB", 64 * 2**20),
        ("1.5GiB", 3 * 2**29),
        (" 2 kb ", 2000),
        ("0.5kB", 500),
        ("1TB", 10**12),
        ("100b", 100),
    ],
)
def test_sizes_are_read(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


def test_shares_need_something_to_be_a_share_of() -> None:
    assert parse_size("0.5%", of=2000) == 10
    assert parse_size("150%", of=2000) == 3000
    with pytest.raises(ConfigError, match="expected bytes, or text such as '64MB', but no percentage; got '1%'"):
        parse_size("1%")


@pytest.mark.parametrize("bad", ["", "MB", "-1MB", "1 XB", "1e3", "1,5MB", "lots", "5 %%", 0, -3, "0", "0.0001%"])
def test_other_text_is_refused_with_what_came(bad: str | int) -> None:
    with pytest.raises(ConfigError, match="memory: ") as raised:
        parse_size(bad, of=1000)
    assert repr(bad) in str(raised.value)


@pytest.mark.parametrize("bad", [1.5, True, None, b"1MB", [1]])
def test_other_types_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="memory: expected bytes, or text"):
        parse_size(bad)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (64e6, "64.0 MB"),
        (1.5e9, "1.5 GB"),
        (2e12, "2.0 TB"),
        (-5e3, "-5.0 kB"),
    ],
)
def test_sizes_are_written(nbytes: float, text: str) -> None:
    assert format_size(nbytes) == text
