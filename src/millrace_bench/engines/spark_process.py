"""Start an engine on Spark in a process of its own, and measure settings there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from types import TracebackType
from typing import Any

from millrace_bench.engines.spark_worker import SparkSetting


class SparkProcess:
    """An engine on Spark in a process of its own: settings go to its standard input, figures come from its output."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- stays open as long as the process runs
        command = [sys.executable, "-m", "millrace_bench.engines.spark_worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> SparkProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def measure(self, setting: SparkSetting) -> dict[str, Any]:
        """Return the figures of a setting; if the process ends, raise RuntimeError with the end of its error output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asdict(setting)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended; its error output is read below
            pass
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            tail = "\n".join(self._errors.read().strip().splitlines()[-15:])
            raise RuntimeError(f"{setting.engine}: its process ended before it was measured; its last output:\n{tail}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def measure_all(settings: Iterable[SparkSetting]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each setting; one process measures all of them, so they need the same engine and master."""
    with SparkProcess() as engine:
        for setting in settings:
            yield engine.measure(setting)
