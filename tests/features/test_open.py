"""`xmodal.open`: three lines from a root to batches, and a clear line where something is missing."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import xmodal
from pipelines.demo.world import describe, scene
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.papers.recipe_runs import recipes
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.toy_root import PICTURES, WORLD, Facts, Media, facts, item_id, make_root
from tests.toy_root import one_thread as one_thread
from tests.toy_stages import Arrays, arrays
from xmodal.batches.dataset import Dataset
from xmodal.batches.loader import Loader
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.model_facts import ModelFacts
from xmodal.features.opening import open_features
from xmodal.features.store import FeatureStore, extents_file, index_files, shard_file, write_ragged_shard
from xmodal.media.preparation import Preparation
from xmodal.recipes import Tokens
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output, find
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import END, START
from xmodal.training.run_setup import Setup

ABSENT = (3, 8, 40)
HERE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("open"), items=60, absent=ABSENT)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("several"), items=60, features=2)


def records_root(folder: Path, splits: dict[str, list[int]], version: int = 1) -> str:
    """Records of ten scenes and facts of them, under splits of any names."""
    raw = folder / f"raw{version}"
    raw.mkdir()
    numbers = sorted({number for members in splits.values() for number in members})
    lines = [f"{item_id(n)}.jpg\t{describe(scene(WORLD, n), WORLD, p)}\n" for n in numbers for p in range(5)]
    (raw / "captions.tsv").write_text("".join(lines))
    named = {name: [f"{item_id(number)}.jpg" for number in members] for name, members in splits.items()}
    (raw / "splits.json").write_text(json.dumps(named))
    (raw / "pictures.txt").write_text("")
    root = str(folder / "root")
    CorpusBuild(
        BuildOptions(open_storage(root), raw=raw), replace(load(str(PICTURES)), counts={}, version=version)
    ).build("records")
    build(facts(Facts(10)), open_storage(root))
    return root


def line_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as found:
        call()
    assert "\n" not in str(found.value)
    return str(found.value)


def test_three_lines_from_a_root_to_batches(root: str) -> None:
    dataset = xmodal.open(root, "pictures")
    loader = dataset.loader(batch_size=32, dtype=torch.float32)
    batches = [batch.streams["annotated"] for batch in loader]

    numbers = [n for n in range(59) if n % 10 < 8 and n not in ABSENT]
    assert sum(len(part.captions) for part in batches) == 5 * len(numbers)
    store = FeatureStore(xmodal.find(root, "resnet")[0])
    for part in batches:
        for item, row in zip(part.visual_items.tolist(), part.visual.values, strict=True):
            wanted = store.read([item_id(numbers[item])])[0].astype("float32")
            np.testing.assert_array_equal(row[0].numpy(), wanted)
        for caption, length, ids in zip(part.captions.tolist(), part.text.lengths, part.text.values, strict=True):
            said = [dataset.vocabulary().words[word] for word in ids[1 : length - 1]]
            text = describe(scene(WORLD, numbers[caption // 5]), WORLD, caption % 5).lower()
            assert [word for word in said if word.isalpha()] == re.findall(r"[a-z]+", text)
            assert (ids[0], ids[length - 1]) == (START, END)


def test_words_are_those_of_the_tokens_that_are_named(root: str) -> None:
    dataset, tokens = xmodal.open(root, "pictures"), Tokens("whitespace", 1, cleaning="mrw", longest=2)
    words = dataset.vocabulary(tokens=tokens)
    assert (words.tokenizer, words.cleaning) == ("whitespace", "mrw")
    assert len(words) > len(dataset.vocabulary())
    for batch in dataset.loader("toy/train", tokens=tokens, batch_size=32):
        assert int(batch.streams["annotated"].text.lengths.max()) == 4


@pytest.mark.parametrize("name", ["two-branch-flickr30k-constraints", "similarity-coco", "cca-flickr30k"])
def test_features_that_are_lacking_are_built_as_the_paper_had_them(name: str, tmp_path: Path) -> None:
    root = records_root(tmp_path, {"one/test": [0, 1]})
    (records,) = find(root, "records")
    recipe = recipes()[name]
    crops = "--set features.output=fc7 --set features.views=ten"
    for network, model in (("", "torchvision/vgg19"), ("torchvision/vgg16", "torchvision/vgg16")):
        asked = replace(recipe, visual=replace(recipe.visual, network=network))
        said = line_of(partial(Setup(root).visual, asked, records))
        assert f"`xmodal build pictures/features --root {root} --set features.model={model} {crops}`" in said
    resnet = replace(recipe, visual=replace(recipe.visual, stage="regions"))
    assert "--set" not in line_of(partial(Setup(root).visual, resnet, records))
    assert fingerprint(recipe) == fingerprint(replace(recipe, visual=replace(recipe.visual, built=())))


def test_any_split_can_be_read(root: str) -> None:
    dataset = xmodal.open(root, "pictures")
    assert dataset.splits == {"toy/train": 48, "toy/val": 6, "toy/test": 5, "toy/silent": 1}
    (batch,) = dataset.loader("toy/val", batch_size=32, captions="one")
    assert len(batch.streams["annotated"].visual_items) == 5  # one of the six has no features
    reader = dataset.reader("toy/test")
    assert reader.examples.ids == tuple(item_id(n) for n in range(59) if n % 10 == 9)
    assert len(reader.visual(slice(0, 5)).values) == 5
    assert "has no split 'toy/dev'; there are: toy/train, toy/val" in line_of(lambda: dataset.loader("toy/dev"))


def test_a_dataset_says_what_there_is(root: str, several: str, tmp_path: Path) -> None:
    (output,) = xmodal.find(root, "resnet")
    assert str(xmodal.open(root, "pictures")) == (
        f"pictures in {root}\n"
        "splits: toy/train (48), toy/val (6), toy/test (5), toy/silent (1)\n"
        "features:\n"
        f"  resnet/{output.identity} (absent=[3, 8, 40], items=60, places=0, seed=0, shown=scene, width=64)"
    )
    assert str(xmodal.open(several, "pictures")).count("\n  resnet/") == 2
    bare = make_root(tmp_path, items=20, features=0)
    assert str(xmodal.open(bare, "pictures")).endswith("features: none yet")


def test_one_of_several_features_must_be_named(several: str) -> None:
    dataset = xmodal.open(several, "pictures")
    first, second = (output.identity for output in xmodal.find(several, "resnet"))
    for name, message in (
        (None, "there are several sets of features"),
        ("resnet", "several sets of features 'resnet'"),
    ):
        line = line_of(lambda name=name: dataset.loader(features=name))  # type: ignore[misc]
        assert message in line
        assert f"resnet/{first} (" in line
        assert f"resnet/{second} (" in line
    for chosen in (second, f"resnet/{second}"):
        assert dataset.store(chosen).output.identity == second
    assert "no features 'regions'; there are: resnet/" in line_of(lambda: dataset.store("regions"))


def test_features_are_chosen_by_stage(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=20)
    build(arrays(Arrays(20)), open_storage(root))
    dataset = xmodal.open(root, "pictures")
    assert dataset.store("arrays").spec.name == "regions"
    assert len(list(dataset.loader(features="resnet"))) == 1


@dataclass(frozen=True)
class ModelRows(Facts):
    output: str = "pooled"
    prepared: ModelFacts | None = None


def test_scores_of_classes_count_only_where_they_are_named(tmp_path: Path) -> None:
    """The tags stage makes them for itself."""
    root = make_root(tmp_path, items=60, features=0)
    records = xmodal.open(root, "pictures").records
    scores = build(replace(facts(ModelRows(60, output="classes")), name="features"), open_storage(root))
    with pytest.raises(UserError, match=f"no features but scores of classes.* these by --features {scores.identity}"):
        open_features(root, "features", None, records)
    with pytest.raises(UserError, match="there are no features"):
        xmodal.open(root, "pictures").store()
    rows = build(replace(facts(ModelRows(60, seed=1)), name="features"), open_storage(root))
    assert open_features(root, "features", None, records).output.identity == rows.identity
    assert open_features(root, "features", scores.identity, records).output.identity == scores.identity
    assert xmodal.open(root, "pictures").store().output.identity == rows.identity
    assert xmodal.open(root, "pictures").store(scores.identity).output.identity == scores.identity


def test_outputs_are_told_apart_in_plain_words(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=60, features=0)
    for width in (32, 64):
        prepared = ModelFacts(Preparation((width,), (width, width)), (width,), 1.0)
        build(replace(facts(ModelRows(60, width=width, prepared=prepared)), name="features"), open_storage(root))
    there = line_of(lambda: open_features(root, "features", None, xmodal.open(root, "pictures").records))
    assert re.search(r"\(width=32\), \w+ \(width=64\)|\(width=64\), \w+ \(width=32\)", there)
    assert "{" not in there
    assert "{" not in str(xmodal.open(root, "pictures"))


def test_what_is_missing_is_said_in_a_line(root: str, tmp_path: Path) -> None:
    bare = make_root(tmp_path, items=20, features=0)
    line = line_of(lambda: xmodal.open(bare, "pictures").loader())
    assert "pictures in " in line
    assert "there are no features" in line
    assert "build" in line
    assert f"no corpus 'coco' under {root}: build it first" in line_of(lambda: xmodal.open(root, "coco"))
    for nowhere in (str(tmp_path / "nowhere"), str(tmp_path)):
        assert "build it first" in line_of(lambda nowhere=nowhere: xmodal.open(nowhere, "pictures"))  # type: ignore[misc]
    assert f"{PICTURES} is a file" in line_of(lambda: xmodal.open(str(PICTURES), "pictures"))


def test_the_network_that_is_named_stands_in_the_command_that_builds_its_features(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=20, features=0)
    records = xmodal.open(root, "pictures").records
    said = line_of(lambda: open_features(root, "resnet", None, records, network="resnet152"))
    assert f"build it first (`xmodal build pictures/resnet --root {root} --set resnet.network=resnet152`)" in said
    said = line_of(lambda: open_features(root, "features", None, records, network="torchvision/vgg19"))
    assert f"pictures/features --root {root} --set features.model=torchvision/vgg19`)" in said


def test_features_of_another_media_set_are_left_out(tmp_path: Path) -> None:
    other = make_root(tmp_path / "other", items=20, media="others")
    assert xmodal.open(other, "pictures").features == ()
    assert "there are no features" in line_of(lambda: xmodal.open(other, "pictures").loader())
    own = make_root(tmp_path / "own", items=20, media="pictures")
    foreign = replace(facts(Facts(20)), inputs=(Stage("media", Media("others"), plan, open_nothing),))
    build(foreign, open_storage(own))
    assert len(xmodal.find(own, "resnet")) == 2
    dataset = xmodal.open(own, "pictures")
    assert len(dataset.features) == 1
    assert len(list(dataset.loader())) == 1


def test_unfinished_features_are_left_out(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=20, features=2)
    unfinished = xmodal.find(root, "resnet")[0]
    (Path(unfinished.where) / "complete.json").unlink()
    assert len(xmodal.open(root, "pictures").features) == 1


def test_without_a_training_split_a_split_must_be_named(tmp_path: Path) -> None:
    dataset = xmodal.open(records_root(tmp_path, {"dev": [0, 1, 2], "test": [3, 4]}), "pictures")
    assert line_of(dataset.loader) == "pictures: name the split to load; there are: dev, test"


def test_a_split_that_was_named_is_not_asked_for(tmp_path: Path) -> None:
    """What lacks is a training split, of which the words are to be taken."""
    dataset = xmodal.open(records_root(tmp_path, {"dev": [0, 1, 2], "test": [3, 4]}), "pictures")
    assert "name the split to load" not in line_of(lambda: dataset.loader("dev"))


def test_of_two_training_splits_the_one_that_is_named_is_read(tmp_path: Path) -> None:
    root = records_root(tmp_path, {"one/train": [0, 1, 2, 3], "two/train": [6, 7], "one/val": [4], "two/val": [5]})
    dataset = xmodal.open(root, "pictures")
    assert line_of(dataset.loader).endswith("name the split to load; there are: one/train, one/val, two/train, two/val")
    assert len(dataset.reader("two/train").examples.ids) == 2


def test_of_several_records_of_a_corpus_one_can_be_opened(tmp_path: Path) -> None:
    """Without a word it is that of the last build; where nothing tells which that is, the refusal names them."""
    records_root(tmp_path, {"toy/train": [0, 1, 2, 3]})
    root = records_root(tmp_path, {"toy/train": [4, 5]}, version=2)
    assert len(xmodal.find(root, "records")) == 2
    assert xmodal.open(root, "pictures").records.config["corpus_version"] == 2
    shutil.rmtree(f"{root}/_runs")
    line = line_of(lambda: xmodal.open(root, "pictures"))
    assert "say which" in line
    for output in xmodal.find(root, "records"):
        assert xmodal.open(root, "pictures", output.identity).records.identity == output.identity


@dataclass(frozen=True)
class Clips:
    """Clip n has n + 1 frames, each with its place in it."""

    items: int

    @property
    def spec(self) -> FeatureSpec:
        return FeatureSpec("frames", (16,), "float16", True, 128, 1024, 64)


def clips(config: Clips) -> Stage[Clips, None]:
    return Stage("clips", config, plan, open_clips)


def plan(config: object, inputs: Inputs) -> Iterator[tuple[str, None]]:
    yield "all", None


def open_clips(config: Clips, inputs: Inputs) -> Callable[[None, Sink], Counts]:
    ids = [item_id(number) for number in range(config.items)]
    rows = [np.repeat(np.arange(n + 1)[:, None], 16, axis=1).astype(np.float16) for n in range(config.items)]

    def write(work: None, sink: Sink) -> Counts:
        files = index_files(config.spec, ids, {"network": "none"})
        with sink.file(shard_file(config.spec, 0)) as file:
            files[extents_file(config.spec, 0)] = write_ragged_shard(file, config.spec, range(config.items), rows)
        for name, data in files.items():
            with sink.file(name) as file:
                file.write(data)
        return {}

    return write


def open_nothing(config: Media, inputs: Inputs) -> Callable[[None, Sink], Counts]:
    return lambda work, sink: {}


def test_clips_are_read_whole_or_by_some_frames(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=30, features=0)
    build(clips(Clips(30)), open_storage(root))
    dataset = xmodal.open(root, "pictures")
    lengths = set[int]()
    for batch in dataset.loader(batch_size=16):
        part = batch.streams["annotated"].visual
        assert part.values[:, :, 0].amax(1).tolist() == (part.lengths - 1).tolist()
        lengths |= set(part.lengths.tolist())
    assert lengths == {n + 1 for n in range(29) if n % 10 < 8}
    for batch in Loader(dataset.reader("toy/train", frames=4), 16):
        places = batch.streams["annotated"].visual.values[:, :, 0]
        assert places.shape[1] == 4
        assert (places.diff(dim=1) >= 0).all()
        assert (places.diff(dim=1) <= 3).all()
    whole = dataset.reader("toy/test", frames=4).visual(slice(None))
    assert whole.values[:, :, 0].tolist() == [[0, 2, 4, 6], [0, 5, 10, 15]]


def test_frames_of_what_is_no_clip_are_refused(root: str) -> None:
    dataset = xmodal.open(root, "pictures")
    with pytest.raises((UserError, ValueError), match="frames"):
        dataset.reader("toy/train", frames=8)


IMPORTS = """
import sys
import xmodal
heavy = {"torch", "pyarrow", "nltk", "ray", "numpy"}
print(sorted(heavy & set(sys.modules)))
dataset = xmodal.open(sys.argv[1], "pictures")
print(str(dataset).count("toy/train"), sorted({"torch", "ray"} & set(sys.modules)))
loader = dataset.loader()
print(len(loader), "torch" in sys.modules, "ray" in sys.modules)
"""


def test_torch_comes_in_with_the_first_loader(root: str) -> None:
    found = subprocess.run([sys.executable, "-c", IMPORTS, root], cwd=HERE, capture_output=True, text=True, check=False)
    assert found.stderr == ""
    assert found.stdout.splitlines() == ["[]", "1 []", "2 True False"]


def test_a_dataset_is_plain_data(root: str) -> None:
    dataset = xmodal.open(root, "pictures")
    assert isinstance(dataset, Dataset)
    assert isinstance(dataset.records, Output)
    assert [output.stage for output in dataset.features] == ["resnet"]


def test_features_that_were_imported_under_the_name_of_a_stage_are_not_taken_for_its_output(tmp_path: Path) -> None:
    """Names that are refused today may lie under a root since before."""
    root = make_root(tmp_path, items=20)
    expected = xmodal.open(root, "pictures")
    for name in ("clean", "vocabulary", "sentences", "plausible"):
        build(replace(facts(Facts(20)), name=name), open_storage(root))
    found = xmodal.open(root, "pictures")
    assert (found.splits, found.vocabulary().words) == (expected.splits, expected.vocabulary().words)
    assert not found.has_plausible
    with pytest.raises(UserError, match="there are no sentences"):
        found.sentences()


@pytest.mark.parametrize(("file", "text"), [("stage.json", "{"), ("complete.json", '{"layout":1}')])
def test_damaged_features_stop_nobody_but_who_asks_for_them(file: str, text: str, tmp_path: Path) -> None:
    root = make_root(tmp_path, items=20)
    spoilt = build(replace(facts(Facts(20, seed=5)), name="theirs"), open_storage(root))
    Path(spoilt.where, file).write_text(text)
    found = xmodal.open(root, "pictures")
    assert found.store("resnet").output.stage == "resnet"
    assert spoilt.folder in str(found)
    for asked in (*spoilt.folder.split("/"), spoilt.folder):
        with pytest.raises(UserError, match=rf"{spoilt.folder}/{file}.*: `xmodal verify --forget --root {root}`"):
            found.store(asked)
    with pytest.raises(UserError, match=spoilt.folder):  # it might be what is meant
        found.store()


def test_features_of_other_items_are_told_from_captions_that_lack(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=20)
    others = replace(arrays(Arrays(20)), name="theirs")
    build(others, open_storage(root))
    said = (
        r"none has both features and captions: 16, such as 'p0000', have no features in .*, whose ids are .* 'i00000'$"
    )
    with pytest.raises(UserError, match=said):
        xmodal.open(root, "pictures").loader("toy/train", "theirs")
