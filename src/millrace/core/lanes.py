"""A second thread for kernels. They run without the interpreter lock, on arrays that no other thread changes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

Task = Callable[[], object]


class Lanes:
    """One or two threads for the tasks of a join.

    :meth:`run` shares tasks between both threads and waits until all are done. :meth:`submit` hands one task to the
    second thread and does not wait.

    >>> done = []
    >>> Lanes(2).run([lambda: done.append(1), lambda: done.append(2)]); sorted(done)
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self.threads = min(2, threads)
        self._helper: ThreadPoolExecutor | None = None
        self._owner = 0
        self._pending: deque[Future[object]] = deque()

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks, shared between the threads; if one fails, raise its error once both threads have stopped."""
        if self.threads < 2 or len(tasks) < 2:
            for task in tasks:
                task()
            return
        left = deque(tasks)  # a thread that has finished a task takes the next one
        other = self._second_thread().submit(_work_off, left)
        try:
            _work_off(left)
        finally:
            if not other.cancel():  # if it has not begun, no task is left for it
                other.result()

    def submit(self, task: Task) -> None:
        """Queue a task for the second thread. If there is only one thread, run the task at once."""
        if self.threads < 2:
            task()
        else:
            self._pending.append(self._second_thread().submit(task))

    def wait(self) -> None:
        """Wait until all submitted tasks are done, or until one fails; raise its error."""
        while self._pending:
            self._pending.popleft().result()

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
