"""Files that lie unpacked in the raw folder stand in for archives that are not there."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo import coco
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.corpus_names import as_published, published_facts
from pipelines.upkeep.corpus_build import CorpusBuild
from xmodal.corpora import Corpus, Source, load, sample_of
from xmodal.errors import UserError
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import read_lock
from xmodal.root.storage import open_storage

KARPATHY, INSTANCES = "caption_datasets.zip", "annotations/annotations_trainval2014.zip"
JSON = ("dataset_coco.json", "annotations/instances_train2014.json", "annotations/instances_val2014.json")


@pytest.fixture
def publisher(tmp_path: Path) -> tuple[Corpus, Path]:
    return coco.write(World(items=20, image_size=32), tmp_path / "publisher"), tmp_path / "publisher"


def unpack(archive: Path, into: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        file.extractall(into)
    archive.unlink()


def build(tmp_path: Path, corpus: Corpus, root: str, raw: Path | None) -> Output:
    options = BuildOptions(open_storage(str(tmp_path / root)), raw=raw)
    return CorpusBuild(options, corpus).build("records")


def tables(records: Output) -> dict[str, str]:
    return dict(records.checksums)


def one_beside(folder: Path) -> None:
    unpack(folder / KARPATHY, folder)


def both_beside(folder: Path) -> None:
    one_beside(folder)
    unpack(folder / INSTANCES, folder)


def in_folders_of_their_names(folder: Path) -> None:
    unpack(folder / KARPATHY, folder / "caption_datasets")
    unpack(folder / INSTANCES, folder / "annotations/annotations_trainval2014")


def all_in_one_folder(folder: Path) -> None:
    both_beside(folder)
    for path in JSON[1:]:
        (folder / path).rename(folder / Path(path).name)


@pytest.mark.parametrize("unpacked", [one_beside, both_beside, in_folders_of_their_names, all_in_one_folder])
def test_unpacked_annotations_give_the_same_records_as_their_archives(
    unpacked: Callable[[Path], None], publisher: tuple[Corpus, Path], tmp_path: Path
) -> None:
    corpus, folder = publisher
    packed = build(tmp_path, corpus, "packed", folder)
    unpacked(folder)
    found = build(tmp_path, corpus, "unpacked", folder)
    assert tables(found) == tables(packed)
    assert len(tables(packed)) == 7
    shutil.rmtree(folder)
    assert build(tmp_path, corpus, "unpacked", None).identity == found.identity, "this root has what it needs"
    assert build(tmp_path, corpus, "packed", None).identity == packed.identity


def test_an_archive_that_is_there_is_taken_and_what_was_built_of_it_stays(
    publisher: tuple[Corpus, Path], tmp_path: Path
) -> None:
    corpus, folder = publisher
    with zipfile.ZipFile(folder / KARPATHY) as file:
        file.extractall(folder)
    (folder / JSON[0]).write_text("{}")
    before = build(tmp_path, corpus, "root", folder)
    (folder / KARPATHY).unlink()
    assert build(tmp_path, corpus, "root", folder).identity == before.identity


def test_a_wrong_file_is_refused_and_another_or_the_archive_cures_it(
    publisher: tuple[Corpus, Path], tmp_path: Path
) -> None:
    corpus, folder = publisher
    packed = build(tmp_path, corpus, "packed", folder)
    archive, file = (folder / KARPATHY).read_bytes(), folder / JSON[0]
    one_beside(folder)
    whole: dict[str, Any] = json.loads(file.read_bytes())
    for cure in ("archive", "file"):
        file.unlink()
        file.write_text(json.dumps(whole | {"images": whole["images"][1:]}))
        with pytest.raises(
            UserError, match=r"a full parse must give 20 items, not 19: .*a part of them is read with --sample"
        ):
            build(tmp_path, corpus, cure, folder)
        if cure == "archive":
            (folder / KARPATHY).write_bytes(archive)
        else:
            file.unlink()
            file.write_text(json.dumps(whole))
        assert tables(build(tmp_path, corpus, cure, folder)) == tables(packed)
        assert tables(build(tmp_path, corpus, cure, None)) == tables(packed)
        (folder / KARPATHY).unlink(missing_ok=True)


def test_what_lacks_is_said_by_all_its_names(publisher: tuple[Corpus, Path], tmp_path: Path) -> None:
    corpus, folder = publisher
    both_beside(folder)
    (folder / JSON[1]).unlink()
    with pytest.raises(UserError, match=rf"{INSTANCES} \(or {JSON[1]}, {JSON[2]}, unpacked\)"):
        build(tmp_path, corpus, "root", folder)


def test_unchecked_bytes_are_said(
    publisher: tuple[Corpus, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, folder = publisher
    one_beside(folder)
    options = BuildOptions(open_storage(str(tmp_path / "root")), raw=folder, progress=ProgressLine())
    sealed = CorpusBuild(options, corpus).build("sources")
    said = capsys.readouterr().err
    assert f"{KARPATHY} is not there: its unpacked files are taken, of which counts are checked, but no bytes" in said
    assert [locked.path for locked in read_lock(sealed)] == [INSTANCES, f"{KARPATHY}!{JSON[0]}"]


def test_a_sample_and_a_generated_corpus_may_be_unpacked_too(publisher: tuple[Corpus, Path], tmp_path: Path) -> None:
    corpus, folder = publisher
    both_beside(folder)
    for other in (sample_of(corpus), as_published(corpus, json.loads(json.dumps(published_facts(corpus))))):
        assert build(tmp_path, other, other.name, folder).totals["counts"]["items"] == 20


def test_members_that_corpora_name_are_those_that_they_read() -> None:
    members = {source.path: source.members for name in ("coco", "flickr30k") for source in load(name).sources[::-1]}
    assert members[INSTANCES] == JSON[1:]
    assert members[KARPATHY] == ("dataset_flickr30k.json",)
    assert {source.path: source.members for source in load("coco").sources}[KARPATHY] == JSON[:1]


def test_files_of_a_users_list_are_not_looked_for_elsewhere(tmp_path: Path) -> None:
    from pipelines.fetching.fetcher import RawFolder

    source = Source("odd!name.jpg", how="it is beside the list", part="media")
    (tmp_path / "name.jpg").write_bytes(b"another picture")
    assert RawFolder(tmp_path, [source], whole_paths=True).find(source) is None
