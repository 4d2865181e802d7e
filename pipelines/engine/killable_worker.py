"""Clips sampled in another process, which is killed where it takes too long: a decoder's call cannot be stopped.

The process is a fresh interpreter that knows neither torch nor Ray, and ends when the one that started it does, however
that ends. Through one socket it is sent a clip's bytes, and gives back frames, each as a JPEG as soon as there is one,
and the clip's row. All it sends are bytes and JSON: whatever a hostile clip makes of the decoder is no more than data.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from xmodal.errors import UserError
from xmodal.media import frame_sampling
from xmodal.media.frame_sampling import Sampled, encode_jpeg, one_line
from xmodal.media.frame_times import Failure, Frame, Limits, Sampling

Subsampling = Literal["4:2:0", "4:2:2", "4:4:4"]
TRIES = 2
START_SECONDS, END_SECONDS = 60.0, 5.0  # to be ready; to be gone after the last words
PROGRAM = "from pipelines.engine.killable_worker import serve; serve()"
HEADER = struct.Struct("<cQ")  # kind and length of a message
READY, CLIP, PLANNED, FRAME, DONE, TROUBLE, RAISED = (bytes([letter]) for letter in b"RCPFDTX")
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Leash:
    """How long a clip may take: `seconds`, and `rate` more for each of its own. `memory` counts addresses."""

    seconds: float = 30.0
    rate: float = 2.0
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.rate < 0 or self.memory < 1:
            raise ValueError("a clip takes some time and memory: a deadline is above 0, its rate not below")

    def allows(self, duration_ms: int) -> float:
        return self.seconds + self.rate * duration_ms / 1000


@dataclass(frozen=True)
class Wanted:
    """What decides the frames of a clip, beside its bytes."""

    sampling: Sampling
    limits: Limits
    quality: int = 95
    subsampling: Subsampling = "4:2:0"


@dataclass(frozen=True, eq=False)
class Taken:
    """What became of a clip. Its JPEGs count only where the row's status is usable; `attempt` counts from 1."""

    row: Sampled
    jpegs: list[bytes]
    elapsed_ms: int
    attempt: int


class Killable:
    """One process, and one clip at a time. After one that died or was killed there is a fresh one; `close` ends it.

    It belongs to the thread that made it: Linux has it end with that.
    """

    def __init__(self, wanted: Wanted, leash: Leash) -> None:
        self._wanted, self._leash = wanted, leash
        self._start()

    def sample(self, data: bytes) -> Taken:
        """A clip that its process dies of is tried once more; one that takes too long is not."""
        began, attempt = time.monotonic(), 1
        while True:
            jpegs: list[bytes] = []
            row = self._sampled(data, jpegs)
            if row.status != "worker_died" or attempt == TRIES:
                return Taken(row, jpegs, round(1000 * (time.monotonic() - began)), attempt)
            attempt += 1

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def _sampled(self, data: bytes, jpegs: list[bytes]) -> Sampled:
        talk = _Talk(self._socket, self._leash, Sampled(len(data)))
        try:
            return talk.about(data, jpegs)
        except TimeoutError:
            self._restart(0.0)
            return _failed(talk.row, "timeout", f"not done after {self._leash.allows(talk.row.duration_ms):g} seconds")
        except OSError:
            how = _how(self._restart(END_SECONDS))
            if talk.raised:
                return _failed(talk.row, "internal", talk.raised)
            return _failed(talk.row, "worker_died", f"the process {how}")

    def _start(self) -> None:
        """A start that fails may be a machine short of memory for a moment: there is one more."""
        for _ in range(TRIES):
            self._spawn()
            try:
                talk = _Talk(self._socket, Leash(START_SECONDS), Sampled(0))
                while talk.message()[0] != READY:
                    continue  # last words, before its end
                return
            except OSError:
                how = _how(self._ended(END_SECONDS))
        raise UserError(f"the process that samples clips does not start: it {how}")

    def _spawn(self) -> None:
        self._socket, theirs = socket.socketpair()
        setup = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        told = (json.dumps(sys.path), json.dumps(asdict(self._wanted)), str(self._leash.memory), str(os.getpid()))
        nowhere = subprocess.DEVNULL
        with theirs:
            command = [sys.executable, "-c", setup + PROGRAM, *told]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=nowhere, stderr=nowhere)
        self.close = weakref.finalize(self, _end, self._process, self._socket)

    def _restart(self, patience: float) -> int:
        """What the process ended with of itself within so many seconds, or else by SIGKILL; signals are below zero."""
        code = self._ended(patience)
        self._start()
        return code

    def _ended(self, patience: float) -> int:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self.close()
        return int(self._process.returncode)


class _Talk:
    """About one clip. TimeoutError when its time is over; any other OSError when nobody is at the other end."""

    def __init__(self, connection: socket.socket, leash: Leash, row: Sampled) -> None:
        self._socket, self._leash, self.row = connection, leash, row
        self._began, self.raised = time.monotonic(), ""

    def about(self, data: bytes, jpegs: list[bytes]) -> Sampled:
        self._hurry()
        _send(self._socket, CLIP, data)
        while True:
            kind, body = self.message()
            if kind == FRAME:
                jpegs.append(body)
            elif kind == TROUBLE:
                raise UserError(body.decode())
            elif kind == RAISED:
                self.raised = body.decode()
            else:
                self.row = _row(body)
                if kind == DONE:
                    return self.row

    def message(self) -> tuple[bytes, bytes]:
        return _message(self._socket, self._hurry)

    def _hurry(self) -> None:
        left = self._began + self._leash.allows(self.row.duration_ms) - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


def serve() -> None:
    """What the process does until it is killed, or nobody is at the other end any more."""
    wanted, memory, parent = json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    _die_with(parent)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory if most < 0 else min(memory, most), most))
    connection = socket.socket(fileno=os.dup(0))
    sys.excepthook = partial(_last_words, connection)  # it ends with whatever nobody expected
    sampling, limits = Sampling(**wanted.pop("sampling")), Limits(**wanted.pop("limits"))
    _send(connection, READY, b"")
    while True:
        try:
            _, data = _message(connection)
        except OSError:
            return
        _answer(connection, data, Wanted(sampling, limits, **wanted))


def _answer(connection: socket.socket, data: bytes, wanted: Wanted) -> None:
    def keep(frame: Frame) -> None:
        jpeg = frame.jpeg or encode_jpeg(frame.pixels_HW3, wanted.quality, wanted.subsampling)
        _send(connection, FRAME, jpeg)

    def planned(row: Sampled) -> None:
        _send(connection, PLANNED, _json(row))

    _send(connection, DONE, _json(frame_sampling.sample_frames(data, keep, wanted.sampling, wanted.limits, planned)))


def _last_words(connection: socket.socket, kind: type[BaseException], error: BaseException, trace: object) -> None:
    is_known = isinstance(error, UserError)
    with suppress(OSError):
        _send(
            connection,
            TROUBLE if is_known else RAISED,
            (f"{error}" if is_known else f"{kind.__name__}: {error}").encode(errors="replace"),
        )


def _die_with(parent: int) -> None:
    """By SIGKILL, when the parent ends; its terminal's ctrl-c is the parent's to see."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


def _end(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _failed(row: Sampled, status: Failure, message: str) -> Sampled:
    return replace(row, status=status, message=one_line(message))


def _json(row: Sampled) -> bytes:
    return json.dumps(asdict(row)).encode()


def _row(data: bytes) -> Sampled:
    told: dict[str, Any] = json.loads(data)
    told |= {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
    return Sampled(**told)


def _send(connection: socket.socket, kind: bytes, body: bytes) -> None:
    connection.sendall(HEADER.pack(kind, len(body)))
    connection.sendall(body)


def _message(connection: socket.socket, hurry: Callable[[], None] = lambda: None) -> tuple[bytes, bytes]:
    kind, length = HEADER.unpack(_exactly(connection, HEADER.size, hurry))
    return kind, _exactly(connection, length, hurry)


def _exactly(connection: socket.socket, length: int, hurry: Callable[[], None]) -> bytes:
    data = bytearray(length)
    room = memoryview(data)
    while len(room):
        hurry()
        received = connection.recv_into(room)
        if not received:
            raise ConnectionResetError
        room = room[received:]
    return bytes(data)
