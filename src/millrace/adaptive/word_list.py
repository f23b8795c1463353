"""Formatting of word lists in sentences."""

from __future__ import annotations

from collections.abc import Iterable


def in_words(words: Iterable[str]) -> str:
    """Join words with commas and a final "and".

    >>> in_words(["left", "right"]), in_words(["a", "b", "c"])
    ('left and right', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
