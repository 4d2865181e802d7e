"""The house: what adding a thing takes, how large the source is, and how straight the way to a first step is."""

import ast
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pipelines import stages
from pipelines.demo.coco import write
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.fetching.sealing import FileSet
from pipelines.stages._media import checksums
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.benchmarks import house_first_step
from tests.benchmarks.measured import Bar, Measured
from tests.made import small
from xmodal.root.storage import open_storage

BARS = {
    "stage_resolutions": Bar(maximum=1),
    "source_characters": Bar(maximum=1_100_000),
    "other_files_edited": Bar(maximum=0),
    **house_first_step.BARS,
}
TARGET = "resnet"
ROOT = Path(__file__).parents[2]
ADDING = (  # tests that add one file of a kind, and use what it defines
    "tests/stages/test_discovery.py",
    "tests/commands/test_commands.py",
    "tests/metrics/test_adding_a_metric.py",
    "tests/models/test_user_models.py",
)

NEW = (  # modules and definitions of what did not exist then
    "xmodal/checks/model_contract.py",
    "xmodal/checks/corpus_contract.py",
    "xmodal/corpora/__init__.py:sample_of",
    "xmodal/root/identity.py:since",
    "xmodal/models/__init__.py:source_of",
    "xmodal/training/fit.py:_check_terms",
    "pipelines/commands/data/check.py",
    "pipelines/commands/data/_faults.py",
    "pipelines/commands/installation/settings.py",
    "pipelines/commands/installation/completion.py",
    "pipelines/commands/models/recipes_.py",
    "pipelines/commands/__init__.py:_load",
    "pipelines/fetching/corpus_names.py:name_of",
    "pipelines/fetching/corpus_names.py:_of_noted_file",
    "pipelines/fetching/corpus_names.py:remember_generated",
    "pipelines/upkeep/machine.py:_stages",
    # reading what was committed, and pictures with a deadline
    "xmodal/root/checked_files.py",
    "pipelines/engine/picture_decoder.py",
    "pipelines/upkeep/pruning.py",
    "pipelines/commands/data/prune.py",
    "xmodal/root/outputs.py:is_sound",
    "xmodal/root/outputs.py:_names_outputs",
    "xmodal/root/sealed_sets.py:open_sealed",
    "xmodal/root/storage.py:_check_folder",
    "xmodal/root/storage.py:_check_key",
    "xmodal/root/storage.py:_check_size",
    "xmodal/root/storage.py:_open_regular",
    "xmodal/progress.py:printable",
    "pipelines/engine/building.py:taint",
    "pipelines/engine/building.py:drop_tainted",
    "pipelines/engine/building.py:reads",
    "pipelines/engine/commits.py:taint",
    "pipelines/engine/commits.py:tainted",
    "pipelines/fetching/ledger.py:later",
    "pipelines/stages/__init__.py:_check_config",
    "pipelines/stages/fingerprints.py:looks",
    # lists and pictures that change, and links out of a folder
    "pipelines/fetching/list_changes.py",
    *(f"pipelines/fetching/corpus_names.py:{name}" for name in ("at_present", "_as_it_lies", "changes", "_changes")),
    *(f"pipelines/fetching/corpus_files.py:{name}" for name in ("_take_changed_media", "_is_linked")),
    *(f"pipelines/fetching/fetcher.py:{name}" for name in ("takes", "link_out")),
    "pipelines/fetching/ledger.py:looks_like",
    # inputs that people have
    "pipelines/fetching/corpus_files.py:_with_unpacked",
    "pipelines/fetching/corpus_files.py:_unpacked_members",
    "pipelines/fetching/user_lists.py:_folder_of_paths",
    "xmodal/raw/archives.py:unzipped",
    "xmodal/raw/readers.py:_json",
    "xmodal/userdata/entries.py:is_below",
    "xmodal/userdata/entries.py:_labels",
    "xmodal/text/vocabularies.py:_unpickled_or_lines",
    "xmodal/batches/texts.py:shortened",
    "xmodal/batches/examples.py:note_of_cuts",
)


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    with tempfile.TemporaryDirectory() as folder:
        counted = resolutions(Path(folder))
    name, most = counted.most_common(1)[0]
    against = f"one build of coco/{TARGET} on a generated world, such as {name}; the most of {len(counted)} counted"
    yield {"stage_resolutions": Measured(most, "times", against, (most,))}
    files = [path for package in ("xmodal", "pipelines") for path in (ROOT / package).rglob("*.py")]
    characters = sum(len(path.read_text()) for path in files)
    before = characters - sum(map(_characters_of, NEW))
    told = f"{len(files)} modules of both packages, {characters:,}, without what is new since it was 1,274,151"
    yield {"source_characters": Measured(before, "", told, (before,))}
    failed = sum(subprocess.run([sys.executable, "-m", "pytest", "-q", test], cwd=ROOT).returncode for test in ADDING)
    told = "tests that add a stage, a command, a metric and a model by one file each, of which as many failed"
    yield {"other_files_edited": Measured(failed, "", told, (failed,))}
    yield house_first_step.measure()


def _characters_of(new: str) -> int:
    """A module, or one definition in it."""
    path, _, name = new.partition(":")
    text = (ROOT / path).read_text()
    if not name:
        return len(text)
    (found,) = [node for node in ast.walk(ast.parse(text)) if getattr(node, "name", None) == name]
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[found.lineno - 1 : found.end_lineno]))  # type: ignore[attr-defined]


def resolutions(folder: Path) -> Counter[str]:
    """How often a build into an empty root did each of these things in its driver.

    A stage is made; the list of a sealed set's files is hashed, the set looked up, and its lock read; annotations are
    parsed for rows, or for a list of media; the items of the records are read.
    """
    counted = Counter[str]()
    corpus = write(World(items=24, image_size=32), folder / "publisher")
    parse = corpus.parse

    def counted_parse(raw: Any) -> Any:
        counted["annotations parsed"] += 1
        return parse(raw)

    options = BuildOptions(open_storage(str(folder / "root")), raw=folder / "publisher", **small(folder))
    watched: dict[CodeType, Callable[[FrameType], str]] = {
        kind.make.__code__: lambda frame, name=kind.name: f"stage {name} made"  # type: ignore[misc]
        for kind in stages.all()
    }
    watched[FileSet.planned.func.__code__] = lambda frame: f"list of {frame.f_locals['self'].part} hashed"
    watched[FileSet.sealed.func.__code__] = lambda frame: f"{frame.f_locals['self'].part} looked up"
    watched[checksums.__wrapped__.__code__] = lambda frame: f"lock of {frame.f_locals['sealed'].stage} read"
    watched[CorpusBuild._items.func.__code__] = lambda frame: "items read"
    with _counting(watched, counted):
        build_stages(CorpusBuild(options, replace(corpus, parse=counted_parse)), [TARGET])
    return counted


@contextmanager
def _counting(watched: dict[CodeType, Callable[[FrameType], str]], counted: Counter[str]) -> Iterator[None]:
    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in watched:
            counted[watched[frame.f_code](frame)] += 1

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
