"""Decodes pictures in a process that is killed when one takes too long: a small file can be hours of work."""

from collections.abc import Callable
from typing import Any

from pipelines.engine.killable_worker import KillableWorker, ResourceLimit, Send
from xmodal.media.images import OnTruncated, UnreadableImage, square

TRUNCATED, UNREADABLE = b"T", b"N"  # kinds of messages before the answer: why a picture is cut, or is none
LIMIT = ResourceLimit(seconds=20.0, rate=0.0)  # the slowest of 5,000 photographs took 0.4 s


class PictureDecoder:
    """Calls a function that decodes one picture; WorkerFailure says that it took too long or ended the process.

    The function is "module:name" of `(settings, data, send) -> bytes`, as `squares` below. `close` ends the process.
    """

    def __init__(self, function: str, settings: object, limit: ResourceLimit = LIMIT) -> None:
        self._worker = KillableWorker(function, settings, limit)

    def close(self) -> None:
        self._worker.close()

    def decode(self, data: bytes, on_truncated: OnTruncated = lambda reason: None) -> bytes:
        """The function's answer; UnreadableImage if there is no picture in the data."""
        *told, (_, answer) = self._worker.call(data)
        for kind, reason in told:
            if kind == UNREADABLE:
                raise UnreadableImage(reason.decode())
            on_truncated(reason.decode())
        return answer


def answering(decode: Callable[[bytes, OnTruncated], bytes], data: bytes, send: Send) -> bytes:
    """What `decode` gives, with its reasons sent."""
    try:
        return decode(data, lambda reason: send(TRUNCATED, reason.encode()))
    except UnreadableImage as error:
        send(UNREADABLE, str(error).encode())
        return b""


def squares(settings: dict[str, Any], data: bytes, send: Send) -> bytes:
    """The pixels of the middle of a picture, (crop, crop, 3), as `square` cuts them."""
    cut = (settings["resize"], settings["crop"])
    return answering(lambda picture, on_truncated: square(picture, *cut, on_truncated).tobytes(), data, send)
