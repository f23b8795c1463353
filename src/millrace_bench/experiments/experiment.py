"""The data classes of an experiment: what varies, what is fixed, which algorithms run, what the paper claims.

An experiment is written with the paper's own numbers. A run has a *size*, which says how much smaller its data is.
The number of rows of R (the paper's master), memory in bytes and, where pages are a share of R, the time of a seek are
multiplied by the same factor. So a turn of the wheel, a page and a waiting room full of tuples keep their proportions,
and rates stay comparable. A paper's *layout* is a function that turns the paper's numbers into a run. The layout of
semi-stream joins is in this module; other kinds of joins have layouts in their own modules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from millrace.core.errors import ConfigError, one_of
from millrace.semistream.algorithms import ALGORITHMS

Size = Literal["small", "default", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
SEEDS: dict[Size, tuple[int, ...]] = {"small": (11,), "default": (11, 12, 13), "paper": (11, 12, 13, 14, 15)}
"""Seeds of the stream by size; each point is run once with each seed."""
PERIODS: dict[Size, tuple[int, int]] = {"small": (3, 1), "default": (12, 3), "paper": (24, 4)}
"""Number of periods until a join has reached a steady state, and number of periods to measure, by size.

A period is a turn of the wheel, or a waiting room full of tuples.
"""

LEAST_ROWS = 2_000
_ON_MACHINE = "the paper's disk is the bottleneck, the processor is here; the figure on the disk model says more"
_LEAST_PAGE = 50


@dataclass(frozen=True)
class Metric:
    """A measured quantity: its label on an axis, and which direction is better."""

    label: str
    better: Literal["higher", "lower", ""] = ""
    factor: float = 1.0
    """Factor that converts a measured value to the unit of the figure."""
    log: bool = False


METRICS: dict[str, Metric] = {
    "rate": Metric("tuples per second of device time", "higher"),
    "log rate": Metric("tuples per second of device time", "higher", log=True),
    "machine rate": Metric("tuples per second on this machine", "higher", log=True),
    "disk rate": Metric("tuples per second through the disk phase", "higher"),
    "memory": Metric("memory, MB at this size", "lower", 1e-6),
    "hits": Metric("% of tuples answered by the cache", "higher", 100.0),
    "c_loop": Metric("seconds of a step", log=True),
    "processing_time": Metric("seconds in the join, mean", "lower", log=True),
    "waiting_time": Metric("seconds before the join, mean", "lower", log=True),
    "results": Metric("results so far", "higher"),
    "online": Metric("results while tuples came", "higher"),
    "log online": Metric("results while tuples came", "higher", log=True),
    "online share": Metric("% of the result while tuples came", "higher", 100.0),
    "most waiting": Metric("most tuples that waited, MaxNewArr = 1", "lower", log=True),
    "mean waiting": Metric("tuples that waited, mean, MaxNewArr = 1", "lower", log=True),
}

AXES: dict[str, str] = {
    "share": "memory, % of {whole}",
    "megabytes": "memory, MB at the paper's size",
    "rows": "million rows of R at the paper's size",
    "skew": "skew of the stream",
    "z_R": "skew of R",
    "rate": "arrival rate, tuples per second",
    "load": "rows of a load, % of R",
    "switching_factor": "switching factor",
    "position": "position of the look-up, from the young end",
    "mean": "mean of the second input above that of the first",
    "variance": "variance of the second input above that of the first",
    "intervals": "intervals of sorted tuples",
    "shift": "shift of the mean from one period to the next",
    "delay": "delay, % of the time of a fragment",
    "smaller": "tuples of the smaller input at the paper's size",
    "max_outer_blocks": "MaxOuterMem, blocks",
    "time": "time, % of that in which tuples came",
}
"""Labels of axes, by the name of the parameter that varies along the axis."""

ALONG = ("time",)
"""Names of varying parameters for which a single run gives all points of a line."""


@dataclass(frozen=True)
class Scale:
    """The number of rows of R at each size, as a share of the number in the paper."""

    small: float
    default: float
    paper: float = 1.0

    def of(self, size: Size) -> float:
        """Return the number of rows of R at a size, as a share of the number in the paper."""
        return float(getattr(self, size))


@dataclass(frozen=True)
class Paper:
    """A paper, and what its experiments have in common."""

    name: str
    reference: str
    scale: Scale
    fixed: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of algorithms, by the algorithm's name."""
    layout: Layout | None = None
    """Function that makes a run from an experiment's parameters, scaled to a size; if None, :func:`semi_stream`."""


@dataclass(frozen=True)
class Series:
    """A line of a figure."""

    algorithm: str
    label: str = ""
    by: str = "join"
    """Name of the function that measures points: a key of :data:`~millrace_bench.experiments.outcomes.MEASURES`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.label or self.algorithm


def lines(*algorithms: str, by: str = "join") -> tuple[Series, ...]:
    """Return a line for each of the algorithms, all measured by the function that ``by`` names."""
    return tuple(Series(name, by=by) for name in algorithms)


def with_models(*algorithms: str) -> tuple[Series, ...]:
    """Return two lines for each algorithm: measured, and predicted by the cost model."""
    return tuple(line for name in algorithms for line in (Series(name), Series(name, f"{name}, predicted", "model")))


@dataclass(frozen=True)
class Ratio:
    """A claim about a ratio: the value of line ``over`` at ``at`` divided by that of line ``under`` at ``under_at``.

    ``at`` and ``under_at`` are places on the axis: a value of the parameter that varies, ``"first"`` or ``"last"``.
    With ``at="every"`` the claim has to hold at all places. By default, ``under_at`` is the same place as ``at``.
    """

    says: str
    over: str
    under: str | None
    """Name of the line in the denominator; None if the claim is about the value of ``over`` itself, in its unit."""
    paper: tuple[float, float]
    """Lowest and highest value that the paper gives. For "at least", the highest value is infinite."""
    at: float | str = "every"
    under_at: float | str | None = None
    tolerance: float = 0.0
    """Share by which the measured value may be outside the paper's numbers."""
    why: str = ""
    """The known reason for a difference from the paper; it is shown only where there is a difference."""


@dataclass(frozen=True)
class Gap:
    """A claim that two lines are farther apart at one value of the parameter that varies than at another.

    The distance of the lines is their ratio or their difference. The values are ``at`` and ``than_at``.
    """

    says: str
    over: str
    under: str
    at: float | str = "last"
    than_at: float | str = "first"
    as_: Literal["ratio", "difference"] = "ratio"
    why: str = ""


@dataclass(frozen=True)
class Peak:
    """A claim that a line is best ``between`` two values of the parameter that varies.

    If ``between`` is None, the claim is that the line is not best at either of its ends.
    """

    says: str
    series: str
    between: tuple[float, float] | None = None
    tolerance: float = 0.03
    """The verdict is "partly" if the best value in the range is worse than the line's best by at most this share."""
    why: str = ""


Claim = Ratio | Gap | Peak


@dataclass(frozen=True)
class Run:
    """A run of a join: everything that its outcome depends on, except the seed."""

    by: str
    algorithm: str
    data: str
    rows: int
    files: str = field(default="", kw_only=True)
    """Names, sizes and modification times of the user's own files, if the data is read from files."""

    rows_of: ClassVar[str] = ""
    """Name of the input whose number of rows is ``rows``."""
    whole: ClassVar[str] = "R"
    """Name of the data that a percentage of memory refers to."""

    @property
    def conditions(self) -> str:
        """The disk and other conditions of the run, as a text for its figure."""
        return ""

    def key(self, seed: int) -> str:
        """Return the text that identifies this run with a seed in a journal of outcomes."""
        return json.dumps({**asdict(self), "seed": seed}, sort_keys=True)


@dataclass(frozen=True)
class Point(Run):
    """A run of a semi-stream join."""

    memory: str | int
    skew: float = 1.0
    z_R: float | None = None  # noqa: N815  (the paper's symbol)
    disk: str = "hdd-2007"
    seek: float = 1.0
    """Factor by which the disk model's seek time is multiplied."""
    rate: float | None = None
    b: int | None = None
    settle: int = 12
    rooms: int = 3
    options: tuple[tuple[str, Any], ...] = ()

    rows_of: ClassVar[str] = "R"

    def __post_init__(self) -> None:
        object.__setattr__(self, "skew", float(self.skew))  # so that equal points have equal keys
        if self.rate is not None:
            object.__setattr__(self, "rate", float(self.rate))

    @property
    def conditions(self) -> str:
        if self.disk == "none":
            return "none is modelled; R is in the page cache"
        seeks = "" if self.seek == 1 else f", seeks {1 / self.seek:,.0f} times shorter, as R is smaller"
        return f"{self.disk} model{seeks}"


@dataclass(frozen=True)
class Experiment:
    """A figure of a paper: what varies, the lines, the metric, and the paper's claims about the figure."""

    source: Paper
    figure: str
    title: str
    says: str
    """The paper's statement about the figure."""
    varies: str
    values: tuple[float, ...]
    few: tuple[float, ...]
    """Values of the varying parameter at size small."""
    series: tuple[Series, ...]
    metric: str
    claims: tuple[Claim, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    scale: Scale | None = None
    """Scale of this figure; if None, the scale of the paper."""
    some: tuple[float, ...] = ()
    """Values of the varying parameter at size default; if empty, all of ``values``."""
    log_x: bool = False

    def __post_init__(self) -> None:
        one_of(f"{self.name}: varies", self.varies, AXES)
        one_of(f"{self.name}: metric", self.metric, METRICS)
        names = [series.name for series in self.series]
        for claim in self.claims:
            for series in (claim.series,) if isinstance(claim, Peak) else (claim.over, claim.under or claim.over):
                one_of(f"{self.name}: claim {claim.says!r}: series", series, names)

    @property
    def name(self) -> str:
        return f"{self.source.name.lower()}-{self.figure}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters that are the same for all lines of the figure, with the values that they have in the paper."""
        return {**self.source.fixed, **self.fixed}

    def at(self, size: Size) -> tuple[float, ...]:
        """Return the values that the varying parameter has at a size."""
        return {"small": self.few, "default": self.some or self.values, "paper": self.values}[size]

    def factor(self, size: Size) -> float:
        """Return the number of rows of R at a size, as a share of the number in the paper."""
        return (self.scale or self.source.scale).of(size)

    def reading(self, x: float) -> str:
        """Return the name that the value which the figure shows at ``x`` has in an outcome."""
        metric = self.metric.removeprefix("log ").removeprefix("machine ")
        return f"{metric} at {x:g}" if self.varies in ALONG else metric

    def points(self, size: Size) -> Iterator[tuple[Series, float, Run]]:
        """Yield the runs of the figure at a size, each after the line and the place on the x axis that it is for."""
        for series in self.series:
            for x in self.at(size):
                yield series, x, self.point(size, series, x)

    def point(self, size: Size, series: Series, x: float) -> Run:
        """Return the run for place ``x`` of a line at a size."""
        given = {**self.parameters, **series.fixed, self.varies: float(x)}
        for name in ALONG:
            given.pop(name, None)
        return (self.source.layout or semi_stream)(self, size, series, given)


def without_disk_model(experiment: Experiment) -> Experiment | None:
    """Return the experiment in wall time, without a disk model.

    Only rates and cache hits of joins can be measured in this way. For other experiments, return None.
    """
    rates = experiment.metric in ("rate", "log rate")
    if not (rates or experiment.metric == "hits") or any(series.by != "join" for series in experiment.series):
        return None
    return replace(
        experiment,
        metric="machine rate" if rates else experiment.metric,
        fixed={**experiment.fixed, "disk": "none"},
        claims=tuple(replace(claim, why=_ON_MACHINE) for claim in experiment.claims),
    )


Layout = Callable[[Experiment, Size, Series, dict[str, Any]], Run]


def semi_stream(experiment: Experiment, size: Size, series: Series, given: dict[str, Any]) -> Point:
    """Return a run of a semi-stream join, scaled to a size; ``given`` are the parameters with the paper's numbers."""
    factor = experiment.factor(size)
    rows = max(LEAST_ROWS, round(given.pop("rows") * factor))
    share, megabytes = given.pop("share", None), given.pop("megabytes", None)
    memory: str | int = "1%" if share is None else f"{share:g}%"  # a placeholder if the memory is to be found
    if megabytes is not None:
        memory = int(megabytes * 1e6 * factor)
    if (share is None) == (megabytes is None) and series.by != "memory for a rate":
        raise ConfigError(
            f"{experiment.name}: expected the memory as either share or megabytes; "
            f"got {'neither' if share is None else 'both'}"
        )
    page, load = given.pop("page", None), given.pop("load", None)
    algorithm = ALGORITHMS.get(series.algorithm)
    if algorithm is not None and algorithm.paged:
        load = None if page is None else 100 * page
    seek = factor if given.pop("scaled_seek", False) else 1.0
    settle, rooms = PERIODS[size]
    others = [name for name in given if name not in Point.__dataclass_fields__]
    options = {**experiment.source.options.get(series.algorithm, {}), **{name: given.pop(name) for name in others}}
    if algorithm is not None:  # joins of another kind check their options themselves
        algorithm.check_options(options)
    return Point(
        by=series.by,
        algorithm=series.algorithm,
        rows=rows,
        memory=memory,
        b=None if load is None else max(_LEAST_PAGE, min(rows, round(rows * load / 100))),
        seek=seek,
        settle=settle,
        rooms=rooms,
        options=tuple(sorted(options.items())),
        **given,
    )
