"""A3VSE (Huang et al., MM 2019): pictures that nobody described learn from the words of their detected regions.

- Picture: 36 regions of the bottom-up detector through one linear layer. Text, a caption or the regions' words: GloVe
  vectors and an LSTM. Both kinds of pictures share the encoders, and so do both kinds of texts (3.2).
- Attention (equation 1): K heads, each a softmax over the positions by their agreement with the mean of all; the sums
  of the K heads are concatenated, and compared by their cosine.
- Triplet loss (2, 3): the hardest negatives of the batch, for pictures with captions and, at another margin, for
  un-annotated pictures with the words of their regions.
- Adversary (4 to 10): six discriminators, one for each two of the four kinds of rows, whose gradients the encoders get
  reversed, more strongly as the training goes on.

There is no public code. Misprints of the paper and what is chosen for them: docs/models.md#a3vse.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Batch, Padded, Stream
from xmodal.batches.distributed import gather, gather_pairs
from xmodal.losses.adversarial import Discriminator, domain_loss, reversal_strength, reversed_gradient
from xmodal.losses.ranking import ranking_loss
from xmodal.models import Inputs
from xmodal.number_rules import known_choices, one_or_more, zero_or_more
from xmodal.recipes import Features, Optimiser, Phase, Recipe, Step, Tokens, View

Attention = Literal["context", "bilinear_tanh", "mean"]
PICTURE, CAPTION, OTHER_PICTURE, SEMANTICS = "picture", "caption", "other_picture", "semantics"  # the four domains
DOMAINS = {  # by the loss between them (5 to 7); the first one's label is 1
    "intra_picture": (PICTURE, OTHER_PICTURE),
    "intra_text": (CAPTION, SEMANTICS),
    "cross_annotated": (PICTURE, CAPTION),
    "cross_unannotated": (OTHER_PICTURE, SEMANTICS),
    "transitive_semantics": (PICTURE, SEMANTICS),
    "transitive_caption": (OTHER_PICTURE, CAPTION),
}


@dataclass(frozen=True)
class A3VSEConfig:
    """The defaults are section 4.3's; the temperature is not printed (docs/models.md#a3vse-attention)."""

    width: int = 512  # H, and of the contexts
    word_width: int = 300
    heads: int = 3  # K
    attention: Attention = "context"
    temperature: float = 1.0  # lambda of equation 1: larger is sharper
    margin: float = 0.2
    semantics_margin: float = 0.3
    adversaries: tuple[str, ...] = tuple(DOMAINS)
    discriminator_width: int = 512
    reversal_epochs: int | None = None  # the reversal grows epoch by epoch of so many; None: step by step

    def __post_init__(self) -> None:
        sizes = {"width": self.width, "word_width": self.word_width, "heads": self.heads}
        one_or_more(**sizes, discriminator_width=self.discriminator_width, reversal_epochs=self.reversal_epochs)
        zero_or_more(margin=self.margin, semantics_margin=self.semantics_margin, temperature=self.temperature)
        known_choices(self)
        if unknown := {*self.adversaries} - {*DOMAINS}:
            raise ValueError(f"no adversary {min(unknown)!r}; there are: {', '.join(DOMAINS)}")

    @property
    def looks_at_positions(self) -> bool:
        return self.attention != "mean"

    @property
    def joint_width(self) -> int:
        return self.heads * self.width if self.looks_at_positions else self.width

    def build(self, inputs: Inputs) -> "A3VSE":
        return A3VSE(self, inputs)


class ContextAttention(nn.Module):
    """Sums positions by their agreement with the mean of all. B rows, L positions, H width, K heads, C contexts."""

    def __init__(self, config: A3VSEConfig) -> None:
        super().__init__()
        self.heads, self.kind, self.temperature = config.heads, config.attention, config.temperature
        self.context = nn.Linear(config.width, config.heads * config.width, bias=False)  # P of equation 1
        self.position = nn.Linear(config.width, config.heads * config.width, bias=False)  # Q
        for layer in (self.context, self.position):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, rows: Padded) -> Tensor:
        """(B, K * H)"""
        summed_BKH = self.weights(rows) @ rows.zero_padded()
        return summed_BKH.flatten(1)

    def weights(self, rows: Padded) -> Tensor:
        """(B, K, L), each head of sum one over the real positions."""
        sharp_BKL = self.temperature * self.scores(rows)
        return sharp_BKL.masked_fill(~rows.mask[:, None], -torch.inf).softmax(dim=2)

    def scores(self, rows: Padded) -> Tensor:
        contexts_BKC = self.context(rows.average()).unflatten(1, (self.heads, -1))
        positions_BLKC = self.position(rows.zero_padded()).tanh().unflatten(2, (self.heads, -1))
        if self.kind == "context":
            return torch.einsum("bkc,blkc->bkl", contexts_BKC.tanh(), positions_BLKC)
        return torch.einsum("bkc,blkc->bkl", contexts_BKC, positions_BLKC).tanh()


class A3VSE(nn.Module):
    """Encoders give rows of length one, of which the cosine is the product."""

    def __init__(self, config: A3VSEConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.regions = nn.Linear(inputs.visual_width, config.width)
        self.words = nn.Embedding(inputs.text_width, config.word_width)
        self.text = nn.LSTM(config.word_width, config.width, batch_first=True)
        for name, parameter in (*self.regions.named_parameters(), *self.text.named_parameters()):
            nn.init.zeros_(parameter) if "bias" in name else nn.init.xavier_uniform_(parameter)
        nn.init.xavier_uniform_(self.words.weight)
        inputs.fill_in_vectors(self.words.weight.data)
        self.visual_attention = ContextAttention(config) if config.looks_at_positions else None
        self.text_attention = ContextAttention(config) if config.looks_at_positions else None
        # last, so that the encoders start as those of the model without them
        self.discriminators = nn.ModuleDict(
            {name: Discriminator(config.joint_width, config.discriminator_width) for name in config.adversaries}
        )

    def encode_visual(self, visual: Padded) -> Tensor:
        return normalize(self.visual_rows(visual), dim=1)

    def encode_text(self, text: Padded) -> Tensor:
        return normalize(self.text_rows(text), dim=1)

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T

    def visual_rows(self, visual: Padded) -> Tensor:
        """(B, joint width), before they are made of length one."""
        return _pooled(self.visual_attention, Padded(self.regions(visual.zero_padded()), visual.lengths))

    def text_rows(self, text: Padded) -> Tensor:
        packed = pack_padded_sequence(
            self.words(text.zero_padded()), text.lengths, batch_first=True, enforce_sorted=False
        )
        states_BLH, _ = pad_packed_sequence(self.text(packed)[0], batch_first=True, total_length=text.values.shape[1])
        return _pooled(self.text_attention, Padded(states_BLH, text.lengths))

    def attention_visual(self, visual: Padded) -> Tensor:
        """(B, L, K)"""
        if self.visual_attention is None:
            raise ValueError("an A3VSE of attention=mean looks at all regions alike")
        return self.visual_attention.weights(Padded(self.regions(visual.zero_padded()), visual.lengths)).mT

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        """Without un-annotated pictures only the loss of the annotated ones is left; adversaries left out have 0."""
        config, stream, other = self.config, batch.streams[ANNOTATED], batch.streams.get(UNANNOTATED)
        rows = dict(zip((PICTURE, CAPTION), self._gathered(stream), strict=True))
        with torch.autocast(rows[PICTURE].device.type, enabled=False):  # a margin is finer than half precision
            annotated = self._triplets(rows[PICTURE], rows[CAPTION], stream, config.margin)
        off = annotated.new_zeros(())
        terms = {"annotated": annotated, "unannotated": off} | dict.fromkeys(DOMAINS, off)
        if other is None:
            return terms
        rows |= zip((OTHER_PICTURE, SEMANTICS), self._gathered(other), strict=True)
        with torch.autocast(rows[PICTURE].device.type, enabled=False):
            terms["unannotated"] = self._triplets(rows[OTHER_PICTURE], rows[SEMANTICS], other, config.semantics_margin)
            return terms | self.adversarial(rows, self._strength(batch.progress))

    def adversarial(self, rows: Mapping[str, Tensor], strength: float) -> dict[str, Tensor]:
        """The loss of each discriminator, from the rows of the four domains."""
        reversed_rows = {name: reversed_gradient(some, strength) for name, some in rows.items()}
        losses = {}
        for name, tell_apart in self.discriminators.items():
            first, second = (tell_apart(reversed_rows[domain]) for domain in DOMAINS[name])
            losses[name] = domain_loss(first, second)
        return losses

    def _gathered(self, stream: Stream) -> tuple[Tensor, Tensor]:
        visual, text = self.visual_rows(stream.visual), self.text_rows(stream.text)
        return gather(visual.float()), gather(text.float())

    def _triplets(self, visual: Tensor, text: Tensor, stream: Stream, margin: float) -> Tensor:
        similarity_VT = normalize(visual, dim=1) @ normalize(text, dim=1).T
        return ranking_loss(similarity_VT, gather_pairs(stream), margin, "hardest", "mean")

    def _strength(self, progress: float) -> float:
        if epochs := self.config.reversal_epochs:
            progress = int(progress * epochs) / epochs
        return reversal_strength(progress)


def _pooled(attention: ContextAttention | None, rows: Padded) -> Tensor:
    return rows.average() if attention is None else attention(rows)


WEIGHTS = {  # beta and 1 - beta of equation 3, the lambdas of equations 5 to 7
    "annotated": 0.8,
    "unannotated": 0.2,
    "intra_picture": 0.2,
    "intra_text": 0.1,
    "cross_annotated": 0.5,
    "cross_unannotated": 0.5,
    "transitive_semantics": 0.3,
    "transitive_caption": 0.3,
}
ADAM = Optimiser("adam", 5e-4, weight_decay=1e-6, clip_norm=2.0, schedule=Step((16,), 0.1))
FULL = "full"
SPARSE = {  # percent of the pictures, captions of each: tables 1 to 4
    "flickr30k": [(share, captions) for share in (10, 20, 50) for captions in (1, 2, 5)],
    "coco": [*((share, captions) for share in (5, 10, 20) for captions in (1, 2, 5)), (50, 2)],
}
LONGEST = {"flickr30k": 82, "coco": 57}  # words of a text (4.3)


def _recipe(corpus: str, share: int | None, captions: int = 5) -> Recipe:
    """A sparse corpus, or with share None all of it, which has no un-annotated pictures."""
    split = "karpathy/train" if share is None else f"karpathy/train@{share}%x{captions}"
    sparse = f"{share}-{captions}" if share else FULL
    other = View(corpus, f"{split}:unannotated", text="semantics") if share else None
    return Recipe(
        name=f"a3vse-{corpus}-{sparse}",
        cites="4.1; 4.3; docs/models.md#a3vse-training; docs/models.md#vocabulary",
        view=View(corpus, split, captions_per_item=5),
        validation=View(corpus, "karpathy/val", captions_per_item=5),
        visual=Features("regions"),
        text=Tokens("nltk", minimum_count=4, longest=LONGEST[corpus], vectors="glove.840B.300d"),
        model=A3VSEConfig(),
        phases=(Phase(24, ADAM, WEIGHTS),),
        batch_size=128,
        unannotated=other,
    )


def _without(recipe: Recipe, name: str, *adversaries: str) -> Recipe:
    """Table 5: the recipe without some of its adversaries."""
    left = tuple(one for one in DOMAINS if one not in adversaries)
    weights = {term: weight for term, weight in WEIGHTS.items() if term not in adversaries}
    model = replace(A3VSEConfig(), adversaries=left)
    return _ablation(recipe, name, model=model, phases=(replace(recipe.phases[0], weights=weights),))


def _ablation(recipe: Recipe, name: str, **changes: object) -> Recipe:
    return replace(recipe, name=f"{recipe.name}-{name}", cites=f"table 5; else {recipe.name}", **changes)  # type: ignore[arg-type]


ABLATED = _recipe("flickr30k", 10)
RECIPES = (
    *(_recipe(corpus, *sparse) for corpus, every in SPARSE.items() for sparse in every),
    *(_recipe(corpus, None) for corpus in SPARSE),
    _ablation(ABLATED, "no-semantics", unannotated=None),
    _ablation(ABLATED, "tags", unannotated=replace(ABLATED.unannotated, text="image_semantics")),  # type: ignore[type-var]
    _ablation(ABLATED, "no-attention", model=A3VSEConfig(attention="mean")),
    _without(ABLATED, "no-adversary", *DOMAINS),
    _without(ABLATED, "no-intra", "intra_picture", "intra_text"),
    _without(ABLATED, "no-cross", "cross_annotated", "cross_unannotated"),
    _without(ABLATED, "no-transitive", "transitive_semantics", "transitive_caption"),
)

_SMALL = A3VSEConfig(width=16, word_width=6, discriminator_width=8)
SMALL = (
    _SMALL,
    replace(_SMALL, attention="bilinear_tanh", heads=2, temperature=9.0),
    replace(_SMALL, attention="mean", reversal_epochs=4),
)
