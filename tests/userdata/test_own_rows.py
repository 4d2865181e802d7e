"""Rows of a list of one's own: what cannot be used is refused by its line, or counted by its rule."""

import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import no_pauses as no_pauses
from tests.toy_root import one_thread as one_thread
from tests.userdata.test_own import (
    SHARES,
    WRITERS,
    Rows,
    built,
    captions_of,
    corpus_of,
    odd,
    parsed,
    picture,
    table,
    write_csv,
    write_jsonl,
    write_parquet,
    write_pictures,
)
from tests.userdata.test_own import pictures as pictures
from tests.userdata.test_own import root as root
from tests.userdata.test_own import xmodal as xmodal
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Oddity, Row, Split
from xmodal.root.outputs import find
from xmodal.userdata.description import DESCRIPTION, SPLITS, Description, ListFile, split_name
from xmodal.userdata.embedded_pictures import EmbeddedPictures
from xmodal.userdata.entries import ABSOLUTE
from xmodal.userdata.user_corpus import user_corpus


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
