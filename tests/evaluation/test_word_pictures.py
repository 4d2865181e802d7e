"""`xmodal look --words`: what a caption loses without each of its words, beside its picture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.evaluation.test_looking import folder as folder
from tests.evaluation.test_looking import look
from tests.evaluation.test_looking import root as root
from tests.evaluation.test_looking import runs as runs
from tests.evaluation.test_looking import toy as toy
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Padded
from xmodal.evaluation.run_metrics import open_run
from xmodal.evaluation.word_pictures import WIDTH
from xmodal.media.drawing import GAP, LINE, bars
from xmodal.training.run_setup import Setup
from xmodal.training.validation import floats

Runs = Callable[[str], str]


@pytest.mark.parametrize("name", ["vsepp", "pvse-pixels"])
def test_each_word_has_what_the_similarity_loses_without_it(
    name: str, root: str, runs: Runs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = [runs(name), "--root", root, "--split", "train", "--words", tmp_path / "words"]
    code, out, _ = look(capsys, *command, "--items", "p005", "p002", "--json")
    drawn = json.loads(out)["pictures"]
    assert (code, [one["item"] for one in drawn]) == (0, ["p005", "p002"])
    asked = open_run(runs(name), Setup(root), "train")
    scorer: Any = asked.scorer
    for one in drawn:
        place = asked.reader.examples.ids.index(one["item"])
        first = asked.reader.examples.caption_items.tolist().index(place)
        caption = asked.reader.text(slice(first, first + 1)).values[0].numpy()
        visual = scorer.encode_visual(floats(asked.reader.visual(slice(place, place + 1)), "cpu"))
        assert len(one["words"]) == len(caption) - 2
        for number, (word, lost) in enumerate(one["words"], 1):
            assert word == asked.started.vocabulary.words[caption[number]]
            scores = [
                scorer.similarity(visual, scorer.encode_text(Padded.of([some]))).item()
                for some in (caption, np.concatenate([caption[:number], caption[number + 1 :]]))
            ]
            assert lost == pytest.approx(scores[0] - scores[1], abs=1e-5)
        with Image.open(one["path"]) as image:
            assert image.width == 2 * WIDTH + GAP
            assert image.height > LINE + len(one["words"]) * LINE


def test_the_largest_bars_are_red_and_negative_ones_go_to_the_left() -> None:
    found = bars([("with", 0.0), ("purple", 0.5), ("on", -0.25), ("swing", 0.3)], 2, 400)
    pixels = np.asarray(found).astype(int)
    red = (pixels[..., 0] - pixels[..., 2] > 100).reshape(4, LINE, 400)
    assert [bool(row.any()) for row in red] == [False, True, False, True]
    assert red[1].sum() > red[3].sum()
    grey = (pixels == 0xAA).all(axis=2).reshape(4, LINE, 400)
    zero = round(0.7 * 400)
    assert grey[2][:, :zero].any()
    assert not grey[2][:, zero + 1 :].any()
    assert bars([], 3, 50).size == (50, LINE)


def test_what_has_no_words_or_no_pictures_is_refused(
    root: str, toy: str, runs: Runs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, _, complaint = look(capsys, runs("toy-pcme"), "--root", toy, "--split", "toy/val", "--words", tmp_path / "out")
    assert "xmodal build pictures/media" in complaint
    _, _, complaint = look(capsys, runs("vsepp"), "--root", root, "--split", "train", "--words", "x", "--items", "p9")
    assert "p9: not among the 8 items of train" in complaint
    assert not (tmp_path / "out").exists()


def test_the_first_pictures_are_drawn_in_few_lines(
    root: str, runs: Runs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = [runs("vsepp"), "--root", root, "--split", "train", "--words", tmp_path, "--first", 2]
    code, out, _ = look(capsys, *command)
    assert (code, out.splitlines()[-1]) == (0, f"2 pictures in {tmp_path}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p000.png", "p001.png"]
