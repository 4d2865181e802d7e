"""Layouts of checkpoints of bottom-up attention: the names and shapes of tensors, ours and those of four makers."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xmodal.detectors._bottom_up_network import AIRSPLAY, CAFFE, DEPTHS, MILVLG_DETECTRON2, Depths, Family

PORT = {  # the beginnings of names in all ports to detectron2, by ours
    "stem": "backbone.stem.conv1",
    **{stage: f"backbone.{stage}" for stage in ("res2", "res3", "res4")},
    "res5": "roi_heads.res5",
    "rpn_conv": "proposal_generator.rpn_head.conv",
    "objectness": "proposal_generator.rpn_head.objectness_logits",
    "anchor_deltas": "proposal_generator.rpn_head.anchor_deltas",
    "cls_score": "roi_heads.box_predictor.cls_score",
    "bbox_pred": "roi_heads.box_predictor.bbox_pred",
}


@dataclass(frozen=True)
class Sizes:
    """Widths of a network, as the shapes of a checkpoint tell them."""

    width: int = 64  # of the stem
    proposal_width: int = 512
    classes: int = 1600  # without background
    embedding: int = 256
    attribute_width: int = 512
    attributes: int = 400  # without "no attribute"
    depths: Depths = DEPTHS


def shapes(sizes: Sizes, family: Family) -> dict[str, tuple[int, ...]]:
    """Each tensor of a checkpoint by our name for it; the names of convolutions are airsplay's without rooms."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in _convolutions(sizes):
        found[f"{name}.weight"] = shape
        found |= {f"{name}.norm.{kind}": shape[:1] for kind in ("weight", "bias", "running_mean", "running_var")}
    anchors, objects = len(family.anchors), sizes.classes + family.background_first
    heads = {
        "rpn_conv": (sizes.proposal_width, 16 * sizes.width, 3, 3),
        "objectness": (anchors * (1 + family.paired_objectness), sizes.proposal_width, 1, 1),
        "anchor_deltas": (4 * anchors, sizes.proposal_width, 1, 1),
        "cls_score": (sizes.classes + 1, 32 * sizes.width),
        "bbox_pred": (4 * objects, 32 * sizes.width),
        "fc_attr": (sizes.attribute_width, 32 * sizes.width + sizes.embedding),
        "attr_score": (sizes.attributes + (family.no_attribute is not None), sizes.attribute_width),
    }
    for name, shape in heads.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found | {"cls_embedding.weight": (sizes.classes + 1, sizes.embedding)}


def _convolutions(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "stem", (sizes.width, 3, 7, 7)
    taken = sizes.width
    for stage, depth in enumerate(sizes.depths):
        width = sizes.width << stage
        for block in range(depth):
            name = f"res{stage + 2}.{block}"
            if block == 0:
                yield f"{name}.shortcut", (4 * width, taken, 1, 1)
            yield f"{name}.conv1", (width, taken, 1, 1)
            yield f"{name}.conv2", (width, width, 3, 3)
            yield f"{name}.conv3", (4 * width, width, 1, 1)
            taken = 4 * width


@dataclass(frozen=True)
class CheckpointLayout:
    """How one maker's checkpoints name their tensors."""

    family: Family
    name: Callable[[str], str]  # in the file, by our name
    mark: str  # a name that no other layout has


def _port(family: Family, embedding: str, hidden: str, score: str) -> CheckpointLayout:
    """Layout of a port, by its names of the three parts that tell attributes."""
    parts = {"cls_embedding": embedding, "fc_attr": hidden, "attr_score": score}
    names = PORT | {part: f"roi_heads.{theirs}" for part, theirs in parts.items()}

    def name(key: str) -> str:
        part, _, rest = key.partition(".")
        return f"{names[part]}.{rest}"

    return CheckpointLayout(family, name, name("cls_embedding.weight"))


def _caffe_name(key: str) -> str:
    """Layer and blob of a tensor in Caffe, as "bn4b22_branch2a:1"."""
    kinds = {"norm.weight": "scale:0", "norm.bias": "scale:1", "norm.running_mean": "bn:0", "norm.running_var": "bn:1"}
    heads = {"rpn_conv": "rpn_conv/3x3", "objectness": "rpn_cls_score", "anchor_deltas": "rpn_bbox_pred"}
    branches = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}
    matched = re.fullmatch(r"(.+?)\.(norm\.\w+|weight|bias)", key)
    assert matched
    module, kind = matched.groups()
    layer, _, blob = kinds.get(kind, ":1" if kind == "bias" else ":0").partition(":")
    if module == "stem":
        return f"{layer}_conv1:{blob}".removeprefix("_")
    if place := re.fullmatch(r"res(\d)\.(\d+)\.(\w+)", module):
        stage, block, convolution = place.groups()
        # a long stage has blocks a, b1, b2 …, and a short one a, b, c
        tag = f"b{block}" if int(block) and stage in "34" else "abc"[int(block)]
        return f"{layer or 'res'}{stage}{tag}_branch{branches[convolution]}:{blob}"
    return f"{heads.get(module, module)}:{blob}"


LAYOUTS = {
    "caffe": CheckpointLayout(CAFFE, _caffe_name, _caffe_name("cls_embedding.weight")),
    "airsplay": _port(AIRSPLAY, "box_predictor.cls_embedding", "box_predictor.fc_attr", "box_predictor.attr_score"),
    "milvlg_caffe": _port(CAFFE, "box_predictor.cls_embed", "box_predictor.attr_linear1", "box_predictor.attr_linear2"),
    "milvlg_detectron2": _port(
        MILVLG_DETECTRON2,
        "attribute_predictor.obj_embed",
        "attribute_predictor.fc.0",
        "attribute_predictor.attr_score",
    ),
}
