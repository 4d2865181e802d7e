"""`--set name=value`: text from the command line into a field of a frozen config, typed by that field.

A setting names a field (`row_group=1024`), or a stage and a field where two stages have one of that name
(`records.row_group=1024`). It changes the config and with it the identity: another value is another directory.
"""

import types
from collections.abc import Mapping
from dataclasses import Field, fields, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from xmodal.trouble import Trouble

C = TypeVar("C")


def parse_settings(texts: list[str], configs: Mapping[str, type[object]]) -> dict[str, str]:
    """`stage.field` → text; a name that no config has, or that two have, is refused with what there is."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Trouble(f"--set takes name=value, not {text!r}")
        settings[_full_name(name, configs)] = value
    return settings


def apply(config: C, stage: str, settings: Mapping[str, str]) -> C:
    """The config with the stage's settings in it; a value that the field's type or the config refuses is named."""
    hints = get_type_hints(type(config))
    for full_name, text in settings.items():
        of, _, name = full_name.partition(".")
        if of == stage:
            try:
                config = replace(config, **{name: _convert(text, hints[name])})  # type: ignore[type-var]
            except ValueError as error:
                raise Trouble(f"--set {full_name}={text}: {error}") from None
    return config


def _full_name(name: str, configs: Mapping[str, type[object]]) -> str:
    known = [f"{stage}.{f.name}" for stage, config in configs.items() for f in _settable(config)]
    found = [full for full in known if name in (full, full.partition(".")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        raise Trouble(f"--set {name}: say which one: {', '.join(found)}")
    raise Trouble(f"no setting {name!r}; there are: {', '.join(known) or 'none for these stages'}")


def _settable(config: Any) -> list[Field[Any]]:
    """A field that is given by what is built, such as the corpus' name, is no setting."""
    return [f for f in fields(config) if not f.metadata.get("given")]


def _convert(text: str, declared: Any) -> Any:
    if get_origin(declared) in (Union, types.UnionType):
        options = [option for option in get_args(declared) if option is not type(None)]
        return None if text.lower() == "none" and len(options) < len(get_args(declared)) else _convert(text, options[0])
    if get_origin(declared) is Literal:
        return _one_of(text, [str(option) for option in get_args(declared)])
    if get_origin(declared) is tuple:
        return tuple(_convert(part, get_args(declared)[0]) for part in text.split(",") if part)
    if declared is bool:
        return _one_of(text.lower(), ["true", "false"]) == "true"
    if declared in (int, float):
        return _number(text, declared)
    return text


def _number(text: str, declared: type[int] | type[float]) -> int | float:
    try:
        return declared(text)
    except ValueError:
        raise ValueError(f"not a{'n integer' if declared is int else ' number'}") from None


def _one_of(text: str, options: list[str]) -> str:
    if text not in options:
        raise ValueError(f"not one of {', '.join(options)}")
    return text
