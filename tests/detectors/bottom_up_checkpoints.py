"""Checkpoints of a small network of bottom-up attention, in each public layout."""

import math
import pickle
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

Values = dict[str, NDArray[np.float32]]
WIDTH, HIDDEN, CLASSES, EMBEDDING, ATTRIBUTE_WIDTH, ATTRIBUTES = 4, 6, 7, 3, 5, 4
LAYOUTS = ("caffe", "airsplay", "milvlg_caffe", "milvlg_detectron2")
ANCHORS = {"caffe": 12, "airsplay": 12, "milvlg_caffe": 12, "milvlg_detectron2": 15}
PORT_HEADS = {
    "airsplay": ("box_predictor.cls_embedding", "box_predictor.fc_attr", "box_predictor.attr_score"),
    "milvlg_caffe": ("box_predictor.cls_embed", "box_predictor.attr_linear1", "box_predictor.attr_linear2"),
    "milvlg_detectron2": (
        "attribute_predictor.obj_embed",
        "attribute_predictor.fc.0",
        "attribute_predictor.attr_score",
    ),
}


def convolutions(blocks: tuple[int, ...] = (1, 1, 1, 1), width: int = WIDTH) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names as in a port, and shapes, of the trunk."""
    yield "backbone.stem.conv1", (width, 3, 7, 7)
    for number, (room, count) in enumerate(zip(("backbone",) * 3 + ("roi_heads",), blocks, strict=True)):
        taken, middle = (width if number == 0 else width * 2 ** (number + 1)), width * 2**number
        for block in range(count):
            name, given = f"{room}.res{number + 2}.{block}", taken if block == 0 else 4 * middle
            yield f"{name}.conv1", (middle, given, 1, 1)
            yield f"{name}.conv2", (middle, middle, 3, 3)
            yield f"{name}.conv3", (4 * middle, middle, 1, 1)
            if block == 0:
                yield f"{name}.shortcut", (4 * middle, given, 1, 1)


def heads(layout: str) -> dict[str, tuple[int, ...]]:
    """Names as in a port, and shapes of weights, after the tables of the makers' code."""
    like_caffe, anchors = "caffe" in layout, ANCHORS[layout]
    embedding, hidden, score = PORT_HEADS["milvlg_caffe" if layout == "caffe" else layout]
    return {
        "proposal_generator.rpn_head.conv": (HIDDEN, 16 * WIDTH, 3, 3),
        "proposal_generator.rpn_head.objectness_logits": (anchors * (2 if like_caffe else 1), HIDDEN, 1, 1),
        "proposal_generator.rpn_head.anchor_deltas": (4 * anchors, HIDDEN, 1, 1),
        "roi_heads.box_predictor.cls_score": (CLASSES + 1, 32 * WIDTH),
        "roi_heads.box_predictor.bbox_pred": (4 * (CLASSES + like_caffe), 32 * WIDTH),
        f"roi_heads.{embedding}": (CLASSES + 1, EMBEDDING),
        f"roi_heads.{hidden}": (ATTRIBUTE_WIDTH, 32 * WIDTH + EMBEDDING),
        f"roi_heads.{score}": (ATTRIBUTES + (layout != "milvlg_detectron2"), ATTRIBUTE_WIDTH),
    }


def port_state(layout: str, seed: int = 39) -> Values:
    """Random numbers by the names of a port; of Caffe, by those of MILVLG's port of it.

    By this seed, the likeliest class of some regions is background, of others it is not.
    """
    draw, state = np.random.default_rng(seed), Values()

    def normal(shape: tuple[int, ...], scale: float = 1.0) -> NDArray[np.float32]:
        return (scale * draw.standard_normal(shape)).astype(np.float32)

    for name, shape in convolutions():
        state[f"{name}.weight"] = normal(shape, math.sqrt(2 / math.prod(shape[1:])))
        state[f"{name}.norm.weight"] = 1 + normal(shape[:1], 0.1)
        state[f"{name}.norm.bias"] = normal(shape[:1], 0.1)
        state[f"{name}.norm.running_mean"] = normal(shape[:1], 0.1)
        state[f"{name}.norm.running_var"] = np.exp(normal(shape[:1], 0.1))
    state["backbone.stem.conv1.norm.running_var"] *= 5000
    for name, shape in heads(layout).items():
        gain = 0.3 if name.endswith(("anchor_deltas", "bbox_pred")) else 1
        gain = 0.02 if name.endswith("objectness_logits") else gain  # else many are surely objects, and equal
        state[f"{name}.weight"] = normal(shape, gain * math.sqrt(2 / math.prod(shape[1:])))
        if not name.endswith(("cls_embed", "cls_embedding", "obj_embed")):
            state[f"{name}.bias"] = normal(shape[:1], 0.1)
    scores = state["roi_heads.box_predictor.cls_score.weight"]
    scores -= scores.mean(1, keepdims=True)  # so that not all regions are likeliest to be of one class
    scores *= 3
    return state


def write(layout: str, state: Mapping[str, NDArray[np.float32]], folder: Path) -> Path:
    """As the makers do: Caffe's own file, a pickle of arrays, files of torch."""
    if layout == "caffe":
        file = folder / "resnet101_faster_rcnn_final.caffemodel"
        file.write_bytes(caffemodel(caffe_layers(state)))
    elif layout == "airsplay":
        file = folder / "faster_rcnn_from_caffe_attr.pkl"
        file.write_bytes(pickle.dumps({"model": dict(state), "__author__": "someone"}))
    else:
        file = folder / f"{layout}.pth"
        tensors = {name: torch.from_numpy(values.copy()) for name, values in state.items()}
        torch.save({"model": tensors, "iteration": 1, "optimizer": {}}, file)
    return file


def caffe_layers(state: Mapping[str, NDArray[np.float32]], factor: float = 4.0) -> dict[str, list[NDArray[np.float32]]]:
    """Layers and blobs as Caffe has them: sums of batches, and by how much to divide them."""
    layers: dict[str, list[NDArray[np.float32]]] = {}
    for name, _ in convolutions(tuple(_depths(state))):
        if name == "backbone.stem.conv1":
            tag, first = "conv1", "conv1"
        else:
            stage, block, part = name.split(".")[-3:]
            branch = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}[part]
            letters = ["a", "b", "c"] if stage in ("res2", "res5") else ["a", *(f"b{n}" for n in range(1, 23))]
            tag = f"{stage[3:]}{letters[int(block)]}_branch{branch}"
            first = f"res{tag}"
        mean, variance = state[f"{name}.norm.running_mean"], state[f"{name}.norm.running_var"]
        layers[first] = [state[f"{name}.weight"]]
        layers[f"bn{tag}" if tag != "conv1" else "bn_conv1"] = [
            mean * np.float32(factor),
            variance * np.float32(factor),
            np.array([factor], np.float32),
        ]
        layers[f"scale{tag}" if tag != "conv1" else "scale_conv1"] = [
            state[f"{name}.norm.weight"],
            state[f"{name}.norm.bias"],
        ]
    for theirs, name in {
        "rpn_conv/3x3": "proposal_generator.rpn_head.conv",
        "rpn_cls_score": "proposal_generator.rpn_head.objectness_logits",
        "rpn_bbox_pred": "proposal_generator.rpn_head.anchor_deltas",
        "cls_score": "roi_heads.box_predictor.cls_score",
        "bbox_pred": "roi_heads.box_predictor.bbox_pred",
        "cls_embedding": "roi_heads.box_predictor.cls_embed",
        "fc_attr": "roi_heads.box_predictor.attr_linear1",
        "attr_score": "roi_heads.box_predictor.attr_linear2",
    }.items():
        layers[theirs] = [state[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in state]
    return layers


def _depths(state: Mapping[str, object]) -> Iterator[int]:
    for stage in ("2", "3", "4", "5"):
        yield len({name for name in state if re.search(rf"res{stage}\.\d+\.conv1\.weight", name)})


def caffemodel(
    layers: Mapping[str, list[NDArray[np.float32]]], is_old: bool = False, double: bool = False, extra: bytes = b""
) -> bytes:
    """A NetParameter; `is_old` is one of before 2015, whose blobs have four sides."""
    layer_field, name_field, blobs_field = (2, 4, 6) if is_old else (100, 1, 7)
    message = block(1, b"ResNet-101")
    for name, blobs in layers.items():
        inside = block(name_field, name.encode())
        for blob in blobs:
            if is_old:
                sides = (1,) * (4 - blob.ndim) + blob.shape
                shape = b"".join(varint(field << 3) + varint(side) for field, side in enumerate(sides, 1))
            else:
                shape = block(7, block(1, b"".join(map(varint, blob.shape))))
            data = block(8, blob.astype("<f8").tobytes()) if double else block(5, blob.astype("<f4").tobytes())
            inside += block(blobs_field, data + shape)
        message += block(layer_field, inside + varint(10 << 3 | 5) + struct.pack("<f", 1.0))
    return message + extra


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])
