"""The baseline s_g of A3VSE (section 4.2): tags of the image against the tags that a caption names; nothing is learned.

What the paper leaves open is in docs/models.md#concept-baseline, and of the tags in docs/models.md#image-tags.

- Image: s_g, the scores of its tags (the tags stage). The paper has 16,500 tags; here those of the sources one has.
- Text: q, a one for each tag that a word of the caption, widened by WordNet's synonyms, names (the concepts stage).
- Similarity: `s_g' q`, the sum of the image's scores of these tags. A caption that names no tag scores zero with all.
- Ours: captions come as numbers of their tags, from 1; 0 is no tag.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

from xmodal.batches.batch import Padded
from xmodal.models import Inputs
from xmodal.recipes import CONCEPTS, Features, Recipe, View


@dataclass(frozen=True)
class SGConfig:
    learns: ClassVar = False

    def build(self, inputs: Inputs) -> "SG":
        return SG()


class SG(nn.Module):
    """Shapes: V images, T captions, L numbers of a caption, C tags."""

    def encode_visual(self, visual: Padded) -> Tensor:
        return visual.average()

    def encode_text(self, text: Padded) -> Tensor:
        return text.zero_padded().long()

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        scores_CV = pad(visual, (1, 0)).T.contiguous()  # by number, of which 0 is no tag
        products_TV: Tensor = embedding_bag(text, scores_CV, mode="sum", padding_idx=0)
        return products_TV.T


SG_COCO = Recipe(
    name="sg-coco",
    cites="docs/models.md#image-tags; docs/models.md#concept-baseline",
    view=View("coco", "karpathy/train", captions_per_item=5),
    validation=View("coco", "karpathy/val", captions_per_item=5),
    visual=Features("tags"),
    text=Features(CONCEPTS),
    model=SGConfig(),
    phases=(),
    batch_size=128,
)
SG_FLICKR30K = replace(
    SG_COCO,
    name="sg-flickr30k",
    view=View("flickr30k", "karpathy/train", captions_per_item=5),
    validation=View("flickr30k", "karpathy/val", captions_per_item=5),
)
RECIPES = (SG_COCO, SG_FLICKR30K)
