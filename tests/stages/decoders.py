"""Functions that misbehave in a decoder's process, which imports little for them."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

Send = Callable[[bytes, bytes], None]


def die(settings: None, data: bytes, send: Send) -> bytes:
    if data == b"always":
        os.kill(os.getpid(), signal.SIGKILL)
    return data


def devour(settings: None, data: bytes, send: Send) -> bytes:
    return bytes(8 << 30)


def stumble(settings: tuple[str, int], data: bytes, send: Send) -> bytes:
    """Kills its process at "always", and once, as a file then says, at "once"; else gives so many bytes."""
    flag, count = settings
    if data.startswith(b"once"):
        with suppress(FileExistsError), open(flag, "x"):
            os.kill(os.getpid(), signal.SIGKILL)
    if data.startswith(b"always"):
        os.kill(os.getpid(), signal.SIGKILL)
    return data[-1:] * count
