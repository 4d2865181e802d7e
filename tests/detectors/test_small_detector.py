"""The small detector keeps the contract: boxes of the picture, the same bits in any company, harmless weights."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from pipelines.demo.world import World, draw, scene
from tests.toy_root import one_thread as one_thread
from xmodal.detectors import KINDS, module_of, small_faster_rcnn
from xmodal.detectors._small_network import SmallConfig, SmallDetector, SmallNetwork, read_weights, weights_file
from xmodal.errors import UserError
from xmodal.root.files import sha256_of

CONFIG = SmallConfig(("moon", "star"), ("blue", "red", "striped"), side=64, width=4, feature=24, proposals=20)
WORLD = World(items=5)


def pictures() -> list[NDArray[np.uint8]]:
    """Of three shapes and of two sizes."""
    wide = np.random.default_rng(0).integers(0, 256, (40, 210, 3), np.uint8)
    return [*(draw(scene(WORLD, index)) for index in range(4)), wide]


def network(config: SmallConfig = CONFIG) -> SmallNetwork:
    torch.manual_seed(0)
    return SmallNetwork(config).eval()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "detector.pt"
    path.write_bytes(weights_file(CONFIG, network()))
    return path


def load(file: Path) -> SmallDetector:
    return small_faster_rcnn.load("", f"sha256:{sha256_of(file)}", {"detector": file}, "cpu")


def arrays(detector: SmallDetector, *some: NDArray[np.uint8], boxes: Any = None) -> list[list[bytes]]:
    every = detector.extract(some, boxes)
    names = ("boxes_K4", "features_KD", "class_scores_KC", "attribute_scores_KA")
    return [[getattr(regions, name).tobytes() for name in names] for regions in every]


def test_regions_are_of_the_picture_and_scores_are_probabilities(file: Path) -> None:
    detector = load(file)
    module, rest = module_of("small")
    assert (module, rest) == (small_faster_rcnn, "")
    assert (detector.words.classes, detector.words.attributes) == (CONFIG.classes, CONFIG.attributes)
    for picture, regions in zip(pictures(), detector.extract(pictures()), strict=True):
        height, width = picture.shape[:2]
        assert 0 < len(regions) <= 20
        assert regions.size == (width, height)
        assert regions.features_KD.shape == (len(regions), detector.width)
        assert (regions.boxes_K4[:, :2] >= 0).all()
        assert (regions.boxes_K4[:, 2:] <= (width, height)).all()
        assert (regions.boxes_K4[:, 2:] > regions.boxes_K4[:, :2]).all()
        assert regions.class_scores_KC is not None
        assert regions.attribute_scores_KA is not None
        assert (regions.class_scores_KC.shape[1], regions.attribute_scores_KA.shape[1]) == (3, 4)
        for scores in (regions.class_scores_KC, regions.attribute_scores_KA):
            np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)


def test_a_picture_has_the_same_bits_in_any_company(file: Path) -> None:
    detector, some = load(file), pictures()
    together = arrays(detector, *some)
    assert arrays(detector, *some[::-1]) == together[::-1]
    assert [arrays(load(file), picture)[0] for picture in some] == together
    assert detector.extract([]) == []


def test_given_boxes_are_scored_and_stay_as_they_are(file: Path) -> None:
    detector, some = load(file), pictures()
    given = [np.array([(1, 2, 50, 60), (0, 0, 96, 96), (1, 2, 50, 60)], np.float32), np.zeros((0, 4), np.float32)]
    regions, none = detector.extract(some[:2], given)
    np.testing.assert_array_equal(regions.boxes_K4, given[0])
    assert (regions.features_KD[0] == regions.features_KD[2]).all()
    assert (regions.features_KD[0] != regions.features_KD[1]).any()
    assert (len(none), none.features_KD.shape, none.class_scores_KC.shape) == (0, (0, 24), (0, 3))  # type: ignore[union-attr]
    assert arrays(detector, *some[:2], boxes=given)[0] == arrays(detector, some[0], boxes=given[:1])[0]
    with pytest.raises(ValueError, match="zip"):
        detector.extract(some, given)


def test_a_box_that_reaches_beyond_the_picture_has_a_finite_feature(file: Path) -> None:
    far = np.array([(-50, -50, 20, 20), (500, 500, 600, 600), (30, 30, 30, 30)], np.float32)
    (regions,) = load(file).extract(pictures()[:1], [far])
    assert np.isfinite(regions.features_KD).all()


def test_pictures_of_any_size_are_looked_at(file: Path) -> None:
    sizes = [(1, 1), (1, 300), (300, 2), (64, 64)]
    found = load(file).extract([np.zeros((height, width, 3), np.uint8) for height, width in sizes])
    assert [regions.size for regions in found] == [(width, height) for height, width in sizes]


def test_what_is_computed_is_told(file: Path) -> None:
    told = load(file).provenance()
    assert (told["network"], told["weights_sha256"]) == ("small", sha256_of(file))
    assert told["settings"]["side"] == 64
    assert told["features_of"] == "proposals, or given boxes"
    assert told["words"] == {"classes": CONFIG.classes, "attributes": CONFIG.attributes}


def test_a_detector_without_attributes_scores_none(tmp_path: Path) -> None:
    file = tmp_path / "plain.pt"
    plain = replace(CONFIG, attributes=())
    file.write_bytes(weights_file(plain, network(plain)))
    (regions,) = load(file).extract(pictures()[:1])
    assert regions.attribute_scores_KA is None


def test_random_weights_follow_from_their_seed() -> None:
    state = torch.get_rng_state()
    first, again, other = (small_faster_rcnn.load("", f"random:{seed}", {}, "cpu") for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert first.words.classes == ("thing",)
    (one,), (same,), (another,) = (detector.extract(pictures()[:1]) for detector in (first, again, other))
    assert one.features_KD.tobytes() == same.features_KD.tobytes() != another.features_KD.tobytes()


class Hostile:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.mkdir, (self.folder,)  # type: ignore[return-value]


def saved(**changes: Any) -> dict[str, Any]:
    config = {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}
    return {"small_detector": config | changes, "weights": network().state_dict()}


def without_a_tensor() -> dict[str, Any]:
    whole = saved()
    del whole["weights"]["to_class.weight"]
    return whole


def with_a_nan() -> dict[str, Any]:
    whole = saved()
    whole["weights"]["to_class.weight"][0, 0] = torch.nan
    return whole


def with_doubles() -> dict[str, Any]:
    whole = saved()
    whole["weights"]["to_class.weight"] = whole["weights"]["to_class.weight"].double()
    return whole


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda: {"model": {}}, "small_detector"),
        (lambda: network().state_dict(), "small_detector"),
        (lambda: saved(classes=("moon",)), "size mismatch"),
        (lambda: saved(classes=()), "a class at least"),
        (lambda: saved(classes=("moon", "moon")), "each of them once"),
        (lambda: saved(classes=(1, 2)), "texts"),
        (lambda: saved(width=10**9), "width is a whole number from 1 to 256"),
        (lambda: saved(side="64"), "side is a whole number"),
        (lambda: saved(anchors=()), "anchors"),
        (lambda: saved(colour=3), "colour"),
        (lambda: [1, 2], "list"),
        (without_a_tensor, "to_class.weight"),
        (with_a_nan, "to_class.weight has numbers that are not finite"),
        (with_doubles, "to_class.weight is no plain array of torch.float32"),
    ],
)
def test_a_foreign_file_is_refused_in_a_sentence(tmp_path: Path, content: Callable[[], Any], why: str) -> None:
    file = tmp_path / "foreign.pt"
    torch.save(content(), file)
    with pytest.raises(UserError, match=r"no weights of a small detector \(.*" + why) as found:
        read_weights(file)
    assert "\n" not in str(found.value)


class LargestTensor(TorchDispatchMode):
    """Watches how many bytes the largest tensor has that is made."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        for values in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(values, torch.Tensor) and not values.is_meta:
                self.bytes = max(self.bytes, values.untyped_storage().nbytes())
        return made


def claimed(config: SmallConfig, fill: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        return {name: fill(values) for name, values in SmallNetwork(config).state_dict().items()}


@pytest.mark.parametrize(
    "fill",
    [
        lambda values: torch.zeros(1, dtype=values.dtype, device="cpu"),
        lambda values: torch.zeros((), dtype=values.dtype, device="cpu").expand(values.shape),
        lambda values: values,
    ],
    ids=["shapes", "strides", "meta"],
)
def test_a_file_that_claims_more_than_it_has_takes_no_memory(tmp_path: Path, fill: Any) -> None:
    large = replace(CONFIG, classes=tuple(map(str, range(2000))), feature=512)
    file = tmp_path / "large.pt"
    torch.save({"small_detector": asdict(large), "weights": claimed(large, fill)}, file)
    assert file.stat().st_size < 100_000
    with LargestTensor() as largest, pytest.raises(UserError, match="no weights of a small detector"):
        read_weights(file)
    assert largest.bytes <= file.stat().st_size


def test_reading_draws_nothing_and_keeps_every_number(file: Path) -> None:
    state = torch.get_rng_state()
    config, read = read_weights(file)
    assert torch.equal(state, torch.get_rng_state())
    wanted, found = network().state_dict(), read.state_dict()
    assert config == CONFIG
    assert [*wanted] == [*found]
    assert all(torch.equal(values, found[name]) for name, values in wanted.items())
    assert {values.device.type for values in (*read.parameters(), *read.buffers())} == {"cpu"}


def test_a_hostile_file_executes_nothing(tmp_path: Path, file: Path) -> None:
    victim, bad = tmp_path / "made", tmp_path / "bad.pt"
    for write in (
        lambda: torch.save(Hostile(victim), bad),
        lambda: bad.write_bytes(pickle.dumps(Hostile(victim), protocol=2)),
    ):
        write()
        with pytest.raises(UserError, match="no weights of a small detector"):
            read_weights(bad)
    for data in (b"", b"no weights", file.read_bytes()[:5000]):
        bad.write_bytes(data)
        with pytest.raises(UserError, match="no weights of a small detector"):
            read_weights(bad)
    assert not victim.exists()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["torchvision"] = None
from xmodal.detectors import module_of
from xmodal.errors import UserError
module, rest = module_of(sys.argv[1])
if sys.argv[1] == "small":
    module.check(rest, "random:0")
    try:
        module.load(rest, "random:0", {}, "cpu")
    except UserError as error:
        print(error)
"""


@pytest.mark.parametrize("detector", KINDS)
def test_names_are_checked_without_torch(detector: str) -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, detector], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    if detector == "small":
        assert "the small detector needs torch and torchvision" in found.stdout


def test_other_weights_than_named_are_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UserError, match="are those of a file, which"):
        small_faster_rcnn.load("", f"sha256:{'0' * 64}", {"detector": file}, "cpu")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        small_faster_rcnn.load("", f"sha256:{'0' * 64}", {"detector": tmp_path / "none"}, "cpu")
    for name, weights, why in (
        ("large", "random:0", "there is one small detector"),
        ("", "published", "has no published weights"),
        ("", "random:x", "random:<seed>"),
        ("", f"sha256:{'0' * 64}", "--file detector=PATH"),
    ):
        with pytest.raises(UserError, match=why):
            small_faster_rcnn.load(name, weights, {}, "cpu")
