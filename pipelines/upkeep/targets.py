"""Targets of a command: `coco` is the data of a corpus, `coco/resnet` one stage."""

import os
from collections.abc import Mapping, Sequence

from pipelines import stages
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.typed_settings import nearest
from pipelines.fetching.corpus_names import at_present, find_corpus, is_data
from pipelines.upkeep.corpus_build import CorpusBuild
from xmodal import corpora
from xmodal.errors import UserError

Target = tuple[CorpusBuild, list[str]]


def parse_targets(
    texts: Sequence[str], options: BuildOptions, flags: Mapping[str, str], is_sample: bool = False, now: bool = False
) -> list[Target]:
    """`flags` are those about your own data, read as it lies there `now`; a corpus named twice is opened once."""
    works: dict[str, CorpusBuild] = {}
    targets = []
    for text in texts:
        name, stage = _split(text, options)
        if name not in works:
            found = find_corpus(name, flags, options.storage, is_sample)
            if now:
                found, changed = at_present(found, options.storage)
                if changed:
                    options.progress.say(f"{found.corpus.name}: {changed}")
            works[name] = CorpusBuild(options, found.corpus, found)
        targets.append((works[name], [stage] if stage else [*stages.DATA]))
    return targets


def _split(text: str, options: BuildOptions) -> tuple[str, str]:
    """The corpus, and the stage or nothing."""
    name, _, stage = text.rpartition("/")
    known = stages.targets()
    if name and stage in known and (name in corpora.names() or not os.path.isdir(text)):
        return name, stage
    if "/" in text and not text.endswith(".py") and not is_data(text, {}, options.storage):
        meant = nearest(stage, {one: one for one in known})
        raise UserError(f"no stage {stage!r}{meant}; there are: {', '.join(known)}")
    return text, ""
