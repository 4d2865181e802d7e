"""Canonical correlation analysis: linear projections of both sides, as correlated as can be (docs/models.md#cca).

The baseline of Klein et al. (CVPR 2015) and of Plummer et al. (Flickr30k Entities), and, with other numbers, the
normalised CCA of Gong et al. (IJCV 2014). It is solved in closed form, after one pass over the pairs: images and
sentences, or annotated boxes and the phrases that name them.

- Cxx, Cyy, Cxy are covariances over all pairs, divided by n - 1. A ridge is added to the diagonals of Cxx and Cyy:
  `eta` times the largest eigenvalue of each, plus `ridge`.
- Projections A, B have A'CxxA = B'CyyB = I and A'CxyB = diag(r). With the Cholesky factors Cxx = LL', Cyy = KK', and
  the singular values L^-1 Cxy K^-T = U diag(r) V', they are A = L^-T U and B = K^-T V, whose signs agree.
- Score: the cosine of A'(x - mean x) and B'(y - mean y), direction j times r_j^power (Klein, Plummer: power 1).
- Gong's problem, (C + 1e-4 I) v = l (blockdiag(Cxx, Cyy) + 1e-4 I) v, has the same ridge on both of its sides: so its
  largest eigenvalues are l = 1 + r, and its vectors (A, B) / sqrt(2). `weights="eigenvalues"` takes l^power.
- Ours: directions with r below `NO_CORRELATION` are rounding, and weigh nothing.

A number that is constant, or a sum of others, is left with the ridge as its variance: refused is a ridge of 0, or one
below the rounding of that variance. Fewer pairs than numbers correlate perfectly: take a larger `eta` for them.

Memory, in float64, of X and Y numbers a side: X^2 + XY + Y^2 for the covariances, which become the factors and the
product where they lie. A block of pairs comes on top, then a copy of Cyy if `eta` is not 0, then LAPACK's: a copy of
the product, U, V, and some 4 min(X, Y)^2.

Shapes: V visual rows, T texts, P pairs, X and Y numbers of either side, K directions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.linalg import cholesky_ex, eigvalsh, solve_triangular, svd
from torch.nn.functional import normalize

from xmodal.batches.batch import Padded, Stream
from xmodal.errors import UserError
from xmodal.models import Inputs
from xmodal.number_rules import known_choices, one_or_more, zero_or_more
from xmodal.recipes import TEN_CROPS, Features, Recipe, View

NO_CORRELATION = 1e-9
CONSTANT = 1e-12  # of a mean: a smaller spread around it is rounding
PANEL = 512  # columns of a symmetric product that are computed at once: what lies left of them is not
Weights = Literal["correlations", "eigenvalues"]


@dataclass(frozen=True)
class CCAConfig:
    eta: float = 1e-4  # of the largest eigenvalue
    ridge: float = 1e-8
    width: int | None = None  # directions that are kept, the most correlated ones; None is all
    weights: Weights = "correlations"  # r, or Gong's 1 + r
    power: float = 1.0

    def __post_init__(self) -> None:
        zero_or_more(eta=self.eta, ridge=self.ridge, power=self.power)
        one_or_more(width=self.width)
        known_choices(self)

    def build(self, inputs: Inputs) -> "CCA":
        return CCA(self, inputs.visual_width, inputs.text_width)


class CCA(nn.Module):
    def __init__(self, config: CCAConfig, visual_width: int, text_width: int) -> None:
        super().__init__()
        self.config = config
        most = min(visual_width, text_width)
        width = config.width or most
        if width > most:
            raise ValueError(f"sides of {visual_width:,} and {text_width:,} numbers have no {width:,} directions")
        shapes = {"visual_axes": (visual_width, width), "text_axes": (text_width, width), "correlations": (width,)}
        for name, shape in (shapes | {"visual_mean": (visual_width,), "text_mean": (text_width,)}).items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.visual_axes: Tensor
        self.text_axes: Tensor
        self.correlations: Tensor
        self.visual_mean: Tensor
        self.text_mean: Tensor

    def encode_visual(self, visual: Padded) -> Tensor:
        return self._unit((_vectors(visual) - self.visual_mean) @ self.visual_axes)

    def encode_text(self, text: Padded) -> Tensor:
        return self._unit((_vectors(text) - self.text_mean) @ self.text_axes)

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T

    def distance(self, visual: Tensor, text: Tensor) -> Tensor:
        return (2 - 2 * visual @ text.T).clamp(min=0).sqrt()

    def solve(self, stream: Iterable[Stream]) -> None:
        device = self.correlations.device
        covariances = Covariances(len(self.visual_mean), len(self.text_mean), device)
        for block in stream:
            covariances.add(block.to(device))
        self._solve(covariances)

    def _solve(self, covariances: "Covariances") -> None:
        """Works where the covariances lie, and leaves nothing of them."""
        covariances.finish()
        visual_XX, text_YY, product_XY = covariances.visual_XX, covariances.text_YY, covariances.both_XY
        _factorise(visual_XX, covariances.visual_mean, self.config, "visual")
        _factorise(text_YY, covariances.text_mean, self.config, "text")
        solve_triangular(visual_XX.T, product_XY, upper=False, out=product_XY)
        solve_triangular(text_YY, product_XY, upper=True, left=False, out=product_XY)
        visual_XK, correlations_K, text_KY = svd(product_XY, full_matrices=False)
        kept = slice(len(self.correlations))
        self.correlations.copy_(correlations_K[kept])
        if not (self.correlations > NO_CORRELATION).any():
            raise UserError(
                "CCA finds no correlation at all: the numbers of a side are constant, or pairs are mixed up"
            )
        self.visual_axes.copy_(solve_triangular(visual_XX, visual_XK[:, kept], upper=True))
        self.text_axes.copy_(solve_triangular(text_YY, text_KY.T[:, kept], upper=True))
        self.visual_mean.copy_(covariances.visual_mean)
        self.text_mean.copy_(covariances.text_mean)

    def _unit(self, projected_BK: Tensor) -> Tensor:
        weights_K = self.correlations + (1 if self.config.weights == "eigenvalues" else 0)
        weights_K = weights_K.pow(self.config.power) * (self.correlations > NO_CORRELATION)
        return normalize(projected_BK * weights_K, dim=1).float()


class Covariances:
    """Accumulates covariances of pairs block by block, by the rule of Chan, Golub and LeVeque (1983).

    Only the upper halves of symmetric ones are computed. An item with five captions is multiplied once, as its texts
    are summed first.
    """

    def __init__(self, visual_width: int, text_width: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.count = 0
        self.visual_mean, self.text_mean = zeros(visual_width), zeros(text_width)
        self.visual_XX, self.text_YY = zeros(visual_width, visual_width), zeros(text_width, text_width)
        self.both_XY = zeros(visual_width, text_width)

    def add(self, block: Stream) -> None:
        rows_P, texts_P = block.positives.unbind(1)
        if not len(rows_P):
            return
        visual_VX, text_PY = _vectors(block.visual), _vectors(block.text)[texts_P]
        pairs_V = rows_P.bincount(minlength=len(visual_VX)).double()
        visual_mean, text_mean = pairs_V @ visual_VX / len(rows_P), text_PY.mean(0)
        assert visual_mean.isfinite().all()
        assert text_mean.isfinite().all()
        visual_VX -= visual_mean
        text_PY -= text_mean
        sums_VY = torch.zeros(len(visual_VX), text_PY.shape[1], dtype=torch.float64, device=text_PY.device)
        sums_VY.index_add_(0, rows_P, text_PY)
        # the distance of the block's mean from the mean so far counts as one more pair
        total = self.count + len(rows_P)
        moved = sqrt(self.count * len(rows_P) / total)
        visual_move, text_move = visual_mean - self.visual_mean, text_mean - self.text_mean
        visual_1X, text_1Y = moved * visual_move[None], moved * text_move[None]
        self.both_XY.addmm_(torch.cat([visual_VX, visual_1X]).T, torch.cat([sums_VY, text_1Y]))
        _add_upper(self.visual_XX, torch.cat([visual_VX * pairs_V.sqrt()[:, None], visual_1X]))
        _add_upper(self.text_YY, torch.cat([text_PY, text_1Y]))
        self.visual_mean += visual_move * len(rows_P) / total
        self.text_mean += text_move * len(rows_P) / total
        self.count = total

    def finish(self) -> None:
        if self.count < 2:
            raise UserError(f"CCA needs two pairs at least, and has {self.count}: name another split")
        for sums in (self.visual_XX, self.both_XY, self.text_YY):
            sums /= self.count - 1


def _vectors(padded: Padded) -> Tensor:
    """(B, D) in double precision: the mean of each row's positions."""
    return Padded(padded.values.double(), padded.lengths).average()


def _add_upper(sums_WW: Tensor, rows_RW: Tensor) -> None:
    """Adds the product rows' x rows: its upper half, and a little more along the diagonal."""
    for start in range(0, len(sums_WW), PANEL):
        sums_WW[start : start + PANEL, start:].addmm_(rows_RW[:, start : start + PANEL].T, rows_RW[:, start:])


def _factorise(covariance_WW: Tensor, mean_W: Tensor, config: CCAConfig, side: str) -> None:
    """Puts R, upper, in place of a covariance that with its ridge is R'R."""
    diagonal_W, info = covariance_WW.diagonal(), torch.zeros((), dtype=torch.int32, device=covariance_WW.device)
    diagonal_W += config.ridge + (config.eta * eigvalsh(covariance_WW, UPLO="U")[-1] if config.eta else 0)
    # the square of a pivot is what the numbers before do not explain of a variance
    rounding_W = diagonal_W * len(diagonal_W) * torch.finfo(torch.float64).eps + (CONSTANT * mean_W).square()
    lower_WW = covariance_WW.T  # as LAPACK has it, so that nothing is copied
    cholesky_ex(lower_WW, out=(lower_WW, info))
    failed = [int(info) - 1] if info else (diagonal_W.square() <= rounding_W).nonzero().flatten().tolist()
    if failed:
        raise UserError(
            f"number {failed[0]} (from 0) of the {len(diagonal_W):,} of the {side} side is constant, or a sum of those "
            "before it, for which the ridge is too small: take a larger one (--set model.eta=0.001)"
        )


KLEIN, GONG = CCAConfig(), CCAConfig(eta=0.0, ridge=1e-4, power=4.0)
CCA_FLICKR30K = Recipe(
    name="cca-flickr30k",
    cites="docs/models.md#cca; Two-Branch, section 5.2; eta, which is chosen on the validation split there, is ours",
    view=View("flickr30k", "plummer/train", captions_per_item=5),
    validation=View("flickr30k", "plummer/val", captions_per_item=5),
    visual=TEN_CROPS,
    text=Features("sentences", method="hglmm"),
    model=KLEIN,
    phases=(),
    batch_size=1024,
)
CCA_COCO = replace(
    CCA_FLICKR30K,
    name="cca-coco",
    view=View("coco", "two_branch/train", captions_per_item=5),
    validation=View("coco", "two_branch/val", captions_per_item=5),
)
MEAN_VECTOR = Features("sentences", method="mean")
CCA_PHRASES = replace(
    CCA_FLICKR30K,
    name="cca-phrases",
    cites="docs/models.md#cca; docs/models.md#two-branch-phrases; eta is ours",
    view=View("flickr30k_entities", "plummer/train"),
    validation=View("flickr30k_entities", "plummer/val"),
    visual=Features("proposals"),
    text=Features("phrases", method="hglmm"),
)
RECIPES = (
    CCA_FLICKR30K,
    CCA_PHRASES,
    replace(CCA_PHRASES, name="normalised-cca-phrases", model=GONG),
    CCA_COCO,
    replace(CCA_FLICKR30K, name="normalised-cca-flickr30k", model=GONG),
    replace(CCA_COCO, name="normalised-cca-coco", model=GONG),
    replace(CCA_FLICKR30K, name="mean-vector-flickr30k", text=MEAN_VECTOR),
    replace(CCA_COCO, name="mean-vector-coco", text=MEAN_VECTOR),
    replace(
        CCA_COCO,
        name="cca",
        cites="ours: pooled features and tf-idf of words, for a corpus of any size",
        view=View("coco", "karpathy/train", captions_per_item=5),
        validation=View("coco", "karpathy/val", captions_per_item=5),
        visual=Features("resnet"),
        text=Features("sentences"),
        model=replace(KLEIN, eta=0.001),
    ),
)

SMALL = (replace(KLEIN, eta=0.1), CCAConfig(eta=0.1, width=5, weights="eigenvalues", power=4.0))
