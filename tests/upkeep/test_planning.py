"""Plans: bytes of files of unknown sizes, and time that computing will take, by a table and by runs under this root."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo import coco
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from pipelines.upkeep.planning import FEWEST_SIZES, plan
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import no_pauses as no_pauses
from tests.commands.test_cli import xmodal as xmodal
from tests.made import small
from xmodal.corpora import Corpus, load
from xmodal.root.storage import open_storage


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return coco.write(World(items=20, image_size=32), tmp_path / "raw")


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    return BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw", **small(tmp_path))


def row(options: BuildOptions, corpus: Corpus, stage: str) -> dict[str, Any]:
    return plan([(CorpusBuild(options, corpus), [stage])])[-1]


def runs(options: BuildOptions, stage: str) -> Iterator[Path]:
    return Path(options.storage.url).glob(f"{stage}/*/_runs/*.json")


def slowed(facts: Path, seconds: float, **others: object) -> None:
    told = json.loads(facts.read_bytes())
    facts.write_text(json.dumps(told | {"finished": told["started"] + seconds} | others))


@pytest.mark.parametrize(
    "stage", ["records", "resnet", "pixels", "fingerprints", "vocabulary", "plausible", "sentences", "codebook"]
)
def test_computing_is_estimated_by_a_table_before_anything_is_there(stage: str, tmp_path: Path) -> None:
    told = row(BuildOptions(open_storage(str(tmp_path))), load("coco"), stage)
    assert told["by"] == "a table"
    assert told["compute_seconds"] > 0
    assert told["memory"] >= 10**8


def test_a_larger_network_and_more_pictures_take_longer(tmp_path: Path) -> None:
    options, told = BuildOptions(open_storage(str(tmp_path))), dict[str, float]()
    for network in ("resnet18", "resnet152"):
        settings = {"resnet.network": network, "resnet.weights": "IMAGENET1K_V1"}
        told[network] = row(replace(options, settings=settings), load("coco"), "resnet")["compute_seconds"]
    assert told["resnet152"] == pytest.approx(6 * told["resnet18"], rel=0.1)
    on_gpu = replace(options, settings={"resnet.device": "cuda"})
    assert "by" not in row(on_gpu, load("coco"), "resnet"), "nobody has measured one"


def test_runs_under_this_root_correct_the_table(options: BuildOptions, corpus: Corpus) -> None:
    build_stages(CorpusBuild(options, corpus), ["pixels"])
    other = replace(options, settings={**options.settings, "pixels.side": 16})
    by_table = row(other, corpus, "pixels")
    assert by_table["by"] == "a table", "a run of less than a second tells nothing"
    assert row(options, corpus, "pixels").get("by") is None, "it is done"
    (facts,) = runs(options, "pixels")
    slowed(facts, 1000.0)
    by_runs = row(other, corpus, "pixels")
    assert (by_runs["by"], by_runs["compute_seconds"]) == ("runs here", pytest.approx(1000, rel=0.01))
    slowed(facts, 1000.0, cores=4)
    assert row(other, corpus, "pixels")["compute_seconds"] == pytest.approx(4000, rel=0.01), "here one core is used"
    slowed(facts, 1000.0, done_before=json.loads(facts.read_bytes())["planned"] - 1)
    assert row(other, corpus, "pixels")["compute_seconds"] > 5000, "most was done before that run"


@pytest.mark.parametrize(
    "facts", ["[]", "{", '{"finished": "x"}', '{"finished": 1e999, "started": 0}', "[" * 60_000, "{}" + " " * 70_000]
)
def test_facts_of_runs_that_make_no_sense_are_passed_over(facts: str, options: BuildOptions, corpus: Corpus) -> None:
    build_stages(CorpusBuild(options, corpus), ["pixels"])
    for file in runs(options, "pixels"):
        file.write_text(facts)
    other = replace(options, settings={**options.settings, "pixels.side": 16})
    assert row(other, corpus, "pixels")["by"] == "a table"


def test_sizes_that_nobody_knows_are_between_two_bounds(xmodal: Xmodal, tmp_path: Path) -> None:
    assert FEWEST_SIZES == 10
    number = 30
    urls = [f"http://127.0.0.1:9/{n}.jpg" for n in range(number)]
    (tmp_path / "list.csv").write_text("\n".join(["url,caption", *(f"{url},a cap" for url in urls)]))
    root, raw = tmp_path / "root", tmp_path / "raw"
    xmodal.done("build", f"{tmp_path}/list.csv/records", "--root", root)
    said = xmodal.done("plan", "list/media", "--root", root)["stages"][0]
    assert (said["requests"], said["unknown_sizes"], said["bytes"]) == (number, number, 0)
    least, most = said["bytes_between"]
    assert 0 < least < most
    assert "of unknown size (0 of this set are known)" in xmodal("plan", "list/media", "--root", root).out
    for n, url in enumerate(urls[:20]):
        digest = hashlib.sha256(url.encode()).hexdigest()
        (file := raw / f"urls/{digest[:2]}/{digest[:40]}.jpg").parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(1000 + n))
    said = xmodal.done("plan", "list/media", "--root", root, "--raw", raw)["stages"][0]
    assert [said[name] for name in ("at_hand", "requests", "known_sizes")] == [20, 10, 20]
    least, most = said["bytes_between"]
    assert 10_000 <= least < 10_095 < most < 10_190, "the mean of 20 is 1,009.5"
    assert "between 10.0 kB and 10.1 kB, 10 of them of unknown size (20 of this set are known)" in (
        xmodal("plan", "list/media", "--root", root, "--raw", raw).out
    )


def test_media_that_only_annotations_list_count_before_these_are_there(tmp_path: Path) -> None:
    media = row(BuildOptions(open_storage(str(tmp_path))), load("tgif"), "media")
    assert media["waits_for"] == "sources"
    assert 10**10 < media["bytes_between"][0] < 10**11 < media["bytes_between"][1]


def test_time_is_said_with_what_it_is_said_by(xmodal: Xmodal, tmp_path: Path) -> None:
    said = xmodal("plan", "coco/resnet", "--root", tmp_path).out
    assert re.search(r"^coco/resnet.*, about \d+ h \d\d min on 1 core and 1\.5 GB of memory, by a table$", said, re.M)
    assert re.search(r"^in all: .* to compute$", said, re.M)


def test_clips_cost_what_their_frames_cost(options: BuildOptions, tmp_path: Path) -> None:
    for stage in ("frames", "clips", "fingerprints"):
        assert row(BuildOptions(options.storage), load("tgif"), stage)["compute_seconds"] > 60 * 60
