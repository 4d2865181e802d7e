"""Many small files at hand: taken together, each with its own row, and durable before the ledger says so."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.building import serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.fetcher import RawFolder, fetch
from pipelines.fetching.ledger import Ledger, State
from xmodal.corpora import Source
from xmodal.root.sealed_sets import blob_key
from xmodal.root.storage import LocalStorage, open_storage

FILES = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of their own but for two with the same bytes, and a link to one of them."""
    (tmp_path / "raw/sub").mkdir(parents=True)
    for number in range(FILES):
        (tmp_path / f"raw/sub/{number:03d}.bin").write_bytes(b"%d" % max(number, 1))
    (tmp_path / "raw/link.bin").symlink_to("sub/007.bin")
    return tmp_path / "raw"


def take(root: str, folder: Path, *more: Source) -> dict[str, State]:
    ledger = Ledger(open_storage(root), "media", "toy")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.bin"))
    sources = [*(Source(name, how="ask", part="media") for name in names), *more]
    fetch(ledger, sources, RawFolder(folder, sources, whole_paths=True), serial, ProgressLine(quiet=True))
    return ledger.states_by_path()


def test_every_file_has_its_bytes_and_its_row(any_root: str, folder: Path) -> None:
    wrong = Source("sub/001.bin!", how="ask", part="media", bytes=5)
    (folder / "sub/001.bin!").write_bytes(b"1234")
    states = take(any_root, folder, wrong, Source("gone.bin", how="ask", part="media"))
    assert {path: (state.kind, state.status) for path, state in states.items() if state.failed} == {
        "sub/001.bin!": ("size", "failed"),
        "gone.bin": ("by_hand", "failed"),
    }
    storage = open_storage(any_root)
    for path, state in states.items():
        if not state.failed:
            assert storage.read(blob_key(state.sha256)) == (folder / path).read_bytes()
            assert state.looks_like((folder / path).stat()), "a later build reads it again"
    assert len(states) == FILES + 3


def test_files_of_another_disk_are_copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link: Callable[..., None] = os.link

    def other_disk(source: str, target: str, **options: Any) -> None:
        if str(source).startswith(str(folder)):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", other_disk)
    root = tmp_path / "root"
    states = take(str(root), folder)
    (folder / "sub/005.bin").write_bytes(b"other")
    assert (root / blob_key(states["sub/005.bin"].sha256)).read_bytes() == b"5"
    assert hashlib.sha256(b"5").hexdigest() == states["sub/005.bin"].sha256


def test_no_row_is_written_before_the_files_are_durable(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, done = tmp_path / "root", list[str]()
    sync, add = LocalStorage._sync_disk, Ledger.add
    monkeypatch.setattr(LocalStorage, "_sync_disk", lambda self: (sync(self), done.append("durable")))
    monkeypatch.setattr(Ledger, "add", lambda self, attempts: (add(self, attempts), done.append("row")))
    take(str(root), folder)
    assert done
    assert done == ["durable", "row"] * (len(done) // 2)


def test_a_kill_between_files_and_rows_loses_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Ledger, attempts: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            take(str(tmp_path / "root"), folder)
    assert not any(state.failed for state in take(str(tmp_path / "root"), folder).values())
