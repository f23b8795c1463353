"""Divides the dimensions of a grid into parts, so that several inputs can be joined in the cells of the grid.

The grid has one dimension for each set of columns that have to be equal, and a hash of their value selects the part of
the dimension. A cell, which is a shard, combines one part of every dimension::

    orders(cust)  customers(cust, nation)  nations(nation)          nation
                                                                  0   1   2
    an order goes to a row of cells, all with the part     cust 0 │ o │ o │o c│
    of its customer; a nation to a column; a customer           1 │   │   │ n │
    to one cell, the only one that has all three                2 │   │   │ n │

An input is copied along the dimensions for which it has no column. With more parts of a dimension, a cell has fewer
rows of the inputs that have a column for it, and fewer cells are left for the other dimensions.

References
----------
F. N. Afrati, J. D. Ullman: Optimizing joins in a map-reduce environment. EDBT 2010. They compute the numbers of parts
as real numbers with a given product; this module compares all grids of at most a given number of cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod


def grid_parts(
    inputs: Sequence[frozenset[int]], sizes: Sequence[float], dimensions: int, cells: int
) -> tuple[int, ...]:
    """Return the number of parts of each dimension with which a cell has the fewest rows.

    If a cell has equally few rows in several grids, the grid with the fewest copies of rows is chosen. The grid has at
    most ``cells`` cells.

    Parameters
    ----------
    inputs
        The dimensions that each input has columns for.
    sizes
        Number of rows of each input, or anything proportional to it.
    dimensions
        Number of dimensions of the grid.
    cells
        Largest number of cells, which are shards.

    Examples
    --------
    >>> chain = [frozenset([0]), frozenset([0, 1]), frozenset([1])]
    >>> grid_parts(chain, [1, 1, 1], 2, 16)
    (4, 4)

    Nations are few, so they are copied to all cells:

    >>> grid_parts(chain, [1_000_000, 100_000, 25], 2, 16)
    (16, 1)
    """

    def load(parts: tuple[int, ...]) -> tuple[float, float]:
        each = sum(size / prod(parts[d] for d in mine) for mine, size in zip(inputs, sizes, strict=True))
        return each, each * prod(parts)

    return min(_grids(dimensions, cells), key=load)


def _grids(dimensions: int, cells: int) -> Iterator[tuple[int, ...]]:
    """Yield the grids of at most ``cells`` cells, each with as many parts in the last dimension as fit.

    Grids with more parts in the first dimension come first.
    """
    if dimensions == 1:
        yield (cells,)
        return
    for first in range(cells, 0, -1):
        for rest in _grids(dimensions - 1, cells // first):
            yield (first, *rest)
