"""PCME in two dimensions: nine classes, and embeddings that are drawn as ellipses (the paper's figure 5).

The paper takes nine classes of birds. Here a class is one of three shapes in one of three colours. A picture shows
both, blurred; or it is a blend of two classes. A caption tells both, or only one, or neither: words that are not told
are <unk>, as in the paper's generic caption. What fits several classes must cover them, so its Gaussian is wide.

    python -m examples.toy_pcme toy.png

Images are on the left, captions on the right, a colour a class. Ellipses hold half of their Gaussian; the generic
caption is red and holds 99 %. Means are not normalised, for a circle has no room for nine classes (ours, as is every
number here); the loss is PCME's, with one pair of each class in a batch.
"""

import math
import sys
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from xmodal.losses.gaussians import Gaussians, squared_between_samples
from xmodal.models.pcme import kl_divergence, pair_losses

SIDES = 3  # shapes, and colours
CLASSES = SIDES * SIDES
SAMPLES = 7
KL = 0.1
SCALE, SHIFT = 5.0, 2.0  # at the start, where all means are close: with more shift modalities are driven apart
RATE = 3e-3
UNTOLD = 0.2  # how often a word is not told in training, and how often a picture is a blend
PALETTE = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")


@dataclass(frozen=True, eq=False)
class Points:
    """What was embedded: Gaussians, and the classes (N, 9) that each fits, as booleans."""

    items: Gaussians
    fits: Tensor

    @property
    def pure(self) -> Tensor:
        return self.fits.sum(1) == 1

    @property
    def sigma(self) -> Tensor:
        """(N,): the geometric mean of both."""
        return self.items.log_sigma.mean(1).exp()


@dataclass(frozen=True, eq=False)
class Toy:
    images: Points
    captions: Points  # the last one is the generic caption
    losses: list[float]


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        last = nn.Linear(64, 4)
        nn.init.constant_(last.bias[2:], math.log(0.1))  # from wide Gaussians it takes long to find nine places
        self.layers = nn.Sequential(nn.Linear(2 * SIDES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), last)

    def forward(self, values_NF: Tensor) -> Gaussians:
        mean_N2, log_sigma_N2 = self.layers(values_NF).chunk(2, dim=1)
        return Gaussians(mean_N2, log_sigma_N2)


def toy(seed: int = 0, steps: int = 1500) -> Toy:
    """Trains for a minute of one core, and embeds what it was not trained on."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        image, caption = Embedding(), Embedding()
        scale, shift = nn.Parameter(torch.tensor(SCALE)), nn.Parameter(torch.tensor(SHIFT))
        optimiser = torch.optim.Adam([*image.parameters(), *caption.parameters(), scale, shift], RATE)
        losses = []
        for _ in range(steps):
            loss = _loss(image(_pictures(torch.arange(CLASSES), UNTOLD)[0]), caption(_told(UNTOLD)), scale, shift)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
        with torch.no_grad():
            return Toy(_embedded(image, *_some_pictures()), _embedded(caption, *_all_captions()), losses)


def _loss(image: Gaussians, caption: Gaussians, scale: Tensor, shift: Tensor) -> Tensor:
    """Of one pair of each class: two different ones do not match."""
    sides = [Gaussians(s.mean, s.log_sigma, s.at(torch.randn(CLASSES, SAMPLES, 2))) for s in (image, caption)]
    distances = (squared_between_samples(sides[0].drawn, sides[1].drawn) + 1e-6).sqrt()
    matching = 2 * pair_losses(2 * (shift - scale * distances), torch.eye(CLASSES, dtype=torch.bool)).sum()
    return matching + KL * (kl_divergence(sides[0], "exact") + kl_divergence(sides[1], "exact"))


def _codes(classes_N: Tensor) -> Tensor:
    """(N, 6): one of three shapes, one of three colours."""
    parts = (classes_N // SIDES, classes_N % SIDES)
    return torch.cat([nn.functional.one_hot(part, SIDES).float() for part in parts], dim=1)


def _pictures(classes_N: Tensor, blended: float) -> tuple[Tensor, Tensor]:
    """Blurred codes, some of them half of another class, and the classes that each fits."""
    others_N = torch.where(torch.rand(len(classes_N)) < blended, torch.randint(CLASSES, (len(classes_N),)), classes_N)
    values_NF = (_codes(classes_N) + _codes(others_N)) / 2
    fits_NC = nn.functional.one_hot(classes_N, CLASSES) + nn.functional.one_hot(others_N, CLASSES) > 0
    return values_NF + 0.1 * torch.randn_like(values_NF), fits_NC


def _told(untold: float) -> Tensor:
    """A caption of each class; a word that is not told is zeros."""
    told_C2 = torch.rand(CLASSES, 2) >= untold
    return _codes(torch.arange(CLASSES)) * told_C2.repeat_interleave(SIDES, 1)


def _some_pictures() -> tuple[Tensor, Tensor]:
    """Four pure pictures of each class, and a blend of every two."""
    first_N, second_N = torch.combinations(torch.arange(CLASSES)).T
    pure_NF, fits_NC = _pictures(torch.arange(CLASSES).repeat(4), 0.0)
    blends_NF = (_codes(first_N) + _codes(second_N)) / 2
    both_NC = nn.functional.one_hot(first_N, CLASSES) + nn.functional.one_hot(second_N, CLASSES) > 0
    return torch.cat([pure_NF, blends_NF + 0.1 * torch.randn_like(blends_NF)]), torch.cat([fits_NC, both_NC])


def _all_captions() -> tuple[Tensor, Tensor]:
    """Nine that tell both, three that tell a shape, three that tell a colour, and the generic one."""
    codes_CF = _codes(torch.arange(CLASSES))
    words_6F = torch.eye(2 * SIDES)
    values_NF = torch.cat([codes_CF, words_6F, torch.zeros(1, 2 * SIDES)])
    return values_NF, values_NF @ codes_CF.T == values_NF.sum(1, keepdim=True)


def _embedded(embedding: Embedding, values_NF: Tensor, fits_NC: Tensor) -> Points:
    return Points(embedding(values_NF), fits_NC)


def draw(found: Toy, side: int = 480) -> Image.Image:
    """Two panels of `side` pixels at one scale. What fits several classes is grey, but for the generic caption."""
    panels = {"images": found.images, "captions": found.captions}
    radii = [(points, _radii(points)) for points in panels.values()]
    reach = 1.02 * max(float((points.items.mean.abs() + radii_N2).max()) for points, radii_N2 in radii)
    picture = Image.new("RGB", (2 * side + 1, side))
    for number, (name, points) in enumerate(panels.items()):
        picture.paste(_panel(name, points, reach, side), (number * (side + 1), 0))
    return picture


def _panel(name: str, points: Points, reach: float, side: int) -> Image.Image:
    panel = Image.new("RGB", (side, side), "white")
    pen = ImageDraw.Draw(panel)
    pixels_N4 = (
        (torch.cat([points.items.mean - _radii(points), points.items.mean + _radii(points)], 1) / reach + 1) * side / 2
    )
    for row in reversed(range(len(pixels_N4))):  # the pure ones, which come first, on top
        colour, width = _style(points.fits[row])
        pen.ellipse(pixels_N4[row].tolist(), outline=colour, width=width)
    pen.text((8, 8), name, fill="black")
    return panel


def _radii(points: Points) -> Tensor:
    """(N, 2): of the ellipse that holds half of a Gaussian, and of the one that holds 99 % where all classes fit."""
    outside_N1 = torch.where(points.fits.all(1, keepdim=True), 0.01, 0.5)
    return (-2 * outside_N1.log()).sqrt() * points.items.log_sigma.exp()


def _style(fits_C: Tensor) -> tuple[str, int]:
    """Colour and width of the line."""
    if fits_C.all():
        return "#d62728", 3
    return (PALETTE[int(fits_C.int().argmax())], 2) if fits_C.sum() == 1 else ("#c8c8c8", 1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m examples.toy_pcme PICTURE.png")
    draw(toy()).save(sys.argv[1])
