from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.ops import roi_pool

from tests.detectors.bottom_up_checkpoints import ATTRIBUTES, CLASSES, LAYOUTS, WIDTH, port_state, write
from tests.detectors.slow_bottom_up import Seen, SlowBottomUp, anchors_of_caffe, anchors_of_detectron2
from xmodal.detection.region_selection import confidences, select
from xmodal.detectors import _bottom_up_network, bottom_up, module_of
from xmodal.detectors._bottom_up_network import (
    AIRSPLAY,
    CAFFE,
    CAFFE_ANCHORS,
    MILVLG_DETECTRON2,
    BottomUpNetwork,
    Family,
)
from xmodal.detectors.bottom_up import BottomUp
from xmodal.errors import UserError
from xmodal.root.files import sha256_of


def picture(height: int = 48, width: int = 70, seed: int = 0) -> NDArray[np.uint8]:
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), np.uint8)
    return coarse.repeat(6, 0).repeat(6, 1)[:height, :width]


def loaded(file: Path, name: str = "", **files: Path) -> BottomUp:
    return bottom_up.load(name, f"sha256:{sha256_of(file)}", {"detector": file, **files}, "cpu")


def small(detector: BottomUp, shorter: int = 96, longest: int = 170) -> BottomUp:
    """The same for pictures of fewer pixels."""
    family = replace(detector.network.family, shorter_side=shorter, longest_side=longest)
    return replace(detector, network=replace(detector.network, family=family))


@dataclass(frozen=True)
class Checkpoint:
    layout: str
    file: Path
    wanted: Seen  # what the slow network gives, in pixels of the network
    scales: NDArray[np.float32]


@pytest.fixture(params=LAYOUTS, scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    state = port_state(request.param)
    file = write(request.param, state, tmp_path_factory.mktemp(request.param))
    pixels, scales = small(loaded(file)).network.prepare(picture())
    return Checkpoint(
        request.param, file, SlowBottomUp(request.param, state).look(pixels, float(scales[0])), scales.numpy()
    )


def test_every_layout_gives_what_its_makers_code_gives(checkpoint: Checkpoint) -> None:
    """Against a slow network in double precision, which keeps each maker's own order of rows."""
    detector, wanted = small(loaded(checkpoint.file)), checkpoint.wanted
    about = detector.provenance()
    assert about["layout"] == checkpoint.layout
    assert ("antialiased" in about["preprocessing"]["interpolation"]) == (checkpoint.layout == "airsplay")
    found = detector.extract([picture()])[0]
    assert len(found) == len(wanted.boxes) > 20
    assert found.class_scores_KC is not None
    assert found.attribute_scores_KA is not None
    np.testing.assert_allclose(found.boxes_K4 * checkpoint.scales, wanted.boxes, atol=1e-3)
    np.testing.assert_allclose(found.features_KD, wanted.features, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.class_scores_KC, wanted.classes, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.attribute_scores_KA, wanted.attributes, rtol=1e-3, atol=1e-5)
    assert (found.features_KD >= 0).all()
    assert found.class_scores_KC.shape == (len(found), CLASSES + 1)
    assert found.attribute_scores_KA.shape == (len(found), ATTRIBUTES + 1)
    assert (detector.width, found.size) == (32 * WIDTH, (70, 48))


@pytest.mark.parametrize(
    "most", [10, 300]
)  # fewer than there are, and more: among ten, a row too many at the end would not show
def test_proposals_are_limited_before_and_after_they_are_compared(
    most: int, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small pictures have fewer than 6,000 candidates; by lower limits the order of all steps shows."""
    monkeypatch.setattr(_bottom_up_network, "RANKED", 100)
    network = small(loaded(checkpoint.file)).network
    network = replace(network, family=replace(network.family, proposals=most))
    pixels, scales = network.prepare(picture())
    found = network.propose(network.maps(pixels), (pixels.shape[2], pixels.shape[3]), scales)
    slow = SlowBottomUp(checkpoint.layout, port_state(checkpoint.layout), ranked=100, most=most)
    wanted = slow.look(pixels, float(scales[0])).boxes
    assert len(wanted) == most or 10 < len(wanted) < len(checkpoint.wanted.boxes)
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_background_and_no_attribute_are_column_0(checkpoint: Checkpoint) -> None:
    """airsplay's probabilities of attributes are among themselves, and MILVLG's detectron2 mode has no such row."""
    found = small(loaded(checkpoint.file)).extract([picture()])[0]
    assert found.attribute_scores_KA is not None
    assert (found.attribute_scores_KA[:, 0] > 0).all() == ("caffe" in checkpoint.layout)
    np.testing.assert_allclose(found.attribute_scores_KA.sum(1), 1, rtol=1e-5)
    assert found.class_scores_KC is not None
    background = found.class_scores_KC.argmax(1) == 0  # chooses an embedding as any class does
    assert background.any()
    assert not background.all()


def test_refined_boxes_are_moved_by_their_likeliest_class(checkpoint: Checkpoint) -> None:
    detector, wanted = small(loaded(checkpoint.file, "refined")), checkpoint.wanted
    found = detector.extract([picture()])[0]
    np.testing.assert_allclose(found.boxes_K4 * checkpoint.scales, wanted.refined, atol=2e-3)
    assert np.abs(wanted.refined - wanted.boxes).max() > 1
    assert detector.provenance()["network"] == "bottom_up/refined"


def test_given_boxes_are_kept_in_their_order(checkpoint: Checkpoint) -> None:
    for name in ("", "refined"):
        detector = small(loaded(checkpoint.file, name))
        proposed = small(loaded(checkpoint.file)).extract([picture()])[0]
        places = np.array([7, 0, 3])
        given = detector.extract([picture()], [proposed.boxes_K4[places]])[0]
        np.testing.assert_array_equal(given.boxes_K4, proposed.boxes_K4[places])
        np.testing.assert_allclose(given.features_KD, proposed.features_KD[places], rtol=1e-4, atol=1e-4)


def test_no_picture_changes_the_rows_of_another(checkpoint: Checkpoint) -> None:
    detector = small(loaded(checkpoint.file))
    pictures = [picture(seed=1), picture(seed=2), picture(60, 40)]
    for together, alone in zip(
        detector.extract(pictures), [detector.extract([one])[0] for one in pictures], strict=True
    ):
        assert together.features_KD.tobytes() == alone.features_KD.tobytes()
        assert together.boxes_K4.tobytes() == alone.boxes_K4.tobytes()


def test_more_regions_than_are_computed_at_once_and_none_at_all(tmp_path: Path) -> None:
    detector = small(loaded(write("caffe", port_state("caffe"), tmp_path)))
    boxes = np.tile(np.array([[3, 4, 40, 30]], np.float32), (151, 1))
    many, none = detector.extract([picture()] * 2, [boxes, boxes[:0]])
    np.testing.assert_allclose(many.features_KD, many.features_KD[:1].repeat(151, 0), rtol=1e-5, atol=1e-6)
    assert none.features_KD.shape == (0, 32 * WIDTH)
    assert none.class_scores_KC is not None
    assert none.class_scores_KC.shape == (0, CLASSES + 1)
    assert len(confidences(none)) == len(select(confidences(none), 36, 36)) == 0


def test_a_blank_picture_has_finite_regions(tmp_path: Path) -> None:
    detector = small(loaded(write("caffe", port_state("caffe"), tmp_path)))
    found = detector.extract([np.zeros((50, 50, 3), np.uint8)])[0]
    assert np.isfinite(found.features_KD).all()
    assert len(found) > 0


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (3, 400), (400, 2)])
def test_tiny_and_thin_pictures_have_few_regions_or_none(size: tuple[int, int], tmp_path: Path) -> None:
    """A picture of one line has proposals of less than 16 pixels only, which Caffe drops."""
    for layout in ("caffe", "milvlg_detectron2"):
        detector = small(loaded(write(layout, port_state(layout), tmp_path)))
        found = detector.extract([picture(*size)])[0]
        assert np.isfinite(found.features_KD).all()
        assert len(select(confidences(found), 36, 36)) == min(36, len(found))


def test_the_twelve_anchors_in_caffes_order() -> None:
    """Ratio by ratio, the smallest first; around 7.5, and rounded."""
    assert CAFFE_ANCHORS == (
        (-38, -16, 53, 31),
        (-84, -40, 99, 55),
        (-176, -88, 191, 103),
        (-360, -184, 375, 199),
        (-24, -24, 39, 39),
        (-56, -56, 71, 71),
        (-120, -120, 135, 135),
        (-248, -248, 263, 263),
        (-14, -36, 29, 51),
        (-36, -80, 51, 95),
        (-80, -168, 95, 183),
        (-168, -344, 183, 359),
    )
    assert anchors_of_caffe() == CAFFE_ANCHORS


def test_anchors_of_the_ports_go_size_by_size_around_0() -> None:
    np.testing.assert_allclose(AIRSPLAY.anchors, anchors_of_detectron2((64, 128, 256, 512)))
    np.testing.assert_allclose(MILVLG_DETECTRON2.anchors, anchors_of_detectron2((32, 64, 128, 256, 512)))
    np.testing.assert_allclose(AIRSPLAY.anchors[0], [-45.2548, -22.6274, 45.2548, 22.6274], atol=1e-4)
    np.testing.assert_allclose(AIRSPLAY.anchors[4], [-64, -64, 64, 64])


def bare(family: Family = CAFFE) -> BottomUpNetwork:
    return BottomUpNetwork(family, {}, torch.tensor(family.anchors))


def test_pixels_are_resized_as_opencv_does() -> None:
    for height, width in ((375, 500), (333, 500), (640, 427), (120, 480), (48, 70), (700, 900)):
        image = picture(height, width)
        scale = 600 / min(height, width)
        if round(scale * max(height, width)) > 1000:
            scale = 1000 / max(height, width)
        centred = image[:, :, ::-1].astype(np.float32) - np.array([102.9801, 115.9465, 122.7717])
        wanted = cv2.resize(centred.astype(np.float32), None, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
        pixels, scales = bare().prepare(image)
        assert scales.tolist() == pytest.approx([scale] * 4)
        np.testing.assert_allclose(pixels[0].permute(1, 2, 0), wanted, atol=1e-3)


@pytest.mark.parametrize("size", [(1200, 1600), (375, 500), (900, 2000), (265, 530)])
def test_pixels_are_resized_as_airsplays_demos_do(size: tuple[int, int]) -> None:
    """Pillow resizes bytes, and averages where it shrinks; then the mean is subtracted."""
    image = picture(*size)
    shorter, longest = 800.0, 800 / min(size) * max(size)
    if longest > 1333:
        shorter, longest = shorter * (1333 / longest), 1333
    height, width = int(shorter + 0.5), int(longest + 0.5)
    wanted = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))[:, :, ::-1]
    pixels, scales = bare(AIRSPLAY).prepare(image)
    np.testing.assert_allclose(pixels[0].permute(1, 2, 0), wanted - np.array(AIRSPLAY.mean), atol=1e-4)
    np.testing.assert_allclose(scales, [width / size[1], height / size[0]] * 2, rtol=1e-6)


def test_lines_of_a_large_picture_turn_grey_by_airsplays_way_alone() -> None:
    image = np.zeros((2400, 2400, 3), np.uint8)
    image[:, ::3] = 240  # a third of what is seen
    for family, wanted in ((AIRSPLAY, 80), (replace(CAFFE, shorter_side=800), 0)):
        pixels, _ = bare(family).prepare(image)
        seen = pixels[0, :, 400, 5:-5] + torch.tensor(family.mean)[:, None]
        np.testing.assert_allclose(seen, wanted, atol=1)


def test_pixels_are_resized_by_the_definition() -> None:
    """Pixel x of the result lies at (x + 0.5) / scale - 0.5, whatever its rounded side; colours are BGR."""
    image = picture(37, 53)
    scale = 600 / 37
    pixels, _ = bare().prepare(image)
    assert pixels.shape == (1, 3, 600, round(53 * scale))
    for y, x in ((0, 0), (599, 858), (300, 411), (17, 840)):
        down, across = (min(max((place + 0.5) / scale - 0.5, 0), side - 1) for place, side in ((y, 37), (x, 53)))
        top, left = int(down), int(across)
        low, right = min(top + 1, 36), min(left + 1, 52)
        parts = image[[top, top, low, low], [left, right, left, right]].astype(float)
        shares = np.outer([1 - down + top, down - top], [1 - across + left, across - left]).ravel()
        wanted = (shares @ parts)[::-1] - [102.9801, 115.9465, 122.7717]
        np.testing.assert_allclose(pixels[0, :, y, x], wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "size", "wanted"),
    [
        (CAFFE, (375, 500), (600, 800)),
        (CAFFE, (300, 600), (500, 1000)),
        (AIRSPLAY, (375, 500), (800, 1067)),
        (AIRSPLAY, (300, 600), (667, 1333)),
        (MILVLG_DETECTRON2, (375, 500), (600, 800)),
    ],
)
def test_sides_of_resized_pictures(family: Family, size: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert bare(family).prepare(picture(*size))[0].shape[2:] == wanted


def test_regions_are_rounded_to_whole_positions_as_in_caffe() -> None:
    """torchvision's roi_pool is Caffe's: the last position counts."""
    maps = torch.arange(64.0).view(1, 1, 8, 8)
    windows = roi_pool(maps, [torch.tensor([[0.0, 0, 39, 39]])], 2, 1 / 16)
    assert windows.flatten().tolist() == [9, 10, 17, 18]


def test_random_weights_are_those_of_their_seed_and_full_size() -> None:
    detector = bottom_up.load("", "random:3", {}, "cpu")
    again = bottom_up.load("", "random:3", {}, "cpu")
    assert detector.told["weights_sha256"] == again.told["weights_sha256"]
    assert detector.width == 2048
    assert (len(detector.words.classes), len(detector.words.attributes)) == (0, 0)
    found = small(detector, 96, 170).extract([picture()])[0]
    assert np.isfinite(found.features_KD).all()
    assert len(found) > 36
    assert found.features_KD.std(0).max() > 0.1
    assert found.class_scores_KC is not None
    assert found.class_scores_KC.shape[1] == 1601


def test_words_are_the_first_in_each_line(tmp_path: Path) -> None:
    """As the vocabularies are published: CRLF in one port, other names after commas, no end of the last line."""
    file = write("airsplay", port_state("airsplay"), tmp_path)
    objects, attributes = tmp_path / "objects_vocab.txt", tmp_path / "attributes_vocab.txt"
    objects.write_bytes(b"Stop sign,stopsign\r\ncat\r\ndog,puppy,hound\r\nbus\r\ncar\r\nhat\r\ntennis racket")
    attributes.write_bytes(b"red\nblue\nblack and white\nsitting,seated")
    detector = loaded(file, object_words=objects, attribute_words=attributes)
    assert detector.words.classes == ("stop sign", "cat", "dog", "bus", "car", "hat", "tennis racket")
    assert detector.words.attributes == ("red", "blue", "black and white", "sitting")
    assert detector.provenance()["object_words"] == sha256_of(objects)
    with pytest.raises(UserError, match="has 4 lines, but the weights tell 7 apart"):
        loaded(file, object_words=attributes)
    attributes.write_bytes(b"red\n\nblue\nold\nbig\nwet\nnew\n")
    with pytest.raises(UserError, match=r"attributes_vocab\.txt:2 is blank"):
        loaded(file, object_words=attributes)
    with pytest.raises(UserError, match="there is no file of words"):
        loaded(file, object_words=tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("name", "weights", "told"),
    [
        ("", "published", "airsplay/py-bottom-up-attention.*--file detector=PATH"),
        ("", "sha1:00", "no weights"),
        ("resnet50", "random:0", "no detector bottom_up/resnet50"),
    ],
)
def test_what_there_is_not_is_refused(name: str, weights: str, told: str) -> None:
    module, _ = module_of(f"bottom_up/{name}")
    with pytest.raises(UserError, match=told):
        module.check(name, weights)


def test_another_file_than_the_named_one_is_refused(tmp_path: Path) -> None:
    file = write("airsplay", port_state("airsplay"), tmp_path)
    with pytest.raises(UserError, match="give it by --file detector=PATH"):
        bottom_up.load("", f"sha256:{'0' * 64}", {"detector": file}, "cpu")
    with pytest.raises(UserError, match="give it by --file detector=PATH"):
        bottom_up.load("", f"sha256:{'0' * 64}", {}, "cpu")
