"""Names of shards: numbers by which Spark groups rows, chosen so that shards are spread over its partitions."""

from __future__ import annotations


def shard_names(shards: int, partitions: int) -> list[int]:
    """Return a name for every shard, such that Spark's hash spreads the shards evenly over its partitions.

    A name is the shard plus a multiple of the number of shards. So the shard is the name modulo the number of shards,
    whatever the number of partitions was when the name was chosen.

    >>> shard_names(3, 3), [name % 3 for name in shard_names(3, 3)]
    ([0, 1, 11], [0, 1, 2])
    """
    names: list[int] = []
    taken = [0] * partitions
    for shard in range(shards):
        name = shard
        while taken[_murmur3(name) % partitions] > min(taken):
            name += shards
        taken[_murmur3(name) % partitions] += 1
        names.append(name)
    return names


def _murmur3(value: int) -> int:
    """Return Spark's ``hash`` of one int: murmur3 with seed 42, as a signed number."""

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & 0xFFFFFFFF

    k = rotated(value * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    h = (rotated(42 ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * factor & 0xFFFFFFFF
    h ^= h >> 16
    return h - (1 << 32) if h >= 1 << 31 else h
