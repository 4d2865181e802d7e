"""Semantics of regions as captions: views and trainings read them, and sparse splits do not hide them."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import xmodal
from pipelines.cli import main
from pipelines.engine.building import build
from pipelines.stages.plausible_semantics import PlausibleSemanticsConfig
from pipelines.stages.semantics import SemanticsConfig
from pipelines.stages.texts.vocabulary import VocabularyConfig
from tests.detection.test_region_store import WORDS, make_store
from tests.made import made
from tests.toy_root import fit, item_id, make_root, one_thread, recipe
from xmodal.checks.statistics import describe
from xmodal.detection.region_store import Named, PictureRegions, RegionStore
from xmodal.errors import UserError
from xmodal.recipes import View
from xmodal.records.tables import Caption, read_rows
from xmodal.records.views import captions_by_item
from xmodal.root.outputs import Output, find
from xmodal.text.tokenizers import tokenizer
from xmodal.text.vocabularies import Vocabulary

__all__ = ["one_thread"]
ITEMS = 60
KINDS, FILES = ("class", "attribute"), ("object_words", "attribute_words")
CIRCLES = [(0, 0), (1, 1)]  # classes and attributes of two regions, the surer one last


def seen(id: str, things: Sequence[tuple[int, int]]) -> PictureRegions:
    """Regions of these classes and attributes."""
    count = len(things)
    scores = np.linspace(0.5, 0.9, count, dtype=np.float32)
    named = [Named(np.array(ids, np.int32), scores) for ids in zip(*things, strict=True)]
    boxes = np.tile(np.array([0, 0, 9, 9], np.float32), (count, 1))
    return PictureRegions(id, boxes, np.zeros_like(boxes), (64, 64), *named)


def blank(id: str) -> PictureRegions:
    return PictureRegions(id, *[np.zeros((0, 4), np.float32)] * 2)


def build_semantics(root: str, things: Sequence[tuple[int, int]] = CIRCLES, shown: float = 0.1) -> Output:
    """Semantics of all items but the last, of which a detector saw nothing."""
    pictures = [seen(item_id(number), things) for number in range(ITEMS - 1)] + [blank(item_id(ITEMS - 1))]
    return semantics_of(root, pictures, shown)


def semantics_of(
    root: str, pictures: Sequence[PictureRegions], shown: float = 0.1, least_score: float | None = None
) -> Output:
    records = records_of(root)
    regions = Output(records.storage, make_store(Path(root), pictures).removeprefix(f"{records.storage.url}/"))
    config = SemanticsConfig(shown, least_score)
    return build(made("semantics", config, records=records, regions=regions), records.storage)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = make_root(tmp_path_factory.mktemp("semantics"), ITEMS)
    build_semantics(root)
    return root


@pytest.fixture
def root(tmp_path: Path) -> str:
    return make_root(tmp_path, ITEMS)


def records_of(root: str) -> Output:
    (records,) = find(root, "records")
    return records


def test_each_picture_with_regions_has_one_caption(shared: str) -> None:
    (output,) = find(shared, "semantics")
    rows = list(read_rows(output, Caption))
    first = f"{WORDS['attributes'][1]} {WORDS['classes'][1]} {WORDS['attributes'][0]} {WORDS['classes'][0]}"
    assert rows[0] == Caption(f"semantics:{item_id(0)}", item_id(0), 0, first, "semantics")
    assert {row.item for row in rows} == {item_id(number) for number in range(ITEMS - 1)}
    assert output.totals["counts"] == {"captions": ITEMS - 1, "without regions": 1, "not in the corpus": 0}


def test_views_read_captions_or_semantics(shared: str) -> None:
    human, told = (captions_by_item(records_of(shared), View("pictures", "toy/val", text=t)) for t in TEXTS)
    assert human.items == told.items
    assert (human.counts == 5).all()
    assert (told.counts == 1).all()
    assert not {*human.texts} & {*told.texts}


TEXTS = ("human", "semantics")


@pytest.mark.parametrize("share", ["toy/train@25%", "toy/train@25%x2"])
def test_the_unannotated_part_has_semantics_and_no_captions(shared: str, share: str) -> None:
    records = records_of(shared)
    annotated, rest = (captions_by_item(records, View("pictures", name)) for name in (share, f"{share}:unannotated"))
    told = captions_by_item(records, View("pictures", f"{share}:unannotated", text="semantics"))
    assert annotated.counts.sum() > 0
    assert rest.counts.sum() == 0
    assert told.items == rest.items
    assert (told.counts == 1).all()
    for text in ("human/semantics", "unrelated/x", f"human/{records.identity}"):
        assert not captions_by_item(records, View("pictures", f"{share}:unannotated", text=text)).counts.sum()
        with pytest.raises(UserError, match=r"captions by (human|unrelated) are those of the records"):
            captions_by_item(records, View("pictures", share, text=text))


def test_of_several_outputs_one_is_named(root: str) -> None:
    one = build_semantics(root)
    view = View("pictures", "toy/val", text="semantics")
    before = list(captions_by_item(records_of(root), view).texts)
    other = build_semantics(root, shown=0.95)
    with pytest.raises(
        UserError, match=r"several captions by semantics of pictures, so say which by --texts IDENTITY, or.*shown=0\.95"
    ):
        captions_by_item(records_of(root), view)
    found = {
        output.identity: captions_by_item(records_of(root), replace(view, text=f"semantics/{output.identity}"))
        for output in (one, other)
    }
    assert list(found[one.identity].texts) == before
    assert list(found[other.identity].texts) == [" ".join(WORDS["classes"][1::-1])] * len(before)
    with pytest.raises(
        UserError,
        match=r"no captions by semantics of pictures are .ffff.: build them .`xmodal build pictures/semantics",
    ):
        captions_by_item(records_of(root), replace(view, text="semantics/ffff"))


def test_a_run_goes_on_with_the_semantics_it_began_with(root: str, tmp_path: Path) -> None:
    one, run = build_semantics(root), str(tmp_path / "run")
    told = recipe(epochs=1, view=View("pictures", "toy/train", text="semantics"))
    fit(told, root, run)
    view = json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]["view"]
    assert view["text"] == f"semantics/{one.identity}"
    assert not fit(told, root, run).trained, "the same again is done already"

    other = build_semantics(root, shown=0.95)
    with pytest.raises(UserError, match="several captions by semantics"):
        fit(told, root, run)
    named = [replace(told, view=replace(told.view, text=f"semantics/{output.identity}")) for output in (one, other)]
    assert not fit(named[0], root, run).trained
    with pytest.raises(UserError, match=f"view.text is .*{one.identity}.* there and .*{other.identity}"):
        fit(named[1], root, run)


def test_statistics_say_how_many_words_are_shared(root: str) -> None:
    output = build_semantics(root)
    (part,) = (part for part in describe(xmodal.open(root, "pictures")).parts if part.name == "toy/val")
    records, words = records_of(root), tokenizer("nltk")
    human, told = (
        Counter(
            word
            for text in captions_by_item(records, View("pictures", "toy/val", text=t)).texts
            for word in words(text)
        )
        for t in TEXTS
    )
    often = [{word for word, count in found.items() if count >= 4} for found in (human, told)]
    assert {"blue", "red"} <= {*told}
    shared = part.semantics[f"semantics/{output.identity}"]
    assert shared.vocabulary == len(told)
    assert shared.overlap == len({*human} & {*told}) / len({*human} | {*told}) > 0
    assert shared.frequent_overlap == len(often[0] & often[1]) / len(often[0] | often[1])
    assert main(["stats", "pictures", "--root", root, "--quiet"]) == 0


def test_the_vocabulary_of_semantics_is_counted_by_its_stage(root: str) -> None:
    output, records = build_semantics(root), records_of(root)
    stage = made("vocabulary", VocabularyConfig("toy/train", text="semantics"), records=records)
    assert stage.config.text == f"semantics/{output.identity}"
    made_vocabulary = build(stage, records.storage)
    words = Vocabulary.from_bytes(made_vocabulary.read("vocabulary.txt"), "").words
    assert {*WORDS["attributes"][:2], *WORDS["classes"][:2]} <= {*words}


def test_items_match_by_the_classes_that_were_seen(root: str) -> None:
    """Classes 0 and 1 have scores of 0.5 and 0.9; the last item shows nothing, and matches nothing."""
    records = records_of(root)
    pictures = [
        seen(item_id(0), [(0, 0), (1, 1)]),
        seen(item_id(1), [(1, 0), (0, 0)]),
        seen(item_id(2), [(1, 0), (2, 0)]),
    ]
    regions = Output(records.storage, make_store(Path(root), [*pictures, blank(item_id(3))]).removeprefix(f"{root}/"))
    build(made("plausible_semantics", PlausibleSemanticsConfig(), records=records, regions=regions), records.storage)
    found = xmodal.open(root, "pictures").plausible(stage="plausible_semantics")
    assert found.matches(item_id(0)) == {item_id(0): 0, item_id(1): 0}
    assert found.matches(item_id(0), zeta=2) == {item_id(0): 0, item_id(1): 0, item_id(2): 2}
    assert found.matches(item_id(3), zeta=2) == {}
    assert not xmodal.open(root, "pictures").has_plausible, "PMRP counts by labels of the corpus"
    sure = PlausibleSemanticsConfig(score=0.7)
    build(made("plausible_semantics", sure, records=records, regions=regions), records.storage)
    with pytest.raises(UserError, match=r"has several plausible_semantics: name one .*score=0\.7"):
        xmodal.open(root, "pictures").plausible(stage="plausible_semantics")


def test_where_nothing_is_seen_nothing_is_said(root: str) -> None:
    output = semantics_of(root, [blank(item_id(0))])
    assert output.totals["counts"] == {"captions": 0, "without regions": 1, "not in the corpus": 0}
    told = captions_by_item(records_of(root), View("pictures", "toy/val", text="semantics"))
    assert told.counts.sum() == 0


@pytest.mark.parametrize("kind", ["class", "attribute"])
def test_regions_without_words_are_refused(kind: str, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = {"class": "classes", "attribute": "attributes"}[kind]
    monkeypatch.setattr("tests.detection.test_region_store.WORDS", WORDS | {lacking: []})
    told = f"has regions without words of their {kind}: .*--file {dict(zip(KINDS, FILES, strict=True))[kind]}=PATH"
    with pytest.raises(UserError, match=told):
        semantics_of(root, [seen(item_id(0), CIRCLES)])
    records = records_of(root)
    (regions,) = find(root, "regions")
    labelled = made("plausible_semantics", PlausibleSemanticsConfig(), records=records, regions=regions)
    if kind == "attribute":
        build(labelled, records.storage)  # attributes are no labels
    else:
        with pytest.raises(UserError, match=told):
            build(labelled, records.storage)


def test_regions_without_an_area_give_no_words_and_are_counted(root: str) -> None:
    some, flat = seen(item_id(0), CIRCLES), seen(item_id(1), CIRCLES)
    some.boxes_K4[1, 2] = some.boxes_K4[1, 0]
    flat.boxes_K4[:, 1] = 12
    output = semantics_of(root, [some, flat])
    (caption,) = read_rows(output, Caption)
    assert (caption.item, caption.text) == (item_id(0), f"{WORDS['attributes'][0]} {WORDS['classes'][0]}")
    counts = {"captions": 1, "without regions": 0, "not in the corpus": 0, "regions without area": 3}
    assert output.totals["counts"] == counts
    assert output.totals["failures"] == {"unsure": 1}


def test_a_least_score_leaves_out_regions_and_not_their_features(root: str) -> None:
    pictures = [seen(item_id(0), CIRCLES), seen(item_id(1), CIRCLES[:1])]
    output = semantics_of(root, pictures, least_score=0.7)
    assert [caption.text for caption in read_rows(output, Caption)] == [
        f"{WORDS['attributes'][1]} {WORDS['classes'][1]}"
    ]
    (failure,) = [failure for unit in output.units() for failure in unit.failures]
    assert failure == (item_id(1), "unsure", "no region has an area and a score of 0.7: the surest has 0.50")
    (regions,) = find(root, "regions")
    assert len(RegionStore(regions).features(item_id(1))) == 1


def test_a_region_of_just_the_least_score_is_said(root: str) -> None:
    output = semantics_of(root, [seen(item_id(0), CIRCLES[:1])], least_score=0.5)
    assert output.totals["counts"]["captions"] == 1
