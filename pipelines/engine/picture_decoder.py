"""Decodes pictures in a process that is killed when one takes too long: a file of 18 kB can be minutes of work."""

import struct
from collections.abc import Callable
from dataclasses import asdict
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.killable_worker import Body, KillableWorker, ResourceLimit, Send, WorkerFailure
from xmodal.media.images import OnTruncated, UnreadableImage
from xmodal.media.preparation import Preparation, prepare

DEADLINE = 20.0  # seconds
TRIES = 2  # of a picture whose process dies
SIZE = struct.Struct("<II")  # height and width, before the pixels
TRUNCATED, UNREADABLE = b"T", b"N"  # messages before the answer: why a picture is cut short, or none


class NotDecoded(UnreadableImage):
    """A picture took too long, ended the process, or is none."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class PictureDecoder(local):
    """Calls `function`, "module:name" of `(settings, data, send) -> bytes`, picture by picture.

    Each thread that asks has a process of its own, which starts with its first picture and ends with the thread.
    """

    def __init__(self, function: str, settings: object, deadline: float) -> None:
        self._function, self._settings, self._limit = function, settings, ResourceLimit(deadline, rate=0.0)
        self._started: KillableWorker | None = None

    @property
    def _worker(self) -> KillableWorker:
        self._started = self._started or KillableWorker(self._function, self._settings, self._limit)
        return self._started

    def expect(self, data: bytes) -> None:
        """Sends the picture after the next one while that is decoded."""
        self._worker.expect(data)

    def decode(self, data: bytes, on_truncated: OnTruncated = lambda reason: None) -> bytes:
        for left in reversed(range(TRIES)):
            try:
                *told, (_, answer) = self._worker.call(data)
                break
            except WorkerFailure as failure:
                if failure.status == "timeout":
                    raise NotDecoded("timeout", f"not done after {self._limit.seconds:g} seconds") from None
                if failure.status == "internal" or not left:
                    raise NotDecoded(failure.status, str(failure)) from None
        for kind, reason in told:
            if kind == UNREADABLE:
                raise UnreadableImage(reason.decode())
            on_truncated(reason.decode())
        return answer


def answer(decode: Callable[[OnTruncated], Body], send: Send) -> Body:
    """Gives what `decode` gives, or nothing if that is no picture; sends the reasons before."""
    try:
        return decode(lambda reason: send(TRUNCATED, reason.encode()))
    except UnreadableImage as error:
        send(UNREADABLE, str(error).encode())
        return b""


class PreparedDecoder(PictureDecoder):
    """Gives a picture as `prepare` does, (H, W, 3)."""

    def __init__(self, how: Preparation, deadline: float) -> None:
        super().__init__(f"{__name__}:prepared", asdict(how), deadline)

    def pixels(self, data: bytes, on_truncated: OnTruncated = lambda reason: None) -> NDArray[np.uint8]:
        answer = self.decode(data, on_truncated)
        return np.frombuffer(answer, np.uint8, offset=SIZE.size).reshape(*SIZE.unpack_from(answer), 3)


class SquareDecoder(PreparedDecoder):
    """Gives a picture's middle, (crop, crop, 3), as `square` cuts it."""

    def __init__(self, resize: int, crop: int, deadline: float) -> None:
        super().__init__(Preparation((resize,), (crop, crop)), deadline)


def prepared(settings: dict[str, Any], data: bytes, send: Send) -> Body:
    def decode(on_truncated: OnTruncated) -> bytes:
        pixels_HW3 = prepare(data, Preparation(**settings), on_truncated)
        return SIZE.pack(*pixels_HW3.shape[:2]) + pixels_HW3.tobytes()

    return answer(decode, send)
