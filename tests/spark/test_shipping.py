"""Functions that are sent to workers by name, and the names of the package ``millrace.spark``."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import millrace.spark
from millrace.worker import row_files, shipping
from millrace.worker.shipping import in_worker


def test_a_function_is_sent_by_its_name_and_not_by_its_code() -> None:
    pickle: Any = cloudpickle
    sent = pickle.dumps(in_worker(row_files.read_rows))
    assert b"millrace.worker.row_files" in sent
    assert b"open_stream" not in sent
    assert list(pickle.loads(sent)(iter(()))) == []


def test_a_function_that_workers_cannot_import_is_refused() -> None:
    def local(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    with pytest.raises(TypeError, match="expected a function of a module that workers can import"):
        in_worker(local)


def test_a_worker_that_differs_from_the_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = in_worker(row_files.read_rows)
    monkeypatch.setattr(shipping, "identity", lambda: "CPython 3.1, millrace 9")
    with pytest.raises(RuntimeError, match=r"differs from the driver: it has CPython 3\.1, millrace 9, the driver has"):
        sent(iter(()))


def test_a_worker_without_the_function_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = in_worker(row_files.read_rows)
    monkeypatch.setitem(sys.modules, "millrace.worker.row_files", None)
    with pytest.raises(RuntimeError, match=r"cannot import millrace: .* set PYSPARK_PYTHON"):
        sent(iter(()))


def test_a_public_name_is_the_function_whatever_is_imported_first() -> None:
    modules = {module.name for module in pkgutil.iter_modules(millrace.spark.__path__)}
    names = sorted(modules & set(millrace.spark.__all__))
    program = "; ".join(f"import millrace.spark.{name}; print(callable(millrace.spark.{name}))" for name in names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n" * len(names)


def test_no_folder_has_the_name_of_a_public_function() -> None:
    folders = {module.name for module in pkgutil.iter_modules(millrace.spark.__path__) if module.ispkg}
    assert "enrichment" in folders
    assert not folders & set(millrace.spark.__all__)
