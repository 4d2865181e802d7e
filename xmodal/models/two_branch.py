"""Two-Branch networks (Wang, Li, Lazebnik, PAMI 2018): embedding and similarity network, for two tasks.

Images are compared with sentences, or regions of an image with phrases, which localises these.

Where paper and official code (embedding network only) disagree, both are settings: docs/models.md#two-branch.

- Image: one vector (ten crops of VGG-19's fc7). Sentence: one vector (a Fisher vector). Neither network is trained.
- Branch: a layer to 2048, ReLU, dropout 0.5, a layer to 512, batch normalisation, length 1. Layout `code` normalises
  after the first layer instead; `linear` is the first layer at length 1.
- Embedding network: Euclidean distances. Each pair should be nearer than the K nearest wrong sentences of its image and
  the K nearest wrong images of its sentence, by a margin; so should sentences of one image (neighbours), and images of
  one sentence, which image-sentence corpora do not know of: that term is 0 there. Pairs of one image are never wrong.
- Neighbours are in a batch by chance, unless the phase's sampler is `Neighbours`: each pair then brings another
  sentence of its image.
- Similarity network: the product of both branches, three layers, one score; logistic loss on each pair and on as many
  wrong pairs, each the image with a sentence of another one in the batch.
- Regions and phrases (sampler `Phrases`): a pair's wrong phrases are of other chains, its wrong regions of its picture.
  Regions of one chain are neighbours, as are its phrases; outside are wrong regions and those of other pictures.
- `statistics=test` normalises by what is evaluated, as the published numbers do (footnote 3).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, dropout, normalize, relu, softplus

from xmodal.batches.batch import ANNOTATED, Batch, Padded, PairStream, Stream, TripletStream
from xmodal.batches.distributed import gather, gather_pairs
from xmodal.losses.ranking import Reduction, reduced
from xmodal.losses.region_phrases import region_phrase_terms
from xmodal.losses.triplets import farthest, squared_distances, triplet_loss
from xmodal.models import Inputs
from xmodal.number_rules import known_choices, one_or_more, shares, zero_or_more
from xmodal.recipes import TEN_CROPS, Features, Neighbours, Optimiser, Phase, Phrases, Recipe, Step, View

SHORTEST = 1e-5  # a vector that is shorter is not made 1 long
MOMENTUM = {"paper": 0.1, "code": 0.9}  # of running statistics: torch's default, and TensorFlow's 0.1


@dataclass(frozen=True)
class BranchConfig:
    hidden: int = 2048
    width: int = 512
    layout: Literal["paper", "code", "linear"] = "paper"
    dropout: float = 0.5
    statistics: Literal["training", "test"] = "training"
    reduction: Reduction = "mean"  # the paper sums, which wants another learning rate, except from Adam

    def __post_init__(self) -> None:
        one_or_more(hidden=self.hidden, width=self.width)
        shares(dropout=self.dropout)
        known_choices(self)


@dataclass(frozen=True)
class TwoBranchConfig(BranchConfig):
    """The defaults are the paper's, but for the mean; recipes of phrases sum."""

    margin: float = 0.1
    most: int | None = 50  # triplets of a pair and direction; None is all
    offset: float = 0.0  # of squared distances
    neighbour: Literal["each", "farthest"] = "each"  # which siblings of a sentence should be near

    def __post_init__(self) -> None:
        super().__post_init__()
        one_or_more(most=self.most)
        zero_or_more(margin=self.margin, offset=self.offset)

    def build(self, inputs: Inputs) -> "TwoBranch":
        return TwoBranch(self, inputs)


@dataclass(frozen=True)
class SimilarityConfig(BranchConfig):
    layers: int = 3  # after the product

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers not in (1, 2, 3):
            raise ValueError(f"layers is 1, 2 or 3, not {self.layers!r}")

    def build(self, inputs: Inputs) -> "SimilarityNetwork":
        return SimilarityNetwork(self, inputs)


Joined = Callable[[Tensor], Tensor]  # gathers the rows of all processes, so that they are normalised as one batch


def alone(rows: Tensor) -> Tensor:
    return rows


class Branch(nn.Module):
    """Shapes: B rows, F features, H hidden width, D joint width."""

    def __init__(self, features: int, config: BranchConfig) -> None:
        super().__init__()
        self.config = config
        self.first = nn.Linear(features, config.hidden, bias=config.layout != "code")  # a normalised layer needs none
        self.seen: tuple[Tensor, Tensor] | None = None  # mean and variance of what is evaluated
        if config.layout == "linear":
            return
        self.second = nn.Linear(config.hidden, config.width, bias=config.layout == "code")
        normalised = config.hidden if config.layout == "code" else config.width
        self.norm = nn.BatchNorm1d(normalised, momentum=MOMENTUM[config.layout])

    def forward(self, rows_BF: Tensor, joined: Joined = alone) -> Tensor:
        """(B, D), of length 1."""
        rows = self._before_norm(rows_BF, joined)
        match self.config.layout:
            case "paper":
                rows = self._normalised(rows)
            case "code":
                rows = self.second(self._activated(self._normalised(rows)))
        return normalize(rows.float(), dim=1, eps=SHORTEST)

    def observe(self, blocks: Iterable[Tensor]) -> None:
        """Takes the statistics of all rows, for evaluation."""
        count, sums, squares = 0, torch.zeros(()), torch.zeros(())
        for rows_BF in blocks:
            rows = self._before_norm(rows_BF, alone).detach().double()
            count, sums, squares = count + len(rows), sums + rows.sum(0), squares + rows.square().sum(0)
        mean = sums / max(count, 1)
        variance = (squares / max(count, 1) - mean.square()).clamp(min=0)
        self.seen = (mean.float(), variance.float()) if count else None

    def _before_norm(self, rows_BF: Tensor, joined: Joined) -> Tensor:
        hidden_BH = joined(self.first(rows_BF).float())  # in mixed precision, too
        return self.second(self._activated(hidden_BH)) if self.config.layout == "paper" else hidden_BH

    def _activated(self, hidden_BH: Tensor) -> Tensor:
        # drawn after rows are joined, so that all processes have the mask of one
        return dropout(relu(hidden_BH), self.config.dropout, self.training)

    def _normalised(self, rows: Tensor) -> Tensor:
        norm = self.norm
        if self.training and len(rows) > 1:  # one row has no variance
            return cast(Tensor, norm(rows))
        mean, variance = norm.running_mean, norm.running_var
        if self.seen and not self.training:
            mean, variance = self.seen
        return batch_norm(rows, mean, variance, norm.weight, norm.bias, eps=norm.eps)


class Branches(nn.Module):
    """Both networks up to their two vectors. Shapes: V visual rows, T text rows, P pairs, D joint width."""

    def __init__(self, config: BranchConfig, inputs: Inputs) -> None:
        super().__init__()
        if inputs.word_vectors is not None:
            raise ValueError("Two-Branch reads sentences as vectors, and has no words")
        self.visual, self.text = Branch(inputs.visual_width, config), Branch(inputs.text_width, config)
        self.by_test = config.statistics == "test" and config.layout != "linear"

    def encode_visual(self, visual: Padded) -> Tensor:
        return cast(Tensor, self.visual(visual.average()))

    def encode_text(self, text: Padded) -> Tensor:
        return cast(Tensor, self.text(text.average()))

    def observe(self, visual: Iterable[Padded], text: Iterable[Padded]) -> None:
        """Sees all that is evaluated before it encodes any of it."""
        if self.by_test:
            self.visual.observe(rows.average() for rows in visual)
            self.text.observe(rows.average() for rows in text)

    def encode_together(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """Encodes the rows of all processes."""
        return self.visual(stream.visual.average(), gather), self.text(stream.text.average(), gather)


class TwoBranch(Branches):
    """The embedding network. N rows of either side are compared with each other."""

    def __init__(self, config: TwoBranchConfig, inputs: Inputs) -> None:
        super().__init__(config, inputs)
        self.config = config

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T  # of unit vectors: orders as their distance does

    def distance(self, visual: Tensor, text: Tensor) -> Tensor:
        return squared_distances(visual, text).clamp(min=0).sqrt()  # a row of zeros has no length of 1

    def text_similarity(self, queries: Tensor, gallery: Tensor) -> Tensor:
        return queries @ gallery.T

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream, config = batch.streams[ANNOTATED], self.config
        visual_VD, text_TD = self.encode_together(stream)
        if isinstance(stream, TripletStream):
            with torch.autocast(visual_VD.device.type, enabled=False):
                return region_phrase_terms(stream, visual_VD, text_TD, config.offset, self._loss, self._neighbour_loss)
        pairs_P2, captions_T = gather_pairs(stream), gather(stream.captions)
        items_V, text_items_T = gather(stream.visual_items), gather(stream.text_items)
        wrong_VT = items_V[:, None] != text_items_T
        wrong_TT = text_items_T[:, None] != text_items_T
        siblings_TT = ~wrong_TT & (captions_T[:, None] != captions_T)
        shared_VV = shared_texts(pairs_P2, len(visual_VD))
        wrong_VV = (items_V[:, None] != items_V) & ~shared_VV
        with torch.autocast(visual_VD.device.type, enabled=False):  # a margin is finer than half precision
            squared_VT = squared_distances(visual_VD, text_TD, config.offset)
            return {
                "visual": self._loss(squared_VT, pairs_P2, wrong_VT),
                "text": self._loss(squared_VT.T, pairs_P2.flip(1), wrong_VT.T),
                "visual_neighbours": self._neighbour_loss(visual_VD, visual_VD, shared_VV, wrong_VV),
                "text_neighbours": self._neighbour_loss(text_TD, text_TD, siblings_TT, wrong_TT),
            }

    def _neighbour_loss(self, anchors_AD: Tensor, gallery_GD: Tensor, right_AG: Tensor, wrong_AG: Tensor) -> Tensor:
        if not right_AG.any():
            return anchors_AD.sum() * 0
        squared_AG = squared_distances(anchors_AD, gallery_GD, self.config.offset)
        right = farthest(squared_AG, right_AG) if self.config.neighbour == "farthest" else right_AG.nonzero()
        return self._loss(squared_AG, right, wrong_AG)

    def _loss(self, squared_AG: Tensor, right_N2: Tensor, wrong_AG: Tensor) -> Tensor:
        config = self.config
        return triplet_loss(squared_AG, right_N2, wrong_AG, config.margin, config.most, config.reduction)


def shared_texts(pairs_P2: Tensor, rows: int) -> Tensor:
    """(V, V): which visual rows have a text row in common with another one."""
    visual_P, text_P = pairs_P2.unbind(1)
    one, other = (text_P[:, None] == text_P).nonzero().unbind(1)
    shared_VV = torch.zeros(rows, rows, dtype=torch.bool, device=pairs_P2.device)
    shared_VV[visual_P[one], visual_P[other]] = True
    return shared_VV.fill_diagonal_(False)


class SimilarityNetwork(Branches):
    def __init__(self, config: SimilarityConfig, inputs: Inputs) -> None:
        super().__init__(config, inputs)
        self.reduction = config.reduction
        joint = config.hidden if config.layout == "linear" else config.width
        inner = (config.width, config.width // 2)[3 - config.layers :]  # fewer layers lack the first ones
        layers = [layer for sizes in pairwise((joint, *inner, 1)) for layer in (nn.ReLU(), nn.Linear(*sizes))]
        self.score = nn.Sequential(*layers[1:])

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        """Scores a visual row at a time: all products would be (V, T, D)."""
        return torch.stack([self.score(row_D * text)[:, 0] for row_D in visual])

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual_VD, text_TD = self.encode_together(stream)
        pairs = (stream.positives, stream.negatives) if isinstance(stream, PairStream) else drawn_pairs(stream)
        right, wrong = (self.score(visual_VD[some[:, 0]] * text_TD[some[:, 1]])[:, 0] for some in pairs)
        losses = softplus(torch.cat([-right, wrong]))
        return {"logistic": reduced(losses, self.reduction) if len(losses) else losses.sum()}


def drawn_pairs(stream: Stream) -> tuple[Tensor, Tensor]:
    """(P, 2) each: the right pairs, and for each a wrong one, its image with a sentence that is drawn of another."""
    pairs_P2, items_V, text_items_T = gather_pairs(stream), gather(stream.visual_items), gather(stream.text_items)
    wrong_PT = items_V[pairs_P2[:, 0], None] != text_items_T
    has_wrong_P = wrong_PT.any(1)
    right_P2 = pairs_P2[has_wrong_P]
    if not len(right_P2):
        return right_P2, right_P2
    texts_P1 = wrong_PT[has_wrong_P].float().multinomial(1)
    return right_P2, torch.cat([right_P2[:, :1], texts_P1], dim=1)


def combined_distance(whole_VT: Tensor, parts_VT: Tensor, share: float = 0.2) -> Tensor:
    """Mixes the distance of image and sentence with that of their regions and phrases (equation 8)."""
    return (1 - share) * whole_VT + share * parts_VT


SGD = Optimiser("sgd", 0.1, weight_decay=5e-4, momentum=0.9, schedule=Step((10, 20), 0.1))
NEIGHBOURHOODS = "visual_neighbours", "text_neighbours"
ONE_DIRECTION = {"visual": 0.0, "text": 1.0, **dict.fromkeys(NEIGHBOURHOODS, 0.0)}
BOTH_DIRECTIONS = ONE_DIRECTION | {"visual": 1.0, "text": 2.0}
CONSTRAINTS = BOTH_DIRECTIONS | {"text_neighbours": 0.2}
TWO = Neighbours(captions=2)


def _variant(recipe: Recipe, name: str, sampler: Neighbours | Phrases | None = None, **changes: Any) -> Recipe:
    phases = tuple(replace(phase, sampler=sampler, **changes) for phase in recipe.phases)
    return replace(recipe, name=f"{recipe.name.removesuffix('-constraints')}-{name}", phases=phases)


CONSTRAINTS_FLICKR30K = Recipe(
    name="two-branch-flickr30k-constraints",
    cites="docs/models.md#two-branch-embedding; docs/models.md#two-branch-losses; docs/models.md#two-branch-sampling; "
    "docs/models.md#two-branch-evaluation; how many epochs is ours",
    view=View("flickr30k", "plummer/train", captions_per_item=5),
    validation=View("flickr30k", "plummer/val", captions_per_item=5),
    visual=TEN_CROPS,
    text=Features("sentences", method="hglmm"),
    model=TwoBranchConfig(),
    phases=(Phase(30, SGD, CONSTRAINTS, sampler=TWO),),
    batch_size=1500,
)
SAMPLING_FLICKR30K = _variant(CONSTRAINTS_FLICKR30K, "sampling", TWO, weights=BOTH_DIRECTIONS)
BIDIRECTIONAL_FLICKR30K = _variant(CONSTRAINTS_FLICKR30K, "bidirectional", weights=BOTH_DIRECTIONS)
OFFICIAL_CODE = TwoBranchConfig(layout="code", margin=0.05, most=10, offset=1e-4, neighbour="farthest")
OFFICIAL_FLICKR30K = replace(
    _variant(
        CONSTRAINTS_FLICKR30K,
        "official-code",
        TWO,
        optimiser=Optimiser("adam", 1e-4),
        weights={"visual": 1.0, "text": 1.5, "visual_neighbours": 0.0, "text_neighbours": 0.05},
    ),
    model=OFFICIAL_CODE,
    batch_size=500,
)
SIMILARITY_FLICKR30K = replace(
    CONSTRAINTS_FLICKR30K,
    name="similarity-flickr30k",
    cites="docs/models.md#two-branch-similarity; docs/models.md#two-branch-evaluation; how many epochs is ours",
    model=SimilarityConfig(),
    phases=(Phase(30, SGD, {"logistic": 1.0}),),
)


ON_CHAINS = BOTH_DIRECTIONS | {"text": 4.0}
AUGMENTED, SINGLE, SAMPLED = Phrases(0.7, 0.3), Phrases(1.0, 0.3), Phrases(0.7, 0.3, neighbours=2)
AUGMENTED_PAIRS, SINGLE_PAIRS = (replace(rule, draws="pairs") for rule in (AUGMENTED, SINGLE))
_ADAM = Optimiser("adam", 1e-3, weight_decay=0.005)  # beside losses that are sums: it outweighs the gradients of means
PHRASES = Recipe(
    name="two-branch-phrases",
    cites="docs/models.md#two-branch-embedding; docs/models.md#two-branch-losses; docs/models.md#two-branch-phrases",
    view=View("flickr30k_entities", "plummer/train"),
    validation=View("flickr30k_entities", "plummer/val"),
    visual=Features("proposals"),
    text=Features("phrases", method="hglmm"),
    model=TwoBranchConfig(hidden=1024, dropout=0.0, most=30, reduction="sum"),
    phases=(Phase(8, _ADAM, ON_CHAINS, sampler=AUGMENTED),),
    batch_size=100,
)
SIMILARITY_PHRASES = replace(
    PHRASES,
    name="similarity-phrases",
    cites="docs/models.md#two-branch-similarity; docs/models.md#two-branch-phrases",
    model=SimilarityConfig(hidden=1024, dropout=0.0, reduction="sum"),
    phases=(Phase(8, _ADAM, {"logistic": 1.0}, sampler=AUGMENTED_PAIRS),),
)


def _linear(recipe: Recipe) -> Recipe:
    return replace(recipe, model=replace(cast(Any, recipe.model), layout="linear"))


SAMPLING_PHRASES = _variant(PHRASES, "sampling", SAMPLED)
LAST_EPOCH = replace(SAMPLING_PHRASES.phases[0], epochs=1, weights=ON_CHAINS | dict.fromkeys(NEIGHBOURHOODS, 0.1))
ON_PHRASES = (
    PHRASES,
    _linear(_variant(PHRASES, "linear", SINGLE, weights=ONE_DIRECTION)),
    _variant(PHRASES, "one-direction", SINGLE, weights=ONE_DIRECTION),
    _variant(PHRASES, "single", SINGLE),
    SAMPLING_PHRASES,
    replace(SAMPLING_PHRASES, name="two-branch-phrases-constraints", phases=(*SAMPLING_PHRASES.phases, LAST_EPOCH)),
    SIMILARITY_PHRASES,
    _linear(_variant(SIMILARITY_PHRASES, "linear-single", SINGLE_PAIRS)),
    _variant(SIMILARITY_PHRASES, "single", SINGLE_PAIRS),
    _linear(_variant(SIMILARITY_PHRASES, "linear", AUGMENTED_PAIRS)),
)


def _of_coco(recipe: Recipe) -> Recipe:
    return replace(
        recipe,
        name=recipe.name.replace("flickr30k", "coco"),
        view=View("coco", "two_branch/train", captions_per_item=5),
        validation=View("coco", "two_branch/val", captions_per_item=5),
    )


FLICKR30K = (
    CONSTRAINTS_FLICKR30K,
    SAMPLING_FLICKR30K,
    BIDIRECTIONAL_FLICKR30K,
    OFFICIAL_FLICKR30K,
    SIMILARITY_FLICKR30K,
)
RECIPES = (
    *FLICKR30K,
    _variant(CONSTRAINTS_FLICKR30K, "one-direction", weights=ONE_DIRECTION),
    _linear(_variant(CONSTRAINTS_FLICKR30K, "linear", weights=BOTH_DIRECTIONS)),
    _linear(_variant(CONSTRAINTS_FLICKR30K, "linear-one-direction", weights=ONE_DIRECTION)),
    *map(_of_coco, FLICKR30K),
    *ON_PHRASES,
)

_SMALL = TwoBranchConfig(hidden=32, width=16, dropout=0.0, most=5, margin=0.5)
SMALL = (
    _SMALL,
    replace(_SMALL, layout="code", offset=1e-4, neighbour="farthest", most=None, reduction="sum"),
    replace(_SMALL, layout="linear"),
    SimilarityConfig(hidden=32, width=16, dropout=0.0),
    SimilarityConfig(hidden=32, width=16, dropout=0.0, layout="linear", layers=1),
)
