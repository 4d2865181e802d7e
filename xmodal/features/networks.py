"""Networks that turn pictures into features, and their weights.

Weights are named by torchvision's names, as `random:<seed>`, or as `sha256:<digest>` of a file with a state_dict.

Shapes: B pictures, H and W pixels of the crop or the grid, D width of a feature.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.errors import UserError, few
from xmodal.features.feature_spec import FeatureSpec
from xmodal.media.images import DEVIATION, MEAN
from xmodal.root.files import sha256_of

if TYPE_CHECKING:
    from torch import nn

Network = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
SMALL = ("resnet18", "resnet34")
STRIDE = 32  # pixels of the crop between positions of the grid


@dataclass(frozen=True)
class ResNet:
    """Resizes a picture's shorter side, crops the middle, and keeps the last convolution's output, or its mean.

    `device` changes the last bits, and of a GPU `batch_size` too.
    """

    network: Network = "resnet152"
    weights: str = "IMAGENET1K_V2"
    resize: int = 256
    crop: int = 224
    output: Literal["grid", "pooled"] = "grid"
    dtype: Literal["float16", "float32"] = "float16"
    batch_size: int = 32
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        for field in fields(self):
            options, value = get_args(field.type), getattr(self, field.name)
            if options and value not in options:
                raise ValueError(f"no {field.name} {value!r}; there are: {', '.join(options)}")
        if not re.fullmatch(r"IMAGENET1K_V[12]|random:\d{1,18}|sha256:[0-9a-f]{64}", self.weights):
            raise ValueError(self._no_weights)
        if self.crop < STRIDE or self.crop % STRIDE or self.resize < self.crop:
            raise ValueError(f"crop is a multiple of {STRIDE} and at most resize, not {self.crop} of {self.resize}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {self.batch_size}")

    def check_weights(self) -> None:
        """Refuses what torchvision does not have, where no file takes its place."""
        if self.network in SMALL and self.weights == "IMAGENET1K_V2":
            raise UserError(f"{self._no_weights}, which --weights FILE names")

    @property
    def _no_weights(self) -> str:
        there = "" if self.network in SMALL else ", IMAGENET1K_V2"
        there = f"IMAGENET1K_V1{there}, random:<seed>, and the sha256:<digest> of a file"
        return f"no weights {self.weights!r} for {self.network}; there are: {there}"

    @property
    def width(self) -> int:
        return 512 if self.network in SMALL else 2048

    @property
    def spec(self) -> FeatureSpec:
        row_shape = (self.width,) if self.output == "pooled" else ((self.crop // STRIDE) ** 2, self.width)
        return FeatureSpec(f"{self.network}-{self.output}", row_shape, self.dtype)


@dataclass(frozen=True, eq=False)
class Extractor:
    """A network with its weights, and the sha256 of their file or, if random, of the numbers."""

    config: ResNet
    trunk: "nn.Module"
    weights_sha256: str

    def __call__(self, pixels_B3HW: NDArray[np.float32]) -> NDArray[Any]:
        """Returns rows of `config.spec`, the same bits whatever else is in the batch.

        One thread computes them, as more would change the last bits; so would a batch of one, or on a GPU of another
        length: a short batch has its last picture several times.
        """
        import torch

        length = self.config.batch_size if self.config.device == "cuda" else 2
        pixels = np.pad(pixels_B3HW, [(0, max(0, length - len(pixels_B3HW))), (0, 0), (0, 0), (0, 0)], "edge")
        with _reproducible(), torch.inference_mode():
            maps_BDHW = self.trunk(torch.from_numpy(pixels).to(self.config.device))[: len(pixels_B3HW)]
            rows = maps_BDHW.flatten(2).transpose(1, 2) if self.config.output == "grid" else maps_BDHW.mean((2, 3))
            return np.ascontiguousarray(rows.to(getattr(torch, self.config.dtype)).cpu().numpy())

    def provenance(self) -> dict[str, object]:
        settings = asdict(self.config)
        preprocessing = {name: settings.pop(name) for name in ("resize", "crop")}
        preprocessing |= {"mean": MEAN, "deviation": DEVIATION, "interpolation": "bilinear", "colours": "RGB"}
        return settings | {
            "weights_sha256": self.weights_sha256,
            "preprocessing": preprocessing,
            "versions": {name: version(name) for name in ("pillow", "torch", "torchvision")} | {"xmodal": __version__},
        }


def load(config: ResNet, weights_file: Path | None = None) -> Extractor:
    """Loads a network on its device; `weights_file` has weights named by a checksum."""
    import torch

    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch finds no GPU here; --set device=cpu does without")
    if config.weights.startswith("random:"):
        network = _untrained(config.network, int(config.weights.removeprefix("random:")))
        for name, module in network.named_modules():
            if re.fullmatch(r"layer\d\.\d+", name):  # a block adds half of the default, else float16 overflows
                torch.nn.init.constant_((module.bn3 if hasattr(module, "bn3") else module.bn2).weight, 0.5)
        numbers = hashlib.sha256()
        for name, values in sorted(network.state_dict().items()):
            numbers.update(name.encode() + values.numpy().tobytes())
        digest = numbers.hexdigest()
    else:
        network = _untrained(config.network, seed=0)
        digest = _read_weights(network, config, weights_file)
    trunk = torch.nn.Sequential(*list(network.children())[:-2])  # without the mean and the classes
    return Extractor(config, trunk.eval().to(config.device), digest)


def _untrained(name: str, seed: int) -> "nn.Module":
    """Leaves torch's own random state alone."""
    import torch
    import torchvision  # type: ignore[import-untyped]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = torchvision.models.get_model(name, weights=None)
        network.fc = torch.nn.Identity()
        return network


def weights_sha256(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        raise UserError(f"weights {file} cannot be read: {error.strerror}") from error


def _read_weights(network: "nn.Module", config: ResNet, file: Path | None) -> str:
    """Reads weights from the file, or from torchvision's, and returns the sha256."""
    import torch

    if not config.weights.startswith("sha256:"):
        config.check_weights()
        file = _download(config.network, config.weights)
    elif file is None or config.weights != f"sha256:{weights_sha256(file)}":
        raise UserError(f"weights {config.weights} are those of a file, which {file} is not: give that file")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        own = {key: values for key, values in state.items() if not key.startswith("fc.")}
        found = network.load_state_dict(own, strict=False)
        wrong = {"lacks": found.missing_keys, "has unknown": found.unexpected_keys}
        if faults := [
            f"{what} {few(names, 2)}{' entries' if len(names) > 2 else ''}" for what, names in wrong.items() if names
        ]:
            raise ValueError(f"it {' and '.join(faults)}")
    except (UnpicklingError, RuntimeError, EOFError, AttributeError, TypeError, OSError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"weights {file} are no state_dict of a {config.network}: {line}") from error
    return weights_sha256(file)


def _download(network: str, weights: str) -> Path:
    import torch
    import torchvision

    url: str = torchvision.models.get_model_weights(network)[weights].url
    file = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    checksum = file.stem.rpartition("-")[2]  # its beginning
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file), checksum, progress=False)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"weights {weights} of {network} cannot be fetched from {url} ({error}): give their file, or do without "
            "training: --set resnet.weights=random:0, for clips --set clips.weights=random:0"
        ) from error
    if not weights_sha256(file).startswith(checksum):
        raise UserError(f"weights {file} are damaged: delete the file, it is fetched again")
    return file


@contextmanager
def _reproducible() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(threads)
