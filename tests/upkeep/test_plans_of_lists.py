"""Plans of a user's own list before it is built, and after it has grown: what they say is what the build then does."""

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clips import gif, numbered
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import no_pauses as no_pauses
from tests.commands.test_cli import xmodal as xmodal
from tests.conftest import tree_digest
from tests.toy_root import one_thread as one_thread
from tests.userdata.test_changed_lists import List, sealed_bytes
from tests.userdata.test_changed_lists import mine as mine
from tests.userdata.test_changed_lists import root as root
from tests.userdata.test_own import picture, write_csv, write_jsonl, write_parquet, write_pictures

SMALL = ("--set", "pixels.side=16")
CLIPS = ("frames.short_side=48", "clips.network=resnet18", "clips.weights=random:0", "clips.resize=32", "clips.crop=32")
HEADERLESS = ("--header", "no", "--url", "1", "--caption", "2")


def planned(xmodal: Xmodal, *words: object) -> dict[str, dict[str, Any]]:
    """The rows of a plan by their stages; whoever reads them on a terminal gets them too."""
    assert xmodal("plan", *words).code == 0
    return {row["stage"]: row for row in xmodal.done("plan", *words)["stages"]}


def taken_over(said: str, stage: str) -> int:
    (found,) = re.findall(rf"{stage}: (\d+) rows were taken over", said)
    return int(found)


def write_headerless(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(f"{row['url']}\t{row['caption']}\n" for row in rows))


def write_packed(path: Path, rows: list[dict[str, str]]) -> None:
    write_csv(path, rows)
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "write", "flags"),
    [
        ("list.csv", write_csv, ()),
        ("list.tsv", write_headerless, HEADERLESS),
        ("list.json", lambda path, rows: path.write_text(json.dumps(rows)), ()),
        ("list.jsonl", write_jsonl, ()),
        ("list.csv.gz", write_packed, ()),
        ("list.parquet", write_parquet, ()),
    ],
)
def test_a_list_that_was_never_built_is_planned_as_it_lies(
    name: str, write: Callable[[Path, Any], None], flags: tuple[str, ...], xmodal: Xmodal, tmp_path: Path, root: Path
) -> None:
    names = write_pictures(tmp_path / "data/pictures", 5)
    write(tmp_path / "data" / name, [{"url": f"pictures/{n}", "caption": f"{t} {n}"} for n in names for t in "ab"])
    before = tree_digest(str(tmp_path))
    rows = planned(xmodal, f"{tmp_path}/data/{name}/resnet", "--root", root, *flags)
    assert [*rows] == ["sources", "records", "media", "resnet"]
    assert (rows["records"]["items"], rows["records"]["captions"]) == (5, 10)
    media, size = rows["media"], sum(len(picture(number)) for number in range(5))
    assert [media[what] for what in ("files", "at_hand", "at_hand_bytes", "requests")] == [5, 5, size, 0]
    assert media["writes"] == 0, "links on the same disk"
    assert (rows["resnet"]["items"], rows["resnet"]["by"]) == (5, "a table")
    assert rows["resnet"]["compute_seconds"] > 0
    assert rows["resnet"]["writes"] > 10_000
    assert "plan again" not in xmodal("plan", tmp_path / "data" / name, "--root", root, *flags).out
    assert tree_digest(str(tmp_path)) == before
    assert not root.exists()
    made = xmodal.done("build", f"{tmp_path}/data/{name}/records", "--root", root, *flags)["outputs"][-1]
    assert (made["counts"]["items"], made["counts"]["captions"]) == (5, 10)


def test_addresses_and_what_is_not_there_are_told_apart(xmodal: Xmodal, tmp_path: Path, root: Path) -> None:
    write_pictures(tmp_path / "data", 2)
    (tmp_path / "elsewhere.png").write_bytes(picture(9))
    (tmp_path / "data/link.png").symlink_to(tmp_path / "elsewhere.png")
    urls = [f"http://127.0.0.1:9/{number}.jpg" for number in range(7)]
    listed = ["p0.png", "p1.png", "gone.png", "link.png", *urls]
    write_csv(tmp_path / "data/captions.csv", [{"url": url, "caption": "a"} for url in listed])
    media = planned(xmodal, tmp_path / "data", "--root", root)["media"]
    assert [media[what] for what in ("files", "at_hand", "requests", "unknown_sizes")] == [11, 2, 7, 7]
    assert (media["by_hand"], media["links"]) == (["gone.png"], ["link.png"])
    assert 0 < media["bytes_between"][0] < media["bytes_between"][1]
    assert planned(xmodal, tmp_path / "data", "--root", root, "--follow-links")["media"]["at_hand"] == 3
    xmodal("build", tmp_path / "data", "--root", root)
    media = planned(xmodal, "data/media", "--root", root)["media"]
    assert [media[what] for what in ("done", "requests", "by_hand", "failed_before")] == [2, 0, [], 9]


def test_pictures_inside_a_list_are_at_hand(xmodal: Xmodal, tmp_path: Path, root: Path) -> None:
    (tmp_path / "mine").mkdir()
    some = [{"url": {"bytes": picture(n), "path": f"{n}.png"}, "caption": f"{n}"} for n in range(4)]
    write_parquet(tmp_path / "mine/train.parquet", some)
    rows = planned(xmodal, f"{tmp_path}/mine/pixels", "--root", root, *SMALL)
    assert (rows["media"]["at_hand"], rows["media"]["by_hand"], rows["pixels"]["items"]) == (1, [], 4)
    assert rows["media"]["writes"] > 4 * len(picture(0)) / 2
    assert not root.exists()
    xmodal.done("build", f"{tmp_path}/mine/pixels", "--root", root, *SMALL)
    write_parquet(tmp_path / "mine/train.parquet", [*some[1:], {**some[0], "url": {"bytes": picture(9), "path": ""}}])
    rows = planned(xmodal, "mine/pixels", "--root", root, *SMALL)
    assert (rows["pixels"]["taken"], rows["pixels"]["new"]) == (3, 1)


LISTS = {
    "columns.csv": "url,caption\na.png,b,c\n",
    "empty.csv": "",
    "header.csv": "url,caption\n",
    "absolute.csv": "url,caption\n/a/b.png,c\n",
    "later.csv": "url,caption\n" + "a.png,b\n" * 400 + "a.png\n",
    "clips.csv": "url,caption\na.gif,b\n",
    "object.json": '{"url": "a.png"}',
    "split.csv": "url,caption,split\na.png,b,train\na.png,c,test\n",
}


BAD = ("columns.csv", "empty.csv", "header.csv", "absolute.csv", "later.csv", "object.json", "missing.csv")


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        *((f"{name}/{stage}", ()) for name in BAD for stage in ("records", "pixels")),
        ("clips.csv/pixels", ()),
        ("clips.csv/plausible", ()),
        ("clips.csv", ("--url", "x")),
        ("clips.csv", ("--split", "split", "--splits", "train=1")),
        ("split.csv", ("--split", "split")),
    ],
)
def test_a_bad_list_gives_the_error_that_a_build_gives(
    target: str, flags: tuple[str, ...], xmodal: Xmodal, tmp_path: Path, root: Path
) -> None:
    for name, text in LISTS.items():
        (tmp_path / name).write_text(text)
    said = xmodal("plan", tmp_path / target, "--root", root, *flags).complaint
    assert not root.exists()
    assert said in xmodal("build", tmp_path / target, "--root", root, *flags).err.splitlines()


def test_rows_of_a_list_that_grew_are_new_or_taken_over(xmodal: Xmodal, mine: List, root: Path) -> None:
    xmodal.done("build", f"{mine.place}/pixels", "--root", root, *SMALL)
    assert [*planned(xmodal, "mine/pixels", "--root", root, *SMALL)] == ["pixels"]
    del mine.rows["p0.png"]
    for number in (6, 7, 8):
        mine.add(f"p{number}.png", number)
    mine.replace("p3.png", 99)
    mine.write()
    before = tree_digest(str(root))
    for target in (f"{mine.place}/pixels", "mine/pixels"):
        rows = planned(xmodal, target, "--root", root, *SMALL)
        assert [rows["media"][what] for what in ("files", "done", "at_hand")] == [8, 4, 4]
        assert [rows["pixels"][what] for what in ("items", "taken", "new")] == [8, 4, 4]
    assert "8 items, 4 rows taken over and 4 new" in xmodal("plan", "mine/pixels", "--root", root, *SMALL).out
    assert "taken" not in planned(xmodal, "mine/pixels", "--root", root, "--set", "pixels.side=8")["pixels"]
    assert tree_digest(str(root)) == before
    xmodal.done("build", "mine", "--root", root)
    assert planned(xmodal, "mine/pixels", "--root", root, *SMALL)["pixels"]["taken"] == 4
    assert taken_over(xmodal("build", "mine/pixels", "--root", root, *SMALL).err, "pixels") == 4


def test_rows_that_are_taken_over_cost_no_time(xmodal: Xmodal, mine: List, root: Path) -> None:
    sets = [word for name in ("network=resnet18", "weights=random:0") for word in ("--set", f"resnet.{name}")]
    xmodal.done("build", f"{mine.place}/resnet", "--root", root, *sets)
    whole = planned(xmodal, f"{mine.place}/resnet", "--root", root.parent / "other", *sets)["resnet"]
    for number in (6, 7):
        mine.add(f"p{number}.png", number)
    mine.write()
    grown = planned(xmodal, "mine/resnet", "--root", root, *sets)["resnet"]
    assert (grown["taken"], grown["new"]) == (6, 2)
    assert grown["compute_seconds"] < whole["compute_seconds"]


def test_a_picture_that_was_edited_is_planned_anew(xmodal: Xmodal, mine: List, root: Path) -> None:
    xmodal.done("build", f"{mine.place}/pixels", "--root", root, *SMALL)
    mine.replace("p3.png", 77)
    before = tree_digest(str(root))
    assert "1 edited (pictures/p3.png)" in xmodal("plan", "mine/pixels", "--root", root, *SMALL).err
    rows = planned(xmodal, "mine/pixels", "--root", root, *SMALL)
    assert [rows["media"][what] for what in ("done", "at_hand")] == [5, 1]
    assert [rows["pixels"][what] for what in ("taken", "new")] == [5, 1]
    assert tree_digest(str(root)) == before
    assert sealed_bytes(root, "pictures/p3.png") == picture(3)


def test_clips_of_a_list_that_grew_are_counted_through_their_frames(xmodal: Xmodal, tmp_path: Path, root: Path) -> None:
    place, sets = tmp_path / "films.csv", [word for setting in CLIPS for word in ("--set", setting)]

    def write(count: int) -> None:
        for number in range(count):
            (tmp_path / f"{number}.gif").write_bytes(gif([numbered(number), numbered(number + 1)]))
        write_csv(place, [{"url": f"{number}.gif", "caption": f"film {number}"} for number in range(count)])

    write(3)
    rows = planned(xmodal, f"{place}/clips", "--root", root, *sets)
    assert [rows[stage]["items"] for stage in ("frames", "clips")] == [3, 3]
    assert rows["clips"]["compute_seconds"] > 0
    made = xmodal("build", f"{place}/clips", "--root", root, *sets)
    assert made.code == 0, made.err
    write(5)
    rows = planned(xmodal, "films/clips", "--root", root, *sets)
    assert [(rows[stage]["taken"], rows[stage]["new"]) for stage in ("frames", "clips")] == [(3, 2), (3, 2)]
    built = xmodal("build", "films/clips", "--root", root, *sets).err
    assert [taken_over(built, stage) for stage in ("frames", "clips")] == [3, 3]


def test_a_copy_takes_room_where_a_link_cannot_be(xmodal: Xmodal, mine: List, tmp_path: Path) -> None:
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no second disk")
    media = planned(xmodal, mine.place, "--root", "/dev/shm/no-such-root")["media"]
    assert media["writes"] == media["at_hand_bytes"] > 0
    assert not os.path.exists("/dev/shm/no-such-root")


def test_rows_of_an_unfinished_output_are_done_and_not_taken_over(xmodal: Xmodal, mine: List, root: Path) -> None:
    for number in range(6, 20):
        mine.add(f"p{number}.png", number)
    mine.write()
    sets = (*SMALL, "--set", "pixels.rows_per_shard=16")
    made = xmodal.done("build", f"{mine.place}/pixels", "--root", root, *sets)["outputs"][-1]
    Path(made["path"], "pixels/c/0/0/0/0").write_bytes(b"damaged")
    assert xmodal("verify", "--root", root, "--forget").code == 1
    rows = planned(xmodal, "mine/pixels", "--root", root, *sets)["pixels"]
    assert [rows[what] for what in ("units", "done", "items")] == [3, 2, 20]
    assert "taken" not in rows
