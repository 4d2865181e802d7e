"""Samples the frames of clips in a process that is killed when a clip takes too long: a decoder cannot be stopped.

The process is a fresh interpreter, without torch and Ray, and ends with its parent, however that ends. Only bytes are
exchanged, never pickles: whatever hostile media make of a decoder, all it can send is data. The deadline holds in the
middle of a message too, unlike that of a connection of multiprocessing.
"""

import ctypes
import json
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from xmodal.errors import UserError
from xmodal.media import frame_sampling
from xmodal.media.frame_sampling import Sampled, encode_jpeg, one_line
from xmodal.media.frame_times import Frame, Limits, Sampling

Subsampling = Literal["4:2:0", "4:2:2", "4:4:4"]
TRIES = 2  # of a clip whose process dies
STARTS = 2  # tries: a machine may be short of memory for a moment
START_SECONDS, END_SECONDS = 60.0, 5.0  # to be ready; to be gone after the connection ended
HEADER = struct.Struct("<cQ")  # kind and length of a message
PROGRAM = "from pipelines.engine.clip_sampler import serve; serve()"
CLIP, READY, PLANNED, FRAME, DONE, USER_ERROR, EXCEPTION = b"C", b"R", b"P", b"F", b"D", b"U", b"X"  # kinds of messages
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class ResourceLimit:
    """Time and memory for one clip."""

    seconds: float = 30.0
    rate: float = 2.0  # more seconds, for each of the clip
    memory: int = 4 << 30  # bytes of addresses

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.rate < 0 or self.memory < 1:
            raise ValueError("deadline and memory are above 0, and deadline_rate is not below 0")

    def allows(self, duration_ms: int) -> float:
        return self.seconds + self.rate * duration_ms / 1000


@dataclass(frozen=True)
class SampleRequest:
    """Everything besides a clip's bytes that decides its frames."""

    sampling: Sampling
    limits: Limits
    quality: int = 95
    subsampling: Subsampling = "4:2:0"


@dataclass(frozen=True, eq=False)
class SampledClip:
    row: Sampled
    jpegs: list[bytes]  # count only if the row's status is usable
    elapsed_ms: int
    attempt: int  # from 1


class ClipSampler:
    """Samples one clip at a time in one process, which is replaced if it dies, and ended by `close`.

    The thread that makes a sampler must outlive it: Linux ends the process with its thread.
    """

    def __init__(self, request: SampleRequest, limit: ResourceLimit) -> None:
        self._arguments = json.dumps([asdict(request), limit.memory, os.getpid()])
        self._limit = limit
        self._start()

    def sample(self, data: bytes) -> SampledClip:
        began, attempt = time.monotonic(), 1
        row, jpegs = self._sample(data)
        while row.status == "worker_died" and attempt < TRIES:
            row, jpegs = self._sample(data)
            attempt += 1
        return SampledClip(row, jpegs, round(1000 * (time.monotonic() - began)), attempt)

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def _sample(self, data: bytes) -> tuple[Sampled, list[bytes]]:
        row, jpegs, exception = Sampled(len(data)), list[bytes](), ""
        talk = _Conversation(self._socket, self._limit.seconds)
        try:
            talk.send(CLIP, data)
            for kind, body in talk.messages():
                if kind == FRAME:
                    jpegs.append(body)
                elif kind == USER_ERROR:
                    raise UserError(body.decode())
                elif kind == EXCEPTION:
                    exception = body.decode()
                else:
                    row = _row(body)
                    talk.seconds = self._limit.allows(row.duration_ms)
            return row, jpegs
        except TimeoutError:
            self._end(0.0)
            late = f"not done after {self._limit.allows(row.duration_ms):g} seconds"
            row = replace(row, status="timeout", message=late)
        except OSError:
            died = f"the process {self._end(END_SECONDS)}"
            row = replace(row, status="worker_died", message=died)
            if exception:
                row = replace(row, status="internal", message=one_line(exception))
        self._start()
        return row, jpegs

    def _start(self) -> None:
        for _ in range(STARTS):
            self._spawn()
            try:
                if any(kind == READY for kind, _ in _Conversation(self._socket, START_SECONDS).messages()):
                    return
            except OSError:
                how = self._end(END_SECONDS)
        raise UserError(f"the process that decodes media does not start: it {how}")

    def _spawn(self) -> None:
        self._socket, theirs = socket.socketpair()
        setup = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        command = [sys.executable, "-c", setup + PROGRAM, json.dumps(sys.path), self._arguments]
        nowhere = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=nowhere, stderr=nowhere)
        self.close = weakref.finalize(self, _close, self._process, self._socket)

    def _end(self, patience: float) -> str:
        """Waits so many seconds for the process, then kills it; says how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self.close()
        code = int(self._process.returncode)
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


class _Conversation:
    """Messages until a deadline. TimeoutError after it; any other OSError if the other process is gone."""

    def __init__(self, connection: socket.socket, seconds: float = math.inf) -> None:
        self._socket, self._began, self.seconds = connection, time.monotonic(), seconds

    def send(self, kind: bytes, body: bytes) -> None:
        self._hurry()
        self._socket.sendall(HEADER.pack(kind, len(body)))
        self._socket.sendall(body)

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Kind and body of each; DONE is the last."""
        kind = b""
        while kind != DONE:
            kind, length = HEADER.unpack(self._receive(HEADER.size))
            yield kind, self._receive(length)

    def _receive(self, length: int) -> bytes:
        data = bytearray(length)
        room = memoryview(data)
        while len(room):
            self._hurry()
            received = self._socket.recv_into(room)
            if not received:
                raise ConnectionResetError
            room = room[received:]
        return bytes(data)

    def _hurry(self) -> None:
        left = self._began + self.seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left if left < math.inf else None)


def _close(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


def serve() -> None:
    """Runs in the process: samples clips until it is killed or its parent is gone."""
    settings, memory, parent = json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c at the terminal is for the parent
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit()
    talk = _Conversation(socket.socket(fileno=os.dup(0)))
    sys.excepthook = partial(_last_words, talk.send)  # the process ends with whatever nobody expected
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory if most < 0 else min(memory, most), most))
    talk.send(READY, b"")
    clips = talk.messages()
    while True:
        try:
            _, data = next(clips)
        except OSError:
            return
        talk.send(DONE, _answer(settings, data, talk.send))


def _answer(settings: dict[str, Any], data: bytes, send: Callable[[bytes, bytes], None]) -> bytes:
    """Sends each frame as a JPEG as soon as it is decoded, and returns the clip's row as JSON."""
    sampling, limits = Sampling(**settings["sampling"]), Limits(**settings["limits"])

    def keep(frame: Frame) -> None:
        send(FRAME, frame.jpeg or encode_jpeg(frame.pixels_HW3, settings["quality"], settings["subsampling"]))

    return _json(frame_sampling.sample_frames(data, keep, sampling, limits, lambda row: send(PLANNED, _json(row))))


def _last_words(send: Callable[[bytes, bytes], None], kind: type, error: BaseException, trace: object) -> None:
    said, text = (USER_ERROR, f"{error}") if isinstance(error, UserError) else (EXCEPTION, f"{kind.__name__}: {error}")
    with suppress(OSError):
        send(said, text.encode(errors="replace"))


def _json(row: Sampled) -> bytes:
    return json.dumps(asdict(row)).encode()


def _row(data: bytes) -> Sampled:
    fields: dict[str, Any] = json.loads(data)
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Sampled(**fields)
