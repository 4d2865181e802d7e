"""An HTTP server of a folder, for this machine only: whole files, ranges, and connections that break where asked."""

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

    do_HEAD = do_GET

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
        is_current = self.headers.get("If-Range", etag) == etag
        wanted = _range(self.headers.get("Range", ""), size) if is_current else None
        first, last = wanted or (0, size - 1)
        if wanted and first >= size:
            return self.head(416, {"Content-Range": f"bytes */{size}"})
        length = last - first + 1
        headers = {"Content-Length": str(length), "Accept-Ranges": "bytes", "ETag": etag}
        headers |= {"Content-Range": f"bytes {first}-{last}/{size}"} if wanted else {}
        self.head(206 if wanted else 200, headers)
        if self.command == "GET":
            sent = min(length, self.server.cuts.pop(self.asked, length))
            self.close_connection |= sent < length
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


def _range(header: str, size: int) -> tuple[int, int] | None:
    """First and last byte of `bytes=a-b`, `bytes=a-` or `bytes=-n`; None for anything else, which is ignored."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    first, last = match.groups() if match else ("", "")
    if first:
        end = min(int(last), size - 1) if last else size - 1
        return None if last and int(last) < int(first) else (int(first), end)
    if not last:
        return None
    return max(size - int(last), 0) if int(last) else size, size - 1
