"""Recipes: every number of a training run, and the part of a corpus that it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from xmodal.number_rules import above_zero, known_choices, one_or_more, shares, zero_or_more
from xmodal.root.identity import DESCRIBES, since

if TYPE_CHECKING:
    from xmodal.models import Inputs, Scorer

FrameRule = Literal["official", "linspace"]
EVERY = "all"  # the items of all splits and of none
HUMAN = "human"  # the source of captions that people wrote of what they saw
UNRELATED_TEXT = "unrelated"  # the source of captions that people wrote too, but about something else
SENTENCES = "sentences"  # the stage of captions as vectors, and its array
CONCEPTS = "concepts"  # the stage of captions as numbers of tags
PHRASES = "phrases"  # the stage of phrases as vectors
OF_CAPTIONS = {SENTENCES, CONCEPTS, PHRASES}  # with a row a caption or phrase, none a picture or clip
WRITTEN = frozenset({HUMAN, UNRELATED_TEXT})


@dataclass(frozen=True)
class View:
    """The part of a corpus that one reader sees. See `xmodal.records.derived_splits` for the names of splits."""

    corpus: str
    split: str
    captions_per_item: int | None = None  # None is all of them, 5 the first five by position
    text: str = HUMAN  # the source of the captions; semantics/IDENTITY names one of several outputs

    def __post_init__(self) -> None:
        one_or_more(captions_per_item=self.captions_per_item)

    @property
    def source(self) -> str:
        return self.text.partition("/")[0]


class Config(Protocol):  # a model's frozen dataclass of plain values
    def build(self, inputs: "Inputs") -> "Scorer[Any, Any]": ...


@runtime_checkable
class Positional(Protocol):
    """A model's config that says whether its network chooses among an item's positions."""

    @property
    def looks_at_positions(self) -> bool: ...


@dataclass(frozen=True)
class Features:
    """Names the feature stage to read, of visual items or of texts that are vectors."""

    stage: str
    frames: int | None = None  # of a clip
    ends: int = 0  # frames dropped at both ends in evaluation
    rule: FrameRule = "official"
    method: str = since("0.2", "")  # of sentences: their codebook's, such as hglmm; "" is any
    network: str = since("0.2", "")  # of pictures: that of their features, such as resnet50; "" is any
    # the settings that a message says to build them with, as in the paper
    built: tuple[str, ...] = field(default=(), compare=False, metadata=DESCRIBES | {"given": True})

    def __post_init__(self) -> None:
        one_or_more(frames=self.frames)
        zero_or_more(ends=self.ends)
        if self.rule not in get_args(FrameRule):
            raise ValueError(f"no rule {self.rule!r} for frames; there are: {', '.join(get_args(FrameRule))}")


TEN_CROPS = Features(  # VGG-19's fc7, the mean of ten crops
    "features", built=("features.model=torchvision/vgg19", "features.output=fc7", "features.views=ten")
)


@runtime_checkable
class Classifying(Protocol):
    """A model's config that says whether its classes are those of the corpus, not its items."""

    @property
    def learns_identities(self) -> bool: ...


@runtime_checkable
class Learning(Protocol):
    """A model's config that says whether anything is learned from pairs; without this, all of them are."""

    @property
    def learns(self) -> bool: ...


@runtime_checkable
class StartingWords(Protocol):
    """A model's config that says whether its words may start from vectors; without this, they may."""

    @property
    def takes_vectors(self) -> bool: ...


@runtime_checkable
class Clustering(Protocol):
    """A model's config that says how many classes k-means makes of the training items; 0 is none."""

    @property
    def clusters(self) -> int: ...


def clusters_of(model: object) -> int:
    return model.clusters if isinstance(model, Clustering) else 0


def learns_classes(model: object) -> bool:
    """Whether a model's config has classes of the corpus or of k-means, not one for every item."""
    return (isinstance(model, Classifying) and model.learns_identities) or clusters_of(model) > 0


MOST_WORDS = 512  # of a caption, beside <start> and <end>: a batch is as wide as its longest one


@dataclass(frozen=True)
class Tokens:
    """Says how captions become word ids (`xmodal.text.tokenizers`)."""

    tokenizer: str
    minimum_count: int  # a word that occurs less often is unknown
    cleaning: str = "none"
    longest: int | None = None  # words that are read of a caption, if not MOST_WORDS; A3VSE: 57 on COCO
    vectors: str | None = None  # the published word vectors that the words start from
    marked: float = 0.0  # the share of words that training reads as unknown (PCME)
    deleted: float = 0.0  # the share of the others that training leaves out (PCME)

    def __post_init__(self) -> None:
        one_or_more(minimum_count=self.minimum_count, longest=self.longest)
        shares(marked=self.marked, deleted=self.deleted)
        if (self.longest or 1) > MOST_WORDS:
            raise ValueError(f"longest is at most {MOST_WORDS:,}, not {self.longest:,}")


@dataclass(frozen=True)
class Plateau:
    """Multiplies the rate when the validation rsum has not risen by 0.01 % for `patience` validations."""

    factor: float
    patience: int
    minimum: float = 0.0


@dataclass(frozen=True)
class Cosine:
    """Lowers the rate along half a wave, to zero after `epochs`; a phase may be shorter."""

    epochs: int


@dataclass(frozen=True)
class Step:
    """Multiplies the rate after each of these epochs of the phase."""

    after: tuple[int, ...]
    factor: float


Rule = Literal["adam", "amsgrad", "adamp", "sgd", "nesterov"]


@dataclass(frozen=True)
class Optimiser:
    """Says how parameters move. Patterns are those of `fnmatch` (`trunk.*`); the first match counts."""

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
        above_zero(learning_rate=self.learning_rate, clip_norm=self.clip_norm)
        zero_or_more(weight_decay=self.weight_decay, momentum=self.momentum)
        for pattern, factor in self.multipliers:
            zero_or_more(**{f"the multiplier of {pattern}": factor})
        if (self.rule == "nesterov" and not self.momentum) or (self.momentum and self.rule not in ("sgd", "nesterov")):
            raise ValueError(f"{self.rule} with momentum {self.momentum}: nesterov needs it, sgd may have it, no other")


@dataclass(frozen=True)
class Relative:
    """Weighs a term by factor * (term `to` / this term), held constant for the gradient (PVSE, figure 7)."""

    factor: float
    to: str

    def __post_init__(self) -> None:
        zero_or_more(factor=self.factor)


@dataclass(frozen=True)
class Neighbours:
    """Every pair of a batch brings other captions of its item, so many with its own (Two-Branch)."""

    captions: int

    def __post_init__(self) -> None:
        if type(self.captions) is not int or self.captions < 2:
            raise ValueError(f"captions is a whole number, 2 or more, not {self.captions!r}: one has no neighbours")


@dataclass(frozen=True)
class OnePerClass:
    """A batch is one pair of every class, whatever the batch size (PCME on CUB)."""


@dataclass(frozen=True)
class Candidates:
    """A batch brings `texts` random texts beside its pairs, among which a model finds hard negatives (Dual-Path)."""

    texts: int

    def __post_init__(self) -> None:
        one_or_more(texts=self.texts)


@dataclass(frozen=True)
class Phrases:
    """Draws region-phrase pairs by overlap with the phrase's box, which is positive too (Two-Branch)."""

    positive_overlap: float  # 1 takes the annotated box alone
    negative_overlap: float
    neighbours: int = 1  # positives that a row has at least
    # a positive for each phrase and all its negatives, or all positives and a negative for each
    draws: Literal["triplets", "pairs"] = "triplets"

    def __post_init__(self) -> None:
        shares(positive_overlap=self.positive_overlap, negative_overlap=self.negative_overlap)
        one_or_more(neighbours=self.neighbours)
        if self.negative_overlap > self.positive_overlap:
            raise ValueError(
                f"negative_overlap {self.negative_overlap} is above positive_overlap {self.positive_overlap}"
            )
        known_choices(self)


@dataclass(frozen=True)
class Pixels:
    """Says how pictures are cropped where the image network is trained too."""

    crop: Literal["resized", "random", "centre"]
    flip: bool
    jitter: bool = False  # colour, one draw a clip
    erase: float = 0.0  # the chance that a rectangle is erased
    evaluation: Literal["centre", "whole_and_flipped"] = "centre"

    def __post_init__(self) -> None:
        shares(erase=self.erase)
        known_choices(self)


@dataclass(frozen=True)
class Phase:
    """One phase of training, from the last weights of the phase before, with a fresh optimiser."""

    epochs: int
    optimiser: Optimiser
    weights: Mapping[str, float | Relative]
    frozen: tuple[str, ...] = ()  # patterns; in evaluation mode too, which a multiplier of 0 is not
    pixels: Pixels | None = None
    sampler: Neighbours | OnePerClass | Candidates | Phrases | None = None  # None: every pair once an epoch, shuffled
    validate_every: int = 1  # epochs
    patience: int | None = None  # validations without a higher rsum after which the phase ends early
    # an epoch has each caption once, or each item once with a caption that is drawn anew
    captions: Literal["each", "one"] = since("0.2", "each")

    def __post_init__(self) -> None:
        one_or_more(epochs=self.epochs, validate_every=self.validate_every, patience=self.patience)
        known_choices(self)
        if not any(self.weights.values()):
            raise ValueError("a phase needs a term to weigh, by more than 0")
        for name, weight in self.weights.items():
            if not isinstance(weight, int | float | Relative):
                raise ValueError(f"the weight of {name!r} is {weight!r}, no number")
            if not isinstance(weight, Relative):
                zero_or_more(**{f"the weight of {name!r}": weight})
            if isinstance(weight, Relative) and weight.to not in self.weights.keys() - {name}:
                raise ValueError(f"{name!r} is weighed relative to {weight.to!r}, which is no other term of the phase")


@dataclass(frozen=True)
class Recipe:
    """Every number of one run. Weights are chosen on `validation`, never on a test split."""

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

    @property
    def reads_phrases(self) -> bool:
        """Whether it compares regions with phrases, not items with captions."""
        return isinstance(self.text, Features) and self.text.stage == PHRASES

    def __post_init__(self) -> None:
        where = f"recipe {self.name!r}"
        one_or_more(batch_size=self.batch_size)
        zero_or_more(seed=self.seed)
        if self.precision not in ("single", "mixed"):
            raise ValueError(f"{where}: no precision {self.precision!r}; there are: single, mixed")
        for view in (self.view, self.validation, self.unannotated):
            if view is not None and "test" in view.split.lower():
                raise ValueError(f"{where} would train or choose on split {view.split!r}")
        if self.unannotated is not None and self.unannotated.source == HUMAN:
            raise ValueError(f"{where}: the un-annotated stream must not read what people wrote")


LONGER = {50: 1.2, 20: 2.0, 10: 2.5, 5: 2.5}  # by percent of the items; for 5 no paper tells


def scarce(recipe: Recipe, percent: int, captions: int) -> Recipe:
    """A baseline on a share of its items, trained for more epochs (docs/models.md#sparse-splits)."""
    return replace(
        recipe,
        name=f"{recipe.name.removesuffix('-full')}-{percent}-{captions}",
        cites=f"{recipe.cites}; docs/models.md#sparse-splits: the share, and its epochs",
        view=replace(recipe.view, split=f"{recipe.view.split}@{percent}%x{captions}"),
        phases=tuple(_lengthened(phase, LONGER[percent]) for phase in recipe.phases),
    )


def _lengthened(phase: Phase, times: float) -> Phase:
    optimiser = phase.optimiser
    if isinstance(optimiser.schedule, Step):
        after = tuple(round(times * epoch) for epoch in optimiser.schedule.after)
        optimiser = replace(optimiser, schedule=replace(optimiser.schedule, after=after))
    return replace(phase, epochs=round(times * phase.epochs), optimiser=optimiser)


@dataclass(frozen=True)
class DetectorRecipe:
    """Every number of one training of the small detector (xmodal/detectors/small_faster_rcnn.py)."""

    name: str = field(default="detector", metadata={"given": True})
    corpus: str = field(default="visual_genome", metadata={"given": True})  # --corpus names another one
    split: str = ""  # to train on; by default the only one named train
    validation: str = ""  # to measure on; by default the one named val beside it
    least_count: int = 1  # regions of the training split that a class or an attribute has at least
    side: int = 128  # pixels to which the longer side of a picture is resized
    width: int = 12  # of the first convolution
    feature: int = 128  # numbers of a region's feature
    anchors: tuple[float, ...] = (0.13, 0.19, 0.27)  # their sides, as shares of `side`
    proposals: int = 20  # regions of a picture at most
    regions: int = 16  # of a picture that are trained on, half of them things if there are enough
    steps: int = 900
    batch_size: int = 8  # pictures
    learning_rate: float = 5e-3  # the highest
    class_weight: float = 2.0  # of the loss of classes, which are learned last; the other four have 1
    clip_norm: float = 5.0
    flip: bool = True  # half of the pictures, left to right
    seed: int = 0

    def __post_init__(self) -> None:
        one_or_more(least_count=self.least_count, regions=self.regions, steps=self.steps, batch_size=self.batch_size)
        above_zero(learning_rate=self.learning_rate, class_weight=self.class_weight, clip_norm=self.clip_norm)
        zero_or_more(seed=self.seed)
        if self.regions < 2:
            raise ValueError(f"regions is 2 or more, a thing and a background, not {self.regions}")
        for split in (self.split, self.validation):
            if "test" in split.lower():
                raise ValueError(f"the detector would train or be measured on split {split!r}")
