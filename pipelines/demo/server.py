"""An HTTP server of a folder, for this machine only: whole files, ranges, and any misbehaviour a test asks for."""

import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

BLOCK = 1 << 16


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


@dataclass(frozen=True)
class Server:
    url: str
    requests: list[Request]  # in the order they came in


@contextmanager
def serve(folder: str | Path, behaviours: Mapping[str, Sequence[Behaviour]] | None = None) -> Iterator[Server]:
    """Serves a folder. Each request for a path uses up one of its behaviours; all others are answered correctly."""
    with _Site(Path(folder).resolve(), {path: deque(each) for path, each in (behaviours or {}).items()}) as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{site.server_port}", site.requests)
        finally:
            site.shutdown()
            thread.join()


class _Site(ThreadingHTTPServer):
    def __init__(self, folder: Path, behaviours: dict[str, deque[Behaviour]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.behaviours, self.requests = folder, behaviours, list[Request]()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Site

    def do_GET(self) -> None:
        site, path = self.server, unquote(urlsplit(self.path).path).lstrip("/")
        site.requests.append(Request(path, self.headers.get("Range")))
        try:
            behaviour = site.behaviours[path].popleft()
        except LookupError:
            behaviour = Behaviour()
        file = (site.folder / path).resolve()
        with suppress(ConnectionError):  # a client may hang up at any time
            if behaviour.status is None and file.is_relative_to(site.folder) and file.is_file():
                self._answer(file, behaviour)
            else:
                self._head(behaviour.status or 404, {"Content-Length": "0"}, behaviour)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: tests read `requests`."""

    def _answer(self, file: Path, behaviour: Behaviour) -> None:
        facts = file.stat()
        size, etag = facts.st_size, behaviour.etag or f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"'
        use_range = behaviour.ranges and self.headers.get("If-Range", etag) == etag
        wanted = _range(self.headers.get("Range", ""), size) if use_range else None
        first, last = wanted or (0, size - 1)
        if wanted and first >= size:
            return self._head(416, {"Content-Length": "0", "Content-Range": f"bytes */{size}"}, behaviour)
        headers = {"Content-Length": str(last - first + 1), "Accept-Ranges": "bytes", "ETag": etag}
        headers |= {"Content-Range": f"bytes {first}-{last}/{size}"} if wanted else {}
        self._head(206 if wanted else 200, headers, behaviour)
        if self.command == "GET":
            self._send(file, first, last - first + 1, behaviour)

    def _head(self, status: int, headers: Mapping[str, str], behaviour: Behaviour) -> None:
        self.send_response(status)
        for name, value in (*headers.items(), *behaviour.headers):
            self.send_header(name, value)
        self.end_headers()

    def _send(self, path: Path, start: int, length: int, behaviour: Behaviour) -> None:
        left = length if behaviour.cut_after is None else min(length, behaviour.cut_after)
        self.close_connection |= left < length
        with path.open("rb") as file:
            file.seek(start)
            while left and (block := file.read(min(BLOCK, left))):
                self.wfile.write(bytes(255 - byte for byte in block) if behaviour.corrupt else block)
                left -= len(block)


def _range(header: str, size: int) -> tuple[int, int] | None:
    """First and last byte of `bytes=a-b`, `bytes=a-` or `bytes=-n`; None for anything else, which is ignored."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if match is None or match.group(0).endswith("=-"):
        return None
    first, last = match.groups()
    if not first:
        return max(size - int(last), 0) if int(last) else size, size - 1
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last), size - 1) if last else size - 1
