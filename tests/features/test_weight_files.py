"""Files of weights: each that is none says what it is and what to do, in one line; a command that it advises works."""

import json
import subprocess
import sys
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from xmodal.errors import UserError
from xmodal.features.weight_files import OF_FILE, filled_network, load_exactly, weights_sha256
from xmodal.raw.tensor_files import NotTensors, read_tensor_file

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def fill(into: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    load_exactly(into, state, ("head.",))


def load(file: Path) -> nn.Module:
    return filled_network("small net", f"{OF_FILE}{weights_sha256(file)}", file, network, fill, lambda: file)[0]


def refusal(file: Path) -> str:
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        with pytest.raises(UserError) as found:
            load(file)
    assert not leaked
    said = str(found.value)
    assert said.startswith(f"weights {file} are no state_dict of a small net: ")
    assert "\n" not in said
    return said.partition("small net: ")[2]


def saved(file: Path, state: Any, **how: Any) -> Path:
    if file.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(state, file)
    else:
        torch.save(state, file, **how)
    return file


def cut(file: Path, share: float = 0.5) -> Path:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    return file


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it is empty: get the file again"),
        (b"no weights\nat all", r"it is a text ('no weights\nat all'): give a state_dict, as "),
        ("größe ".encode() * 100, r"it is a text ('gr\xf6\xdfe "),
        (b"\n<!DOCTYPE html><html>Sign in</html>", "it is a web page: download the file that the page offers"),
        (LFS, "it only points to the file, which Git LFS keeps: run `git lfs pull` in its folder"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "it is packed by gzip: unpack it, and give what was in it"),
        (b"\x00\xff\x00\xfe" * 9, "it is no file of torch or safetensors: give a state_dict, as "),
        (b"\x0a\x80\xff\xfe" * 9, "it looks like a .caffemodel, which this network is not read from: give"),
    ],
)
def test_what_holds_no_tensors_is_named(data: bytes, told: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"mine.{suffix}"
    file.write_bytes(data)
    assert refusal(file).startswith(told)


@pytest.mark.parametrize("name", ["new.pth", "old.pth", "x.safetensors"])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_file_that_ends_early(name: str, share: float, tmp_path: Path) -> None:
    how = {"_use_new_zipfile_serialization": False} if name == "old.pth" else {}
    file = cut(saved(tmp_path / name, network().state_dict(), **how), share)
    assert refusal(file) == "it ends early or is damaged: get the file again"


def test_a_part_that_has_changed_is_found_which_torch_would_read(tmp_path: Path) -> None:
    file = saved(tmp_path / "mine.pth", network().state_dict())
    data = bytearray(file.read_bytes())
    data[data.index(network().state_dict()["0.weight"].numpy().tobytes())] ^= 1
    file.write_bytes(data)
    assert refusal(file).endswith(" in it has changed since it was written: get the file again")


@pytest.mark.parametrize(("wrote", "named"), [("x.safetensors", "x.pth"), ("x.pth", "x.safetensors")])
def test_the_bytes_say_the_format_not_the_name(wrote: str, named: str, tmp_path: Path) -> None:
    file = saved(tmp_path / wrote, network().state_dict()).rename(tmp_path / named)
    assert torch.equal(load(file).state_dict()["0.weight"], network().state_dict()["0.weight"])


def test_archives_and_objects_that_are_not_run(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:  # as torch.jit.save names its parts
        for name in ("x/data.pkl", "x/code/__torch__.py", "x/constants.pkl"):
            archive.writestr(name, b"?")
    assert refusal(tmp_path / "x.pt").startswith(
        "it is a program of TorchScript, which is not run: torch.save(torch.jit.load(FILE)"
    )
    assert refusal(saved(tmp_path / "whole.pth", network())).startswith(
        "it has other objects than tensors (torch.nn.modules.container.Sequential), which are not loaded as they could "
        "run anything: where it was made, torch.save(network.state_dict(), FILE)"
    )
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    assert refusal(tmp_path / "x.npz").startswith("it is a zip archive of other things ('a.npy'): give a state_dict")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("\x1b[31mred", "x")
    assert "\x1b" not in refusal(tmp_path / "x.zip")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ([1, 2], "it has a list in it, not tensors by name: save a state_dict"),
        ({}, "it has nothing in it, not tensors by name"),
        ({"epoch": 3, "rate": 0.1}, "it lacks 0.weight, 0.bias and "),
        ({"0.weight": torch.zeros(4, 3, 5, 5)}, "it has other sides of 0.weight (4 x 3 x 5 x 5, not 4 x 3 x 3 x 3)"),
        ({"0.weight": 3}, "it has other sides of 0.weight (no tensor, not 4 x 3 x 3 x 3)"),
    ],
)
def test_tensors_of_something_else(state: Any, told: str, tmp_path: Path) -> None:
    assert refusal(saved(tmp_path / "mine.pth", state)).startswith(told)


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": values for name, values in network().state_dict().items()}


WRAPPED: Mapping[str, Callable[[], Any]] = {
    "in its part 'state_dict'": lambda: {"epoch": 3, "state_dict": prefixed("")},
    "in its part 'model'": lambda: {"args": Namespace(rate=0.1), "model": prefixed("")},
    "under names that begin with 'module.'": lambda: prefixed("module."),
    "in its part 'state_dict' under names that begin with 'module.net.'": lambda: {
        "optimiser": {"state": {0: torch.zeros(3)}},
        "state_dict": {**prefixed("module.net."), "module.queue": torch.zeros(3), "module.net.head.x": torch.zeros(1)},
    },
}


@pytest.mark.parametrize("told", WRAPPED)
@pytest.mark.parametrize("name", ["mine.pth", "it's $odd.pth"])
def test_a_wrapped_state_dict_is_told_with_a_command_that_unwraps_it(told: str, name: str, tmp_path: Path) -> None:
    file = saved(tmp_path / name, WRAPPED[told]())
    said = refusal(file)
    assert said.startswith(f"it has one {told}: make a file of that: python -c ")
    command = said.partition("that: python")[2]
    subprocess.run(f"{sys.executable}{command}", shell=True, check=True)
    plain = load(file.with_name(f"{file.stem}-plain.pth")).state_dict()
    assert all(torch.equal(values, network().state_dict()[name]) for name, values in plain.items())


def test_another_network_in_a_part_is_not_advised(tmp_path: Path) -> None:
    state = {"state_dict": {"other.weight": torch.zeros(3)}, "conv.0.weight": torch.zeros(1)}
    assert refusal(saved(tmp_path / "x.pth", state)).startswith("it lacks 0.weight, 0.bias and ")


def test_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory: name the file in it that has them"):
        weights_sha256(tmp_path)


def test_a_pickle_that_torch_did_not_write(tmp_path: Path) -> None:
    import pickle

    (file := tmp_path / "x.pkl").write_bytes(pickle.dumps({"0.weight": np.zeros(3)}))
    assert refusal(file).startswith("it is a pickle that torch did not write, which could run anything: give")
    with pytest.raises(NotTensors, match="it is a pickle"):
        read_tensor_file(file)


def test_a_prefix_in_files_that_an_index_names(tmp_path: Path) -> None:
    state = prefixed("module.")
    saved(tmp_path / "a.safetensors", state)
    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(state, "a.safetensors")}))
    command = refusal(index).partition("that: python")[2]
    subprocess.run(f"{sys.executable}{command}", shell=True, check=True)
    assert load(tmp_path / "a.safetensors.index-plain.pth")
