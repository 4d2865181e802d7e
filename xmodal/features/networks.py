"""Networks that turn pictures into features; torch is imported when one is loaded.

Shapes: B pictures, H and W pixels of the crop, R places of the grid, D width of a feature."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.errors import UserError
from xmodal.features.store import FeatureSpec

if TYPE_CHECKING:
    from torch import nn
from xmodal.media.images import DEVIATION, MEAN, OnTruncated, normalised, square

Network = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
NAMED = {  # the weights that torchvision has of each
    "resnet18": ("IMAGENET1K_V1",),
    "resnet34": ("IMAGENET1K_V1",),
    "resnet50": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "resnet101": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "resnet152": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
}


STRIDE = 32  # pixels of the crop a place of the grid


@dataclass(frozen=True)
class ResNet:
    """A picture's shorter side is resized, the middle is cropped, and the last convolution's output is kept.

    `weights` is a name of torchvision's, `random:<seed>`, or `sha256:<digest>` of a file with a state_dict. A "grid" is
    that output row by row, "pooled" its mean. `batch_size` and `device` are here because they change the last bits.
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
        if self.network not in NAMED:
            raise ValueError(f"no network {self.network!r}; there are: {', '.join(NAMED)}")
        named = NAMED[self.network]
        if self.weights not in named and not re.fullmatch(r"random:\d{1,18}|sha256:[0-9a-f]{64}", self.weights):
            there = f"{', '.join(named)}, random:<seed>, and the sha256:<digest> of a file"
            raise ValueError(f"no weights {self.weights!r} for {self.network}; there are: {there}")
        if self.crop < STRIDE or self.crop % STRIDE or self.resize < self.crop:
            raise ValueError(f"crop is a multiple of {STRIDE} and at most resize, not {self.crop} of {self.resize}")
        for field, options in (("output", ("grid", "pooled")), ("dtype", ("float16", "float32"))):
            if getattr(self, field) not in options:
                raise ValueError(f"{field} is {' or '.join(options)}, not {getattr(self, field)!r}")
        if self.batch_size < 1 or self.device not in ("cpu", "cuda"):
            raise ValueError(f"batch_size is at least 1 and device cpu or cuda, not {self.batch_size}, {self.device!r}")

    @property
    def width(self) -> int:
        return 512 if self.network in ("resnet18", "resnet34") else 2048

    @property
    def spec(self) -> FeatureSpec:
        """The array of its features, in shards of the usual length."""
        row_shape = (self.width,) if self.output == "pooled" else ((self.crop // STRIDE) ** 2, self.width)
        return FeatureSpec(f"{self.network}-{self.output}", row_shape, self.dtype)


def pixels(data: bytes, config: ResNet, cut: OnTruncated | None = None) -> NDArray[np.float32]:
    """(3, H, W): a picture as the network of a config takes it."""
    return normalised(square(data, config.resize, config.crop, cut))


@dataclass(frozen=True, eq=False)
class Extractor:
    """A network with its weights. `weights_sha256` is of their file, or of the numbers where they are random."""

    config: ResNet
    trunk: "nn.Module"
    weights_sha256: str

    def __call__(self, pixels_B3HW: NDArray[np.float32]) -> NDArray[Any]:
        """Rows of `config.spec`; by one thread, as the number of threads changes the last bits."""
        import torch

        with _reproducible(), torch.inference_mode():
            maps_BDHW = self.trunk(torch.from_numpy(pixels_B3HW).to(self.config.device))
            rows = maps_BDHW.flatten(2).transpose(1, 2) if self.config.output == "grid" else maps_BDHW.mean((2, 3))
            return np.ascontiguousarray(rows.to(getattr(torch, self.config.dtype)).cpu().numpy())

    def provenance(self) -> dict[str, object]:
        """What to tell of the features, in the words of the config."""
        config = self.config
        preprocessing = {"resize": config.resize, "crop": config.crop, "mean": MEAN, "deviation": DEVIATION}
        return {
            "network": config.network,
            "weights": config.weights,
            "weights_sha256": self.weights_sha256,
            "output": config.output,
            "dtype": config.dtype,
            "device": config.device,
            "batch_size": config.batch_size,
            "preprocessing": preprocessing | {"interpolation": "bilinear", "colours": "RGB"},
            "versions": {name: version(name) for name in ("pillow", "torch", "torchvision")} | {"xmodal": __version__},
        }


def load(config: ResNet, weights_file: Path | None = None) -> Extractor:
    """The network of a config on its device; `weights_file` is the file of weights that are named by a checksum."""
    import torch

    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: this machine has no GPU that torch can use; --set device=cpu does without")
    if config.weights.startswith("random:"):
        network, digest = _random(config)
    else:
        file = _given(config, weights_file) if config.weights.startswith("sha256:") else _downloaded(config)
        network, digest = _trained(config, file), sha256_of(file)
    trunk = torch.nn.Sequential(*list(network.children())[:-2])  # without the mean and the classes that follow
    return Extractor(config, trunk.eval().to(config.device), digest)


def sha256_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"weights {file} cannot be read: {error.strerror}") from error


def _random(config: ResNet) -> "tuple[nn.Module, str]":
    """Each block adds half as much as it would by default, else deep networks overflow float16."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(config.weights.removeprefix("random:")))
        network = _untrained(config)
    for name, module in network.named_modules():
        if re.fullmatch(r"layer\d\.\d+", name):
            torch.nn.init.constant_((module.bn3 if hasattr(module, "bn3") else module.bn2).weight, 0.5)
    digest = hashlib.sha256()
    for name, values in sorted(network.state_dict().items()):
        digest.update(name.encode() + values.numpy().tobytes())
    return network, digest.hexdigest()


def _trained(config: ResNet, file: Path) -> "nn.Module":
    """What belongs to the classes of ImageNet is left out, and may be missing in the file."""
    import torch

    with torch.random.fork_rng(devices=[]):
        network = _untrained(config)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        network.load_state_dict({name: v for name, v in state.items() if not name.startswith("fc.")})
    except (UnpicklingError, RuntimeError, EOFError, AttributeError, TypeError, OSError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"weights {file} are no state_dict of a {config.network}: {line}") from error
    return network


def _untrained(config: ResNet) -> "nn.Module":
    import torch
    import torchvision  # type: ignore[import-untyped]

    network: nn.Module = torchvision.models.get_model(config.network, weights=None)
    network.fc = torch.nn.Identity()
    return network


def _given(config: ResNet, file: Path | None) -> Path:
    if file is None or config.weights != f"sha256:{sha256_of(file)}":
        raise UserError(f"weights {config.weights} are those of a file, which {file} is not: give that file")
    return file


def _downloaded(config: ResNet) -> Path:
    """The file of named weights, in torch's own cache; the end of its name is the beginning of its checksum."""
    import torch
    import torchvision

    url: str = torchvision.models.get_model_weights(config.network)[config.weights].url
    name = url.rpartition("/")[2]
    file = Path(torch.hub.get_dir()) / "checkpoints" / name
    checksum = name.removesuffix(".pth").rpartition("-")[2]
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file), checksum, progress=False)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"weights {config.weights} of {config.network} cannot be fetched from {url} ({error}): "
            "fetch them elsewhere and give the file, or do without training: --set resnet.weights=random:0, "
            "and for features of clips --set clips.weights=random:0"
        ) from error
    if not sha256_of(file).startswith(checksum):
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
