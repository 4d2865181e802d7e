"""Your own data through the command line: lists, folders and datasets become a corpus that every stage works on."""

import csv
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipelines.fetching import corpus_names
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
from xmodal.userdata.description import SPLITS, Description, ListFile
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
