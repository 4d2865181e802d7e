"""detectron2's detectors: the message where it is absent; where it is there, what they give of random weights."""

from importlib.util import find_spec

import numpy as np
import pytest

from pipelines.demo.world import World, draw, scenes
from xmodal.detectors.detectron2_detectors import check, load
from xmodal.errors import UserError

FPN, C4 = "COCO-Detection/faster_rcnn_R_50_FPN_3x", "COCO-Detection/faster_rcnn_R_50_C4_3x"
IS_HERE = find_spec("detectron2") is not None


@pytest.mark.skipif(IS_HERE, reason="detectron2 is here")
def test_without_detectron2_a_message_says_where_to_get_it() -> None:
    said = r"needs detectron2, which is not here; it is not on the Python package index: .*INSTALL\.md$"
    for refuse in (lambda: check(FPN, "published"), lambda: load(FPN, "random:0", {}, "cpu")):
        with pytest.raises(UserError, match=said):
            refuse()


@pytest.mark.parametrize("name", ["", "faster_rcnn", "COCO-Detection/../../etc", "LVIS/mask_rcnn"])
def test_a_config_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"no detector detectron2/{name}; there are"):
        check(name, "published")


@pytest.mark.skipif(not IS_HERE, reason="detectron2 is not here")
@pytest.mark.filterwarnings("ignore")  # its own, about torch's coming versions
@pytest.mark.parametrize(("name", "width"), [(FPN, 1024), (C4, 2048)])
def test_a_detector_gives_regions_and_features_of_given_boxes(name: str, width: int) -> None:
    detector = load(name, "random:0", {}, "cpu")
    image = draw(next(scenes(World(items=1, image_size=128))))
    (regions,) = detector.extract([image])
    assert regions.class_scores_KC is not None
    assert (len(regions) > 0, detector.width, regions.features_KD.shape[1]) == (True, width, width)
    assert (regions.class_scores_KC.shape[1], len(detector.words.classes)) == (81, 80)
    assert np.isfinite(regions.features_KD).all()
    np.testing.assert_allclose(regions.class_scores_KC.sum(1), 1, atol=1e-5)
    boxes = np.array([[4, 4, 60, 60]], np.float32)
    (given,) = detector.extract([image], [boxes])
    np.testing.assert_array_equal(given.boxes_K4, boxes)
    assert given.features_KD.shape == (1, width)
