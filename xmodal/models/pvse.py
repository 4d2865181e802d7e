"""PVSE (Song and Soleymani, CVPR 2019): K embeddings an item and K a sentence, of which the best two are compared.

- Image (3.1): local features are the map of a CNN, the global one their mean through one linear layer. Video: a pooled
  feature a frame; global: a bi-GRU's final states. Sentence: GloVe vectors and a bi-GRU.
- PIE-Net (3.2, 3.3), one for each side: K attention maps softmax(w2 tanh(w1 x)) over the positions (equation 2);
  sigmoid(w3 (map x) + b3) are K locally guided features (3); added to the global feature and layer-normalised they are
  the K embeddings (4).
- Loss (3.4): a ranking hinge on the best of the K x K pairs (multiple instances, MIL); a diversity loss on the guided
  features (7); the maximum mean discrepancy (MMD) of both sides.
- Training (3.5): first with the CNN and the words fixed, from features of a centre crop, where the code augments.

Where the paper and its code (yalesong/pvse 874aa16) differ, we do as the code, but for its bugs: docs/models.md#pvse.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from xmodal.batches.batch import ANNOTATED, Batch, Padded
from xmodal.batches.distributed import gather, gather_pairs
from xmodal.losses.ranking import Negatives, Reduction, order_similarity, ranking_loss, reduced
from xmodal.models import Inputs
from xmodal.number_rules import above_zero, check_numbers, even, known_choices, zero_or_more
from xmodal.recipes import Features, OnePerClass, Optimiser, Phase, Pixels, Plateau, Recipe, Relative, Tokens, View

Kernel = Literal["laplacian_l2", "rbf"]


@dataclass(frozen=True)
class PVSEConfig:
    """The defaults are the released COCO model (docs/models.md#pvse-training) but for its legacy read-out."""

    visual: Literal["image", "video"] = "image"
    embeddings: int = 2  # K; 0 takes the global feature alone (5.3)
    width: int = 1024  # D
    word_width: int = 300  # 3.1
    margin: float = 0.1  # order embeddings take 0.05 (docs/models.md#order)
    negatives: Negatives = "hardest"
    reduction: Reduction = "mean"
    similarity: Literal["cosine", "order"] = "cosine"
    mil: bool = True  # 5.3
    fusion: Literal["residual", "local", "concatenated"] = "residual"  # 5.3: "No Global", "No Residual"
    kernel: Kernel = "laplacian_l2"
    gamma: float = 0.5
    dropout: float = 0.0  # docs/models.md#pvse-training
    legacy_last_output: bool = False
    xavier_image: bool = False  # docs/models.md#pvse-encoders

    def __post_init__(self) -> None:
        known_choices(self)
        zero_or_more(embeddings=self.embeddings, margin=self.margin)
        even(width=self.width)
        check_numbers("2 or more", lambda width: width > 1, word_width=self.word_width)
        above_zero(gamma=self.gamma)
        check_numbers("0 or more, below 1", lambda rate: 0 <= rate < 1, dropout=self.dropout)
        if not self.embeddings and (self.fusion != "residual" or not self.mil):
            raise ValueError("without embeddings (K = 0) there is nothing to fuse or to choose among")

    @property
    def looks_at_positions(self) -> bool:
        return self.embeddings > 0

    def build(self, inputs: Inputs) -> "PVSE":
        return PVSE(self, inputs)


@dataclass(frozen=True, eq=False)
class Embedded:
    points_BKD: Tensor
    guided_BKD: Tensor | None  # None for K = 0


class PIENet(nn.Module):
    """Shapes: B rows, L positions, F local width, K embeddings, D joint width."""

    def __init__(self, config: PVSEConfig, local_width: int) -> None:
        super().__init__()
        self.fusion = config.fusion
        self.hidden = nn.Linear(local_width, local_width // 2, bias=False)
        self.maps = nn.Linear(local_width // 2, config.embeddings, bias=False)
        self.guided = nn.Linear(local_width, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.Identity() if config.fusion == "concatenated" else nn.LayerNorm(config.width)
        for layer in (self.hidden, self.maps, self.guided):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.guided.bias)

    def forward(self, whole_BD: Tensor | None, local_BLF: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings before normalisation, and the guided features."""
        pooled_BKF = self.attend(local_BLF, mask_BL).mT @ local_BLF
        guided_BKD: Tensor = self.dropout(self.guided(pooled_BKF).sigmoid())
        if whole_BD is None:
            return self.norm(guided_BKD), guided_BKD
        whole_BKD = whole_BD[:, None].expand_as(guided_BKD)
        if self.fusion == "concatenated":
            return torch.cat([whole_BKD, guided_BKD], dim=2), guided_BKD
        return self.norm(whole_BKD + guided_BKD), guided_BKD

    def attend(self, local_BLF: Tensor, mask_BL: Tensor) -> Tensor:
        """(B, L, K), each map of sum one over the real positions."""
        scores_BLK: Tensor = self.maps(self.hidden(local_BLF).tanh())
        return scores_BLK.masked_fill(~mask_BL[..., None], -torch.inf).softmax(dim=1)


class PVSE(nn.Module):
    """Shapes as for PIENet, and V visual rows, T text rows, P pairs, N rows of any kind. Encoders give (B, K, D)."""

    def __init__(self, config: PVSEConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        visual_width, word_width = inputs.visual_width, config.word_width
        whole = None if config.fusion == "local" else config.visual
        self.words = nn.Embedding(inputs.text_width, word_width)
        self.image = nn.Linear(visual_width, config.width) if whole == "image" else None
        self.frames = _bi_gru(visual_width, config.width) if whole == "video" else None
        self.sentence = _bi_gru(word_width, config.width) if whole else None
        self.visual_pie = PIENet(config, visual_width) if config.embeddings else None
        self.text_pie = PIENet(config, word_width) if config.embeddings else None
        self.dropout = nn.Dropout(config.dropout)
        # the legacy read-out takes the backward half after one step, in which its recurrent weights meet zeros alone
        self.without_gradient = ("*weight_hh_l0_reverse",) if config.legacy_last_output else ()
        if self.image is not None and config.xavier_image:
            nn.init.xavier_uniform_(self.image.weight)
            nn.init.zeros_(self.image.bias)
        if inputs.word_vectors is None:  # docs/models.md#pvse-encoders
            nn.init.xavier_uniform_(self.words.weight)
        inputs.fill_in_vectors(self.words.weight.data)  # N(0, 1) if unknown

    def encode_visual(self, visual: Padded) -> Tensor:
        return self._compared(self._visual(visual))

    def encode_text(self, text: Padded) -> Tensor:
        return self._compared(self._text(text))

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return best_similarity(visual, text, self.config.similarity)

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual, text = self._visual(stream.visual), self._text(stream.text)
        with torch.autocast(visual.points_BKD.device.type, enabled=False):  # a margin is finer than half precision
            return self.losses(_gathered(visual), _gathered(text), gather_pairs(stream))

    def losses(self, visual: Embedded, text: Embedded, positives_P2: Tensor) -> dict[str, Tensor]:
        config = self.config
        similarity_VT = self.similarity(self._compared(visual), self._compared(text))
        ranking = ranking_loss(similarity_VT, positives_P2, config.margin, config.negatives, config.reduction)
        off = similarity_VT.new_zeros(())
        if config.embeddings < 2 or visual.guided_BKD is None or text.guided_BKD is None:
            return {"ranking": ranking, "diversity": off, "mmd": off}
        diversity = (diversity_loss(guided, config.reduction) for guided in (visual.guided_BKD, text.guided_BKD))
        points = visual.points_BKD.flatten(0, 1), text.points_BKD.flatten(0, 1)
        mmd = discrepancy_loss(*points, config.kernel, config.gamma, config.reduction)
        return {"ranking": ranking, "diversity": sum(diversity, off), "mmd": mmd}

    def attention_visual(self, visual: Padded) -> Tensor:
        """(B, L, K)"""
        return _having(self.visual_pie).attend(visual.zero_padded(), visual.mask)

    def attention_text(self, text: Padded) -> Tensor:
        return _having(self.text_pie).attend(self._word_vectors(text), text.mask)

    def _visual(self, visual: Padded) -> Embedded:
        local_BLF = visual.zero_padded()
        if self.image is not None:
            whole_BD = self.dropout(self.image(visual.average()))
        else:
            whole_BD = self._read(self.frames, local_BLF, visual.lengths)
        return self._embedded(self.visual_pie, whole_BD, local_BLF, visual.mask)

    def _text(self, text: Padded) -> Embedded:
        words_BLF = self._word_vectors(text)
        whole_BD = self._read(self.sentence, words_BLF, text.lengths)
        return self._embedded(self.text_pie, whole_BD, words_BLF, text.mask)

    def _word_vectors(self, text: Padded) -> Tensor:
        vectors_BLF: Tensor = self.dropout(self.words(text.zero_padded()))
        return vectors_BLF

    def _read(self, gru: nn.GRU | None, vectors_BLF: Tensor, lengths: Tensor) -> Tensor | None:
        if gru is None:
            return None
        packed = pack_padded_sequence(vectors_BLF, lengths, batch_first=True, enforce_sorted=False)
        outputs, final_2BD = gru(packed)
        whole_BD = torch.cat([*final_2BD], dim=1)
        if self.config.legacy_last_output:
            outputs_BLD = pad_packed_sequence(outputs, batch_first=True)[0]
            whole_BD = outputs_BLD[torch.arange(len(lengths)), lengths - 1]
        read_BD: Tensor = self.dropout(whole_BD)
        return read_BD

    def _embedded(self, pie: PIENet | None, whole_BD: Tensor | None, local_BLF: Tensor, mask_BL: Tensor) -> Embedded:
        if pie is None:
            assert whole_BD is not None
            points_BKD, guided_BKD = whole_BD[:, None], None
        else:
            points_BKD, guided_BKD = pie(whole_BD, local_BLF, mask_BL)
        points_BKD = normalize(points_BKD, dim=2)
        return Embedded(points_BKD.abs() if self.config.similarity == "order" else points_BKD, guided_BKD)

    def _compared(self, side: Embedded) -> Tensor:
        if self.config.mil:
            return side.points_BKD
        return normalize(side.points_BKD.flatten(1), dim=1)[:, None]


def best_similarity(visual_VKD: Tensor, text_TKD: Tensor, similarity: Literal["cosine", "order"]) -> Tensor:
    """(V, T): of the best pair of embeddings; (V, T, K, K) at once would be large."""
    texts_ND = text_TKD.flatten(0, 1)
    best = []
    for visual_VD in visual_VKD.unbind(1):
        pairs_VN = visual_VD @ texts_ND.T if similarity == "cosine" else order_similarity(visual_VD, texts_ND)
        best.append(pairs_VN.reshape(-1, *text_TKD.shape[:2]).max(dim=2).values)
    return torch.stack(best).max(dim=0).values


def diversity_loss(guided_BKD: Tensor, reduction: Reduction) -> Tensor:
    """The Frobenius norm of the cosines of a row's guided features, over K squared."""
    unit_BKD = normalize(guided_BKD, dim=2)
    count = unit_BKD.shape[1]
    itself_KK = torch.eye(count, dtype=torch.bool, device=unit_BKD.device)
    common_BKK = (unit_BKD @ unit_BKD.mT).masked_fill(itself_KK, 0)
    return reduced(torch.linalg.vector_norm(common_BKK, dim=(1, 2)) / count**2, reduction)


def discrepancy_loss(visual_ND: Tensor, text_ND: Tensor, kernel: Kernel, gamma: float, reduction: Reduction) -> Tensor:
    """The squared maximum mean discrepancy; a sum is over all pairs."""
    pairs = ((visual_ND, visual_ND), (visual_ND, text_ND), (text_ND, text_ND))
    of_visual, across, of_text = (_alike(*pair, kernel, gamma).mean() for pair in pairs)
    mean = of_visual - 2 * across + of_text
    return mean if reduction == "mean" else mean * len(visual_ND) * len(text_ND)


def _alike(some_ND: Tensor, others_MD: Tensor, kernel: Kernel, gamma: float) -> Tensor:
    squared_NM = some_ND.square().sum(1)[:, None] + others_MD.square().sum(1) - 2 * some_ND @ others_MD.T
    if kernel == "rbf":
        return (-gamma * squared_NM).exp()
    # vectors as near as rounding have distance 0, and gradient 0, where that of a root would be infinite
    equal_NM = squared_NM < 16 * torch.finfo(squared_NM.dtype).eps
    return (-gamma * squared_NM.masked_fill(equal_NM, 1).sqrt().masked_fill(equal_NM, 0)).exp()


def _gathered(side: Embedded) -> Embedded:
    guided_BKD = None if side.guided_BKD is None else gather(side.guided_BKD.float())
    return Embedded(gather(side.points_BKD.float()), guided_BKD)


def _bi_gru(width: int, joint_width: int) -> nn.GRU:
    return nn.GRU(width, joint_width // 2, batch_first=True, bidirectional=True)


def _having(pie: PIENet | None) -> PIENet:
    if pie is None:
        raise ValueError("a model of no embeddings (K = 0) has no attention")
    return pie


AMSGRAD = Optimiser("amsgrad", 2e-4, clip_norm=2.0, schedule=Plateau(0.5, patience=10, minimum=1e-10))
WEIGHTS = {"ranking": 1.0, "diversity": 0.1, "mmd": 0.01}
FIXED = Phase(50, AMSGRAD, WEIGHTS, frozen=("words.*",))
PICTURES = Phase(50, AMSGRAD, WEIGHTS, pixels=Pixels("resized", flip=True))
CLIPS = replace(PICTURES, pixels=Pixels("resized", flip=True, jitter=True))
WORDS = Tokens("nltk", minimum_count=4, vectors="glove.840B.300d")  # 3.1 and docs/models.md#pvse-encoders

PVSE_COCO = Recipe(
    name="pvse-coco",
    cites="3.5; docs/models.md#pvse-training; docs/models.md#vocabulary; docs/models.md#recall",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    visual=Features("resnet"),
    text=WORDS,
    model=PVSEConfig(),
    phases=(FIXED, PICTURES),
    batch_size=128,
)
PVSE_TGIF = replace(
    PVSE_COCO,
    name="pvse-tgif",
    cites=(
        "3.4; 3.5; docs/models.md#pvse-training; docs/models.md#frame-sampling; docs/models.md#vocabulary; "
        "loss weights, and the margin for TGIF, are those of pvse-coco, which is ours"
    ),
    view=View("tgif", "tgif/train", captions_per_item=1),
    validation=View("tgif", "tgif/val", captions_per_item=1),
    visual=Features("clips", frames=8, ends=6),
    text=replace(WORDS, minimum_count=1),
    model=PVSEConfig(visual="video", embeddings=3, negatives="all"),
    phases=(FIXED, CLIPS),
)
PVSE_MRW = replace(
    PVSE_TGIF,
    name="pvse-mrw",
    view=View("mrw", "mrw/train"),
    validation=View("mrw", "mrw/val"),
    visual=Features("clips", frames=4),
    text=replace(WORDS, minimum_count=1, cleaning="mrw"),
    model=PVSEConfig(visual="video", embeddings=5, negatives="all"),
)
PVSE_CUB = replace(
    PVSE_COCO,
    name="pvse-cub",
    cites=(
        "PCME's table 2; docs/models.md#pcme-encoders; docs/models.md#pcme-training; all else is that of pvse-coco, "
        "which is ours"
    ),
    view=View("cub", "pcme/train"),
    validation=View("cub", "pcme/val"),
    model=PVSEConfig(width=512),  # of a grid of ResNet-50
    phases=(replace(FIXED, epochs=10, sampler=OnePerClass()), replace(PICTURES, sampler=OnePerClass())),
    batch_size=150,  # one pair of each class
)
# Figure 5 is from before the CNN was trained; that figures 6 and 7 are too is ours. Their other points are settings.
MAIN = (PVSE_COCO, PVSE_TGIF, PVSE_MRW)
MAIN_FIXED = tuple(replace(recipe, phases=(FIXED,)) for recipe in MAIN)
FACTORS = (0.0, 0.01, 0.1, 1.0)


def _changed(recipe: Recipe, name: str, cites: str, **changes: Any) -> Recipe:
    assert isinstance(recipe.model, PVSEConfig)
    model = replace(recipe.model, **changes)
    return replace(recipe, name=f"{recipe.name}-{name}", cites=f"{cites}; else {recipe.name}", model=model)


def _relative(diversity: float, mmd: float) -> Recipe:
    """A point of figure 7."""
    weights = WEIGHTS | {"diversity": Relative(diversity, "ranking"), "mmd": Relative(mmd, "ranking")}
    recipe = replace(PVSE_COCO, phases=(replace(FIXED, weights=weights),))
    return _changed(recipe, f"relative-{diversity:g}-{mmd:g}", "figure 7")


def _figure_6(recipe: Recipe) -> tuple[Recipe, ...]:
    return (
        _changed(recipe, "no-global", "figure 6", fusion="local"),
        _changed(recipe, "no-residual", "figure 6", fusion="concatenated"),
        _changed(recipe, "no-mil", "figure 6", mil=False),
    )


RECIPES = (
    *MAIN,
    *(_changed(recipe, "k1", f"table {table}, row K=1", embeddings=1) for table, recipe in enumerate(MAIN, 2)),
    *(_changed(PVSE_CUB, f"k{k}", f"PCME's table 2, row K={k}", embeddings=k) for k in (1, 2, 4)),
    *(_changed(recipe, "fixed", "figure 5") for recipe in MAIN_FIXED),
    *(_changed(recipe, "k0", "figure 5", embeddings=0) for recipe in MAIN_FIXED),
    *_figure_6(MAIN_FIXED[0]),
    *_figure_6(MAIN_FIXED[2]),
    *(_relative(diversity, mmd) for diversity in FACTORS for mmd in FACTORS),
)

_SMALL = PVSEConfig(width=32, word_width=6, margin=0.2)
SMALL = (
    _SMALL,
    replace(_SMALL, embeddings=1, negatives="all"),
    replace(_SMALL, embeddings=0),
    replace(_SMALL, embeddings=8, reduction="sum"),
    replace(_SMALL, similarity="order", embeddings=3),
    replace(_SMALL, visual="video", embeddings=3, kernel="rbf", negatives="all"),
    replace(_SMALL, visual="video", legacy_last_output=True),
    replace(_SMALL, fusion="local"),
    replace(_SMALL, visual="video", fusion="local"),
    replace(_SMALL, fusion="concatenated"),
    replace(_SMALL, mil=False, xavier_image=True),
)
