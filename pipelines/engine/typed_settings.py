"""`--set name=value`: text into a field of a frozen config, typed by that field.

A setting names a field (`row_group=1024`), or stage and field where two stages have it (`records.row_group=1024`).
Stages of this build come first.
"""

import inspect
import math
import re
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from xmodal.errors import UserError

C = TypeVar("C")
UNIONS = (Union, types.UnionType)


def parse_settings(
    texts: list[str], configs: Mapping[str, object], first: Collection[str] = (), files: Collection[str] = ()
) -> dict[str, object]:
    """`stage.field` → value; refuses what no config has, what two have and what a config refuses.

    Of two, one of the stages `first` is meant. `files` are names that --file takes.
    """
    known = {f"{stage}.{name}": kind for stage, config in configs.items() for name, kind in _settable(config).items()}
    settings: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set takes name=value, not {text!r}")
        name = _full_name(name, known, first, files)
        try:
            settings[name] = _convert(value, known[name])
        except ValueError as error:
            raise UserError(f"--set {name}={value}: {error}") from None
    for stage, config in configs.items():  # all at once: one may need another
        try:
            apply(config, stage, settings)
        except (ValueError, UserError) as error:
            raise UserError(f"--set {' '.join(texts)}: {error}") from None
    return settings


def apply(config: C, stage: str, settings: Mapping[str, object]) -> C:
    own = {name.rpartition(".")[2]: value for name, value in settings.items() if name.rpartition(".")[0] == stage}
    return config | own if isinstance(config, dict) else replace(config, **own)  # type: ignore[return-value,type-var]


def recorded(plain: Mapping[str, Any], config: object, stage: str) -> dict[str, object]:
    """The settings that an output's config, as JSON has it, says; those of files are left to the files."""
    found = {name: plain[name] for name in _settable(config) if name in plain}
    return {
        f"{stage}.{name}": tuple(value) if isinstance(value, list) else value
        for name, value in found.items()
        if not str(value).startswith("sha256:")
    }


def _full_name(name: str, known: Iterable[str], first: Collection[str], files: Collection[str]) -> str:
    found = [full for full in known if name in (full, full.partition(".")[2])]
    near = [full for full in known if full.partition(".")[0] in first]
    found = [full for full in found if full in near] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"--set {name}: say which one: {', '.join(found)}")
    if (file := name.rpartition(".")[2]) in files:
        raise UserError(f"{name} is a file, no setting: --file {file}=PATH")
    meant = nearest(name, {short: full for full in known for short in (full.partition(".")[2], full)})
    raise UserError(f"no setting {name!r}{meant}; there are: {', '.join(near or known) or 'none for these stages'}")


def nearest(name: str, known: Mapping[str, str]) -> str:
    """Asks for what was probably meant, if anything; `known` has what to ask for each spelling."""
    found = [spelling for spelling in known if spelling.startswith(f"{name}-")] or get_close_matches(name, known, n=1)
    return f" (do you mean {known[found[0]]}?)" if found else ""


def describe(config: object, stage: str) -> list[dict[str, Any]]:
    """Every setting's name, type, value, and line of declaration."""
    rows = []
    for name, declared in _settable(config).items():
        if isinstance(config, dict):
            rows.append({"name": f"{stage}.{name}", "type": "float", "default": config[name], "documented": ""})
            continue
        owner = next(cls for cls in type(config).__mro__ if name in inspect.get_annotations(cls))
        place, _, is_users_file = owner.__module__.partition("@")  # xmodal/python_files.py
        if not is_users_file:
            lines, first = inspect.getsourcelines(owner)
            line = next(number for number, text in enumerate(lines, first) if re.match(rf"\s+{name}:", text))
            place = f"{place.replace('.', '/')}.py:{line}"
        about = {"name": f"{stage}.{name}", "type": _type_text(declared), "default": getattr(config, name)}
        rows.append(about | {"documented": place})
    return rows


def _type_text(declared: Any) -> str:
    kind = get_origin(declared)
    if kind in (Literal, tuple, *UNIONS):
        between = "," if kind is tuple else "|"
        return between.join(map(_type_text, get_args(declared)))
    return {type(None): "none", Ellipsis: "..."}.get(declared) or str(getattr(declared, "__name__", declared))


def _settable(config: Any) -> dict[str, Any]:
    """Types by name: of a dict's numbers, or of fields that can be set."""
    if isinstance(config, dict):
        return {name: float for name, value in config.items() if isinstance(value, int | float)}
    kinds = get_type_hints(type(config))
    names = [field.name for field in fields(config) if "given" not in field.metadata]
    return {name: kinds[name] for name in names if is_plain(kinds[name])}


def is_plain(declared: Any) -> bool:
    """Whether `--set` can give a field of this type a value."""
    if get_origin(declared) is Literal or declared in (int, float, bool, str, type(None), Ellipsis):
        return True
    parts = get_args(declared)
    if get_origin(declared) is tuple and any(get_origin(part) is tuple for part in parts):
        return False  # commas part one list
    return get_origin(declared) in (*UNIONS, tuple) and all(map(is_plain, parts))


def _convert(text: str, declared: Any) -> Any:
    kind, options = get_origin(declared), get_args(declared)
    if kind in UNIONS:
        if text.lower() == "none" and type(None) in options:
            return None
        return _convert(text, next(option for option in options if option is not type(None)))
    if kind is Literal:
        return _one_of(text, {str(option): option for option in options})
    if kind is tuple:
        parts = [part for part in text.split(",") if part]
        if options[-1] is Ellipsis:
            options = options[:1] * len(parts)
        if len(parts) != len(options):
            raise ValueError(f"takes {len(options)} values with commas between them, not {len(parts)}")
        return tuple(map(_convert, parts, options))
    if declared is bool:
        return _one_of(text.lower(), {"true": True, "false": False})
    if declared is str:
        return text
    try:
        number = declared(text)
    except ValueError:
        raise ValueError("not an integer" if declared is int else "not a number") from None
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _one_of(text: str, options: Mapping[str, Any]) -> Any:
    if text not in options:
        raise ValueError(f"not one of {', '.join(options)}")
    return options[text]
