"""Weights of bottom-up attention: a checkpoint in one of the four public layouts, or random numbers."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xmodal.detectors._bottom_up_layouts import LAYOUTS, CheckpointLayout, Sizes, shapes
from xmodal.detectors._bottom_up_network import CAFFE, DEPTHS, BottomUpNetwork, Depths, Family
from xmodal.errors import UserError, few
from xmodal.features.weight_files import describe
from xmodal.raw.caffe_files import read_caffemodel
from xmodal.raw.pickled_arrays import read_pickled_arrays
from xmodal.raw.tensor_files import format_of, read_tensor_file

THIN: Depths = (1, 1, 1, 1)  # a file without any second block is a small network of the same kind, as tests have it
ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
SANE_SIDE = 100  # pixels; the largest of the anchors that MILVLG's own configuration makes by mistake has 45
EPSILON = 1e-5  # of all batch normalisations
TRUNK = re.compile(r"(backbone|roi_heads\.res5)\.(?!.*\.num_batches_tracked$)|(res|bn|scale)\d")

Arrays = Mapping[str, NDArray[Any]]
Floats = dict[str, NDArray[np.float32]]


def read_network(file: Path, device: str) -> tuple[BottomUpNetwork, dict[str, str]]:
    """The network of a checkpoint, its layout, and whence its anchors are; refuses a checkpoint that is not whole."""
    arrays = _read(file)
    name = next((name for name, layout in LAYOUTS.items() if layout.mark in arrays), None)
    try:
        if name is None:
            marks = " and ".join(layout.mark for layout in LAYOUTS.values())
            raise ValueError(f"they are in no known layout, as they lack all of {marks}")
        layout = LAYOUTS[name]
        with np.errstate(all="ignore"):  # numbers that are not finite are refused in the end
            values, depths = _whole(arrays, layout)
            weights = _folded(_background_first(values, layout.family))
    except ValueError as error:
        raise UserError(f"weights {file} are no ResNet-101 of bottom-up attention: {error}") from error
    anchors = _sane_anchors(arrays, layout.family)
    told = {"layout": name, "anchors": "the layout's" if anchors is None else "the checkpoint's"}
    return _network(weights, layout.family, device, depths, anchors), told


# Of random numbers: a stem that takes pixels as large as they are, blocks that add so little that 33 of them do not
# overflow, and boxes that stay near their anchors.
GAINS = {"stem.norm.weight": 0.02, "conv3.norm.weight": 0.2, "anchor_deltas.weight": 0.1}


def random_network(seed: int, device: str) -> BottomUpNetwork:
    """An untrained network in Caffe's way, whose candidates differ."""
    draw = np.random.default_rng(seed)
    values: Floats = {}
    for key, shape in shapes(Sizes(), CAFFE).items():
        gain = np.float32(next((gain for end, gain in GAINS.items() if key.endswith(end)), 1))
        if len(shape) > 1:
            values[key] = draw.standard_normal(shape, np.float32) * np.sqrt(np.float32(2 / np.prod(shape[1:]))) * gain
        else:
            values[key] = np.full(shape, gain if key.endswith(("norm.weight", "running_var")) else 0, np.float32)
    return _network(_folded(_background_first(values, CAFFE)), CAFFE, device)


def _network(
    weights: Floats, family: Family, device: str, depths: Depths = DEPTHS, anchors: NDArray[Any] | None = None
) -> BottomUpNetwork:
    tensors = {key: torch.from_numpy(values).to(device) for key, values in weights.items()}
    for key, values in tensors.items():
        if values.ndim == 4:
            tensors[key] = values.contiguous(memory_format=torch.channels_last)
    chosen = family.anchors if anchors is None else anchors
    return BottomUpNetwork(family, tensors, torch.tensor(np.asarray(chosen, np.float32), device=device), depths)


def _read(file: Path) -> Arrays:
    """The arrays of a file by its own names; how a file begins says which it is, however it is called."""
    try:
        match format_of(file):
            case "pickle":
                return read_pickled_arrays(file)
            case "caffe":
                layers = read_caffemodel(file)
                return {f"{name}:{number}": blob for name, blobs in layers.items() for number, blob in enumerate(blobs)}
        found = read_tensor_file(file)
        state = found.get("model", found) if isinstance(found, Mapping) else None
        if not isinstance(state, Mapping):
            raise ValueError(f"it has {describe(found)} in it, not tensors by name")
        arrays = {str(name): some.float().numpy() for name, some in state.items() if isinstance(some, torch.Tensor)}
        if not arrays:
            raise ValueError(f"it has {describe(state)} in it, not tensors by name, nor a part 'model' of them")
        return arrays
    except OSError as error:
        raise UserError(f"weights {file} cannot be read: {error.strerror}") from error
    except (ValueError, RuntimeError, TypeError) as error:  # such as a sparse tensor
        raise UserError(f"weights {file} are refused: {' '.join(str(error).split())}") from error


def _whole(arrays: Arrays, layout: CheckpointLayout) -> tuple[Floats, Depths]:
    """All tensors by our names."""
    is_deep = any(layout.name(f"res{stage}.1.conv1.weight") in arrays for stage in (2, 3, 4, 5))
    depths = DEPTHS if is_deep else THIN
    wanted = shapes(Sizes(depths=depths), layout.family)
    names = {key: layout.name(key) for key in wanted}
    factors = {f"{name[:-1]}2" for name in names.values() if name.startswith("bn")}  # Caffe's third blobs
    if missing := [name for name in (*names.values(), *sorted(factors)) if name not in arrays]:
        raise ValueError(f"they lack {few(missing, 3)}")
    if unknown := [name for name in arrays if TRUNK.match(name) and name not in {*names.values(), *factors}]:
        raise ValueError(f"they have more convolutions, such as {few(unknown, 1)}")
    values = {key: _floats(arrays[name], name, len(wanted[key])) for key, name in names.items()}
    for key, name in names.items():
        if name.startswith("bn"):  # sums, to be divided by how much was summed up
            factor = float(_floats(arrays[f"{name[:-1]}2"], name, 1).sum())
            values[key] = values[key] / np.float32(factor) if factor else np.zeros_like(values[key])
    for key, shape in shapes(_sizes(values, layout.family, depths), layout.family).items():
        if values[key].shape != shape:
            raise ValueError(f"{names[key]} is {values[key].shape}, not {shape}")
    return values, depths


def _floats(values: NDArray[Any], name: str, sides: int) -> NDArray[np.float32]:
    while values.ndim > sides and len(values) == 1:  # old files of Caffe have four sides always
        values = values[0]
    if values.dtype.kind != "f" or values.ndim != sides or not values.size:
        raise ValueError(f"{name} has no floating-point numbers with {sides} sides")
    return values.astype(np.float32)


def _sizes(values: Floats, family: Family, depths: Depths) -> Sizes:
    return Sizes(
        len(values["stem.weight"]),
        len(values["rpn_conv.weight"]),
        len(values["cls_score.weight"]) - 1,
        values["cls_embedding.weight"].shape[1],
        len(values["fc_attr.weight"]),
        len(values["attr_score.weight"]) - (family.no_attribute is not None),
        depths,
    )


def _background_first(values: Floats, family: Family) -> Floats:
    """Makes row 0 the background or "no attribute"; boxes have no row for it."""
    rows = dict(values)
    if family.background_first:
        rows |= {key: values[key][4:] for key in ("bbox_pred.weight", "bbox_pred.bias")}
    else:
        keys = ("cls_score.weight", "cls_score.bias", "cls_embedding.weight")
        rows |= {key: np.roll(values[key], 1, axis=0) for key in keys}
    for key in ("attr_score.weight", "attr_score.bias"):
        if family.no_attribute is None:
            rows[key] = np.concatenate([np.zeros_like(values[key][:1]), values[key]])
        else:
            rows[key] = np.roll(values[key], -family.no_attribute, axis=0)  # by 0 or, from the end, by 1
    return rows


def _folded(values: Floats) -> Floats:
    """Each batch normalisation becomes part of the convolution before it."""
    folded: Floats = {}
    for key, weight in values.items():
        name = key.removesuffix(".weight")
        if ".norm." in key:
            continue
        folded[key] = weight
        if f"{name}.norm.weight" in values:
            scale, shift, mean, variance = (
                values[f"{name}.norm.{kind}"].astype(np.float64)
                for kind in ("weight", "bias", "running_mean", "running_var")
            )
            scale = scale / np.sqrt(variance + EPSILON)
            folded[key] = weight * scale.astype(np.float32)[:, None, None, None]
            folded[f"{name}.bias"] = (shift - mean * scale).astype(np.float32)
    for key, numbers in folded.items():
        if not np.isfinite(numbers).all():
            raise ValueError(f"{key} is not finite")
    return folded


def _sane_anchors(arrays: Arrays, family: Family) -> NDArray[Any] | None:
    """Anchors that a checkpoint holds, where they can be those that it was trained with."""
    anchors = arrays.get(ANCHORS)
    if anchors is None or anchors.shape != np.shape(family.anchors) or anchors.dtype.kind != "f":
        return None
    sides = anchors[:, 2:] - anchors[:, :2]
    return anchors if np.isfinite(anchors).all() and sides.max() > SANE_SIDE else None
