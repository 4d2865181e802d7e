"""Plausible matches: what a plain loop over all pairs finds, however they are kept and wherever they are reckoned."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.demo.coco import pictures, write
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.ray_runner import RayRunner, disconnect
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.conftest import tree_digest
from xmodal.errors import UserError
from xmodal.metrics.plausible_matches import FAR, LabelSets, PlausibleMatches
from xmodal.records.tables import Label
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

WORLD = World(items=40, image_size=32)
NAMES = [f"c{number:02d}" for number in range(90)]  # more than one word of bits
LABELS = st.dictionaries(
    st.integers(0, 99).map("i{:02d}".format), st.lists(st.sampled_from(NAMES), max_size=5, unique=True), max_size=40
)


def levels(labels: Mapping[str, list[str]]) -> dict[tuple[str, str], int]:
    """By the definition."""
    shown = {item: set(names) for item, names in labels.items() if names}
    return {(one, other): len(shown[one] ^ shown[other]) for one in shown for other in shown}


@settings(max_examples=60, deadline=None)
@given(LABELS)
def test_every_match_and_no_other_is_found_with_its_level(labels: dict[str, list[str]]) -> None:
    expected, found = levels(labels), PlausibleMatches.of(LabelSets.of(labels))
    ids = sorted(item for item, names in labels.items() if names)
    assert list(found.ids) == ids
    for zeta in (0, 1, 2):
        assert found.count(zeta) == sum(level <= zeta for level in expected.values())
        for one in labels:
            near = {other: expected[one, other] for other in ids if expected.get((one, other), FAR) <= zeta}
            assert found.matches(one, zeta) == near
    if ids:
        rows, columns = np.arange(len(ids))[::-1], np.repeat(np.arange(len(ids)), 2)
        tile = [[min(expected[ids[row], ids[column]], FAR) for column in columns] for row in rows]
        np.testing.assert_array_equal(found.tile(rows, columns), tile)


def test_zeta_counts_labels_that_differ_not_labels_that_are_shared() -> None:
    found = PlausibleMatches.of(LabelSets.of({"a": ["cat"], "b": ["dog"], "c": ["cat", "dog"], "d": [], "e": ["cat"]}))
    assert found.matches("a") == {"a": 0, "e": 0}
    assert found.matches("a", 1) == {"a": 0, "c": 1, "e": 0}
    assert found.matches("a", 2) == {"a": 0, "b": 2, "c": 1, "e": 0}
    assert found.matches("d", 2) == {}, "without labels it would match all others that have none"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    write(WORLD, folder)
    return folder


def built(published: Path, root: Path, site: BuildOptions | None = None) -> Output:
    site = site or BuildOptions(open_storage(str(root)), raw=published, settings={"plausible.sets_per_unit": 3})
    (row,) = build_stages(CorpusBuild(site, write(WORLD, root.with_name("again"))), ["plausible"])
    return Output(site.storage, f"plausible/{row['identity']}")


def test_a_corpus_is_expanded_from_what_it_says_it_shows(published: Path, tmp_path: Path) -> None:
    output = built(published, tmp_path / "root")
    found = PlausibleMatches.read(output)
    shown = {
        str(picture.cocoid): sorted({thing.kind for thing in picture.scene.things})
        for picture in pictures(WORLD)
        if picture.annotated
    }
    expected = levels(shown)
    assert list(found.ids) == sorted(shown)
    assert found.count(2) == sum(level <= 2 for level in expected.values())
    for item in shown:
        assert found.matches(item, 2) == {
            other: expected[item, other] for other in sorted(shown) if expected[item, other] <= 2
        }


def test_workers_give_the_same_bytes(published: Path, tmp_path: Path) -> None:
    alone = built(published, tmp_path / "alone")
    try:
        site = BuildOptions(
            open_storage(str(tmp_path / "ray")),
            run=RayRunner(workers=2),
            raw=published,
            settings={"plausible.sets_per_unit": 3},
        )
        together = built(published, tmp_path / "ray", site)
    finally:
        disconnect()
    assert len([name for name in alone.files if name.startswith("near-")]) > 3
    assert tree_digest(alone.where) == tree_digest(together.where)


def test_a_corpus_without_categories_is_refused(tmp_path: Path) -> None:
    world = World(items=8, image_size=32)
    corpus = write(world, tmp_path / "raw")
    bare = replace(corpus, parse=lambda raw: (row for row in corpus.parse(raw) if not isinstance(row, Label)))
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    with pytest.raises(UserError, match="no categories"):
        build_stages(CorpusBuild(site, bare), ["plausible"])


def test_a_damaged_part_is_named(published: Path, tmp_path: Path) -> None:
    output = built(published, tmp_path / "root")
    name = next(name for name in output.files if name.startswith("near-"))
    path = Path(output.where) / name
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    with pytest.raises(UserError, match=name):
        PlausibleMatches.read(output)
