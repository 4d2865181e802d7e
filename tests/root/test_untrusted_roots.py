"""Roots that somebody else wrote: nothing outside is read, written or deleted, and one bad output hides no other."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import xmodal
from pipelines.cli import main
from pipelines.engine.building import build
from pipelines.engine.commits import Commits
from tests.toy_stages import Letters, letters
from xmodal.errors import UserError
from xmodal.records.tables import read_columns
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output, find
from xmodal.root.sealed_sets import read_lock
from xmodal.root.selection import ancestor
from xmodal.root.storage import LocalStorage, open_storage

SECRET = b"nobody's business"
ESCAPES = ("../../../victim", "/victim", "data/../../../../victim", "..", "x/..", "data/./x", "", "a//b", "stage.json")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one good output, beside a file of somebody's."""
    (tmp_path / "victim").write_bytes(SECRET)
    build(letters(Letters(2)), open_storage(str(tmp_path / "root")))
    return tmp_path / "root"


def plant(root: Path, units: bytes = b"", stage: str = "records", **decides: Any) -> Path:
    """Writes an output by hand, with the right identity and checksums."""
    about = {"stage": stage, "version": 1, "config": {"corpus": "mine"}, "inputs": []} | decides
    identity = fingerprint(about)[:16]
    folder = root / stage / identity
    folder.mkdir(parents=True)
    (folder / "stage.json").write_text(json.dumps({"layout": 1, "identity": identity, **about}))
    (folder / "units.tsv").write_bytes(units)
    totals: dict[str, Any] = {"layout": 1, "units": 1, "files": 1, "bytes": 1, "counts": {}, "failures": {}}
    totals["units_sha256"] = hashlib.sha256(units).hexdigest()
    (folder / "complete.json").write_text(json.dumps(totals))
    return folder


def line(files: Mapping[str, Any], name: str = "u", **facts: Any) -> bytes:
    return f"{name}\t{json.dumps({'files': files, 'counts': {}} | facts)}\n".encode()


def file_of(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()


def look_everywhere(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the commands say that look at a whole root."""
    for command in ("status", "verify", "status"):
        assert main([command, "--root", str(root), "--json"]) in (0, 1)
    assert main(["verify", "--forget", "--root", str(root)]) in (0, 1)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.out + said.err


@pytest.mark.parametrize("name", ESCAPES)
def test_no_file_of_a_unit_leaves_its_output(root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(root, line({name: file_of(b"other bytes")}))
    with pytest.raises(UserError, match=r"units\.tsv has a line that xmodal does not write"):
        list(Output(open_storage(str(root)), f"records/{folder.name}").units())
    said = look_everywhere(root, capsys)
    assert folder.name in said
    assert (root.parent / "victim").read_bytes() == SECRET
    assert len(find(str(root), "letters")) == 1


@pytest.mark.parametrize(
    "units",
    [
        b"x\t[]\n",
        b"x\t" + b"[" * 100_000 + b"\n",
        b"no tab\n",
        b"\xff\t{}\n",
        line({"a": [-1, "0" * 64]}),
        line({"a": [1, "0" * 63]}),
        line({"a": ["1", "0" * 64]}),
        line({"a": 1}),
        line({}, counts=[]),
        line({}, counts={"rows": "3"}),
        line({}, failures=[["row", "kind"]]),
        line({}, failures=[["row", "kind", 3]]),
        line({}, key=["x"]),
        line({}, name="../u"),
    ],
)
def test_units_of_another_form_are_refused(root: Path, units: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(root, units)
    with pytest.raises(UserError, match="does not write"):
        list(Output(open_storage(str(root)), f"records/{folder.name}").units())
    look_everywhere(root, capsys)
    assert len(find(str(root), "letters")) == 1


@pytest.mark.parametrize(
    "locked",
    [
        {"bytes": 1, "path": "a", "sha256": "xx/../../../../victim"},
        {"bytes": 1, "path": "a", "sha256": "../../victim" + "0" * 52},
        {"bytes": 1, "path": "a", "sha256": 5},
        {"bytes": "1", "path": "a", "sha256": "0" * 64},
        {"bytes": 1, "path": None, "sha256": "0" * 64},
        {"bytes": 1},
        [],
        5,
    ],
)
def test_a_lock_names_checksums_alone(root: Path, locked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.dumps(locked).encode() + b"\n"
    config = {"name": "mine", "lock_sha256": hashlib.sha256(data).hexdigest()}
    folder = plant(root, line({"dataset.lock": file_of(data)}), "media", config=config)
    (folder / "dataset.lock").write_bytes(data)
    with pytest.raises(UserError, match=r"dataset\.lock has a line that xmodal does not write"):
        list(read_lock(Output(open_storage(str(root)), f"media/{folder.name}")))
    look_everywhere(root, capsys)
    assert (root.parent / "victim").read_bytes() == SECRET


def test_a_loose_record_publishes_nothing_elsewhere(root: Path) -> None:
    """An attempt's folder and its record, as a driver that was killed leaves them, with another name in it."""
    stage = letters(Letters(3))
    folder = root / stage.folder
    commits = folder / "_runs/commits/loose"
    commits.mkdir(parents=True)
    attempt = folder / "_runs/attempts/u-1"
    attempt.mkdir(parents=True)
    text = line({"../../../dropped": file_of(b"x")})
    digest = hashlib.sha256(text + b"u-1").hexdigest()[:16]
    (commits / "u").write_bytes(text + f"\tu-1 {digest}\n".encode())
    with pytest.raises(UserError, match="does not write"):
        Commits(open_storage(str(root)), stage.folder).adopt()
    assert not (root.parent / "dropped").exists()


def deep(file: Path) -> None:
    file.write_bytes(b'{"a":' * 100_000)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def elsewhere(file: Path) -> None:
    copy = file.parents[3] / "copy"
    file.rename(copy)
    file.symlink_to(copy)


def enormous(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(10 * 2**40)


def folder_of_that_name(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("spoil", [deep, pipe, endless, elsewhere, enormous, folder_of_that_name])
@pytest.mark.parametrize("name", ["stage.json", "complete.json", "units.tsv"])
def test_a_hostile_file_hides_no_other_output(
    root: Path, name: str, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(plant(root, stage="other") / name)
    look_everywhere(root, capsys)
    assert len(find(str(root), "letters")) == 1
    with pytest.raises(UserError, match=r"nothing|no 'records'|no corpus"):
        xmodal.open(str(root), "mine")


def test_a_link_within_a_root_leads_nowhere(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = root.parent / "other"
    folder = plant(other, line({"data": file_of(b"not these")}))
    (folder / "data").write_bytes(SECRET)
    (root / "records").symlink_to(other / "records")
    assert main(["verify", "--forget", "--root", str(root)]) == 1
    assert "is a link" in capsys.readouterr().err
    assert (folder / "data").read_bytes() == SECRET
    assert (folder / "complete.json").exists()


@pytest.mark.parametrize("key", ["../victim", "a/../../victim", "/etc/passwd", "a\0b"])
def test_no_key_leads_out_of_a_root(root: Path, key: str) -> None:
    storage = open_storage(str(root))
    for do in (storage.read, storage.size, storage.open, storage.names, storage.delete, storage.delete_folder):
        with pytest.raises(UserError, match="leads out of the root"):
            do(key)  # type: ignore[operator]
    with pytest.raises(UserError, match="leads out of the root"):
        storage.write(key, b"")
    assert (root.parent / "victim").read_bytes() == SECRET


@pytest.mark.parametrize(
    "inputs", [5, "x", [5], [{}], [{"stage": 5, "identity": "a"}], [{"stage": "../..", "identity": ".."}]]
)
def test_what_an_output_is_made_of_is_named_by_outputs(
    root: Path, inputs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(root, inputs=inputs)
    look_everywhere(root, capsys)
    assert len(find(str(root), "letters")) == 1


def test_a_small_table_of_many_rows_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run lengths make millions of equal rows of a few bytes."""
    folder = plant(root.parent / "unused")
    file = folder / "splits.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000_000, pa.int32()), ["x"])
    pq.write_table(pa.table({"item": column, "name": column}), file, store_schema=False)
    data = file.read_bytes()
    assert len(data) < 100_000
    planted = plant(root, line({"splits.parquet": file_of(data)}))
    (planted / "splits.parquet").write_bytes(data)
    with pytest.raises(UserError, match="rows"):
        read_columns(find(str(root), "records")[0], "splits.parquet", "item")


@pytest.mark.parametrize("place", ["{root}/evil.py", "evil.py", "{root}/../root/evil.py"])
def test_no_file_that_came_with_a_root_is_executed(
    root: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A root remembers where a user's corpus file lies; whoever wrote the root may have put one into it."""
    (root / "evil.py").write_text(f"open({str(root.parent / 'ran')!r}, 'w')\n")
    (root / "_runs/own").mkdir(parents=True)
    (root / "_runs/own/mine.json").write_text(json.dumps({"place": place.format(root=root)}))
    monkeypatch.chdir(root)
    for command in (["build", "mine"], ["plan", "mine"], ["stats", "mine"], ["corpora"]):
        assert main([*command, "--root", str(root)]) in (0, 1)
    assert not (root.parent / "ran").exists()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("note", [b"[", b"[1]", b'{"place": 5}', b'{"a":' * 100_000])
def test_a_note_that_is_none_is_named(root: Path, note: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "_runs/own").mkdir(parents=True)
    (root / "_runs/own/mine.json").write_bytes(note)
    assert main(["build", "mine", "--root", str(root)]) == 1
    assert "mine.json cannot be read" in capsys.readouterr().err


def test_a_run_folder_with_special_files_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, spoil in (("best.pt", pipe), ("last.pt", endless), ("recipe.json", endless)):
        run = root.parent / f"run-{name}"
        run.mkdir()
        (run / name).write_bytes(b"{}")
        spoil(run / name)
        assert main(["evaluate", str(run), "--root", str(root)]) == 1
        assert "Traceback" not in capsys.readouterr().err


class Counted(LocalStorage):
    looks = 0

    def size(self, key: str) -> int | None:
        self.looks += 1
        assert self.looks < 1000, "each output is looked at once"
        return super().size(key)


def test_outputs_that_were_made_of_each_other_in_many_ways_are_looked_at_once(tmp_path: Path) -> None:
    below = list[dict[str, str]]()
    for _ in range(30):
        made = [plant(tmp_path, stage=stage, inputs=below) for stage in ("one", "other")]
        below = [{"stage": folder.parent.name, "identity": folder.name} for folder in made]
    top = Output(Counted(str(tmp_path)), f"one/{below[0]['identity']}")
    assert ancestor(top, "media") is None
    assert ancestor(top, "other")
