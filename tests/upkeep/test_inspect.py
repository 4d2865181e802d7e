"""Verify: what has changed since it was committed is found, also where it is still well-formed, and can be mended."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.demo import coco
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.progress_line import ProgressLine
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from pipelines.upkeep.inspection import forget, status, verify
from tests.conftest import tree_digest
from tests.publishers import flickr30k, flickr30k_entities
from tests.toy_stages import Letters, letters
from tests.upkeep.test_healing import blob_of, built
from xmodal.errors import UserError
from xmodal.root.outputs import Output, find
from xmodal.root.storage import open_storage

QUIET = ProgressLine(quiet=True)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("stage.json", '"count":6', '"count":7'),
        ("stage.json", '"version":1', '"version":2'),
        ("complete.json", '"unreadable":1', '"unreadable":0'),
        ("complete.json", '"units":6', '"units":5'),
        ("units.tsv", '"letters":3', '"letters":4'),
        ("data/00003.1", "3 3", "3 4"),
    ],
)
def test_a_plausible_change_is_found_and_mended(tmp_path: Path, file: str, before: str, after: str) -> None:
    storage, stage = open_storage(str(tmp_path)), letters(Letters(6))
    output = build(stage, storage)
    whole = tree_digest(str(tmp_path))
    path = tmp_path / output.folder / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))
    _, damage = verify(storage, QUIET)
    assert [found.output for found in damage] == [output.folder]
    forget(storage, damage)
    build(stage, storage)
    assert verify(storage, QUIET)[1] == []
    assert tree_digest(str(tmp_path)) == whole


def swap(folder: Path) -> None:
    one, other = folder / "complete.json", folder / "stage.json"
    before = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(before)


def spoil(name: str, text: str, *gone: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)
        for other in gone:
            (folder / other).unlink()

    return change


UNUSABLE: dict[str, Callable[[Path], None]] = {
    "swapped": swap,
    "totals of nothing": spoil("complete.json", '{"layout":1}'),
    "totals of another kind": spoil("complete.json", '{"layout":1,"files":"3","counts":[]}'),
    "half a description": spoil("stage.json", "{"),
    "no description": spoil("stage.json", '{"layout":1}'),
    "half a description of half an output": spoil("stage.json", "{", "complete.json", "units.tsv"),
}


@pytest.mark.parametrize("case", list(UNUSABLE))
def test_an_output_that_does_not_tell_what_it_is_hides_no_other(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "root")
    storage, stages = open_storage(root), [letters(Letters(6)), replace(letters(Letters(4)), name="others")]
    spoilt, sound = (build(stage, storage) for stage in stages)
    whole = tree_digest(root)
    UNUSABLE[case](Path(spoilt.where))
    assert main(["status", "--root", root]) == 0
    _, line, other, *_ = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{spoilt.where}/")
    assert line.endswith(f"`xmodal verify --forget --root {root}` removes what it is part of, then build again")
    assert other.startswith(f"{sound.folder}: complete")
    assert [output.where for output in find(root, "others", count=4)] == [sound.where]
    assert main(["verify", "--forget", "--root", root]) == 1
    assert capsys.readouterr().out.startswith(f"{spoilt.folder}/: {spoilt.where}/")
    assert not Path(spoilt.where).exists()
    assert main(["verify", "--root", root]) == 0
    build(stages[0], storage)
    assert tree_digest(root) == whole


def test_what_is_made_of_something_damaged_is_told_all_the_same(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    first = build(letters(Letters(6)), storage)
    build(replace(letters(Letters(4)), name="others", inputs=(first,)), storage)
    (tmp_path / first.folder / "stage.json").write_text("{")
    damaged, told = status(storage)["outputs"]
    assert "damage" in damaged
    assert (told["stage"], told["complete"], told["of"]) == ("others", True, None)


def test_an_output_is_told_with_the_corpus_or_media_set_that_it_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flickr30k's media set has the name of one of the two corpora that are of it."""
    storage = open_storage(str(tmp_path / "root"))
    for writer in (coco, flickr30k, flickr30k_entities):
        corpus = writer.write(World(items=30, image_size=32), tmp_path / writer.__name__)
        build_stages(CorpusBuild(BuildOptions(storage, raw=tmp_path / writer.__name__), corpus), ["fingerprints"])
    assert main(["status", "--root", storage.url]) == 0
    said = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if ": complete" in line]
    told = sorted((line.split("/")[0], line.partition(" of ")[2]) for line in said)
    names = ["coco", "flickr30k", "flickr30k_entities"]
    of_media = [(stage, name) for stage in ("fingerprints", "media") for name in ("coco2014", "flickr30k")]
    assert told == sorted([*of_media, *((stage, name) for stage in ("records", "sources") for name in names)])
    assert main(["corpora", "--root", storage.url, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    built = sorted(path.split("/")[-2] for path in rows["flickr30k_entities"]["built"])
    assert built == ["fingerprints", "media", "records", "sources"]
    every = {"sources", "records", "media", "vocabulary", "codebook", "sentences", "fingerprints"}
    pictures, clips = {"resnet", "pixels"}, {"frames", "clips"}
    has = {"coco": pictures | {"plausible"}, "cub": pictures, "tgif": clips}
    for name, own in has.items():
        there = set(rows[name]["stages"])
        assert there >= every | own
        assert there.isdisjoint((pictures | clips | {"plausible"}) - own)


def test_an_output_that_says_it_is_another_is_not_used(tmp_path: Path) -> None:
    output = build(letters(Letters(6)), open_storage(str(tmp_path)))
    path = tmp_path / output.folder / "stage.json"
    path.write_text(path.read_text().replace('"count":6', '"count":60'))
    with pytest.raises(UserError, match=rf"stage\.json has changed: `xmodal verify --forget --root {tmp_path}`"):
        find(str(tmp_path), "letters", count=60)
    with pytest.raises(UserError, match=r"stage\.json has changed"):
        _ = Output(open_storage(str(tmp_path)), output.folder).config


def test_blobs_that_no_set_lists_are_read_too(options: BuildOptions, capsys: pytest.CaptureFixture[str]) -> None:
    built(options, "sources", "media")
    root = Path(options.storage.url)
    unsealed = root / "blobs/ab" / ("ab" + "0" * 62)
    unsealed.parent.mkdir(exist_ok=True)
    unsealed.write_bytes(b"another")
    key = unsealed.relative_to(root).as_posix()
    assert main(["verify", "--root", str(root)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{key}: its bytes have changed (in no set)\n1 damaged")
    assert "(100 %)" in said.err
    assert main(["verify", "--root", str(root), "--forget"]) == 1
    assert not unsealed.exists()
    assert main(["verify", "--root", str(root)]) == 0


def test_files_that_a_replaced_set_has_lost_are_told_and_no_failure(
    options: BuildOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    before = built(options, "media")["media"]
    lost = blob_of(before, "pictures/p003.jpg")
    assert options.raw
    (options.raw / "p003.jpg").unlink()
    lost.unlink()
    assert main(["verify", "--forget", "--root", options.storage.url]) == 1
    built(options, "media")
    capsys.readouterr()
    assert main(["verify", "--root", options.storage.url]) == 0
    said = capsys.readouterr().err
    assert f"{before.folder}: 1 of its files are gone; another set took its place, nothing needs them" in said
    read = said.partition("verify: ")[2].partition(" ")[0]
    assert len({*read.split("/")}) == 1
