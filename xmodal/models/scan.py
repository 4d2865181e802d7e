"""SCAN (Lee et al., ECCV 2018): every word looks at the regions of an image, or every region at the words of a caption.

The official code (kuanghuei/SCAN 8063557) decides where it and the paper differ: docs/models.md#scan.

- Image: features of regions, one linear layer, each region l2-normalised. Caption: word vectors, a bi-GRU whose two
  directions are averaged at every word, l2-normalised.
- Attention (equations 1 to 3 and 8): products of all regions and words; a leaky ReLU; normalised over the side that
  looks; softmax over the side that is looked at.
- Score (equations 4 to 7): the cosine of each word with the regions that it attends to, by logsumexp, mean, maximum or
  sum over the words; for "image_to_text" regions and words change places.
- Loss (equation 9): a hinge on the hardest negatives, summed.

An attended vector sum_i a_i x_i is never made: its product with the looking vector y is sum_i a_i <x_i, y>, its square
a' (X X') a. So a pair costs its products, and little beside them. A hinge on the hardest negatives gives few pairs a
gradient, and backward computes those pairs alone.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, normalize
from torch.nn.utils.rnn import pad_packed_sequence

from xmodal.batches.batch import ANNOTATED, Batch, Padded
from xmodal.batches.distributed import gather_padded, gather_pairs
from xmodal.losses.ranking import Negatives, ranking_loss
from xmodal.models import Inputs
from xmodal.number_rules import above_zero, known_choices, one_or_more, zero_or_more
from xmodal.recipes import Features, Optimiser, Phase, Recipe, Step, Tokens, View, scarce

Normalisation = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "softmax", "clipped", "no_norm"]
EPSILON = 1e-8
TILES = {"cpu": (16, 32)}  # images and captions, whose products stay in a core's cache
LARGE_TILES = (128, 128)  # elsewhere
AT_ONCE = 256  # captions: more, padded or in a GRU, would take as much memory as a gallery
SPARSE = 1 / 8  # share of the pairs with a gradient, up to which they are computed one by one
PAIRS = 128  # of those at once


@dataclass(frozen=True)
class SCANConfig:
    """The defaults are "t-i AVG", the best single model on Flickr30k."""

    direction: Literal["text_to_image", "image_to_text"] = "text_to_image"
    aggregation: Literal["logsumexp", "mean", "max", "sum"] = "mean"
    normalisation: Normalisation = "clipped_l2norm"
    smoothing: float = 9.0  # inverse temperature of the attention
    sharpness: float = 6.0  # of logsumexp
    width: int = 1024
    word_width: int = 300
    margin: float = 0.2
    negatives: Negatives = "hardest"
    bidirectional: bool = True
    normalise_image: bool = True
    normalise_text: bool = True
    looks_at_positions: ClassVar = True
    takes_vectors: ClassVar = False

    def __post_init__(self) -> None:
        one_or_more(width=self.width, word_width=self.word_width)
        zero_or_more(margin=self.margin)
        above_zero(smoothing=self.smoothing, sharpness=self.sharpness)
        known_choices(self)

    def build(self, inputs: Inputs) -> "SCAN":
        return SCAN(self, inputs)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Vectors of items, one item after the other: padding would double what a gallery of captions takes."""

    vectors_ND: Tensor
    lengths: Tensor

    def parts(self) -> "list[Encoded]":
        lengths = torch.split(self.lengths, AT_ONCE)
        vectors = torch.split(self.vectors_ND, [int(part.sum()) for part in lengths])
        return [Encoded(*part) for part in zip(vectors, lengths, strict=True)]

    def padded(self) -> Padded:
        longest = int(self.lengths.max())
        values = self.vectors_ND.new_zeros(len(self.lengths), longest, self.vectors_ND.shape[1], dtype=torch.float32)
        padded = Padded(values, self.lengths)
        values[padded.mask] = self.vectors_ND.float()
        return padded


class SCAN(nn.Module):
    """Shapes: B rows, L positions, F features, D joint width, N vectors, V images, T captions."""

    def __init__(self, config: SCANConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.image = nn.Linear(inputs.visual_width, config.width)
        self.words = nn.Embedding(inputs.text_width, config.word_width)
        self.sentence = nn.GRU(config.word_width, config.width, batch_first=True, bidirectional=config.bidirectional)
        nn.init.xavier_uniform_(self.image.weight)
        nn.init.zeros_(self.image.bias)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def encode_visual(self, visual: Padded) -> Encoded:
        return self._kept(self.regions(visual))

    def encode_text(self, text: Padded) -> Encoded:
        parts = [self._kept(self.word_states(text[rows])) for rows in torch.split(torch.arange(len(text)), AT_ONCE)]
        return Encoded(torch.cat([part.vectors_ND for part in parts]), text.lengths)

    def similarity(self, visual: Encoded, text: Encoded) -> Tensor:
        images = visual.padded()
        return torch.cat([_zero_padded_attention(self.config, images, part.padded()) for part in text.parts()], dim=1)

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual, text = gather_padded(self.regions(stream.visual)), gather_padded(self.word_states(stream.text))
        with torch.autocast(visual.values.device.type, enabled=False):  # a margin is finer than half precision
            similarity_VT, pairs = cross_attention(self.config, visual, text), gather_pairs(stream)
        return {"ranking": ranking_loss(similarity_VT, pairs, self.config.margin, self.config.negatives, "sum")}

    def attention_of_words(self, visual: Padded, text: Padded) -> Tensor:
        """(L, words): of one image and one caption, how much each word looks at each region, or each region at it."""
        images, words = self.regions(visual), self.word_states(text)
        is_of_text = self.config.direction == "text_to_image"
        sources, queries = (images, words) if is_of_text else (words, images)
        products_1SQ1 = (sources.values @ queries.values.mT)[..., None]
        weights_SQ = attention(self.config, products_1SQ1, sources.mask, queries.mask[..., None])[0, ..., 0]
        return weights_SQ if is_of_text else weights_SQ.T

    def regions(self, visual: Padded) -> Padded:
        values_BLD: Tensor = self.image(visual.zero_padded())
        return Padded(normalize(values_BLD, dim=2) if self.config.normalise_image else values_BLD, visual.lengths)

    def word_states(self, text: Padded) -> Padded:
        states, width = self.sentence(text.packed(self.words))[0], self.config.width
        states_ND = states.data  # packed: of a caption of 50 words the others would be padded to 50
        if self.config.bidirectional:
            states_ND = (states_ND[:, :width] + states_ND[:, width:]) / 2
        if self.config.normalise_text:
            states_ND = normalize(states_ND, dim=1)
        return Padded(pad_packed_sequence(states._replace(data=states_ND), batch_first=True)[0], text.lengths)

    def _kept(self, items: Padded) -> Encoded:
        """In half precision for scores: 5,000 images and 25,000 captions are 492,500 vectors."""
        vectors_ND = items.values[items.mask]
        is_unit = self.config.normalise_image and self.config.normalise_text  # others may be out of its range
        return Encoded(vectors_ND if self.training or not is_unit else vectors_ND.half(), items.lengths)


def cross_attention(config: SCANConfig, visual: Padded, text: Padded) -> Tensor:
    """(V, T): scores of all pairs."""
    images, captions = (Padded(side.zero_padded().float(), side.lengths) for side in (visual, text))
    return _zero_padded_attention(config, images, captions)


def _zero_padded_attention(config: SCANConfig, visual: Padded, text: Padded) -> Tensor:
    scores_VT: Tensor = _CrossAttention.apply(config, visual.lengths, text.lengths, visual.values, text.values)
    return scores_VT


class _CrossAttention(torch.autograd.Function):
    """Keeps nothing of a tile for backward, which computes again what has a gradient."""

    @staticmethod
    def forward(
        context: Any, config: SCANConfig, visual_lengths: Tensor, text_lengths: Tensor, visual: Tensor, text: Tensor
    ) -> Tensor:
        context.config, context.lengths = config, (visual_lengths, text_lengths)
        context.save_for_backward(visual, text)
        scores_VT = visual.new_empty(len(visual), len(text))
        images, captions = _blocks(Padded(visual, visual_lengths), Padded(text, text_lengths))
        for (rows, some), (columns, others) in product(images, captions):
            scores_VT[rows[:, None], columns] = _all_pairs(config, some, others)
        return scores_VT

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient_VT: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [values.detach().requires_grad_() for values in context.saved_tensors]
        visual, text = (Padded(leaf, lengths) for leaf, lengths in zip(leaves, context.lengths, strict=True))
        chosen_P2 = gradient_VT.nonzero()
        with torch.enable_grad():
            if len(chosen_P2) > SPARSE * gradient_VT.numel():
                _backward_by_tiles(context.config, visual, text, gradient_VT)
            else:
                _backward_by_pairs(context.config, visual, text, gradient_VT, chosen_P2)
        return None, None, None, *(leaf.grad for leaf in leaves)


def _backward_by_tiles(config: SCANConfig, visual: Padded, text: Padded, gradient_VT: Tensor) -> None:
    """Gradients are added up in the blocks, and go from there to the whole once."""
    images, captions = _blocks(visual, text)
    parts = {id(block): block.values.detach().requires_grad_() for _, block in (*images, *captions)}
    for (rows, some), (columns, others) in product(images, captions):
        some, others = (replace(block, values=parts[id(block)]) for block in (some, others))
        _all_pairs(config, some, others).backward(gradient_VT[rows[:, None], columns])  # type: ignore[no-untyped-call]
    blocks = [block.values for _, block in (*images, *captions)]
    torch.autograd.backward(blocks, [part.grad for part in parts.values()])


def _backward_by_pairs(
    config: SCANConfig, visual: Padded, text: Padded, gradient_VT: Tensor, chosen_P2: Tensor
) -> None:
    for pairs_P2 in torch.split(chosen_P2, PAIRS):
        rows, columns = pairs_P2.unbind(1)
        _paired(config, visual[rows], text[columns]).backward(gradient_VT[rows, columns])  # type: ignore[no-untyped-call]


Blocks = list[tuple[Tensor, Padded]]  # rows of the whole, and their items


def _blocks(visual: Padded, text: Padded) -> tuple[Blocks, Blocks]:
    sizes = TILES.get(visual.values.device.type, LARGE_TILES)
    images, captions = (_by_length(items, size) for items, size in zip((visual, text), sizes, strict=True))
    return images, captions


def _by_length(items: Padded, size: int) -> Blocks:
    """Items of about one length stand together, and are padded to no more than that."""
    blocks = []
    for rows in torch.split(items.lengths.argsort(stable=True), size):
        longest = int(items.lengths[rows[-1]])
        blocks.append((rows, Padded(items.values[rows.to(items.values.device), :longest], items.lengths[rows])))
    return blocks


def _all_pairs(config: SCANConfig, visual: Padded, text: Padded) -> Tensor:
    """(V, T)"""
    if config.direction == "image_to_text":
        return _looked(config, text, visual).T
    return _looked(config, visual, text)


def _looked(config: SCANConfig, sources: Padded, queries: Padded) -> Tensor:
    """(A, B): A items of S sources that are looked at, B items of Q queries that look."""
    (items, positions, width), (others, looking, _) = sources.values.shape, queries.values.shape
    queries_ND = queries.values.transpose(0, 1).reshape(-1, width)  # B innermost: sums over S and Q are of whole rows
    products_ASQB = (sources.values.reshape(-1, width) @ queries_ND.T).view(items, positions, looking, others)
    norms_QB = torch.linalg.vector_norm(queries_ND, dim=1).view(looking, others)
    return scores(config, products_ASQB, sources, norms_QB, queries.mask.T)


def _paired(config: SCANConfig, visual: Padded, text: Padded) -> Tensor:
    """(P,): the score of each image with the caption in its row."""
    sources, queries = (visual, text) if config.direction == "text_to_image" else (text, visual)
    products_PSQ1 = (sources.values @ queries.values.mT)[..., None]
    norms_PQ1 = torch.linalg.vector_norm(queries.values, dim=2)[..., None]
    return scores(config, products_PSQ1, sources, norms_PQ1, queries.mask[..., None])[:, 0]


def scores(config: SCANConfig, products_ASQB: Tensor, sources: Padded, norms_QB: Tensor, mask_QB: Tensor) -> Tensor:
    """(A, B): the cosines of queries and what they attend to, of A sources each, brought together."""
    weights_ASQB = attention(config, products_ASQB, sources.mask, mask_QB)
    gram_ASS = sources.values @ sources.values.mT
    dot_AQB = (weights_ASQB * products_ASQB).sum(1)
    square_AQB = (weights_ASQB * (gram_ASS @ weights_ASQB.flatten(2)).view_as(weights_ASQB)).sum(1)
    length_AQB = square_AQB.clamp(min=EPSILON**3).sqrt()  # a root has no gradient at 0
    return _aggregated(config, dot_AQB / (length_AQB * norms_QB).clamp(min=EPSILON), mask_QB)


def attention(config: SCANConfig, products_ASQB: Tensor, mask_AS: Tensor, mask_QB: Tensor) -> Tensor:
    """(A, S, Q, B): of sum one over the real sources. Products with padding are 0."""
    logits_ASQB = _normalised(config, products_ASQB, mask_QB)
    if not mask_AS.all():
        logits_ASQB = logits_ASQB.masked_fill(~mask_AS[:, :, None, None], -torch.inf)
    return logits_ASQB.softmax(1)


def _normalised(config: SCANConfig, products_ASQB: Tensor, mask_QB: Tensor) -> Tensor:
    """Over the queries of an item, times the smoothing."""
    kind, smoothing = config.normalisation, config.smoothing
    if kind == "softmax":
        real_QB = mask_QB if mask_QB.ndim == 2 else mask_QB[:, None]
        return smoothing * products_ASQB.masked_fill(~real_QB, -torch.inf).softmax(2)
    clipped_ASQB = leaky_relu(products_ASQB, 0.1) if kind.startswith("clipped") else products_ASQB
    if not kind.endswith("norm") or kind == "no_norm":
        return smoothing * clipped_ASQB
    order = 1 if kind.endswith("l1norm") else 2
    norms_AS1B: Tensor = torch.linalg.vector_norm(clipped_ASQB, order, 2, keepdim=True)
    return clipped_ASQB * (smoothing / (norms_AS1B + EPSILON))


def _aggregated(config: SCANConfig, cosine_AQB: Tensor, mask_QB: Tensor) -> Tensor:
    if config.aggregation in ("logsumexp", "max"):
        cosine_AQB = cosine_AQB.masked_fill(~mask_QB, -torch.inf)
        if config.aggregation == "max":
            return cosine_AQB.amax(1)
        return (config.sharpness * cosine_AQB).logsumexp(1) / config.sharpness
    total_AB = cosine_AQB.masked_fill(~mask_QB, 0).sum(1)
    return total_AB if config.aggregation == "sum" else total_AB / mask_QB.sum(-2)


SCAN_FLICKR30K = Recipe(
    name="scan-flickr30k-full",
    cites="docs/models.md#scan-settings: t-i by mean; docs/models.md#vocabulary; docs/models.md#recall",
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
    visual=Features("regions"),
    text=Tokens("nltk", minimum_count=4),
    model=SCANConfig(),
    phases=(Phase(30, Optimiser("adam", 2e-4, clip_norm=2.0, schedule=Step((15,), 0.1)), {"ranking": 1.0}),),
    batch_size=128,
)
SCAN_COCO = replace(
    SCAN_FLICKR30K,
    name="scan-coco-full",
    cites="docs/models.md#scan-settings: i-t by logsumexp; docs/models.md#vocabulary; docs/models.md#recall",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    model=SCANConfig("image_to_text", "logsumexp", smoothing=4.0, sharpness=20.0),
    phases=(Phase(20, Optimiser("adam", 5e-4, clip_norm=2.0, schedule=Step((10,), 0.1)), {"ranking": 1.0}),),
)
RECIPES = (
    SCAN_FLICKR30K,
    SCAN_COCO,
    *(scarce(SCAN_FLICKR30K, percent, captions) for percent in (10, 20, 50) for captions in (1, 2, 5)),
    *(scarce(SCAN_COCO, percent, captions) for percent in (5, 10, 20) for captions in (1, 2, 5)),
    scarce(SCAN_COCO, 50, 2),
)
_SMALL = SCANConfig(width=32, word_width=7)
SMALL = (
    _SMALL,
    replace(_SMALL, direction="image_to_text", aggregation="logsumexp", smoothing=4.0, sharpness=5.0),
    replace(_SMALL, aggregation="max", normalisation="softmax", negatives="all"),
    replace(_SMALL, aggregation="sum", normalisation="clipped_l1norm", bidirectional=False),
    replace(_SMALL, direction="image_to_text", normalisation="no_norm", normalise_image=False, normalise_text=False),
)
