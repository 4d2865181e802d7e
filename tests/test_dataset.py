"""Examples: what the records say of a view and the store has features of, and nothing else."""

from pathlib import Path

import pytest

from tests.toy_root import item_id, make_root
from xmodal import find
from xmodal.corpora import View
from xmodal.dataset import Examples, captions, choose
from xmodal.features import FeatureStore
from xmodal.text import END, START, Vocabulary
from xmodal.trouble import Trouble

ABSENT = (3, 8, 40)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=60, absent=ABSENT)


def test_examples_are_what_the_records_say_and_the_store_has(root: str) -> None:
    records, store = find(root, "records")[0], FeatureStore(find(root, "resnet")[0])
    view = View("pictures", "toy/train", captions_per_item=2)
    vocabulary = Vocabulary.build(captions(records, view), "whitespace", 1)
    examples = Examples.of(records, view, store, vocabulary)
    expected = [item_id(n) for n in range(59) if n % 10 < 8 and n not in ABSENT]
    assert list(examples.ids) == expected
    assert (examples.absent, examples.silent) == (2, 0)
    assert [store.ids[row] for row in examples.rows] == expected
    assert examples.caption_items.tolist() == [place for place in range(len(expected)) for _ in range(2)]
    lines = (Path(root).parent / "raw/captions.tsv").read_text().splitlines()
    texts = [line.split("\t")[1] for item in expected for line in lines if line.startswith(item)]
    first_two = [text for number, text in enumerate(texts) if number % 5 < 2]
    for caption, words in zip(first_two, examples.words, strict=True):
        assert [vocabulary.words[word] for word in words[1:-1]] == caption.lower().split()
        assert (words[0], words[-1]) == (START, END)
    assert len(list(captions(records, view))) == 2 * (len(expected) + 2)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (View("pictures", "toy/dev"), "has no split 'toy/dev'; there are: toy/train, toy/val"),
        (View("pictures", "toy/silent"), "has 1 items, but none has both features and captions: 1 have no human"),
        (View("pictures", "toy/train", text="semantics"), "have no semantics captions"),
    ],
)
def test_a_view_without_examples_is_refused(root: str, view: View, message: str) -> None:
    records, store = find(root, "records")[0], FeatureStore(find(root, "resnet")[0])
    with pytest.raises(Trouble, match=message):
        Examples.of(records, view, store, Vocabulary.build([], "whitespace", 1))


def test_an_output_that_is_not_there_is_answered_with_those_that_are(root: str) -> None:
    (records,) = find(root, "records")
    assert choose(root, "records", corpus="pictures").folder == records.folder
    assert choose(root, "records", records.identity).folder == records.folder
    with pytest.raises(Trouble, match=r"no resnet is nothing; there are: \w+ \(absent="):
        choose(root, "resnet", "nothing")
    with pytest.raises(Trouble, match=r"there is no records of coco under .*: build it first"):
        choose(root, "records", corpus="coco")
