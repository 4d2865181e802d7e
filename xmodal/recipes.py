"""Recipes: every number of one training run, and which part of a corpus it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from xmodal.root.identity import DESCRIBES

if TYPE_CHECKING:
    from xmodal.models import Inputs, Scorer

FrameRule = Literal["official", "linspace"]
EVERY = "all"  # the items of all splits and of none
HUMAN = "human"  # the source of captions that people wrote of what they saw
UNRELATED_TEXT = "unrelated"  # the source of captions that people wrote too, but about something else
WRITTEN = frozenset({HUMAN, UNRELATED_TEXT})


@dataclass(frozen=True)
class View:
    """What one reader sees of a corpus: `captions_per_item` None is all of them, 5 the first five by position.

    `text` is the source of the captions. Sparse corpora are views too: their splits name the part that is annotated,
    "karpathy/train@10%x2", or the one that is not (`xmodal.records.derived_splits`).
    """

    corpus: str
    split: str
    captions_per_item: int | None = None
    text: str = HUMAN

    def __post_init__(self) -> None:
        if self.captions_per_item is not None and self.captions_per_item < 1:
            raise ValueError(f"captions_per_item is None or at least 1, not {self.captions_per_item}")


class Config(Protocol):  # a model's frozen dataclass of plain values
    def build(self, inputs: "Inputs") -> "Scorer[Any, Any]": ...


@runtime_checkable
class Positional(Protocol):
    """A config that says whether its network chooses among an item's positions, which takes more than one."""

    @property
    def looks_at_positions(self) -> bool: ...


@dataclass(frozen=True)
class Features:
    """The feature stage that is read, for texts too where they are vectors (Fisher vectors, concept scores)."""

    stage: str
    frames: int | None = None  # of a clip
    ends: int = 0  # frames dropped at both ends in evaluation
    rule: FrameRule = "official"

    def __post_init__(self) -> None:
        if self.ends < 0 or (self.frames is not None and self.frames < 1):
            raise ValueError(f"frames are 1 or more, and ends 0 or more, not {self.frames} and {self.ends}")
        if self.rule not in get_args(FrameRule):
            raise ValueError(f"no rule {self.rule!r} for frames; there are: {', '.join(get_args(FrameRule))}")


@dataclass(frozen=True)
class Tokens:
    """Captions as word ids (`xmodal.text.tokenizers`). Only in training, words are marked as unknown, then others
    deleted (PCME).

    Of a caption of more than `longest` words the first ones are read, and <start> and <end> beside them: A3VSE reads 57
    on COCO and 82 on Flickr30k, also of what was detected.
    """

    tokenizer: str
    minimum_count: int
    cleaning: str = "none"
    longest: int | None = None
    vectors: str | None = None
    marked: float = 0.0
    deleted: float = 0.0

    def __post_init__(self) -> None:
        if self.minimum_count < 1 or (self.longest is not None and self.longest < 1):
            raise ValueError(f"minimum_count {self.minimum_count} and longest {self.longest} are 1 or more")
        if not (0 <= self.marked <= 1 and 0 <= self.deleted <= 1):
            raise ValueError(f"marked {self.marked} and deleted {self.deleted} are shares, from 0 to 1")


@dataclass(frozen=True)
class Plateau:
    """Multiplies the rate when the validation rsum has not risen, by 0.01 %, for `patience` validations."""

    factor: float
    patience: int
    minimum: float = 0.0


@dataclass(frozen=True)
class Cosine:
    """Half a wave down to zero; a phase may be shorter than the wave."""

    epochs: int


@dataclass(frozen=True)
class Step:
    """Multiplies the rate after each of these epochs of the phase."""

    after: tuple[int, ...]
    factor: float


Rule = Literal["adam", "amsgrad", "adamp", "sgd", "nesterov"]


@dataclass(frozen=True)
class Optimiser:
    """How parameters move. Patterns match names as `fnmatch` does (`trunk.*`); the first that matches counts."""

    rule: Rule
    learning_rate: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip_norm: float | None = None
    unclipped: tuple[str, ...] = ()  # left out of the norm too (PCME's scale and shift)
    multipliers: tuple[tuple[str, float], ...] = ()  # pairs, not a mapping, because their order decides
    schedule: Plateau | Cosine | Step | None = None

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ValueError(f"no optimiser {self.rule!r}; there are: {', '.join(get_args(Rule))}")
        if self.learning_rate <= 0 or (self.clip_norm is not None and self.clip_norm <= 0):
            raise ValueError(f"learning_rate {self.learning_rate} and clip_norm {self.clip_norm} must be above zero")
        if (self.rule == "nesterov" and not self.momentum) or (self.momentum and self.rule not in ("sgd", "nesterov")):
            raise ValueError(
                f"{self.rule} with momentum {self.momentum}: nesterov needs one, sgd may have one, no other"
            )


@dataclass(frozen=True)
class Relative:
    """A weight of factor * (term `to` / this term), held constant for the gradient (PVSE, figure 7)."""

    factor: float
    to: str


@dataclass(frozen=True)
class Neighbours:
    """Every item of a batch brings so many different captions (Two-Branch)."""

    captions: int


@dataclass(frozen=True)
class OnePerClass:
    """A batch is one pair of every class, whatever the recipe's batch size (PCME on CUB)."""


@dataclass(frozen=True)
class Candidates:
    """Half the visual rows are paired, half are not; each pair brings `texts` texts of other items (Dual-Path)."""

    texts: int


@dataclass(frozen=True)
class Phrases:
    """Region-phrase pairs by overlap with the phrase's box; a row has `neighbours` positives or more (Two-Branch)."""

    positive_overlap: float  # 1 takes the annotated box alone
    negative_overlap: float
    neighbours: int


@dataclass(frozen=True)
class Pixels:
    """How pictures are cut where a phase trains the trunk too; not a yes or no, because papers differ in it."""

    crop: Literal["resized", "random", "centre"]
    flip: bool
    jitter: bool = False  # colour, one draw a clip
    erase: float = 0.0  # the chance that a rectangle is erased
    evaluation: Literal["centre", "whole_and_flipped"] = "centre"


@dataclass(frozen=True)
class Phase:
    """Starts from the last weights of the phase before, with a fresh optimiser."""

    epochs: int
    optimiser: Optimiser
    weights: Mapping[str, float | Relative]
    frozen: tuple[str, ...] = ()  # patterns; in evaluation mode too, which a multiplier of 0 is not
    pixels: Pixels | None = None
    sampler: Neighbours | OnePerClass | Candidates | Phrases | None = None  # None: every pair once an epoch, shuffled
    validate_every: int = 1  # epochs
    patience: int | None = None  # validations without a higher rsum after which the phase ends early

    def __post_init__(self) -> None:
        if min(self.epochs, self.validate_every, self.patience or 1) < 1 or self.patience == 0 or not self.weights:
            raise ValueError("a phase needs epochs, validate_every and patience of 1 or more, and a term to weigh")
        for name, weight in self.weights.items():
            if isinstance(weight, Relative) and weight.to not in self.weights.keys() - {name}:
                raise ValueError(f"{name!r} is weighed relative to {weight.to!r}, which is no other term of the phase")


@dataclass(frozen=True)
class Recipe:
    """Every number a paper would print of one run. No test split: what is chosen is chosen on `validation`."""

    name: str
    cites: str = field(compare=False, metadata=DESCRIBES)  # the section its numbers come from, or that they are ours
    view: View
    validation: View
    visual: Features
    text: Tokens | Features
    model: Config
    phases: tuple[Phase, ...]  # none for a closed form, or for what needs no fitting
    batch_size: int  # pairs, in each stream
    seed: int = 0
    unannotated: View | None = None  # the second stream (A3VSE)
    precision: Literal["single", "mixed"] = "single"  # mixed: matrix products in bfloat16

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.precision not in ("single", "mixed"):
            raise ValueError(f"recipe {self.name!r}: batch_size {self.batch_size} must be 1 or more, precision known")
        if self.seed < 0:
            raise ValueError(f"recipe {self.name!r}: seed {self.seed} must be 0 or more")
        for view in (self.view, self.validation, self.unannotated):
            if view is not None and "test" in view.split.lower():
                raise ValueError(f"recipe {self.name!r} would train or choose on split {view.split!r}")
        if self.unannotated is not None and self.unannotated.text == "human":
            raise ValueError(f"recipe {self.name!r}: the un-annotated stream must not read what people wrote")
