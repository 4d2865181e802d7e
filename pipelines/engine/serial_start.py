"""Begins a stage in this process, and in few more: starting Ray takes longer than a small build.

After PATIENCE seconds all that is left goes to Ray, which starts while this process ends the unit it is at, unless so
few units are left that they are done before Ray's workers are. So no build takes much longer than by Ray alone. Bytes
are the same, as units and commits are.

A thread works here, since one unit may take an hour; from HELP_AFTER on it has helpers, a process a core more.
Media that crash their decoder do so in another process, also here (killable_worker.py); anything else that ends one of
these processes ends the build, which loses no finished unit. By `--workers`, `--address` or for a GPU all work is
Ray's, which names the unit that kills its worker.
"""

import ctypes
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, islice
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from pipelines.engine.building import OpenWorker, Runner, Units, cores_of, serial
from pipelines.engine.commits import Record
from pipelines.engine.helper_process import HelperProcess
from pipelines.engine.stage import Resources

PATIENCE = 10.0  # seconds, as many as Ray takes to start
SOON = 2  # times PATIENCE: Ray's workers open the stage, too
HELP_AFTER = 0.5  # seconds; units of most small builds are done before
MOST_HELPERS = 3  # what takes longer is Ray's


@dataclass
class SerialStart:
    """A runner that begins here and goes on by `rest`, which does the following stages at once."""

    rest: Runner
    is_started: bool = False

    def __call__(self, open_worker: OpenWorker, units: Units, resources: Resources) -> Iterator[Record]:
        if self.is_started or resources.gpus:
            yield from self.rest(open_worker, units, resources)
            return
        here = _Here(open_worker, units, min(MOST_HELPERS, int(cores_of(self) / max(resources.cpus, 1.0)) - 1))
        try:
            here.start()
            is_done = yield from here.records(PATIENCE)
            if not is_done and here.is_soon_done():
                is_done = yield from here.records(None)
            left = iter(()) if is_done else here.hand_over()
            if (first := next(left, None)) is not None:
                self.is_started = True
                yield from self.rest(open_worker, chain([first], left), resources)
            if not is_done:
                yield from here.records(None)
        finally:
            here.stop()


class _Here:
    """Does units in a thread, and by helpers, until they are handed over."""

    def __init__(self, open_worker: OpenWorker, units: Units, helpers: int) -> None:
        self._open, self._units, self._lock, self._is_over = open_worker, units, Lock(), False
        self._begun, self._ended, self._all_begun = 0, 0, Event()
        self._found = SimpleQueue[Record | BaseException | None]()
        self._helpers = list[HelperProcess]()
        self._thread = Thread(target=self._work, daemon=True)
        self._helping = [Thread(target=self._help, daemon=True) for _ in range(helpers)]

    def start(self) -> None:
        for thread in (self._thread, *self._helping):
            thread.start()

    def records(self, seconds: float | None) -> Generator[Record, None, bool]:
        """Yields what is done within some seconds; returns whether that is all."""
        began = time.monotonic()
        while self._ended <= len(self._helping):
            try:
                found = self._found.get(timeout=seconds and max(0.0, began + seconds - time.monotonic()))
            except Empty:
                return False
            if isinstance(found, BaseException):
                raise found
            if found is None:
                self._ended += 1
            else:
                yield found
        return True

    def is_soon_done(self) -> bool:
        """Whether fewer units are left than SOON times those that were begun."""
        with self._lock:
            few = list(islice(self._units, SOON * self._begun))
            self._units = chain(few, self._units)
            return len(few) < SOON * self._begun

    def hand_over(self) -> Units:
        """The units that are not begun; none is begun here from now on."""
        with self._lock:
            self._is_over = True
        return self._units

    def stop(self) -> None:
        """Ends the thread within its unit, as ctrl-c would: torch aborts a process that ends before its threads."""
        self.hand_over()
        self._all_begun.set()
        for helper in self._helpers:
            helper.kill()
        seconds, interrupt = 0.1, ctypes.py_object(KeyboardInterrupt)  # it may be about to end
        while self._thread.is_alive():
            self._thread.join(seconds)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), interrupt)
            seconds = 5.0
        for thread in filter(Thread.is_alive, self._helping):
            thread.join()

    def _help(self) -> None:
        with ExitStack() as stack:
            stack.push(self._end)
            if not self._all_begun.wait(HELP_AFTER):
                helper = stack.enter_context(closing(HelperProcess(self._open)))
                self._helpers.append(helper)
                if helper.is_open(self._all_begun):
                    self._do(lambda: helper.do)

    def _work(self) -> None:
        with ExitStack() as stack:
            stack.push(self._end)
            self._do(self._open)

    def _do(self, open_worker: OpenWorker) -> None:
        for record in serial(open_worker, self._taken(), Resources()):
            self._found.put(record)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._found.put(error)  # for `records` to raise
        return True

    def _taken(self) -> Units:
        while True:
            with self._lock:
                unit = None if self._is_over else next(self._units, None)
                self._begun += 1
            if unit is None:
                self._all_begun.set()
                return
            yield unit
