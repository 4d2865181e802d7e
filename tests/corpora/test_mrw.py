"""MRW: what the generated publisher writes comes back as rows, and what is wrong with the archive is said."""

import json
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.demo.files import serve_at, write_tgz
from pipelines.demo.mrw import Reaction, reactions, write
from pipelines.demo.video import SHOWN_MS
from pipelines.demo.world import World, describe, frames
from pipelines.engine.build_options import BuildOptions
from pipelines.fetching.ledger import Ledger
from pipelines.publishing.dataset_repository import publish
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.conftest import tree_digest
from tests.misbehaving import serve
from tests.parsing import of, parser_of
from xmodal.corpora import Corpus, load, mrw
from xmodal.errors import UserError
from xmodal.media.frame_sampling import sample_frames
from xmodal.media.frame_times import Frame, Limits, Sampling
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Oddity, Row, Split
from xmodal.root.sealed_sets import read_lock
from xmodal.root.storage import open_storage

WORLD = World(items=60, image_size=32, motion=0.9)
ARCHIVE, CLIPS = "mrw-v1.0.tar.gz", "mrw-v1.0.json"
TRAIN, VALID, VAL, TEST = (f"split/{name}.tsv" for name in ("train", "valid", "val", "test"))
EMPTY, CUT_OFF = "mp4_url is empty: no address", "mp4_url is cut off: no address"
SAMPLES = Path(__file__).parents[3] / "shared/data/mrw/README.md"
parsed = parser_of(mrw)
Members = dict[str, bytes]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, Path]:
    folder = tmp_path_factory.mktemp("mrw")
    return write(WORLD, folder), folder


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(10, 40), st.sampled_from(["valid", "val"]))
def test_any_world_comes_back(tmp_path: Path, seed: int, items: int, validation: Literal["valid", "val"]) -> None:
    world = World(items, seed, 32, motion=0.5)
    corpus = write(world, tmp_path, validation)
    comes_back(list(reactions(world)), corpus, parsed(tmp_path))


def test_the_world_comes_back(published: tuple[Corpus, Path]) -> None:
    comes_back(list(reactions(WORLD)), published[0], parsed(published[1]))


def comes_back(expected: list[Reaction], corpus: Corpus, rows: list[Row]) -> None:
    items, splits = of(rows, Item), of(rows, Split)
    assert [(item.id, item.kind, item.media) for item in items] == [
        (each.id, "clip", f"mp4/{each.id}.mp4") for each in expected
    ]
    assert {split.item: split.name for split in splits} == {each.id: each.split for each in expected}
    for each, item, caption in zip(expected, items, of(rows, Caption), strict=True):
        assert (caption.id, caption.item, caption.position) == (each.id, each.id, 0)
        assert caption.text.lower().endswith(describe(each.scene, each.world, 0).lower().rstrip("."))
        url = each.images.get("mp4_url", "")
        assert item.url == (url if url.endswith(".mp4") else None)
    odd = {row.item: row.rule for row in of(rows, Oddity)}
    assert odd == {each.id: rule for each in expected if (rule := oddity_of(each))}
    found = Counter({"items": len(items), "captions": len(items)}) + Counter(f"items:{split.name}" for split in splits)
    assert corpus.counts == found


def oddity_of(each: Reaction) -> str | None:
    return {3: EMPTY, 7: CUT_OFF, 11: EMPTY}.get(each.scene.index % 19)


def test_equal_worlds_are_equal_bytes(published: tuple[Corpus, Path], tmp_path: Path) -> None:
    assert write(WORLD, tmp_path) == published[0]
    assert tree_digest(str(tmp_path)) == tree_digest(str(published[1]))


def test_clips_that_are_to_be_had_are_written(published: tuple[Corpus, Path]) -> None:
    """H.264, a frame of the scene after the other, each for its own time."""
    written = {each.id: each for each in reactions(WORLD) if each.at_hand}
    assert {path.stem for path in published[1].glob("mp4/*")} == written.keys()
    for each in list(written.values())[:5]:
        pictures: list[Frame] = []
        data, every = (published[1] / f"mp4/{each.id}.mp4").read_bytes(), Sampling(fps=1000, upscale=False)
        found = sample_frames(data, pictures.append, every, Limits(samples=10_000))
        assert (found.status, found.container, found.codec, found.frames) == ("ok", "mp4", "h264", each.scene.frames)
        shown = np.bincount(found.frame_of_sample).tolist()
        told = [SHOWN_MS[(each.scene.index + n) % len(SHOWN_MS)] for n in range(each.scene.frames)]
        assert shown[:-1] == told[:-1]  # MP4 loses how long the last is shown where the last to be decoded is another
        for picture, drawn in zip(pictures, frames(each.scene), strict=True):
            assert abs(picture.pixels_HW3.astype(int) - drawn).mean() < 20


def test_without_an_encoder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "pipelines.demo.video")
    with pytest.raises(ModuleNotFoundError, match="av"):
        write(WORLD, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("world", [replace(WORLD, motion=0.0), replace(WORLD, items=9)])
def test_a_world_that_mrw_cannot_hold_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MRW has clips in three splits"):
        write(world, tmp_path)


def test_every_clip_is_listed_and_those_without_address_are_to_be_got_by_hand(published: tuple[Corpus, Path]) -> None:
    sources = list(mrw.media(Raw.folder(published[1])))
    assert [source.path for source in sources] == [item.media for item in of(parsed(published[1]), Item)]
    by_hand = {source.path for source in sources if source.url is None}
    assert by_hand == {f"mp4/{each.id}.mp4" for each in reactions(WORLD) if oddity_of(each)}
    assert {(source.part, bool(source.url), bool(source.how)) for source in sources} == {
        ("media", True, False),
        ("media", False, True),
    }


def test_it_is_built_and_published_without_its_clips(published: tuple[Corpus, Path], tmp_path: Path) -> None:
    """Most clips from their addresses, one that has none from the authors' folder; some are dead."""
    corpus, folder, expected = *published, list(reactions(WORLD))
    hand, by_hand = tmp_path / "hand", [each for each in expected if oddity_of(each)]
    hand.mkdir()
    (hand / f"{by_hand[0].id}.mp4").write_bytes(b"from the authors")
    storage = open_storage(str(tmp_path / "root"))
    with serve(folder) as server:
        built, served = BuildOptions(storage, raw=hand), serve_at(corpus, server.url)
        records, media = CorpusBuild(built, served).build("records"), CorpusBuild(built, served).build("media")
    gone = [each for each in expected if each.gone and each not in by_hand]
    missing = {f"mp4/{each.id}.mp4" for each in [*gone, *by_hand[1:]]}
    assert {locked.path for locked in read_lock(media) if not locked.sha256} == missing
    kinds = Counter(state.kind for state in Ledger(storage, "media", "mrw").states() if state.failed)
    assert kinds == {"http_404": len(gone), "by_hand": len(by_hand) - 1}
    assert records.totals["counts"][f"odd: {CUT_OFF}"] == 3
    out = publish(corpus, storage, tmp_path / "out")
    assert out["withheld"] == {"media": "ids"}
    assert out["rows"] == {"mrw": {"train": 48, "val": 6, "test": 6}}
    assert not list((tmp_path / "out").rglob("*.mp4"))
    card = (tmp_path / "out/README.md").read_text()
    assert "academic purposes only" in card
    assert "$" not in card
    assert "<!--" not in card


# ---------------------------------------------------------------------------------------------------------------- rules


def test_the_order_of_the_archive_and_what_else_is_in_it_do_not_matter(folder: Path) -> None:
    expected = parsed(folder)
    members = unpacked(folder)
    others = {"./README": b"x", "./._mrw-v1.0.json": b"\0\5", "split/all.tsv": b"?", "mrw_vocab.pkl": b"\x80"}
    write_tgz(folder / ARCHIVE, (others | {f"./{name}": data for name, data in reversed(members.items())}).items())
    assert sorted(map(str, parsed(folder))) == sorted(map(str, expected))


def test_a_clip_in_no_split_is_kept_and_counted(folder: Path) -> None:
    members = unpacked(folder)
    left, _, members[TEST] = members[TEST].partition(b"\n")
    pack(folder, members)
    odd = [row for row in of(parsed(folder), Oddity) if "split" in row.rule]
    assert odd == [Oddity("clip in no split: kept without one", f"{ARCHIVE}!{CLIPS}[9]", left.decode())]
    assert len(of(parsed(folder), Item)) == 60
    assert len(of(parsed(folder), Split)) == 59


def test_a_byte_order_mark_and_other_line_ends_do_no_harm(folder: Path) -> None:
    expected, members = parsed(folder), unpacked(folder)
    lists = {name: data.replace(b"\n", b"\r\n") for name, data in members.items() if name != CLIPS}
    pack(folder, {name: b"\xef\xbb\xbf" + data for name, data in (members | lists).items()})
    assert parsed(folder) == expected


@pytest.mark.parametrize(
    ("images", "url", "rule"),
    [
        ({"mp4_url": "http://media1.giphy.com/media/c84Hf3KIsQ1uo/giphy"}, None, CUT_OFF),
        ({"mp4_url": "https://media1.giphy.com/media/a/giphy.mp4?b=c"}, "same", None),
        ({"mp4_url": "https://media1.giphy.com/media/a/giphy?b=c.mp4"}, None, CUT_OFF),
        ({"mp4_url": ""}, None, EMPTY),
        ({"mp4_url": None}, None, EMPTY),
        ({}, None, EMPTY),
    ],
)
def test_addresses(folder: Path, images: dict[str, Any], url: str | None, rule: str | None) -> None:
    change(folder, lambda clips: clips[0].update(images=images))
    rows = parsed(folder)
    first = of(rows, Item)[0]
    assert first.url == (images["mp4_url"] if url else None)
    assert [odd.rule for odd in of(rows, Oddity) if odd.item == first.id] == ([rule] if rule else [])
    assert next(mrw.media(Raw.folder(folder))).url == first.url


def test_white_space_is_one_space(folder: Path) -> None:
    change(folder, lambda clips: clips[0].update(sentence=" MRW\tI  see\n\u00a0it "))
    assert of(parsed(folder), Caption)[0].text == "MRW I see it"


# ------------------------------------------------------------------------------------------------------------- troubles


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda clips: clips.clear(), rf"{ARCHIVE} has no member {CLIPS}, or that has no clips"),
        (lambda clips: clips[2].pop("id"), r"json\[2\] has no 'id'"),
        (lambda clips: clips[2].pop("sentence"), r"json\[2\] has no 'sentence'"),
        (lambda clips: clips[2].pop("images"), r"json\[2\] has no 'images'"),
        (lambda clips: clips[2].update(id=7), r"json\[2\]: 'id' is 7, no str"),
        (lambda clips: clips[2].update(id="../x"), r"json\[2\]: '../x' is no id of giphy"),
        (lambda clips: clips[2].update(sentence=" "), r"json\[2\] \(\w+\): its sentence is empty"),
        (lambda clips: clips[2].update(images=[]), r"json\[2\]: 'images' is \[\], no dict"),
        (lambda clips: clips[2].update(images={"mp4_url": "giphy.mp4"}), r"'mp4_url': 'giphy.mp4' is no http address"),
        (lambda clips: clips[2].update(images={"mp4_url": 3}), r"json\[2\]: 'mp4_url' is 3, no str"),
        (lambda clips: clips.append(clips[0]), r"json\[60\]: id \w+ is there a second time"),
        (lambda clips: clips.pop(3), rf"{TRAIN}:4: \w+ is not in {CLIPS}"),
        (lambda clips: clips.insert(0, "x"), r"json\[0\] has no 'id'"),
    ],
)
def test_wrong_clips_are_refused_with_their_place(
    folder: Path, edit: Callable[[list[Any]], object], message: str
) -> None:
    change(folder, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def both(members: Members) -> object:
    return members.update({VAL: members[VALID]})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda members: members.pop(CLIPS), f"{ARCHIVE} has no member {CLIPS}"),
        (both, f"{ARCHIVE}!{VAL} is a second list of mrw/val: remove one of them"),
        (lambda members: members.pop(VALID), f"{ARCHIVE} has no {VALID}, the list of mrw/val"),
        (lambda members: members.pop(TRAIN), f"{ARCHIVE} has no {TRAIN}, the list of mrw/train"),
        (lambda members: members.update({TEST: b"\n"}), f"{ARCHIVE}!{TEST} is empty"),
        (lambda members: members.update({TEST: b"a b\n"}), f"{ARCHIVE}!{TEST}:1: 'a b' is no id of giphy"),
        (lambda members: members.update({TEST: b"a\tb\n"}), rf"{ARCHIVE}!{TEST}:1: 'a\\tb' is no id of giphy"),
        (lambda members: members.update({TEST: b"a\n\xff\n"}), f"{ARCHIVE}!{TEST}:2 is not UTF-8"),
        (lambda members: members.update({TEST: b"zzz\n"}), f"{ARCHIVE}!{TEST}:1: zzz is not in {CLIPS}"),
        (
            lambda members: members.update({TEST: 2 * members[TEST]}),
            f"{ARCHIVE}!{TEST}:7: id .* is there a second time",
        ),
        (lambda members: members.update({TEST: members[VALID]}), f"{ARCHIVE}!{TEST}:1: .* is in mrw/val too"),
        (lambda members: members.update({CLIPS: b"{}"}), f"{ARCHIVE}!{CLIPS} is not the JSON it should be"),
        (lambda members: members.update({CLIPS: b'["\xff"]'}), f"{ARCHIVE}!{CLIPS} is not UTF-8"),
        (lambda members: members.update({CLIPS: members[CLIPS][:-50]}), f"{ARCHIVE}!{CLIPS} is not the JSON"),
    ],
)
def test_a_wrong_archive_is_refused_with_its_place(
    folder: Path, edit: Callable[[Members], object], message: str
) -> None:
    members = unpacked(folder)
    edit(members)
    pack(folder, members)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_media_of_an_archive_without_clips_are_refused(folder: Path) -> None:
    pack(folder, {"other.json": b"[]"})
    with pytest.raises(UserError, match=f"{ARCHIVE} has no member {CLIPS}"):
        mrw.media(Raw.folder(folder))


def test_a_damaged_or_missing_archive_is_named(folder: Path) -> None:
    whole = (folder / ARCHIVE).read_bytes()
    (folder / ARCHIVE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{ARCHIVE} is damaged"):
        parsed(folder)
    (folder / ARCHIVE).unlink()
    with pytest.raises(UserError, match=f"{ARCHIVE} is not among the publisher's files"):
        parsed(folder)


# ------------------------------------------------------------------------------------------------------- the real thing


def test_the_corpus_is_the_published_one() -> None:
    assert load("mrw") is mrw.CORPUS
    assert [source.path for source in mrw.CORPUS.sources] == [ARCHIVE]


def test_real_sentences(tmp_path: Path) -> None:
    if not SAMPLES.is_file():
        pytest.skip("no real samples of MRW")
    pairs = [line.split("\t") for line in SAMPLES.read_text().splitlines() if line.count("\t") == 1][1:]
    clips = [
        {"id": id, "sentence": text, "images": {"mp4_url": f"http://media3.giphy.com/media/{id}/giphy.mp4"}}
        for text, id in pairs
    ]
    lists = {name: f"{id}\n".encode() for name, (_, id) in zip((TRAIN, VAL, TEST), pairs, strict=False)}
    write_tgz(tmp_path / ARCHIVE, ({CLIPS: json.dumps(clips).encode()} | lists).items())
    rows = parsed(tmp_path)
    assert [(row.text, row.item) for row in of(rows, Caption)] == [tuple(pair) for pair in pairs]
    assert len(pairs) == 4
    assert [odd.rule for odd in of(rows, Oddity)] == ["clip in no split: kept without one"]


def unpacked(folder: Path) -> Members:
    with tarfile.open(folder / ARCHIVE) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def pack(folder: Path, members: Members) -> None:
    write_tgz(folder / ARCHIVE, members.items())


def change(folder: Path, edit: Callable[[list[Any]], object]) -> None:
    """Of the clips of the archive."""
    members = unpacked(folder)
    clips = json.loads(members[CLIPS])
    edit(clips)
    pack(folder, members | {CLIPS: json.dumps(clips).encode()})
