"""Weather: generated reports have the archive's shape, and its own files are read by their layout."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import ConfigError, SchemaError
from millrace.datasets.weather import FIELDS, LONGITUDES, read_weather, synthetic_weather, weather_schema

# yr mn dy hr IB LAT LON ID LO ww N Nh h CL CM CH AM AH UM UH IC SA RI
_SHORT = "821218031-451212345037721-18 7 5 6-1 280090009 3-450 -12"
_LONG = _SHORT + "10132 51270 -52 31 18700"
_YEAR_OF_FOUR = "1998" + _LONG[2:]


def _table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches))


def test_lines_have_the_documented_widths() -> None:
    assert [len(line) for line in (_SHORT, _LONG, _YEAR_OF_FOUR)] == [56, 80, 82]
    assert sum(f.width for f in FIELDS) == 80


@pytest.mark.parametrize(("line", "year"), [(_SHORT, 1982), (_LONG, 1982), (_YEAR_OF_FOUR, 1998)])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_report_is_read_by_its_layout(tmp_path: Path, line: str, year: int, ending: str) -> None:
    path = tmp_path / "DEC82L"
    other = line.replace("12345", "    7")
    path.write_bytes((line + ending + other + ending).encode())
    found = _table(read_weather(path))
    assert found.schema == weather_schema()
    first = found.to_pylist()[0]
    assert (first["yr"], first["mn"], first["dy"], first["hr"]) == (year, 12, 18, 3)
    assert (first["LAT"], first["LON"], first["ID"], first["LO"], first["ww"]) == (-4512, 12345, 3772, 1, -1)
    assert [first[name] for name in ("N", "Nh", "h", "CL", "CM", "CH")] == [8, 7, 5, 6, -1, 2]
    assert [first[name] for name in ("AM", "AH", "UM", "UH", "IC", "SA", "RI")] == [800, 900, 0, 9, 3, -450, -12]
    extended = [first[name] for name in ("SLP", "WS", "WD", "AT", "DD", "EL", "IW", "IP")]
    assert extended == ([None] * 8 if len(line) == 56 else [10132, 51, 270, -52, 31, 187, 0, 0])
    assert found["LON"].to_pylist() == [12345, 7]


def test_batches_files_and_gzip_change_nothing(tmp_path: Path) -> None:
    lines = [_SHORT.replace("12345", f"{i:5}") for i in range(10)]
    (tmp_path / "a").write_text("\n".join(lines[:7]))  # no newline at the end
    with gzip.open(tmp_path / "b.gz", "wt") as file:
        file.write("\n".join(lines[7:]) + "\n")
    batches = list(read_weather([tmp_path / "a", tmp_path / "b.gz"], batch_rows=3))
    assert [len(b) for b in batches] == [3, 3, 1, 3]
    assert _table(iter(batches))["LON"].to_pylist() == list(range(10))
    assert list(read_weather(_empty(tmp_path))) == []


def _empty(directory: Path) -> Path:
    (directory / "empty").touch()
    return directory / "empty"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("too short\n", "lines of 56, 80 or 82 characters; the first has 9"),
        (_SHORT + "\n" + _SHORT[:-1] + "\n", "line 2: expected 56 characters"),
        (_SHORT + "\n" + _SHORT + "x\n" + _SHORT + "\n", "line 2: expected 56 characters"),
        (_SHORT + "\n" + _SHORT.replace("12345", "36001") + "\n", "line 2: LON: expected 0 to 36000; got 36001"),
        (_SHORT.replace("12345", "12x45") + "\n", "line 1: LON: expected a number in columns 15 to 19; got '12x45'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(SchemaError, match=said):
        list(read_weather(tmp_path / "f"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        list(read_weather(tmp_path / "nowhere"))


def test_synthetic_reports_depend_on_their_seed_and_not_on_batches() -> None:
    whole = _table(synthetic_weather(5_000, seed=3, batch_rows=5_000))
    assert whole == _table(synthetic_weather(5_000, seed=3, batch_rows=777)).combine_chunks()
    assert whole != _table(synthetic_weather(5_000, seed=4))
    for field in FIELDS:
        values = whole[field.name].to_numpy()
        assert field.least <= values.min()
        assert values.max() <= field.most


def test_popular_longitudes_stay_and_are_skewed() -> None:
    counts = []
    for seed in (1, 2):
        longitudes = _table(synthetic_weather(200_000, seed=seed, skew=0.9, narrow=True))["LON"].to_numpy()
        counts.append(np.bincount(longitudes, minlength=LONGITUDES))
    assert set(np.argsort(counts[0])[-3:]) == set(np.argsort(counts[1])[-3:])
    assert counts[0].max() > 200 * counts[0].mean()


def test_narrow_reports_have_32_bytes_and_streams_no_end() -> None:
    stream = synthetic_weather(narrow=True, batch_rows=100)
    assert [next(stream).nbytes for _ in range(3)] == [3200] * 3
