"""DAN for matching (Nam et al., CVPR 2017, m-DAN): both sides look several times, each led by a memory of its own.

No official code is public: docs/models.md#dan-training says what is from memory here, and what is ours.

- Image: a map of features v_n. v_0 = tanh(P_0 mean v). Caption: word vectors and a bi-LSTM whose directions are added,
  u_t. u_0 = mean u. Memories start as m = v_0 and m = u_0.
- Step k: h_n = tanh(W v_n) * tanh(M m); a = softmax(w h); v_k = tanh(P_k sum a_n v_n), u_k = sum a_t u_t; m + v_k is
  the next memory. Every step has weights of its own; nothing has a bias.
- Similarity: the sum over all steps of v_k u_k, a product of the concatenations.
- Loss: a hinge on wrong images and wrong captions.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from xmodal.batches.batch import ANNOTATED, Batch, Padded
from xmodal.batches.distributed import compare_gathered, gather_pairs
from xmodal.losses.ranking import Negatives, Reduction, ranking_loss
from xmodal.models import Inputs
from xmodal.number_rules import known_choices, one_or_more, zero_or_more
from xmodal.recipes import Features, Optimiser, Phase, Recipe, Step, Tokens, View, scarce


@dataclass(frozen=True)
class DANConfig:
    width: int = 512
    word_width: int = 512
    steps: int = 2
    margin: float = 100.0
    negatives: Negatives = "all"  # the paper draws one of each kind: the mean over all is what it expects
    reduction: Reduction = "mean"
    looks_at_positions: ClassVar = True
    takes_vectors: ClassVar = False

    def __post_init__(self) -> None:
        one_or_more(width=self.width, word_width=self.word_width, steps=self.steps)
        zero_or_more(margin=self.margin)
        known_choices(self)

    def build(self, inputs: Inputs) -> "DAN":
        return DAN(self, inputs)


class DAN(nn.Module):
    """Shapes: B rows, L positions, F local width, H width of a step, D all steps' width."""

    def __init__(self, config: DANConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(inputs.text_width, config.word_width)
        self.sentence = nn.LSTM(config.word_width, config.width, batch_first=True, bidirectional=True)
        self.projections = nn.ModuleList(
            nn.Linear(inputs.visual_width, config.width, bias=False) for _ in range(config.steps + 1)
        )
        self.visual_steps = nn.ModuleList(Look(inputs.visual_width, config.width) for _ in range(config.steps))
        self.text_steps = nn.ModuleList(Look(config.width, config.width) for _ in range(config.steps))
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and not name.startswith(("words.", "sentence.")):
                nn.init.xavier_uniform_(parameter)

    def encode_visual(self, visual: Padded) -> Tensor:
        return torch.cat(self._seen(visual)[0], dim=1)

    def attention_visual(self, visual: Padded) -> Tensor:
        """(B, L, steps)"""
        return torch.stack(self._seen(visual)[1], dim=2)

    def _seen(self, visual: Padded) -> tuple[list[Tensor], list[Tensor]]:
        """Gives what each step finds, (B, H), after the memory that all begin with; and where it looks, (B, L)."""
        first, *later = self.projections
        regions_BLF, memory_BH = visual.zero_padded(), first(visual.average()).tanh()
        found, maps = [memory_BH], list[Tensor]()
        for look, project in zip(self.visual_steps, later, strict=True):
            assert isinstance(look, Look)
            maps.append(look.attend(regions_BLF, memory_BH, visual.mask))
            found.append(project(weighted(maps[-1], regions_BLF)).tanh())
            memory_BH = memory_BH + found[-1]
        return found, maps

    def encode_text(self, text: Padded) -> Tensor:
        states_BLD = pad_packed_sequence(self.sentence(text.packed(self.words))[0], batch_first=True)[0]
        width = self.config.width
        return self.read(Padded(states_BLD[..., :width] + states_BLD[..., width:], text.lengths))

    def read(self, states: Padded) -> Tensor:
        """(B, D), from the states of the words."""
        memory_BH = states.average()
        found = [memory_BH]
        for look in self.text_steps:
            found.append(look(states.zero_padded(), memory_BH, states.mask))
            memory_BH = memory_BH + found[-1]
        return torch.cat(found, dim=1)

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        config, stream = self.config, batch.streams[ANNOTATED]
        visual, text = self.encode_visual(stream.visual), self.encode_text(stream.text)
        pairs, similarity_VT = gather_pairs(stream), compare_gathered(self.similarity, visual, text)
        return {"ranking": ranking_loss(similarity_VT, pairs, config.margin, config.negatives, config.reduction)}


class Look(nn.Module):
    """One step: the sum of the positions, by their fit to the memory."""

    def __init__(self, local_width: int, width: int) -> None:
        super().__init__()
        self.local = nn.Linear(local_width, width, bias=False)
        self.memory = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, local_BLF: Tensor, memory_BH: Tensor, mask_BL: Tensor) -> Tensor:
        return weighted(self.attend(local_BLF, memory_BH, mask_BL), local_BLF)

    def attend(self, local_BLF: Tensor, memory_BH: Tensor, mask_BL: Tensor) -> Tensor:
        """(B, L), of sum one over the real positions."""
        hidden_BLH = self.local(local_BLF).tanh() * self.memory(memory_BH).tanh()[:, None]
        scores_BL: Tensor = self.score(hidden_BLH)[..., 0]
        return scores_BL.masked_fill(~mask_BL, -torch.inf).softmax(1)


def weighted(weights_BL: Tensor, local_BLF: Tensor) -> Tensor:
    """(B, F)"""
    return (weights_BL[:, None] @ local_BLF)[:, 0]


SGD = Optimiser("sgd", 0.1, weight_decay=5e-4, momentum=0.9, clip_norm=0.1, schedule=Step((30,), 0.1))
DAN_FLICKR30K = Recipe(
    name="dan-flickr30k-full",
    cites="docs/models.md#dan-training, unverified; docs/models.md#vocabulary; docs/models.md#recall",
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
    visual=Features("resnet"),
    text=Tokens("nltk", minimum_count=4),
    model=DANConfig(),
    phases=(Phase(60, SGD, {"ranking": 1.0}),),
    batch_size=128,
)
DAN_COCO = replace(
    DAN_FLICKR30K,
    name="dan-coco-full",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
)
RECIPES = (
    DAN_FLICKR30K,
    DAN_COCO,
    *(scarce(DAN_FLICKR30K, percent, captions) for percent, captions in ((10, 5), (20, 5), (50, 2), (50, 5))),
    *(scarce(DAN_COCO, percent, captions) for percent, captions in ((10, 1), (50, 2))),
)

_SMALL = DANConfig(width=32, word_width=7, margin=1.0)
SMALL = (_SMALL, replace(_SMALL, steps=1, negatives="hardest", reduction="sum"))
