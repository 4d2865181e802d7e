"""Identities: what decides an output names it; a later setting with its default changes no name."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.building import build
from pipelines.engine.stage import Stage
from tests.toy_stages import Letters, letters
from tests.training.test_runs import RUN
from xmodal import __version__, recipes
from xmodal.errors import UserError
from xmodal.models import vsepp
from xmodal.root.identity import DESCRIBES, fingerprint, since, to_plain
from xmodal.root.storage import open_storage
from xmodal.training import run_folder


@dataclass(frozen=True)
class Small:
    width: int = 8


def with_later_field(config: type, default: Any = 1) -> Any:
    """The same class as a later version of xmodal has it, with one more field."""
    body = {"__annotations__": {"later": Any}, "__module__": config.__module__, "later": since("9.9", default)}
    later = type(config.__name__, (config,), body)
    return dataclass(frozen=True)(later)


def test_a_field_that_came_later_is_in_the_identity_only_where_it_is_set() -> None:
    later = with_later_field(Small)
    assert fingerprint(later()) == fingerprint(Small())
    assert fingerprint(later(later=2)) != fingerprint(Small())
    assert to_plain(later(later=2)) == {"_type": "Small", "width": 8, "later": 2}


def test_a_default_that_means_the_same_is_the_default() -> None:
    later = with_later_field(Small, (1, 2.0))
    assert fingerprint(later(later=[1, 2])) == fingerprint(Small())


def test_a_default_without_canonical_form_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="no canonical form"):
        since("9.9", {1, 2})


def test_what_only_describes_is_in_no_identity_and_makes_no_difference() -> None:
    @dataclass(frozen=True)
    class Cited:
        width: int = 8
        cites: str = field(default="table 1", compare=False, metadata=DESCRIBES)

    assert to_plain(Cited()) == {"_type": "Cited", "width": 8}
    assert Cited(cites="table 2") == Cited()
    assert fingerprint(Cited(cites="table 2")) == fingerprint(Cited())


def test_an_output_is_still_that_of_a_stage_whose_config_has_got_a_field(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    before: Stage[Any, Any] = letters(Letters(3))
    made = build(before, storage)
    config = with_later_field(Letters)(**vars(before.config))
    again = build(replace(before, config=config), storage)
    assert again.folder == made.folder
    assert build(replace(before, config=replace(config, later=2)), storage).folder != made.folder


def test_an_output_says_which_xmodal_wrote_it_and_another_version_goes_on_with_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    output = build(letters(Letters(3)), storage)
    path = tmp_path / output.folder / "stage.json"
    assert json.loads(path.read_text())["xmodal"] == __version__
    path.write_text(path.read_text().replace(f'"{__version__}"', '"0.0.1"'))
    (tmp_path / output.folder / "complete.json").unlink()
    assert build(letters(Letters(3)), storage).folder == output.folder
    assert '"xmodal":"0.0.1"' in path.read_text()


def test_a_run_is_still_that_of_a_recipe_that_has_got_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the recipe, in its phases and in its model."""
    run = replace(RUN, recipe=replace(RUN.recipe, model=vsepp.VSEPPConfig()))
    run_folder.start(str(tmp_path), run)
    for name in ("Phase", "Recipe", "VSEPPConfig"):
        later = with_later_field(getattr(vsepp, name))
        monkeypatch.setattr(recipes, name, later, raising=False)
        monkeypatch.setattr(vsepp, name, later)
    model = vsepp.VSEPPConfig()
    phases = tuple(recipes.Phase(**vars(phase)) for phase in run.recipe.phases)
    now = recipes.Recipe(**vars(run.recipe) | {"model": model, "phases": phases})
    run_folder.refuse_another(str(tmp_path), replace(run, recipe=now))
    assert run_folder.read(str(tmp_path)).recipe == now
    with pytest.raises(UserError, match="holds another run: later is nothing there and 2 here"):
        run_folder.refuse_another(str(tmp_path), replace(run, recipe=replace(now, **{"later": 2})))


def test_a_run_goes_on_where_only_its_citation_was_corrected(tmp_path: Path) -> None:
    run_folder.start(str(tmp_path), RUN)
    assert json.loads((tmp_path / run_folder.RECIPE).read_text())["xmodal"] == __version__
    corrected = replace(RUN, recipe=replace(RUN.recipe, cites="table 2, not 1"))
    run_folder.refuse_another(str(tmp_path), corrected)
    assert run_folder.read(str(tmp_path)).recipe.cites == RUN.recipe.cites
