"""A run's directory says what was trained on what, and nothing else is believed."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.toy_root import recipe
from xmodal.errors import UserError
from xmodal.recipes import OnePerClass, Optimiser, Phase, Plateau, Recipe, Relative
from xmodal.text.vocabularies import Vocabulary
from xmodal.training import run_folder

ADAM = Optimiser("adam", 5e-3)
RUN = run_folder.Run(
    recipe(), "aaaa", "bbbb", Vocabulary.build(["a dog"], "whitespace", 1), visual_width=64, instances=9
)


def test_a_run_comes_back_as_it_was_started(tmp_path: Path) -> None:
    run_folder.start(str(tmp_path), RUN)
    run_folder.start(str(tmp_path), RUN)
    assert run_folder.read(str(tmp_path)) == RUN
    assert (RUN.inputs.visual_width, RUN.inputs.text_width, RUN.inputs.instances) == (64, 6, 9)
    with pytest.raises(UserError, match=r'another run: features is "bbbb" there and "cccc" here: nothing of it is sav'):
        run_folder.start(str(tmp_path), replace(RUN, features="cccc"))


def test_a_run_that_saved_nothing_may_be_removed_unless_it_is_going_on(tmp_path: Path) -> None:
    """As one that ended in its first steps, by an error of a model that is mended now."""
    folder, other = str(tmp_path), replace(RUN, features="cccc")
    advice = "here: nothing of it is saved, so remove the folder, or choose another folder for this"
    with run_folder.held(folder):
        run_folder.start(folder, RUN)
        with pytest.raises(UserError, match="here: choose another folder for this"):
            run_folder.refuse_another(folder, other)
    with pytest.raises(UserError, match=advice):
        run_folder.refuse_another(folder, other)
    (tmp_path / run_folder.LAST).touch()
    with pytest.raises(UserError, match="here: choose another folder for this"):
        run_folder.refuse_another(folder, other)


def test_a_run_does_not_write_into_somebodys_folder(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("mine")
    with pytest.raises(UserError, match=r"no run and not empty \(it has log\.jsonl\)"):
        run_folder.start(str(tmp_path), RUN)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"log.jsonl": "mine"}


def test_another_run_is_told_by_what_differs(tmp_path: Path) -> None:
    """As `--set` names it, the first few of many; what follows from the rest is not told."""
    (phase,) = recipe().phases
    phase = replace(phase, frozen=("words.*",), optimiser=replace(phase.optimiser, clip_norm=None))
    run_folder.start(str(tmp_path), RUN)
    with pytest.raises(UserError) as found:
        run_folder.start(str(tmp_path), replace(RUN, recipe=recipe(batch_size=64, phases=(phase,)), weights="others"))
    assert str(found.value) == (
        f"{tmp_path} holds another run: batch_size is 32 there and 64 here, "
        'phase1.frozen is [] there and ["words.*"] here, phase1.optimiser.clip_norm is 2 there and null here: '
        "nothing of it is saved, so remove the folder, or choose another folder for this"
    )
    with pytest.raises(UserError, match=r"run: phases is 1 there and 2 here, phase1\.frozen .* and \d+ more: nothing"):
        run_folder.start(str(tmp_path), replace(RUN, recipe=recipe(phases=(phase, phase))))
    run_folder.start(str(tmp_path), replace(RUN, weights="others"))


READ_ONLY = 'mount -t tmpfs -o ro none "$1" && shift && exec "$@"'
CAN_MOUNT = subprocess.run(["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", "/mnt", "true"], check=False).returncode == 0


@pytest.mark.skipif(not CAN_MOUNT, reason="this system lets nobody mount a tmpfs")
def test_a_folder_that_cannot_be_written_is_refused_as_the_run_that_it_is(tmp_path: Path) -> None:
    code = "import sys; from xmodal.training import run_folder; run_folder.held(sys.argv[1]).__enter__()"
    command = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(tmp_path), sys.executable, "-c", code]
    for run in (tmp_path, tmp_path / "run"):
        done = subprocess.run(
            [*command, str(run)], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
        )
        assert f"UserError: run {run} cannot be written (Read-only file system): choose another folder" in done.stderr


def test_a_folder_that_never_became_a_run_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / run_folder.VOCABULARY).write_bytes(b"of an attempt that was killed")
    assert run_folder.read_vocabulary(str(tmp_path)) is None
    with pytest.raises(UserError, match="is no run"):
        run_folder.read(str(tmp_path))
    run_folder.start(str(tmp_path), RUN)
    assert run_folder.read_vocabulary(str(tmp_path)) == RUN.vocabulary


def test_a_recipe_survives_its_file() -> None:
    everything: Recipe = recipe(
        phases=(
            Phase(1, replace(ADAM, schedule=Plateau(0.5, 3)), {"a": 1.0, "b": Relative(0.5, "a")}, ("words.*",)),
            Phase(2, replace(ADAM, rule="adamp", multipliers=(("x", 0.5),)), {"a": 2.0}, sampler=OnePerClass()),
        )
    )
    facts = json.loads(json.dumps(replace(RUN, recipe=everything).facts()))
    assert run_folder.recipe_of(facts["recipe"], facts["model"]) == everything


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (run_folder.RECIPE, lambda data: data.replace(b'"seed":0', b'"seed":1'), "started with: remove the folder"),
        (run_folder.RECIPE, lambda data: data.replace(b'"layout":4', b'"layout":1'), "another version of xmodal"),
        (run_folder.RECIPE, lambda data: data.replace(b'"batch_size"', b'"batches"'), "does not fit this version"),
        (run_folder.RECIPE, lambda data: data.replace(b'"Recipe"', b'"import_module"'), "does not fit this version"),
        (run_folder.RECIPE, lambda data: data[:-9], r"recipe\.json is damaged"),
        (run_folder.RECIPE, lambda data: b"[" * 100_000, r"recipe\.json is damaged"),
        (
            run_folder.RECIPE,
            lambda data: b"[]",
            r"recipe\.json is damaged \(.*list.*\): remove the folder .* and train again",
        ),
        (run_folder.RECIPE, lambda data: data.replace(b'"instances"', b'"instance"'), "has no usable instances"),
        (
            run_folder.RECIPE,
            lambda data: data.replace(b'"batch_size":32', b'"batch_size":0'),
            "does not fit this version",
        ),
        (run_folder.RECIPE, lambda data: data.replace(b'"seed":0', b'"seed":NaN'), "does not fit this version"),
        (run_folder.VOCABULARY, lambda data: data[:-5], r"vocabulary that was written: .*remove the folder"),
    ],
)
def test_a_damaged_run_is_refused(tmp_path: Path, name: str, change: Callable[[bytes], bytes], message: str) -> None:
    run_folder.start(str(tmp_path), RUN)
    (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    with pytest.raises(UserError, match=message):
        run_folder.read(str(tmp_path))
