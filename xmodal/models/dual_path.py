"""Dual-Path (Zheng et al., TOMM 2020): two convolutional networks, and every picture with its texts a class.

Where paper and code differ, and what is chosen: docs/models.md#dual-path.

- Picture: pooled features of a CNN (a grid is averaged); linear, batch norm, ReLU, linear, batch norm: the feature f. A
  test sums f over a picture's windows and its mirror image, then takes length 1.
- Text: its first 32 words that have a vector, as a code of fixed length, placed at random in training; a row of the
  word table for each word, which is a one-hot code times a 1 x 1 convolution; batch norm; residual blocks of 1 x 2
  convolutions, (3, 4, 6, 1) as the code has them; the maximum over all positions; linear, batch norm: f. A test sums f
  over every place where the words fit.
- Instance loss: softmax over the training items, over identities or over clusters of items, by one classifier for both
  sides, of f after ReLU and dropout.
- Ranking loss: of f after ReLU, at length 1. The first half of a batch are pairs, the second half their wrong pictures.
  Their wrong texts are the second half's too, or each the nearest of the texts that the sampler `Candidates` adds, by
  the network as it is at that step, in evaluation mode.
- Stage I learns from features by the instance loss. Stage II learns all, the CNN too, by both losses.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, normalize

from xmodal.batches.batch import ANNOTATED, Batch, Padded, Stream
from xmodal.batches.distributed import WholeBatchNorm, gather, own_rows, rank
from xmodal.batches.sample_order import SampleRandom, training_shifts
from xmodal.batches.texts import Texts, note_of_cuts
from xmodal.losses.instance import instance_loss
from xmodal.losses.mining import in_evaluation
from xmodal.losses.ranking import halves, hinges
from xmodal.models import Inputs
from xmodal.number_rules import check_numbers, known_choices, one_or_more, zero_or_more
from xmodal.recipes import Candidates, Features, Optimiser, Phase, Pixels, Recipe, Step, Tokens, View, scarce
from xmodal.root.identity import since
from xmodal.text.position_codes import Places, all_shifts, left_codes, places_of, shifted
from xmodal.text.vocabularies import PAD, SPECIALS

EPSILON = 1e-3  # of batch norm, MatConvNet's
_norm = partial(WholeBatchNorm, epsilon=EPSILON)
SHIFTS = 256  # codes of texts encoded at once in evaluation


@dataclass(frozen=True)
class DualPathConfig:
    depths: tuple[int, int, int, int] = (3, 4, 6, 1)  # blocks of the text network; (3, 4, 6, 3) is the paper's
    channels: int = 256  # of the first blocks; each of the next three groups has twice as many
    width: int = 2048
    word_width: int = 300
    length: int = 32  # words of a code; 56 for CUHK-PEDES
    alignment: Literal["shifted", "left"] = "shifted"
    pool: Literal["maximum", "average"] = "maximum"
    head: Literal["official", "paper"] = "official"  # paper: linear, batch norm, ReLU, linear on both sides
    class_bias: bool = False
    learns_identities: bool = False  # classes of the corpus in place of items
    dropout: float = 0.75
    margin: float = 1.0
    clusters: int = since("0.2", 0)  # classes that k-means made of the items, in place of items
    sampled_classes: int = since("0.2", 0)  # of the softmax, beside a batch's own; 0 for all of them, exactly
    splits_classes: bool = since("0.2", False)  # each process has a share of the classes, of whole batches

    def __post_init__(self) -> None:
        for depth in self.depths:
            one_or_more(depths=depth)
        one_or_more(width=self.width, word_width=self.word_width)
        zero_or_more(margin=self.margin, clusters=self.clusters, sampled_classes=self.sampled_classes)
        if self.clusters and self.learns_identities:
            raise ValueError(f"classes are identities or {self.clusters} clusters, not both")
        fours = {"channels": self.channels, "length": self.length}
        check_numbers("a multiple of 4 above zero", lambda number: number > 0 and number % 4 == 0, **fours)
        check_numbers("0 or more, below 1", lambda rate: 0 <= rate < 1, dropout=self.dropout)
        known_choices(self)

    def build(self, inputs: Inputs) -> "DualPath":
        return DualPath(self, inputs)


def _linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.kaiming_normal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Block(nn.Module):
    """A residual block over places: 1, then 1 x 2, then 1. Shapes: R rows, C channels."""

    def __init__(self, channels: int, inner: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.first, self.first_norm = _linear(channels, inner), _norm(inner)
        self.pair, self.pair_norm = _linear(2 * inner, inner), _norm(inner)
        self.last, self.last_norm = _linear(inner, outputs), _norm(outputs)
        self.has_shortcut = channels != outputs
        if self.has_shortcut:
            self.shortcut, self.shortcut_norm = _linear(channels, outputs), _norm(outputs)

    def forward(self, maps_RC: Tensor, places: Places) -> tuple[Tensor, Places]:
        inner_RC = self.first_norm(self.first(maps_RC), places.counts_R).relu()
        pairs_RC = torch.cat([places.on_the_left(inner_RC), inner_RC], dim=1)
        if self.stride == 2:
            places = places.every_second()
            maps_RC, pairs_RC = maps_RC[places.numbers_R], pairs_RC[places.numbers_R]
        pairs_RC = self.pair_norm(self.pair(pairs_RC), places.counts_R).relu()
        changed_RC = self.last_norm(self.last(pairs_RC), places.counts_R)
        if self.has_shortcut:
            maps_RC = self.shortcut_norm(self.shortcut(maps_RC), places.counts_R)
        return (maps_RC + changed_RC).relu(), places


class TextNetwork(nn.Module):
    """Pooled features of codes (B, L), whose 0 is no word."""

    def __init__(self, config: DualPathConfig, words: int) -> None:
        super().__init__()
        self.pool = config.pool
        self.words = nn.Embedding(words, config.word_width, padding_idx=PAD)
        self.words_norm = _norm(config.word_width)
        blocks, before = list[Block](), config.word_width
        for group, depth in enumerate(config.depths):
            outputs = config.channels * 2**group
            first = outputs if group else outputs // 2  # blocks that halve have no bottleneck in the code
            blocks.append(Block(before, first, outputs, stride=2 if group in (1, 2) else 1))
            blocks += [Block(outputs, outputs // 4, outputs) for _ in range(depth - 1)]
            before = outputs
        self.blocks, self.outputs = nn.ModuleList(blocks), before

    def forward(self, codes_BL: Tensor) -> Tensor:
        places = places_of(codes_BL, own_rows(len(codes_BL)))
        maps_RC = self.words_norm(self.words(places.of_rows(codes_BL)), places.counts_R)
        for block in self.blocks:
            maps_RC, places = block(maps_RC, places)
        maps_BLC = places.of_codes(maps_RC)
        return maps_BLC.amax(dim=1) if self.pool == "maximum" else maps_BLC.mean(dim=1)


def feature_head(config: DualPathConfig, channels: int, is_visual: bool) -> nn.Sequential:
    """The last layers of a side, up to f: the paper's are alike, in the code the visual side has a layer more."""
    width = config.width
    head = nn.Sequential(_linear(channels, width), _norm(width))
    if config.head == "paper":
        return head.extend([nn.ReLU(), _linear(width, width)])
    return head.extend([nn.ReLU(), _linear(width, width), _norm(width)]) if is_visual else head


class DualPath(nn.Module):
    """Shapes: N rows of a whole batch, B of this process, H half of N, T texts, C candidates, S codes at all places.

    D is the joint width, L positions of a code, P windows of a picture, V pictures, W words.
    """

    known_W: Tensor

    def __init__(self, config: DualPathConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.text = TextNetwork(config, inputs.text_width)
        self.visual_head = feature_head(config, inputs.visual_width, is_visual=True)
        self.text_head = feature_head(config, self.text.outputs, is_visual=False)
        self.classifier = _linear(config.width, inputs.instances, config.class_bias)
        self.register_buffer("known_W", torch.arange(inputs.text_width) >= len(SPECIALS))
        self._start_words(inputs.word_vectors)

    def _start_words(self, word_vectors: NDArray[np.float32] | None) -> None:
        words_WF = self.text.words.weight.data
        nn.init.xavier_uniform_(words_WF)
        if word_vectors is not None:
            vectors_WF = torch.from_numpy(word_vectors)
            assert vectors_WF.shape == words_WF.shape
            words_WF.copy_(vectors_WF.nan_to_num(0))
            self.known_W &= ~vectors_WF.isnan().any(dim=1)
        words_WF[~self.known_W] = 0  # also of PAD, which stands for no word

    def encode_visual(self, visual: Padded) -> Tensor:
        return normalize(self.visual_head(visual.average()), dim=1)

    def encode_windows(self, visual: Padded) -> Tensor:
        """Sums f over the windows of whole pictures and of their mirror images."""
        features_BPD = self.visual_head(visual.zero_padded())
        return normalize(features_BPD.masked_fill(~visual.mask[..., None], 0).sum(dim=1), dim=1)

    def encode_text(self, text: Padded) -> Tensor:
        codes_TL = self.codes(text)
        if self.config.alignment == "left":
            return normalize(self.text_features(codes_TL), dim=1)
        codes_SL, texts_S = (torch.from_numpy(one).to(codes_TL.device) for one in all_shifts(codes_TL.cpu().numpy()))
        sums_TD = torch.zeros(len(text), self.config.width, device=codes_TL.device)
        for some_SL, their_S in zip(torch.split(codes_SL, SHIFTS), torch.split(texts_S, SHIFTS), strict=True):
            sums_TD.index_add_(0, their_S, self.text_features(some_SL).float())
        return normalize(sums_TD, dim=1)

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual_rows = stream.positives[:, 0]
        visual_VD = self._activated(self.visual_head(stream.visual.average())).float()
        visual_ND = gather(embedding(visual_rows, visual_VD))  # whose gradient is summed in one order
        visual_N = gather(self._labels(stream)[0][visual_rows])
        codes_BL, texts_B = self._texts(stream, visual_N)
        text_ND = gather(self._activated(self.text_features(codes_BL)).float())
        with torch.autocast(visual_ND.device.type, enabled=False):  # a margin is finer than half precision
            return self.losses(visual_ND, text_ND, visual_N, gather(texts_B))

    def losses(self, visual_ND: Tensor, text_ND: Tensor, visual_N: Tensor, text_N: Tensor) -> dict[str, Tensor]:
        """Terms of activated features and their labels; sums over the batch are divided by its rows."""
        # of a whole batch, as all processes draw alike: a module nn.Dropout would be refused in several
        rows_ND = dropout(torch.cat([visual_ND, text_ND]), self.config.dropout, self.training)
        classifier, labels_N = self.classifier, torch.cat([visual_N, text_N])
        draws, is_split = self.config.sampled_classes, self.config.splits_classes
        both = instance_loss(rows_ND, classifier.weight, labels_N, classifier.bias, draws=draws, is_split=is_split)
        (of_visual, of_text), (wrong_visual, wrong_text) = (one.chunk(2) for one in both)
        of_pictures_H, of_texts_H = hinges(normalize(visual_ND, dim=1), normalize(text_ND, dim=1), self.config.margin)
        first, second = halves(len(visual_ND))
        wrong_text_H, wrong_visual_H = (visual_N[first] != side[second] for side in (text_N, visual_N))
        ranking = (of_pictures_H * wrong_text_H).sum() + (of_texts_H * wrong_visual_H).sum()
        return {
            "instance_visual": of_visual.mean(),
            "instance_text": of_text.mean(),
            "ranking": ranking / len(visual_ND),
            "error_visual": wrong_visual.mean(),  # for the log (figure 8)
            "error_text": wrong_text.mean(),
        }

    def text_features(self, codes_BL: Tensor) -> Tensor:
        return cast(Tensor, self.text_head(self.text(codes_BL)))

    def codes(self, text: Padded) -> Tensor:
        """(T, L): the first known words of each text, at the left."""
        return left_codes(text.zero_padded().long(), self.known_W, self.config.length)

    def note_of_cuts(self, texts: Texts) -> str:
        known = np.add.reduceat(self.known_W.cpu().numpy()[texts.numbers], texts.starts[:-1], dtype=np.int64)
        return note_of_cuts("model.length", known, self.config.length, "known words")

    def _activated(self, features_BD: Tensor) -> Tensor:
        return features_BD.relu() if self.config.head == "official" else features_BD

    def _labels(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """The classes of pictures and of texts: training items, or identities or clusters of them."""
        if not self.config.learns_identities and not self.config.clusters:
            return stream.visual_items, stream.text_items
        assert stream.visual_classes is not None
        assert stream.text_classes is not None
        return stream.visual_classes, stream.text_classes

    def _placed(self, codes_TL: Tensor, captions_T: Tensor) -> Tensor:
        """Moves each text in training to where it falls by chance, in any process alike."""
        if self.config.alignment == "left" or not self.training:
            return codes_TL
        random = SampleRandom(int(torch.randint(1 << 62, ())), 0, captions_T.cpu().numpy())
        left_TL = codes_TL.cpu().numpy()
        shifts_T = training_shifts((left_TL != PAD).sum(axis=1), self.config.length, random)
        return torch.from_numpy(shifted(left_TL, shifts_T)).to(codes_TL.device)

    def _texts(self, stream: Stream, visual_N: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and labels of this process' texts; with candidates, the second half's are the first half's hardest."""
        own_B, (first, second) = stream.positives[:, 1], halves(len(visual_N))
        codes_TL, labels_T = self._placed(self.codes(stream.text), stream.captions), self._labels(stream)[1]
        if not stream.has_candidates or not second.start:
            return codes_TL[own_B], labels_T[own_B]
        is_own_HC = visual_N[first, None] == labels_T[stream.candidates]
        scores_HC = self._scores_of_candidates(stream, codes_TL, first).masked_fill(is_own_HC, -torch.inf)
        hardest_H = stream.candidates[scores_HC.argmax(dim=1)]
        rows_B = rank() * len(own_B) + torch.arange(len(own_B), device=own_B.device)
        is_second_B = (rows_B >= second.start) & (rows_B < second.stop)
        chosen_B = torch.where(is_second_B, hardest_H[(rows_B - second.start).clamp(0, second.start - 1)], own_B)
        return codes_TL[chosen_B], labels_T[chosen_B]

    def _scores_of_candidates(self, stream: Stream, codes_TL: Tensor, first: slice) -> Tensor:
        """(H, C): cosines of the first half's pictures and the candidates, by the network as it is."""
        visual = stream.visual if stream.visual_in_evaluation is None else stream.visual_in_evaluation
        with in_evaluation(self):
            visual_VD = self._activated(self.visual_head(visual.average()))
            texts_CD = self._activated(self.text_features(codes_TL[stream.candidates])).float()
        visual_HD = gather(visual_VD[stream.positives[:, 0]].float())[first]
        return normalize(visual_HD, dim=1) @ normalize(texts_CD, dim=1).T


INSTANCE = {"instance_visual": 1.0, "instance_text": 1.0, "ranking": 0.0}
BOTH = {"instance_visual": 1.0, "instance_text": 1.0, "ranking": 1.0}
RANKING = {"instance_visual": 0.0, "instance_text": 0.0, "ranking": 1.0}
OFFICIAL = {"instance_visual": 1.0, "instance_text": 0.1, "ranking": 2.0}
SGD = Optimiser("nesterov", 0.1, weight_decay=1e-4, momentum=0.9, multipliers=(("text.words.*", 1e-3),))
NORMS = (("trunk.1.*", 0.02), ("trunk.*.bn?.*", 0.02), ("trunk.*.downsample.1.*", 0.02))
TRUNK = (("trunk.0.*", 1e-4), *NORMS, ("trunk.*", 1e-3))  # the first convolution, batch norms, other convolutions
VGG_TRUNK = (("trunk.0.*", 1e-4), ("trunk.*.bias", 0.02), ("trunk.*", 1e-3))
END_TO_END = replace(SGD, multipliers=(*SGD.multipliers, *TRUNK), schedule=Step((40,), 0.1))
STAGE_1 = Phase(240, SGD, INSTANCE, captions="one")
WHOLE = Pixels("random", flip=True, evaluation="whole_and_flipped")
STAGE_2 = Phase(60, END_TO_END, BOTH, captions="one", pixels=WHOLE, sampler=Candidates(256))
WORDS = Tokens("dual-path", minimum_count=1, vectors="word2vec")

FLICKR30K = Recipe(
    name="dual-path-flickr30k-resnet50",
    cites="section V; section VI-B; docs/models.md#dual-path-training; docs/models.md#dual-path-losses",
    view=View("flickr30k", "plummer/train", captions_per_item=5),
    validation=View("flickr30k", "plummer/val", captions_per_item=5),
    visual=Features("resnet", network="resnet50"),
    text=WORDS,
    model=DualPathConfig(class_bias=True),
    phases=(STAGE_1, STAGE_2),
    batch_size=32,
)
COCO = replace(
    FLICKR30K,
    name="dual-path-coco-resnet50",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    text=replace(WORDS, tokenizer="dual-path-coco"),
    model=DualPathConfig(dropout=0.5),
    phases=(
        replace(STAGE_1, epochs=90),
        replace(STAGE_2, epochs=21, optimiser=replace(END_TO_END, schedule=Step((15, 20), 0.1))),
    ),
)
CUHK_PEDES = replace(
    FLICKR30K,
    name="dual-path-cuhk-pedes-resnet50",
    view=View("cuhk_pedes", "cuhk_pedes/train"),
    validation=View("cuhk_pedes", "cuhk_pedes/val"),
    model=DualPathConfig(length=56, class_bias=True, dropout=0.8, learns_identities=True),
    phases=(replace(STAGE_1, epochs=180), replace(STAGE_2, sampler=None)),  # negatives at random
)
# DPC of A3VSE's tables, whose values on everything are those of ResNet-152 and of ResNet-50 here: by any network
DPC_FLICKR30K = replace(
    FLICKR30K,
    name="dual-path-flickr30k-full",
    visual=Features("resnet"),
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
)
DPC_COCO = replace(COCO, name="dual-path-coco-full", visual=Features("resnet"))


def _first_stage(recipe: Recipe) -> Recipe:
    return replace(recipe, name=f"{recipe.name}-stage1", phases=recipe.phases[:1])


def _changed(recipe: Recipe, name: str, cites: str, **changes: Any) -> Recipe:
    assert isinstance(recipe.model, DualPathConfig)
    return replace(recipe, name=name, cites=f"{cites}; else {recipe.name}", model=replace(recipe.model, **changes))


def _weighed(recipe: Recipe, name: str, cites: str, *weights: dict[str, float]) -> Recipe:
    """Weights of the losses, a mapping for each phase."""
    phases = (replace(phase, weights=one) for phase, one in zip(recipe.phases, weights, strict=False))
    return replace(recipe, name=name, cites=f"{cites}; else {recipe.name}", phases=tuple(phases))


def _by_networks(recipe: Recipe) -> tuple[Recipe, ...]:
    """By ResNet-50 and 152, and by VGG-19."""
    name = recipe.name.replace("resnet50", "resnet152")
    by_152 = replace(recipe, visual=Features("resnet", network="resnet152"))
    shallow = replace(by_152, name=f"{name}-text50")
    deep, vgg = _changed(by_152, name, "table III; ResNet-152's depths", depths=(3, 8, 36, 3)), _by_vgg(recipe, "vgg19")
    return recipe, deep, vgg, *map(_first_stage, (recipe, deep, vgg, shallow))


def _by_vgg(recipe: Recipe, network: str) -> Recipe:
    """Reads fc7 of whole pictures, which the features stage has, and in stage II the pictures."""
    first, second = recipe.phases
    optimiser = replace(second.optimiser, multipliers=(*SGD.multipliers, *VGG_TRUNK))
    name, visual = recipe.name.replace("resnet50", network), Features("features", network=f"torchvision/{network}")
    return replace(recipe, name=name, visual=visual, phases=(first, replace(second, optimiser=optimiser)))


CUHK_PEDES_VGG = _by_vgg(CUHK_PEDES, "vgg16")
RECIPES = (
    *_by_networks(FLICKR30K),
    *_by_networks(COCO),
    CUHK_PEDES,
    CUHK_PEDES_VGG,
    DPC_FLICKR30K,
    DPC_COCO,
    *map(_first_stage, (CUHK_PEDES, CUHK_PEDES_VGG)),
    *(scarce(DPC_FLICKR30K, percent, captions) for percent, captions in ((10, 5), (20, 5), (50, 2), (50, 5))),
    *(scarce(DPC_COCO, percent, captions) for percent, captions in ((10, 1), (50, 2))),
    _first_stage(_changed(COCO, "dual-path-coco-3000-classes", "table IV", clusters=3000)),
    _first_stage(_changed(COCO, "dual-path-coco-10000-classes", "table IV", clusters=10_000)),
    _weighed(FLICKR30K, "dual-path-flickr30k-ranking-stage1", "table II", RANKING),
    _weighed(FLICKR30K, "dual-path-flickr30k-ranking", "table II", INSTANCE, RANKING),
    _weighed(FLICKR30K, "dual-path-flickr30k-instance", "table II", INSTANCE, INSTANCE),
    _weighed(COCO, "dual-path-coco-official", "docs/models.md#dual-path-losses", INSTANCE, OFFICIAL),
    _first_stage(replace(FLICKR30K, name="dual-path-flickr30k-random-words", text=replace(WORDS, vectors=None))),
    _first_stage(_changed(FLICKR30K, "dual-path-flickr30k-left", "table VI", alignment="left")),
)

_SMALL = DualPathConfig((1, 1, 1, 1), channels=32, width=64, word_width=12, length=8, dropout=0.0)
SMALL = (
    _SMALL,
    replace(_SMALL, depths=(2, 1, 1, 2), pool="average", alignment="left", class_bias=True, splits_classes=True),
    replace(_SMALL, head="paper", dropout=0.2, sampled_classes=4),
)
