"""One file from one address onto the local disk, resumed where an earlier try was cut off.

A partial file is continued only if the server still has the same version of it (If-Range with its ETag or date); what
arrives is complete only if it is as long as the server said.
"""

import errno
import fcntl
import http.client
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from typing import Any, BinaryIO

USER_AGENT = "xmodal/0.1"
TIMEOUT_SECONDS = 30.0
BLOCK = 2**20
OURS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)  # our disk's fault, never a ledger row


class Failed(Exception):
    """Expected trouble with one file: its class, and a reason for a person."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind, self.reason = kind, reason[:200]

    @property
    def transient(self) -> bool:
        return self.kind in {"timeout", "dns", "connection", "truncated", "http_429"} or self.kind.startswith("http_5")


def download(url: str, partial: str) -> None:
    """Afterwards the whole file lies at `partial`; after a failure, as much of it as came."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise Failed("bad_url", f"{url} is neither http nor https")
    os.makedirs(os.path.dirname(partial), exist_ok=True)
    with open(partial, "ab") as file:
        _lock(file, url)
        try:
            _receive(url, file, f"{partial}.version")
        except urllib.error.HTTPError as error:
            with error:
                raise Failed(f"http_{error.code}", f"{url} answers {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _failure(url, error) from error
    with suppress(FileNotFoundError):
        os.unlink(f"{partial}.version")


def _lock(file: BinaryIO, url: str) -> None:
    """Two processes that append to one partial file would mix their bytes."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed("busy", f"another process is downloading {url}") from None


def _receive(url: str, file: BinaryIO, version_file: str) -> None:
    have = file.tell()
    with _request(url, have, _read_text(version_file)) as answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
            file.truncate(0)
        _write_text(version_file, answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
        _copy(answer, file)
        length = answer.headers.get("Content-Length")
        if length is not None and file.tell() - have < int(length):
            raise Failed("truncated", f"{url} ended after {file.tell()} of {have + int(length)} bytes")


def _request(url: str, have: int, version: str) -> Any:
    headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    if have and version:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)


def _copy(answer: Any, file: BinaryIO) -> None:
    try:
        while block := answer.read(BLOCK):
            file.write(block)
    except http.client.IncompleteRead as error:
        file.write(error.partial)
    file.flush()


def _failure(url: str, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno in OURS:
        return error
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    kinds = {TimeoutError: "timeout", socket.gaierror: "dns", ssl.SSLError: "tls"}
    kind = next((name for type_, name in kinds.items() if isinstance(cause, type_)), "connection")
    return Failed(kind, f"{url}: {cause}")


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="latin-1") as file:
        file.write(text)
