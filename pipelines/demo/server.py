"""An HTTP server of a folder, for this machine only: files, their ends, and connections that break where asked."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

BLOCK = 1 << 16


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Site"

    def do_GET(self) -> None:
        file = (self.server.folder / self.asked).resolve()
        with suppress(ConnectionError):  # a client may hang up
            if file.is_relative_to(self.server.folder) and file.is_file():
                self._answer(file)
            else:
                self.head(404, {})

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    @property
    def asked(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": "0"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def etag(self, file: Path) -> str:
        facts = file.stat()
        return f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"'

    def blocks(self, path: Path, start: int, length: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(start)
            while length and (block := file.read(min(BLOCK, length))):
                yield block
                length -= len(block)

    def _answer(self, file: Path) -> None:
        size, etag = file.stat().st_size, self.etag(file)
        end = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))  # other ranges are ignored
        if self.headers.get("If-Range", etag) != etag:
            end = None
        first = int(end[1]) if end else 0
        if end and first >= size:
            return self.head(416, {"Content-Range": f"bytes */{size}"})
        headers = {"Content-Length": str(size - first), "Accept-Ranges": "bytes", "ETag": etag}
        headers |= {"Content-Range": f"bytes {first}-{size - 1}/{size}"} if end else {}
        self.head(206 if end else 200, headers)
        sent = min(size - first, self.server.cuts.pop(self.asked, size))
        self.close_connection |= sent < size - first
        for block in self.blocks(file, first, sent):
            self.wfile.write(block)


class Site(ThreadingHTTPServer):
    def __init__(
        self, folder: Path, cuts: Mapping[str, int] | None = None, handler: type[BaseHTTPRequestHandler] = Handler
    ) -> None:
        """`cuts` has the bytes after which the next body of a path breaks off."""
        super().__init__(("127.0.0.1", 0), handler)
        self.folder, self.cuts, self.url = folder.resolve(), dict(cuts or {}), f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    with site:
        thread = threading.Thread(target=site.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()
