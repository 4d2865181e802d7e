"""A helper process does units beside this one: it starts in a second, where Ray takes ten.

It ends with the thread that made it, however that ends. What it is to do travels by cloudpickle, as to Ray's workers.
"""

import ctypes
import json
import os
import pickle
import select
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from subprocess import PIPE, Popen
from threading import Event
from types import TracebackType
from typing import BinaryIO

import cloudpickle  # type: ignore[import-untyped]

from pipelines.engine.building import Call, OpenWorker
from pipelines.engine.commits import Record
from pipelines.engine.killable_worker import DIE_WITH_PARENT, SETUP
from xmodal.errors import UserError

TRIES = 3  # of units whose process dies, of which another may have been short of memory
PROGRAM = SETUP + "from pipelines.engine.helper_process import serve; serve()"


class HelperProcess:
    """Opens a worker of its own; `close` ends it at once."""

    def __init__(self, open_worker: OpenWorker) -> None:
        self._work, self._is_killed = cloudpickle.dumps(open_worker), False
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), str(os.getpid())]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE)
        assert self._process.stdin
        assert self._process.stdout
        self._calls, self._answers = self._process.stdin, self._process.stdout
        self._send(self._work)
        self._send(pickle.dumps([]))

    def is_open(self, needless: Event) -> bool:
        """Waits until it can do units, or until that is needless."""
        while not needless.is_set():
            if select.select([self._answers], [], [], 0.1)[0]:
                self._opened()
                return True
        return False

    def do(self, call: Call) -> list[Record]:
        """Does units as a worker does, in a new process where one dies; raises what they raise."""
        for left in reversed(range(TRIES)):
            self._send(pickle.dumps(call))
            try:
                return self._receive()
            except EOFError:
                if self._is_killed or not left:
                    raise self._ended(f"did unit {call[0][0]}") from None
            self.close()
            self._start()
            self._opened()
        raise AssertionError

    def _opened(self) -> None:
        try:
            self._receive()
        except EOFError:
            raise self._ended("opened the stage") from None

    def _ended(self, doing: str) -> UserError:
        how, cure = self._process.wait(), "run the same command again, with --serial if memory was short"
        return UserError(f"the process that {doing} ended with {how}: {cure}")

    def kill(self) -> None:
        """Has another thread's `do` raise."""
        self._is_killed = True
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._calls, self._answers):
            with suppress(OSError):  # what was not sent yet
                pipe.close()

    def _send(self, data: bytes) -> None:
        with suppress(BrokenPipeError):  # `_receive` says why
            self._calls.write(data)
            self._calls.flush()

    def _receive(self) -> list[Record]:
        answer: list[Record] | BaseException = pickle.load(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer


# ---------------------------------------------------------------------------------------------- in the process


def serve() -> None:
    """Does calls until the parent is gone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what units print is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c is for the parent
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):  # it ended before the line above
        sys.exit()
    sys.excepthook = partial(_last_words, answers)
    calls = sys.stdin.buffer
    open_worker, worker = pickle.load(calls), None
    while True:
        try:
            call = pickle.load(calls)
        except EOFError:
            return
        worker = worker or open_worker()
        pickle.dump(worker(call), answers)
        answers.flush()


def _last_words(
    answers: BinaryIO, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not isinstance(error, UserError | OSError):
        error.add_note("".join(traceback.format_exception(error)))
    with suppress(BrokenPipeError):
        answers.write(_portable(error))
        answers.flush()


def _portable(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except (TypeError, AttributeError, pickle.PicklingError):  # its class is made otherwise than from its arguments
        told = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        return pickle.dumps(told)
    return data
