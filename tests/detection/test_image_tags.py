"""Tags of whole images: names become words, sources are merged, and what is certain enough becomes text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmodal.detection.image_tags import MergedTags, by_maximum, tag_of, tags_as_text
from xmodal.errors import UserError


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("tench, Tinca tinca", "tench"),
        ("/b/balcony/exterior", "balcony"),
        ("/a/airfield", "airfield"),
        ("Hot_Dog", "hot dog"),
        ("  Traffic   light ", "traffic light"),
        ("Bow (weapon)", "bow"),
        ("jack-o'-lantern", "jack-o'-lantern"),
        ("Café", "café"),
        ("t-shirt/jersey", "t-shirt"),
    ],
)
def test_a_tag_is_the_first_name_of_a_class(name: str, tag: str) -> None:
    assert tag_of(name) == tag == tag_of(tag)


@pytest.mark.parametrize("name", ["", " _ ", "(bird)", ",x", "/a/"])
def test_a_class_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"is no name of a tag: it has no word before"):
        MergedTags.of([("dog",), ("cat", name)])


def test_sources_that_share_a_tag_have_it_once_with_the_higher_score() -> None:
    merged = MergedTags.of([("crane", "Aquarium", "crane, machine"), ("/a/aquarium", "beach")])
    assert merged.names == ("crane", "aquarium", "beach")
    first, second = np.float32([[0.2, 0.5, 0.3], [0, 0, 0]]), np.float32([[0.4, 1], [0.7, 0]])
    np.testing.assert_array_equal(merged.merge([first, second]), np.float32([[0.3, 0.5, 1], [0, 0.7, 0]]))


WORDS = st.sampled_from(["dog", "Dog", "hot_dog", "hot dog", "beach", "/b/beach", "cat, puss", "cat"])


@given(st.data())
def test_a_merge_is_its_definition(data: st.DataObject) -> None:
    sources = data.draw(st.lists(st.lists(WORDS, min_size=1, max_size=6), min_size=1, max_size=3))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    images = data.draw(st.integers(0, 3))
    scores = [random.random((images, len(names)), np.float32) for names in sources]
    merged = MergedTags.of(sources)
    expected = [
        [
            max(rows[image, place] for names, rows in zip(sources, scores, strict=True) for place, name in
                enumerate(names) if tag_of(name) == tag)
            for tag in merged.names
        ]
        for image in range(images)
    ]  # fmt: skip
    assert len(set(merged.names)) == len(merged.names)
    np.testing.assert_array_equal(merged.merge(scores), np.reshape(expected, (images, len(merged.names))))


def test_scores_are_divided_by_the_highest_of_their_image() -> None:
    scores = np.float32([[0.1, 0.4], [0, 0], [8, 2]])
    np.testing.assert_allclose(by_maximum(scores), [[0.25, 1], [0, 0], [1, 0.25]])
    assert by_maximum(scores).dtype == np.float32
    assert by_maximum(scores[:0]).shape == (0, 2)


def test_text_has_tags_from_a_score_on_the_highest_first_and_ties_in_order() -> None:
    names, scores = ("hot dog", "beach", "cat", "sky", "sea"), np.float16([0.3, 0.29, 0.9, 0.3, 1])
    assert tags_as_text(names, scores) == "sea cat hot dog sky"
    assert tags_as_text(names, scores, 0.95) == "sea"
    assert tags_as_text(names, np.zeros(5, np.float32)) == ""
