"""The loopback server: files and ranges as HTTP has them, misbehaviour as ordered, and a log of what was asked."""

import http.client
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.misbehaving import Behaviour, Server, serve

CONTENT = bytes(range(256)) * 1000
Answer = tuple[int, Mapping[str, str], bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "zips").mkdir(parents=True)
    (site / "zips" / "a b.zip").write_bytes(CONTENT)
    (site / "empty").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"outside")
    return site


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serve(folder) as running:
        yield running


def test_a_file_is_served_whole(server: Server) -> None:
    status, headers, body = get(f"{server.url}/zips/a%20b.zip")
    assert (status, body) == (200, CONTENT)
    assert headers["Accept-Ranges"] == "bytes"
    assert get(f"{server.url}/empty")[2] == b""


@pytest.mark.parametrize(
    ("asked", "expected", "shown"),
    [
        ("bytes=0-", CONTENT, "bytes 0-255999/256000"),
        ("bytes=1000-", CONTENT[1000:], "bytes 1000-255999/256000"),
        ("bytes=255998-", CONTENT[-2:], "bytes 255998-255999/256000"),
    ],
)
def test_the_end_of_a_file_is_served_as_such(server: Server, asked: str, expected: bytes, shown: str) -> None:
    status, headers, body = get(f"{server.url}/zips/a%20b.zip", Range=asked)
    assert (status, headers["Content-Range"], body) == (206, shown, expected)


@pytest.mark.parametrize("asked", ["bytes=256000-", "bytes=999999-"])
def test_a_range_beyond_the_end_is_refused(server: Server, asked: str) -> None:
    status, headers, _ = get(f"{server.url}/zips/a%20b.zip", Range=asked)
    assert (status, headers["Content-Range"]) == (416, "bytes */256000")


@pytest.mark.parametrize("asked", ["bytes=5-9", "bytes=-3", "bytes=-", "bytes=0-1,4-5", "lines=0-5", "bytes"])
def test_another_range_is_ignored(server: Server, asked: str) -> None:
    assert get(f"{server.url}/zips/a%20b.zip", Range=asked)[::2] == (200, CONTENT)


def test_a_file_that_changed_is_not_continued(folder: Path) -> None:
    with serve(folder, {"zips/a b.zip": [Behaviour(), Behaviour(), Behaviour(etag='"new"')]}) as server:
        url = f"{server.url}/zips/a%20b.zip"
        etag = get(url)[1]["ETag"]
        assert get(url, Range="bytes=1-", **{"If-Range": etag})[0] == 206
        status, headers, body = get(url, Range="bytes=1-", **{"If-Range": etag})
        assert (status, headers["ETag"], body) == (200, '"new"', CONTENT)


@pytest.mark.parametrize("path", ["nothing", "zips", "", "../secret", "zips/../../secret", "..%2fsecret"])
def test_what_is_no_file_of_the_folder_is_not_found(server: Server, path: str) -> None:
    address = http.client.HTTPConnection(server.url.removeprefix("http://"))
    address.request("GET", f"/{path}")
    assert address.getresponse().status == 404
    address.close()


def test_misbehaviour_is_used_up_one_request_at_a_time(folder: Path) -> None:
    orders = [
        Behaviour(status=503, headers=(("Retry-After", "7"),)),
        Behaviour(status=404),
        Behaviour(corrupt=True),
        Behaviour(ranges=False),
    ]
    with serve(folder, {"zips/a b.zip": orders}) as server:
        url = f"{server.url}/zips/a%20b.zip"
        status, headers, body = get(url)
        assert (status, headers["Retry-After"], body) == (503, "7", b"")
        assert get(url)[0] == 404
        status, _, body = get(url)
        assert (status, len(body)) == (200, len(CONTENT))
        assert body != CONTENT
        assert get(url, Range="bytes=9-")[::2] == (200, CONTENT)
        assert get(url, Range="bytes=9-")[::2] == (206, CONTENT[9:])
        assert get(f"{server.url}/empty")[0] == 200


@pytest.mark.parametrize("start", [0, 100])
def test_a_body_is_cut_where_ordered(folder: Path, start: int) -> None:
    with serve(folder, {"zips/a b.zip": [Behaviour(cut_after=70_000)]}) as server:
        with urlopen(Request(f"{server.url}/zips/a%20b.zip", headers={"Range": f"bytes={start}-"})) as answer:
            assert answer.headers["Content-Length"] == str(256_000 - start)
            with pytest.raises(http.client.IncompleteRead) as caught:
                answer.read()
        assert caught.value.partial == CONTENT[start : start + 70_000]


def test_requests_are_logged_in_order(server: Server) -> None:
    get(f"{server.url}/empty")
    get(f"{server.url}/zips/a%20b.zip?x=1", Range="bytes=5-")
    get(f"{server.url}/nothing")
    assert server.requests == [("empty", None), ("zips/a b.zip", "bytes=5-"), ("nothing", None)]


def test_one_slow_reader_does_not_hold_up_others(server: Server) -> None:
    with urlopen(f"{server.url}/zips/a%20b.zip") as slow:
        slow.read(1)
        assert get(f"{server.url}/zips/a%20b.zip")[2] == CONTENT


def test_the_server_is_gone_afterwards(folder: Path) -> None:
    with serve(folder) as server:
        pass
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{server.url}/empty")


def get(url: str, **headers: str) -> Answer:
    try:
        with urlopen(Request(url, headers=headers)) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()
