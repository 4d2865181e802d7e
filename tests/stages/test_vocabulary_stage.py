"""The vocabulary stage: what a plain count of the same captions gives, however they are cut and wherever counted."""

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.cli import main
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.ray_runner import RayRunner, disconnect
from pipelines.stages.texts import vocabulary as stage
from pipelines.stages.texts.vocabulary import VocabularyConfig
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.conftest import tree_digest
from xmodal.batches.texts import vocabulary
from xmodal.corpora import Corpus, load
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.recipes import Tokens, View
from xmodal.records.tables import Caption, Row
from xmodal.records.views import caption_texts
from xmodal.root.outputs import Output, find
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import SPECIALS, Vocabulary

CAPTIONS = [
    "A man's red/blue dog isn't here.",
    "the DOG runs to r/dogs, 🐶 again",
    "東京 at night; a well-made café",
    "A dog. It runs.",
    "ant\ttab <pad> bee",
]
PICTURES = Path(__file__).parents[1] / "fixtures/pictures.py"


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """So that words are cut between two of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "PIECE", 5)
        yield


def corpus() -> Corpus:
    """Of every picture a machine says something too."""
    known = load(str(PICTURES))

    def parse(raw: Raw) -> Iterator[Row]:
        for row in known.parse(raw):
            yield row
            if isinstance(row, Caption):
                yield replace(row, id=f"{row.id}!", text="what a machine says", source="semantics")

    return replace(known, parse=parse, counts={})


def publish(folder: Path, splits: tuple[str, ...] = ("toy/train", "toy/val"), items: int = 40) -> Path:
    folder.mkdir()
    ids = [f"p{number:03d}" for number in range(items)]
    told = [f"{id}.jpg\t{CAPTIONS[(n + p) % 5]} {id}\n" for n, id in enumerate(ids) for p in range(n % 4 + 1)]
    (folder / "captions.tsv").write_text("".join(told).replace("ant\ttab", "ant tab"))
    share = items // len(splits)
    names = {name: [f"{id}.jpg" for id in ids[n * share : (n + 1) * share]] for n, name in enumerate(splits)}
    (folder / "splits.json").write_text(json.dumps(names))
    (folder / "pictures.txt").write_text("")
    return folder


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tmp_path_factory.mktemp("raw") / "published")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "root"


def site(root: Path, raw: Path, **settings: object) -> BuildOptions:
    named = {f"vocabulary.{name}": value for name, value in settings.items()}
    return BuildOptions(open_storage(str(root)), raw=raw, settings={"records.row_group": 7} | named)


def built(where: BuildOptions) -> Output:
    (row,) = build_stages(CorpusBuild(where, corpus()), ["vocabulary"])
    return Output(where.storage, f"vocabulary/{row['identity']}")


def read(output: Output) -> Vocabulary:
    return Vocabulary.from_bytes(output.read("vocabulary.txt"), output.where)


@pytest.mark.parametrize(
    "config",
    [
        VocabularyConfig("toy/train"),
        VocabularyConfig("toy/train", minimum_count=1),
        VocabularyConfig("toy/val", captions_per_item=2, minimum_count=2),
        VocabularyConfig("toy/train", text="semantics", minimum_count=1),
        VocabularyConfig("toy/train", tokenizer="whitespace", cleaning="mrw", minimum_count=1),
        VocabularyConfig("toy/train", tokenizer="dual-path-coco", minimum_count=1),
        VocabularyConfig("toy/train@50%", captions_per_item=3, minimum_count=1),
    ],
)
def test_it_is_what_a_plain_count_gives(config: VocabularyConfig, shared: Path, raw: Path) -> None:
    output = built(site(shared, raw, **{field.name: getattr(config, field.name) for field in fields(config)}))
    (records,) = find(str(shared), "records")
    told = list(caption_texts(records, View("pictures", config.split, config.captions_per_item, config.text)))
    wanted = Vocabulary.build(told, config.tokenizer, config.minimum_count, config.cleaning)
    assert read(output) == wanted
    assert len(wanted) > len(SPECIALS) + 3
    (counts,) = (
        made for made in find(str(shared), stage.COUNTS) if made.identity == output.about["inputs"][1]["identity"]
    )
    assert len(counts.files) > 5
    assert counts.totals["counts"]["captions"] == len(told)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from([*"abcdé", "🐶", "aa", "東"]), max_size=9).map(" ".join), max_size=20))
def test_counts_merge_however_captions_are_cut(told: list[str]) -> None:
    whole = Vocabulary.build(told, "whitespace", 2)
    for cut in (1, 3, 20):
        parts = [told[begin : begin + cut] for begin in range(0, len(told), cut)]
        merged = stage.merged(iter(sorted(stage.count_words(part, "whitespace").items())) for part in parts)
        assert Vocabulary.of_counts(merged, "whitespace", 2) == whole


def test_merging_holds_a_piece_of_each_file_and_the_words_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the words that were counted."""
    monkeypatch.setattr(stage, "PIECE", 1 << 10)
    names = [f"part-{part:06d}.tsv" for part in range(8)]
    for part, name in enumerate(names):
        words = sorted([f"common{n}" for n in range(100)] + [f"rare{part}of{n:07d}" for n in range(4_000)])
        (tmp_path / name).write_text("".join(f"{word}\t1\n" for word in words))
    data = {name: (tmp_path / name).read_bytes() for name in names}
    sizes, sums = ({name: of(data[name]) for name in names} for of in (len, lambda some: sha256(some).hexdigest()))
    counts: Any = SimpleNamespace(files=sizes, checksums=sums, open=lambda name: (tmp_path / name).open("rb"))
    del data
    tracemalloc.start()
    made = Vocabulary.of_counts(stage.merged(stage._entries(counts, name) for name in names), "nltk", 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made) == len(SPECIALS) + 100
    assert peak < sum(sizes.values()) / 2 < 500_000


def test_a_minimum_that_no_word_reaches_is_refused(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no word of 'toy/train' occurs 9,999 times \(vocabulary\.minimum_count\)"):
        built(site(tmp_path / "root", raw, split="toy/train", minimum_count=9999))


def test_another_minimum_counts_nothing_again(raw: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    many, few = (built(site(root, raw, minimum_count=minimum)) for minimum in (1, 4))
    assert len(find(str(root), stage.COUNTS)) == 1
    assert set(read(few).words) < set(read(many).words)
    assert many.config["split"] == "toy/train", "the one to train on"


def test_workers_give_the_same_bytes(raw: Path, tmp_path: Path) -> None:
    alone = built(site(tmp_path / "alone", raw))
    try:
        together = built(replace(site(tmp_path / "ray", raw), run=RayRunner(workers=2)))
    finally:
        disconnect()
    assert tree_digest(alone.where) == tree_digest(together.where)
    for folder in (stage.COUNTS, "records"):
        assert tree_digest(str(tmp_path / "alone" / folder)) == tree_digest(str(tmp_path / "ray" / folder))


def test_training_reads_what_was_built_of_just_its_words(raw: Path, tmp_path: Path) -> None:
    output = built(site(tmp_path / "root", raw, captions_per_item=2, minimum_count=2))
    (records,) = find(str(tmp_path / "root"), "records")
    view, tokens = View("pictures", "toy/train", captions_per_item=2), Tokens("nltk", minimum_count=2)
    wanted = Vocabulary.build(caption_texts(records, view), "nltk", 2)
    assert vocabulary(records, view, tokens) == wanted
    path = Path(output.where) / "vocabulary.txt"
    path.write_bytes(path.read_bytes().replace(b"dog\n", b"dig\n"))
    with pytest.raises(UserError, match=r"vocabulary\.txt is not what was committed"):
        vocabulary(records, view, tokens)
    others: list[tuple[View, dict[str, Any]]] = [
        (replace(view, captions_per_item=None), {}),
        (replace(view, split="toy/val"), {}),
        (view, {"minimum_count": 1}),
        (view, {"cleaning": "mrw"}),
        (view, {"tokenizer": "whitespace"}),
    ]
    for other, changes in others:  # counted here
        asked = replace(tokens, **changes)
        found = vocabulary(records, other, asked)
        texts = caption_texts(records, other)
        assert found == Vocabulary.build(texts, asked.tokenizer, asked.minimum_count, asked.cleaning)
        assert replace(found, words=wanted.words) != found


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"split": "toy/test"}, r"has no split 'toy/test'; there are: toy/train, toy/val"),
        ({"split": "toy/train@1%"}, r"pictures has no human captions in 'toy/train@1%' whose words could"),
        ({"text": "semantic"}, r"pictures has no semantic captions in 'toy/train'"),
    ],
)
def test_what_has_no_captions_is_refused(config: dict[str, Any], message: str, raw: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        built(site(tmp_path, raw, **config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"split": "toy/train@50%x1"}, "'toy/train@50%x1' are drawn item by item"),
        ({"split": "toy/train@50%:unannotated"}, "drawn item by item|hidden"),
        ({"tokenizer": "nltk2"}, "no tokenizer 'nltk2'; there are: nltk,"),
        ({"cleaning": "soap"}, "no cleaning 'soap'; there are: none, mrw"),
        ({"captions_per_item": 0}, "captions_per_item 0 must be a whole number, 1 or more"),
        ({"minimum_count": 0}, "at least once, not 0 times"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VocabularyConfig(**config)


def test_of_several_splits_to_train_on_one_must_be_named(tmp_path: Path) -> None:
    raw = publish(tmp_path / "raw", ("one/train", "two/train"))
    with pytest.raises(
        UserError, match=r"several splits to train on, so say whose captions to take \(--set vocabulary\."
    ):
        built(site(tmp_path / "root", raw))
    assert len(read(built(site(tmp_path / "root", raw, split="two/train")))) > len(SPECIALS)
    raw = publish(tmp_path / "more", ("val",))
    with pytest.raises(UserError, match="has no split to train on, so say whose captions"):
        built(site(tmp_path / "other", raw))


def test_damaged_counts_are_named(raw: Path, tmp_path: Path) -> None:
    output = built(site(tmp_path, raw))
    (counts,) = find(str(tmp_path), stage.COUNTS)
    name = sorted(counts.files)[1]
    path = Path(counts.where) / name
    path.write_bytes(path.read_bytes().replace(b"\t1\n", b"\t7\n"))
    (Path(output.where) / "complete.json").unlink()
    with pytest.raises(UserError, match=rf"word-counts/.*{name} is not what was committed"):
        built(site(tmp_path, raw, minimum_count=2))


def test_the_command_builds_plans_and_says_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = publish(tmp_path / "raw", ("train",), items=6)
    at = ["--root", str(tmp_path / "root"), "--raw", str(raw), "--json"]
    mine = tmp_path / "pictures.py"
    mine.write_text(PICTURES.read_text().partition("    counts=")[0] + ")\n")
    target = [f"{mine}/vocabulary", *at, "--set", "vocabulary.minimum_count=2"]
    waits = []
    assert main(["plan", *target]) == 0
    waits.append(json.loads(capsys.readouterr().out))
    assert main(["build", *target, "--serial"]) == 0
    (done,) = json.loads(capsys.readouterr().out)["outputs"]
    assert done["stage"] == "vocabulary"
    assert done["built"]
    assert read(Output(open_storage(str(tmp_path / "root")), f"vocabulary/{done['identity']}")).words[:4] == SPECIALS
    assert main(["plan", *target]) == 0
    waits.append(json.loads(capsys.readouterr().out))
    assert [row["stages"][-1].get("waits_for", "nothing") for row in waits] == ["records", "nothing"]
    assert main(["build", *target, "--set", "vocabulary.tokenizer=nltk2"]) == 1
    assert "tokenizer=nltk2: no tokenizer 'nltk2'; there are: nltk, nltk-sentences" in capsys.readouterr().err
