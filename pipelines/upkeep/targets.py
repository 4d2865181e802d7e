"""Targets of a command: `coco` is the data of a corpus, `coco/resnet` one stage; mine.py or your own data will do."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from pipelines import stages
from pipelines.engine.build_options import BuildOptions
from pipelines.fetching import generated_publishers, user_lists
from pipelines.upkeep.corpus_build import CorpusBuild
from xmodal import corpora
from xmodal.errors import UserError

Target = tuple[CorpusBuild, list[str]]  # what to build, or to ask about, of a corpus


def parse_targets(texts: Sequence[str], options: BuildOptions, flags: Mapping[str, str]) -> list[Target]:
    """`flags` are those about the columns of your own data; a corpus that is named twice is opened once."""
    works: dict[str, CorpusBuild] = {}
    targets = []
    for text in texts:
        name, stage = _split(text, options)
        if name not in works:
            works[name] = open_corpus(name, options, flags)
        targets.append((works[name], [stage] if stage else [*stages.DATA]))
    return targets


def open_corpus(name: str, options: BuildOptions, flags: Mapping[str, str]) -> CorpusBuild:
    """The corpus of a name, a Python file or your own data, with options that say where its files lie.

    In a folder that no flag named archives are not searched.
    """
    storage, is_known = options.storage, name in corpora.names()
    if not is_known and user_lists.is_data(name, flags, storage):
        found = user_lists.describe(name, flags, storage)
        options = options if options.raw else replace(options, raw=found.folder, archives=False)
        return CorpusBuild(replace(options, places=found.places, list_at=found.place), found.corpus)
    if flags:
        raise UserError(
            f"--{next(iter(flags))} is for data of your own: a list, a folder or hf://…, which {name} is not"
        )
    if is_known:
        generated = generated_publishers.recall(storage, corpora.load(name))
        if generated and not options.raw:
            return CorpusBuild(replace(options, raw=generated.folder, archives=False), generated.corpus)
        return CorpusBuild(options, generated.corpus if generated else corpora.load(name))
    if name.endswith(".py"):
        return CorpusBuild(options, corpora.load(name))
    if known := user_lists.remembered(storage, name):
        folder = None if options.raw else user_lists.folder_of(storage, name)
        return CorpusBuild(replace(options, raw=folder, archives=False) if folder else options, known)
    if meant := _meant(name, [*corpora.names(), *user_lists.names(storage)]):
        raise UserError(f"no corpus {name!r}{meant}")
    return CorpusBuild(options, corpora.load(name))  # which says what there is


def _split(text: str, options: BuildOptions) -> tuple[str, str]:
    """The corpus, and the stage or nothing."""
    name, _, stage = text.rpartition("/")
    is_folder = os.path.isdir(text) and name not in corpora.names()
    if name and stage in stages.targets() and not is_folder:
        return name, stage
    if "/" in text and not text.endswith(".py") and not user_lists.is_data(text, {}, options.storage):
        question = _meant(stage, stages.targets())
        there = f"{' There' if question else '; there'} are: {', '.join(stages.targets())}"
        raise UserError(f"no stage {stage!r}{question}{there}")
    return text, ""


def _meant(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
