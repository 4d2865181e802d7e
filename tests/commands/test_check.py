"""`xmodal check`: what a corpus or a model of one's own lacks, as a person is told it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.fetching.test_ledger import Publisher, publishing
from tests.toy_root import one_thread as one_thread
from xmodal.checks.corpus_contract import declaration_faults
from xmodal.corpora import load

TOY = Path(__file__).parents[1] / "fixtures/toy_model.py"
PICTURES = TOY.with_name("pictures.py")


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with publishing(tmp_path) as publisher:
        yield publisher


def test_what_keeps_the_contract_is_said_to(xmodal: Xmodal, publisher: Publisher) -> None:
    said = xmodal("check", publisher.file, TOY, "--raw", publisher.folder)
    assert (said.code, said.err) == (0, "")
    assert said.out == f"{publisher.file}, corpus pictures: keeps the contract\n{TOY}, model: keeps the contract\n"


def test_a_corpus_of_the_package_writes_its_own_files(xmodal: Xmodal) -> None:
    assert xmodal("check", "tgif").out == "tgif, corpus tgif: keeps the contract\n"


def test_without_files_it_is_said_that_nothing_was_parsed(xmodal: Xmodal, publisher: Publisher) -> None:
    found = xmodal.done("check", publisher.file)[str(publisher.file)]
    assert found["faults"] == []
    assert found["notes"] == ["pictures was not parsed: add --raw FOLDER with all of its files"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kinds=frozenset({"image"})', "kinds=frozenset()", "CORPUS.kinds is empty"),
        ('kinds=frozenset({"image"})', 'kinds=frozenset({"clip"})', "kinds of its items and labels are image"),
        ('licence="CC0-1.0"', 'licence=" "', "CORPUS.licence is empty"),
        ('"media": "all"}', '"media": "everything"}', "'everything': a part is one of annotations, media"),
        ('release={"annotations": "all", "media": "all"}', "release={}", "CORPUS.release does not say"),
        (
            "            yield Split(",
            "            if name != 'p001.jpg':\n                yield Split(",
            "1 items are in no split",
        ),
        ('"captions": 16', '"items:pictures/vla": 0', "CORPUS.counts has 'items:pictures/vla', a split without items"),
        ("Split(name.removesuffix(", 'Split("p000" or name.removesuffix(', "comes twice in split"),
        (", split)\n    seen", ", split.partition('/')[2])\n    seen", "split 'train' is not named after whoever"),
        ("seen[item] += 1", "seen[item] += 2", "has position 2, not 1: count those of an item from 0"),
        ("seen[item], text)", 'seen[item], f" {text}")', "is empty or has white space around it"),
        ('f"c{number:04d}", item', 'f"c{number % 4}", item', "caption 'c0' comes twice"),
        ('f"pictures/{name}")', 'f"paintings/{name}")', "media of items are in no source"),
        ('"captions": 16', '"captions": 17', "a full parse must give 17 captions, not 16"),
        ("    seen = Counter[str]()", "    raise KeyError('no')", "parse ends in KeyError: 'no'"),
        ("        except ValueError as error:", "        except KeyError as error:", "where splits.json is a web page"),
        ("seen[item], text)", "seen[item], f'{text} {random()}')", "parse gives other rows a second time"),
        ("    seen = Counter[str]()", "    raise SystemExit('bye')", "parse ends in SystemExit: bye"),
        ('kinds=frozenset({"image"})', 'kinds="image"', "CORPUS.kinds is 'image': it must be of type frozenset"),
        (
            'release={"annotations": "all", "media": "all"}',
            "release=None",
            "CORPUS.release is None: it must be",
        ),
        ('licence="CC0-1.0"', "licence=None", "CORPUS.licence is None: it must be of type str"),
        ("media=media", "media=3", "CORPUS.media is 3: it must be of type Callable or NoneType"),
        ('"splits.json"))', '"splits.json", "more.txt"))', "more.txt is not in the folder, and parse does not miss it"),
        ("    p001.jpg<TAB>a red", "p001.jpg<TAB>a red", ""),
    ],
)
def test_what_a_corpus_lacks_is_said(old: str, new: str, said: str, xmodal: Xmodal, publisher: Publisher) -> None:
    text = publisher.file.read_text()
    assert old in text
    publisher.file.write_text(
        text.replace("import json\n", "import json\nfrom random import random\n").replace(old, new)
    )
    found = xmodal("check", publisher.file, "--raw", publisher.folder)
    assert found.code == (1 if said else 0), found
    assert any(one in found.out for one in said.split("|"))


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ("    a.jpg<TAB>a cat\n" * 3, "name the traps: it has 3 lines, not over 10"),
        ("a.jpg\n" * 11, "name the traps: no sample is indented by four spaces"),
    ],
)
def test_a_docstring_without_a_sample_or_traps_is_told_what_it_lacks(about: str, said: str) -> None:
    (fault,) = [fault for fault in declaration_faults(load(str(PICTURES)), about) if "docstring" in fault]
    assert fault.endswith(said)


def test_a_model_that_breaks_the_contract_exits_with_one(xmodal: Xmodal, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(TOY.read_text().replace("RECIPES = (TOY,)", "RECIPES = ()"))
    said = xmodal("check", mine)
    assert said.code == 1
    assert "mine.py, model: 1 to mend\n    - no RECIPES: a tuple of at least one xmodal.recipes.Recipe\n" in said.out


def test_what_is_broken_is_not_also_told_that_it_learns_badly(xmodal: Xmodal, tmp_path: Path) -> None:
    mine, dull = tmp_path / "mine.py", TOY.read_text().replace("SMALL = (ToyConfig(),)", "SMALL = (ToyConfig(1),)")
    mine.write_text(dull)
    assert "of 16 partners" in xmodal("check", mine).out
    mine.write_text(dull.replace("super().__init__()", "super().__init__()\n        self.dead = nn.Linear(2, 2)"))
    said = xmodal("check", mine).out
    assert "the loss gives parameter dead.weight no gradient" in said
    assert "partners" not in said


def test_a_weight_that_is_text_is_named(xmodal: Xmodal, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(TOY.read_text().replace('"length": 1e-3', '"length": "1e-3"'))
    assert "the weight of 'length' is '1e-3', no number" in xmodal("check", mine).complaint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no Python file"),
        ("", "has neither a CORPUS nor RECIPES"),
        ("import nowhere_to_be_found\n", "cannot be loaded: ModuleNotFoundError"),
        ("CORPUS = 3\n", "defines no CORPUS of class xmodal.corpora.Corpus"),
    ],
)
def test_what_is_no_corpus_and_no_model_is_refused(text: str | None, said: str, xmodal: Xmodal, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    assert said in xmodal("check", tmp_path / "mine.py").complaint


def test_a_name_that_nobody_has_is_answered_with_those_there_are(xmodal: Xmodal) -> None:
    assert "no corpus and no model 'cocoa'; there are: coco, cub" in xmodal("check", "cocoa").complaint


def test_a_model_that_compares_a_part_of_a_batch_is_told_so(xmodal: Xmodal, tmp_path: Path) -> None:
    mine, text = tmp_path / "mine.py", TOY.read_text()
    for whole, part in (
        ("gather_pairs(stream)", "stream.positives"),
        ("compare_gathered(self.similarity, ", "self.similarity("),
    ):
        assert whole in text
        text = text.replace(whole, part)
    mine.write_text(text)
    found = xmodal("check", mine)
    assert found.code == 1
    assert "compares a part of a batch with itself, so that several processes have another loss than one" in found.out


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("assert not self.training and text is None", "ends in AssertionError"),
        ("raise SystemExit('bye')", "ends in SystemExit: bye"),
    ],
)
def test_a_model_that_trips_an_assertion_or_leaves_is_told_so(
    statement: str, said: str, xmodal: Xmodal, tmp_path: Path
) -> None:
    mine, begin = tmp_path / "mine.py", "def encode_text(self, text: Padded) -> Tensor:"
    assert begin in TOY.read_text()
    mine.write_text(TOY.read_text().replace(begin, begin + f"\n        {statement}"))
    found = xmodal("check", mine)
    assert found.code == 1
    assert said in found.out
