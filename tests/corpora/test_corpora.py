"""Every corpus: what each owes to those who build, read and publish it. A new one is asked the same of itself."""

import importlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from pipelines import stages
from pipelines.commands.data._faults import count, declaration_faults, file_faults, write_sample
from pipelines.demo.files import Unpublishable
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.publishing.dataset_card import CARDS
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.made import small
from xmodal import corpora
from xmodal.corpora import Corpus, load
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import ROWS, Caption, Item, Label, Row, Split
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

HERE = Path(__file__).parent


def published(name: str, folder: Path) -> Corpus:
    """The corpus in files that its publisher might have written."""
    corpus = write_sample(publisher_module(name), folder) if has_publisher(name) else None
    if corpus is None:
        pytest.skip(f"{name} has no publisher: see test_it_has_a_file_a_publisher_a_card_and_a_test")
    assert isinstance(corpus, Corpus)
    return corpus


def publisher_module(name: str) -> str:
    """A publisher lies with the demo, or with the tests if they alone need it."""
    modules = (f"pipelines.demo.{name}", f"tests.publishers.{name}")
    return next((module for module in modules if importlib.util.find_spec(module)), "")


def publisher(name: str) -> ModuleType:
    return importlib.import_module(publisher_module(name))


@pytest.fixture(scope="module", params=corpora.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def written(name: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, Path]:
    folder = tmp_path_factory.mktemp(name)
    return published(name, folder), folder


def rows(corpus: Corpus, folder: Path) -> Iterator[Row]:
    return corpus.parse(Raw.folder(folder))


def test_it_has_a_file_a_publisher_a_card_and_a_test(name: str) -> None:
    if lacking := missing(importlib.import_module(f"xmodal.corpora.{name}"), name):
        pytest.fail("\n".join([f"corpus {name} lacks", *(f"  - {what}" for what in lacking)]), pytrace=False)


def missing(module: ModuleType, name: str) -> list[str]:
    """What a new corpus still lacks, each with where it belongs."""
    test = HERE / f"test_{name}.py"
    text = test.read_text() if test.exists() else ""
    there = {
        f"CORPUS.name is {name!r}": getattr(getattr(module, "CORPUS", None), "name", None) == name,
        f"a publisher tests/publishers/{name}.py with write()": has_publisher(name),
        f"a card datasets_cards/{name}.md": (CARDS / f"{name}.md").exists(),
        f"its own tests in tests/corpora/test_{name}.py": bool(text),
        f"a property test in tests/corpora/test_{name}.py: any world comes back": (
            "@given(" in text and "comes_back" in text
        ),
    }
    return [what for what, is_there in there.items() if not is_there]


def has_publisher(name: str) -> bool:
    return publisher_module(name) != "" and "write" in vars(publisher(name))


def test_of_an_incomplete_corpus_everything_that_is_missing_is_named() -> None:
    told = missing(ModuleType("birdsong", "Songs of birds."), "birdsong")
    assert told == [
        "CORPUS.name is 'birdsong'",
        "a publisher tests/publishers/birdsong.py with write()",
        "a card datasets_cards/birdsong.md",
        "its own tests in tests/corpora/test_birdsong.py",
        "a property test in tests/corpora/test_birdsong.py: any world comes back",
    ]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(10, 30), st.sampled_from([0.0, 0.6]), st.sampled_from([2, 5, 10]))
def test_of_any_world_that_it_can_tell_of_every_item_and_caption_comes_back(
    name: str, seed: int, items: int, motion: float, captions: int
) -> None:
    """As its publisher counts them; its own test compares what they say."""
    if not has_publisher(name):
        pytest.skip(f"{name} has no publisher: see test_it_has_a_file_a_publisher_a_card_and_a_test")
    world = World(items, seed, 32, captions, motion=motion)
    with TemporaryDirectory() as folder:
        try:
            corpus: Corpus = publisher(name).write(world, folder)
        except Unpublishable:
            reject()
        assert count(corpus, Raw.folder(folder))["items"] == items


def test_what_it_declares_and_its_card_keep_the_contract(name: str) -> None:
    module = importlib.import_module(f"xmodal.corpora.{name}")
    assert list(declaration_faults(module, load(name))) == []


def test_its_rows_and_what_it_makes_of_damaged_files_keep_the_contract(written: tuple[Corpus, Path]) -> None:
    assert list(file_faults(*written)) == []


def test_it_has_captions_unless_nobody_described_its_items(written: tuple[Corpus, Path]) -> None:
    corpus, folder = written
    assert any(isinstance(row, Caption) for row in rows(corpus, folder)) or corpus.name == "visual_genome"


def test_every_stage_that_needs_no_network_works_on_it(written: tuple[Corpus, Path], tmp_path: Path) -> None:
    corpus, folder = written
    site = BuildOptions(open_storage(str(tmp_path)), raw=folder)
    done = {row["stage"]: row for row in build_stages(CorpusBuild(site, corpus), ["records", "media"])}
    output = Output(site.storage, f"records/{done['records']['identity']}")
    assert output.files.keys() >= {f"{table}.parquet" for table in ROWS}
    assert not build_stages(CorpusBuild(site, corpus), ["records"])[0]["built"]


WITHOUT_WEIGHTS = [
    kind.name for kind in stages.all() if "weights" not in kind.files and kind.name not in stages.DATA
]  # those with weights take long


@pytest.mark.parametrize("stage", WITHOUT_WEIGHTS)
def test_a_stage_works_on_it_or_says_what_it_has_not(stage: str, written: tuple[Corpus, Path], tmp_path: Path) -> None:
    corpus, folder = written
    found = list(rows(corpus, folder))
    has = {
        "pictures": any(isinstance(row, Item) and row.kind == "image" for row in found),
        "clips": any(isinstance(row, Item) and row.kind == "clip" for row in found),
        "labels of kind category": any(isinstance(row, Label) and row.kind == "category" for row in found),
        "human captions": any(isinstance(row, Caption) and row.source == "human" for row in found),
    }
    training = min(row.name for row in found if isinstance(row, Split) and row.name.endswith("/train"))
    splits = {f"{kind.name}.split": training for kind in stages.all() if hasattr(kind.config(), "split")}
    given = small(tmp_path)
    storage = open_storage(str(tmp_path / "root"))
    options = BuildOptions(storage, raw=folder, settings=given["settings"] | splits, files=given["files"])
    needed = {"image": "pictures", "clip": "clips", "category": "labels of kind category"}.get(
        stages.load(stage).of or "", ""
    )
    lacks = {thing for thing, is_there in has.items() if not is_there}
    work = CorpusBuild(options, corpus)
    if needed in lacks or ("human captions" in lacks and "media" not in stages.with_needs([stage])):
        with pytest.raises(UserError, match=f"^{corpus.name} has no ({'|'.join(lacks)})"):
            build_stages(work, [stage])
    else:
        assert build_stages(work, [stage])[0]["built"]


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"<html>sorry</html>"])
def test_a_file_that_is_something_else_is_named(written: tuple[Corpus, Path], tmp_path: Path, damage: bytes) -> None:
    """Each annotation file in turn; all others are links to what was written."""
    corpus, folder = written
    for source in corpus.sources:
        if source.part == "annotations":
            spoiled = tmp_path / source.path.replace("/", "-")
            shutil.copytree(folder, spoiled, copy_function=os.link)
            (spoiled / source.path).unlink()
            (spoiled / source.path).write_bytes(damage)
            with pytest.raises(UserError) as found:
                count(corpus, Raw.folder(spoiled))
            told = str(found.value)
            assert Path(source.path).name in told or f"{corpus.name}: a full parse must give" in told
