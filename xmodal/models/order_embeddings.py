"""Order embeddings (Vendrov et al., ICLR 2016): a caption is more general than its image, coordinate by coordinate.

docs/models.md#order-original says what is built here; VSE++'s variant is a setting of `vsepp`: docs/models.md#order.

- Image: features as they are, averaged over positions or frames; one linear layer, l2-normalised, absolute values.
- Caption: word vectors, a uni-directional GRU of the joint width, its last state, l2-normalised, absolute values.
- Similarity: minus the squared length of what the caption has beyond the image, -|[caption - image]+|^2.
- Loss: a hinge on every wrong caption of an image and every wrong image of a caption, summed.
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
from xmodal.recipes import Features, Optimiser, Phase, Recipe, Tokens, View


@dataclass(frozen=True)
class OrderConfig:
    """The defaults are the original."""

    width: int = 1024
    word_width: int = 300
    margin: float = 0.05
    negatives: Negatives = "all"
    violation: Literal["squared", "root"] = "squared"  # VSE++ and PVSE take the root
    takes_vectors: ClassVar = False

    def __post_init__(self) -> None:
        one_or_more(width=self.width, word_width=self.word_width)
        zero_or_more(margin=self.margin)
        known_choices(self)

    def build(self, inputs: Inputs) -> "OrderEmbeddings":
        return OrderEmbeddings(self, inputs)


class OrderEmbeddings(nn.Module):
    """Shapes: B rows, D joint width, V visual rows, T text rows."""

    def __init__(self, config: OrderConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.image = nn.Linear(inputs.visual_width, config.width)
        self.words = nn.Embedding(inputs.text_width, config.word_width)
        self.sentence = nn.GRU(config.word_width, config.width, batch_first=True)
        nn.init.xavier_uniform_(self.image.weight)
        nn.init.zeros_(self.image.bias)
        nn.init.normal_(self.words.weight, std=0.01)

    def encode_visual(self, visual: Padded) -> Tensor:
        return normalize(self.image(visual.average()), dim=1).abs()

    def encode_text(self, text: Padded) -> Tensor:
        last_1BD = self.sentence(text.packed(self.words))[1]
        return normalize(last_1BD[0], dim=1).abs()

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        root_VT = order_similarity(visual, text)
        return root_VT if self.config.violation == "root" else -root_VT.square()

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        stream = batch.streams[ANNOTATED]
        visual, text = self.encode_visual(stream.visual), self.encode_text(stream.text)
        pairs, similarity_VT = gather_pairs(stream), compare_gathered(self.similarity, visual, text)
        return {"ranking": ranking_loss(similarity_VT, pairs, self.config.margin, self.config.negatives, "sum")}


ADAM = Optimiser("adam", 1e-3, clip_norm=2.0)
ORDER_COCO = Recipe(
    name="order-coco",
    cites="docs/models.md#order-original; docs/models.md#vocabulary; docs/models.md#recall",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    visual=Features("resnet"),
    text=Tokens("nltk", minimum_count=4),
    model=OrderConfig(),
    phases=(Phase(20, ADAM, {"ranking": 1.0}),),
    batch_size=128,
)
ORDER_FLICKR30K = replace(
    ORDER_COCO,
    name="order-flickr30k",
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
)
ORDER_TGIF = replace(
    ORDER_COCO,
    name="order-tgif",
    cites="docs/models.md#order-original; docs/models.md#frame-sampling; docs/models.md#vocabulary; epochs are PVSE's",
    view=View("tgif", "tgif/train", captions_per_item=1),
    validation=View("tgif", "tgif/val", captions_per_item=1),
    visual=Features("clips", frames=8, ends=6),
    text=Tokens("nltk", minimum_count=1),
    phases=(Phase(50, ADAM, {"ranking": 1.0}),),
)
ORDER_MRW = replace(
    ORDER_TGIF,
    name="order-mrw",
    view=View("mrw", "mrw/train"),
    validation=View("mrw", "mrw/val"),
    visual=Features("clips", frames=4),
    text=Tokens("nltk", minimum_count=1, cleaning="mrw"),
)
RECIPES = (ORDER_COCO, ORDER_FLICKR30K, ORDER_TGIF, ORDER_MRW)

_SMALL = OrderConfig(width=32, word_width=7)
SMALL = (_SMALL, replace(_SMALL, violation="root", negatives="hardest"))
