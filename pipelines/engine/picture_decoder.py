"""Decodes pictures in a process that is killed when one takes too long: a file of 18 kB can be minutes of work."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.killable_worker import Body, KillableWorker, ResourceLimit, Send, WorkerFailure
from xmodal.media.images import OnTruncated, UnreadableImage, square

DEADLINE = 20.0  # seconds
TRIES = 2  # of a picture whose process dies
TRUNCATED, UNREADABLE = b"T", b"N"  # messages before the answer: why a picture is cut short, or none


class NotDecoded(UnreadableImage):
    """A picture took too long, ended the process, or is none."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class PictureDecoder:
    """Calls `function`, "module:name" of `(settings, data, send) -> bytes`, picture by picture.

    Its process starts with the first picture, as a child of the thread that asks, and ends with that.
    """

    def __init__(self, function: str, settings: object, deadline: float) -> None:
        self._function, self._settings, self._limit = function, settings, ResourceLimit(deadline, rate=0.0)

    @cached_property
    def _worker(self) -> KillableWorker:
        return KillableWorker(self._function, self._settings, self._limit)

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


class SquareDecoder(PictureDecoder):
    """Gives a picture's middle, (crop, crop, 3), as `square` cuts it."""

    def __init__(self, resize: int, crop: int, deadline: float) -> None:
        super().__init__(f"{__name__}:squares", [resize, crop], deadline)
        self._side = crop

    def pixels(self, data: bytes, on_truncated: OnTruncated = lambda reason: None) -> NDArray[np.uint8]:
        return np.frombuffer(self.decode(data, on_truncated), np.uint8).reshape(self._side, self._side, 3)


def squares(settings: list[int], data: bytes, send: Send) -> Body:
    resize, crop = settings
    return answer(lambda on_truncated: square(data, resize, crop, on_truncated).reshape(-1).data, send)
