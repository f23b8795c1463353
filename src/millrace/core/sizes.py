"""Sizes in bytes as people write them: ``"64MB"``, ``"1.5GiB"``, ``"1%"`` of the master, or a plain number."""

from __future__ import annotations

import re

from millrace.core.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*|%)\s*")


def parse_size(size: str | int, *, of: int | None = None, subject: str = "memory") -> int:
    """Return a size as a number of bytes; a percentage refers to ``of`` bytes. Errors begin with ``subject``.

    >>> parse_size("64MB"), parse_size("64MiB"), parse_size(4096)
    (64000000, 67108864, 4096)
    >>> parse_size("1%", of=1_200_000_000)
    12000000
    """
    if isinstance(size, bool) or not isinstance(size, str | int):
        raise ConfigError(f"{subject}: expected bytes, or text such as '64MB' or '1%'; got {size!r}")
    if isinstance(size, int):
        nbytes = float(min(size, 2**60))
    else:
        found = _SIZE.fullmatch(size)
        unit = found.group(2).lower() if found else "?"
        if not found or (unit != "%" and unit not in _UNITS):
            raise ConfigError(f"{subject}: expected bytes, or text such as '64MB', '64MiB' or '1%'; got {size!r}")
        number = float(found.group(1))
        if unit == "%":
            if of is None:
                raise ConfigError(f"{subject}: expected bytes, or text such as '64MB', but no percentage; got {size!r}")
            nbytes = number / 100 * of
        else:
            nbytes = number * _UNITS[unit]
    if nbytes > 2**56:
        raise ConfigError(f"{subject}: expected at most '65536TiB'; got {size!r}")
    if nbytes < 1:
        raise ConfigError(f"{subject}: expected at least one byte; got {size!r}")
    return int(nbytes)


def format_size(nbytes: float) -> str:
    """Format a number of bytes for people, in decimal units.

    >>> format_size(12_000_000), format_size(812)
    ('12.0 MB', '812 B')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{int(nbytes)} B"
