"""The sentences stage: every caption a row, the same bytes by any workers and after crashes, read as a text side."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipelines.cli import main
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build, serial
from pipelines.engine.ray_runner import RayRunner
from pipelines.engine.stage import Stage
from pipelines.stages.texts.codebook import CodebookConfig
from pipelines.stages.texts.sentences import SentencesConfig
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.conftest import tree_digest
from tests.engine.test_engine import Crash, CrashingStorage
from tests.made import sentences
from tests.toy_root import PICTURES, item_id, make_root
from tests.toy_root import one_thread as one_thread
from xmodal import find
from xmodal.batches.batch import Padded
from xmodal.batches.dataset import open_dataset
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.progress import Silence
from xmodal.recipes import Features, View
from xmodal.records.tables import Caption, read_rows
from xmodal.root.outputs import Output
from xmodal.root.storage import Storage, open_storage
from xmodal.text.sentence_vectors import Codebook, Coding, fit
from xmodal.text.tokenizers import tokenizer
from xmodal.text.vector_files import VectorFile
from xmodal.text.vector_index import write_index
from xmodal.training.validation import measure

CODING = CodebookConfig(components=2, width=16, sample=100)
SMALL = SentencesConfig("float32", rows_per_shard=64)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("sentences"), items=60, absent=(3,))


@pytest.fixture(scope="module")
def vectors(root: str) -> Path:
    """Of every word but "a"."""
    split = tokenizer("nltk")
    words = sorted({word for caption in captions(root).values() for word in split(caption.text)} - {"a"})
    values = np.random.default_rng(0).normal(size=(len(words), 7)) ** 3
    lines = (f"{word} {' '.join(f'{value:.5f}' for value in row)}\n" for word, row in zip(words, values, strict=True))
    path = Path(root).parent / "vectors.txt"
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def made(root: str, vectors: Path) -> Output:
    return build(stage(root, vectors), open_storage(root))


def stage(root: str, vectors: Path | None, coding: CodebookConfig = CODING) -> Stage[Any, Any]:
    return sentences(find(root, "records")[0], coding, SMALL, vectors)


def captions(root: str) -> dict[str, Caption]:
    return {caption.id: caption for caption in read_rows(find(root, "records")[0], Caption)}


def test_every_caption_is_a_row(root: str, made: Output) -> None:
    store, (fitted,) = FeatureStore(made), find(root, "codebook")
    texts = captions(root)
    assert store.ids == tuple(sorted(texts))
    assert not store.absent
    codebook = Codebook.from_bytes(fitted.read("codebook.npz"), "codebook")
    expected = codebook.encode([texts[id].text for id in store.ids])
    np.testing.assert_allclose(store.read(store.ids), expected, atol=1e-6)
    assert made.totals["counts"] == {"rows": 295, "without words": 0}
    assert fitted.totals["counts"] == {
        "captions": 100,
        "words": len(codebook.words),
        "words without vectors": 1,
    }
    assert "a" not in codebook.words
    told = store.provenance
    assert (told["method"], told["split"], told["width"], told["captions"]) == ("hglmm", "toy/train", 16, 100)
    assert told["vectors"].startswith("sha256:")
    assert len(made.units().__next__().files) > 1


def test_it_is_fitted_on_captions_of_the_training_split(root: str, vectors: Path, tmp_path: Path) -> None:
    """Other captions of other splits change no number of it, though their words are in it."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for path in (Path(root).parent / "raw").iterdir():
        (raw / path.name).write_bytes(path.read_bytes())
    lines = (raw / "captions.tsv").read_text().splitlines()
    held_out = {f"{item_id(number)}.jpg" for number in range(60) if number % 10 > 7}
    changed = [line + " changed" if line.partition("\t")[0] in held_out else line for line in lines]
    assert changed != lines
    (raw / "captions.tsv").write_text("\n".join(changed) + "\n")
    records = CorpusBuild(
        BuildOptions(open_storage(str(tmp_path / "r")), raw=raw), replace(load(str(PICTURES)), counts={})
    ).build("records")
    other = build(sentences(records, CODING, SMALL, vectors), open_storage(str(tmp_path / "r")))
    (ours,), (theirs,) = (find(where, "codebook") for where in (root, str(tmp_path / "r")))
    one, another = (Codebook.from_bytes(output.read("codebook.npz"), "it") for output in (ours, theirs))
    assert one.mixture
    assert another.mixture
    np.testing.assert_array_equal(one.mixture.centres_KD, another.mixture.centres_KD)
    assert len(FeatureStore(other)) == 295


def test_captions_that_did_not_change_keep_their_codes(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, encoded, encode = make_root(tmp_path, items=60, absent=(3,)), list[str](), Codebook.encode
    monkeypatch.setattr(Codebook, "encode", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    first = build(stage(root, vectors), open_storage(root))
    assert len(encoded) == first.totals["counts"]["rows"]
    raw, encoded[:] = tmp_path / "raw/captions.tsv", []
    lines = raw.read_text().splitlines()
    held_out = [place for place, line in enumerate(lines) if line.startswith(f"{item_id(8)}.jpg")]
    for place in held_out[1:]:
        lines[place] = f"{lines[place]} {lines[0].split()[-1]}"
    raw.write_text("\n".join([*lines[: held_out[0]], *lines[held_out[0] + 1 :]]) + "\n")

    def changed(root: str) -> Output:
        options = BuildOptions(open_storage(root), raw=raw.parent)
        records = CorpusBuild(options, replace(load(str(PICTURES)), counts={})).build("records")
        return build(sentences(records, CODING, SMALL, vectors), options.storage)

    shutil.rmtree(f"{root}/_runs/ledger")  # else the files of before are still good
    grown = changed(root)
    assert len(encoded) == len(held_out) - 1
    assert tree_digest(grown.where) == tree_digest(changed(str(tmp_path / "nothing")).where)


def backwards(open_worker: Any, units: Iterator[tuple[str, Any]], resources: Any) -> Iterator[Any]:
    return serial(open_worker, iter(list(units)[::-1]), resources)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("run", [backwards, RayRunner(1), RayRunner(2)], ids=["backwards", "one", "two"])
def test_workers_and_their_order_change_no_byte(
    root: str, vectors: Path, made: Output, tmp_path: Path, run: Any
) -> None:
    again = build(stage(root, vectors), open_storage(str(tmp_path)), run)
    assert tree_digest(again.where) == tree_digest(made.where)
    assert tree_digest(str(tmp_path / "codebook")) == tree_digest(f"{root}/codebook")


@pytest.mark.parametrize("point", [0, 5, 12, 20, 31, 44, 60])
def test_a_build_that_crashed_goes_on_to_the_same_bytes(
    root: str, vectors: Path, made: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    dying: Storage = CrashingStorage(str(tmp_path), point)
    here = open_storage
    monkeypatch.setattr("pipelines.engine.building.open_storage", lambda url: dying if url == dying.url else here(url))
    with pytest.raises(Crash):
        build(stage(root, vectors), dying)
    monkeypatch.undo()
    again = build(stage(root, vectors), open_storage(str(tmp_path)))
    assert tree_digest(again.where) == tree_digest(made.where)


def test_what_decides_an_identity(root: str, vectors: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.txt"
    moved.write_bytes(vectors.read_bytes())
    write_index(VectorFile.open(vectors), tmp_path / "index")
    assert stage(root, moved).identity == stage(root, tmp_path / "index").identity == stage(root, vectors).identity
    moved.write_bytes(vectors.read_bytes()[:-20])
    stages = [stage(root, vectors), stage(root, moved), stage(root, None, replace(CODING, method="tfidf"))]
    changes: list[dict[str, Any]] = [{"components": 3}, {"width": 8}, {"sample": 99}, {"seed": 1}, {"method": "gmm"}]
    stages += [stage(root, vectors, replace(CODING, **some)) for some in changes]
    assert len({each.identity for each in stages}) == len(stages)
    tfidf = replace(CODING, method="tfidf")
    assert stage(root, vectors, tfidf).identity == stage(root, None, tfidf).identity


def test_what_is_missing_is_named(root: str, vectors: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"by hglmm need word vectors: give the file \(--vectors FILE\)"):
        stage(root, None)
    with pytest.raises(UserError, match=r"^/.*/nowhere\.txt cannot be read: No such file"):
        stage(root, tmp_path / "nowhere.txt")
    (picture := tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(UserError, match=r"line 1 .* is neither a word"):
        stage(root, picture)
    with pytest.raises(UserError, match="has no split 'toy/dev'"):
        build(stage(root, vectors, replace(CODING, split="toy/dev")), open_storage(root))
    with pytest.raises(UserError, match="pictures has no human captions in 'toy/silent'"):
        build(stage(root, vectors, replace(CODING, split="toy/silent")), open_storage(root))
    with pytest.raises(UserError, match="does not fill whole pages"):
        build(replace(stage(root, vectors), config=replace(SMALL, rows_per_shard=63)), open_storage(root))
    with pytest.raises(ValueError, match="at least one caption"):
        CodebookConfig(sample=0)


def test_captions_without_words_are_counted(root: str, tmp_path: Path) -> None:
    """Three words alone have a vector here."""
    path = tmp_path / "few.txt"
    path.write_text("red 1 2 3\nblue 3 1 2\nis 0 1 0\n")
    config = replace(SMALL, rows_per_shard=1024)
    few = replace(stage(root, path, replace(CODING, method="mean")), config=config)
    output = build(few, open_storage(str(tmp_path / "root")))
    without = output.totals["counts"]["without words"]
    store, split = FeatureStore(output), tokenizer("nltk")
    assert without == sum({"red", "blue", "is"}.isdisjoint(split(c.text)) for c in captions(root).values())
    assert 0 < without < 295
    assert int((~store.read(store.ids).any(axis=1)).sum()) == without


class Nearest:
    """A scorer that compares the sum of what it is given; it notes what that was."""

    def __init__(self) -> None:
        self.texts: list[Tensor] = []

    def encode_visual(self, visual: Padded) -> Tensor:
        return visual.values.flatten(1)[:, :16]

    def encode_text(self, text: Padded) -> Tensor:
        self.texts.append(text.values)
        return text.average()

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T


def test_a_loader_gives_vectors_in_place_of_words(root: str, made: Output) -> None:
    dataset = open_dataset(root, "pictures")
    store = FeatureStore(made)
    assert [output.stage for output in dataset.features] == ["resnet"], "they are no features of items"
    assert dataset.sentences(made.identity).output.folder == made.folder
    loader = dataset.loader("toy/train", sentences=store, batch_size=32, dtype=torch.float32)
    reader = dataset.reader("toy/train", sentences=store)
    seen = 0
    for batch in loader:
        stream = batch.streams["annotated"]
        ids = [reader.examples.caption_ids[number] for number in stream.captions]
        assert stream.text.values.shape == (len(ids), 1, 16)
        np.testing.assert_array_equal(stream.text.values[:, 0], store.read(ids))
        items = [reader.examples.ids[number] for number in stream.visual_items]
        assert [captions_of[id].item for id in ids] == items if (captions_of := captions(root)) else False
        seen += len(ids)
    assert seen == len(reader.examples.caption_ids) == 47 * 5


def test_several_sets_of_sentences_are_told_apart_by_what_made_them(tmp_path: Path, vectors: Path) -> None:
    root = make_root(tmp_path, items=60)
    assert "sentences:" not in str(open_dataset(root, "pictures"))
    for coding in (CodebookConfig("tfidf", width=16), CodebookConfig("tfidf", width=32)):
        build(stage(root, vectors, coding), open_storage(root))
    with pytest.raises(UserError, match=r"several sets of sentences; .*width=(16|32).*; \w+ \(.*width=(16|32)"):
        open_dataset(root, "pictures").sentences()
    told = str(open_dataset(root, "pictures")).partition("\nsentences:\n")[2]
    assert all(setting in told for setting in ("method=tfidf", "width=16", "width=32")), told


def test_a_tokenizer_is_made_once_for_any_number_of_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fit(Coding("tfidf", tokenizer="whitespace"), ["a b", "b c"])[0]
    asked = list[str]()
    monkeypatch.setattr("xmodal.text.sentence_vectors.tokenizer", lambda *names: asked.append(names[0]) or str.split)
    for caption in ("a", "b", "c"):
        made.encode([caption])
    assert asked == ["whitespace"]


def test_vectors_in_half_precision_are_computed_with_in_single(root: str, vectors: Path, tmp_path: Path) -> None:
    half = sentences(find(root, "records")[0], CODING, replace(SMALL, dtype="float16", rows_per_shard=128), vectors)
    store = FeatureStore(build(half, open_storage(str(tmp_path))))
    dataset = open_dataset(root, "pictures")
    for captions_of in ("each", "one", "all"):
        (batch, *_) = Loader(dataset.reader("toy/val", sentences=store), 5, captions=captions_of, dtype=torch.float32)  # type: ignore[arg-type]
        assert batch.streams["annotated"].text.values.dtype == torch.float32
    (batch, *_) = Loader(dataset.reader("toy/val", sentences=store), 5)
    assert batch.streams["annotated"].text.values.dtype == torch.float16
    scorer = Nearest()
    measure(scorer, dataset.reader("toy/val", sentences=store), Silence())
    assert {text.dtype for text in scorer.texts} == {torch.float32}


def test_evaluation_scores_vectors(root: str, made: Output) -> None:
    store, view = FeatureStore(made), View("pictures", "toy/val", captions_per_item=2)
    examples = Examples.of(find(root, "records")[0], view, FeatureStore(find(root, "resnet")[0]), store)
    reader, scorer = Reader(examples, FeatureStore(find(root, "resnet")[0]), Features("resnet")), Nearest()
    scores = measure(scorer, reader, Silence(), blocks=(3, 4))
    texts = torch.cat(scorer.texts)[:, 0]
    np.testing.assert_array_equal(texts, store.read(examples.caption_ids))
    matrix = scorer.encode_visual(Padded.whole(reader.visual(slice(None)).values.float())) @ texts.T
    first = matrix.argmax(dim=0).numpy() == examples.caption_items
    assert scores["all"].text_to_visual["R@1"] == pytest.approx(100 * first.mean())


def test_sentences_of_other_captions_are_refused(root: str, made: Output, tmp_path: Path) -> None:
    other = make_root(tmp_path, items=70)
    with pytest.raises(UserError, match="has no row for 'c03"):
        open_dataset(other, "pictures").reader("toy/train", sentences=FeatureStore(made))
    with pytest.raises(UserError, match=r"no sentences.*build some first \(`xmodal build pictures/sentences --root"):
        open_dataset(other, "pictures").sentences()


def test_the_command_line_builds_and_plans_them(
    root: str, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "pictures.py"
    corpus.write_text(
        PICTURES.read_text().replace('counts={"items:pictures/train": 6, "items:pictures/val": 2, "captions": 16},', "")
    )
    raw = str(Path(root).parent / "raw")
    flags = ["--root", str(tmp_path / "root"), "--raw", raw, "--serial", "--set", "codebook.width=16"]
    target = f"{corpus}/sentences"
    run: Callable[[list[str]], tuple[int, str, str]] = lambda words: (main(words), *capsys.readouterr())  # noqa: E731
    assert "after records" in run(["plan", target, *flags])[1]
    assert main(["build", str(corpus), *flags]) == 0
    capsys.readouterr()
    code, _, said = run(["build", target, *flags])
    assert (code, "--vectors FILE" in said) == (1, True)
    flags += ["--vectors", str(vectors), "--set", "components=2"]
    assert "after codebook" in run(["plan", target, *flags])[1]
    code, out, _ = run(["build", target, *flags, "--json"])
    (row,) = json.loads(out)["outputs"]
    assert (code, row["counts"], row["built"]) == (0, {"rows": 295, "without words": 0}, True)
    assert "2 of 2 units done" in run(["plan", target, *flags])[1]
