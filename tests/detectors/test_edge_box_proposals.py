"""Edge Boxes find things of the generated world; Fast R-CNN's features of boxes, beside a plain slow computation."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch.nn import functional

from pipelines.demo.world import World, box, draw, scenes
from xmodal.detection.box_geometry import iou
from xmodal.detectors import edge_box_proposals, module_of
from xmodal.detectors.edge_box_proposals import EdgeBoxProposals, caffe_state, edge_boxes, load
from xmodal.errors import UserError
from xmodal.features.weight_files import weights_sha256
from xmodal.raw.tensor_files import format_of

SCENE = draw(next(scenes(World(items=1, image_size=64))))
BOXES = np.array([[3, 5, 40, 60], [0, 0, 63, 47], [20.5, 10.25, 22, 12]], np.float32)


@pytest.fixture
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are resized to a fifth of what they are, which is as right and much faster."""
    monkeypatch.setattr(edge_box_proposals, "SHORTER_SIDE", 121)
    monkeypatch.setattr(edge_box_proposals, "LONGEST_SIDE", 201)


@pytest.fixture(scope="module")
def vgg16() -> EdgeBoxProposals:
    return load("vgg16", "random:0", {}, "cpu")


def random_boxes(width: int, height: int, seed: int) -> NDArray[np.float32]:
    corners = np.random.default_rng(seed).random((2, 200, 2)) * (width, height)
    return np.hstack([corners.min(0), corners.max(0)]).astype("f4")


def test_edge_boxes_beat_random_boxes_by_far() -> None:
    """At an overlap of 0.7: 0.86 of 102 things beside 0.02 when this was written."""
    found, by_chance = list[bool](), list[bool]()
    for scene in scenes(World(items=40)):
        things = np.array([box(scene, thing) for thing in scene.things], np.float32)
        boxes, scores = edge_boxes(draw(scene))
        assert 0 < len(boxes) == len(scores) <= 200
        assert (np.diff(scores) <= 0).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert (boxes >= 0).all()
        assert (boxes <= [scene.width, scene.height] * 2).all()
        found += (iou(things, boxes).max(1) >= 0.7).tolist()
        by_chance += (iou(things, random_boxes(scene.width, scene.height, scene.index)).max(1) >= 0.7).tolist()
    assert np.mean(found) > 0.75
    assert np.mean(by_chance) < 0.1


@pytest.mark.parametrize("size", [(100, 120), (1, 1), (16, 400), (15, 15)])
def test_a_picture_without_edges_has_a_valid_empty_result(size: tuple[int, int], vgg16: EdgeBoxProposals) -> None:
    blank = np.full((*size, 3), 77, np.uint8)
    (regions,) = vgg16.extract([blank])
    assert (regions.boxes_K4.shape, regions.features_KD.shape) == ((0, 4), (0, 4096))
    assert (regions.size, regions.class_scores_KC) == (size[::-1], None)


def test_results_of_opencv_4_and_5_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def __init__(self, scores: Any) -> None:
            self.scores = scores

        def getBoundingBoxes(self, edges: Any, directions: Any) -> Any:
            return np.array([[1, 2, 3, 4], [0, 0, 9, 9]], np.int32), self.scores

    for scores in (np.array([0.5, 0.25], "f4"), np.array([[0.5], [0.25]], "f4")):
        monkeypatch.setattr(cv2.ximgproc, "createEdgeBoxes", lambda scores=scores, **settings: Finder(scores))
        boxes, found = edge_boxes(SCENE)
        assert (boxes.tolist(), found.tolist()) == ([[1, 2, 4, 6], [0, 0, 9, 9]], [0.5, 0.25])


def slow_features(
    network: Any, pixels_3HW: torch.Tensor, boxes_K4: NDArray[np.float32], rounds_up: bool
) -> NDArray[np.float32]:
    """Pools each box by loops, with the rounding of Fast R-CNN."""
    layers = copy.deepcopy(network.features[:-1])
    for layer in layers:
        if isinstance(layer, torch.nn.MaxPool2d):
            layer.ceil_mode = rounds_up
    maps = layers(pixels_3HW[None])[0]
    channels, height, width = maps.shape
    rows = []
    for corners in boxes_K4:
        left, top, right, bottom = (int(np.floor(side / 16 + 0.5)) for side in corners)
        across, down = max(right - left + 1, 1), max(bottom - top + 1, 1)
        pooled = torch.zeros(channels, 7, 7)
        for row in range(7):
            for column in range(7):
                first, last = int(np.floor(row * down / 7)) + top, int(np.ceil((row + 1) * down / 7)) + top
                begin, end = int(np.floor(column * across / 7)) + left, int(np.ceil((column + 1) * across / 7)) + left
                cell = maps[:, min(max(first, 0), height) : last, min(max(begin, 0), width) : end]
                pooled[:, row, column] = cell.flatten(1).max(1).values if cell.numel() else 0
        hidden = functional.relu(functional.linear(pooled.flatten(), *network.classifier[0].parameters()))
        rows.append(functional.relu(functional.linear(hidden, *network.classifier[3].parameters())))
    return torch.stack(rows).detach().numpy()


def resized(image_HW3: NDArray[np.uint8], mean: Any, deviation: Any) -> tuple[torch.Tensor, float]:
    pixels = (image_HW3.astype("f4") - mean) / deviation
    scale = min(121 / min(image_HW3.shape[:2]), 201 / max(image_HW3.shape[:2]))
    resized = cv2.resize(pixels, None, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(resized).permute(2, 0, 1), scale


@pytest.mark.parametrize("size", [(375, 500), (333, 500), (120, 480), (427, 640), (900, 700)])
def test_pixels_are_resized_as_opencv_does(size: tuple[int, int], vgg16: EdgeBoxProposals) -> None:
    """A pixel is a scale away from the next, though whole pixels are a little less or more than that."""
    coarse = np.random.default_rng(0).integers(0, 256, (size[0] // 6 + 1, size[1] // 6 + 1, 3), np.uint8)
    image = coarse.repeat(6, 0).repeat(6, 1)[: size[0], : size[1]]
    scale = min(600 / min(size), 1000 / max(size))
    centred = (image[:, :, ::-1] - np.array([102.9801, 115.9465, 122.7717])).astype("f4")
    wanted = cv2.resize(centred, None, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    pixels, found = replace(vgg16, is_caffe=True)._pixels(image)
    assert found == scale
    np.testing.assert_allclose(pixels[0].permute(1, 2, 0), wanted, atol=1e-3)


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize("is_caffe", [False, True])
def test_features_of_given_boxes_are_those_of_a_slow_computation(is_caffe: bool, vgg16: EdgeBoxProposals) -> None:
    detector = replace(vgg16, is_caffe=is_caffe)
    (regions,) = detector.extract([SCENE], [BOXES])
    if is_caffe:
        image, mean, deviation = SCENE[:, :, ::-1], np.array([102.9801, 115.9465, 122.7717]), np.ones(3)
    else:
        image = SCENE
        mean, deviation = np.array([0.485, 0.456, 0.406]) * 255, np.array([0.229, 0.224, 0.225]) * 255
    pixels, scale = resized(image, mean.astype("f4"), deviation.astype("f4"))
    with torch.inference_mode():
        slow = slow_features(detector.network, pixels, BOXES * np.float32(scale), rounds_up=is_caffe)
    assert slow.any(axis=1).all()
    np.testing.assert_allclose(regions.features_KD, slow, rtol=1e-3, atol=1e-4 * float(slow.max()))
    np.testing.assert_array_equal(regions.boxes_K4, BOXES)
    assert (detector.width, detector.words.classes) == (4096, ())


def test_provenance_says_how_pictures_were_seen(vgg16: EdgeBoxProposals) -> None:
    about = vgg16.provenance()
    assert (about["network"], about["weights"], about["edge_boxes"]["boxes"]) == ("proposals/vgg16", "random:0", 200)
    assert (about["preprocessing"]["shorter_side"], about["preprocessing"]["longest_side"]) == (600, 1000)
    assert replace(vgg16, is_caffe=True).provenance()["preprocessing"]["colours"] == "BGR"


# ---------------------------------------------------------------------------------------------------------------- Caffe


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def piece(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def caffemodel(path: Path, layers: dict[str, list[NDArray[np.float32]]]) -> Path:
    """A NetParameter, written by hand."""
    with path.open("wb") as file:
        for name, blobs in layers.items():
            data = piece(1, name.encode())
            for blob in blobs:
                sides = b"".join(map(varint, blob.shape))
                data += piece(7, piece(7, piece(1, sides)) + piece(5, blob.astype("<f4").tobytes()))
            file.write(piece(100, data))
    return path


def caffe_layers(depths: tuple[int, ...], width: int) -> dict[str, list[NDArray[np.float32]]]:
    """Layers of Fast R-CNN as its file has them, beside its classes; `width` is of fc6 and fc7."""
    random, found, taken = np.random.default_rng(0), dict[str, list[NDArray[np.float32]]](), 3
    for block, (depth, channels) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True), 1):
        for number in range(1, depth + 1):
            weights = random.random((channels, taken, 3, 3), "float32")
            found[f"conv{block}_{number}"] = [weights, np.ones(channels, "f4")]
            taken = channels
    for name, inputs in (("fc6", 512 * 49), ("fc7", width), ("cls_score", width)):
        # four sides, as in old files
        found[name] = [random.random((1, 1, width, inputs), "float32"), np.ones((1, 1, 1, width), "f4")]
    return found


@pytest.mark.parametrize(("name", "depths"), [("vgg16", (2, 2, 3, 3, 3)), ("vgg19", (2, 2, 4, 4, 4))])
def test_a_caffemodel_of_fast_rcnn_has_the_layers_of_torchvision(
    name: str, depths: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_box_proposals, "WIDTH", 4)  # a file of half a gigabyte would be no better
    layers = caffe_layers(depths, 4)
    state = caffe_state(name, caffemodel(tmp_path / "fast.caffemodel", layers))
    with torch.device("meta"):
        network = torchvision.models.get_model(name, weights=None, init_weights=False)
    wanted = {key: values.shape for key, values in network.state_dict().items() if not key.startswith("classifier.6")}
    assert state.keys() == wanted.keys()
    for key in wanted:
        if key.startswith("features"):
            assert state[key].shape == wanted[key]
    assert state["classifier.0.weight"].shape == (4, 25088)
    np.testing.assert_array_equal(state["classifier.3.weight"], layers["fc7"][0][0, 0])
    np.testing.assert_array_equal(state["features.5.weight"], layers["conv2_1"][0])


def test_a_caffemodel_of_another_network_is_refused(tmp_path: Path) -> None:
    small = {"conv1_1": [np.ones((64, 3, 3, 3), "f4"), np.ones(64, "f4")]}
    file = caffemodel(tmp_path / "x.caffemodel", small)
    with pytest.raises(UserError, match=r"x\.caffemodel are no state_dict of a vgg16: it lacks layer conv1_2"):
        load("vgg16", f"sha256:{weights_sha256(file)}", {"detector": file}, "cpu")
    renamed = file.rename(tmp_path / "x.bin")  # what a file begins with says what it is
    with pytest.raises(UserError, match=r"x\.bin are no state_dict of a vgg16: it lacks layer conv1_2"):
        load("vgg16", f"sha256:{weights_sha256(renamed)}", {"detector": renamed}, "cpu")
    small["conv1_1"][0] = np.ones((8, 3, 3, 3), "f4")
    with pytest.raises(ValueError, match="cannot reshape"):
        caffe_state("vgg16", caffemodel(file, small))


def test_a_file_of_torch_is_no_caffemodel_however_it_is_called(tmp_path: Path) -> None:
    for is_zip in (True, False):
        torch.save({"a": torch.ones(1)}, tmp_path / "x.caffemodel", _use_new_zipfile_serialization=is_zip)
        assert format_of(tmp_path / "x.caffemodel") == "torch"


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 64, piece(100, b"\x0a\xff\xff\xff\xff\x0f"), b"\xa2\x06\xff\xff\x03ab"]
)
def test_a_hostile_caffemodel_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.caffemodel").write_bytes(data)
    with pytest.raises(UserError, match=r"x\.caffemodel"):
        caffe_state("vgg16", tmp_path / "x.caffemodel")


def test_a_detector_that_there_is_not_is_refused() -> None:
    module, name = module_of("proposals/vgg11")
    with pytest.raises(UserError, match="no detector proposals/vgg11; there are: proposals/vgg16, proposals/vgg19"):
        module.check(name, "published")
    with pytest.raises(UserError, match="no weights 'random' for proposals/vgg16"):
        module.check("vgg16", "random")
