import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.detectors.bottom_up_checkpoints import (
    LAYOUTS,
    WIDTH,
    caffe_layers,
    caffemodel,
    convolutions,
    port_state,
    write,
)
from xmodal.detectors._bottom_up_layouts import LAYOUTS as KNOWN
from xmodal.detectors._bottom_up_layouts import Sizes, shapes
from xmodal.detectors._bottom_up_network import AIRSPLAY, CAFFE, CAFFE_ANCHORS, MILVLG_DETECTRON2
from xmodal.detectors._bottom_up_weights import ANCHORS, read_network
from xmodal.errors import UserError

# Appendices A and B of the layouts: heads of the full networks, in their makers' names.
HEADS = {
    "airsplay": {
        "proposal_generator.rpn_head.conv": (512, 1024, 3, 3),
        "proposal_generator.rpn_head.objectness_logits": (12, 512, 1, 1),
        "proposal_generator.rpn_head.anchor_deltas": (48, 512, 1, 1),
        "roi_heads.box_predictor.cls_score": (1601, 2048),
        "roi_heads.box_predictor.bbox_pred": (6400, 2048),
        "roi_heads.box_predictor.fc_attr": (512, 2304),
        "roi_heads.box_predictor.attr_score": (401, 512),
    },
    "milvlg_caffe": {
        "proposal_generator.rpn_head.conv": (512, 1024, 3, 3),
        "proposal_generator.rpn_head.objectness_logits": (24, 512, 1, 1),
        "proposal_generator.rpn_head.anchor_deltas": (48, 512, 1, 1),
        "roi_heads.box_predictor.cls_score": (1601, 2048),
        "roi_heads.box_predictor.bbox_pred": (6404, 2048),
        "roi_heads.box_predictor.attr_linear1": (512, 2304),
        "roi_heads.box_predictor.attr_linear2": (401, 512),
    },
    "milvlg_detectron2": {
        "proposal_generator.rpn_head.conv": (1024, 1024, 3, 3),
        "proposal_generator.rpn_head.objectness_logits": (15, 1024, 1, 1),
        "proposal_generator.rpn_head.anchor_deltas": (60, 1024, 1, 1),
        "roi_heads.box_predictor.cls_score": (1601, 2048),
        "roi_heads.box_predictor.bbox_pred": (6400, 2048),
        "roi_heads.attribute_predictor.fc.0": (512, 2304),
        "roi_heads.attribute_predictor.attr_score": (400, 512),
    },
}
EMBEDDINGS = {
    "airsplay": "roi_heads.box_predictor.cls_embedding.weight",
    "milvlg_caffe": "roi_heads.box_predictor.cls_embed.weight",
    "milvlg_detectron2": "roi_heads.attribute_predictor.obj_embed.weight",
}


@pytest.mark.parametrize("layout", HEADS)
def test_names_and_shapes_of_the_full_checkpoints_of_ports(layout: str) -> None:
    wanted: dict[str, tuple[int, ...]] = {EMBEDDINGS[layout]: (1601, 256)}
    for name, shape in convolutions((3, 4, 23, 3), 64):
        wanted[f"{name}.weight"] = shape
        norms = ("weight", "bias", "running_mean", "running_var")
        wanted |= {f"{name}.norm.{kind}": shape[:1] for kind in norms}
    assert len(wanted) == 521
    for name, shape in HEADS[layout].items():
        wanted |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    known = KNOWN[layout]
    sizes = Sizes(proposal_width=1024 if layout == "milvlg_detectron2" else 512)
    assert {known.name(key): shape for key, shape in shapes(sizes, known.family).items()} == wanted


def test_names_of_all_blobs_of_the_full_caffemodel() -> None:
    """320 layers have blobs."""
    port, caffe = KNOWN["milvlg_caffe"], KNOWN["caffe"]
    full = shapes(Sizes(), CAFFE)
    empty = {port.name(key): np.empty(0, np.float32) for key in full}
    layers = caffe_layers(empty)
    assert len(layers) == 320
    blobs = {f"{name}:{number}" for name, blobs in layers.items() for number in range(len(blobs))}
    thirds = {name for name in blobs if name.startswith("bn") and name.endswith(":2")}
    assert {caffe.name(key) for key in full} == blobs - thirds
    assert len(thirds) == 104
    last = ("res4b22_branch2c:0", "bn5a_branch1:0", "bn5c_branch2b:1", "rpn_conv/3x3:1", "scale_conv1:1")
    assert set(last) <= {caffe.name(key) for key in full}


def save(state: dict[str, Any], folder: Path) -> Path:
    file = folder / "model.pth"
    torch.save({"model": {name: torch.from_numpy(values) for name, values in state.items()}}, file)
    return file


@pytest.mark.parametrize("layout", HEADS)
def test_each_missing_tensor_is_named(layout: str, tmp_path: Path) -> None:
    state = port_state(layout)
    for name in state.keys() - EMBEDDINGS.values():  # which tell the layout
        rest = {key: values for key, values in state.items() if key != name}
        with pytest.raises(UserError, match=f"lack {name}$"):
            read_network(save(rest, tmp_path), "cpu")


def test_each_missing_blob_is_named(tmp_path: Path) -> None:
    layers, file = caffe_layers(port_state("caffe")), tmp_path / "some.caffemodel"
    for name, blobs in layers.items():
        file.write_bytes(caffemodel({**layers, name: blobs[:-1]}))
        missing = f"{name}:{len(blobs) - 1}"
        with pytest.raises(UserError, match=f"lack .*{missing}"):
            read_network(file, "cpu")


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no known layout.*cls_embedding:0.*obj_embed\.weight"):
        read_network(save({"layer1.0.conv1.weight": np.zeros(3, np.float32)}, tmp_path), "cpu")


def test_a_checkpoint_in_a_part_of_another_name_is_told(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.zeros(1)}}, tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"refused: it has state_dict in it, not tensors by name, nor a part 'model'"):
        read_network(tmp_path / "x.pth", "cpu")


def test_a_deeper_network_is_refused(tmp_path: Path) -> None:
    """MILVLG's ResNet-152 has the names of its ResNet-101, and more blocks."""
    state = port_state("milvlg_caffe")
    state["backbone.res4.30.conv1.weight"] = state["backbone.res4.0.conv1.weight"]
    with pytest.raises(UserError, match=r"more convolutions, such as backbone\.res4\.30\.conv1\.weight"):
        read_network(save(state, tmp_path), "cpu")


def test_a_network_with_second_blocks_has_to_be_a_whole_resnet_101(tmp_path: Path) -> None:
    state = port_state("airsplay")
    state["backbone.res3.1.conv1.weight"] = state["backbone.res3.0.conv1.weight"]
    with pytest.raises(UserError, match=r"lack backbone\.res2\.1\.conv1\.weight, .* and \d+ more"):
        read_network(save(state, tmp_path), "cpu")


def test_what_is_not_needed_is_left_out(tmp_path: Path) -> None:
    layers = caffe_layers(port_state("caffe"))
    some = np.ones((2, 3), np.float32)
    file = tmp_path / "some.caffemodel"
    file.write_bytes(caffemodel({**layers, "heatmap_conv": [some], "fc_rel1": [some], "rel_score": [some]}))
    assert read_network(file, "cpu")[1]["layout"] == "caffe"
    state = port_state("milvlg_caffe") | {"backbone.stem.conv1.norm.num_batches_tracked": np.array(7)}
    assert read_network(save(state, tmp_path), "cpu")[1]["layout"] == "milvlg_caffe"


@pytest.mark.parametrize("name", ["roi_heads.box_predictor.bbox_pred.weight", "backbone.res2.0.conv2.weight"])
def test_another_shape_is_named(name: str, tmp_path: Path) -> None:
    state = port_state("milvlg_caffe")
    state[name] = state[name][:-1]
    with pytest.raises(UserError, match=rf"{name} is \(.*\), not \("):
        read_network(save(state, tmp_path), "cpu")


def test_boxes_of_the_background_tell_caffes_rows_from_the_ports(tmp_path: Path) -> None:
    """6,404 rows in airsplay's names are neither."""
    state = port_state("airsplay")
    name = "roi_heads.box_predictor.bbox_pred.weight"
    state[name] = np.concatenate([state[name][:4], state[name]])
    with pytest.raises(UserError, match=r"bbox_pred.weight is \(32, 128\), not \(28, 128\)"):
        read_network(save(state, tmp_path), "cpu")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    state = port_state("airsplay")
    state["backbone.res3.0.conv2.norm.running_var"][0] = -1
    with pytest.raises(UserError, match=r"res3\.0\.conv2\.weight is not finite"):
        read_network(write("airsplay", state, tmp_path), "cpu")


def stem(file: Path) -> NDArray[np.float32]:
    weights = read_network(file, "cpu")[0].weights
    return np.concatenate([weights["stem.weight"].reshape(WIDTH, -1).numpy(), weights["stem.bias"][:, None].numpy()], 1)


def test_statistics_of_caffe_are_divided_by_their_third_blob(tmp_path: Path) -> None:
    state, file = port_state("caffe"), tmp_path / "some.caffemodel"
    found = []
    for factor in (1.0, 999.98):
        file.write_bytes(caffemodel(caffe_layers(state, factor)))
        found.append(stem(file))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_statistics_of_caffe_with_a_third_blob_of_0_are_0(tmp_path: Path) -> None:
    """Caffe does not divide by 0: mean and variance are 0 then."""
    state, file = port_state("caffe"), tmp_path / "some.caffemodel"
    layers = caffe_layers(state)
    layers["bn_conv1"][2][:] = 0
    file.write_bytes(caffemodel(layers))
    name = "backbone.stem.conv1"
    scale = state[f"{name}.norm.weight"] / np.sqrt(1e-5)
    wanted = state[f"{name}.weight"] * scale[:, None, None, None]
    np.testing.assert_allclose(stem(file)[:, :-1], wanted.reshape(WIDTH, -1), rtol=1e-5)
    np.testing.assert_allclose(stem(file)[:, -1], state[f"{name}.norm.bias"], rtol=1e-5)


@pytest.mark.parametrize(("is_old", "double"), [(True, False), (False, True), (True, True)])
def test_old_files_of_caffe_have_the_same_numbers(is_old: bool, double: bool, tmp_path: Path) -> None:
    layers = caffe_layers(port_state("caffe"))
    now, before = tmp_path / "now", tmp_path / "before"
    now.write_bytes(caffemodel(layers))
    before.write_bytes(caffemodel(layers, is_old, double))
    wanted, found = (read_network(file, "cpu")[0].weights for file in (now, before))
    assert all(torch.equal(wanted[key], found[key]) for key in wanted)


def test_anchors_of_a_checkpoint_are_taken_where_they_are_sane(tmp_path: Path) -> None:
    """MILVLG's configuration makes anchors of 4 to 32 pixels, which no network was trained with."""
    state, own = port_state("milvlg_caffe"), np.array(CAFFE_ANCHORS, np.float32) + 1
    tiny = own / 16
    for anchors, whence, wanted in (
        (own, "the checkpoint's", own),
        (tiny, "the layout's", CAFFE_ANCHORS),
        (own[:9], "the layout's", CAFFE_ANCHORS),
        (own * np.float32(np.nan), "the layout's", CAFFE_ANCHORS),
    ):
        network, told = read_network(save(state | {ANCHORS: anchors}, tmp_path), "cpu")
        assert told["anchors"] == whence
        np.testing.assert_array_equal(network.anchors_A4, wanted)


def test_files_are_told_apart_by_what_is_in_them(tmp_path: Path) -> None:
    file = write("airsplay", port_state("airsplay"), tmp_path)
    file = file.rename(tmp_path / "weights")
    assert read_network(file, "cpu")[1]["layout"] == "airsplay"
    state = {name: torch.from_numpy(values) for name, values in port_state("milvlg_detectron2").items()}
    torch.save(state, file, _use_new_zipfile_serialization=False)  # torch's format before 2020; nothing around it
    assert read_network(file, "cpu")[1]["layout"] == "milvlg_detectron2"


class Exploit:
    """Runs a command when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_is_refused_and_nothing_runs(protocol: int, tmp_path: Path) -> None:
    file, made = tmp_path / "model.pkl", tmp_path / "made"
    file.write_bytes(pickle.dumps({"model": port_state("airsplay"), "matched": Exploit(made)}, protocol))
    with pytest.raises(UserError):
        read_network(file, "cpu")
    assert not made.exists()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_hostile_file_of_torch_is_refused_and_nothing_runs(is_new: bool, tmp_path: Path) -> None:
    file, made = tmp_path / "model.pth", tmp_path / "made"
    torch.save({"model": {}, "matched": Exploit(made)}, file, _use_new_zipfile_serialization=is_new)
    with pytest.raises(UserError, match=r"refused: it has other objects than tensors \(\w+\.mkdir\)") as refused:
        read_network(file, "cpu")
    assert "weights_only" not in str(refused.value), "torch advises to execute what is in the file"
    assert not made.exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_truncated_file_is_refused(layout: str, tmp_path: Path) -> None:
    file = write(layout, port_state(layout), tmp_path)
    data = file.read_bytes()
    for length in (0, 1, 10, 100, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(UserError, match=str(file)):
            read_network(file, "cpu")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_network(tmp_path / "none.pkl", "cpu")


def test_families_differ_as_their_makers_say() -> None:
    assert (CAFFE.box_weights, AIRSPLAY.box_weights) == ((1, 1, 1, 1), (10, 10, 5, 5))
    assert (AIRSPLAY.shorter_side, AIRSPLAY.longest_side, AIRSPLAY.proposals) == (800, 1333, 300)
    assert (MILVLG_DETECTRON2.proposals, len(MILVLG_DETECTRON2.anchors)) == (1000, 15)
