"""Publishing: what `datasets.load_dataset` makes of it, what a release class lets through, and that it is whole."""

import fcntl
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml  # type: ignore[import-untyped]

from pipelines.demo.coco import write
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.publishing.dataset_repository import feature_stores, publish
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.toy_root import Media
from xmodal.corpora import Corpus, ReleaseClass
from xmodal.errors import UserError
from xmodal.records.tables import Caption, Item, Label, Row, Split, read_rows
from xmodal.root.outputs import Output
from xmodal.root.storage import LocalStorage, Storage, open_storage

WORLD = World(items=30, image_size=32)
ABSENT = "16"  # the picture that the feature stage could not read
R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Built:
    corpus: Corpus
    storage: Storage
    records: Output
    media: Output
    features: list[Output]

    def rows(self, kind: type[R]) -> list[R]:
        return list(read_rows(self.records, kind))  # type: ignore[type-var]

    def publish(self, out: Path, **release: ReleaseClass) -> dict[str, Any]:
        """With another release than COCO's, where one is given."""
        corpus = replace(self.corpus, release=release) if release else self.corpus  # type: ignore[arg-type]
        return publish(corpus, self.storage, out)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    corpus = write(WORLD, folder / "raw")
    site = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw")
    records, media = CorpusBuild(site, corpus).build("records"), CorpusBuild(site, corpus).build("media")
    ids = sorted(item.id for item in read_rows(records, Item))
    return Built(corpus, site.storage, records, media, [build(toy_features(media, ids), site.storage)])


@pytest.fixture(scope="module")
def published(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "coco"
    built.publish(out)
    return out


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class Toy:
    weights: str = "random:0"


def toy_features(media: Output, ids: list[str], config: Toy = Toy()) -> Stage[Toy, list[str]]:
    """A Zarr store of two numbers an item, the first of which is its row."""

    def work(config: Toy, inputs: Inputs) -> Callable[[list[str], Sink], Counts]:
        return fill

    return Stage("toy", config, lambda config, inputs: iter([("all", ids)]), work, inputs=(media,))


def fill(ids: list[str], sink: Sink) -> Counts:
    values = np.stack([np.arange(len(ids)), np.ones(len(ids))], 1).astype("<f4")
    values[ids.index(ABSENT)] = 0
    sink.fail(ABSENT, "undecodable", "for the test")
    pq.write_table(pa.table({"row": range(len(ids)), "id": ids}), rows := io.BytesIO())
    files = {"zarr.json": zarr_json("group"), "values/zarr.json": zarr_json("array", list(values.shape))}
    for name, data in {**files, "values/c/0/0": values.tobytes(), "rows.parquet": rows.getvalue()}.items():
        with sink.file(name) as file:
            file.write(data)
    return {"rows": len(ids)}


def zarr_json(kind: str, shape: list[int] | None = None) -> bytes:
    array: dict[str, Any] = {"shape": shape, "data_type": "float32", "fill_value": 0}
    array["chunk_key_encoding"] = {"name": "default"}
    array["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": shape}}
    array["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return json.dumps({"zarr_format": 3, "node_type": kind, "attributes": {}} | (array if shape else {})).encode()


def load(out: Path, config: str, split: str) -> list[dict[str, Any]]:
    """By load_dataset, in a process of its own: what it reads of the environment it reads on import."""
    code = (
        "import sys, json, datasets; print(json.dumps(list(datasets.load_dataset(*sys.argv[1:3], split=sys.argv[3]))))"
    )
    rows: list[dict[str, Any]] = json.loads(run_python(code, out, str(out), config, split))
    return rows


def run_python(code: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def card(out: Path) -> tuple[dict[str, Any], str]:
    _, matter, text = (out / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(matter), text


def columns(out: Path) -> list[str]:
    return list(pq.read_schema(out / "captions/karpathy/train-00000-of-00001.parquet").names)


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_load_dataset_gives_the_records(built: Built, published: Path) -> None:
    members = {split.item for split in built.rows(Split) if split.name == "karpathy/train"}
    captions, labels = built.rows(Caption), built.rows(Label)
    expected = []
    for item in built.rows(Item):
        mine = sorted((c for c in captions if c.item == item.id), key=lambda caption: caption.position)
        row = {name: getattr(item, name) for name in ("id", "media", "kind", "width", "height", "licence", "url")}
        row |= {"captions": [c.text for c in mine], "caption_ids": [c.id for c in mine]}
        expected.append(row | {"categories": [label.name for label in labels if label.item == item.id]})
    assert any(len(row["captions"]) > 5 for row in expected)
    assert any(not row["categories"] for row in expected)
    assert load(published, "karpathy", "train") == [row for row in expected if row["id"] in members]


def test_every_config_of_the_card_is_what_its_files_are(published: Path) -> None:
    matter, _ = card(published)
    info = {each["config_name"]: each for each in matter["dataset_info"]}
    assert info.keys() == {config["config_name"] for config in matter["configs"]}
    seen = set()
    for config in matter["configs"]:
        splits = {split["name"]: split for split in info[config["config_name"]]["splits"]}
        assert splits.keys() == {files["split"] for files in config["data_files"]}
        for data in config["data_files"]:
            paths = sorted(published.glob(data["path"]))
            footers = [pq.read_metadata(path) for path in paths]
            assert splits[data["split"]]["num_examples"] == sum(footer.num_rows for footer in footers) > 0
            names = [column["name"] for column in info[config["config_name"]]["features"]]
            assert all(pq.read_schema(path).names == names for path in paths)
            seen.update(paths)
    assert seen == set(published.rglob("*.parquet")) - set(published.glob("features/*/*/rows.parquet"))


def test_the_card_says_what_the_manifests_say(built: Built, published: Path) -> None:
    matter, text = card(published)
    counts = built.records.totals["counts"]
    for split in ("train", "restval", "val", "test"):
        numbers = [counts[f"{kind}:karpathy/{split}"] for kind in ("items", "captions", "captions[:5]")]
        assert f"| `karpathy` | `{split}` | {' | '.join(map(str, numbers))} |" in text
    assert matter["size_categories"] == ["n<1K"]
    for output in (built.records, built.media, *built.features):
        assert output.folder in text
    assert "weights random:0" in text
    assert "Not the corpus as its publisher offers it" in text
    assert "`caption_datasets.zip`" in text
    assert "$" not in text
    assert "<!--" not in text


def test_the_lines_of_the_card_work(published: Path) -> None:
    _, text = card(published)
    loading, features = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "'captions': [" in run_python(loading, published)
    pytest.importorskip("zarr")
    assert re.fullmatch(r"\S+ \[0\. +1\.\]\n", run_python(features, published))


@pytest.mark.parametrize(("name", "stage"), [("coco", "resnet"), ("tgif", "clips")])
def test_the_lines_of_the_card_work_on_what_a_real_stage_made(name: str, stage: str, tmp_path: Path) -> None:
    """A grid and the frames of clips: the array has the network's name, and of clips an item has several rows."""
    pytest.importorskip("zarr")
    raw, small = tmp_path / "raw", {"network": "resnet18", "weights": "random:0", "resize": 32, "crop": 32}
    world = World(12, image_size=32, motion=name == "tgif")
    corpus = importlib.import_module(f"pipelines.demo.{name}").write(world, raw)
    corpus = replace(corpus, release={"annotations": "all", "media": "features"})
    settings = {f"{stage}.{field}": value for field, value in small.items()}
    options = BuildOptions(open_storage(str(tmp_path / "root")), raw=raw, settings=settings)
    build_stages(CorpusBuild(options, corpus), ["records", "media", stage])
    publish(corpus, options.storage, tmp_path / "out")
    _, text = card(tmp_path / "out")
    _, features = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert re.match(r"\S+ \[", run_python(features, tmp_path / "out"))
    assert "weights random:0" in text


def test_a_card_for_another_licence_is_refused_before_anything_is_copied(built: Built, tmp_path: Path) -> None:
    shown = io.StringIO()
    other = replace(built.corpus, licence="CC0")
    with pytest.raises(UserError, match=r"coco\.md is the card of a corpus whose licence is .*CC BY 4.0.*'CC0'"):
        publish(other, built.storage, tmp_path / "out", ProgressLine(shown))
    assert shown.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_of_a_user_without_a_card_has_the_general_one(built: Built, tmp_path: Path) -> None:
    root = shutil.copytree(built.storage.url, tmp_path / "root")
    storage, mine = open_storage(str(root)), replace(built.corpus, name="mine", media_set="mine", licence="ours alone")
    options = BuildOptions(storage, raw=Path(built.storage.url).parent / "raw")
    build_stages(CorpusBuild(options, mine), ["records", "media"])
    publish(mine, storage, tmp_path / "out")
    matter, text = card(tmp_path / "out")
    assert (matter["pretty_name"], matter["license"]) == ("mine", "other")
    assert "ours alone." in text
    assert "| `url` |" in text
    assert not re.search(r"\$[a-z]|<!--", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no fields", "does not begin with fields between two lines of ---"),
        ("---\nitem: bird\n---\nBirds.\n", "lacks texts, pretty_name, license, tags, ## Columns, ## Licence"),
        ("---\nitem: bird\n---\nBirds.\n\n## Feathers\n\nmany\n", "has a section 'Feathers'; there are: Splits"),
    ],
)
def test_a_card_that_lacks_something_says_what(
    text: str, said: str, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "coco.md").write_text(text)
    monkeypatch.setattr("pipelines.publishing.dataset_card.CARDS", tmp_path)
    with pytest.raises(UserError, match=said):
        built.publish(tmp_path / "out")


def test_features_come_as_they_are_and_absent_rows_are_not_named(built: Built, published: Path) -> None:
    (output,) = built.features
    copy = Output(open_storage(str(published / "features")), output.folder)
    assert copy.complete
    assert list(copy.units()) == list(output.units())
    for name in copy.files:
        assert copy.storage.read(f"{copy.folder}/{name}") == output.storage.read(f"{output.folder}/{name}")
    index = load(published, f"toy-{output.identity}", "rows")
    ids = sorted(item.id for item in built.rows(Item))
    assert index == [{"id": id, "row": row} for row, id in enumerate(ids) if id != ABSENT]


def test_features_are_those_of_the_media_as_sealed_now(built: Built, tmp_path: Path) -> None:
    assert [output.folder for output in feature_stores(built.corpus, built.storage)] == [built.features[0].folder]
    other = replace(built.corpus, media_set="other")
    assert feature_stores(other, built.storage) == []
    with pytest.raises(UserError, match="is not of coco's media as they are sealed now"):
        publish(other, built.storage, tmp_path / "out", features=built.features)
    publish(other, built.storage, tmp_path / "out")
    assert not (tmp_path / "out/features").exists()


def test_media_are_not_passed_on_unless_all_are(built: Built, published: Path, tmp_path: Path) -> None:
    assert not (published / "media").exists()
    assert built.publish(tmp_path / "all", annotations="all", media="all")["withheld"] == {}
    for source in built.corpus.sources:
        path = tmp_path / "all/media" / source.path
        assert path.exists() == (source.part == "media")
        assert not path.exists() or path.stat().st_size == source.bytes


def test_features_may_be_chosen(built: Built, tmp_path: Path) -> None:
    publish(built.corpus, built.storage, tmp_path / "none", features=[])
    assert not (tmp_path / "none/features").exists()
    publish(built.corpus, built.storage, tmp_path / "one", features=built.features)
    assert os.listdir(tmp_path / "one/features") == ["toy"]


@pytest.mark.parametrize("release", ["ids", "nothing"])
def test_no_features_where_media_give_ids_at_most(built: Built, tmp_path: Path, release: ReleaseClass) -> None:
    built.publish(tmp_path / "out", annotations="all", media=release)
    assert not (tmp_path / "out/features").exists()
    assert (tmp_path / "out/media.lock").exists() == (release == "ids")
    assert ("url" in columns(tmp_path / "out")) == (release == "ids")
    assert "captions" in columns(tmp_path / "out")


@pytest.mark.parametrize("release", ["ids", "features"])
def test_ids_are_ids_and_addresses_alone(built: Built, tmp_path: Path, release: ReleaseClass) -> None:
    built.publish(tmp_path / "out", annotations=release, media="features")
    assert columns(tmp_path / "out") == ["id", "url", "caption_ids"]
    assert len(load(tmp_path / "out", "karpathy", "val")) == 3


def test_a_part_that_is_not_named_is_not_published(built: Built, tmp_path: Path) -> None:
    withheld = built.publish(tmp_path / "media", media="all")["withheld"]
    assert withheld == {"annotations": "nothing"}
    assert not (tmp_path / "media/captions").exists()
    assert not (tmp_path / "media/dataset.lock").exists()
    built.publish(tmp_path / "captions", annotations="all")
    assert not (tmp_path / "captions/features").exists()
    assert not (tmp_path / "captions/media.lock").exists()


def test_no_features_where_ids_are_withheld(built: Built, tmp_path: Path) -> None:
    """Their index would publish the ids."""
    built.publish(tmp_path / "out", media="all")
    assert not (tmp_path / "out/features").exists()
    assert not list((tmp_path / "out").rglob("*.parquet"))
    matter, text = card(tmp_path / "out")
    assert (matter["configs"], built.features[0].identity in text) == ([], False)
    with pytest.raises(UserError, match="leaves nothing to publish"):
        built.publish(tmp_path / "alone", media="features")


def test_features_of_another_corpus_of_the_media_set_are_not_published(built: Built, tmp_path: Path) -> None:
    storage = open_storage(str(shutil.copytree(built.storage.url, tmp_path / "root")))
    ids = [item.id for item in built.rows(Item)]
    foreign = build(toy_features(Output(storage, built.media.folder), [*ids, "secret"], Toy("random:1")), storage)
    found = feature_stores(built.corpus, storage)
    assert [output.folder for output in found] == [built.features[0].folder]
    with pytest.raises(UserError, match=f"{foreign.identity} has rows that are no items of coco"):
        publish(built.corpus, storage, tmp_path / "out", features=[*found, foreign])
    assert not (tmp_path / "out").exists()
    publish(built.corpus, storage, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out/features/toy").iterdir() if path.is_dir()} == {
        built.features[0].identity
    }


@pytest.mark.parametrize("stage", ["pixels", "frames"])
def test_resized_pictures_are_no_features(stage: str, built: Built, tmp_path: Path) -> None:
    """Of COCO's pictures only what was computed from them may be passed on."""
    storage = open_storage(str(shutil.copytree(built.storage.url, tmp_path / "root")))
    ids = [item.id for item in built.rows(Item)]
    squares = build(replace(toy_features(Output(storage, built.media.folder), ids), name=stage), storage)
    assert [output.folder for output in feature_stores(built.corpus, storage)] == [built.features[0].folder]
    with pytest.raises(UserError, match=f"{squares.identity} holds the pictures themselves"):
        publish(built.corpus, storage, tmp_path / "out", features=[squares])
    assert not (tmp_path / "out").exists()
    publish(built.corpus, storage, tmp_path / "out")
    assert os.listdir(tmp_path / "out/features") == ["toy"]


def test_features_that_are_left_out_are_said_with_the_reason(built: Built, tmp_path: Path) -> None:
    """But for those that were made anew, and those of other media."""
    storage = open_storage(str(shutil.copytree(built.storage.url, tmp_path / "root")))
    ids = [item.id for item in built.rows(Item)]

    def made(of: str, weights: str) -> Output:
        media = Stage("media", Media(of), lambda config, inputs: iter([("all", None)]), lambda *_: lambda *_: {})
        return build(replace(toy_features(built.media, ids, Toy(weights)), inputs=(media,)), storage)

    stale = made(built.corpus.media_set, "random:1")
    made(built.corpus.media_set, Toy().weights)
    made("others", "random:1")
    squares = build(replace(toy_features(Output(storage, built.media.folder), ids), name="pixels"), storage)
    publish(built.corpus, storage, tmp_path / "out", ProgressLine(shown := io.StringIO()))
    cure = f"build it again (`xmodal build coco/toy --root {storage.url}`)"
    assert [line for line in shown.getvalue().splitlines() if "not published" in line] == [
        f"not published: {squares.where} holds the pictures themselves, smaller: they are no features to publish",
        f"not published: {stale.where} is not of coco's media as they are sealed now: {cure}",
    ]


@pytest.mark.parametrize(("annotations", "licence"), [("all", "cc-by-4.0"), ("ids", "other")])
def test_the_licence_is_that_of_what_is_published(
    built: Built, tmp_path: Path, annotations: ReleaseClass, licence: str
) -> None:
    built.publish(tmp_path / "out", annotations=annotations)
    assert card(tmp_path / "out")[0]["license"] == licence


def test_files_copied_are_shown(built: Built, tmp_path: Path) -> None:
    shown = io.StringIO()
    publish(built.corpus, built.storage, tmp_path / "out", ProgressLine(shown))
    assert re.search(r"out: 6/6 files \(100 %\)", shown.getvalue())


def test_a_disk_without_room_is_refused(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda storage: 10)
    with pytest.raises(UserError, match=r"out needs [\d,]+ bytes and its disk has 10 free"):
        built.publish(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_of_which_nothing_may_be_published_is_refused(built: Built, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leaves nothing to publish"):
        built.publish(tmp_path / "out", annotations="nothing", media="ids")
    assert list(tmp_path.iterdir()) == []


def test_two_publications_are_the_same_bytes(built: Built, published: Path, tmp_path: Path) -> None:
    built.publish(tmp_path / "elsewhere")
    assert files(tmp_path / "elsewhere") == files(published)


def test_a_publication_is_replaced_whole(built: Built, tmp_path: Path) -> None:
    built.publish(tmp_path / "out")
    assert (tmp_path / "out/features").exists()
    built.publish(tmp_path / "out", annotations="all", media="ids")
    assert not (tmp_path / "out/features").exists()
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["thesis.tex", "captions/mine.txt", "README.md"])
def test_what_others_wrote_is_not_overwritten(built: Built, published: Path, tmp_path: Path, name: str) -> None:
    out = Path(shutil.copytree(published, tmp_path / "out"))
    (out / name).write_text("mine")
    before = files(out)
    with pytest.raises(UserError, match=rf"was changed since it was published \({name}\): move that away"):
        built.publish(out)
    assert files(out) == before


def test_a_folder_that_is_none_of_ours_is_refused(built: Built, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty \(thesis.tex\): move that away, or give a folder"):
        built.publish(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        built.publish(tmp_path / "thesis.tex")


KILLED = """
import os, signal, sys
from pathlib import Path
from pipelines.publishing.dataset_repository import publish
from xmodal.corpora import load
from xmodal.root.storage import open_storage

root, out, place = sys.argv[1:]
def kill(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith(place):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
storage, corpus = open_storage(root), load("coco")
publish(corpus, storage, Path(out))
"""


@pytest.mark.parametrize("place", ["captions/karpathy/test-00000-of-00001.parquet", "README.md", "/old", "/coco"])
def test_a_killed_publication_leaves_all_or_nothing(built: Built, published: Path, tmp_path: Path, place: str) -> None:
    """Killed before a file, before the card, before what was there is moved away, before the new one is put there."""
    out = Path(shutil.copytree(published, tmp_path / "coco")) if place == "/old" else tmp_path / "coco"
    command = [sys.executable, "-c", KILLED, built.storage.url, str(out), place]
    assert subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode == -signal.SIGKILL
    assert files(out) == (files(published) if place == "/old" else {})
    built.publish(out)
    assert files(out) == files(published)
    assert [name for name in os.listdir(tmp_path) if "coco" in name] == ["coco"]


def test_a_failed_publication_leaves_nothing(built: Built, tmp_path: Path) -> None:
    root = Path(shutil.copytree(built.storage.url, tmp_path / "root"))
    values = root / built.features[0].folder / "values/c/0/0"
    values.write_bytes(b"\1" + values.read_bytes()[1:])
    storage = open_storage(str(root))
    with pytest.raises(UserError, match=r"values/c/0/0 is not what was committed"):
        publish(built.corpus, storage, tmp_path / "new/out")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(built: Built) -> None:
    with pytest.raises(
        UserError, match=r"^/proc/out cannot be written \(No such file or directory\): give another folder"
    ):
        built.publish(Path("/proc/out"))


def test_two_processes_do_not_publish_into_one_folder(built: Built, tmp_path: Path) -> None:
    (tmp_path / ".out.publishing").mkdir()
    held = os.open(tmp_path / ".out.publishing", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="is being published by another process"):
        built.publish(tmp_path / "out")
    os.close(held)


def test_what_is_missing_is_said(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty, other_version = open_storage(str(tmp_path / "empty")), replace(built.corpus, version=2)
    for corpus, storage in ((built.corpus, empty), (other_version, built.storage)):
        with pytest.raises(UserError, match=r"build them first \(`xmodal build coco/records --root /\S+`\)$"):
            publish(corpus, storage, tmp_path / "out")
    monkeypatch.setattr("pipelines.publishing.dataset_card.CARDS", tmp_path)
    with pytest.raises(UserError, match=r"coco has no card: write \S+/coco\.md"):
        built.publish(tmp_path / "out")
    assert not (tmp_path / "out").exists()
