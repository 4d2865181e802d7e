"""The network of the small detector, its file of weights, and how it sees a picture.

Four convolutions make maps at strides of 2 and 4, which each region's feature is taken from; proposals come from the
latter. A feature gives a class, a box of that class and an attribute, which also sees the class, as in bottom-up
attention (Anderson et al. 2018, section 3.1). Proposals, matching, coding of boxes and losses are torchvision's.

A file of weights has the words and the config in it; reading it executes nothing.

Shapes: B pictures, S the side of a picture as the network sees it, K regions, G x G parts of each, D a feature,
C classes and A attributes, each with a column 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection.image_list import ImageList  # type: ignore[import-untyped]
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss  # type: ignore[import-untyped]
from torchvision.models.detection.rpn import AnchorGenerator, RegionProposalNetwork, RPNHead  # type: ignore[import-untyped]
from torchvision.ops import nms  # type: ignore[import-untyped]

from xmodal import __version__
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.detectors.small_faster_rcnn import TRAINING
from xmodal.errors import UserError
from xmodal.features.weight_files import WRONG, describe, reproducible
from xmodal.raw.tensor_files import read_tensor_file

STRIDES, GRID = (2, 4), 7  # pixels of a position of the maps; positions of a side of a region's square
EMBEDDED, ATTRIBUTE_WIDTH = 32, 64
OVERLAP = 0.5  # more of it is one thing
MIDDLE, SPREAD = 128.0, 64.0  # of a pixel's values
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
Maps = tuple[Tensor, Tensor]  # fine and coarse, (B, channels, H, W)
Target = dict[str, Tensor]  # boxes (K, 4) in pixels of the network, labels (K,), attributes (K, A) of 0 and 1


@dataclass(frozen=True)
class SmallConfig:
    """Words, and sizes of the network."""

    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    side: int = 128  # to which the longer side of a picture is resized
    width: int = 12  # of the first convolution; that of the last one is four times it
    feature: int = 128
    anchors: tuple[float, ...] = (0.13, 0.19, 0.27)  # their sides, as shares of `side`
    proposals: int = 20  # regions of a picture at most

    def __post_init__(self) -> None:
        bounds = {"side": 2048, "width": 256, "feature": 4096, "proposals": 1000}
        for name, most in bounds.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} is a whole number from 1 to {most:,}, not {value!r}")
        if self.side < 32:
            raise ValueError(f"side is at least 32 pixels, not {self.side}")
        if not 1 <= len(self.anchors) <= 16 or not all(0 < anchor <= 1 for anchor in self.anchors):
            raise ValueError(f"anchors are one to 16 shares of a picture's side, from 0 to 1, not {self.anchors}")
        for words in (self.classes, self.attributes):
            if len(words) > 100_000 or len({*words}) < len(words) or not all(isinstance(word, str) for word in words):
                raise ValueError("classes and attributes are texts, each of them once")
        if not self.classes:
            raise ValueError("a detector has a class at least")


class SmallNetwork(nn.Module):
    """The layers; `regions` of a picture are trained on, half of them things if there are enough."""

    def __init__(self, config: SmallConfig, regions: int = 16) -> None:
        super().__init__()
        width, classes, attributes = 4 * config.width, len(config.classes) + 1, len(config.attributes) + 1
        self.fine = nn.Sequential(*_convolution(3, config.width, 2))
        self.coarse = nn.Sequential(
            *_convolution(config.width, 2 * config.width, 2),
            *_convolution(2 * config.width, width),
            *_convolution(width, width),
        )
        kept = {"training": config.proposals, "testing": config.proposals}
        anchors = AnchorGenerator((tuple(config.side * anchor for anchor in config.anchors),), ((1.0,),))
        head = RPNHead(width, len(config.anchors))
        before = {name: 4 * count for name, count in kept.items()}
        self.rpn = RegionProposalNetwork(anchors, head, 0.6, 0.3, 64, 0.5, before, kept, 0.7)
        self.to_feature = nn.Linear((width + config.width) * GRID**2, config.feature, bias=False)
        self.normal = nn.BatchNorm1d(config.feature)
        self.to_class, self.to_boxes = nn.Linear(config.feature, classes), nn.Linear(config.feature, 4 * classes)
        self.of_class = nn.Embedding(classes, EMBEDDED)
        self.to_attribute = nn.Sequential(
            nn.Linear(config.feature + EMBEDDED, ATTRIBUTE_WIDTH), nn.ReLU(), nn.Linear(ATTRIBUTE_WIDTH, attributes)
        )
        # Its sampling and its coding of boxes alone: the layers are those above.
        nothing = nn.Identity()
        self.sampling = RoIHeads(nothing, nothing, nothing, 0.5, 0.5, regions, 0.5, BOX_WEIGHTS, 0.0, 0.5, 1)

    def losses(self, pixels_B3SS: Tensor, sizes: list[tuple[int, int]], targets: list[Target]) -> dict[str, Tensor]:
        """`sizes` are heights and widths. A picture has a region at least; one without attributes says none."""
        maps = self.maps(pixels_B3SS)
        proposals, found = self.rpn(ImageList(pixels_B3SS, sizes), _halved(maps), targets)
        proposals, places, labels, deltas = self.sampling.select_training_samples(proposals, targets)
        features_KD = self._features(maps, proposals)
        label_K = torch.cat(labels)
        said_KA = torch.cat([one["attributes"][place] for one, place in zip(targets, places, strict=True)])
        classes, boxes = fastrcnn_loss(self.to_class(features_KD), self.to_boxes(features_KD), labels, deltas)
        known_K = (label_K > 0) & (said_KA.sum(1) > 0)
        attributes = self._attributes(features_KD[known_K], label_K[known_K])
        said_KA = said_KA[known_K] / said_KA[known_K].sum(1, keepdim=True)
        terms = {"objectness": found["loss_objectness"], "proposals": found["loss_rpn_box_reg"]}
        return terms | {
            "classes": classes,
            "boxes": boxes,
            "attributes": -(said_KA * attributes.log_softmax(1)).sum() / max(1, len(said_KA)),
        }

    def maps(self, pixels_B3SS: Tensor) -> Maps:
        fine = self.fine(pixels_B3SS)
        return fine, self.coarse(fine)

    def propose(self, pixels_13SS: Tensor, maps: Maps, size: tuple[int, int]) -> Tensor:
        found, _ = self.rpn(ImageList(pixels_13SS, [size]), _halved(maps))
        boxes_K4: Tensor = found[0]
        return boxes_K4

    def look(self, maps: Maps, boxes_K4: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features, probabilities of classes and of attributes, and the boxes of the most probable classes."""
        features_KD = self._features(maps, [boxes_K4])
        classes_KC = self.to_class(features_KD)
        attributes_KA = self._attributes(features_KD, classes_KC.argmax(1)).softmax(1)
        best_K = classes_KC[:, 1:].argmax(1) + 1
        deltas_KC4 = self.to_boxes(features_KD).unflatten(1, (-1, 4))
        deltas_K4 = deltas_KC4[torch.arange(len(best_K), device=best_K.device), best_K]
        boxes_K4 = self.sampling.box_coder.decode_single(deltas_K4, boxes_K4)
        return features_KD, classes_KC.softmax(1), attributes_KA, boxes_K4

    def _features(self, maps: Maps, boxes: list[Tensor]) -> Tensor:
        squares = [_squares(each, boxes, stride).flatten(1) for each, stride in zip(maps, STRIDES, strict=True)]
        return functional.relu(self.normal(self.to_feature(torch.cat(squares, 1))))

    def _attributes(self, features_KD: Tensor, class_K: Tensor) -> Tensor:
        found: Tensor = self.to_attribute(torch.cat([features_KD, self.of_class(class_K)], 1))
        return found


def _squares(map_BCHW: Tensor, boxes: list[Tensor], stride: int) -> Tensor:
    """Values (K, C, G, G) in the middles of G x G equal parts of each box.

    As torchvision's roi_align of one sample a part gives them, whose gradients take three times as long on a CPU.
    """
    boxes_BK4 = pad_sequence(boxes, batch_first=True)
    batch, most = boxes_BK4.shape[:2]
    low_BK2, high_BK2 = boxes_BK4[..., :2], boxes_BK4[..., 2:]
    middles_G1 = ((torch.arange(GRID, device=map_BCHW.device) + 0.5) / GRID).unsqueeze(1)
    places_BKG2 = low_BK2.unsqueeze(2) + (high_BK2 - low_BK2).unsqueeze(2) * middles_G1
    height, width = map_BCHW.shape[2:]
    places_BKG2 = places_BKG2 * 2 / (stride * torch.tensor([width, height], device=map_BCHW.device)) - 1
    x_BKGG = places_BKG2[..., 0].unsqueeze(2).expand(-1, -1, GRID, -1)
    y_BKGG = places_BKG2[..., 1].unsqueeze(3).expand(-1, -1, -1, GRID)
    grid_BNG2 = torch.stack([x_BKGG, y_BKGG], dim=-1).view(batch, most * GRID, GRID, 2)
    values_BCNG = functional.grid_sample(map_BCHW, grid_BNG2, padding_mode="border", align_corners=False)
    values_BKCGG = values_BCNG.view(batch, map_BCHW.shape[1], most, GRID, GRID).transpose(1, 2)
    return torch.cat([values[: len(own)] for values, own in zip(values_BKCGG, boxes, strict=True)])


def _halved(maps: Maps) -> dict[str, Tensor]:
    """Maps for proposals, which need no more than a stride of 8."""
    return {"0": functional.avg_pool2d(maps[1], 2)}


def _convolution(into: int, out: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)


def seen(picture_HW3: NDArray[np.uint8], side: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A picture as the network sees it, its longer side resized, and by what its boxes are multiplied, (4,)."""
    before = picture_HW3.shape[1::-1]
    width, height = (max(1, round(length * side / max(before))) for length in before)
    scale_4 = np.array([width / before[0], height / before[1]] * 2, np.float32)
    if before == (width, height):
        return picture_HW3, scale_4
    return np.asarray(Image.fromarray(picture_HW3).resize((width, height), Image.Resampling.BILINEAR)), scale_4


def batch_of(pictures: Sequence[NDArray[np.uint8]], side: int) -> Tensor:
    """Pixels (B, 3, S, S) of pictures in the top left corners of grey squares."""
    pixels_BSS3 = np.full((len(pictures), side, side, 3), int(MIDDLE), np.uint8)
    for square, picture in zip(pixels_BSS3, pictures, strict=True):
        square[: len(picture), : picture.shape[1]] = picture
    # Its memory is in the order (B, S, S, 3), in which convolutions on a CPU are faster.
    return torch.from_numpy(pixels_BSS3).permute(0, 3, 1, 2).float().sub_(MIDDLE).div_(SPREAD)


@dataclass(frozen=True, eq=False, repr=False)
class SmallDetector:
    config: SmallConfig
    network: SmallNetwork
    weights: str
    weights_sha256: str | None  # of the file
    device: str = "cpu"

    @property
    def words(self) -> DetectorWords:
        return DetectorWords(self.config.classes, self.config.attributes)

    @property
    def width(self) -> int:
        return self.config.feature

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        """Candidates with the box of their best class, the most likely things first; given boxes stay as they are.

        One picture at a time: the same bits in any company.
        """
        with reproducible(), torch.inference_mode():
            if boxes is None:
                return [self._regions(image, None) for image in images]
            return [self._regions(image, given) for image, given in zip(images, boxes, strict=True)]

    def _regions(self, image: NDArray[np.uint8], given_K4: NDArray[np.float32] | None) -> Regions:
        height, width = image.shape[:2]
        small, scale_4 = seen(image, self.config.side)
        pixels_13SS = batch_of([small], self.config.side).to(self.device)
        maps = self.network.maps(pixels_13SS)
        if given_K4 is None:
            boxes_K4 = self.network.propose(pixels_13SS, maps, small.shape[:2])
        else:
            boxes_K4 = torch.from_numpy(np.float32(given_K4 * scale_4)).to(self.device)
        *rows, found_K4 = (values.cpu().numpy() for values in self.network.look(maps, boxes_K4))
        boxes = given_K4 if given_K4 is not None else (found_K4 / scale_4).clip(0, (width, height) * 2)
        features, classes, attributes = rows
        found = Regions(
            np.asarray(boxes, np.float32),
            features,
            (width, height),
            classes,
            attributes if self.config.attributes else None,
        )
        return found if given_K4 is not None else found[_best_of_each_place(found)]

    def provenance(self) -> Mapping[str, Any]:
        settings = {name: value for name, value in asdict(self.config).items() if name not in ("classes", "attributes")}
        return {
            "network": "small",
            "weights": self.weights,
            "weights_sha256": self.weights_sha256,
            "settings": settings,
            "words": asdict(self.words),
            "features_of": "proposals, or given boxes",  # not the refined boxes
            "preprocessing": {"mean": MIDDLE, "deviation": SPREAD, "interpolation": "bilinear", "colours": "RGB"},
            "versions": {name: version(name) for name in ("pillow", "torch", "torchvision")} | {"xmodal": __version__},
        }


def drawn_network(seed: int) -> tuple[SmallConfig, SmallNetwork]:
    """A network that is not trained and knows no words."""
    config = SmallConfig(("thing",), ())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        return config, SmallNetwork(config).eval()


def _best_of_each_place(found: Regions) -> NDArray[np.int64]:
    """Places of regions with an area that no likelier thing covers, whatever its class, the likeliest first."""
    assert found.class_scores_KC is not None
    boxes_K4 = torch.from_numpy(found.boxes_K4)
    kept = nms(boxes_K4, torch.from_numpy(found.class_scores_KC[:, 1:].max(axis=1, initial=0)), OVERLAP)
    has_area_K = (boxes_K4[:, 2:] > boxes_K4[:, :2]).all(dim=1)
    return np.asarray(kept[has_area_K[kept]].numpy())


def weights_file(config: SmallConfig, network: SmallNetwork) -> bytes:
    data = BytesIO()
    torch.save({"small_detector": asdict(config), "weights": network.state_dict()}, data)
    return data.getvalue()


def read_weights(file: Path) -> tuple[SmallConfig, SmallNetwork]:
    try:
        saved = read_tensor_file(file)
        if not isinstance(saved, Mapping) or not saved.keys() >= {"small_detector", "weights"}:
            raise ValueError(f"it has {describe(saved)} in it, not small_detector and weights")
        config = SmallConfig(**saved["small_detector"])
        with torch.device("meta"):  # takes no memory, whatever sizes the file claims
            network = SmallNetwork(config).eval()
        wanted = network.state_dict()
        network.load_state_dict(saved["weights"], assign=True)
        for name, values in network.state_dict().items():
            # A file of one number can claim a tensor of millions, all of them this number.
            if values.dtype != wanted[name].dtype or values.is_meta or not values.is_contiguous():
                raise ValueError(f"{name} is no plain array of {wanted[name].dtype}")
            if not values.isfinite().all():
                raise ValueError(f"{name} has numbers that are not finite")
    except WRONG as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"{file} has no weights of a small detector ({line}): {TRAINING}") from error
    return config, network
