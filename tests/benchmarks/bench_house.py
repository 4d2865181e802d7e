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
from pipelines.stage_forms.media_stages import checksums
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

END = "03dc683"  # the last commit before what later issues add
NEW = (  # modules and definitions of END of what did not exist when there were 1,274,151 characters
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
)


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    with tempfile.TemporaryDirectory() as folder:
        counted = resolutions(Path(folder))
    name, most = counted.most_common(1)[0]
    against = f"one build of coco/{TARGET} on a generated world, such as {name}; the most of {len(counted)} counted"
    yield {"stage_resolutions": Measured(most, "times", against, (most,))}
    files = [path for package in ("xmodal", "pipelines") for path in (ROOT / package).rglob("*.py")]
    characters = sum(len(path.read_text()) for path in files)
    before = of_before()
    told = (
        f"what {END} has of what was 1,274,151 then, each definition as long as now or then; {characters:,} in all now"
    )
    yield {"source_characters": Measured(before, "", told, (before,))}
    failed = sum(subprocess.run([sys.executable, "-m", "pytest", "-q", test], cwd=ROOT).returncode for test in ADDING)
    told = "tests that add a stage, a command, a metric and a model by one file each, of which as many failed"
    yield {"other_files_edited": Measured(failed, "", told, (failed,))}
    yield house_first_step.measure()


def of_before() -> int:
    """Counts what existed before in characters of today.

    What later issues add to a definition does not count, and one that is gone counts as if it lay elsewhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", END, "xmodal", "pipelines"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        then, now = definitions(Path(folder)), definitions(ROOT)
    new = [name for name in then for each in NEW if name == each or name.startswith(f"{each}:")]
    sizes = {name: min(size, now.get(name, size)) for name, size in then.items()}
    return sum(sizes.values()) - sum(sizes[name] for name in new)


def definitions(root: Path) -> dict[str, int]:
    """Characters of each function and method, of what else a class has, and of what else a module has."""
    sizes = Counter[str]()
    for path in (path for package in ("xmodal", "pipelines") for path in (root / package).rglob("*.py")):
        module, text = str(path.relative_to(root)), path.read_text()
        lines, inner = text.splitlines(keepends=True), Counter[str]()

        def size_of(node: ast.stmt, lines: list[str] = lines) -> int:
            first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
            return sum(map(len, lines[first - 1 : node.end_lineno]))

        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                inner[f"{module}:{node.name}"] += size_of(node)
            elif isinstance(node, ast.ClassDef):
                methods = {each.name: size_of(each) for each in node.body if isinstance(each, ast.FunctionDef)}
                inner.update({f"{module}:{node.name}.{name}": size for name, size in methods.items()})
                inner[f"{module}:{node.name}"] += size_of(node) - sum(methods.values())
        sizes.update(inner)
        sizes[module] = len(text) - inner.total()
    return sizes


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
