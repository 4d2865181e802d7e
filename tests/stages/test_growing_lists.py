"""A list that grows, shrinks or is edited: what is new is computed, and the bytes are those of a build from nothing."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.building import build
from pipelines.engine.clip_sampler import ClipSampler
from pipelines.engine.picture_decoder import PictureDecoder
from pipelines.engine.stage import Stage
from pipelines.stages.clips import ClipsConfig
from pipelines.stages.fingerprints import FingerprintsConfig
from pipelines.stages.frames import FramesConfig
from pipelines.stages.pixels import PixelsConfig
from pipelines.stages.resnet import ResNetConfig
from tests.clips import gif, numbered
from tests.conftest import tree_digest
from tests.engine.test_engine import CrashingStorage, survives
from tests.made import clips, frames, made
from tests.stages.test_resnet_stage import sealed
from tests.userdata.test_own import picture
from xmodal.features.store import FeatureStore
from xmodal.root.outputs import Output
from xmodal.root.storage import Storage, open_storage

Make = Callable[[Output, tuple[tuple[str, str], ...]], Stage[Any, Any]]
RESNET = ResNetConfig("resnet18", "random:0", resize=32, crop=32, output="pooled", batch_size=4, rows_per_shard=8)
PIXELS = PixelsConfig(side=32, rows_per_shard=8)
FRAMES = FramesConfig(short_side=32, items_per_shard=3)
CLIPS = ClipsConfig("resnet18", "random:0", resize=32, crop=32, batch_size=4, items_per_shard=3)


def of_pictures(name: str, config: Any) -> Make:
    return lambda media, items: made(name, config, items, media=media)


MAKES: dict[str, Make] = {
    "resnet": of_pictures("resnet", RESNET),
    "pixels": of_pictures("pixels", PIXELS),
    "fingerprints": of_pictures("fingerprints", FingerprintsConfig(media_per_unit=5)),
    "frames": lambda media, items: frames(media, items, FRAMES),
    "clips": lambda media, items: clips(frames(media, items, FRAMES), CLIPS),
}


def clip(number: int) -> bytes:
    return gif([numbered(number + shown, delay=30 * shown) for shown in range(1 + number % 3)])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often each medium was decoded."""
    counted = Counter[bytes]()
    for kind, name in ((PictureDecoder, "decode"), (ClipSampler, "sample")):
        decode = getattr(kind, name)

        def counting(self: Any, data: bytes, *rest: Any, _decode: Any = decode) -> Any:
            counted[data] += 1
            return _decode(self, data, *rest)

        monkeypatch.setattr(kind, name, counting)
    return counted


def steps(draw: random.Random, content: Callable[[int], bytes], number: int) -> Iterator[dict[str, bytes]]:
    """Lists, by the id of an item, each made of the one before."""
    fresh = iter(range(10_000))
    items = {f"i{next(fresh):03d}": content(next(fresh)) for _ in range(11)}
    removed = list[tuple[str, bytes]]()
    for _ in range(number):
        yield dict(items)
        for _ in range(draw.randint(1, 3)):
            id = draw.choice(list(items))
            match draw.choice(("add", "add", "remove", "edit", "exchange", "break", "return")):
                case "add":
                    items[f"i{draw.randrange(1000):03d}x"] = content(next(fresh))
                case "remove" if len(items) > 3:
                    removed.append((id, items.pop(id)))
                case "edit":
                    items[id] = content(next(fresh))
                case "exchange":
                    other = draw.choice(list(items))
                    items[id], items[other] = items[other], items[id]
                case "break":
                    items[id] = f"no picture {next(fresh)}".encode()
                case "return" if removed:
                    items.update([removed.pop()])


def stage_of(make: Make, storage: Storage, items: Mapping[str, bytes]) -> Stage[Any, Any]:
    media = sealed(storage, {f"media/{id}": data for id, data in items.items()})
    return make(media, tuple((id, f"media/{id}") for id in sorted(items)))


@pytest.mark.parametrize("name", ["pixels", "fingerprints", "frames", "resnet", "clips"])
def test_each_list_gives_the_bytes_of_a_build_from_nothing(tmp_path: Path, name: str, seen: Counter[bytes]) -> None:
    draw = random.Random(name)
    content = clip if name in ("frames", "clips") else picture
    root, kills = open_storage(str(tmp_path / "root")), 0
    for number, items in enumerate(steps(draw, content, 8)):
        stage = stage_of(MAKES[name], root, items)
        if draw.random() < 0.5:
            kills += not survives(stage, CrashingStorage(root.url, draw.randrange(60)))
        grown = build(stage, root)
        of_grown = Counter(seen)
        nothing = open_storage(str(tmp_path / f"nothing{number}"))
        assert tree_digest(grown.where) == tree_digest(build(stage_of(MAKES[name], nothing, items), nothing).where)
        seen.clear()
        seen.update(of_grown)
    assert kills > 1
    lost = sum(seen.values()) - len(seen)
    assert lost <= kills * 8, f"{lost} of {len(seen)} media were decoded again, after {kills} kills"


def test_rows_are_taken_over_under_any_root(any_root: str, tmp_path: Path, seen: Counter[bytes]) -> None:
    root, nothing = open_storage(any_root), open_storage(str(tmp_path / "nothing"))
    items = {f"i{number:03d}": picture(number) for number in range(20)}
    grown = {**items, "i0005": picture(20), "i999": b"no picture"}
    build(stage_of(MAKES["pixels"], root, items), root)
    seen.clear()
    output = build(stage_of(MAKES["pixels"], root, grown), root)
    assert seen == Counter([picture(20), b"no picture"])
    assert tree_digest(output.where) == tree_digest(build(stage_of(MAKES["pixels"], nothing, grown), nothing).where)


def test_damaged_rows_are_made_again(tmp_path: Path, seen: Counter[bytes]) -> None:
    """So are rows of a unit that lost its table."""
    items, root = {f"i{number:03d}": picture(number) for number in range(24)}, open_storage(str(tmp_path / "root"))
    whole = build(stage_of(MAKES["pixels"], root, items), root)
    shard = Path(whole.where, "pixels/c/1/0/0/0")
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data[:50] + b"x" + data[51:])
    Path(whole.where, "sources/shard-00002.parquet").unlink()
    seen.clear()
    grown = build(stage_of(MAKES["pixels"], root, {"a": picture(30)} | items), root)
    assert seen.keys() == {picture(30), *(picture(number) for number in range(8, 24))}
    assert not FeatureStore(grown).absent
    FeatureStore(grown).verify()
