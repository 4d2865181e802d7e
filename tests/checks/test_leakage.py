"""Leakage: every copy across splits and corpora is found with its ids, nothing else is, and a split can be cleaned."""

import io
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from pipelines.cli import main
from pipelines.demo import coco, tgif
from pipelines.demo.pictures import gif, jpeg
from pipelines.demo.world import World, draw, frames, scene, scenes
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build, serial
from pipelines.engine.ray_runner import RayRunner
from pipelines.stages.fingerprints import FingerprintsConfig
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from pipelines.upkeep.leakage_report import FingerprintedCorpus, leakage
from pipelines.upkeep.planning import plan
from tests.conftest import tree_digest
from tests.made import made
from tests.publishers import flickr30k
from tests.stages.test_pinned import CORPUS as MINE
from tests.stages.test_resnet_stage import ABSENT, BROKEN, ITEMS, backwards, broken, sealed
from tests.stages.test_resnet_stage import archives as archives
from xmodal.batches.dataset import open_dataset
from xmodal.checks.leaks import DISTANCE, FARTHEST, SplitMedia, leaks, near_pairs, read_fingerprints
from xmodal.checks.perceptual_hashes import BITS, FRAMES, hash_media, hash_picture
from xmodal.corpora import Corpus, Source
from xmodal.corpora.coco import SPLITS as COCO_SPLITS
from xmodal.errors import UserError
from xmodal.media.images import UnreadableImage
from xmodal.raw.raw_files import Raw
from xmodal.recipes import View
from xmodal.records.derived_splits import RandomSplitSizes
from xmodal.records.tables import Caption, Item, Kind, Row, Split
from xmodal.records.views import captions_by_item, members
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

SHARED = Path(__file__).parents[3] / "shared/media"
SIZED = World(items=60, image_size=128)
SCENES = list(scenes(SIZED))
PICTURES = [Image.fromarray(draw(each)) for each in SCENES]

Files = Mapping[str, bytes | None]  # by id; None where nobody has it


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.fetching.fetcher.PAUSES_SECONDS", (0.0, 0.0, 0.0))


def encoded(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def published(
    folder: Path, name: str, splits: Mapping[str, Files], kind: Kind = "image"
) -> tuple[BuildOptions, Corpus]:
    """A corpus with these media, and the site to build it at; all corpora of one folder share a root."""
    raw = folder / name
    raw.mkdir()
    (raw / "list.txt").write_text("nothing but this line\n")
    files = {id: data for some in splits.values() for id, data in some.items()}
    for id, data in files.items():
        if data is not None:
            (raw / id).write_bytes(data)

    def parse(raw: Raw) -> Iterator[Row]:
        yield from (Item(id, id, kind) for id in sorted(files))
        yield from (Caption(f"{id}#0", id, 0, "a thing") for id in sorted(files))
        yield from (Split(id, split) for split, some in splits.items() for id in sorted(some))

    def media(raw: Raw) -> Iterator[Source]:
        return (Source(id, f"gopher://gone/{id}", part="media") for id in sorted(files))

    source = Source("list.txt", how="written by the test")
    corpus = Corpus(name, "", "", name, (source,), parse, media)
    site = BuildOptions(open_storage(str(folder / "root")), raw=raw)
    build_stages(CorpusBuild(site, corpus), ["fingerprints"])
    return site, corpus


def report(folder: Path, splits: Mapping[str, Files], *arguments: Any, kind: Kind = "image") -> dict[str, Any]:
    site, corpus = published(folder, "mine", splits, kind)
    return leakage(site.storage, [corpus.name], *arguments)


def only(found: dict[str, Any]) -> dict[str, Any]:
    (pair,) = found["pairs"]
    return pair  # type: ignore[no-any-return]


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "encoded": lambda p: Image.open(io.BytesIO(encoded(p, "JPEG", quality=75))),
    "palette": lambda p: p.quantize(128),
    "halved": lambda p: p.resize((p.width // 2, p.height // 2)),
    "doubled": lambda p: p.resize((p.width * 2, p.height * 2), Image.Resampling.BICUBIC),
    "squeezed": lambda p: p.resize((75, 75)),
    "gray": lambda p: p.convert("L"),
    "cut": lambda p: p.crop((1, 1, p.width - 1, p.height - 1)),
}
NO_COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "turned": lambda p: p.transpose(Image.Transpose.ROTATE_90),
    "a half": lambda p: p.crop((0, 0, p.width // 2, p.height)),
    "inverted": ImageOps.invert,
}

# ---------------------------------------------------------------------------------------------------------------- looks


def far(one: Image.Image, other: Image.Image) -> int:
    """A picture without look is near none."""
    first, second = hash_picture(one), hash_picture(other)
    return BITS if first is None or second is None else (first ^ second).bit_count()


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_is_near(copy: str) -> None:
    """One in a hundred may be lost."""
    lost = [n for n, picture in enumerate(PICTURES) if far(picture, COPIES[copy](picture)) > DISTANCE]
    assert len(lost) <= 2, lost


@pytest.mark.parametrize("change", NO_COPIES)
def test_what_is_no_copy_is_not_near(change: str) -> None:
    found = [n for n, picture in enumerate(PICTURES) if far(picture, NO_COPIES[change](picture)) <= DISTANCE]
    assert found == []


def test_another_scene_is_not_near_but_another_shot_of_the_same_is() -> None:
    """But for a few of the 1,770 pairs: one shape at the same place on an even ground, and nothing else."""
    near = [(n, m) for n in range(len(PICTURES)) for m in range(n) if far(PICTURES[n], PICTURES[m]) <= DISTANCE]
    assert len(near) <= 4
    for pair in near:
        ((one,), (other,)) = (SCENES[number].things for number in pair)
        assert (one.row, one.column) == (other.row, other.column)
    shots = [tuple(map(Image.fromarray, frames(replace(each, frames=2)))) for each in SCENES]
    assert all(one.tobytes() != other.tobytes() for one, other in shots)
    assert sum(far(one, other) > DISTANCE for one, other in shots) <= 2


def test_the_same_things_elsewhere_are_another_picture() -> None:
    world = World(items=60, image_size=128, ambiguity=1.0, identities=1)
    pictures = [Image.fromarray(draw(scene(world, index))) for index in range(1, 40)]
    near = sum(far(one, other) <= DISTANCE for n, one in enumerate(pictures) for other in pictures[:n])
    assert near <= 1, "of 741 pairs"


def test_a_look_is_the_transform_by_its_definition() -> None:
    picture = PICTURES[3]
    gray = np.asarray(picture.convert("L").resize((32, 32), Image.Resampling.BILINEAR), float)
    known = sorted((u + v, u, v) for u in range(32) for v in range(32))[1:65]
    place = 2 * np.arange(32) + 1
    strength = np.array(
        [
            (gray * np.cos(np.pi * u * place / 64)[:, None] * np.cos(np.pi * v * place / 64)).sum()
            / np.sqrt((1 + (u == 0)) * (1 + (v == 0)))
            for _, u, v in known
        ]
    )
    assert hash_picture(picture) == int("".join("01"[bit] for bit in (strength > np.median(strength)).astype(int)), 2)
    assert (hash_picture(picture) or 0).bit_count() == BITS // 2


def flat_pictures() -> dict[str, Image.Image]:
    ramp = Image.fromarray(np.tile(np.linspace(0, 255, 96).astype(np.uint8), (64, 1)))
    halves = Image.new("RGB", (96, 64), "black")
    halves.paste("white", (0, 0, 48, 64))
    return {"one colour": Image.new("RGB", (96, 64), (90, 30, 200)), "ramp": ramp, "halves": halves}


@pytest.mark.parametrize("name", flat_pictures())
def test_a_picture_with_nothing_on_it_has_no_look(name: str) -> None:
    for form in ("PNG", "JPEG", "WEBP"):
        assert hash_media(encoded(flat_pictures()[name], form), "image") is None


def test_a_clip_has_looks_of_its_beginning_middle_and_end() -> None:
    moving = replace(scene(World(items=9, image_size=96, motion=1.0), 4), frames=12)
    pictures = [Image.fromarray(each) for each in frames(moving)]
    found = hash_media(gif(moving), "clip")
    assert found is not None
    for bits, frame in zip(found, (2, 6, 10), strict=True):
        assert (bits ^ (hash_picture(pictures[frame]) or 0)).bit_count() <= DISTANCE
    still = hash_media(encoded(pictures[0], "GIF"), "clip")
    assert still == hash_media(encoded(pictures[0], "GIF"), "image")
    assert len(still or ()) == FRAMES


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real media")
def test_real_photographs_are_near_their_copies_and_nothing_else() -> None:
    names = ("bua_cat", "bua_fish-bike", "exif_Portrait_6", "exif_Landscape_1", "pillow_hopper", "skimage_rocket")
    pictures = [Image.open(SHARED / f"{name}.jpg").convert("RGB") for name in names]
    for copy in COPIES.values():
        assert max(far(picture, copy(picture)) for picture in pictures) <= DISTANCE
    for change in NO_COPIES.values():
        assert min(far(picture, change(picture)) for picture in pictures) > DISTANCE
    assert min(far(one, other) for n, one in enumerate(pictures) for other in pictures[:n]) > FARTHEST


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real media")
def test_real_clips_are_read_where_pillow_reads_them() -> None:
    assert hash_media((SHARED / "imageio_newtonscradle.gif").read_bytes(), "clip") is not None
    for name in ("imageio_cockatoo.mp4", "piexif_notjpeg.jpg"):
        with pytest.raises(UnreadableImage):
            hash_media((SHARED / name).read_bytes(), "clip")


# ---------------------------------------------------------------------------------------------------------- near pairs


def by_definition(rows: list[tuple[int | None, ...]], distance: int) -> list[tuple[int, int, int]]:
    """Frames that one of the two has no look of do not count, and two of three must."""
    found = []
    for one, other in combinations(range(len(rows)), 2):
        pairs = zip(rows[one], rows[other], strict=True)
        bits = [(a ^ b).bit_count() for a, b in pairs if a is not None and b is not None]
        if len(bits) >= 2 and max(bits) <= distance:
            found.append((one, other, max(bits)))
    return found


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(0, FARTHEST))
def test_every_near_pair_and_no_other_is_found(data: st.DataObject, distance: int) -> None:
    bits = st.lists(st.integers(0, BITS - 1), max_size=FARTHEST + 3)
    centres = data.draw(st.lists(st.integers(0, 2**BITS - 1), min_size=1, max_size=3))
    rows = []
    for _ in range(data.draw(st.integers(0, 14))):
        flips = [sum({1 << bit for bit in data.draw(bits)}) for _ in range(FRAMES)]
        flat = data.draw(st.sampled_from([None, None, 0, 1, 2]))
        looks = (data.draw(st.sampled_from(centres)) ^ flip for flip in flips)
        rows.append(tuple(None if place == flat else each for place, each in enumerate(looks)))
    looks_NF = np.array([[each or 0 for each in row] for row in rows], np.uint64).reshape(-1, FRAMES)
    known_NF = np.array([[each is not None for each in row] for row in rows], bool).reshape(-1, FRAMES)
    found = near_pairs(looks_NF, known_NF, distance)
    assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == by_definition(rows, distance)


def test_as_many_as_coco_and_more_take_little_memory() -> None:
    random, count = np.random.default_rng(0), 150_000
    words = random.integers(0, 2**64, count, np.uint64)
    words[-100:] = words[:100]
    for bit in range(6):
        words[-100:] ^= np.uint64(1 << (11 * bit))
    tracemalloc.start()
    ones, others, distances = near_pairs(np.repeat(words[:, None], FRAMES, axis=1), np.ones((count, FRAMES), bool), 6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    planted = (others - ones == count - 100) & (distances == 6)
    assert planted.sum() == 100
    assert len(ones) < 120
    assert peak < 64 * 2**20


# ----------------------------------------------------------------------------------------------------------- the report


def test_copies_across_splits_are_named(tmp_path: Path) -> None:
    pictures = [encoded(picture) for picture in PICTURES[:6]]
    again = encoded(PICTURES[2].resize((80, 70)), "JPEG", quality=80)
    found = report(
        tmp_path,
        {
            "me/train": {"a": pictures[0], "b": pictures[1], "c": pictures[2], "twin": pictures[1]},
            "me/test": {"x": pictures[1], "y": again, "z": pictures[3], "m": encoded(ImageOps.mirror(PICTURES[0]))},
            "me/val": {"v": pictures[4]},
        },
    )
    pairs = {(pair["one"], pair["other"]): pair for pair in found["pairs"]}
    assert len(pairs) == 3
    leak = pairs["mine: me/train", "mine: me/test"]
    assert leak["exact"] == (("b", "x"), ("twin", "x"))
    assert [pair[:2] for pair in leak["near"]] == [("c", "y")]
    assert 0 <= leak["near"][0][2] <= DISTANCE
    assert (leak["same"], leak["items_of_one"], leak["items_of_other"]) == ((), 3, 2)
    assert not any(pairs[names][how] for names in pairs if "mine: me/val" in names for how in ("same", "exact", "near"))


def test_an_item_in_two_splits_of_one_author_is_told_and_two_authors_never_mix(tmp_path: Path) -> None:
    one, other = encoded(PICTURES[0]), encoded(PICTURES[1])
    splits: dict[str, Files] = {
        "me/train": {"a": one, "b": other},
        "me/test": {"a": one},
        "you/test": {"a": one, "b": other},
    }
    leak = only(report(tmp_path, splits))
    assert (leak["one"], leak["other"]) == ("mine: me/train", "mine: me/test")
    assert (leak["same"], leak["exact"], leak["near"]) == (("a",), (), ())


def test_flat_pictures_are_copies_only_where_their_bytes_are_equal(tmp_path: Path) -> None:
    flat = Image.new("RGB", (64, 48), (200, 30, 30))
    other = Image.new("RGB", (64, 48), (30, 200, 30))
    splits: dict[str, Files] = {
        "me/train": {"a": encoded(flat)},
        "me/test": {"b": encoded(flat), "c": encoded(flat, "JPEG"), "d": encoded(other)},
    }
    found = report(tmp_path, splits)
    assert (only(found)["exact"], only(found)["near"]) == ((("a", "b"),), ())
    assert found["corpora"][0].items() >= {"media": 4, "flat": 4}.items()


def test_damaged_media_are_compared_by_their_bytes_and_absent_ones_not_at_all(tmp_path: Path) -> None:
    cut = encoded(PICTURES[0], "JPEG")[:700]
    splits: dict[str, Files] = {
        "me/train": {"a": cut, "b": encoded(PICTURES[0], "JPEG"), "gone": None},
        "me/test": {"c": cut, "d": b"no picture", "lost": None},
    }
    found = report(tmp_path, splits)
    assert (only(found)["exact"], only(found)["near"]) == ((("a", "c"),), ())
    about = {"corpus": "mine", "media": 4, "flat": 0, "unreadable": 3, "absent": 2}
    assert found["corpora"][0].items() >= about.items()


def test_corpora_that_share_pictures(tmp_path: Path) -> None:
    """Both publish the same scenes; COCO's gray ones are other bytes."""
    world, site = World(items=40, image_size=96), BuildOptions(open_storage(str(tmp_path / "root")))
    corpora = [coco.write(world, tmp_path / "coco"), flickr30k.write(world, tmp_path / "flickr30k")]
    for corpus in corpora:
        build_stages(CorpusBuild(replace(site, raw=tmp_path / corpus.name), corpus), ["fingerprints"])
    found = leakage(site.storage, [corpus.name for corpus in corpora])
    mine = {str(picture.cocoid): picture for picture in coco.pictures(world)}
    yours = {picture.id: picture for picture in flickr30k.pictures(world)}
    seen = set()
    for pair in found["pairs"]:
        (corpus, split), (another, other) = (pair[side].split(": ") for side in ("one", "other"))
        if corpus == another:
            continue
        assert (corpus, another) == ("coco", "flickr30k")
        for item, copy in pair["exact"]:
            assert not mine[item].grayscale
            assert jpeg(mine[item].scene) == jpeg(yours[copy].scene)
        copies = [item for item, copy, _ in pair["near"] if mine[item].scene == yours[copy].scene]
        assert all(mine[item].grayscale for item in copies)
        assert len(pair["near"]) - len(copies) <= 4, "scenes with one shape at the same place"
        seen |= set(copies)
        expected = {
            (item, copy)
            for item, picture in mine.items()
            for copy in yours
            if picture.scene == yours[copy].scene
            and split in COCO_SPLITS[picture.split]
            and other in yours[copy].splits
        }
        assert {tuple(p[:2]) for p in (*pair["exact"], *pair["near"])} >= expected
    assert seen == {item for item, picture in mine.items() if picture.grayscale}


def test_clips(tmp_path: Path) -> None:
    world, site = World(items=30, image_size=64, motion=1.0), BuildOptions(open_storage(str(tmp_path / "root")))
    corpus = tgif.write(world, tmp_path / "tgif")
    build_stages(CorpusBuild(replace(site, raw=tmp_path / "tgif"), corpus), ["fingerprints"])
    train = next(e for e in tgif.animations(world) if e.split == "tgif/train" and not (e.gone or e.still))
    copies = {"copy": gif(replace(train.scene, grain=1.0)), "first": encoded(Image.fromarray(draw(train.scene)), "GIF")}
    published(tmp_path, "mine", {"me/test": copies}, "clip")
    found = leakage(site.storage, ["tgif", "mine"])
    pair = next(p for p in found["pairs"] if (p["one"], p["other"]) == ("tgif: tgif/train", "mine: me/test"))
    assert pair["exact"] == ()
    assert [p[1] for p in pair["near"] if p[0] == train.id] == ["copy"], "a picture of its first frame is no copy"
    gone = sum(each.gone for each in tgif.animations(world))
    assert found["corpora"][0].get("absent", 0) == gone > 0


def test_one_split_has_nothing_to_leak_into(tmp_path: Path) -> None:
    site, _ = published(tmp_path, "mine", {"me/test": {"a": encoded(PICTURES[0])}})
    assert leakage(site.storage, ["mine", "mine"])["pairs"] == []
    with pytest.raises(
        UserError,
        match="no training split is of the author of mine: me/test: name one with --against",
    ):
        leakage(site.storage, ["mine"], split="me/test")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    site, _ = published(tmp_path, "mine", {"me/train": {"a": encoded(PICTURES[0])}, "me/test": {"b": b""}})
    with pytest.raises(UserError, match="mine has no split 'me/tset'; there are: me/train, me/test"):
        leakage(site.storage, ["mine"], split="me/tset")
    with pytest.raises(UserError, match="0 to 12 of 64 bits, not 13"):
        leakage(site.storage, ["mine"], FARTHEST + 1)
    with pytest.raises(
        UserError,
        match=r"other has no fingerprints .*: build them first \(`xmodal build other/fingerprints --root /\S+`\)",
    ):
        leakage(site.storage, ["mine", "other"])


def test_a_thousand_equal_pictures_are_each_named_and_cost_no_million_pairs() -> None:
    """As placeholders for lost pictures are; the last of each has the same look in other bytes."""
    look = (5, 6, 7)
    parts = [
        SplitMedia(
            "mine", f"me/{name}", tuple(ids), {id: ("odd" + id if id == ids[-1] else "equal", look) for id in ids}
        )
        for name, ids in (("train", [f"a{n:04d}" for n in range(1_000)]), ("test", [f"b{n:04d}" for n in range(1_000)]))
    ]
    tracemalloc.start()
    (leak,) = leaks(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert {one for one, _ in leak.exact} == set(parts[0].ids[:-1])
    assert {other for _, other in leak.exact} == set(parts[1].ids[:-1])
    assert len(leak.exact) < 2_000
    assert {one for one, _, _ in leak.near} == set(parts[0].ids)
    assert not {pair[:2] for pair in leak.near} & set(leak.exact)
    assert [len(leak.items(part)) for part in parts] == [1_000, 1_000]


def test_a_part_of_a_split_is_no_leak_but_one_that_is_held_out_is(tmp_path: Path) -> None:
    one, other = encoded(PICTURES[0]), encoded(PICTURES[1])
    splits: dict[str, Files] = {
        "me/train": {"a": one, "b": other},
        "me/restval": {"b": other},
        "me/test": {"a": one},
        "me/test_1k": {"a": one},
    }
    found = report(tmp_path, splits)
    assert [(pair["one"], pair["other"], pair["same"]) for pair in found["pairs"]] == [
        ("mine: me/train", "mine: me/test", ("a",)),
        ("mine: me/train", "mine: me/test_1k", ("a",)),
        ("mine: me/test", "mine: me/restval", ()),
        ("mine: me/restval", "mine: me/test_1k", ()),
    ]


def test_a_clip_that_fades_in_is_near_its_copy_and_no_other(tmp_path: Path) -> None:
    def animated(shown: list[Image.Image], form: str) -> bytes:
        return encoded(shown[0].convert("RGB"), form, save_all=True, append_images=shown[1:], duration=100)

    black, (one, two, three) = Image.new("RGB", (128, 128)), [p.resize((128, 128)) for p in PICTURES[:3]]
    clip, again, dark = (
        [black, one, two],
        [p.resize((90, 90)) for p in (black, one, two)],
        [black, Image.new("RGB", black.size, "white"), one],
    )
    assert [look is None for look in hash_media(animated(clip, "GIF"), "clip") or ()] == [True, False, False]
    assert hash_media(animated(dark, "GIF"), "clip") is None
    splits: dict[str, Files] = {
        "me/train": {"a": animated(clip, "GIF")},
        "me/test": {
            "b": animated(again, "GIF"),
            "c": animated([black, one, three], "GIF"),
            "d": animated([three, one, two], "GIF"),
        },
    }
    assert [pair[:2] for pair in only(report(tmp_path, splits, kind="clip"))["near"]] == [("a", "b"), ("a", "d")]


# ------------------------------------------------------------------------------------------------------ cleaned splits


def leaky(folder: Path) -> tuple[BuildOptions, Output]:
    pictures = [encoded(picture) for picture in PICTURES[:6]]
    splits: dict[str, Files] = {
        "me/train": {"a": pictures[0], "b": pictures[1]},
        "me/val": {"v": pictures[4]},
        "me/test": {"x": pictures[1], "y": encoded(PICTURES[0], "JPEG"), "z": pictures[3], "w": pictures[4]},
    }
    site, _ = published(folder, "mine", splits)
    return site, open_dataset(site.storage.url, "mine").records


def test_a_clean_split_lies_beside_the_official_one(tmp_path: Path) -> None:
    site, records = leaky(tmp_path)
    before = tree_digest(records.where)
    cleaned = leakage(site.storage, ["mine"], split="me/test")["clean"]
    assert (cleaned["split"], cleaned["items"], cleaned["dropped"]) == ("me/test", 2, ["x", "y"])
    assert re.fullmatch("me/test-clean-[0-9a-f]{8}", cleaned["name"])
    assert Path(cleaned["path"]).read_text() == "w\nz\n", "what is also in val stays: nothing is trained on that"
    assert tree_digest(records.where) == before
    data = open_dataset(site.storage.url, "mine")
    assert data.splits == {"me/train": 2, "me/val": 1, "me/test": 4, cleaned["name"]: 2}
    found = captions_by_item(data.records, View("mine", cleaned["name"]))
    assert found.grouped(found.texts) == {"w": ["a thing"], "z": ["a thing"]}
    assert leakage(site.storage, ["mine"], split="me/test")["clean"] == cleaned


def test_what_decides_a_clean_split_is_in_its_name(tmp_path: Path) -> None:
    site, _ = leaky(tmp_path)
    published(tmp_path, "other", {"you/train": {"1": encoded(PICTURES[3])}})
    alone, exact, both = (
        leakage(site.storage, names, distance, "me/test")["clean"]
        for names, distance in ((["mine"], DISTANCE), (["mine"], 0), (["mine", "other"], DISTANCE))
    )
    assert both["dropped"] == ["x", "y", "z"]
    assert len({each["name"] for each in (alone, exact, both)}) == 3
    assert len(open_dataset(site.storage.url, "mine").splits) == 6
    assert open_dataset(site.storage.url, "other").splits == {"you/train": 1}


def test_a_split_is_cleaned_of_the_training_split_that_it_is_used_with(tmp_path: Path) -> None:
    """Another author's, or one that is drawn; what it was compared with is told."""
    pictures = [encoded(picture) for picture in PICTURES[:6]]
    splits: dict[str, Files] = {
        "me/train": {"a": pictures[0], "b": pictures[1]},
        "me/test": {"w": pictures[4], "x": pictures[1], "y": pictures[2], "z": pictures[3]},
        "you/train": {"z": pictures[3], "q": pictures[2]},
    }
    site, corpus = published(tmp_path, "mine", splits)
    build_stages(CorpusBuild(site, replace(corpus, drawn={"they": RandomSplitSizes(val=0, test=6)})), ["fingerprints"])
    clean = partial(leakage, site.storage, ["mine"], split="me/test")
    usual, other, both = (
        clean(against=against)["clean"] for against in ((), ("you/train",), ("you/train", "me/train"))
    )
    assert (usual["against"], usual["dropped"]) == (("mine: me/train",), ["x"])
    assert (other["against"], other["dropped"]) == (("mine: you/train",), ["y", "z"])
    assert sorted(both["against"]) == ["mine: me/train", "mine: you/train"]
    assert both["name"] not in (usual["name"], other["name"])
    drawn = sorted(members(FingerprintedCorpus.of(site.storage, "mine").records, "they/train"))
    assert len(drawn) == 1
    assert clean(against=("they/train",))["clean"]["against"] == ("mine: they/train",)
    with pytest.raises(UserError, match="no split 'us/train' to compare with; there are: me/train, you/train"):
        clean(against=("us/train",))
    with pytest.raises(UserError, match="name that with --clean"):
        leakage(site.storage, ["mine"], against=("me/train",))
    published(tmp_path, "other", {"we/train": {"1": pictures[0]}})
    themselves = leakage(site.storage, ["mine", "other"], split="they/test")["clean"]
    assert set(themselves["against"]) >= {"mine: they/train"}


def test_a_split_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    same = encoded(PICTURES[0])
    with pytest.raises(UserError, match="me/test: nothing is left, all of its 1 items are in what it is compared with"):
        report(tmp_path, {"me/train": {"a": same}, "me/test": {"b": same}}, DISTANCE, "me/test")


def test_absent_items_of_a_split_stay_in_it(tmp_path: Path) -> None:
    """Readers of features leave them out. One that is itself in a training split is dropped."""
    splits: dict[str, Files] = {
        "me/train": {"a": encoded(PICTURES[0]), "d": None},
        "me/test": {"b": encoded(PICTURES[1]), "c": None, "d": None},
    }
    cleaned = report(tmp_path, splits, DISTANCE, "me/test")["clean"]
    assert Path(cleaned["path"]).read_text() == "b\nc\n"
    assert cleaned["dropped"] == ["d"]


# ----------------------------------------------------------------------------------------------- the stage, the command


@pytest.mark.usefixtures("ray_cluster")
def test_workers_and_their_order_change_no_byte(tmp_path: Path, archives: dict[str, bytes]) -> None:
    trees = set()
    for number, run in enumerate((serial, backwards, RayRunner(2))):
        storage = open_storage(str(tmp_path / str(number)))
        media = sealed(storage, broken(archives))
        stage = made("fingerprints", FingerprintsConfig(media_per_unit=3), ITEMS, media=media)
        output = build(stage, storage, run)
        trees.add(tree_digest(storage.url))
    assert len(trees) == 1
    assert output.totals["failures"] == {"absent": 1, "unreadable": 1}
    assert output.totals["counts"] == {"media": 19, "flat": 0}
    failed = {row: kind for unit in output.units() for row, kind, _ in unit.failures}
    assert failed == {dict(ITEMS)[BROKEN[0]]: "unreadable", dict(ITEMS)[ABSENT[0]]: "absent"}
    known = read_fingerprints(output)
    assert [path for path, (_, look) in known.items() if look is None] == [dict(ITEMS)[BROKEN[0]]]


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    site, _ = published(tmp_path, "mine", {"me/train": {"a": encoded(PICTURES[0])}})
    (table,) = (tmp_path / "root/fingerprints").glob("*/part-000000.parquet")
    table.write_bytes(table.read_bytes()[::-1])
    with pytest.raises(UserError, match=r"part-000000\.parquet"):
        read_fingerprints(Output(site.storage, f"fingerprints/{table.parent.name}"))
    with pytest.raises(ValueError, match="at least one medium, not 0"):
        FingerprintsConfig(media_per_unit=0)


def test_a_plan_counts_the_units(tmp_path: Path) -> None:
    site, corpus = published(tmp_path, "mine", {"me/train": {"a": encoded(PICTURES[0])}})
    (row,) = plan([(CorpusBuild(site, corpus), ["fingerprints"])])
    assert (row["units"], row["done"]) == (1, 1)
    (row,) = plan([(CorpusBuild(replace(site, settings={"fingerprints.media_per_unit": 7}), corpus), ["fingerprints"])])
    assert (row["units"], row["done"]) == (1, 0)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Eight pictures, six of them for training, and of these one again for validation."""
    raw = tmp_path / "raw"
    raw.mkdir()
    names = [f"p{number:03d}.jpg" for number in range(8)]
    (raw / "captions.tsv").write_text("".join(f"{name}\ta {c} thing\n" for name in names for c in ("red", "blue")))
    (raw / "splits.json").write_text(json.dumps({"pictures/train": names[:6], "pictures/val": names[6:]}))
    (raw / "pictures.txt").write_text("".join(f"gopher://gone/{name}\n" for name in names))
    for name, picture in zip(names, [*PICTURES[:7], PICTURES[2]], strict=True):
        (raw / name).write_bytes(encoded(picture.resize((90, 90)), "JPEG", quality=70 if name == names[-1] else 90))
    root = tmp_path / "root"
    assert main(["build", f"{MINE}/fingerprints", "--root", str(root), "--raw", str(raw), "--serial"]) == 0
    return root


def test_the_command_counts_for_people_and_lists_for_programs(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command = ["leakage", str(MINE), "--root", str(built)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["distance"] == DISTANCE
    (pair,) = found["pairs"]
    ((one, other, far),) = pair["near"]
    assert (pair["one"], pair["other"], one, other) == (
        "pictures: pictures/train",
        "pictures: pictures/val",
        "p002",
        "p007",
    )
    assert main([*command, "--clean", "pictures/val"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"pictures: pictures/train  \|  pictures: pictures/val +0 +0 +1\n +near: p002 = p007\n", said)
    assert re.search(r"pictures/val-clean-[0-9a-f]{8} has 1 items of pictures/val, without 1: p007\n", said)
    assert main([*command, "--distance", str(max(far - 1, 0)), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["pairs"][0]["near"]) == (far == 0)


def test_a_corpus_of_ones_own_is_found_by_its_name(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once built, its file is needed no more."""
    capsys.readouterr()
    command = ["leakage", "pictures", "--root", str(built), "--clean", "pictures/val", "--against", "pictures/train"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert re.search(r"pictures/val-clean-[0-9a-f]{8} has 1 items of pictures/val, without 1: p007\n", said)
    assert "\ncompared with pictures: pictures/train\n" in said


def test_a_corpus_of_ours_that_a_file_changed_is_found_too(tmp_path: Path) -> None:
    world, site = World(items=40, image_size=32), BuildOptions(open_storage(str(tmp_path / "root")))
    corpus = coco.write(world, tmp_path / "coco")
    build_stages(CorpusBuild(replace(site, raw=tmp_path / "coco"), replace(corpus, version=7)), ["fingerprints"])
    assert [each["corpus"] for each in leakage(site.storage, ["coco"])["corpora"]] == ["coco"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([str(MINE), "--distance", "40"], "a distance is 0 to 12 of 64 bits, not 40"),
        (
            [str(MINE), "--clean", "karpathy/test"],
            "pictures has no split 'karpathy/test'; there are: pictures/train, pictures/val",
        ),
        (["cocoa"], "no corpus 'cocoa'; did you mean coco?"),
        (["coco"], "coco has no fingerprints"),
    ],
)
def test_what_the_command_cannot_do_is_one_line(
    arguments: list[str], complaint: str, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["leakage", *arguments, "--root", str(built)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"xmodal: {complaint}")
    assert said.err.count("\n") == 1
