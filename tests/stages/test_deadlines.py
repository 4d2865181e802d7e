"""Pictures that take for ever cost their deadline each, and are rows: the others are what they are without them."""

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.engine.building import build
from pipelines.engine.picture_decoder import NotDecoded, PictureDecoder, SquareDecoder
from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import Needs
from pipelines.stages import fingerprints
from pipelines.stages.clip_features import ClipFeaturesConfig
from pipelines.stages.clips import ClipsConfig
from pipelines.stages.features import FeaturesConfig
from pipelines.stages.fingerprints import FingerprintsConfig
from pipelines.stages.pixels import PixelsConfig
from pipelines.stages.regions import RegionsConfig
from pipelines.stages.resnet import ResNetConfig
from tests.clips import gif, numbered
from tests.made import pixels, resnet
from tests.stages.test_resnet_stage import sealed
from xmodal.checks.leaks import read_fingerprints
from xmodal.features.store import FeatureStore
from xmodal.media.images import UnreadableImage
from xmodal.media.preparation import square
from xmodal.records.tables import Item
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

DEADLINE = 1.0
SCAN = b"\xff\xda"


def photograph(seed: int, side: int = 64) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def many_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan is there again and again: each is decoded, all over the picture."""
    file = io.BytesIO()
    Image.new("RGB", (4096, 4096), "teal").save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(SCAN)
    return data[:last] + data[last:-2] * scans + data[-2:]


def many_frames(count: int) -> bytes:
    """A GIF that covers a large canvas anew with each of its small frames."""
    return gif([numbered(number % 8, delay=10) for number in range(count)], size=(4000, 4000))


@pytest.mark.parametrize(
    "config",
    [ResNetConfig, FeaturesConfig, ClipsConfig, ClipFeaturesConfig, PixelsConfig, FingerprintsConfig, RegionsConfig],
)
@pytest.mark.parametrize("deadline", [0.0, -1.0])
def test_a_deadline_that_leaves_no_time_is_refused(config: Any, deadline: float) -> None:
    with pytest.raises(ValueError, match=rf"deadline {deadline} must be above zero"):
        config(deadline=deadline)


def of_pictures(stage: str, media: Output, items: Any) -> Stage[Any, Any]:
    if stage == "resnet":
        config = ResNetConfig("resnet18", "random:0", resize=64, crop=64, batch_size=2, deadline=DEADLINE)
        return resnet(media, items, config)
    return pixels(media, items, PixelsConfig(side=64, deadline=DEADLINE))


@pytest.mark.parametrize("stage", ["pixels", "resnet"])
def test_a_picture_that_takes_for_ever_is_a_failure_of_its_row(tmp_path: Path, stage: str) -> None:
    storage = open_storage(str(tmp_path))
    good = {"a.jpg": photograph(0), "c.jpg": photograph(1)}
    files = good | {"b.jpg": many_scans(3000)}
    assert len(files["b.jpg"]) < 5_000_000
    items = tuple((path[0], path) for path in sorted(files))
    found = build(of_pictures(stage, sealed(storage, files), items), storage)
    assert [(row, kind) for unit in found.units() for row, kind, _ in unit.failures] == [("b", "timeout")]
    store = FeatureStore(found)
    assert "b" not in store
    alone = build(of_pictures(stage, sealed(storage, good), [item for item in items if item[0] != "b"]), storage)
    for id in ("a", "c"):
        np.testing.assert_allclose(store.read([id])[0], FeatureStore(alone).read([id])[0], rtol=1e-2, atol=1e-2)


def test_a_clip_that_takes_for_ever_has_a_checksum_alone(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    files = {"a.jpg": photograph(0), "b.gif": many_frames(600)}
    listed = (Item("a", "a.jpg"), Item("b", "b.gif", "clip"))
    needs = Needs({"media": sealed(storage, files)}, {}, lambda: listed)
    found = build(fingerprints.make(FingerprintsConfig(deadline=DEADLINE), needs), storage)
    assert [(row, kind) for unit in found.units() for row, kind, _ in unit.failures] == [("b.gif", "timeout")]
    known = read_fingerprints(found)
    assert {path: look is None for path, (_, look) in known.items()} == {"a.jpg": False, "b.gif": True}


def test_the_pixels_are_those_that_are_decoded_here() -> None:
    data, decoder = photograph(2), SquareDecoder(48, 32, 20.0)
    np.testing.assert_array_equal(decoder.pixels(data), square(data, 48, 32))


def test_a_cut_picture_says_why_and_no_picture_is_none() -> None:
    data, told, decoder = photograph(2), list[str](), SquareDecoder(48, 32, 20.0)
    pixels = decoder.pixels(data[: len(data) // 2], told.append)
    expected: list[str] = []
    np.testing.assert_array_equal(pixels, square(data[: len(data) // 2], 48, 32, expected.append))
    assert told == expected != []
    with pytest.raises(UnreadableImage, match="no image format"):
        decoder.pixels(b"<html>")


def test_a_process_that_dies_has_a_second_try_and_is_a_failure_then() -> None:
    decoder = PictureDecoder("tests.stages.decoders:die", None, 20.0)
    with pytest.raises(NotDecoded, match="SIGKILL") as found:
        decoder.decode(b"always")
    assert found.value.kind == "worker_died"
    assert decoder.decode(b"never") == b"never"


def test_pictures_that_are_sent_ahead_survive_the_one_before() -> None:
    """Neither side waits for the other to read, though no connection holds what both have to say."""
    decoder = PictureDecoder("tests.stages.decoders:die", None, 20.0)
    pictures = [b"always", b"never", *(bytes([number]) * 5_000_000 for number in range(4)), b"always", b"last"]
    for data, following in pairwise([*pictures, None]):
        assert data is not None
        if following is not None:
            decoder.expect(following)
        if data == b"always":
            with pytest.raises(NotDecoded, match="SIGKILL"):
                decoder.decode(data)
        else:
            assert decoder.decode(data) == data


def test_another_picture_than_was_expected_is_decoded() -> None:
    decoder = PictureDecoder("tests.stages.decoders:die", None, 20.0)
    decoder.expect(b"never asked for")
    assert [decoder.decode(data) for data in (b"one", b"two", b"three")] == [b"one", b"two", b"three"]


def test_too_much_memory_is_a_failure_of_the_row() -> None:
    decoder = PictureDecoder("tests.stages.decoders:devour", None, 20.0)
    with pytest.raises(NotDecoded, match="MemoryError"):
        decoder.decode(b"")
