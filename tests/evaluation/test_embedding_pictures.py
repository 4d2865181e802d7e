"""`xmodal look --tsne`: a picture of the right items and captions, the same each time, or a line that says why not."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.cli import main
from tests.toy_root import coded, fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_training_together import PVSE
from xmodal.errors import UserError
from xmodal.evaluation import embedding_pictures
from xmodal.evaluation.embedding_pictures import FIRST, draw_plane, perplexity_of, plane
from xmodal.evaluation.run_metrics import open_run
from xmodal.media.charts import Series, Titles
from xmodal.models.cca import CCAConfig
from xmodal.recipes import Features
from xmodal.training.run_setup import Setup
from xmodal.training.validation import floats


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=120, places=2)


@pytest.fixture(scope="module")
def run(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    where = str(tmp_path_factory.mktemp("runs") / "vsepp")
    fit(recipe(1), root, where)
    return where


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Series], Titles]]:
    """What is given to the drawing, which draws it all the same."""
    found, draw = list[tuple[list[Series], Titles]](), embedding_pictures.scatter_chart

    def drawing(series: list[Series], titles: Titles) -> Image.Image:
        found.append((series, titles))
        return draw(series, titles)

    monkeypatch.setattr(embedding_pictures, "scatter_chart", drawing)
    return found


def encoded(run: str, root: str, split: str) -> tuple[list[str], Any, Any]:
    """All items of the split and the first caption of each, by the run at once."""
    asked = open_run(run, Setup(root), split)
    examples = asked.reader.examples
    firsts = [examples.caption_items.tolist().index(place) for place in range(len(examples.ids))]
    with torch.inference_mode():
        visual = asked.scorer.encode_visual(floats(asked.reader.visual(slice(0, len(examples.ids))), "cpu"))
        text = asked.scorer.encode_text(asked.reader.text(slice(0, len(examples.words))))
    return list(examples.ids), visual.numpy(), text.numpy()[firsts]


def test_the_points_are_those_of_the_items_and_of_their_first_captions(
    root: str,
    run: str,
    given: list[tuple[list[Series], Titles]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(embedding_pictures, "plane", lambda embeddings_NE: embeddings_NE[:, :2])
    ids, visual, text = encoded(run, root, "toy/train")
    named = [ids[7], ids[3], ids[50], ids[20]]
    command = ["look", run, "--root", root, "--tsne", str(tmp_path / "planes"), "--split", "toy/train", "--json"]
    for some, places in ((["--items", *named], [7, 3, 50, 20]), (["--first", "60"], range(60)), ([], range(len(ids)))):
        assert main([*command, *some]) == 0
        (drawn,) = json.loads(capsys.readouterr().out)["pictures"]
        (items, captions), titles = given.pop()
        np.testing.assert_allclose(items.points_N2, visual[list(places), :2], atol=1e-5)
        np.testing.assert_allclose(captions.points_N2, text[list(places), :2], atol=1e-5)
        assert (items.name, captions.name) == ("items", "captions")
        assert titles.top == f"toy: {len(places)} of {len(ids)} items of toy/train"
        assert Path(drawn["path"]) == tmp_path / "planes/vsepp.png"
        with Image.open(drawn["path"]) as image:
            image.load()
            assert (image.format, image.width > 900, image.height > 600) == ("PNG", True, True)


def test_the_same_run_gives_the_same_picture(
    root: str, run: str, given: list[tuple[list[Series], Titles]], tmp_path: Path
) -> None:
    for name in ("one", "other"):
        draw_plane(run, Setup(root), "toy/train", tmp_path / name, first=40)
    (first, titles), (second, _) = given
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.points_N2, other.points_N2)
        assert one.points_N2.shape == (40, 2)
        assert np.ptp(one.points_N2, axis=0).all()
    assert (tmp_path / "one/vsepp.png").read_bytes() == (tmp_path / "other/vsepp.png").read_bytes()
    assert "perplexity 26.3, seed 0" in titles.note


def test_a_plane_keeps_neighbours() -> None:
    random = np.random.default_rng(0)
    middles_G8 = 50 * random.normal(size=(3, 8))
    embeddings = np.concatenate([middle + random.normal(size=(20, 8)) for middle in middles_G8]).astype(np.float32)
    found = plane(embeddings)
    apart = np.linalg.norm(found[:, None] - found[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (apart.argmin(axis=1) // 20 == np.arange(60) // 20).all()


def test_perplexity_fits_the_points() -> None:
    assert (perplexity_of(2 * FIRST), perplexity_of(8)) == (30, 7 / 3)
    assert plane(np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)).shape == (8, 2)


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (lambda patch: None, ["--first", "3"], "3 items hardly have: name 4 or more"),
        (lambda patch: None, ["--items", "p9999"], "p9999: not among the"),
        (
            lambda patch: patch.setitem(sys.modules, "sklearn.manifold", None),
            [],
            "t-SNE needs scikit-learn: pip install -e '.[text]'",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    root: str,
    run: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[pytest.MonkeyPatch], None],
    arguments: list[str],
    said: str,
) -> None:
    change(monkeypatch)
    assert main(["look", run, "--root", root, "--tsne", str(tmp_path / "planes"), "--quiet", *arguments]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "planes").exists()


def test_a_model_of_several_vectors_an_item_is_refused(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(PVSE, root, str(tmp_path / "pvse"))
    assert main(["look", str(tmp_path / "pvse"), "--root", root, "--tsne", str(tmp_path), "--quiet"]) == 1
    assert "does not give each item and caption one vector, as A3VSE does" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "said"), [(0.0, "all embeddings are equal"), (np.nan, "are not finite")])
def test_embeddings_without_places_are_refused(value: float, said: str, root: str, run: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    state = torch.load(other / "best.pt", weights_only=True)
    torch.save({name: torch.full_like(weight, value) for name, weight in state.items()}, other / "best.pt")
    with pytest.raises(UserError, match=said):
        draw_plane(str(other), Setup(root), "toy/train", tmp_path / "planes")
    assert not (tmp_path / "planes").exists()


def test_an_item_named_twice_is_one_point_and_a_closed_form_has_a_plane(
    root: str, run: str, given: list[tuple[list[Series], Titles]], tmp_path: Path
) -> None:
    ids, _, _ = encoded(run, root, "toy/train")
    draw_plane(run, Setup(root), "toy/train", tmp_path, items=[*ids[:4], ids[0]])
    coded(root)
    closed = replace(
        recipe(),
        name="closed",
        text=Features("sentences"),
        model=CCAConfig(eta=0.1),
        phases=(),
    )
    fit(closed, root, str(tmp_path / "closed"))
    draw_plane(str(tmp_path / "closed"), Setup(root), "toy/train", tmp_path, first=5)
    assert [[len(series.points_N2) for series in drawn] for drawn, _ in given] == [[4, 4], [5, 5]]
    assert given[1][1].top == f"closed: 5 of {len(ids)} items of toy/train"
