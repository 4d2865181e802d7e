"""The toy root with tags of its scenes, as a tagger that errs gives them, and with the tags that captions name."""

from pathlib import Path

import numpy as np

from pipelines.engine.building import build
from pipelines.stages.concepts import ConceptsConfig
from pipelines.stages.tags import TagsConfig
from tests.made import concepts, tags
from tests.stages.test_resnet_stage import sealed
from tests.toy_root import FACTS, item_id, make_root, shown
from xmodal.models.sg import SGConfig
from xmodal.recipes import CONCEPTS, Features, Recipe, View
from xmodal.root.outputs import Output
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage

PLAIN = ConceptsConfig(expansion="none", items_per_shard=64)
WORDS = [word for fact in FACTS for word in (fact if isinstance(fact, tuple) else (fact,))]
SG = Recipe(
    name="sg-toy",
    cites="ours",
    view=View("pictures", "toy/train", captions_per_item=5),
    validation=View("pictures", "toy/val", captions_per_item=5),
    visual=Features("tags"),
    text=Features(CONCEPTS),
    model=SGConfig(),
    phases=(),
    batch_size=32,
)


def make_tagged_root(folder: Path, items: int = 60) -> tuple[str, Output, Output]:
    """The root, its tags, and its concepts."""
    root, random = make_root(folder, items), np.random.default_rng(0)
    lines = ["id\ttag\tscore"]
    for number in range(items):
        facts = [fact for fact, holds in zip(FACTS, shown(number), strict=True) if holds]
        told = {word for fact in facts for word in (fact if isinstance(fact, tuple) else (fact,))}
        scores = {word: (word in told) * 0.7 + 0.3 * random.random() for word in dict.fromkeys(WORDS)}
        lines += [f"{item_id(number)}\t{word}\t{score:.4f}" for word, score in scores.items()]
    (folder / "scores.tsv").write_text("\n".join(lines))
    storage = open_storage(root)
    pairs = tuple((item_id(number), f"{item_id(number)}.jpg") for number in range(items))
    media = sealed(storage, {}, "pictures")
    made = build(tags(media, pairs, TagsConfig(None), places=folder / "scores.tsv"), storage)
    return root, made, build(concepts(find_output(root, "records"), made, PLAIN), storage)
