"""A second thread for work that runs outside the interpreter lock: kernels on disjoint arrays."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Task = Callable[[], object]


class Lanes:
    """Runs independent tasks on one or two threads and waits for all of them.

    Two are enough for what a join does between two steps; more gain nothing on work of this size.

    >>> done = []
    >>> Lanes(2).run([lambda: done.append(1), lambda: done.append(2)]); sorted(done)
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self.threads = min(2, threads)
        self._helper: ThreadPoolExecutor | None = None
        self._owner = 0

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks; the first error of any is raised when all have stopped."""
        if self.threads < 2 or len(tasks) < 2:
            for task in tasks:
                task()
            return
        left = deque(tasks)  # both threads take the next one when they are done with the last
        other = self._second_thread().submit(_work_off, left)
        try:
            _work_off(left)
        finally:
            other.result()

    def _second_thread(self) -> ThreadPoolExecutor:
        if self._helper is None or self._owner != os.getpid():  # a forked process does not inherit threads
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="millrace")
            self._owner = os.getpid()
        return self._helper


def _work_off(left: deque[Task]) -> None:
    while left:
        try:
            task = left.popleft()
        except IndexError:  # the other thread was quicker
            return
        task()
