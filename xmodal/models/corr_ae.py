"""Corr-AE (Feng et al., ACM MM 2014): two auto-encoders of one layer, whose codes of a pair are drawn together.

How PVSE's authors ran it is in a supplement that we have not seen: docs/models.md#corr-ae.

- Image x: features as they are, averaged over positions or frames. Caption y: a bag of words, 1 for each word that
  occurs, as in the original.
- Codes h = sigmoid(W x + b), reconstructions x' = sigmoid(W' h + b').
- Loss: (1 - a)(|x - x'|^2 + |y - y'|^2) + a |h_x - h_y|^2, the mean over pairs; a = 0.2 is in the recipes' weights.
- Similarity: minus the distance of the codes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from xmodal.batches.batch import ANNOTATED, Batch, Padded
from xmodal.batches.distributed import gather, gather_pairs
from xmodal.models import Inputs
from xmodal.number_rules import one_or_more
from xmodal.recipes import Features, Optimiser, Phase, Plateau, Recipe, Tokens, View


@dataclass(frozen=True)
class CorrAEConfig:
    width: int = 1024
    takes_vectors: ClassVar = False

    def __post_init__(self) -> None:
        one_or_more(width=self.width)

    def build(self, inputs: Inputs) -> "CorrAE":
        return CorrAE(self, inputs)


class CorrAE(nn.Module):
    """Shapes: B rows, F features, W words known, D width of a code."""

    def __init__(self, config: CorrAEConfig, inputs: Inputs) -> None:
        super().__init__()
        self.visual = AutoEncoder(inputs.visual_width, config.width)
        self.text = AutoEncoder(inputs.text_width, config.width)

    def encode_visual(self, visual: Padded) -> Tensor:
        return self.visual.encode(visual.average())

    def encode_text(self, text: Padded) -> Tensor:
        return self.text.encode(self.bags(text))

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        # by products the distance of near codes would be rounding
        return -torch.cdist(visual, text, compute_mode="donot_use_mm_for_euclid_dist")

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual, visual_error = self.visual(stream.visual.average())
        text, text_error = self.text(self.bags(stream.text))
        rows_P, columns_P = gather_pairs(stream).unbind(1)
        correlation_P = (gather(visual)[rows_P] - gather(text)[columns_P]).square().sum(1)
        reconstruction_P = gather(visual_error)[rows_P] + gather(text_error)[columns_P]
        return {"reconstruction": reconstruction_P.mean(), "correlation": correlation_P.mean()}

    def bags(self, text: Padded) -> Tensor:
        """(B, W): 1 for each word that occurs."""
        rows_N, _ = text.mask.nonzero().unbind(1)
        bags_BW = self.text.hidden.weight.new_zeros(len(text), self.text.hidden.in_features)
        bags_BW[rows_N, text.values[text.mask].long()] = 1
        return bags_BW


class AutoEncoder(nn.Module):
    def __init__(self, width: int, code_width: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(width, code_width), nn.Linear(code_width, width)
        for layer in (self.hidden, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, inputs_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (B, D), and the squared error of each reconstruction (B,)."""
        codes_BD = self.encode(inputs_BF)
        return codes_BD, (inputs_BF - self.output(codes_BD).sigmoid()).square().sum(1)

    def encode(self, inputs_BF: Tensor) -> Tensor:
        codes_BD: Tensor = self.hidden(inputs_BF).sigmoid()
        return codes_BD


AMSGRAD = Optimiser("amsgrad", 2e-4, clip_norm=2.0, schedule=Plateau(0.5, patience=10, minimum=1e-10))
CORR_AE_COCO = Recipe(
    name="corrae-coco",
    cites="docs/models.md#corr-ae; training is ours: docs/models.md#pvse-training, of its first phase",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    visual=Features("resnet"),
    text=Tokens("nltk", minimum_count=4),
    model=CorrAEConfig(),
    phases=(Phase(50, AMSGRAD, {"reconstruction": 0.8, "correlation": 0.2}),),
    batch_size=128,
)
CORR_AE_FLICKR30K = replace(
    CORR_AE_COCO,
    name="corrae-flickr30k",
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
)
CORR_AE_TGIF = replace(
    CORR_AE_COCO,
    name="corrae-tgif",
    cites=f"{CORR_AE_COCO.cites}; docs/models.md#frame-sampling; docs/models.md#vocabulary",
    view=View("tgif", "tgif/train", captions_per_item=1),
    validation=View("tgif", "tgif/val", captions_per_item=1),
    visual=Features("clips", frames=8, ends=6),
    text=Tokens("nltk", minimum_count=1),
)
CORR_AE_MRW = replace(
    CORR_AE_TGIF,
    name="corrae-mrw",
    view=View("mrw", "mrw/train"),
    validation=View("mrw", "mrw/val"),
    visual=Features("clips", frames=4),
    text=Tokens("nltk", minimum_count=1, cleaning="mrw"),
)
RECIPES = (CORR_AE_COCO, CORR_AE_FLICKR30K, CORR_AE_TGIF, CORR_AE_MRW)

SMALL = (CorrAEConfig(width=32),)
