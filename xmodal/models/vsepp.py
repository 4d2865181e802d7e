"""VSE++ (Faghri et al., BMVC 2018) and VSE0, the same without mining: one vector an item, one vector a caption.

The official code (fartashf/vsepp abe382f) says what VSE++ is: docs/models.md#vsepp; VSE0: docs/models.md#vse0.

- Image: pooled CNN features, l2-normalised, one linear layer, l2-normalised again (not in VSE0). The official code for
  precomputed features leaves the first normalisation out: `normalise_features=False`.
- Text: word vectors, a uni-directional GRU of the joint width, its state after the last word, l2-normalised.
- Similarity: cosine, or that of order embeddings (docs/models.md#order).
- Loss: a hinge on every wrong text of an image and every wrong image of a text, as are two captions of one image. VSE++
  keeps the worst one of each query, VSE0 adds all up. Both SUM over the batch.
- Ours: features are those of one centre crop, and frames of a clip are averaged.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import normalize

from xmodal.batches.batch import ANNOTATED, Batch, Padded
from xmodal.batches.distributed import compare_gathered, gather_pairs
from xmodal.losses.ranking import Negatives, order_similarity, ranking_loss
from xmodal.models import Inputs
from xmodal.number_rules import known_choices, one_or_more, zero_or_more
from xmodal.recipes import Features, OnePerClass, Optimiser, Phase, Recipe, Step, Tokens, View, scarce


@dataclass(frozen=True)
class VSEPPConfig:
    """The defaults are VSE++."""

    width: int = 1024
    word_width: int = 300
    margin: float = 0.2
    negatives: Negatives = "hardest"
    similarity: Literal["cosine", "order"] = "cosine"
    normalise_features: bool = True
    normalise_image: bool = True
    takes_vectors: ClassVar = False

    def __post_init__(self) -> None:
        one_or_more(width=self.width, word_width=self.word_width)
        zero_or_more(margin=self.margin)
        known_choices(self)

    def build(self, inputs: Inputs) -> "VSEPP":
        return VSEPP(self, inputs)


class VSEPP(nn.Module):
    """Shapes: B rows, L positions, F features, D joint width."""

    def __init__(self, config: VSEPPConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.image = nn.Linear(inputs.visual_width, config.width)
        self.words = nn.Embedding(inputs.text_width, config.word_width)
        self.sentence = nn.GRU(config.word_width, config.width, batch_first=True)
        nn.init.xavier_uniform_(self.image.weight)
        nn.init.zeros_(self.image.bias)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def encode_visual(self, visual: Padded) -> Tensor:
        features_BF = visual.average()
        if self.config.normalise_features:
            features_BF = normalize(features_BF, dim=1)
        image_BD: Tensor = self.image(features_BF)
        return self._placed(normalize(image_BD, dim=1) if self.config.normalise_image else image_BD)

    def encode_text(self, text: Padded) -> Tensor:
        last_1BD = self.sentence(text.packed(self.words))[1]
        return self._placed(normalize(last_1BD[0], dim=1))

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T if self.config.similarity == "cosine" else order_similarity(visual, text)

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual, text = self.encode_visual(stream.visual), self.encode_text(stream.text)
        pairs, similarity_VT = gather_pairs(stream), compare_gathered(self.similarity, visual, text)
        return {"ranking": ranking_loss(similarity_VT, pairs, self.config.margin, self.config.negatives, "sum")}

    def _placed(self, vectors_BD: Tensor) -> Tensor:
        return vectors_BD.abs() if self.config.similarity == "order" else vectors_BD


VSEPP_COCO = Recipe(
    name="vsepp",
    cites="docs/models.md#vsepp; docs/models.md#vocabulary; docs/models.md#recall: 113,287 images, five captions",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    visual=Features("resnet"),
    text=Tokens("nltk", minimum_count=4),
    model=VSEPPConfig(),
    phases=(Phase(30, Optimiser("adam", 2e-4, clip_norm=2.0, schedule=Step((15,), 0.1)), {"ranking": 1.0}),),
    batch_size=128,
)
VSE0_COCO = replace(
    VSEPP_COCO, name="vse0", cites="docs/models.md#vse0", model=VSEPPConfig(negatives="all", normalise_image=False)
)
VSEPP_TGIF = replace(
    VSEPP_COCO,
    name="vsepp-tgif",
    cites="docs/models.md#vsepp; docs/models.md#frame-sampling; docs/models.md#vocabulary",
    view=View("tgif", "tgif/train", captions_per_item=1),
    validation=View("tgif", "tgif/val", captions_per_item=1),
    visual=Features("clips", frames=8, ends=6),
    text=Tokens("nltk", minimum_count=1),
)
VSEPP_MRW = replace(
    VSEPP_TGIF,
    name="vsepp-mrw",
    view=View("mrw", "mrw/train"),
    validation=View("mrw", "mrw/val"),
    visual=Features("clips", frames=4),
    text=Tokens("nltk", minimum_count=1, cleaning="mrw"),
)
VSE0_CUB = replace(
    VSE0_COCO,
    name="vse0-cub",
    cites="docs/models.md#vse0; docs/models.md#pcme-encoders: width; docs/models.md#pcme-training; together ours",
    view=View("cub", "pcme/train"),
    validation=View("cub", "pcme/val"),
    model=replace(VSE0_COCO.model, width=512),  # type: ignore[type-var]
    phases=(replace(VSE0_COCO.phases[0], sampler=OnePerClass()),),
    batch_size=150,  # one pair of each class
)
VSEPP_FLICKR30K = replace(
    VSEPP_COCO,
    name="vsepp-flickr30k-full",
    cites="docs/models.md#vsepp; docs/models.md#vocabulary; all else is that of vsepp, as its code has it",
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
)
SPARSE_COCO = replace(VSEPP_COCO, name="vsepp-coco")
RECIPES = (
    *(VSEPP_COCO, VSE0_COCO, VSEPP_TGIF, VSEPP_MRW, VSE0_CUB, VSEPP_FLICKR30K),
    *(scarce(VSEPP_FLICKR30K, percent, captions) for percent, captions in ((10, 5), (20, 5), (50, 2), (50, 5))),
    *(scarce(SPARSE_COCO, percent, captions) for percent, captions in ((10, 1), (50, 2))),
)

_SMALL = VSEPPConfig(width=32, word_width=7)
SMALL = (
    _SMALL,
    replace(_SMALL, negatives="all", normalise_image=False),
    replace(_SMALL, similarity="order", margin=0.05),
    replace(_SMALL, normalise_features=False),
)
