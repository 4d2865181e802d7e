"""The commands of `xmodal`: each public module in a folder here is one, found because it exists.

A folder is a group of commands; its docstring is the heading under which `xmodal --help` lists them. A command's module
has a docstring, which is its help (first line: the summary; examples at the end), and

    flags(parser)             declares its arguments
    run(args)                 does the work; returns plain JSON values, which --json prints, or a text
    text(result)              gives the lines that a person reads in place of a text or the JSON; may be left out
    exit_code(result)         may be left out: always 0

Heavy imports stand inside `run`. An underscore at the end of a module's name is not typed: `import_` avoids a word of
Python, `recipes_` the name of another module.
"""

import argparse
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from xmodal import __version__
from xmodal.errors import UserError
from xmodal.python_files import load_module

Args = argparse.Namespace
Result = dict[str, Any]
Lines = Iterator[str]

GROUPS = ("data", "models", "exchange", "installation")  # in this order in the help; other folders come after
MOST_FILES_WITHIN_FILES = 20


def load_all() -> dict[str, ModuleType]:
    """Maps each command, as it is typed, to its module."""
    found: dict[str, ModuleType] = {}
    for name, module in (command for group in groups() for command in commands_of(group).items()):
        if other := found.get(name):
            both = " and ".join(f"{one.__name__.replace('.', '/')}.py" for one in (other, module))
            module = _refusing(module.__name__, UserError(f"{both} are both the command {name}: rename one"))
        found[name] = module
    return found


def groups() -> list[ModuleType]:
    names = [found.name for found in pkgutil.iter_modules(__path__) if found.ispkg]
    return [importlib.import_module(f"{__name__}.{name}") for name in dict.fromkeys([*GROUPS, *names])]


def commands_of(group: ModuleType) -> dict[str, ModuleType]:
    names = sorted(found.name for found in pkgutil.iter_modules(group.__path__) if found.name[0] != "_")
    return {name.removesuffix("_").replace("_", "-"): _load(f"{group.__name__}.{name}") for name in names}


def _load(name: str) -> ModuleType:
    """A command whose file is wrong is listed, and says so when it is used."""
    try:
        return load_module(name, "flags", "run")
    except UserError as error:
        return _refusing(name, error)


def _refusing(name: str, why: UserError) -> ModuleType:
    def refuse(*arguments: Any) -> NoReturn:
        raise why

    module = ModuleType(name, f"Does not work: {why}")
    vars(module)["flags"] = lambda parser: setattr(parser, "parse_known_args", refuse)
    return module


class Parser(argparse.ArgumentParser):
    """Reads `@FILE` arguments and says more than argparse where a required root is missing."""

    _files_within_files = 0

    def convert_arg_line_to_args(self, line: str) -> list[str]:
        line = line.strip()
        return [line] if line and not line.startswith("#") else []

    def _read_args_from_files(self, arg_strings: list[str]) -> list[str]:
        self._files_within_files += 1
        if self._files_within_files > MOST_FILES_WITHIN_FILES:
            self.error("an @FILE names itself: leave that line out")
        try:
            return super()._read_args_from_files(arg_strings)
        except UnicodeDecodeError as error:
            self.error(f"an @FILE is not UTF-8 text ({error})")
        finally:
            self._files_within_files -= 1

    def error(self, message: str) -> NoReturn:
        if "required" in message and "--root" in message:
            message += " (where outputs are: --root data, or --root s3://bucket/run)"
        super().error(message)


class _Xmodal(Parser):
    def format_help(self) -> str:
        listed, width = [], max(12, *map(len, load_all()))
        for group in groups():
            lines = [f"  {name:{width}} {summary(command)}\n" for name, command in commands_of(group).items()]
            listed.append(f"{group.__doc__}:\n{''.join(lines)}")
        template = Path(__file__).with_name("help.txt").read_text("utf-8")
        return template.format(commands="\n".join(listed))


def summary(command: ModuleType) -> str:
    return (command.__doc__ or "").partition("\n")[0].rstrip(".")


def parser() -> argparse.ArgumentParser:
    whole = _Xmodal(prog="xmodal", fromfile_prefix_chars="@")
    whole.add_argument("--version", action="version", version=f"xmodal {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, command in load_all().items():
        formatter = argparse.RawDescriptionHelpFormatter
        about, *examples = (command.__doc__ or "").partition("examples:\n")
        help, epilog = summary(command).replace("%", "%%"), "".join(examples)
        sub = commands.add_parser(name, help=help, description=about, epilog=epilog, formatter_class=formatter)
        sub.add_argument("--json", action="store_true", help="the result as JSON on stdout")
        command.flags(sub)
    return whole
