"""Training beside un-annotated items: their captions stay unread, and it is like any training else."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.commands.data.prune import _kept
from pipelines.demo.world import describe, scene
from tests.stages.test_semantics_stage import CIRCLES, ITEMS, build_semantics, seen, semantics_of
from tests.toy_root import WORLD, fit, item_id, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import assert_same_run
from tests.training.test_training_together import assert_near, curve, processes, train
from xmodal.batches import distributed
from xmodal.errors import UserError
from xmodal.models.a3vse import WEIGHTS, A3VSEConfig
from xmodal.progress import Silence
from xmodal.recipes import Optimiser, Phase, Recipe, View
from xmodal.records.derived_splits import Share
from xmodal.records.views import members
from xmodal.root.outputs import find
from xmodal.training import run_folder

SPLIT = "toy/train@50%x3"
OTHERS = [(1, 0), (0, 1)]  # classes and attributes of regions, other than CIRCLES


def a3vse(split: str = SPLIT, **changes: Any) -> Recipe:
    phase = Phase(3, Optimiser("adam", 5e-3, clip_norm=2.0, weight_decay=1e-6), WEIGHTS)
    small = recipe(
        name="toy-a3vse",
        model=A3VSEConfig(width=12, word_width=8, discriminator_width=8),
        view=View("pictures", split, captions_per_item=5),
        unannotated=View("pictures", f"{split}:unannotated", text="semantics"),
        phases=(phase,),
        batch_size=16,
    )
    return replace(small, **changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = make_root(tmp_path_factory.mktemp("toy"), ITEMS, places=2)
    build_semantics(root)
    return root


@pytest.fixture(scope="module")
def whole(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    run = str(tmp_path_factory.mktemp("whole") / "run")
    train(a3vse(), root, run, save_every=4)
    return run


def losses(run: str) -> list[Any]:
    return [(line["step"], line["loss"], line["terms"]) for line in curve(run)]


def test_captions_of_unannotated_items_change_nothing(root: str, whole: str, tmp_path: Path) -> None:
    (records,) = find(root, "records")
    hidden = members(records, f"{SPLIT}:unannotated")
    assert len(hidden) > ITEMS // 3

    def poisoned(number: int, position: int) -> str:
        text = describe(scene(WORLD, number), WORLD, position)
        return f"poison {position} {text[::-1]}" if item_id(number) in hidden else text

    other = make_root(tmp_path, ITEMS, places=2, told=poisoned)
    build_semantics(other)
    train(a3vse(), other, str(tmp_path / "run"))
    assert losses(str(tmp_path / "run")) == losses(whole)


def test_the_words_of_regions_do_train(whole: str, tmp_path: Path) -> None:
    other = make_root(tmp_path, ITEMS, places=2)
    build_semantics(other, OTHERS)
    train(a3vse(), other, str(tmp_path / "run"))
    assert losses(str(tmp_path / "run")) != losses(whole)
    assert all(terms["unannotated"] > 0 < terms["transitive_caption"] for _, _, terms in losses(whole))


def test_where_all_is_annotated_it_is_its_own_triplet_baseline_bit_for_bit(root: str, tmp_path: Path) -> None:
    full, weights = a3vse("toy/train@100%"), {name: WEIGHTS[name] for name in ("annotated", "unannotated")}
    assert Share.of(full.unannotated.split if full.unannotated else "")
    plain = replace(
        full,
        unannotated=None,
        model=replace(full.model, adversaries=()),  # type: ignore[type-var]
        phases=(replace(full.phases[0], weights=weights),),
    )
    for each, name in ((full, "full"), (plain, "plain")):
        train(each, root, str(tmp_path / name))
    ours, theirs = (curve(str(tmp_path / name)) for name in ("full", "plain"))
    assert [(line["loss"], line["norm"]) for line in ours] == [(line["loss"], line["norm"]) for line in theirs]


@pytest.mark.parametrize("after", [7, 12])
def test_a_killed_run_ends_as_if_it_had_not_been(root: str, whole: str, tmp_path: Path, after: int) -> None:
    run = str(tmp_path / "run")
    assert processes(1, train, a3vse(), root, run, 4, after) == [-signal.SIGKILL]
    train(a3vse(), root, run, save_every=4)
    assert_same_run(run, whole)


def together(root: str, run: str) -> None:
    with distributed.process_group("cpu"):
        train(a3vse(), root, run)


def test_two_processes_learn_what_one_learns(root: str, whole: str, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert processes(2, together, root, run) == [0, 0]
    assert_near(whole, run)


def test_a_run_goes_on_with_its_own_semantics_alone(root: str, tmp_path: Path) -> None:
    own = make_root(tmp_path, ITEMS, places=2)
    build_semantics(own)
    run = str(tmp_path / "run")
    fit(a3vse(), own, run)
    build_semantics(own, shown=0.7)
    with pytest.raises(UserError, match="semantics"):
        fit(a3vse(), own, run)


def test_items_are_never_annotated_and_unannotated_at_once(root: str, tmp_path: Path) -> None:
    both = a3vse(unannotated=View("pictures", "toy/train@20%:unannotated", text="semantics"))
    with pytest.raises(
        UserError, match=r"items of 'toy/train@20%:unannotated', said to be un-annotated, are in 'toy/t"
    ):
        fit(both, root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_one_of_several_semantics_is_named_as_other_outputs_are(tmp_path: Path) -> None:
    own, recipe = make_root(tmp_path, ITEMS, places=2), a3vse(phases=(replace(a3vse().phases[0], epochs=1),))
    first, second = build_semantics(own), build_semantics(own, shown=0.7)
    with pytest.raises(UserError, match=r"several captions by semantics.*say which by --texts IDENTITY.*shown=0\.7"):
        fit(recipe, own, str(tmp_path / "run"))
    for chosen in (first, second):
        run = fit(recipe, own, str(tmp_path / chosen.identity), texts=chosen.identity).run
        unannotated = run_folder.read(run).recipe.unannotated
        assert unannotated
        assert unannotated.text == f"semantics/{chosen.identity}"
        assert run_folder.read(run).recipe.view.text == "human"
    with pytest.raises(UserError, match="no captions by semantics of pictures are 'abc'"):
        fit(recipe, own, str(tmp_path / "run"), texts="abc")


def test_prune_keeps_the_semantics_of_a_run(root: str, whole: str) -> None:
    (semantics,), (records,) = find(root, "semantics"), find(root, "records")
    assert {semantics.identity, records.identity} < {*_kept(whole)}


def test_pictures_without_a_sure_region_are_left_out_and_told(tmp_path: Path) -> None:
    """Every other picture has a region of a score of 0.5 alone."""
    own, said = make_root(tmp_path, ITEMS, places=2), list[str]()

    class Told(Silence):
        def say(self, text: str) -> None:
            said.append(text)

    semantics_of(own, [seen(item_id(n), CIRCLES[: 1 + n % 2]) for n in range(ITEMS)], least_score=0.7)
    fit(a3vse(), own, str(tmp_path / "run"), progress=Told())
    (records,) = find(own, "records")
    others = members(records, f"{SPLIT}:unannotated")
    without = sum(int(id[1:]) % 2 == 0 for id in others)
    told = f"{len(others) - without} items with {len(others) - without} semantics (0 left out without features"
    assert any(f"beside them {told}, {without} without semantics)" in line for line in said), said
    assert losses(str(tmp_path / "run"))


def test_items_without_semantics_are_told(tmp_path: Path) -> None:
    root = make_root(tmp_path, ITEMS, places=2)
    with pytest.raises(UserError, match="semantics"):
        fit(a3vse(), root, str(tmp_path / "run"))
