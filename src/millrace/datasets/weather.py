"""Weather data: cloud reports that are joined by longitude, generated or read from the files of an archive.

The real data set of the papers is the archive of edited synoptic cloud reports: months of reports from ships and land
stations, joined by longitude in hundredths of a degree, 0 to 36000. A longitude has many reports, so the join is many
to many. Results with generated reports are always marked as synthetic.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError, SchemaError, SourceError
from millrace.core.jit import kernel
from millrace.datasets.zipf import MAX_DOMAIN, Permutation, ZipfSampler, mix, random_words, whole_number

KEY = "LON"
LONGITUDES = 36_001
"""Number of values of the join attribute: 0 to 36000 hundredths of a degree."""


class Field(NamedTuple):
    """A field of a record: its name, its width in characters, and its least and greatest value."""

    name: str
    width: int
    least: int
    most: int


FIELDS = (
    Field("yr", 2, 52, 96),
    Field("mn", 2, 1, 12),
    Field("dy", 2, 1, 31),
    Field("hr", 2, 0, 23),
    Field("IB", 1, 0, 1),  # sky brightness
    Field("LAT", 5, -9000, 9000),
    Field(KEY, 5, 0, 36000),
    Field("ID", 5, 1000, 98999),  # station, or source deck and ship type
    Field("LO", 1, 1, 2),  # land or ocean
    Field("ww", 2, 0, 99),  # present weather
    Field("N", 1, 0, 8),  # total cloud cover
    Field("Nh", 2, -1, 8),  # lower cloud amount
    Field("h", 2, -1, 9),  # lower cloud base
    Field("CL", 2, -1, 11),
    Field("CM", 2, -1, 12),
    Field("CH", 2, -1, 9),
    Field("AM", 3, 0, 800),
    Field("AH", 3, 0, 800),
    Field("UM", 1, 0, 8),
    Field("UH", 1, 0, 8),
    Field("IC", 2, 0, 9),  # change code
    Field("SA", 4, -900, 900),  # solar altitude
    Field("RI", 4, -110, 117),  # lunar illuminance
    Field("SLP", 5, 9000, 10999),  # from here on only in the extended archive: pressure
    Field("WS", 3, 0, 999),
    Field("WD", 3, 0, 361),
    Field("AT", 4, -949, 599),
    Field("DD", 3, 0, 700),
    Field("EL", 4, -350, 4877),
    Field("IW", 1, 0, 1),
    Field("IP", 1, 0, 2),
)
"""The fields of a record of the extended archive; a record of the first archive ends after ``RI``."""

_SHORT = next(i for i, field in enumerate(FIELDS) if field.name == "SLP")
_WIDTHS = {56: (_SHORT, 2), 80: (len(FIELDS), 2), 82: (len(FIELDS), 4)}  # fields, and digits of the year
_NARROW = ("yr", "mn", "dy", "hr", "LAT", KEY, "ID")
_COLUMNS, _PLACES = 20, 21  # purposes of random words, see random_words
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def weather_schema(*, narrow: bool = False) -> pa.Schema:
    """Return the schema of a report, which takes 128 bytes as in most papers or, if ``narrow``, 32 as in MESHJOIN's."""
    return pa.schema([(f.name, pa.int64() if f.name == KEY else pa.int32()) for f in _fields(narrow)])


def _fields(narrow: bool) -> list[Field]:
    return [field for field in FIELDS if not narrow or field.name in _NARROW]


def synthetic_weather(
    rows: int | None = None, *, seed: int = 0, skew: float = 0.5, narrow: bool = False, batch_rows: int = 65536
) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` generated reports, or by default an endless stream of them, with Zipf-distributed longitudes.

    The other fields are uniformly distributed. The popular longitudes are the same for every seed, because stations do
    not move; the reports differ. The skew of the archive is not known; the default is low.

    >>> batch = next(synthetic_weather(1000)); batch.num_rows, batch.nbytes // 1000
    (1000, 128)
    """
    most = None if rows is None else whole_number("rows", rows, 0, MAX_DOMAIN)
    step = whole_number("batch_rows", batch_rows, 1)
    sampler = ZipfSampler(LONGITUDES, skew, seed=seed, shuffled=False)
    places = Permutation(LONGITUDES, seed=0, purpose=_PLACES)
    fields = _fields(narrow)
    words = random_words(seed, _COLUMNS, len(fields))
    least, span = (np.array(v, np.int64) for v in zip(*((f.least, f.most - f.least + 1) for f in fields), strict=True))
    schema = weather_schema(narrow=narrow)
    start = 0
    while most is None or start < most:
        count = step if most is None else min(step, most - start)
        values = np.empty((len(fields), count), np.int32)
        _fill(words, start, least, span, values)
        longitude = places.apply(sampler.sample(count)) - 1
        columns = [longitude if f.name == KEY else column for f, column in zip(fields, values, strict=True)]
        yield pa.record_batch(columns, schema=schema)
        start += count


@kernel
def _fill(
    words: npt.NDArray[np.uint64],
    start: int,
    least: npt.NDArray[np.int64],
    span: npt.NDArray[np.int64],
    values: npt.NDArray[np.int32],
) -> None:
    for column in range(values.shape[0]):
        for i in range(values.shape[1]):
            word = mix(words[column] + np.uint64(start + i) * _GOLDEN)
            values[column, i] = np.int32(least[column] + np.int64(word % np.uint64(span[column])))


def read_weather(
    paths: Iterable[Path] | Path, *, narrow: bool = False, batch_rows: int = 65536
) -> Iterator[pa.RecordBatch]:
    """Yield the reports in files of the archive, plain or gzipped, in batches.

    A record is a line of fixed width. It has 56 characters in the first archive (NDP-026B), where the fields from
    ``SLP`` on are null; 80 in the extended archive (EECRA), or 82 if years have four digits. Years of two digits are
    in the 20th century.
    """
    step = whole_number("batch_rows", batch_rows, 1)
    for path in [Path(paths)] if isinstance(paths, str | Path) else map(Path, paths):
        if not path.is_file():
            raise ConfigError(f"weather: expected the path of a file; got {path}")
        with path.open("rb") as plain:
            file = cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if path.suffix == ".gz" else plain
            try:
                yield from _records(file, path, narrow, step)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise SourceError(f"{path}: expected a complete gzip file; {error}") from error


def _records(file: IO[bytes], path: Path, narrow: bool, batch_rows: int) -> Iterator[pa.RecordBatch]:
    first = file.readline()
    text = first.rstrip(b"\r\n")
    ending = max(1, len(first) - len(text))
    width = len(text)
    if not first:
        return
    if width not in _WIDTHS:
        raise SchemaError(f"{path}: expected lines of 56, 80 or 82 characters; the first has {width}")
    count, year_digits = _WIDTHS[width]
    places = _places(FIELDS[:count], year_digits)
    wanted = _fields(narrow)
    schema = weather_schema(narrow=narrow)
    line, rest = 1, text + b"\n" * ending
    while True:
        data = rest + file.read(batch_rows * (width + ending) - len(rest))
        rest = b""
        if not data:
            return
        if not data.endswith(b"\n"):  # the last line of a file may have no newline
            data += b"\n" * ending
        lines, left_over = divmod(len(data), width + ending)
        cut = np.frombuffer(data, np.uint8, lines * (width + ending)).reshape(lines, width + ending)
        wrong = np.flatnonzero(cut[:, -1] != ord("\n"))
        if len(wrong) or left_over:
            at = line + (int(wrong[0]) if len(wrong) else lines)
            raise SchemaError(f"{path}, line {at}: expected {width} characters, the length of the file's first line")
        yield pa.record_batch([_column(cut, f, places, path, line) for f in wanted], schema=schema)
        line += lines


def _places(fields: Sequence[Field], year_digits: int) -> dict[str, tuple[int, int]]:
    """Return a mapping from each field's name to its start in a line and the position after its last character."""
    places, at = {}, 0
    for field in fields:
        width = year_digits if field.name == "yr" else field.width
        places[field.name] = (at, at + width)
        at += width
    return places


def _column(
    lines: npt.NDArray[np.uint8], field: Field, places: dict[str, tuple[int, int]], path: Path, first: int
) -> pa.Array:
    type_ = pa.int64() if field.name == KEY else pa.int32()
    if field.name not in places:
        return pa.nulls(len(lines), type_)
    begin, end = places[field.name]
    texts = np.ascontiguousarray(lines[:, begin:end]).view(f"S{end - begin}").ravel()
    try:
        numbers = texts.astype(np.int64)
    except ValueError:
        at = next(i for i, text in enumerate(texts) if not text.strip().lstrip(b"+-").isdigit())
        raise SchemaError(
            f"{path}, line {first + at}: {field.name}: expected a number in columns {begin + 1} to {end}; "
            f"got {texts[at].decode('latin-1')!r}"
        ) from None
    if field.name == "yr" and end - begin == 2:
        numbers += 1900
    if field.name == KEY and len(wrong := np.flatnonzero((numbers < 0) | (numbers >= LONGITUDES))):
        at = int(wrong[0])
        raise SchemaError(f"{path}, line {first + at}: LON: expected 0 to 36000; got {numbers[at]}")
    return pa.array(numbers, type_)
