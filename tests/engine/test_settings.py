"""`--set name=value`: what a person types becomes a typed field, or one line that says what would have been right."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from pipelines.engine.stage import Stage
from pipelines.engine.typed_settings import apply, parse_settings
from pipelines.papers.recipe_runs import recipe_with
from xmodal.errors import UserError


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Frames:
    corpus: str = field(default="toy", metadata={"given": True})
    fps: int = 8
    scale: float = 0.5
    flip: bool = False
    codec: Literal["jpeg", "png"] = "jpeg"
    limit: int | None = None
    sizes: tuple[int, ...] = (224, 448)
    crop: tuple[int, int] = (4, 4)
    note: str = ""
    inner: Inner = field(default_factory=Inner)
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fps < 1:
            raise ValueError(f"fps is at least 1, not {self.fps}")


@dataclass(frozen=True)
class Grids:
    fps: int = 1
    stride: int = 16


CONFIGS: dict[str, object] = {"frames": Frames(), "grids": Grids()}


def frames(*texts: str) -> Frames:
    return apply(Frames(), "frames", parse_settings(list(texts), CONFIGS))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("frames.fps=12", "fps", 12),
        ("scale=0.25", "scale", 0.25),
        ("scale=1e-3", "scale", 0.001),
        ("scale=2", "scale", 2.0),
        ("flip=true", "flip", True),
        ("flip=False", "flip", False),
        ("codec=png", "codec", "png"),
        ("limit=7", "limit", 7),
        ("limit=none", "limit", None),
        ("sizes=1,2,3", "sizes", (1, 2, 3)),
        ("sizes=9", "sizes", (9,)),
        ("sizes=", "sizes", ()),
        ("crop=1,2", "crop", (1, 2)),
        ("note=a=b, c", "note", "a=b, c"),
        ("note=", "note", ""),
    ],
)
def test_a_value_gets_the_type_of_its_field(text: str, name: str, value: object) -> None:
    found = getattr(frames(text), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frames.fps=fast", "integer"),
        ("frames.fps=2.5", "integer"),
        ("frames.fps=", "integer"),
        ("frames.fps=0", "fps is at least 1"),
        ("scale=wide", "number"),
        ("scale=nan", "number"),
        ("scale=inf", "number"),
        ("flip=1", "true, false"),
        ("codec=gif", "jpeg, png"),
        ("limit=many", "integer"),
        ("sizes=1,two", "integer"),
        ("crop=1,2,3", "2"),
        ("crop=1", "2"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name_with_what_would_do(text: str, said: str) -> None:
    with pytest.raises(UserError) as trouble:
        frames(text)
    assert text.partition("=")[0].rpartition(".")[2] in str(trouble.value)
    assert said in str(trouble.value)
    assert "\n" not in str(trouble.value)


@pytest.mark.parametrize("text", ["inner=3", "weights=cpc:1"])
def test_a_field_that_cannot_be_written_as_text_is_refused_and_never_becomes_text(text: str) -> None:
    with pytest.raises(UserError, match=text.partition("=")[0]):
        frames(text)


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    with pytest.raises(UserError, match=r"no setting 'fsp' .*frames\.fps.*grids\.stride"):
        frames("fsp=3")
    with pytest.raises(UserError, match=r"no setting 'frames\.stride'"):
        frames("frames.stride=3")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("scael=1", "frames.scale"),
        ("frames.fsp=3", "frames.fps"),
        ("strides=3", "grids.stride"),
        ("grids.strid=3", "grids.stride"),
    ],
)
def test_what_was_probably_meant_is_asked(text: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"no setting '{text.partition('=')[0]}' \(do you mean {meant}\?\); there are"):
        frames(text)


def test_a_name_like_none_asks_nothing_and_a_recipe_is_asked_for_too() -> None:
    with pytest.raises(UserError, match=r"no setting 'zzz'; there are"):
        frames("zzz=3")
    with pytest.raises(UserError, match=r"no recipe 'pvse-cocoa' \(do you mean pvse-coco\?\); there are: "):
        recipe_with("pvse-cocoa", [])


def test_a_name_that_two_stages_have_must_say_which() -> None:
    with pytest.raises(UserError, match=r"frames\.fps, grids\.fps"):
        frames("fps=3")
    settings = parse_settings(["frames.fps=3", "grids.fps=4"], CONFIGS)
    assert apply(Frames(), "frames", settings).fps == 3
    assert apply(Grids(), "grids", settings).fps == 4


def test_a_name_that_a_stage_of_this_build_has_is_that_stages() -> None:
    assert parse_settings(["fps=3"], CONFIGS, first=["records", "grids"]) == {"grids.fps": 3}
    assert parse_settings(["stride=3"], CONFIGS, first=["frames"]) == {"grids.stride": 3}
    with pytest.raises(UserError, match=r"no setting .zzzz.; there are: grids\.fps, grids\.stride$"):
        parse_settings(["zzzz=3"], CONFIGS, first=["grids"])
    with pytest.raises(UserError, match=r"--set fps: say which one: frames\.fps, grids\.fps"):
        parse_settings(["fps=3"], CONFIGS, first=["frames", "grids"])


@pytest.mark.parametrize("name", ["palette", "frames.palette"])
def test_a_file_that_is_given_as_a_setting_is_told_its_flag(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} is a file, no setting: --file palette=PATH"):
        parse_settings([f"{name}=x.bin"], CONFIGS, files=["palette", "note"])
    assert parse_settings(["note=x"], CONFIGS, files=["note"]) == {"frames.note": "x"}


def test_a_setting_without_value_or_of_no_stage_is_refused() -> None:
    with pytest.raises(UserError, match="name=value, not 'scale'"):
        frames("scale")
    with pytest.raises(UserError, match="none for these stages"):
        parse_settings(["scale=1"], {})


def test_what_is_being_built_is_no_setting() -> None:
    with pytest.raises(UserError, match="no setting 'corpus'"):
        frames("corpus=other")


def test_the_last_of_two_values_for_one_field_counts() -> None:
    assert frames("scale=1", "frames.scale=2").scale == 2


def test_settings_change_the_identity_exactly_when_they_change_a_value() -> None:
    def identity(config: Frames) -> str:
        return _stage(config).identity

    assert identity(frames()) == identity(Frames()) == identity(frames("scale=0.5"))
    assert identity(frames("scale=0.25")) == identity(replace(Frames(), scale=0.25)) != identity(Frames())


def test_settings_of_another_stage_leave_a_config_alone() -> None:
    assert frames("grids.stride=8") == Frames()


def _stage(config: Frames) -> Stage[Frames, None]:
    def nothing(*_: Any) -> Any:
        raise AssertionError("never run")

    return Stage("frames", config, nothing, nothing)
