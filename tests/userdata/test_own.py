"""Your own data through the command line: lists, folders and datasets become a corpus that every stage works on."""

import csv
import hashlib
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.fetching import corpus_names, user_lists
from tests.clips import gif, numbered, webp
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import no_pauses as no_pauses
from tests.misbehaving import serve
from tests.toy_root import one_thread as one_thread
from xmodal.batches.dataset import open_dataset
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Oddity, Row, Split, read_rows
from xmodal.root.outputs import find
from xmodal.root.sealed_sets import blob_key
from xmodal.root.storage import open_storage
from xmodal.userdata import embedded_pictures
from xmodal.userdata.description import DESCRIPTION, SPLITS, Description, ListFile, split_name
from xmodal.userdata.embedded_pictures import EmbeddedPictures
from xmodal.userdata.entries import ABSOLUTE
from xmodal.userdata.user_corpus import user_corpus

SHARES = "train=0.5,val=0.25,test=0.25"
RESNET = [f"resnet.{setting}" for setting in ("network=resnet18", "weights=random:0", "resize=32", "crop=32")]
TRAINING = ["batch_size=8", "epochs=1", "model.width=16", "model.word_width=8", "text.minimum_count=1"]

Rows = Sequence[Mapping[str, Any]]


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (number * 37 % 256, number * 91 % 256, 200)).save(file, "PNG")
    return file.getvalue()


def write_pictures(folder: Path, count: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"p{number}.png").write_bytes(picture(number))
    return [f"p{number}.png" for number in range(count)]


def write_csv(path: Path, some: Rows, separator: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(some[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(some)


def write_jsonl(path: Path, some: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in some), "utf-8")


def write_parquet(path: Path, some: Rows) -> None:
    pq.write_table(pa.Table.from_pylist([dict(row) for row in some]), path)


def write_arrow(path: Path, some: Rows) -> None:
    table = pa.Table.from_pylist([dict(row) for row in some])
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "csv": write_csv,
    "tsv": lambda path, some: write_csv(path, some, "\t"),
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


def corpus_of(folder: Path, *files: str, **said: Any) -> Corpus:
    return user_corpus(Description("mine", tuple(ListFile(file, 1, None) for file in files), **said))


def parsed(folder: Path, *files: str, **said: Any) -> list[Row]:
    return list(corpus_of(folder, *files, **said).parse(Raw.folder(folder)))


def captions_of(some: Sequence[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {row.id: [] for row in some if isinstance(row, Item)}
    for row in sorted((row for row in some if isinstance(row, Caption)), key=lambda row: row.position):
        assert row.position == len(found[row.item])
        found[row.item].append(row.text)
    return found


def odd(some: Sequence[Row]) -> Counter[str]:
    rules = (row.rule for row in some if isinstance(row, Oddity))
    return Counter(rule for rule in rules if not rule.startswith("a split without items"))


def built(rows: Any, stage: str) -> dict[str, Any]:
    (row,) = [row for row in rows["outputs"] if row["stage"] == stage]
    return dict(row)


def table(root: Path, kind: type[Any], name: str, identity: str) -> list[Any]:
    (output,) = [output for output in find(str(root), "records") if output.identity == identity]
    return list(read_rows(output, kind))


@pytest.fixture
def xmodal(capsys: pytest.CaptureFixture[str]) -> Xmodal:
    return Xmodal(capsys)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A list of 24 pictures beside it, two captions each."""
    names = write_pictures(tmp_path / "data/pictures", 24)
    some = [{"url": f"pictures/{n}", "caption": f"text {t} of picture {n[1:-4]}"} for n in names for t in range(2)]
    write_csv(tmp_path / "data/mylist.csv", some)
    return tmp_path / "data"


# ------------------------------------------------------------------------------------------------- every later stage


def test_every_stage_works_on_a_list_and_knows_it_by_its_name(
    xmodal: Xmodal, pictures: Path, root: Path, tmp_path: Path
) -> None:
    first = xmodal.done("build", pictures / "mylist.csv", "--root", root, "--splits", SHARES)
    assert built(first, "records")["counts"]["items"] == 24
    assert built(first, "records")["counts"]["captions"] == 48
    assert built(first, "media")["counts"]["present"] == 24
    again = [xmodal.done("build", what, "--root", root) for what in (pictures / "mylist.csv", "mylist")]
    for rows in again:
        assert [row["identity"] for row in rows["outputs"]] == [row["identity"] for row in first["outputs"]]
        assert not any(row["built"] for row in rows["outputs"])
    (planned, *_) = xmodal.done("plan", "mylist", "--root", root)["stages"]
    assert (planned["done"], planned["files"], planned["sealed"]) == (2, 2, True)

    (pictures / "mylist.csv").unlink()
    sets = [part for setting in RESNET for part in ("--set", setting)]
    resnet = built(xmodal.done("build", "mylist/resnet", "--root", root, *sets), "resnet")
    assert resnet["counts"] == {"rows": 24}
    assert built(xmodal.done("build", "mylist/pixels", "--root", root), "pixels")["counts"] == {"rows": 24}
    values = FeatureStore(f"{root}/resnet/{resnet['identity']}")
    assert {f"pictures/p{n}.png" for n in range(24)} == set(values.ids)

    run = tmp_path / "run"
    chosen = [part for setting in TRAINING for part in ("--set", setting)]
    trained = xmodal.done("train", "vsepp", "--corpus", "mylist", "--root", root, "--run", run, *chosen)
    assert trained["steps"] > 0
    report = xmodal.done("evaluate", run, "--root", root)
    assert (report["corpus"], report["split"]) == ("mylist", "own/test")
    sparse = ("--set", "view.split=own/train@50%x1", "--run", tmp_path / "sparse")
    fewer = xmodal.done("train", "vsepp", "--corpus", "mylist", "--root", root, *sparse, *chosen)
    assert 0 < fewer["steps"] < trained["steps"]

    np.save(tmp_path / "given.npy", np.eye(24, dtype="float32"))
    (tmp_path / "given_ids.txt").write_text("".join(f"pictures/p{n}.png\n" for n in range(24)))
    imported = xmodal.done("import", tmp_path / "given.npy", "--root", root, "--name", "given", "--serial")
    assert imported["items"] == 24

    published = xmodal.done("publish", "mylist", "--root", root, "--out", tmp_path / "out")
    assert sum(published["rows"]["own"].values()) == 24
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith("---\npretty_name: mylist\n")
    assert "$" not in re.sub(r"`[^`]*`", "", card)
    assert not (tmp_path / "out/media").exists(), "what is withheld unless its owner says so"
    assert all(output["complete"] for output in xmodal.done("status", "--root", root)["outputs"])
    assert xmodal.done("verify", "--root", root)["damage"] == []
    assert xmodal.done("seal", "mylist", "--root", root)["mylist"]["media"] == built(first, "media")["identity"]
    assert xmodal.done("retry", "mylist", "--root", root)["corpora"]["mylist"] == {"tried": 0, "recovered": 0}
    assert "mylist" in {row["name"] for row in xmodal.done("corpora", "--root", root)}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("list.csv", "", "list.csv is empty: its first line must name its columns"),
        ("list.tsv", "\n", "list.tsv is empty"),
        ("list.csv", "url,caption\n", "list.csv lists no picture or clip that can be used"),
        ("list.csv", "address,caption\na.png,a cat\n", "list.csv:1 has no column 'url'"),
        ("list.jsonl", "", "list.jsonl lists no picture or clip that can be used"),
    ],
)
def test_a_list_that_cannot_be_read_leaves_nothing_in_the_root(
    name: str, content: str, said: str, xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    assert said in xmodal("build", tmp_path / name, "--root", root).complaint
    assert not root.exists()


def test_a_recipe_moves_to_a_corpus_only_where_its_splits_are(xmodal: Xmodal, pictures: Path, root: Path) -> None:
    xmodal.done("build", pictures / "mylist.csv/records", "--root", root, "--splits", "train=0.5,test=0.5")
    said = xmodal("train", "vsepp", "--corpus", "mylist", "--root", root)
    assert "mylist has no split 'val'; there are: own/test, own/train" in said.complaint
    assert "no corpus 'other' under" in xmodal("train", "vsepp", "--corpus", "other", "--root", root).complaint


def test_pictures_at_addresses_are_fetched_and_those_that_are_gone_are_rows_of_the_ledger(
    xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    names = write_pictures(tmp_path / "site/ä b", 4)
    with serve(tmp_path / "site") as server:
        some = [{"address": f"{server.url}/ä b/{name}?size=1", "text": "a picture"} for name in (*names, "gone.png")]
        some += [some[0] | {"text": "the same, in other words"}, some[0]]
        write_parquet(tmp_path / "mylist.parquet", some)
        flags = ("--url", "address", "--caption", "text")
        rows = xmodal.done("build", tmp_path / "mylist.parquet", "--root", root, *flags)
        asked = len(server.requests)
        assert xmodal.done("build", "mylist", "--root", root)["outputs"][2]["built"] is False
        assert len(server.requests) == asked
    assert built(rows, "media")["counts"] == {"present": 4, "absent": 1}
    assert built(rows, "records")["counts"]["odd: the same caption of the same item again: left out"] == 1
    items = table(root, Item, "items", built(rows, "records")["identity"])
    assert {item.url for item in items} == {row["address"] for row in some}
    assert all(re.fullmatch(r"urls/[0-9a-f]{2}/[0-9a-f]{40}\.png", item.media) for item in items)
    (ledger,) = [one for one in xmodal.done("status", "--root", root)["ledgers"] if one["failures"]]
    assert ledger["failures"] == {"http_404": 1}


def test_another_list_or_another_column_is_another_identity(xmodal: Xmodal, pictures: Path, root: Path) -> None:
    def identity(*flags: str) -> str:
        rows = xmodal.done("build", pictures / "mylist.csv/records", "--root", root, *flags)
        return str(built(rows, "records")["identity"])

    write_csv(pictures / "mylist.csv", [{"url": "pictures/p0.png", "caption": "a", "other": "b"}])
    first, other = identity(), identity("--caption", "other")
    assert identity("--caption", "caption") == first
    assert identity("--splits", "train=1") not in (first, other)
    assert [c.text for c in table(root, Caption, "captions", other)] == ["b"]
    assert {s.name for s in table(root, Split, "splits", identity())} == {"own/train"}, "as it was read last"
    write_csv(pictures / "mylist.csv", [{"url": "pictures/p0.png", "caption": "a changed one", "other": "b"}])
    changed = identity("--caption", "caption")
    assert [c.text for c in table(root, Caption, "captions", changed)] == ["a changed one"]
    assert changed != first


def test_a_list_that_is_written_to_again_leaves_the_root_whole(xmodal: Xmodal, pictures: Path, root: Path) -> None:
    before = xmodal.done("build", pictures / "mylist.csv", "--root", root)
    with (pictures / "mylist.csv").open("a") as file:
        file.write("pictures/p0.png,one more\n")
    assert xmodal.done("verify", "--root", root)["damage"] == []
    after = xmodal.done("build", pictures / "mylist.csv", "--root", root)
    assert [row["built"] for row in after["outputs"]] == [True, True, False], "the pictures are the same"
    assert built(after, "records")["counts"]["captions"] == 49
    assert built(after, "sources")["identity"] != built(before, "sources")["identity"]


def test_a_folder_that_happens_to_have_the_name_of_a_corpus_is_not_taken_for_it(
    xmodal: Xmodal, pictures: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = xmodal.done("build", pictures / "mylist.csv", "--root", root)
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "mylist", 1)
    write_csv(tmp_path / "mylist/mylist.csv", [{"url": "p0.png", "caption": "a"}])
    again = xmodal.done("build", "mylist", "--root", root)
    assert again["outputs"] == [row | {"built": False} for row in before["outputs"]]
    assert "has no list" in xmodal("build", "./mylist", "--root", root).complaint


def test_a_folder_without_flags_is_read_again_by_the_columns_that_the_root_knows(
    xmodal: Xmodal, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = write_pictures(tmp_path / "pictures", 3)
    for some in (names[:2], names):
        write_csv(tmp_path / "pictures/captions.csv", [{"file": name, "caption": name} for name in some])
        flags = ["--url", "file"] if len(some) == 2 else []
        rows = xmodal.done("build", "pictures", "--root", root, *flags)
        assert built(rows, "records")["counts"]["items"] == len(some)


def test_of_a_list_that_grew_every_command_takes_the_current_records(
    xmodal: Xmodal, pictures: Path, root: Path, tmp_path: Path
) -> None:
    def build() -> str:
        return str(built(xmodal.done("build", pictures / "mylist.csv", "--root", root), "records")["identity"])

    before = build()
    for number in range(3):  # identities are hashes: of four the current one is hardly always the first
        with (pictures / "mylist.csv").open("a") as file:
            file.write(f"pictures/p0.png,one more {number}\n")
        now = build()
        assert now != before
        assert xmodal.done("stats", "mylist", "--root", root)["records"] == now
        assert open_dataset(str(root), "mylist").records.identity == now
        assert xmodal.done("publish", "mylist", "--root", root, "--out", tmp_path / "out")["records"] == now
    assert xmodal.done("stats", "mylist", "--root", root, "--records", before)["records"] == before
    assert open_dataset(str(root), "mylist", before).records.identity == before
    assert len(xmodal.done("evaluate", "--write-ids", tmp_path / "ids", "--corpus", "mylist", "--root", root)) == 2


def test_another_list_of_the_same_name_is_refused(xmodal: Xmodal, pictures: Path, root: Path, tmp_path: Path) -> None:
    before = xmodal.done("build", pictures / "mylist.csv", "--root", root)
    other = tmp_path / "other/mylist.csv"
    write_pictures(other.parent / "pictures", 2)
    write_csv(other, [{"url": "pictures/p1.png", "caption": "of another"}])
    said = xmodal("build", other, "--root", root).complaint
    assert f"mylist is {pictures}/mylist.csv here" in said
    assert "with --name" in said
    assert "with --name" in xmodal("build", other, "--root", root, "--name", "mylist").complaint
    assert xmodal.done("build", "mylist", "--root", root)["outputs"] == [
        row | {"built": False} for row in before["outputs"]
    ]
    assert built(xmodal.done("build", other, "--root", root, "--name", "b"), "records")["counts"]["items"] == 1


def test_a_list_that_was_moved_keeps_its_name(
    xmodal: Xmodal, pictures: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xmodal.done("build", pictures / "mylist.csv", "--root", root)
    (tmp_path / "linked").symlink_to(pictures)
    monkeypatch.chdir(tmp_path)
    for place in ("linked/mylist.csv", "data/../data/mylist.csv"):
        with (pictures / "mylist.csv").open("a") as file:
            file.write(f"pictures/p0.png,{place}\n")
        xmodal.done("build", place, "--root", root)
    pictures.rename(tmp_path / "moved")
    xmodal.done("build", "moved/mylist.csv", "--root", root)  # the same bytes
    (tmp_path / "moved").rename(tmp_path / "again")
    with (tmp_path / "again/mylist.csv").open("a") as file:
        file.write("pictures/p0.png,and grew\n")
    assert "is that list, moved, give it --name mylist" in xmodal("build", "again/mylist.csv", "--root", root).complaint
    rows = xmodal.done("build", "again/mylist.csv", "--root", root, "--name", "mylist")
    assert built(rows, "records")["counts"]["captions"] == 51


@pytest.mark.parametrize("bad", ["url,text\na.png,b\n", "url,caption\na.png,b,c\n"])
def test_a_list_that_cannot_be_read_leaves_the_corpus_of_its_name(
    bad: str, xmodal: Xmodal, pictures: Path, root: Path
) -> None:
    before = xmodal.done("build", pictures / "mylist.csv", "--root", root)
    (pictures / "mylist.csv").write_text(bad)
    for stages in (("",), ("/sources", "/records")):
        codes = [xmodal("build", f"{pictures}/mylist.csv{stage}", "--root", root).code for stage in stages]
        assert codes[-1] == 1
        again = xmodal.done("build", "mylist", "--root", root)
        assert again["outputs"] == [row | {"built": False} for row in before["outputs"]]
    assert xmodal.done("stats", "mylist", "--root", root)["records"] == built(before, "records")["identity"]


def test_the_same_words_beside_other_pictures_are_another_list(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        write_pictures(folder, 1)
        write_csv(folder / "list.csv", [{"url": "p0.png", "caption": "a"}])
    xmodal.done("build", tmp_path / "a/list.csv", "--root", root)
    said = xmodal("build", tmp_path / "b/list.csv", "--root", root)
    assert said.complaint.endswith("list.csv a name of its own with --name")
    xmodal.done("build", tmp_path / "b/list.csv", "--root", root, "--name", "other")


def test_lost_pictures_are_taken_again_from_beside_the_list(xmodal: Xmodal, pictures: Path, root: Path) -> None:
    """By its name alone: the root knows where it lies."""
    before = xmodal.done("build", pictures / "mylist.csv", "--root", root)
    file = pictures / "pictures/p0.png"
    data = file.read_bytes()
    file.unlink()
    blob = root / blob_key(hashlib.sha256(data).hexdigest())
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")
    file.write_bytes(data)
    assert xmodal("verify", "--root", root, "--forget").code == 1
    xmodal.done("retry", "mylist", "--root", root)
    xmodal.done("seal", "mylist", "--root", root)
    again = xmodal.done("build", "mylist", "--root", root)
    assert built(again, "media")["identity"] == built(before, "media")["identity"]
    assert xmodal("verify", "--root", root).code == 0


def test_features_of_a_list_that_grew_are_those_of_all_its_items(xmodal: Xmodal, pictures: Path, root: Path) -> None:
    file, sets = pictures / "mylist.csv", [word for setting in RESNET for word in ("--set", setting)]
    whole = file.read_text()
    for text in ("".join(whole.splitlines(keepends=True)[:25]), whole):
        file.write_text(text)
        xmodal.done("build", f"{file}/resnet", "--root", root, *sets)
    assert len(find(str(root), "resnet")) == 2
    assert len(open_dataset(str(root), "mylist").store().ids) == 24


def test_a_list_whose_bytes_were_lost_comes_back_after_a_build_that_failed(
    xmodal: Xmodal, pictures: Path, root: Path
) -> None:
    file = pictures / "mylist.csv"
    before, good = xmodal.done("build", file, "--root", root), file.read_bytes()
    blob = root / blob_key(hashlib.sha256(good).hexdigest())
    file.write_text("url,text\na.png,b\n")  # another file than the blob, which may be the same one on the disk
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")
    assert xmodal("verify", "--root", root, "--forget").code == 1
    for _ in range(2):
        assert xmodal("build", file, "--root", root).code == 1
    file.unlink()
    file.write_bytes(good)
    again = xmodal.done("build", file, "--root", root)
    assert built(again, "records")["identity"] == built(before, "records")["identity"]


def test_what_a_flag_does_not_say_stays_as_it_was(xmodal: Xmodal, pictures: Path, root: Path) -> None:
    some = [{"file": f"pictures/p{n}.png", "text": "a", "other": "b", "key": n, "part": "test"} for n in range(3)]
    write_csv(pictures / "mylist.csv", some)

    def described(*flags: str) -> Description | None:
        xmodal.done("build", f"{pictures}/mylist.csv/records", "--root", root, *flags)
        return corpus_names.description_of(open_storage(str(root)), "mylist")

    first = described("--url", "file", "--caption", "text", "--id", "key", "--split", "part")
    assert first is not None
    assert described("--caption", "other") == replace(first, caption="other")
    assert described("--caption", "text") == first
    assert described("--splits", "train=1") == replace(first, split=None, splits=(("train", "1"),))
    assert described("--id", "") == replace(first, id=None, split=None, splits=(("train", "1"),))
    assert described("--split", "part", "--id", "key") == first
    assert described("--split", "") == replace(first, split=None, splits=SPLITS)
    clips = described("--kind", "clip")
    assert clips == replace(first, split=None, splits=SPLITS, kind="clip")
    assert described() == clips
    assert described("--kind", "") == replace(first, split=None, splits=SPLITS)


@pytest.mark.parametrize("url", ["https://i.imgur.com/a.gifv?1", "a.3gp", "a.mjpeg", "a.OGV"])
def test_a_clip_is_known_by_the_ending_of_its_name(url: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "list.csv", [{"url": url, "caption": "a"}])
    assert [row.kind for row in parsed(tmp_path, "list.csv") if isinstance(row, Item)] == ["clip"]


def test_clips_whose_names_do_not_say_so_are_taken_for_clips_when_told(
    xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    """An animated WebP, a GIF without an ending and one inside the list; beside them one that is named as a clip."""
    (tmp_path / "a.webp").write_bytes(webp(range(3), [125] * 3))
    (tmp_path / "b").write_bytes(gif([numbered(number, delay=13) for number in range(3)]))
    (tmp_path / "d.gif").write_bytes(gif([numbered(7)]))
    some = [{"path": "a.webp", "bytes": None}, {"path": "b", "bytes": None}, {"path": "d.gif", "bytes": None}]
    some.append({"path": None, "bytes": gif([numbered(number, delay=13) for number in range(2)])})
    write_parquet(tmp_path / "mine.parquet", [{"url": one, "caption": "it moves"} for one in some])
    unsaid = xmodal("build", f"{tmp_path}/mine.parquet/frames", "--root", root)
    assert "mine: 3 of 4 items are not taken for clips, by their names: --kind clip takes all" in unsaid.out
    said = xmodal.done("build", f"{tmp_path}/mine.parquet/frames", "--root", root, "--kind", "clip")
    assert (built(said, "frames")["counts"]["clips"], built(said, "frames")["failures"]) == (4, {})
    assert not [note for note in said["notes"] if "--kind" in note]
    none = xmodal("build", f"{tmp_path}/mine.parquet/frames", "--root", root, "--kind", "image")
    assert "mine has no clips" in none.complaint
    assert "name the list again with --kind clip" in none.complaint


def test_a_build_says_what_is_missing_and_why(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    write_csv(
        tmp_path / "list.csv",
        [{"url": url, "caption": "a", "split": "test", "id": url} for url in ("p0.png", "cats/p1.png", "/abs/p2.png")],
    )
    said = xmodal("build", tmp_path / "list.csv", "--root", root)
    assert said.code == 3, "all of them are missing"
    assert "2 by_hand, such as cats/p1.png: it is not beside the list" in said.out
    assert f"`xmodal retry list --root {root} [--raw FOLDER]`, then `xmodal seal list --root {root}`" in said.out
    assert f"odd: {ABSOLUTE}: 1" in said.out
    assert "note: list: the column 'split' is not used: --split split takes it" in said.out
    assert "note: list: the column 'id' is not used: --id id takes it" in said.out
    assert "note: list: items 1 in own/val, 0 in test" in said.out
    assert "--split COLUMN takes your own" in said.out
    said = xmodal("build", tmp_path / "list.csv", "--root", root, "--split", "split", "--id", "id")
    assert "is not used" not in said.out
    assert "--split COLUMN" not in said.out, "it is given"
    assert "divides by hash, in place of the column 'split'" in said.out
    write_pictures(tmp_path, 1)
    xmodal.done("retry", tmp_path / "list.csv", "--root", root)
    xmodal.done("seal", "list", "--root", root)
    assert "1 by_hand, such as cats/p1.png" in xmodal("build", "list", "--root", root).out


def test_a_list_of_nothing_that_can_be_used_says_why(tmp_path: Path) -> None:
    write_csv(tmp_path / "list.csv", [{"url": url, "caption": "a"} for url in ("/a.png", "/b.png", "")])
    with pytest.raises(UserError, match=r"that can be used; 2 of an absolute path or file://.*; 1 of no picture"):
        parsed(tmp_path, "list.csv")


def test_the_list_of_a_folder_may_be_named_as_seen_from_it(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "pictures.csv", [{"url": "p0.png", "caption": "a"}])
    folder = tmp_path / "pictures"
    write_pictures(folder, 1)
    write_csv(folder / "mine.csv", [{"url": "p0.png", "caption": "a"}])
    rows = xmodal.done("build", folder, "--root", root, "--captions", "mine.csv")
    assert built(rows, "media")["counts"] == {"present": 1, "absent": 0}
    assert f"neither here nor in {folder}" in xmodal("build", folder, "--root", root, "--captions", "x.csv").complaint


@pytest.mark.parametrize("count", [3, 5, 20])
def test_a_small_list_has_every_split_and_little_moves_when_it_grows(count: int, tmp_path: Path) -> None:
    def placed(numbers: Sequence[int]) -> dict[str, str]:
        write_jsonl(tmp_path / "list.jsonl", [{"url": f"{n}.png", "caption": "a"} for n in numbers])
        return {row.item: row.name for row in parsed(tmp_path, "list.jsonl") if isinstance(row, Split)}

    small = placed(range(count))
    assert set(small.values()) == {"own/train", "own/val", "own/test"}
    assert placed(range(count)[::-1]) == small
    large = placed(range(4000))
    assert sum(large[item] != name for item, name in small.items()) <= 2
    assert set(placed(range(2)).values()) == {"own/train", "own/val"}, "a split is not emptied for another"


def test_not_a_number_is_an_empty_cell(tmp_path: Path) -> None:
    nan = float("nan")
    some = [{"url": "a.png", "caption": nan, "part": nan}, {"url": "b.png", "caption": ["b", nan], "part": "x"}]
    write_jsonl(tmp_path / "list.jsonl", [*some, {"url": nan, "caption": "c", "part": "x"}])
    rows = parsed(tmp_path, "list.jsonl", split="part", splits=())
    assert captions_of(rows) == {"a.png": [], "b.png": ["b"]}
    assert [row for row in rows if isinstance(row, Split)] == [Split("b.png", "own/x")]
    assert odd(rows)["an empty caption: left out"] == 2


# ----------------------------------------------------------------------------------------------- folders and datasets


@pytest.mark.parametrize("how", ["outside", "captions.csv", "metadata.jsonl"])
def test_a_folder_of_pictures_with_a_list(how: str, xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my pictures"
    some = [{"file": name, "text": f"it is {name}"} for name in write_pictures(folder, 3)]
    place = tmp_path / "elsewhere.csv" if how == "outside" else folder / how
    WRITERS[place.suffix[1:]](place, some)
    flags = ["--captions", place] if how == "outside" else []
    rows = xmodal.done("build", folder, "--root", root, "--url", "file", "--caption", "text", *flags)
    assert {row["corpus"] for row in rows["outputs"]} == {"my-pictures"}
    assert built(rows, "media")["counts"]["present"] == 3
    assert built(rows, "records")["counts"]["captions"] == 3
    renamed = xmodal.done("build", f"{folder}/records", "--root", root, "--url", "file", "--caption", "text", *flags)
    assert renamed["outputs"][0]["identity"] == built(rows, "records")["identity"]


def test_a_folder_with_two_lists_or_none_is_refused(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    write_pictures(folder, 1)
    assert "has no list: give one with --captions" in xmodal("build", folder, "--root", root).complaint
    for name in ("captions.csv", "metadata.csv"):
        write_csv(folder / name, [{"url": "p0.png", "caption": "a"}])
    assert "captions.csv and metadata.csv" in xmodal("build", folder, "--root", root).complaint


@pytest.mark.parametrize("layout", ["saved", "saved splits", "parquet"])
def test_a_hugging_face_dataset_with_its_pictures_inside(
    layout: str, xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "dataset"
    features = datasets.Features(
        {"image": datasets.Image(), "captions": datasets.List(datasets.Value("string")), "n": datasets.Value("int64")}
    )
    columns = {
        "image": [{"bytes": picture(n), "path": f"{n}.png"} for n in range(6)],
        "captions": [[f"one of {n}", f"two of {n}"] for n in range(6)],
        "n": list(range(6)),
    }
    whole = datasets.Dataset.from_dict(columns, features)
    if layout == "saved":
        whole.save_to_disk(folder)
    else:
        parts = {"train": whole.select(range(4)), "validation": whole.select(range(4, 6))}
        folder.mkdir()
        if layout == "parquet":
            for name, part in parts.items():
                part.to_parquet(folder / f"{name}-00000-of-00001.parquet")
        else:
            datasets.DatasetDict(parts).save_to_disk(folder)
    rows = xmodal.done("build", folder, "--root", root, "--url", "image", "--caption", "captions", "--id", "n")
    counts = built(rows, "records")["counts"]
    assert (counts["items"], counts["captions"]) == (6, 12)
    if layout != "saved":
        assert (counts["items:own/train"], counts["items:own/val"]) == (4, 2)
    items = table(root, Item, "items", built(rows, "records")["identity"])
    assert [item.id for item in items] == [str(n) for n in range(6)]
    pixels = built(xmodal.done("build", "dataset/pixels", "--root", root), "pixels")
    assert (pixels["counts"], pixels["failures"]) == ({"rows": 6}, {})
    assert built(xmodal.done("build", "dataset/media", "--root", root), "media")["built"] is False


def test_embedded_pictures_that_were_lost_are_taken_out_of_the_list_again(
    xmodal: Xmodal, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_pictures, "MEMBERS", 2)
    some = [{"image": {"bytes": picture(n), "path": None}, "caption": f"picture {n}"} for n in (0, 1, 0, 2, 3, 4, 1)]
    write_parquet(tmp_path / "mine.parquet", some)
    before = xmodal.done("build", tmp_path / "mine.parquet", "--root", root, "--url", "image")
    assert built(before, "records")["counts"]["items"] == 5
    assert built(before, "media")["counts"]["present"] == 3, "of two pictures each, the last of one"
    blob, *_ = [path for path in (root / "blobs").rglob("*") if path.is_file() and path.read_bytes()[:2] == b"PK"]
    blob.unlink()
    assert xmodal("verify", "--root", root, "--forget").code == 1
    (tmp_path / "mine.parquet").unlink()
    after = xmodal.done("build", "mine", "--root", root)
    assert built(after, "media")["identity"] == built(before, "media")["identity"]
    assert blob.is_file()


def test_a_dataset_on_the_hub_is_pinned_to_its_commit(
    xmodal: Xmodal, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    files = site / "datasets/org/birds/resolve/abc123/data"
    files.mkdir(parents=True)
    write_parquet(
        files / "train-00000-of-00001.parquet", [{"image": {"bytes": picture(0), "path": "a.png"}, "text": "a"}]
    )
    write_parquet(
        files / "test-00000-of-00001.parquet", [{"image": {"bytes": picture(1), "path": "b.png"}, "text": "b"}]
    )
    siblings = [{"rfilename": f"data/{file.name}", "size": file.stat().st_size} for file in files.iterdir()]
    about = {"sha": "abc123", "siblings": [*siblings, {"rfilename": "README.md", "size": 1}]}
    api = site / "api/datasets/org/birds/revision/main"
    api.parent.mkdir(parents=True)
    api.write_text(json.dumps(about))
    with serve(site) as server:
        monkeypatch.setattr(user_lists, "HUB", server.url)
        rows = xmodal.done("build", "hf://org/birds", "--root", root, "--url", "image", "--caption", "text")
        (site / "api/datasets/other/birds/revision").mkdir(parents=True)
        (site / "api/datasets/other/birds/revision/main").write_text(api.read_text())
        assert "birds is hf://org/birds here" in xmodal("build", "hf://other/birds", "--root", root).complaint
        assert "answers 404" in xmodal("build", "hf://org/fish", "--root", root).complaint
        api.write_text(json.dumps(about | {"siblings": [{"rfilename": "../../x.parquet", "size": 1}]}))
        assert "stays inside the raw folder" in xmodal("build", "hf://org/birds", "--root", root).complaint
    counts = built(rows, "records")["counts"]
    assert (counts["items:own/train"], counts["items:own/test"]) == (1, 1)
    assert built(rows, "media")["counts"]["present"] == 1
    assert xmodal.done("build", "birds", "--root", root)["outputs"][1]["built"] is False


# --------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("kind", WRITERS)
def test_a_wrong_column_is_named_with_those_there_are(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / f"list.{kind}", [{"address": "a.png", "caption": "a"}])
    with pytest.raises(UserError, match=rf"list\.{kind}\S* has no column 'url'; its columns are address, caption"):
        parsed(tmp_path, f"list.{kind}")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("list.csv", b"url,caption,url\na.png,a,b.png\n", "list.csv:1 has several columns 'url'"),
        (
            "list.csv",
            b"url;caption\na.png;b\n",
            "its columns are url;caption; it is separated by ';': save it with commas",
        ),
        ("list.csv", b"URL,caption\na.png,b\n", "its columns are URL, caption; 'URL' differs in case"),
        ("list.json", b"{}", "'[' expected, of a list of objects, [{…}, …], not '{'"),
        ("list.csv", b"url,caption\n/elsewhere/a.png,b\n", "; copy or link files below the list's folder (--follow"),
        ("list.csv", b"", "list.csv is empty: its first line must name its columns"),
        ("list.csv", b"url,caption\n", "lists no picture or clip that can be used"),
        ("list.csv", b"url,caption\na.png,b,c\n", "list.csv:2 has 3 columns, not the 2"),
        ("list.csv", b"url,caption\na.png,a\nb.png,\xff\n", "list.csv:3 is not UTF-8, at its byte 7: save it as UTF-8"),
        (
            "list.csv",
            b'url,caption\na.png,a\nb.png,"b\nc.png,c\n',
            "list.csv:3: a quote opens a cell, and none ends it",
        ),
        ("list.csv", b'url,caption\na.png,"Stop" says\n', "list.csv:2: a quote opens a cell, and none ends it: write"),
        (
            "list.tsv",
            b'url\tcaption\na.png\t"a\nb"\n',
            "list.tsv:3 has 1 columns, not the 2 of its first line; a cell of",
        ),
        ("list.jsonl", b"", "lists no picture or clip"),
        ("list.jsonl", b'{"url": "a.png", "caption": "a"}\n{"url"\n', "list.jsonl:2 is no JSON"),
        ("list.jsonl", b'{"url": "a.png", "caption": "a"}\n[]\n', "list.jsonl:2 is no JSON object"),
        ("list.jsonl", b"[" * 100_000, "list.jsonl:1 is no JSON"),
        ("list.jsonl", b'{"url": 7, "caption": "a"}\n', "list.jsonl:1 is 7, neither text nor a picture"),
        ("list.jsonl", b'{"url": "a.png", "caption": [1]}\n', "list.jsonl:1: a caption is 1, no text"),
        ("list.parquet", b"PAR1 not at all", "list.parquet is damaged"),
        ("list.arrow", b"not at all", "list.arrow is damaged"),
    ],
)
def test_what_is_no_list_stops_with_file_and_line(name: str, content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as trouble:
        parsed(tmp_path, name)
    assert complaint in str(trouble.value)


def test_an_item_in_two_splits_stops_with_file_and_line(tmp_path: Path) -> None:
    write_csv(tmp_path / "list.csv", [{"url": "a.png", "caption": c, "part": p} for c, p in ("ax", "by")])
    with pytest.raises(UserError, match=r"list\.csv:3: item 'a\.png' is in own/y, but was in own/x"):
        parsed(tmp_path, "list.csv", split="part", splits=())
    write_csv(tmp_path / "list.csv", [{"url": "a.png", "caption": "a", "part": "no such/name/at all"}])
    with pytest.raises(UserError, match=r"list\.csv:2: a split is named by"):
        parsed(tmp_path, "list.csv", split="part", splits=())


@pytest.mark.parametrize(
    ("target", "flags", "complaint"),
    [
        ("coco", ["--url", "x"], "--url is for data of your own"),
        ("DATA/none.csv", [], "cannot be read"),
        ("DATA/mylist.csv", ["--splits", "train=0.5"], "whose sum is 1, not train=0.5"),
        ("DATA/mylist.csv", ["--splits", "train"], "'train' has no share"),
        ("DATA/mylist.csv", ["--splits", "val=0.5,dev=0.5"], "names of their own"),
        ("DATA/mylist.csv", ["--splits", "train=1", "--split", "x"], "give one of them"),
        ("DATA/mylist.csv", ["--name", "coco"], "coco is a corpus already"),
        ("DATA/mylist.csv", ["--name", "../x"], "named by letters"),
        ("DATA/mylist.csv", ["--captions", "x.csv"], "--captions is for a folder"),
        ("DATA/mylist.csv/nothing", [], "no stage 'nothing'"),
        ("mylist", [], "no corpus 'mylist'"),
        ("media", [], "no corpus 'media'"),
        ("hf://x", [], "hf://ORG/NAME"),
    ],
)
def test_what_cannot_be_built_is_said_in_a_line(
    target: str, flags: list[str], complaint: str, xmodal: Xmodal, pictures: Path, root: Path
) -> None:
    said = xmodal("build", target.replace("DATA", str(pictures)), "--root", root, *flags)
    assert complaint in said.complaint


# ---------------------------------------------------------------------------------------------------- rules for rows


def test_rows_that_cannot_be_used_follow_rules_that_are_counted(tmp_path: Path) -> None:
    some: list[dict[str, Any]] = [
        {"key": "a", "url": "a.png", "caption": "  a\tcaption\n of it "},
        {"key": "a", "url": "a.png", "caption": ["another", None, "", "a caption of it"]},
        {"key": "a", "url": "b.png", "caption": "a third"},
        {"key": "b", "url": None, "caption": "nothing to see"},
        {"key": "c", "url": "c.gif", "caption": []},
        {"key": 7, "url": "https://x.org/7.mp4", "caption": "\ud800"},
        {"key": "long" * 100, "url": "d.png", "caption": "long"},
        {"key": "x\u0000y", "url": "e.png", "caption": "zero"},
        {"key": "../../etc", "url": "f.png", "caption": "up"},
        *({"key": str(n), "url": url, "caption": "no"} for n, url in enumerate(HOSTILE)),
    ]
    write_jsonl(tmp_path / "list.jsonl", some)
    rows = parsed(tmp_path, "list.jsonl", id="key")
    found = captions_of(rows)
    assert found["a"] == ["a caption of it", "another"], "the third is of another picture"
    assert (found["c"], found["7"], found["../../etc"]) == ([], [], ["up"])
    assert len(found) == 6
    kinds = {row.id: row.kind for row in rows if isinstance(row, Item)}
    assert (kinds["a"], kinds["c"], kinds["7"]) == ("image", "clip", "clip")
    assert odd(rows) == {
        "the same caption of the same item again: left out": 1,
        "an empty caption: left out": 3,
        "another picture or clip of an id that is taken: the row is left out": 1,
        "no picture or clip: the row is left out": 1,
        "a caption that is not Unicode: left out": 1,
        "an id that is long or does not print: its sha256 stands for it": 2,
        "an address that is neither http nor https: the row is left out": 4,
        ABSOLUTE: 5,
        "a path with a backslash: the row is left out; write / between folders": 1,
        "a path that leaves the list's folder, is long or does not print: the row is left out": len(HOSTILE) - 10,
    }
    assert all(row.where.startswith("list.jsonl:") for row in rows if isinstance(row, Oddity) and row.item)


HOSTILE = [
    *("file:/etc/passwd", "ftp://x.org/a.png", "data:image/png;base64,AAAA", "http://[::1", "http://x.org/\u0007"),
    *(
        "/etc/passwd",
        "../a.png",
        "a/../../b.png",
        "~/a.png",
        "C:/a.png",
        "a\\..\\b.png",
        "a\u0000.png",
        "x" * 300,
        "y/" * 900 + "z",
    ),
    *("..", ".", "\ud800.png", "//x.org/a.png"),
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30), st.text(max_size=20)), min_size=1, max_size=8))
def test_whatever_the_cells_say_media_stay_in_their_folder(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    some = [{"key": key or "k", "url": url, "caption": text} for key, url, text in cells]
    write_jsonl(folder / "list.jsonl", [{"key": "sure", "url": "sure.png", "caption": "sure"}, *some])
    try:
        rows = parsed(folder, "list.jsonl", id="key")
    except UserError as trouble:
        assert "the id is" in str(trouble)  # noqa: PT017 - white space alone
        return
    sources = list(corpus_of(folder, "list.jsonl", id="key").media(Raw.folder(folder)))  # type: ignore[misc]
    assert len({source.path for source in sources}) == len(sources)
    assert {row.media for row in rows if isinstance(row, Item)} <= {source.path for source in sources}
    for source in sources:
        assert (folder / source.path).resolve().is_relative_to(folder)
    for kind in (Item, Caption):
        ids = [row.id for row in rows if isinstance(row, kind)]
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_list_says_the_same(kind: str, tmp_path: Path) -> None:
    some = [{"url": f"große katze {n}.png", "caption": f'"{n}", 写真,\tchó'} for n in range(5)] * 2
    WRITERS[kind](tmp_path / f"list.{kind}", some)
    rows = parsed(tmp_path, f"list.{kind}")
    assert captions_of(rows) == {f"große katze {n}.png": [f'"{n}", 写真, chó'] for n in range(5)}


def test_ids_captions_ids_and_splits_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    some = [{"url": f"https://x.org/{n % 30}.jpg", "caption": f"text {n}"} for n in range(60)]

    def ids(of: Rows) -> set[Row]:
        write_jsonl(tmp_path / "list.jsonl", of)
        rows = parsed(tmp_path, "list.jsonl", splits=(("train", "0.5"), ("test", "0.5")))
        return {replace(row, position=0) if isinstance(row, Caption) else row for row in rows}

    assert ids(some) == ids(some[::-1])
    assert len(ids(some)) == 30 + 30 + 60


def test_splits_by_hash_have_their_shares_and_stay_when_others_come(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "list.jsonl", [{"url": f"{n}.png", "caption": "a"} for n in range(4000)])
    found = {row.item: row.name for row in parsed(tmp_path, "list.jsonl") if isinstance(row, Split)}
    counted = Counter(found.values())
    assert counted.total() == 4000
    for name, share in SPLITS:
        expected = float(Fraction(share)) * 4000
        assert abs(counted[split_name(name)] - expected) < 5 * expected**0.5
    write_jsonl(tmp_path / "list.jsonl", [{"url": f"{n}.png", "caption": "b"} for n in range(3000, 3100)])
    fewer = {row.item: row.name for row in parsed(tmp_path, "list.jsonl") if isinstance(row, Split)}
    assert all(found[item] == name for item, name in fewer.items())
    assert fewer["3000.png"] == "own/train", "documented, so it stays: sha256 of the id, its first 64 bits"


def test_an_empty_split_is_counted_and_an_empty_cell_is_in_none(tmp_path: Path) -> None:
    write_csv(
        tmp_path / "list.csv", [{"url": "a.png", "caption": "a", "part": "dev"}, {"url": "b.png", "caption": "b"}]
    )
    assert [row.where for row in parsed(tmp_path, "list.csv") if isinstance(row, Oddity)] != []
    rows = parsed(tmp_path, "list.csv", split="part", splits=())
    assert [row for row in rows if isinstance(row, Split)] == [Split("a.png", "own/val")]
    assert odd(rows) == {"in no split: kept without one": 1}
    assert [row.where for row in rows if isinstance(row, Oddity)] == ["list.csv:3"]


def test_rows_of_a_file_without_a_split_beside_files_with_one_are_counted(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [{"url": "a.png", "caption": "a"}])
    write_csv(tmp_path / "more.csv", [{"url": f"{name}.png", "caption": "a"} for name in "abbc"])
    files = (ListFile("more.csv", 1, None), ListFile("train.csv", 1, None, "own/train"))
    for order in (files, files[::-1]):
        rows = list(user_corpus(Description("mine", order, splits=())).parse(Raw.folder(tmp_path)))
        assert [row for row in rows if isinstance(row, Split)] == [Split("a.png", "own/train")]
        assert odd(rows)["in no split: kept without one"] == 2


def test_a_picture_that_files_of_two_splits_have_is_in_both(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    for split, numbers in {"train": (0, 1), "test": (1, 2, 1)}.items():
        some = [{"url": {"bytes": picture(n), "path": None}, "caption": f"{split} {n}"} for n in numbers]
        write_parquet(folder / f"{split}.parquet", some)
    counts = built(xmodal.done("build", folder, "--root", root), "records")["counts"]
    assert (counts["items"], counts["items:own/train"], counts["items:own/test"]) == (3, 2, 2)
    assert counts["odd: in files of several splits: kept in each"] == 1


def test_one_id_of_two_pictures_in_files_of_two_splits_stops(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_csv(tmp_path / f"{split}.csv", [{"n": "0", "url": f"{split}.png", "caption": "a"}])
    files = tuple(ListFile(f"{split}.csv", 1, None, f"own/{split}") for split in ("train", "test"))
    with pytest.raises(UserError, match=r"test\.csv:2: item '0' is in own/test, but was in own/train"):
        list(user_corpus(Description("mine", files, id="n", splits=())).parse(Raw.folder(tmp_path)))


@pytest.mark.parametrize("name", ["{}-00000-of-00001-6da3bb9ed3a8e1c9.parquet", "default/{}/0000.parquet"])
def test_files_named_as_the_hub_named_them_before_say_their_splits(
    name: str, xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        place = tmp_path / "dataset" / name.format(split)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(place, [{"url": {"bytes": picture(number), "path": None}, "caption": split}])
    rows = xmodal.done("build", f"{tmp_path}/dataset/records", "--root", root)
    found = table(root, Split, "splits", built(rows, "records")["identity"])
    assert sorted(split.name for split in found) == ["own/test", "own/train", "own/val"]


@pytest.mark.parametrize("name", ["partial-train/0000.parquet", "my_TEST_rows.parquet", "minival/a.parquet"])
def test_a_file_that_seems_to_say_a_split_is_asked_about(name: str, xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "data/retrieval/latest.parquet", tmp_path / "data" / name):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(place, [{"url": "a.png", "caption": "a", "part": "train"}])
    target = f"{tmp_path}/data/records"
    assert f"is {name} of a split? Say with --split" in xmodal("build", target, "--root", root).complaint
    for flags in (("--split", "part"), ("--splits", SHARES)):
        xmodal.done("build", target, "--root", root, *flags)
    (tmp_path / "data" / name).unlink()
    xmodal.done("build", target, "--root", root, "--name", "again")


def test_a_picture_of_the_same_name_elsewhere_is_not_taken_and_archives_are_left_alone(
    xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    write_pictures(folder, 2)
    write_csv(folder / "list.csv", [{"url": url, "caption": "a"} for url in ("p0.png", "cats/p1.png", "cats/2.png")])
    with zipfile.ZipFile(folder / "holiday.zip", "w") as archive:
        archive.writestr("dogs/2.png", picture(2))
        archive.writestr("cats/2.png", picture(3))
    (folder / "broken.tar.gz").write_bytes(b"not at all")
    rows = xmodal.done("build", folder / "list.csv", "--root", root)
    assert built(rows, "media")["counts"] == {"present": 1, "absent": 2}
    (folder / "broken.tar.gz").unlink()
    xmodal.done("retry", "list", "--root", root, "--raw", folder)
    assert built(xmodal.done("build", "list", "--root", root), "media")["counts"] == {"present": 1, "absent": 2}
    resealed = xmodal.done("seal", "list", "--root", root)["list"]["media"]
    (sealed,) = [output for output in find(str(root), "media") if output.identity == resealed]
    assert sealed.totals["counts"] == {"present": 2, "absent": 1}


def test_a_byte_order_mark_and_windows_lines_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(b"\xef\xbb\xbfurl,caption\r\na.png,a cat\r\n")
    assert captions_of(parsed(tmp_path, "list.csv")) == {"a.png": ["a cat"]}


def test_the_description_survives_its_file() -> None:
    said = Description("mine", (ListFile("a.csv", 3, "ab", "own/train"),), "u", "c", "i", None, ())
    assert Description.from_json(said.to_json()) == said
    assert DESCRIPTION in {source.path for source in user_corpus(said).sources}


def test_one_picture_under_two_names_lies_once(tmp_path: Path) -> None:
    embedded = EmbeddedPictures("embedded/x")
    assert embedded.path(b"same", ".png") == embedded.path(b"same", ".gif")


def test_a_long_list_is_streamed(tmp_path: Path) -> None:
    """The first row comes before the last one is read."""
    write_csv(tmp_path / "list.csv", [{"url": f"{n}.png", "caption": "a"} for n in range(2000)])
    with (tmp_path / "list.csv").open("ab") as file:
        file.write(b"too,many,columns\n")
    rows: Iterator[Row] = corpus_of(tmp_path, "list.csv").parse(Raw.folder(tmp_path))
    assert isinstance(next(rows), Item)
    with pytest.raises(UserError, match=r"list\.csv:2002"):
        list(rows)
