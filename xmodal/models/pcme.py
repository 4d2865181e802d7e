"""PCME (Chun et al., CVPR 2021): an image and a caption are Gaussians, and match as far as their samples are near.

[P] is the paper and [C] the official code (naver-ai/pcme 4947684); where they differ, docs/models.md#pcme says which of
them is built here.

- Mean ([P] figure 3): n(LN(whole + sigmoid(W attention))) over the positions of a grid or the vectors of words.
- Spread ([P] 3.2.1): whole + W attention, with weights of its own. It is the LOG OF SIGMA, as in [C].
- Samples: mean + noise * sigma, 7 in training and for scores, not normalised.
- Loss ([P] equations 1-3): a pair matches with probability 1/J^2 sum_jj' s(b - a ||v_j - t_j'||), a and b are learned,
  s(x) is sigmoid(2x) as in [C]; `matching` is its negative log likelihood, summed over ALL pairs of a batch and twice.
- `kl`: from N(0, I). "official" is [C], which reads log sigma as a log variance, a BUG; "exact" is what it should be.
- `uniformity`: log mean exp(-2 ||x - y||^2) over pairs of samples of both sides.
- Scores ([P] 3.2.3): every one of `xmodal.losses.gaussians`; tables have the match probability, as log p - log(1 - p):
  the same order, also where p rounds to 0 or 1. The noise is drawn once for each side and is every item's.
- Training ([P] 4.1): first the heads, from features of a centre crop (ours: [C] augments pictures here too), then all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize, pdist
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from xmodal.batches.batch import ANNOTATED, Batch, Padded
from xmodal.batches.distributed import gather, gather_pairs
from xmodal.losses import gaussians
from xmodal.losses.gaussians import MEANS, SAMPLES, Distance, Gaussians, squared_between_samples
from xmodal.models import Inputs
from xmodal.number_rules import above_zero, check_numbers, even, known_choices, zero_or_more
from xmodal.recipes import Cosine, Features, OnePerClass, Optimiser, Phase, Pixels, Recipe, Tokens, View

DRAWN = 128  # points that uniformity sees at most


@dataclass(frozen=True)
class PCMEConfig:
    """The defaults are the COCO model ([P] 4.1, docs/models.md#pcme-losses)."""

    width: int = 1024
    word_width: int = 300
    samples: int = 7
    scale: float = 15.0  # a, before it is learned
    shift: float = 15.0  # b
    sigmoid_scale: float = 2.0
    kl: Literal["official", "exact", "off"] = "official"
    uniformity: Literal["distinct", "repeated", "off"] = "off"  # whether a point may be drawn twice
    distance: Distance = "match_probability"
    looks_at_positions: ClassVar = True

    def __post_init__(self) -> None:
        known_choices(self)
        even(width=self.width)
        check_numbers("2 or more", lambda width: width > 1, word_width=self.word_width)
        zero_or_more(samples=self.samples)
        above_zero(sigmoid_scale=self.sigmoid_scale)
        if self.samples == 0 and (self.kl != "off" or self.distance not in MEANS):
            raise ValueError(f"without samples kl must be off, and distance one of {', '.join(MEANS)}")

    def build(self, inputs: Inputs) -> "PCME":
        return PCME(self, inputs)


class PCME(nn.Module):
    """Shapes: B rows, L positions, F features, W word width, D joint width, J samples, V visual rows, T text rows."""

    # the backward half takes one step, in which its recurrent weights meet zeros alone
    without_gradient = ("*weight_hh_l0_reverse",)

    def __init__(self, config: PCMEConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        visual, word, width = inputs.visual_width, config.word_width, config.width
        self.words = nn.Embedding(inputs.text_width, word)
        self.image, self.sentence = nn.Linear(visual, width), _gru(word, width)
        self.image_mean, self.text_mean = Head(visual, width, is_mean=True), Head(word, width, is_mean=True)
        if config.samples:
            self.image_spread, self.sentence_spread = nn.Linear(visual, width), _gru(word, width)
            self.image_sigma, self.text_sigma = Head(visual, width, is_mean=False), Head(word, width, is_mean=False)
        self.scale, self.shift = (nn.Parameter(torch.tensor([float(one)])) for one in (config.scale, config.shift))
        if inputs.word_vectors is None:
            nn.init.xavier_uniform_(self.words.weight)
        inputs.fill_in_vectors(self.words.weight.data)

    def encode_visual(self, visual: Padded) -> Gaussians:
        return self._for_scores(self.image_gaussians(visual), seed=0)

    def encode_text(self, text: Padded) -> Gaussians:
        return self._for_scores(self.text_gaussians(text), seed=1)

    def similarity(self, visual: Gaussians, text: Gaussians) -> Tensor:
        if self.config.distance == "match_probability":
            return gaussians.compare_samples(visual, text, lambda some, others: log_odds(self.logits(some, others)))
        return gaussians.similarity(visual, text, self.config.distance)

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual, text = self.image_gaussians(stream.visual), self.text_gaussians(stream.text)
        with torch.autocast(visual.mean.device.type, enabled=False):  # a distance is finer than half precision
            return self.losses(self._sampled(_gathered(visual)), self._sampled(_gathered(text)), gather_pairs(stream))

    def losses(self, visual: Gaussians, text: Gaussians, positives_P2: Tensor) -> dict[str, Tensor]:
        matched_VT = text.mean.new_zeros(len(visual.mean), len(text.mean), dtype=torch.bool)
        matched_VT[positives_P2.unbind(1)] = True
        zero, kl, draw = visual.mean.new_zeros(()), self.config.kl, self.config.uniformity
        points_ND = torch.cat([visual.drawn.flatten(0, 1), text.drawn.flatten(0, 1)])
        return {
            "matching": 2 * pair_losses(self.logits(visual.drawn, text.drawn), matched_VT).sum(),
            "uniformity": zero if draw == "off" else uniformity(points_ND, draw),
            "kl": zero if kl == "off" else kl_divergence(visual, kl) + kl_divergence(text, kl),
        }

    def logits(self, visual_VJD: Tensor, text_TJD: Tensor) -> Tensor:
        """(V, J, T, J): the sigmoid of one is the probability that two samples match."""
        distances_VJTJ = (squared_between_samples(visual_VJD, text_TJD) + 1e-6).sqrt()
        return self.config.sigmoid_scale * (self.shift - self.scale * distances_VJTJ)

    @property
    def floats_per_item(self) -> int:
        return gaussians.floats_per_item(self.config.distance, self.config.width, self.config.samples)

    def attention_visual(self, visual: Padded) -> Tensor:
        """(B, L, 1): the map of the mean."""
        return self.image_mean.attention.attend(visual.zero_padded(), visual.mask)[..., None]

    def image_gaussians(self, visual: Padded) -> Gaussians:
        grid_BLF, mask_BL, average_BF = visual.zero_padded(), visual.mask, visual.average()
        mean_BD = self.image_mean(self.image(average_BF), grid_BLF, mask_BL)
        if not self.config.samples:
            return Gaussians.points(mean_BD)
        return Gaussians(mean_BD, self.image_sigma(self.image_spread(average_BF), grid_BLF, mask_BL))

    def text_gaussians(self, text: Padded) -> Gaussians:
        words_BLW, mask_BL = self.words(text.zero_padded()), text.mask
        mean_BD = self.text_mean(_read(self.sentence, words_BLW, text.lengths), words_BLW, mask_BL)
        if not self.config.samples:
            return Gaussians.points(mean_BD)
        whole_BD = _read(self.sentence_spread, words_BLW, text.lengths)
        return Gaussians(mean_BD, self.text_sigma(whole_BD, words_BLW, mask_BL))

    def _sampled(self, items: Gaussians) -> Gaussians:
        if not self.config.samples:
            return replace(items, samples=items.mean[:, None])
        noise_BJD = torch.randn_like(items.mean[:, None].expand(-1, self.config.samples, -1))
        return replace(items, samples=items.at(noise_BJD))

    def _for_scores(self, items: Gaussians, seed: int) -> Gaussians:
        if self.config.distance not in SAMPLES:
            return items
        generator = torch.Generator().manual_seed(seed)  # of the host: the same for every device
        noise_JD = torch.randn(self.config.samples, self.config.width, generator=generator)
        return replace(items, samples=items.at(noise_JD.to(items.mean)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(width, width // 2, bias=False), nn.Linear(width // 2, 1, bias=False)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.xavier_uniform_(self.score.weight)

    def forward(self, positions_BLF: Tensor, mask_BL: Tensor) -> Tensor:
        return (self.attend(positions_BLF, mask_BL)[:, None] @ positions_BLF)[:, 0]

    def attend(self, positions_BLF: Tensor, mask_BL: Tensor) -> Tensor:
        """(B, L), of sum one over the real positions."""
        scores_BL: Tensor = self.score(self.hidden(positions_BLF).tanh())[..., 0]
        return scores_BL.masked_fill(~mask_BL, -math.inf).softmax(1)


class Head(nn.Module):
    """One linear layer on what the attention chose, added to the whole."""

    def __init__(self, positions_width: int, width: int, is_mean: bool) -> None:
        super().__init__()
        self.attention, self.local = Attention(positions_width), nn.Linear(positions_width, width)
        self.norm = nn.LayerNorm(width) if is_mean else None
        nn.init.xavier_uniform_(self.local.weight)
        nn.init.zeros_(self.local.bias)

    def forward(self, whole_BD: Tensor, positions_BLF: Tensor, mask_BL: Tensor) -> Tensor:
        local_BD: Tensor = self.local(self.attention(positions_BLF, mask_BL))
        if self.norm is None:
            return whole_BD + local_BD
        return normalize(self.norm(whole_BD + local_BD.sigmoid()), dim=1)


def pair_losses(logits_VJTJ: Tensor, matched_VT: Tensor) -> Tensor:
    """(V, T): negative log likelihoods."""
    sign_VT = matched_VT.to(logits_VJTJ.dtype) * 2 - 1
    likely_VT = logsigmoid(sign_VT[:, None, :, None] * logits_VJTJ).logsumexp((1, 3))
    return math.log(logits_VJTJ.shape[1] * logits_VJTJ.shape[3]) - likely_VT


def log_odds(logits_VJTJ: Tensor) -> Tensor:
    """(V, T): their sigmoid is the match probability."""
    return logsigmoid(logits_VJTJ).logsumexp((1, 3)) - logsigmoid(-logits_VJTJ).logsumexp((1, 3))


def kl_divergence(items: Gaussians, kind: Literal["official", "exact"]) -> Tensor:
    mean_BD = items.drawn.mean(1) if kind == "official" else items.mean
    log_variance_BD = items.log_sigma if kind == "official" else 2 * items.log_sigma
    return -0.5 * (1 + log_variance_BD - mean_BD.square() - log_variance_BD.exp()).sum()


def uniformity(points_ND: Tensor, draw: Literal["distinct", "repeated"]) -> Tensor:
    count = len(points_ND)
    if count > DRAWN:
        rows = torch.randperm(count)[:DRAWN] if draw == "distinct" else torch.randint(count, (DRAWN,))
        points_ND = points_ND[rows.to(points_ND.device)]
    near_P = -2 * pdist(points_ND).square()
    return near_P.logsumexp(0) - math.log(len(near_P))


def _gathered(items: Gaussians) -> Gaussians:
    return Gaussians(gather(items.mean.float()), gather(items.log_sigma.float()))


def _gru(word_width: int, width: int) -> nn.GRU:
    return nn.GRU(word_width, width // 2, batch_first=True, bidirectional=True)


def _read(gru: nn.GRU, words_BLW: Tensor, lengths_B: Tensor) -> Tensor:
    """(B, D): what both directions say at the last word."""
    packed = pack_padded_sequence(words_BLW, lengths_B, batch_first=True, enforce_sorted=False)
    outputs_BLD = pad_packed_sequence(gru(packed)[0], batch_first=True)[0]
    last_B = lengths_B.to(outputs_BLD.device) - 1
    return outputs_BLD[torch.arange(len(last_B), device=last_B.device), last_B]


OFFICIAL_NAMES = {  # parts of names, replaced in this order
    "img_enc.fc.": "image.",
    "img_enc.pie_net.": "image_mean.",
    "img_enc.uncertain_net.fc2.": "image_spread.",
    "img_enc.uncertain_net.": "image_sigma.",
    "txt_enc.embed.": "words.",
    "txt_enc.rnn.": "sentence.",
    "txt_enc.pie_net.": "text_mean.",
    "txt_enc.uncertain_net.rnn.": "sentence_spread.",
    "txt_enc.uncertain_net.": "text_sigma.",
    "negative_scale": "scale",
    ".fc.": ".local.",
    ".w_1.": ".hidden.",
    ".w_2.": ".score.",
    ".layer_norm.": ".norm.",
}


def own_name(official: str, names: Mapping[str, str] = OFFICIAL_NAMES) -> str:
    return reduce(lambda name, pair: name.replace(*pair), names.items(), official)


WARM_UP = Optimiser("adamp", 2e-4, clip_norm=2.0, unclipped=("scale", "shift"), schedule=Cosine(30))
FIRST = Phase(30, WARM_UP, {"matching": 1.0, "uniformity": 0.0, "kl": 1e-5}, frozen=("words.*",), validate_every=10)
COCO_PIXELS = Pixels("resized", flip=True, erase=0.2)
PCME_COCO = Recipe(
    name="pcme-coco",
    cites="[P] 4.1; docs/models.md#pcme: the published configuration",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    visual=Features("resnet"),  # a grid of ResNet-152
    text=Tokens("nltk", minimum_count=4, vectors="glove.840B.300d", marked=0.1, deleted=0.1),
    model=PCMEConfig(),
    phases=(FIRST, replace(FIRST, optimiser=replace(WARM_UP, learning_rate=2e-5), frozen=(), pixels=COCO_PIXELS)),
    batch_size=128,
)
CUB_FIRST = replace(
    FIRST,
    epochs=10,
    optimiser=replace(WARM_UP, learning_rate=1e-4, schedule=Cosine(50)),
    weights={"matching": 1.0, "uniformity": 10.0, "kl": 1e-3},
    sampler=OnePerClass(),
    validate_every=50,
)
CUB_PIXELS = Pixels("centre", flip=False, erase=0.2)  # [C] forgets to ask for crops and flips
PCME_CUB = replace(
    PCME_COCO,
    name="pcme-cub",
    view=View("cub", "pcme/train"),
    validation=View("cub", "pcme/val"),
    model=PCMEConfig(width=512, scale=5.0, shift=5.0, uniformity="distinct"),  # on a grid of ResNet-50
    phases=(CUB_FIRST, replace(CUB_FIRST, epochs=50, frozen=(), pixels=CUB_PIXELS)),
    batch_size=150,  # one pair of each class
)


def _twin(recipe: Recipe) -> Recipe:
    """The deterministic recipe ("mu only", [P] tables 1 to 3): means in place of samples."""
    assert isinstance(recipe.model, PCMEConfig)
    model = replace(recipe.model, samples=0, kl="off", distance="mean")
    return replace(recipe, name=f"{recipe.name}-mu", model=model)


RECIPES = (PCME_COCO, _twin(PCME_COCO), PCME_CUB, _twin(PCME_CUB))

_SMALL = PCMEConfig(width=32, word_width=6, scale=5.0, shift=5.0)
SMALL = (
    _SMALL,
    replace(_SMALL, uniformity="distinct", kl="exact", sigmoid_scale=1.0),
    replace(_SMALL, distance="elk"),
    replace(_SMALL, samples=0, kl="off", distance="mean"),
)
