"""Phrase localisation on a generated world, whose boxes are known: counts by hand, commands, and what is hostile."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.demo.world import World, box
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.features.test_open import records_root
from tests.publishers.flickr30k import Picture, pictures
from tests.publishers.flickr30k_entities import scene_chain, sentences, unboxed, write
from tests.toy_detector import toy_detector as toy_detector
from tests.toy_root import Facts, facts
from xmodal.batches.annotated_phrases import (
    ELSEWHERE,
    EMPTY,
    SILENT,
    UNBOXED,
    UNSEEN,
    annotated_phrases,
    proposals_of,
)
from xmodal.checks.phrase_pictures import found_phrases
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.evaluation.phrase_metrics import ALL, BY_TYPE, PhraseReport, open_scores, score_phrases, write_phrases
from xmodal.recipes import View
from xmodal.root.files import sha256_of
from xmodal.root.outputs import find
from xmodal.root.storage import open_storage

CORPUS = "flickr30k_entities"
WORLD = World(items=80, image_size=48, seed=5, partiality=0.6, noise=0.3)
PROPOSED = 12  # boxes of most pictures
Box = tuple[float, ...]


@dataclass(frozen=True)
class Named:
    """A phrase as the world has it; no box if it cannot be looked for."""

    picture: str
    box: Box | None
    types: tuple[str, ...]
    is_unseen: bool


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[BuildOptions, Corpus]:
    folder = tmp_path_factory.mktemp("entities")
    corpus = write(WORLD, folder / "raw")
    options = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw")
    CorpusBuild(options, corpus).build("records")
    return options, corpus


@pytest.fixture(scope="module")
def root(site: tuple[BuildOptions, Corpus]) -> str:
    return site[0].storage.url


@pytest.fixture(scope="module")
def proposed() -> dict[str, list[Box]]:
    """Boxes near those of things, and anywhere; one of the tested pictures has none, and another few."""
    draw, found = np.random.default_rng(0), dict[str, list[Box]]()
    for place, picture in enumerate(asked_of()):
        boxes = [box(picture.scene, thing) for thing in picture.scene.things]
        for number in range((0, 5, *[PROPOSED] * 99)[place]):
            left, top, right, bottom = boxes[number % len(boxes)]
            first = np.add((left, top), draw.integers(-4, 5, 2)).clip(0, 30)
            sides = np.subtract((right, bottom), (left, top)) + draw.integers(-3, 4, 2)
            size = picture.scene.width, picture.scene.height
            found.setdefault(picture.id, []).append(
                (*first.tolist(), *np.minimum(first + sides.clip(1), size).tolist())
            )
    return found


@pytest.fixture(scope="module")
def file(proposed: Mapping[str, list[Box]], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("boxes") / "boxes.tsv"
    rows = [(id, *one) for id, boxes in proposed.items() for one in boxes]
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return str(path)


def asked_of(world: World = WORLD) -> list[Picture]:
    return [picture for picture in pictures(world) if picture.plummer == "test"]


def named(world: World = WORLD) -> list[list[Named]]:
    """The phrases of each tested caption, by the world alone."""
    found = list[list[Named]]()
    for picture in asked_of(world):
        for position, (_, mentions) in enumerate(sentences(picture)):
            if picture.unrelated(position):
                continue
            found.append([])
            for one in sorted(mentions, key=lambda mention: mention.start):
                boxes = [box(picture.scene, picture.scene.things[n]) for n in one.things if not unboxed(picture, n)]
                around = None
                if boxes and one.chain != scene_chain(picture):
                    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
                    around = (min(lefts), min(tops), max(rights), max(bottoms))
                found[-1].append(Named(picture.id, around, one.types, not one.chain))
    return found


def to_find(world: World = WORLD) -> list[Named]:
    return [one for phrases in named(world) for one in phrases if one.box]


def overlap(one: Box, other: Box) -> float:
    seen, shown = (
        {(x, y) for x in range(int(left), int(right)) for y in range(int(top), int(bottom))}
        for left, top, right, bottom in (one, other)
    )
    return len(seen & shown) / len(seen | shown)


def saved(folder: Path, scores: object) -> Path:
    np.save(folder / "found.npy", np.asarray(scores))
    return folder / "found.npy"


def asked(folder: Path, root: str, file: str, scores: Callable[[Named, Box], float], boxes: object) -> PhraseReport:
    assert isinstance(boxes, Mapping)
    rows = np.zeros((len(to_find()), PROPOSED))
    for row, phrase in zip(rows, to_find(), strict=True):
        some = boxes.get(phrase.picture, ())
        row[: len(some)] = [scores(phrase, one) for one in some]
    return score_phrases(saved(folder, rows), root, CORPUS, file)


def test_the_upper_bound_is_the_one_that_is_counted_by_hand(
    tmp_path: Path, root: str, file: str, proposed: Mapping[str, list[Box]]
) -> None:
    """Scores that know the overlap find all that can be found; a file of them says nothing of phrases."""
    report = asked(tmp_path, root, file, lambda phrase, one: overlap(phrase.box or (), one), proposed)
    phrases = to_find()
    best = [
        max((overlap(one.box or (), other) for other in proposed.get(one.picture, ())), default=0) for one in phrases
    ]
    expected = 100 * sum(most >= 0.5 for most in best) / len(phrases)
    assert 20 < expected < 95
    assert report.value("bound") == report.value("R@1") == report.value("R@10") == pytest.approx(expected)
    chance = report.value("R@1 by chance")
    assert chance is not None
    assert chance < expected / 1.5
    for kind in {kind for one in phrases for kind in one.types}:
        of_kind = [most for one, most in zip(phrases, best, strict=True) if kind in one.types]
        assert report.value("phrases", kind) == len(of_kind)
        assert report.value("bound", kind) == pytest.approx(100 * sum(most >= 0.5 for most in of_kind) / len(of_kind))
    counts = Counter(kind for one in phrases for kind in one.types)
    assert set(report.rows) == {ALL, BY_TYPE, *counts}
    assert report.value("phrases", BY_TYPE) == counts.total() > len(phrases)
    hits = sum(most >= 0.5 for one, most in zip(phrases, best, strict=True) for _ in one.types)
    assert report.value("R@5", BY_TYPE) == pytest.approx(100 * hits / counts.total())


def test_what_cannot_be_looked_for_is_counted_and_stops_nothing(
    tmp_path: Path, root: str, file: str, proposed: Mapping[str, list[Box]]
) -> None:
    report = asked(tmp_path, root, file, lambda phrase, one: one[0], proposed)
    captions, phrases = named(), [one for some in named() for one in some]
    assert report.left_out == {
        ELSEWHERE: 0,
        UNSEEN: sum(one.is_unseen for one in phrases),
        UNBOXED: sum(not one.is_unseen and not one.box for one in phrases),
        SILENT: sum(not any(one.box for one in some) for some in captions),
        EMPTY: len(asked_of()) - len({one.picture for one in phrases if one.box}),
    }
    assert min(report.left_out[UNSEEN], report.left_out[UNBOXED], report.left_out[SILENT]) > 0
    unproposed = asked_of()[0].id
    assert report.pictures_without_proposals == 1
    assert report.phrases_without_proposals == sum(one.picture == unproposed for one in to_find()) > 0
    assert (report.phrases, report.split) == (len(to_find()), "plummer/test")
    assert report.boxes == len({(one.picture, one.box) for one in to_find()})
    text = report.to_text()
    assert f"not found: {report.phrases_without_proposals} phrases, as their 1 pictures have no proposals" in text
    assert f"{report.left_out[UNSEEN]} phrases of no chain" in text


def test_the_order_that_is_written_is_the_one_that_is_read(
    tmp_path: Path, root: str, file: str, proposed: Mapping[str, list[Box]], xmodal: Xmodal
) -> None:
    """All that a user needs stands in two files."""
    command = ["--corpus", CORPUS, "--root", root, "--proposals", file]
    xmodal.done("evaluate", "--write-ids", tmp_path / "mine", *command)
    phrases = [line.split("\t") for line in (tmp_path / "mine.phrases.tsv").read_text().splitlines()]
    boxes = [line.split("\t") for line in (tmp_path / "mine.proposals.tsv").read_text().splitlines()]
    assert [one[3] for one in phrases] == [one.picture for one in to_find()]
    assert {(id, *map(float, sides)) for id, *sides in boxes} == {
        (id, *one) for id, some in proposed.items() for one in some if id in {phrase[3] for phrase in phrases}
    }
    texts = {f"{p.id}#{n}": text for p in asked_of() for n, (text, _) in enumerate(sentences(p))}
    assert all(texts[caption][int(start) : int(end)] == words for caption, start, end, _, words in phrases)
    by_words = np.array([[len(one[4]) * place % 7 for place in range(PROPOSED)] for one in phrases])
    said = xmodal("evaluate", "--scores", saved(tmp_path, by_words), *command, "--json").json
    assert said["rows"] == score_phrases(tmp_path / "found.npy", root, CORPUS, file).rows
    again = score_phrases(tmp_path / "found.npy", root, CORPUS, str(tmp_path / "mine.proposals.tsv"))
    assert said["rows"] == again.rows
    fewer = xmodal("evaluate", "--scores", tmp_path / "found.npy", *command, "--suppression", 0.3, "--json").json
    assert fewer["rows"][ALL]["R@10"] != said["rows"][ALL]["R@10"]
    assert (fewer["suppression"], fewer["rows"][ALL]["bound"]) == (0.3, said["rows"][ALL]["bound"])
    assert any("chance" in column for column in said["rows"][ALL])
    assert not any("chance" in column for column in fewer["rows"][ALL]), "which counts on all proposals"
    assert "chance" not in xmodal("evaluate", "--scores", tmp_path / "found.npy", *command, "--suppression", 0.3).out
    complaint = xmodal("evaluate", "--scores", tmp_path / "found.npy", *command, "--suppression", 3).complaint
    assert "suppression 3.0 must be from 0 to 1" in complaint
    text = xmodal("evaluate", "--scores", tmp_path / "found.npy", *command).out
    assert re.search(r"^all +\d+( +\d+\.\d\d){4}$", text, re.MULTILINE)
    assert r"\begin{tabular}" in xmodal("evaluate", "--scores", tmp_path / "found.npy", *command, "--latex").out


@pytest.mark.usefixtures("toy_detector")
def test_proposals_of_a_stage_are_those_of_the_file_it_was_given(
    tmp_path: Path, site: tuple[BuildOptions, Corpus], proposed: Mapping[str, list[Box]], file: str, xmodal: Xmodal
) -> None:
    options, corpus = site
    settings = {"regions.detector": "toy", "regions.weights": "random:0", "regions.boxes": "file"}
    CorpusBuild(replace(options, settings=settings, files={"boxes": Path(file)}), corpus).build("regions")
    random = np.random.default_rng(1).standard_normal((len(to_find()), PROPOSED))
    by_file, by_stage = (
        score_phrases(saved(tmp_path, random), options.storage.url, CORPUS, name) for name in (file, "regions")
    )
    (made,) = find(options.storage.url, "regions")
    assert by_stage == replace(by_file, proposals=f"regions/{made.identity}")
    assert by_file.proposals == f"boxes.tsv (sha256 {sha256_of(file)[:12]})"


def test_phrases_are_drawn_where_they_are_and_where_they_were_found(
    tmp_path: Path, site: tuple[BuildOptions, Corpus], file: str, proposed: Mapping[str, list[Box]], xmodal: Xmodal
) -> None:
    CorpusBuild(*site).build("media")
    root, scores = site[0].storage.url, tmp_path / "found.npy"
    asked(tmp_path, root, file, lambda phrase, one: overlap(phrase.box or (), one), proposed)
    command = ["look", CORPUS, "--root", root, "--phrases", tmp_path / "out", "--proposals", file, "--scores", scores]
    said = xmodal(*command, "--first", 3, "--json").json["pictures"]
    drawn = list(dict.fromkeys(one.picture for one in to_find()))[:3]
    assert [one["item"] for one in said] == drawn
    assert asked_of()[0].id in drawn, "also without proposals"
    for one in said:
        with Image.open(one["path"]) as picture:
            assert picture.width >= 2 * 480
    scored = open_scores(scores, root, CORPUS, file)
    for phrase in found_phrases(scored, drawn[-1]):
        assert phrase.found_4 is not None
        assert phrase.overlap == pytest.approx(overlap(tuple(phrase.annotated_4), tuple(phrase.found_4)))
        assert tuple(phrase.found_4) in proposed[drawn[-1]]
        assert phrase.caption.partition("#")[0] == drawn[-1], "its own caption, not the first picture's"
    np.save(scores, np.zeros((len(to_find()), PROPOSED)))
    for phrase in found_phrases(open_scores(scores, root, CORPUS, file), drawn[-1]):
        least = min(overlap(tuple(phrase.annotated_4), one) for one in proposed[drawn[-1]])
        assert phrase.overlap == pytest.approx(least), "of equal scores the one that is most wrong"
    assert "plummer/test has no phrases to find in such items" in xmodal(*command, "--items", "16").complaint
    assert "give all three" in xmodal(*command[:6], "--scores", scores).complaint
    assert "is no run" in xmodal(*command[:6]).complaint


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (np.zeros((3, PROPOSED)), r"is 3 x 12, but plummer/test has \d+ phrases to find among up to 12 proposals"),
        (np.zeros((1, 1)), "columns proposals"),
        (np.zeros((2, 3, 4)), "is 2 x 3 x 4: a matrix of rows and columns is expected"),
        (np.zeros((0, 0)), "is 0 x 0: a matrix"),
    ],
)
def test_scores_of_another_shape_are_refused(scores: object, said: str, tmp_path: Path, root: str, file: str) -> None:
    assert re.search(said, line_of(partial(score_phrases, saved(tmp_path, scores), root, CORPUS, file)))


def test_more_columns_than_any_picture_has_boxes_are_refused(tmp_path: Path, root: str, file: str) -> None:
    scores = np.zeros((len(to_find()), PROPOSED + 1))
    said = line_of(partial(score_phrases, saved(tmp_path, scores), root, CORPUS, file))
    assert f"is {len(scores)} x 13, but plummer/test has {len(scores)} phrases to find among up to 12 proposals" in said


def test_one_of_several_proposals_is_named_by_the_flag_that_takes_it(tmp_path: Path) -> None:
    root = records_root(tmp_path, {"one/test": [0, 1]})
    (records,) = find(root, "records")
    for seed in range(2):
        build(facts(Facts(2, seed=seed)), records.storage)
    said = line_of(partial(proposals_of, root, records, "resnet"))
    assert "several sets of features 'resnet'" in said
    assert "name one by --proposals STAGE/IDENTITY" in said
    assert "--features" not in said


def test_a_score_that_is_no_number_is_refused_with_its_place(tmp_path: Path, root: str, file: str) -> None:
    scores = np.zeros((len(to_find()), PROPOSED))
    scores[-1, 3] = np.nan
    said = line_of(partial(score_phrases, saved(tmp_path, scores), root, CORPUS, file))
    assert f"phrase {len(scores) - 1} and proposal 3, from 0, is nan" in said


def test_boxes_of_other_pictures_are_refused(tmp_path: Path, root: str) -> None:
    (tmp_path / "other.tsv").write_text("nobody\t0\t0\t4\t4\n")
    for call in (score_phrases, write_phrases):
        said = line_of(partial(call, tmp_path / "none", root, CORPUS, str(tmp_path / "other.tsv")))
        assert re.search(r"other.tsv has no boxes of the \d+ pictures of plummer/test", said)
    assert "no" in line_of(partial(score_phrases, tmp_path / "none", root, CORPUS, "proposals"))
    missing = str(tmp_path / "missing.tsv")
    said = line_of(partial(score_phrases, tmp_path / "none", root, CORPUS, missing))
    assert said == f"there is no file {missing}: give a file of boxes, or a stage such as proposals"


def test_a_corpus_without_phrases_has_nothing_to_look_for(tmp_path: Path) -> None:
    root = records_root(tmp_path, {"one/test": [0, 1]})
    (records,) = find(root, "records")
    said = line_of(partial(annotated_phrases, records, View("pictures", "one/test")))
    assert said == "split 'one/test' of pictures has no phrase with a box, so nothing to look for"


def test_flags_that_do_not_go_together(xmodal: Xmodal) -> None:
    for others in (["run"], ["--scores", "x.npy", "--corpus", CORPUS, "--ids", "x"]):
        said = xmodal("evaluate", *others, "--root", "r", "--proposals", "boxes").complaint
        assert "--proposals belongs to --scores and --write-ids" in said


def test_reports_are_plain_json(tmp_path: Path, root: str, file: str, proposed: Mapping[str, list[Box]]) -> None:
    plain = json.loads(asked(tmp_path, root, file, lambda phrase, one: one[0], proposed).to_json())
    assert plain["rows"][ALL].keys() >= {"phrases", "R@1", "R@5", "R@10", "bound", "R@1 by chance"}


def line_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as found:
        call()
    assert "\n" not in str(found.value)
    return str(found.value)
