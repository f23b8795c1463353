"""Options of policies: the keyword-only parameters of a policy are options of every join that uses the policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millrace.core.errors import ConfigError


def options_of(policy: Callable[..., Any]) -> list[str]:
    """Return the names of a policy's options, its keyword-only parameters.

    >>> def policy(around, *, fan_in=8): ...
    >>> options_of(policy)
    ['fan_in']
    """
    return [each.name for each in inspect.signature(policy).parameters.values() if each.kind is each.KEYWORD_ONLY]


def check_known(subject: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise an error that lists the known options if a given option is not one of them."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError(f"{subject}: unknown option {', '.join(unknown)}; known: {', '.join(known) or 'none'}")
