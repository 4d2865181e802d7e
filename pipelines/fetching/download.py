"""One file from one address onto the local disk.

A partial file is continued if the server still has the same version of it (If-Range with its ETag or date).
"""

import errno
import fcntl
import http.client
import os
import re
import socket
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

USER_AGENT = "xmodal/0.1"
TIMEOUT_SECONDS = 30.0
BLOCK = 2**20
OURS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)  # our disk's fault, never a ledger row
PASSING = {"timeout", "dns", "connection", "truncated", "http_408", "http_429"}
SAFE = "/%:@!$&'()*+,;=~"  # as they are in addresses
KINDS = {TimeoutError: "timeout", socket.gaierror: "dns", ssl.SSLError: "tls", ValueError: "bad_url"}


class Failed(Exception):
    """Expected trouble with one file: its class, and a reason for a person."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind, self.reason = kind, reason[:200]


def may_pass(kind: str) -> bool:
    return kind in PASSING or kind.startswith("http_5")


@contextmanager
def downloaded(url: str, partial: str) -> Iterator[str]:
    """Gives the whole file until the context ends; after a failure `partial` keeps what came."""
    address = _quoted(url)
    os.makedirs(os.path.dirname(partial), exist_ok=True)
    (file, path), whole = _claim(partial), False
    with file:
        try:
            _receive_or_fail(address, file, Path(f"{path}.version"))
            whole = True
            yield path
        finally:  # while it is locked: nobody may take a finished file for one to continue
            for name in (path, f"{path}.version") if whole or path != partial else ():
                Path(name).unlink(missing_ok=True)


def _claim(partial: str) -> tuple[BinaryIO, str]:
    """The partial file, locked; a new one if another process is at work on it."""
    file = open(partial, "ab")  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # another process may have finished and unlinked it
        if os.path.samestat(os.fstat(file.fileno()), os.stat(partial)):
            return file, partial
    except (BlockingIOError, FileNotFoundError):
        pass
    file.close()
    own = f"{partial}-{uuid.uuid4().hex[:12]}"
    return open(own, "xb"), own


def _quoted(url: str) -> str:
    """Quotes an address as browsers do; what is quoted already stays."""
    if url.startswith("data:"):  # its own content
        return url
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
    except (ValueError, UnicodeError) as error:
        raise Failed("bad_url", f"{url}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Failed("bad_url", f"{url} is neither http nor https")
    path = quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", parts.path), SAFE)
    place = parts.netloc if parts.netloc.isascii() else host + (f":{parts.port}" if parts.port else "")
    return urlunsplit((parts.scheme, place, path, quote(parts.query, f"{SAFE}?"), ""))


def _receive_or_fail(url: str, file: BinaryIO, version: Path) -> None:
    try:
        _receive(url, file, version)
    except HTTPError as error:
        with error:
            raise Failed(f"http_{error.code}", f"{url} answers {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno in OURS:
            raise
        raise _failure(url, error) from error


def _failure(url: str, error: Exception) -> Failed:  # a local of its raiser would keep the error's socket open
    cause = error.reason if isinstance(error, URLError) else error
    kind = next((kind for error_type, kind in KINDS.items() if isinstance(cause, error_type)), "connection")
    return Failed(kind, f"{url}: {cause}")


def _receive(url: str, file: BinaryIO, version: Path) -> None:
    have = file.tell()
    answer, continues = _answer(url, have, version.read_text("latin-1") if version.exists() else "")
    with answer:
        if not continues:
            have = 0
            file.truncate(0)
            file.seek(0)
        version.write_text(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "", "latin-1")
        try:
            while block := answer.read(BLOCK):
                file.write(block)
        except http.client.IncompleteRead as error:
            file.write(error.partial)
            raise Failed("truncated", f"{url} ended in the middle of a chunk") from None
        finally:
            file.flush()
        length = answer.headers.get("Content-Length")
        if length is not None and file.tell() - have < int(length):
            raise Failed("truncated", f"{url} ended after {file.tell():,} of {have + int(length):,} bytes")


def _answer(url: str, have: int, version: str) -> tuple[Any, bool]:
    """The server's answer, and whether it continues what we have."""
    if have and version:
        try:
            answer = _request(url, {"Range": f"bytes={have}-", "If-Range": version})
        except HTTPError as error:
            if error.code != 416:
                raise
            error.close()
        else:
            if answer.status != 206:
                return answer, False
            if answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                return answer, True
            answer.close()
    answer = _request(url, {})
    if answer.status == 206:
        answer.close()
        raise Failed("bad_range", f"{url} answers with a part that was not asked for")
    return answer, False


def _request(url: str, headers: dict[str, str]) -> Any:
    always = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    return urlopen(Request(url, headers=always | headers), timeout=TIMEOUT_SECONDS)
