"""The demo's server with any misbehaviour that a test orders, and a log of what was asked."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipelines.demo.server import Handler, Site, serving


@dataclass(frozen=True)
class Behaviour:
    """The answer to one request: correct, except for what is set here."""

    status: int | None = None  # instead of a file
    headers: tuple[tuple[str, str], ...] = ()  # further ones, such as Retry-After
    cut_after: int | None = None  # bytes of the body, though Content-Length states all
    corrupt: bool = False  # wrong bytes of the right length
    ranges: bool = True  # answer range requests
    etag: str | None = None  # another version of the file than before


class Request(NamedTuple):
    path: str
    range: str | None


class Server(Site):
    def __init__(self, folder: Path, behaviours: Mapping[str, Sequence[Behaviour]]) -> None:
        super().__init__(folder, handler=_Misbehaving)
        self.behaviours = {path: deque(each) for path, each in behaviours.items()}
        self.requests = list[Request]()  # in the order they came in


@contextmanager
def serve(folder: str | Path, behaviours: Mapping[str, Sequence[Behaviour]] | None = None) -> Iterator[Server]:
    """Serves a folder. Each request for a path uses up one of its behaviours; all others are answered correctly."""
    server = Server(Path(folder), behaviours or {})
    with serving(server):
        yield server


class _Misbehaving(Handler):
    server: Server
    behaviour: Behaviour

    def do_GET(self) -> None:
        self.server.requests.append(Request(self.asked, self.headers.get("Range")))
        try:
            self.behaviour = self.server.behaviours[self.asked].popleft()
        except LookupError:
            self.behaviour = Behaviour()
        if not self.behaviour.ranges:
            del self.headers["Range"]
        if self.behaviour.cut_after is not None:
            self.server.cuts[self.asked] = self.behaviour.cut_after
        if self.behaviour.status is None:
            return super().do_GET()
        with suppress(ConnectionError):
            self.head(self.behaviour.status, {})

    def end_headers(self) -> None:
        for name, value in self.behaviour.headers:
            self.send_header(name, value)
        super().end_headers()

    def etag(self, file: Path) -> str:
        return self.behaviour.etag or super().etag(file)

    def blocks(self, path: Path, start: int, length: int) -> Iterator[bytes]:
        for block in super().blocks(path, start, length):
            yield bytes(255 - byte for byte in block) if self.behaviour.corrupt else block
