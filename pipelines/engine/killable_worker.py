"""Runs a function in another process, which is killed when a call takes too long.

It is a fresh interpreter, without torch and Ray, and ends with its parent, however that ends. It exchanges bytes, never
pickles, as hostile media may take it over; by a plain socket, as a deadline must hold within a message too.
"""

import ctypes
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Literal

from xmodal.errors import UserError

STARTS = 2  # tries: memory may be short for a moment
START_SECONDS, END_SECONDS = 60.0, 5.0  # to be ready; to be gone after the connection ended
HEADER = struct.Struct("<cQ")  # kind and length of a message
SETUP = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "  # of a new interpreter
PROGRAM = SETUP + "from pipelines.engine.killable_worker import serve; serve()"
CALL, READY, DONE, USER_ERROR, EXCEPTION = b"C", b"R", b"D", b"U", b"X"  # kinds of messages; a function may send others
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc

Body = bytes | memoryview
Send = Callable[[bytes, Body], None]  # kind, of one byte, and body of a message


@dataclass(frozen=True)
class ResourceLimit:
    """Limits one call: `seconds`, `rate` more per second of media, `memory` in bytes of addresses."""

    seconds: float = 30.0
    rate: float = 2.0
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.rate < 0 or self.memory < 1:
            raise ValueError("deadline and memory are above 0, and deadline_rate is not below 0")

    def allows(self, duration_ms: int) -> float:
        return self.seconds + self.rate * duration_ms / 1000


class WorkerFailure(Exception):
    """A call gave no answer; "internal": its function raised."""

    def __init__(self, status: Literal["timeout", "worker_died", "internal"], message: str) -> None:
        super().__init__(message)
        self.status = status


class KillableWorker:
    """Calls one function, "module:name", in one process, replaced if it dies; `close` ends it.

    The function takes its settings (JSON), the call's bytes, and a `Send` for messages before its answer. The thread
    that makes a worker must outlive it: Linux ends the process with its thread.
    """

    def __init__(self, function: str, settings: object, limit: ResourceLimit) -> None:
        self._arguments = json.dumps([function, settings, limit.memory, os.getpid()])
        self.limit = limit
        self._sent: bytes | None  # before its call
        self._expected: bytes | None
        self._start()

    def expect(self, data: bytes) -> None:
        """Sends the data of the call after the next one while that is at work."""
        self._expected = data

    def call(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields kind and body of each answering message, DONE last; raises WorkerFailure."""
        if self._sent is not None and self._sent is not data:  # a unit failed before the call that it expected
            self._end(0.0)
            self._start()
        talk = self._talk
        talk.restart(self.limit.seconds)
        exception = ""
        try:
            for body in (data if self._sent is None else None, self._expected):
                if body is not None:
                    talk.post(CALL, body)
            self._sent, self._expected = self._expected, None
            for kind, body in talk.messages():
                if kind == USER_ERROR:
                    raise UserError(body.decode())
                if kind == EXCEPTION:
                    exception = body.decode()
                else:
                    yield kind, body
        except TimeoutError:
            self._end(0.0)
            self._start()
            raise WorkerFailure("timeout", "the deadline is over") from None
        except OSError:
            how = self._end(END_SECONDS)
            self._start()
            if exception:
                raise WorkerFailure("internal", exception) from None
            raise WorkerFailure("worker_died", f"the process {how}") from None

    def allow(self, duration_ms: int) -> None:
        """Moves the current call's deadline to that of media of this length."""
        self._talk.seconds = self.limit.allows(duration_ms)

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def _start(self) -> None:
        for _ in range(STARTS):
            self._spawn()
            try:
                self._talk.restart(START_SECONDS)
                if any(kind == READY for kind, _ in self._talk.messages()):
                    return
            except OSError:
                how = self._end(END_SECONDS)
        raise UserError(f"the process that decodes media does not start: it {how}")

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self._talk, self._sent, self._expected = _Conversation(ours), None, None
        command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), self._arguments]
        with theirs:
            self._process = Popen(command, stdin=theirs.fileno(), stdout=DEVNULL, stderr=DEVNULL)
        self.close = weakref.finalize(self, _close, self._process, ours)

    def _end(self, patience: float) -> str:
        """Waits some seconds, then kills the process; says how it ended."""
        with suppress(TimeoutExpired):
            self._process.wait(patience)
        self.close()
        code = int(self._process.returncode)
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


class _Conversation:
    """Messages until a deadline. TimeoutError after it; another OSError if the process is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._poll, self._unsent = connection, select.poll(), list[memoryview]()
        self._poll.register(connection)
        self.restart(math.inf)

    def restart(self, seconds: float) -> None:
        self._began, self.seconds = time.monotonic(), seconds

    def post(self, kind: bytes, body: Body) -> None:
        """Sends a message while the next ones are received."""
        self._unsent += [memoryview(HEADER.pack(kind, len(body))), memoryview(body)]

    def send(self, kind: bytes, body: Body) -> None:
        self.post(kind, body)
        while self._unsent:
            self._wait(select.POLLOUT)
            self._send_some()

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        kind = b""
        while kind != DONE:
            kind, length = HEADER.unpack(self._receive(HEADER.size))
            yield kind, self._receive(length)

    def _receive(self, length: int) -> bytes:
        parts, has_time = list[bytes](), self.seconds == math.inf
        flags = socket.MSG_WAITALL if has_time else socket.MSG_DONTWAIT
        while length:
            events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            if not has_time and self._wait(events) == select.POLLOUT:
                self._send_some()
                continue
            if not (part := self._socket.recv(length, flags)):
                raise ConnectionResetError
            parts.append(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _send_some(self) -> None:
        sent = self._socket.sendmsg(self._unsent, (), socket.MSG_DONTWAIT)
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.pop(0))
        if sent:
            self._unsent[0] = self._unsent[0][sent:]

    def _wait(self, events: int) -> int:
        left = self._began + self.seconds - time.monotonic()
        self._poll.modify(self._socket, events)
        if left <= 0 or not (ready := self._poll.poll(1000 * left if left < math.inf else None)):
            raise TimeoutError
        return ready[0][1]


def _close(process: "Popen[bytes]", connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


def keep_memory(most: int) -> None:
    """Keeps up to `most` freed bytes in this process: what goes back to the system costs a fault a page."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # only of glibc
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, most)


# ---------------------------------------------------------------------------------------------- in the process


def serve() -> None:
    """Answers calls until the parent is gone."""
    function, settings, memory, parent = json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c is for the parent
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    keep_memory(1 << 25)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit()
    talk = _Conversation(socket.socket(fileno=os.dup(0)))
    sys.excepthook = partial(_last_words, talk.send)  # what nobody expected ends the process
    module, _, name = function.partition(":")
    answer = getattr(importlib.import_module(module), name)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory if most < 0 else min(memory, most), most))
    talk.send(READY, b"")
    calls = talk.messages()
    while True:
        try:
            _, data = next(calls)
        except OSError:
            return
        talk.send(DONE, answer(settings, data, talk.send))


def _last_words(send: Send, kind: type[BaseException], error: BaseException, trace: object) -> None:
    of, text = (USER_ERROR, f"{error}") if isinstance(error, UserError) else (EXCEPTION, f"{kind.__name__}: {error}")
    with suppress(OSError):
        send(of, text.encode(errors="replace"))
