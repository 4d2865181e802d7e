"""Begins a stage in this process: starting Ray takes longer than a small build.

After PATIENCE seconds all that is left goes to Ray, which starts while this process ends the unit it is at. So no build
takes much longer than by Ray alone. Bytes are the same, as units and commits are.

A thread works here, since one unit may take an hour. Media that crash their decoder do so in another process, also here
(killable_worker.py); anything else that ends this process ends the build, which loses no finished unit. By `--workers`,
`--address` or for a GPU all work is Ray's, which names the unit that kills its worker.
"""

import ctypes
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from pipelines.engine.building import OpenWorker, Runner, Units, serial
from pipelines.engine.commits import Record
from pipelines.engine.stage import Resources

PATIENCE = 10.0  # seconds, as many as Ray takes to start


@dataclass
class SerialStart:
    """A runner that begins here and goes on by `rest`, which does the following stages at once."""

    rest: Runner
    is_started: bool = False

    def __call__(self, open_worker: OpenWorker, units: Units, resources: Resources) -> Iterator[Record]:
        if self.is_started or resources.gpus:
            yield from self.rest(open_worker, units, resources)
            return
        here = _Here(open_worker, units)
        try:
            here.start()
            is_done = yield from here.records(PATIENCE)
            left = iter(()) if is_done else here.hand_over()
            if (first := next(left, None)) is not None:
                self.is_started = True
                yield from self.rest(open_worker, chain([first], left), resources)
            if not is_done:
                yield from here.records(None)
        finally:
            here.stop()


class _Here:
    """Does units in a thread until they are handed over."""

    def __init__(self, open_worker: OpenWorker, units: Units) -> None:
        self._open, self._units, self._lock, self._is_over = open_worker, units, Lock(), False
        self._found = SimpleQueue[Record | BaseException | None]()
        self._thread = Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def records(self, seconds: float | None) -> Generator[Record, None, bool]:
        """Yields what is done within some seconds; returns whether that is all."""
        began = time.monotonic()
        while True:
            try:
                found = self._found.get(timeout=seconds and max(0.0, began + seconds - time.monotonic()))
            except Empty:
                return False
            if isinstance(found, BaseException):
                raise found
            if found is None:
                return True
            yield found

    def hand_over(self) -> Units:
        """The units that are not begun; none is begun here from now on."""
        with self._lock:
            self._is_over = True
        return self._units

    def stop(self) -> None:
        """Ends the thread within its unit, as ctrl-c would: torch aborts a process that ends before its threads."""
        self.hand_over()
        seconds, interrupt = 0.1, ctypes.py_object(KeyboardInterrupt)  # it may be about to end
        while self._thread.is_alive():
            self._thread.join(seconds)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), interrupt)
            seconds = 5.0

    def _work(self) -> None:
        with ExitStack() as stack:
            stack.push(self._end)
            for record in serial(self._open, self._taken(), Resources()):
                self._found.put(record)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._found.put(error)  # for `records` to raise
        return True

    def _taken(self) -> Units:
        while True:
            with self._lock:
                unit = None if self._is_over else next(self._units, None)
            if unit is None:
                return
            yield unit
