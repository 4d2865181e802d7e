"""Networks of torchvision: ResNets, and VGG as Two-Branch (fc7 of ten crops) and Dual-Path (whole pictures) use it.

Their output `classes` is a probability of each of ImageNet's 1,000 classes.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xmodal.errors import UserError, extra_needed
from xmodal.features.model_facts import ModelFacts, positions
from xmodal.features.weight_files import OF_FILE, RANDOM, download, filled_network, load_exactly
from xmodal.media.preparation import Preparation

if TYPE_CHECKING:
    from torch import Tensor, nn

# billions of multiplications of a picture of 224 x 224
BILLIONS = {"resnet18": 1.8, "resnet34": 3.6, "resnet50": 4.1, "resnet101": 7.8, "resnet152": 11.5}
BILLIONS |= {"vgg16": 15.5, "vgg19": 19.6}
SMALL = ("resnet18", "resnet34")
STRIDE = 32  # pixels of the crop between positions of the grid
WINDOW = 7  # positions a side of a picture of 224 x 224
HEADS = ("fc.", "classifier.6.")
CLASSES, CLASS_COUNT = "classes", 1000


def outputs(name: str) -> tuple[str, ...]:
    return ("fc7", CLASSES) if name.startswith("vgg") else ("pooled", "grid", CLASSES)


def class_names() -> tuple[str, ...]:
    """ImageNet's classes in the order of the output `classes`."""
    with extra_needed("train", "names of classes come from torchvision"):
        import torchvision  # type: ignore[import-untyped]
    return tuple(torchvision.models.get_model_weights(SMALL[0]).DEFAULT.meta["categories"])


def width_of(name: str) -> int:
    if name.startswith("vgg"):
        return 4096
    return 512 if name in SMALL else 2048


def published_weights(name: str) -> tuple[str, ...]:
    return ("IMAGENET1K_V1",) if name in SMALL or name.startswith("vgg") else ("IMAGENET1K_V1", "IMAGENET1K_V2")


def gigaflops(name: str, crop: int) -> float:
    """Billions of operations for one square picture."""
    return 2 * BILLIONS[name] * (crop / 224) ** 2


def check(name: str) -> None:
    if name not in BILLIONS:
        raise UserError(f"no model torchvision/{name}; there are: {', '.join(BILLIONS)}")


def find(name: str, weights: str, output: str, sides: tuple[int, int]) -> tuple[str, str, ModelFacts]:
    """No torch is needed."""
    check(name)
    resize, crop = sides
    if weights == "published":
        weights = published_weights(name)[-1]
    elif not weights.startswith((RANDOM, OF_FILE)) and weights not in published_weights(name):
        there = f"{', '.join(published_weights(name))}, random:<seed>, and the file that --weights FILE names"
        raise UserError(f"no weights {weights!r} for {name}; there are: {there}")
    width = CLASS_COUNT if output == CLASSES else width_of(name)
    row_shape = ((crop // STRIDE) ** 2, width) if output == "grid" else (width,)
    how = Preparation((resize,), (crop, crop))
    return name, weights, ModelFacts(how, row_shape, gigaflops(name, crop))


def load(
    name: str,
    weights: str,
    file: Path | None,
    output: str = "",
    read: "Callable[[Path], Mapping[str, Tensor]] | None" = None,
) -> "tuple[nn.Module, str]":
    """A network without its classes; `read` reads files of other kinds than a state_dict."""
    with extra_needed("train", "networks need torch and torchvision"):
        import torchvision

    def published() -> Path:
        url: str = torchvision.models.get_model_weights(name)[weights].url
        return download(url, f"weights {weights} of {name}")

    def fill(network: "nn.Module", state: "Mapping[str, Tensor]") -> None:
        load_exactly(network, state, () if output == CLASSES else HEADS)

    return filled_network(name, weights, file, lambda: _untrained(name, output), fill, published, read)


def _untrained(name: str, output: str) -> "nn.Module":
    import torch
    import torchvision

    network: nn.Module = torchvision.models.get_model(name, weights=None)
    if output != CLASSES:
        head = next(head for head in HEADS if name.startswith("vgg") == head.startswith("c"))
        network.set_submodule(head[:-1], torch.nn.Identity())
    for module_name, module in network.named_modules():
        if re.fullmatch(r"layer\d\.\d+", module_name):  # a block adds half of the default, else float16 overflows
            torch.nn.init.constant_((module.bn3 if hasattr(module, "bn3") else module.bn2).weight, 0.5)
    return network


def look(network: "nn.Module", pixels_N3HW: "Tensor", output: str) -> "Tensor":
    if output == CLASSES:
        return network(pixels_N3HW).softmax(1)  # type: ignore[no-any-return]
    if output == "fc7":  # after its ReLU
        return network(pixels_N3HW)  # type: ignore[no-any-return]
    maps_NDHW = last_maps(network)(pixels_N3HW)
    return positions(maps_NDHW, maps_NDHW.shape[1]) if output == "grid" else maps_NDHW.mean((2, 3))


def last_maps(network: "nn.Module") -> "nn.Module":
    """The network up to its last convolution."""
    import torch

    return torch.nn.Sequential(*list(network.children())[:-2])


def sum_over_positions(network: "nn.Module", pixels_N3HW: "Tensor") -> "Tensor":
    """Sums the rows of all windows of 224 x 224, a stride apart: the network is applied as convolutions.

    Of a VGG it is fc7 without its ReLU, as in layumi/Image-Text-Embedding@eefe0f2:test/getFeature2.m.
    """
    from torch.nn.functional import avg_pool2d

    if not hasattr(network, "classifier"):
        return avg_pool2d(last_maps(network)(pixels_N3HW), WINDOW, stride=1).sum((2, 3))
    return as_convolutions(network, activated=False)(pixels_N3HW).sum((2, 3))  # type: ignore[no-any-return]


def as_convolutions(network: "nn.Module", activated: bool) -> "nn.Module":
    """A VGG up to fc7, or to its ReLU if `activated`, that sees every window of 224 x 224; it has no dropout."""
    from torch import nn

    layers: list[nn.Module] = [*cast(Any, network).features]
    for place, side in ((0, WINDOW), (3, 1)):
        full: Any = cast(Any, network).classifier[place]
        layer: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, full.in_features // side**2, full.out_features, side)  # type: ignore[no-untyped-call]
        layer.weight, layer.bias = nn.Parameter(full.weight.detach().unflatten(1, (-1, side, side))), full.bias
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers if activated else layers[:-1])
