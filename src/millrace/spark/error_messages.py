"""Turns Spark's errors into one readable message each, without stack traces, plans and identifiers."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError)
"""The classes of the errors that Spark raises on the driver."""

_TRACEBACK = "Traceback (most recent call last):"
_NOISE = (
    (r"\n=== Streaming Query ===.*|\n== SQL ==.*|\nJVM stacktrace:.*|\n\s*at [\w.$]+\(.*|;\n['+ ]*\w.*", ""),
    (r"An error occurred while calling \S+\n: ", ""),
    (r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", ""),
    (r"Job aborted due to stage failure: .*?: Lost task .*?\): ", ""),
    (r"\s*SQLSTATE: \w{5}", ""),
    (r"^(?:[a-z]\w*\.)+[\w$]+(?:Exception|Error): ", ""),
    (r"\s+", " "),
)


def readable(error: BaseException) -> str:
    """Return the message of an error, without Spark's stack traces, plans and identifiers.

    If a Python worker raised the error, the worker's message is returned. Messages of errors that are not Spark's are
    returned unchanged.
    """
    text = str(error)
    if not isinstance(error, SPARK_ERRORS):
        return text
    if _TRACEBACK in text:
        return _from_traceback(text.rpartition(_TRACEBACK)[2])
    message = _tidy(text)
    cause = getattr(error, "_cause", None)
    while cause is not None:
        if _TRACEBACK in str(cause):
            return readable(cause)
        deeper = _tidy(str(cause))
        if deeper and deeper not in message:
            message = f"{message} {deeper}"
        cause = getattr(cause, "_cause", None)
    return message or type(error).__name__


def _tidy(text: str) -> str:
    """Return an error text without the stack traces, plans and codes that only developers of Spark need."""
    for noise, replacement in _NOISE:
        text = re.sub(noise, replacement, text, flags=re.DOTALL)
    return text.strip()


def _from_traceback(traceback: str) -> str:
    """Return the message at the end of a traceback, on one line."""
    lines = traceback.splitlines()
    first = next((i for i, line in enumerate(lines) if line and not line[0].isspace()), 0)
    message = [lines[first]]
    for line in lines[first + 1 :]:
        if not line.strip() or re.match(r"\s*SQLSTATE: |\s*at [\w.$]+\(|===", line):
            break
        message.append(line.strip())
    kind, _, what = " ".join(message).partition(": ")
    return what if kind.startswith("millrace.") and what else f"the Python worker failed: {' '.join(message)}"
