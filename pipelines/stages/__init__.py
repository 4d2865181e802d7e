"""Stages: one module each, found because the file exists, here or in a folder of its group.

A module declares `STAGE`, which says what it is, and `make(config, needs)`, which gives its `Stage`.
"""

import pkgutil
from dataclasses import MISSING, fields, is_dataclass, replace
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from typing import Any, get_args, get_type_hints

from pipelines.engine.stage_kind import StageKind
from pipelines.engine.typed_settings import is_plain
from xmodal.errors import UserError
from xmodal.python_files import load_module
from xmodal.records.tables import Kind, Label

FILE_SETS = {"sources": (), "media": ("sources",)}  # sealed files, which stages may need, and what is before them
DATA = ("sources", "records", "media")  # what is built where a corpus is named without a stage
ITEM_KINDS = get_args(Kind)
LABEL_KINDS = get_args(get_type_hints(Label)["kind"])


def names() -> list[str]:
    return [kind.name for kind in all()]


def load(name: str) -> StageKind:
    module = load_module(_modules().get(name, f"{__name__}.{name}"), "STAGE", "make")
    kind, where = module.STAGE, module.__file__
    if not isinstance(kind, StageKind) or kind.name != name:
        raise UserError(f"{where} must define make(config, needs) and STAGE = StageKind(name={name!r}, …)")
    _check_config(kind.config, str(where))
    for part in ("needs", "files", "packages", "also"):
        if isinstance(text := getattr(kind, part), str):
            raise UserError(f"{where}: {part}={text!r} is a text: write {part}=({text!r},)")
    if unknown := kind.small.keys() - {field.name for field in fields(kind.config)}:  # type: ignore[arg-type]
        raise UserError(f"{where}: small has {min(unknown)!r}, which is no setting of {name}")
    found = _found()
    if unknown := {*kind.needs} - {*found, *FILE_SETS}:
        raise UserError(f"{where}: stage {name} needs {min(unknown)}, which is no stage; there are: {', '.join(found)}")
    if kind.of not in (None, *ITEM_KINDS, *LABEL_KINDS):
        there = ", ".join((*ITEM_KINDS, *LABEL_KINDS))
        raise UserError(f"{where}: of={kind.of!r} is no kind of item or label; there are: {there}")
    return replace(kind, make=module.make)


def _check_config(config: Any, where: str) -> None:
    if not (isinstance(config, type) and is_dataclass(config) and config.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise UserError(f"{where}: config={config!r} is no class with @dataclass(frozen=True)")
    if lacking := [f.name for f in fields(config) if f.default is MISSING and f.default_factory is MISSING]:
        raise UserError(f"{where}: give the field {lacking[0]} of {config.__name__} a default")
    kinds, settings = get_type_hints(config), [f.name for f in fields(config) if "given" not in f.metadata]
    if wrong := [f"{name}: {kinds[name]}" for name in settings if not is_plain(kinds[name])]:
        allowed = "bool, int, float, str, a Literal, a tuple such as tuple[int, ...], or one of these or None"
        raise UserError(f"{where}: {config.__name__} has {wrong[0]}: a setting is {allowed}; else write given()")


def _found() -> list[str]:
    return sorted(_modules())


def _modules() -> dict[str, str]:
    """Names of stages, and the modules that declare them."""
    here = [*pkgutil.iter_modules(__path__, f"{__name__}.")]
    groups = [found.name for found in here if found.ispkg]
    grouped = (found for name in groups for found in pkgutil.iter_modules(import_module(name).__path__, f"{name}."))
    modules = [found.name for found in (*here, *grouped) if not found.ispkg]
    names = {module.rpartition(".")[2]: module for module in modules}
    return {name: module for name, module in names.items() if not name.startswith("_")}


def all() -> list[StageKind]:
    """Every stage, in an order of building."""
    kinds = {name: load(name) for name in _found()}
    givers = dict[str, str]()  # of small files
    for name, file in ((kind.name, file) for kind in kinds.values() for file in kind.small_files):
        if givers.setdefault(file, name) != name:
            both = f"{givers[file]} and {name}"
            raise UserError(f"stages {both} both give small_files[{file!r}]: rename one, or leave it to one of them")
    try:
        order = [*TopologicalSorter({name: kind.needs for name, kind in kinds.items()}).static_order()]
    except CycleError as error:
        raise UserError(f"stages need each other: {' → '.join(error.args[1])}") from None
    return [kinds[name] for name in order if name in kinds]


def is_of(name: str, kind: str) -> bool:
    return name not in FILE_SETS and load(name).of == kind


def targets() -> list[str]:
    """All that can be built of a corpus, in order."""
    return [*DATA, *(name for name in names() if name not in DATA)]


def with_needs(wanted: list[str]) -> list[str]:
    """These stages after all that is built before them."""
    ordered: dict[str, None] = {}
    for name in wanted:
        before = FILE_SETS[name] if name in FILE_SETS else load(name).needs
        ordered |= dict.fromkeys([*with_needs([*before]), name])
    return [*ordered]
