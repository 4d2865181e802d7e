"""A small Faster R-CNN with attributes, whose weights `xmodal train detector` makes of anybody's regions.

A feature is taken within a proposal; the box that is stored with it is refined from that feature, for its best class,
and differs a little. Given boxes are not refined: features are theirs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xmodal.errors import UserError, extra_needed
from xmodal.features.weight_files import OF_FILE, RANDOM, check_device, weights_sha256

if TYPE_CHECKING:
    from xmodal.detectors._small_network import SmallDetector

FILE, TRAINING = "detector", "`xmodal train detector` makes one"


def check(name: str, weights: str) -> None:
    if name:
        raise UserError(f"there is one small detector: its name is small, not small/{name}")
    if not weights.startswith((OF_FILE, RANDOM)):
        raise UserError(f"the small detector has no {weights} weights: --file {FILE}=PATH; {TRAINING}")
    if weights.startswith(RANDOM) and not weights.removeprefix(RANDOM).isdecimal():
        raise UserError(f"random weights are written {RANDOM}<seed>, not {weights}")


def load(name: str, weights: str, files: Mapping[str, Path], device: str) -> "SmallDetector":
    """`random:<seed>` is for trying: it knows no words."""
    check(name, weights)
    with extra_needed("train", "the small detector needs torch and torchvision"):
        from xmodal.detectors._small_network import SmallDetector, drawn_network, read_weights
    check_device(device)
    if weights.startswith(RANDOM):
        config, network = drawn_network(int(weights.removeprefix(RANDOM)))
        return SmallDetector(config, network.to(device), weights, None, device)
    if FILE not in files:
        raise UserError(f"the small detector needs its weights: --file {FILE}=PATH; {TRAINING}")
    file = files[FILE]
    digest = weights_sha256(file)
    if weights != f"{OF_FILE}{digest}":
        raise UserError(f"weights {weights} are those of a file, which {file} is not: give that file")
    config, network = read_weights(file)
    return SmallDetector(config, network.to(device), weights, digest, device)
