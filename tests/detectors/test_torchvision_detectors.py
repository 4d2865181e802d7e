"""torchvision's detectors: what they give is what torchvision's own code gives, region by region."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision  # type: ignore[import-untyped]

from pipelines.demo.world import World, draw, scenes
from xmodal.detectors import module_of
from xmodal.detectors.torchvision_detectors import TorchvisionDetector, check, load
from xmodal.errors import UserError
from xmodal.features.weight_files import weights_sha256
from xmodal.media.images import UnreadableImage

NAME = "fasterrcnn_mobilenet_v3_large_320_fpn"
SCENES = [draw(scene) for scene in scenes(World(items=3, image_size=200))]


@pytest.fixture(scope="module")
def detector() -> TorchvisionDetector:
    return load(NAME, "random:0", {}, "cpu")


def test_words_are_the_eighty_classes_that_coco_has(detector: TorchvisionDetector) -> None:
    words = detector.words
    assert (len(words.classes), words.attributes) == (80, ())
    assert (words.classes[0], words.classes[-1], "N/A" in words.classes) == ("person", "toothbrush", False)


def test_regions_are_those_of_torchvision(detector: TorchvisionDetector) -> None:
    """Its own detections, without threshold and suppression, are our boxes with the scores of their best class."""
    (regions,) = detector.extract(SCENES[:1])
    assert regions.class_scores_KC is not None
    assert (regions.features_KD.shape[1], regions.class_scores_KC.shape[1]) == (detector.width, 81)
    assert (regions.features_KD >= 0).all()
    network = torchvision.models.get_model(NAME, weights=None, weights_backbone=None).eval()
    network.load_state_dict(detector.network.state_dict())
    network.roi_heads.score_thresh, network.roi_heads.nms_thresh, network.roi_heads.detections_per_img = 0, 1, 10**6
    with torch.inference_mode():
        (theirs,) = network([torch.from_numpy(SCENES[0].copy()).permute(2, 0, 1) / 255])
    classes = [name for name in detector.categories if name != "N/A"]
    best = regions.class_scores_KC[:, 1:].argmax(1) + 1
    visible = (regions.boxes_K4[:, 2:] - regions.boxes_K4[:, :2]).min(1) > 0.1  # theirs lack empty boxes
    assert visible.sum() > 20
    for place in np.flatnonzero(visible)[::5]:
        score = regions.class_scores_KC[place, best[place]]
        column = detector.categories.index(classes[best[place]])
        same = (theirs["labels"] == column) & ((theirs["scores"] - float(score)).abs() < 1e-3)
        distance = (theirs["boxes"][same] - torch.from_numpy(regions.boxes_K4[place])).abs().amax(1)
        assert distance.min() < 1e-2


@pytest.mark.parametrize("boxes", [None, [np.array([[0, 0, 2, 2]], np.float32)]])
def test_a_picture_too_narrow_to_resize_is_unreadable(boxes: Any, detector: TorchvisionDetector) -> None:
    """The longest side becomes 640: at 1 to 640 a pixel remains of the other, beyond that nothing."""
    assert detector.extract([np.zeros((1280, 2, 3), np.uint8)], boxes)[0].size == (2, 1280)
    for shape, said in (((3000, 2, 3), "2 x 3000"), ((2, 1281, 3), "1281 x 2")):
        with pytest.raises(UnreadableImage, match=f"{said} pixels are too narrow to resize"):
            detector.extract([np.zeros(shape, np.uint8)], boxes)


def test_given_boxes_are_kept_and_their_features_are_those_of_the_place(detector: TorchvisionDetector) -> None:
    whole = np.array([[0, 0, 150, 150], [10, 20, 60, 90]], np.float32)
    one, two = detector.extract(SCENES[:2], [whole, whole[1:]])
    np.testing.assert_array_equal(one.boxes_K4, whole)
    assert (len(one), len(two), one.size) == (2, 1, (SCENES[0].shape[1], SCENES[0].shape[0]))
    (again,) = detector.extract(SCENES[:1], [whole[1:]])
    np.testing.assert_allclose(again.features_KD, one.features_KD[1:], atol=1e-5)
    assert not np.allclose(one.features_KD[0], one.features_KD[1], atol=0.1)
    (none,) = detector.extract(SCENES[:1], [np.zeros((0, 4), np.float32)])
    assert (len(none), none.features_KD.shape) == (0, (0, 1024))


def test_pictures_beside_a_picture_do_not_change_its_rows(detector: TorchvisionDetector) -> None:
    together = detector.extract(SCENES)
    for image, regions in zip(SCENES, together, strict=True):
        (alone,) = detector.extract([image])
        np.testing.assert_array_equal(alone.features_KD, regions.features_KD)
        np.testing.assert_array_equal(alone.boxes_K4, regions.boxes_K4)


def test_a_file_of_weights_is_read_and_another_networks_is_refused(
    tmp_path: Path, detector: TorchvisionDetector
) -> None:
    file = tmp_path / "w.pth"
    torch.save(detector.network.state_dict(), file)
    found = load(NAME, f"sha256:{weights_sha256(file)}", {"detector": file}, "cpu")
    np.testing.assert_array_equal(found.extract(SCENES[:1])[0].features_KD, detector.extract(SCENES[:1])[0].features_KD)
    assert found.provenance()["weights_sha256"] == weights_sha256(file)
    torch.save({name: v for name, v in detector.network.state_dict().items() if "fc7" not in name}, file)
    with pytest.raises(UserError, match=r"w\.pth are no state_dict of a torchvision/.*lacks roi_heads\.box_head\.fc7"):
        load(NAME, f"sha256:{weights_sha256(file)}", {"detector": file}, "cpu")


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="no detector torchvision/retinanet; there are: fasterrcnn_resnet50_fpn_v2"):
        check("retinanet", "published")
    with pytest.raises(UserError, match="no weights 'IMAGENET' for torchvision/"):
        check(NAME, "IMAGENET")
    with pytest.raises(UserError, match="no detector 'nobody/x'; there are: bottom_up, torchvision"):
        module_of("nobody/x")
