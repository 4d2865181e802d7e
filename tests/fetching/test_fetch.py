"""Fetching: what a publisher's server, a raw folder and a disk can do to a file, and what the ledger says of it."""

import errno
import hashlib
import io
import os
import re
import resource
import socket
import threading
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.download import downloaded
from pipelines.fetching.fetcher import RawFolder, fetch, unpacked
from pipelines.fetching.ledger import Ledger, State
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.misbehaving import Behaviour, Request, Server, serve
from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.raw_files import raw_of
from xmodal.root.sealed_sets import read_lock
from xmodal.root.storage import open_storage

BODY = bytes(range(256)) * 800  # 204,800 bytes
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.fetching.fetcher.PAUSES_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")


@contextmanager
def publisher(tmp_path: Path, *behaviours: Behaviour, path: str = "a.bin") -> Iterator[Server]:
    """A server that has BODY as a.bin and misbehaves so, request by request."""
    folder = tmp_path / "published"
    folder.mkdir(exist_ok=True)
    (folder / "a.bin").write_bytes(BODY)
    with serve(folder, {path: behaviours}) as server:
        yield server


@contextmanager
def scripted(*answers: bytes, hold: threading.Event | None = None) -> Iterator[str]:
    """An address that answers each connection with these bytes, whatever is asked, once `hold` is set; and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server, answers, hold), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _answer(server: socket.socket, answers: Sequence[bytes], hold: threading.Event | None) -> None:
    for answer in answers:
        try:
            connection, _ = server.accept()
        except OSError:  # nobody asks any more
            return
        with connection:
            connection.recv(65_536)
            if hold:
                hold.wait(5)
            connection.sendall(answer)


def fetched(root: str, *sources: Source, raw: Path | None = None) -> dict[str, State]:
    """What the ledger says after one more fetch of these."""
    storage = open_storage(root)
    folder = RawFolder(raw, list(sources)) if raw else None
    ledger = Ledger(storage, "annotations", "toy")
    fetch(ledger, list(sources), folder, serial, ProgressLine(quiet=True))
    return {state.path: state for state in ledger.states()}


def blobs(root: str) -> list[bytes]:
    """The bytes of every blob, each checked against its name."""
    files = [path for path in Path(root, "blobs").rglob("*") if path.is_file()]
    found = {path.name: path.read_bytes() for path in files}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in found.items()} == {name: name for name in found}
    return list(found.values())


def leftovers(root: str) -> list[str]:
    """Partial downloads."""
    return [path.name for path in Path(root, "_runs/partial").glob("*")]


def toy(*sources: Source) -> Corpus:
    return Corpus("toy", "http://127.0.0.1", "CC0-1.0", "toy", sources, parse=lambda raw: iter(()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------------------------------------ the raw folder


@pytest.mark.parametrize("place", ["train/a.bin", "a.bin"])
def test_a_file_at_hand_is_linked_from_its_path_or_its_bare_name_and_never_asked_for(
    place: str, root: str, tmp_path: Path
) -> None:
    raw = tmp_path / "raw"
    (raw / place).parent.mkdir(parents=True)
    (raw / place).write_bytes(BODY)
    with publisher(tmp_path) as server:
        states = fetched(root, Source("train/a.bin", f"{server.url}/a.bin", bytes=len(BODY), sha256=SHA256), raw=raw)
    state = states["train/a.bin"]
    assert (state.status, state.size, state.sha256, state.attempts) == ("local", len(BODY), SHA256, 1)
    assert server.requests == []
    assert os.path.samefile(raw / place, Path(root, "blobs", SHA256[:2], SHA256))


def test_a_file_under_its_whole_path_goes_before_one_of_the_same_name(root: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (raw / "val").mkdir(parents=True)
    (raw / "val/a.txt").write_bytes(b"of val")
    (raw / "a.txt").write_bytes(b"of nobody knows what")
    assert fetched(root, Source("val/a.txt", how="ask"), raw=raw)["val/a.txt"].size == len(b"of val")


def test_a_bare_name_that_two_files_share_is_not_taken_for_either(root: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.txt").write_bytes(b"of train or of val?")
    states = fetched(root, Source("train/a.txt", how="ask"), Source("val/a.txt", how="ask"), raw=raw)
    assert {state.status for state in states.values()} == {"failed"}


def test_where_whole_paths_count_neither_a_bare_name_nor_a_folder_of_an_archive_is_taken(tmp_path: Path) -> None:
    wanted = [Source("cats/1.jpg", how="ask"), Source("2.jpg", how="ask"), Source("cats/3.jpg", how="ask")]
    (tmp_path / "1.jpg").write_bytes(b"a dog")
    with zipfile.ZipFile(tmp_path / "holiday.zip", "w") as archive:
        for name in ("1.jpg", "dogs/2.jpg", "cats/3.jpg"):
            archive.writestr(name, name)

    def found(whole_paths: bool) -> tuple[set[str], set[str]]:
        raw = RawFolder(tmp_path, wanted, whole_paths=whole_paths)
        inside = unpacked(raw, wanted, print, tmp_path / f"into-{whole_paths}")
        return {s.path for s in wanted if raw.find(s)}, {source.path for source in inside}

    assert found(whole_paths=True) == (set(), {"cats/3.jpg"})
    assert found(whole_paths=False) == ({"cats/1.jpg"}, {"2.jpg", "cats/3.jpg"})


def test_a_linked_raw_file_is_followed(root: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (tmp_path / "elsewhere").write_bytes(BODY)
    (raw / "a.bin").symlink_to(tmp_path / "elsewhere")
    assert fetched(root, Source("a.bin", how="ask"), raw=raw)["a.bin"].status == "local"
    (blob,) = Path(root, "blobs").rglob(SHA256)
    assert not blob.is_symlink()


def test_what_the_raw_folder_lacks_is_downloaded(root: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (raw / "a.bin").mkdir(parents=True)  # a folder of that name is no file
    with publisher(tmp_path) as server:
        assert fetched(root, Source("a.bin", f"{server.url}/a.bin"), raw=raw)["a.bin"].status == "ok"


@pytest.mark.parametrize(("pins", "kind"), [({"bytes": 7}, "size"), ({"sha256": "0" * 64}, "checksum")])
def test_a_wrong_file_at_hand_is_named_and_not_taken(
    pins: dict[str, Any], kind: str, root: str, tmp_path: Path
) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.bin").write_bytes(BODY)
    state = fetched(root, Source("a.bin", how="ask", **pins), raw=raw)["a.bin"]
    assert (state.status, state.kind) == ("failed", kind)
    assert "a.bin" in state.reason
    assert blobs(root) == []
    assert (raw / "a.bin").read_bytes() == BODY


@pytest.mark.parametrize("damage", [b"no archive", b"PK\x05\x06"])
def test_an_archive_that_is_damaged_ends_nothing_where_its_files_are_elsewhere(
    damage: bytes, root: str, tmp_path: Path
) -> None:
    raw, said = tmp_path / "raw", io.StringIO()
    raw.mkdir()
    (raw / "holiday.zip").write_bytes(damage)
    with zipfile.ZipFile(raw / "work.zip", "w") as archive:
        archive.writestr("in/b.txt", BODY)
    with publisher(tmp_path) as server:
        corpus = toy(Source("a.bin", f"{server.url}/a.bin"), Source("b.txt", how="ask"))
        sealed = CorpusBuild(BuildOptions(open_storage(root), raw=raw, progress=ProgressLine(said)), corpus).build(
            "sources"
        )
    assert sealed.totals["counts"] == {"absent": 0, "present": 2}
    assert re.search(r"in the raw folder, holiday\.zip is damaged.*looked for elsewhere", said.getvalue())


def test_an_archive_that_is_damaged_is_to_be_replaced_where_a_file_may_be_only_there(root: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/holiday.zip").write_bytes(b"no archive")
    site = BuildOptions(open_storage(root), raw=tmp_path / "raw")
    with pytest.raises(
        UserError, match=r"holiday\.zip is damaged.* 1 files without an address may be in it, such as b"
    ):
        CorpusBuild(site, toy(Source("b.txt", how="ask"))).build("sources")


def test_the_advice_on_missing_files_is_what_helps(root: str, tmp_path: Path) -> None:
    """Trying again helps against a busy server, but brings nothing that is to be got by hand or is gone."""
    raw = tmp_path / "raw"
    raw.mkdir()
    with zipfile.ZipFile(raw / "work.zip", "w") as archive:
        archive.writestr("else.txt", BODY)
    by_hand, site = Source("b.txt", how="ask by e-mail"), BuildOptions(open_storage(root))
    with pytest.raises(UserError, match=r"ask by e-mail\)\. Put b\.txt into a folder and add --raw FOLDER$"):
        CorpusBuild(site, toy(by_hand)).build("sources")
    neither = rf"Put b\.txt into the folder {raw}: neither it nor an archive in it has what was published$"
    with pytest.raises(UserError, match=neither):
        CorpusBuild(replace(site, raw=raw), toy(by_hand)).build("sources")
    with publisher(tmp_path, *[Behaviour(status=503)] * 3) as server:
        with pytest.raises(UserError, match=r"http_404.*\. Put gone\.bin into"):
            CorpusBuild(site, toy(Source("gone.bin", f"{server.url}/gone.bin"))).build("sources")
        with pytest.raises(
            UserError, match=r"http_503.*Run the same command again, or put a\.bin into a folder and add"
        ):
            CorpusBuild(site, toy(Source("a.bin", f"{server.url}/a.bin"))).build("sources")


# ----------------------------------------------------------------------------------------------------------- downloads


def test_a_download_is_a_blob_and_a_row(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as server:
        state = fetched(root, Source("a.bin", f"{server.url}/a.bin", bytes=len(BODY), sha256=SHA256))["a.bin"]
    assert (state.status, state.size, state.sha256, state.attempts, state.kind) == ("ok", len(BODY), SHA256, 1, "")
    assert server.requests == [Request("a.bin", None)]
    assert blobs(root) == [BODY]
    assert leftovers(root) == []


def test_equal_files_are_one_blob(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as server:
        fetched(root, *(Source(name, f"{server.url}/a.bin") for name in ("one.bin", "two.bin")))
    assert blobs(root) == [BODY]


def test_an_empty_file_is_a_file(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as server:
        (tmp_path / "published/empty.txt").touch()
        site = BuildOptions(open_storage(root))
        sealed = CorpusBuild(site, toy(Source("empty.txt", f"{server.url}/empty.txt", bytes=0))).build("sources")
    assert [(locked.path, locked.size) for locked in read_lock(sealed)] == [("empty.txt", 0)]
    with raw_of(sealed).open("empty.txt") as file:
        assert file.read() == b""


def test_a_redirect_is_followed(root: str, tmp_path: Path) -> None:
    moved = Behaviour(status=302, headers=(("Location", "/a.bin"),))
    with publisher(tmp_path, moved, path="old.bin") as server:
        assert fetched(root, Source("a.bin", f"{server.url}/old.bin"))["a.bin"].sha256 == SHA256
    assert [request.path for request in server.requests] == ["old.bin", "a.bin"]


@pytest.mark.parametrize("target", ["/old.bin", "file:///etc/hostname", "ftp://127.0.0.1/a", "http://[::1/a"])
def test_a_redirect_to_nowhere_is_a_row(target: str, root: str, tmp_path: Path) -> None:
    moved = Behaviour(status=302, headers=(("Location", target),))
    with publisher(tmp_path, *[moved] * 60, path="old.bin") as server:
        assert fetched(root, Source("a.bin", f"{server.url}/old.bin"))["a.bin"].status == "failed"
    assert blobs(root) == []


@pytest.mark.parametrize("name", ["two words.jpg", "Übung.jpg", "50%.jpg", "a+b&c.jpg"])
def test_addresses_work_as_publishers_write_them(name: str, root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as server:
        (tmp_path / "published" / name).write_bytes(BODY)
        assert fetched(root, Source("a.jpg", f"{server.url}/{name}"))["a.jpg"].status == "ok"


@pytest.mark.parametrize(
    "url", ["a.jpg", "ftp://127.0.0.1/a.jpg", "file:///etc/hostname", "http://[::1/a.jpg", "http://"]
)
def test_what_is_no_web_address_is_a_row_that_is_not_tried_again(url: str, root: str) -> None:
    state = fetched(root, Source("a.jpg", url))["a.jpg"]
    assert (state.status, state.kind, state.attempts) == ("failed", "bad_url", 1)


# -------------------------------------------------------------------------------------------------------------- resume


def test_a_cut_download_is_continued_where_it_ended(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path, Behaviour(cut_after=70_000)) as server:
        state = fetched(root, Source("a.bin", f"{server.url}/a.bin"))["a.bin"]
    assert server.requests == [Request("a.bin", None), Request("a.bin", "bytes=70000-")]
    assert (state.status, state.attempts, state.sha256) == ("ok", 2, SHA256)
    assert leftovers(root) == []


def test_a_later_run_continues_what_an_earlier_one_left(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path, *[Behaviour(cut_after=30_000)] * 3) as server:
        source = Source("a.bin", f"{server.url}/a.bin")
        state = fetched(root, source)["a.bin"]
        assert (state.status, state.kind, state.attempts) == ("failed", "truncated", 3)
        assert fetched(root, source)["a.bin"].sha256 == SHA256
    assert [request.range for request in server.requests] == [None, "bytes=30000-", "bytes=60000-", "bytes=90000-"]


def test_another_version_on_the_server_is_started_from_zero(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path, Behaviour(cut_after=70_000, corrupt=True, etag='"old"')) as server:
        state = fetched(root, Source("a.bin", f"{server.url}/a.bin"))["a.bin"]
    assert server.requests[1].range == "bytes=70000-"
    assert state.sha256 == SHA256
    assert blobs(root) == [BODY]


def test_a_server_without_ranges_is_started_from_zero(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path, Behaviour(cut_after=70_000), Behaviour(ranges=False)) as server:
        assert fetched(root, Source("a.bin", f"{server.url}/a.bin"))["a.bin"].sha256 == SHA256


def test_a_start_from_zero_that_is_cut_at_once_is_not_a_whole_file(root: str) -> None:
    old = b'HTTP/1.1 200 OK\r\nETag: "old"\r\nContent-Length: 9\r\n\r\n12345678'
    new = b'HTTP/1.1 200 OK\r\nETag: "new"\r\nContent-Length: 4\r\n\r\n'
    with scripted(old, new, new + b"body") as url:
        fetched(root, Source("a.bin", f"{url}/a.bin"))
    assert blobs(root) == [b"body"]


def test_a_partial_file_that_was_whole_when_its_driver_was_killed_is_no_dead_end(tmp_path: Path) -> None:
    """Asked for what follows the last byte, a server answers 416."""
    partial = tmp_path / "partial"
    with publisher(tmp_path) as server:
        with urllib.request.urlopen(f"{server.url}/a.bin") as answer:
            partial.write_bytes(answer.read())
            Path(f"{partial}.version").write_text(answer.headers["ETag"])
        with downloaded(f"{server.url}/a.bin", str(partial)) as file:
            assert Path(file).read_bytes() == BODY
    assert not partial.exists()


def test_a_chunked_body_that_is_cut_is_not_a_whole_file(root: str) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + b"x" * 0x400 + b"\r\n400\r\nxxx"
    with scripted(*[answer] * 3) as url:
        state = fetched(root, Source("a.bin", f"{url}/a.bin"))["a.bin"]
    assert (state.status, state.kind) == ("failed", "truncated")
    assert blobs(root) == []


def test_a_part_that_was_not_asked_for_is_not_a_whole_file(root: str) -> None:
    cut = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 9\r\n\r\n1234'
    tail = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 7-8/9\r\nContent-Length: 2\r\n\r\n89"
    with scripted(cut, tail, tail) as url:
        assert fetched(root, Source("a.bin", f"{url}/a.bin"))["a.bin"].status == "failed"
    assert blobs(root) == []


# ------------------------------------------------------------------------------------------------------------ failures


def test_a_missing_file_is_asked_for_once_and_is_a_row(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as server:
        state = fetched(root, Source("gone.bin", f"{server.url}/gone.bin"))["gone.bin"]
    assert (state.status, state.kind, state.attempts) == ("failed", "http_404", 1)
    assert "404" in state.reason
    assert f"{server.url}/gone.bin" in state.reason
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again_and_the_attempts_are_counted(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path, Behaviour(status=503), Behaviour(status=429)) as server:
        state = fetched(root, Source("a.bin", f"{server.url}/a.bin"))["a.bin"]
    assert (state.status, state.attempts, state.sha256) == ("ok", 3, SHA256)


def test_a_server_that_stays_busy_is_given_up_for_now(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path, *[Behaviour(status=503)] * 9) as server:
        state = fetched(root, Source("a.bin", f"{server.url}/a.bin"))["a.bin"]
    assert (state.status, state.kind, state.attempts, len(server.requests)) == ("failed", "http_503", 3, 3)


def test_a_dead_port_is_a_row_after_three_attempts(root: str) -> None:
    state = fetched(root, Source("a.bin", f"http://127.0.0.1:{free_port()}/a.bin"))["a.bin"]
    assert (state.status, state.kind, state.attempts) == ("failed", "connection", 3)


def test_a_server_that_never_answers_is_a_timeout(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.fetching.download.TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        state = fetched(root, Source("a.bin", f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin"))["a.bin"]
    assert (state.status, state.kind, state.attempts) == ("failed", "timeout", 3)


def test_a_server_that_stalls_in_the_body_is_a_timeout(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.fetching.download.TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = Source("a.bin", f"http://127.0.0.1:{server.getsockname()[1]}/a.bin")
        with ThreadPoolExecutor(1) as pool:
            states = pool.submit(fetched, root, source)
            held = []
            for _ in range(3):
                connection, _ = server.accept()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123")
                held.append(connection)
            assert states.result(timeout=5)["a.bin"].kind == "timeout"
            for connection in held:
                connection.close()


def test_what_is_no_http_is_a_row(root: str) -> None:
    with scripted(*[b"SSH-2.0-OpenSSH_9.6\r\n"] * 3) as url:
        assert fetched(root, Source("a.bin", f"{url}/a.bin"))["a.bin"].kind == "connection"


@pytest.mark.parametrize(
    ("pins", "kind"), [({"bytes": 7}, "size"), ({"sha256": "0" * 64, "bytes": len(BODY)}, "checksum")]
)
def test_wrong_bytes_are_never_a_blob_never_sealed_and_the_build_names_the_file(
    pins: dict[str, Any], kind: str, root: str, tmp_path: Path
) -> None:
    with publisher(tmp_path) as server:
        corpus = toy(Source("good.bin", f"{server.url}/a.bin"), Source("bad/a.bin", f"{server.url}/a.bin?", **pins))
        with pytest.raises(UserError, match=rf"1 of 2 files are missing: bad/a\.bin \({kind}") as trouble:
            CorpusBuild(BuildOptions(open_storage(root)), corpus).build("sources")
    assert str(pins["sha256"] if kind == "checksum" else pins["bytes"]) in str(trouble.value)
    assert not Path(root, "sources").exists()
    assert leftovers(root) == []


def test_a_damaged_download_is_not_continued_but_begun_again(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path, Behaviour(corrupt=True)) as server:
        source = Source("a.bin", f"{server.url}/a.bin", sha256=SHA256)
        assert fetched(root, source)["a.bin"].kind == "checksum"
        assert blobs(root) == []
        assert fetched(root, source)["a.bin"].status == "ok"
    assert [request.range for request in server.requests] == [None, None]


def test_a_file_to_be_got_by_hand_says_how(root: str, tmp_path: Path) -> None:
    corpus = toy(Source("form.zip", how="sign the form at http://127.0.0.1/form"))
    site = BuildOptions(open_storage(root))
    with pytest.raises(UserError, match=r"form\.zip \(by_hand: sign the form at http://127\.0\.0\.1/form\).*--raw"):
        CorpusBuild(site, corpus).build("sources")
    (tmp_path / "form.zip").write_bytes(BODY)
    assert CorpusBuild(replace(site, raw=tmp_path), corpus).build("sources").totals["counts"] == {
        "absent": 0,
        "present": 1,
    }


# ------------------------------------------------------------------------------------------------------------- mirrors


@pytest.mark.parametrize(
    "trouble",
    [Behaviour(status=404), Behaviour(status=503), Behaviour(corrupt=True), Behaviour(cut_after=100)],
    ids=["gone", "busy", "corrupt", "cut"],
)
def test_a_mirror_is_asked_when_the_first_address_fails_in_whatever_way(
    trouble: Behaviour, root: str, tmp_path: Path
) -> None:
    with publisher(tmp_path, trouble) as first, publisher(tmp_path) as mirror:
        source = Source("a.bin", f"{first.url}/a.bin", mirrors=(f"{mirror.url}/a.bin",), sha256=SHA256)
        assert fetched(root, source)["a.bin"].status == "ok"
    assert len(first.requests) == 1
    assert mirror.requests == [Request("a.bin", None)]


def test_a_mirror_is_asked_when_the_first_address_is_dead(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as mirror:
        dead = f"http://127.0.0.1:{free_port()}/a.bin"
        assert fetched(root, Source("a.bin", dead, mirrors=(f"{mirror.url}/a.bin",)))["a.bin"].status == "ok"


def test_every_mirror_is_asked_before_a_file_is_given_up(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as server:
        dead = tuple(f"http://127.0.0.1:{free_port()}/a.bin" for _ in range(4))
        source = Source("a.bin", dead[0], mirrors=(*dead[1:], f"{server.url}/a.bin"))
        assert fetched(root, source)["a.bin"].status == "ok"


# --------------------------------------------------------------------------------------------- our disk, other drivers


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_is_an_error_of_ours_and_not_a_row(root: str, tmp_path: Path) -> None:
    with publisher(tmp_path) as server:
        source = Source("a.bin", f"{server.url}/a.bin", sha256=SHA256)
        with files_of_at_most(100_000), pytest.raises(OSError, match="too large") as error:
            fetched(root, source)
        assert error.value.errno == errno.EFBIG
        assert list(Ledger(open_storage(root), "annotations", "toy").states()) == []
        assert blobs(root) == []
        assert fetched(root, source)["a.bin"].status == "ok"


def test_several_fetches_of_the_same_files_at_once_do_no_harm(root: str, tmp_path: Path) -> None:
    published = {f"{number}.bin": bytes([number]) * 3_000_000 for number in range(8)}
    with publisher(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        for name, data in published.items():
            (tmp_path / "published" / name).write_bytes(data)
        sources = [Source(name, f"{server.url}/{name}") for name in published]
        for result in [pool.submit(fetched, root, *sources) for _ in range(4)]:
            result.result()
        states = {state.path: state for state in Ledger(open_storage(root), "annotations", "toy").states()}
    assert {path: state.sha256 for path, state in states.items()} == {
        path: hashlib.sha256(data).hexdigest() for path, data in published.items()
    }
    assert sorted(blobs(root)) == sorted(published.values())
    assert leftovers(root) == []


def test_a_file_that_somebody_else_is_downloading_is_not_given_up(root: str) -> None:
    answer, hold = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", threading.Event()
    with scripted(*[answer] * 4, hold=hold) as url, ThreadPoolExecutor(2) as pool:
        both = [pool.submit(fetched, root, Source("a.bin", f"{url}/a.bin")) for _ in range(2)]
        threading.Timer(0.3, hold.set).start()
        states = [result.result()["a.bin"] for result in both]
    assert [state.status for state in states] == ["ok", "ok"]
    assert blobs(root) == [b"body"]
