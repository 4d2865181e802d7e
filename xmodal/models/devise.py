"""DeViSE (Frome et al., NIPS 2013) as PVSE's tables have it: images ask, and every wrong caption is pushed away.

How PVSE's authors ran it is in a supplement that we have not seen: docs/models.md#devise.

- Image: averaged features of positions or frames, one linear layer, l2-normalised.
- Caption: word vectors, the final states of a bi-GRU side by side, l2-normalised, as in PVSE with K = 0. The original
  has one vector of a label's words instead.
- Similarity: cosine. Loss: a hinge on every wrong caption of an image, summed; captions do not ask.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from xmodal.batches.batch import ANNOTATED, Batch, Padded
from xmodal.batches.distributed import compare_gathered, gather_pairs
from xmodal.losses.ranking import Negatives, Reduction, shortfall
from xmodal.models import Inputs
from xmodal.number_rules import even, known_choices, one_or_more, zero_or_more
from xmodal.recipes import Features, Optimiser, Phase, Plateau, Recipe, Tokens, View


@dataclass(frozen=True)
class DeViSEConfig:
    width: int = 1024
    word_width: int = 300
    margin: float = 0.1
    negatives: Negatives = "all"
    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        even(width=self.width)
        one_or_more(word_width=self.word_width)
        zero_or_more(margin=self.margin)
        known_choices(self)

    def build(self, inputs: Inputs) -> "DeViSE":
        return DeViSE(self, inputs)


class DeViSE(nn.Module):
    """Shapes: B rows, F features, D joint width."""

    def __init__(self, config: DeViSEConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.image = nn.Linear(inputs.visual_width, config.width)
        self.words = nn.Embedding(inputs.text_width, config.word_width)
        self.sentence = nn.GRU(config.word_width, config.width // 2, batch_first=True, bidirectional=True)
        if inputs.word_vectors is None:
            nn.init.xavier_uniform_(self.words.weight)
        inputs.fill_in_vectors(self.words.weight.data)  # N(0, 1) if unknown

    def encode_visual(self, visual: Padded) -> Tensor:
        return normalize(self.image(visual.average()), dim=1)

    def encode_text(self, text: Padded) -> Tensor:
        return normalize(torch.cat([*self.sentence(text.packed(self.words))[1]], dim=1), dim=1)

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        config, stream = self.config, batch.streams[ANNOTATED]
        visual, text = self.encode_visual(stream.visual), self.encode_text(stream.text)
        pairs, similarity_VT = gather_pairs(stream), compare_gathered(self.similarity, visual, text)
        return {"ranking": shortfall(similarity_VT, pairs, config.margin, config.negatives, config.reduction)}


AMSGRAD = Optimiser("amsgrad", 2e-4, clip_norm=2.0, schedule=Plateau(0.5, patience=10, minimum=1e-10))
WORDS = Tokens("nltk", minimum_count=4, vectors="glove.840B.300d")
DEVISE_COCO = Recipe(
    name="devise-coco",
    cites="docs/models.md#devise; training is ours: docs/models.md#pvse-training, of its first phase",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    visual=Features("resnet"),
    text=WORDS,
    model=DeViSEConfig(),
    phases=(Phase(50, AMSGRAD, {"ranking": 1.0}, frozen=("words.*",)),),
    batch_size=128,
)
DEVISE_FLICKR30K = replace(
    DEVISE_COCO,
    name="devise-flickr30k",
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
)
DEVISE_TGIF = replace(
    DEVISE_COCO,
    name="devise-tgif",
    cites=f"{DEVISE_COCO.cites}; docs/models.md#frame-sampling; docs/models.md#vocabulary",
    view=View("tgif", "tgif/train", captions_per_item=1),
    validation=View("tgif", "tgif/val", captions_per_item=1),
    visual=Features("clips", frames=8, ends=6),
    text=replace(WORDS, minimum_count=1),
)
DEVISE_MRW = replace(
    DEVISE_TGIF,
    name="devise-mrw",
    view=View("mrw", "mrw/train"),
    validation=View("mrw", "mrw/val"),
    visual=Features("clips", frames=4),
    text=replace(WORDS, minimum_count=1, cleaning="mrw"),
)
RECIPES = (DEVISE_COCO, DEVISE_FLICKR30K, DEVISE_TGIF, DEVISE_MRW)

_SMALL = DeViSEConfig(width=32, word_width=7, margin=0.5)  # by 0.1 alone images find captions, not the other way
SMALL = (_SMALL, replace(_SMALL, negatives="hardest", reduction="mean"))
