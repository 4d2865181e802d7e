"""Batches of regions and phrases as training reads them: features are those of the boxes, in any order of reading."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelines.demo.world import World
from tests.phrase_root import CORPUS, make_root, proposals
from xmodal.batches.annotated_phrases import TO_LAST_PIXEL, annotated_phrases
from xmodal.batches.batch import ANNOTATED, Batch, PairStream, TripletStream
from xmodal.batches.phrase_features import FEATURELESS, PhraseFeatures
from xmodal.batches.phrase_loader import PhraseLoader
from xmodal.detection.given_boxes import chain_boxes
from xmodal.detection.region_store import RegionStore
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import Phrases, View
from xmodal.records.tables import Region, read_rows
from xmodal.root.selection import find_output

WORLD = World(items=80, image_size=48, captions_per_item=3, seed=5, partiality=0.7, synonymy=0.0)
UNPROPOSED = ("16", "30")  # pictures to train on
RULE = Phrases(0.7, 0.3, 2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("phrases"), WORLD, proposals(WORLD, without=UNPROPOSED))


@pytest.fixture(scope="module")
def features(root: str) -> PhraseFeatures:
    texts, proposed, annotated = (find_output(root, stage) for stage in ("phrases", "proposals", "regions"))
    phrases = annotated_phrases(find_output(root, "records"), View(CORPUS, "plummer/train"))
    return PhraseFeatures.of(phrases, FeatureStore(texts), RegionStore(proposed), RegionStore(annotated))


def test_features_are_those_of_boxes_and_words(features: PhraseFeatures) -> None:
    """Of an annotated box of several things, those of the box around all."""
    task, by_box = features.task, dict[tuple[int, ...], tuple[float, ...]]()
    every = np.arange(len(task.proposals_N4) + len(task.annotated_A4))
    pictures = np.searchsorted(task.starts_V1, every, side="right") - 1
    pictures[len(task.proposals_N4) :] = task.pictures_A
    boxes = np.concatenate([task.proposals_N4, task.annotated_A4])
    drawn = np.random.default_rng(0).permutation(every)
    for number, row in zip(drawn, features.regions(drawn), strict=True):
        same = by_box.setdefault((int(pictures[number]), *boxes[number].astype(int)), tuple(row))
        assert same == tuple(row)
    assert len(by_box) < len(every), "some proposals are annotated boxes"
    assert len({*by_box.values()}) > 0.9 * len(by_box)
    words = [features.phrases.words[place] for place in (3, 0, 7)]
    np.testing.assert_array_equal(features.text(np.array([3, 0, 7])), features.texts.read(words))


def test_pictures_without_proposals_and_boxes_without_features_are_counted(features: PhraseFeatures, root: str) -> None:
    assert "2 of them without proposals" in features.counted()
    assert features.phrases.left_out[FEATURELESS] == 0
    whole = annotated_phrases(find_output(root, "records"), View(CORPUS, "plummer/train"))
    moved = replace(whole, boxes_A4=whole.boxes_A4 + (np.arange(len(whole.boxes_A4)) == whole.boxes_P[0])[:, None])
    texts, proposed, annotated = (find_output(root, stage) for stage in ("phrases", "proposals", "regions"))
    asked = (FeatureStore(texts), RegionStore(proposed))
    found = PhraseFeatures.of(moved, *asked, RegionStore(annotated))
    lost = int((whole.boxes_P == whole.boxes_P[0]).sum())
    assert found.phrases.left_out[FEATURELESS] == lost > 0
    assert len(found) == len(whole.words) - lost
    assert f"{lost} {FEATURELESS}" in found.counted()
    assert len(PhraseFeatures.of(moved, *asked)) == len(whole.words), "only training needs them"
    with pytest.raises(UserError, match="has none of the boxes that phrases name"):
        PhraseFeatures.of(replace(whole, boxes_A4=whole.boxes_A4 + 1000), *asked, RegionStore(annotated))
    with pytest.raises(UserError, match="has no regions of the"):
        PhraseFeatures.of(replace(whole, pictures=tuple(f"{id}!" for id in whole.pictures)), *asked)


def test_a_phrase_of_several_boxes_has_features_of_the_box_around_them(features: PhraseFeatures, root: str) -> None:
    """Its proposals are right or wrong by that box."""
    records, counts = find_output(root, "records"), Counter[tuple[str, str | None]]()
    counts.update((one.item, one.group) for one in read_rows(records, Region) if one.left is not None)
    plural = [n for n, one in enumerate(features.phrases.matches) if counts[one.item, one.group] > 1]
    assert plural
    annotated = RegionStore(find_output(root, "regions"))
    for number in plural:
        match, box = features.phrases.matches[number], int(features.task.boxes_P[number])
        around = chain_boxes(records)[match.item, match.group or ""]
        (place,) = np.flatnonzero((annotated.boxes(match.item) == np.float32(around)).all(axis=1))
        given = features.regions(np.array([len(features.task.proposals_N4) + box]))
        np.testing.assert_array_equal(given[0], annotated.features(match.item)[place])
        np.testing.assert_array_equal(features.task.annotated_A4[box] + TO_LAST_PIXEL, around)


def test_triplets_say_what_is_right_and_wrong(features: PhraseFeatures) -> None:
    task = features.task
    for batch in PhraseLoader(features, RULE, 16, seed=1):
        stream = batch.streams[ANNOTATED]
        assert isinstance(stream, TripletStream)
        assert stream.text_classes is not None
        chains = stream.text_classes.numpy()
        np.testing.assert_array_equal(chains, task.boxes_P[stream.captions.numpy()])
        np.testing.assert_array_equal(stream.text_items, task.pictures_A[chains])
        regions, phrases = stream.positives.unbind(1)
        assert (stream.visual_items[regions] == stream.text_items[phrases]).all()
        assert not stream.wrong_regions[phrases, regions].any()
        rows, columns = stream.wrong_regions.nonzero().unbind(1)
        assert (stream.text_items[rows] == stream.visual_items[columns]).all()
        words = [features.phrases.words[number] for number in stream.captions.tolist()]
        np.testing.assert_array_equal(stream.text.values[:, 0], features.texts.read(words))


def test_every_pair_has_a_wrong_one_of_the_same_phrase(features: PhraseFeatures) -> None:
    rule = replace(RULE, draws="pairs")
    phrases = list[int]()
    for batch in PhraseLoader(features, rule, 16, seed=1):
        stream = batch.streams[ANNOTATED]
        assert isinstance(stream, PairStream)
        np.testing.assert_array_equal(stream.positives[:, 1], stream.negatives[:, 1])
        assert (stream.visual_items[stream.negatives[:, 0]] == stream.text_items[stream.negatives[:, 1]]).all()
        phrases += stream.captions.tolist()
    without = np.isin(features.pictures_P, np.flatnonzero(features.picture_rows_V < 0))
    assert set(phrases) == set(np.flatnonzero(~without).tolist()), "each comes once, but for those without regions"


def numbers_of(batches: Iterator[Batch]) -> list[list[int]]:
    streams = (batch.streams[ANNOTATED] for batch in batches)
    return [[*stream.captions.tolist(), *stream.positives.flatten().tolist()] for stream in streams]


def test_every_epoch_has_every_phrase_once_in_another_order(features: PhraseFeatures) -> None:
    loader = PhraseLoader(features, replace(RULE, neighbours=1), 16, seed=3)
    first, second = ([n for batch in loader for n in batch.streams[ANNOTATED].captions.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(len(features)))
    assert first != second


def test_it_goes_on_where_it_was_broken_off(features: PhraseFeatures) -> None:
    whole = PhraseLoader(features, RULE, 16, seed=3)
    first, second = numbers_of(iter(whole)), numbers_of(iter(whole))
    assert first != second
    assert len(first) == len(second) == len(whole)
    broken = PhraseLoader(features, RULE, 16, seed=3)
    broken.load_state_dict({"seed": 3, "epoch": 0, "cursor": 32})
    assert numbers_of(iter(broken)) == first[2:]
    assert (broken.epoch, broken.cursor) == (1, 0)
    assert numbers_of(iter(broken)) == second
    with pytest.raises(ValueError, match="is no place in epochs of"):
        whole.load_state_dict({"seed": 3, "epoch": 0, "cursor": 10_000})


def test_features_are_single_precision(features: PhraseFeatures) -> None:
    stream = next(iter(PhraseLoader(features, RULE, 4))).streams[ANNOTATED]
    assert stream.visual.values.dtype == stream.text.values.dtype == torch.float32
