"""Builds of a corpus by its name: resolved once, counted before they run, and of roots that nobody may write to."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pipelines import stages
from pipelines.demo import coco, tgif
from pipelines.demo.files import serve_at
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.fetching.corpus_names import remember_generated
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from pipelines.upkeep.planning import plan
from pipelines.upkeep.targets import parse_targets
from tests.benchmarks.bench_house import resolutions
from tests.conftest import tree_digest
from tests.made import small
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.root.storage import LocalStorage, open_storage


class ReadOnly(LocalStorage):
    """A disk that is mounted read-only."""

    def _refuse(self, *of: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.url)

    create = write = keep = publish = link = delete = delete_folder = _refuse

    @contextmanager
    def writer(self, key: str) -> Iterator[BinaryIO]:
        self._refuse()
        yield from ()


def test_a_build_resolves_each_stage_once(tmp_path: Path) -> None:
    counted = resolutions(tmp_path)
    assert len(counted) == 10
    assert set(counted.values()) == {1}


def test_media_that_a_table_lists_are_listed_once(tmp_path: Path) -> None:
    corpus = tgif.write(World(items=12, image_size=32, motion=1.0), tmp_path / "raw")
    media, listed = corpus.media, list[int]()
    assert media is not None
    corpus = replace(corpus, media=lambda raw: listed.append(1) or media(raw))
    options = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw", **small(tmp_path))
    build_stages(CorpusBuild(options, corpus), ["frames", "media", "fingerprints"])
    assert listed == [1]


def test_a_plan_counts_what_comes_before_a_stage(tmp_path: Path) -> None:
    corpus = serve_at(coco.write(World(items=20, image_size=32), tmp_path / "publisher"), "http://127.0.0.1:9")
    options = BuildOptions(open_storage(str(tmp_path / "root")))
    work = CorpusBuild(options, corpus)
    rows = plan([(work, ["resnet"])])
    assert [row["stage"] for row in rows] == ["sources", "records", "media", "resnet"]
    sizes = {part: sum(s.bytes or 0 for s in corpus.sources if s.part == part) for part in ("annotations", "media")}
    assert (rows[0]["requests"], rows[0]["bytes"]) == (2, sizes["annotations"]) != (2, 0)
    assert (rows[2]["requests"], rows[2]["bytes"]) == (2, sizes["media"])
    assert rows[3]["writes"] == 20 * 49 * 2048 * 2, "as many pictures as the corpus says it has"
    several = plan([(work, ["resnet"]), (work, ["pixels"]), (work, ["resnet"])])
    assert [row["stage"] for row in several] == ["sources", "records", "media", "resnet", "pixels"]
    assert [row["stage"] for row in plan([(work, [*stages.DATA])])] == [*stages.DATA]


def test_a_plan_counts_media_that_corpora_share_once(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    corpus = coco.write(World(items=20, image_size=32), raw)
    twin = replace(corpus, name="twin")
    options = BuildOptions(open_storage(str(tmp_path / "root")), raw=raw)
    rows = plan([(CorpusBuild(options, each), ["pixels"]) for each in (corpus, twin)])
    told = [(row["corpus"], row["stage"]) for row in rows]
    assert told.count(("coco", "media")) == 1
    assert ("twin", "media") not in told
    assert ("twin", "records") in told


def test_what_is_up_to_date_is_built_under_a_root_that_is_read_only(tmp_path: Path) -> None:
    corpus = coco.write(World(items=20, image_size=32), tmp_path / "raw")
    options = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw", **small(tmp_path))
    names = [*stages.DATA, "pixels", "vocabulary"]
    made = build_stages(CorpusBuild(options, corpus), names)
    before = tree_digest(options.storage.url)
    only = replace(options, storage=ReadOnly(options.storage.url), raw=None)
    again = build_stages(CorpusBuild(only, corpus), names)
    assert [row["identity"] for row in again] == [row["identity"] for row in made]
    assert not any(row["built"] for row in again)
    assert tree_digest(options.storage.url) == before
    with pytest.raises(OSError, match="Read-only"):
        build_stages(CorpusBuild(only, corpus), ["fingerprints"])


def test_rows_say_how_much_was_planned_and_is_absent(tmp_path: Path) -> None:
    corpus = tgif.write(World(items=12, image_size=32, motion=1.0), tmp_path / "raw")
    media = corpus.media
    assert media is not None
    corpus = replace(corpus, media=lambda raw: (replace(each, url=None, how="gone") for each in media(raw)))
    gone = sorted((tmp_path / "raw").rglob("*.gif"))[:3]
    present = len(list((tmp_path / "raw").rglob("*.gif"))) - 3
    for clip in gone:
        clip.unlink()
    options = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw", **small(tmp_path))
    rows = {row["stage"]: row for row in build_stages(CorpusBuild(options, corpus), ["media", "frames", "records"])}
    assert rows["media"]["planned"] - rows["media"]["absent"] == present
    assert rows["frames"]["planned"] - rows["frames"]["absent"] == present
    assert rows["frames"]["planned"] == 12
    assert (rows["records"]["planned"], rows["records"]["absent"]) == (0, 0)
    assert sum(each["files"] for each in rows["media"]["reasons"].values()) == rows["media"]["absent"]


def test_a_root_of_a_generated_publisher_is_built_on(tmp_path: Path) -> None:
    """As `xmodal build coco/vocabulary --root demo/root` does after `xmodal demo`."""
    corpus = coco.write(World(items=30, image_size=32), tmp_path / "publisher")
    options = BuildOptions(open_storage(str(tmp_path / "root")), **small(tmp_path))
    remember_generated(options.storage, corpus, tmp_path / "publisher")
    ((work, names),) = parse_targets(["coco/vocabulary"], options, {})
    (row,) = build_stages(work, names)
    assert row["counts"]["words"] > 10
    ((other, _),) = parse_targets(["coco"], BuildOptions(open_storage(str(tmp_path / "other"))), {})
    assert other.corpus.sources == load("coco").sources


def test_what_is_mistyped_is_asked_about(tmp_path: Path) -> None:
    options = BuildOptions(open_storage(str(tmp_path)))
    for text, question in (("cocoo", "no corpus 'cocoo'; did you mean coco?"), ("cocoo/resnet", "did you mean coco?")):
        with pytest.raises(UserError) as trouble:
            parse_targets([text], options, {})
        assert question in str(trouble.value)
    with pytest.raises(
        UserError, match=r"^no stage 'resnt' \(do you mean resnet\?\); there are: sources, records, media"
    ):
        parse_targets(["coco/resnt"], options, {})
    with pytest.raises(UserError, match=r"^no stage 'zzz'; there are: sources"):
        parse_targets(["coco/zzz"], options, {})


def test_a_corpus_that_is_named_twice_is_opened_once(tmp_path: Path) -> None:
    (one, _), (other, _) = parse_targets(["coco/resnet", "coco/pixels"], BuildOptions(open_storage(str(tmp_path))), {})
    assert one is other
