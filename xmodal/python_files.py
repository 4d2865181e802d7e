"""Loads Python files that somebody adds: a corpus or a model of a user's own, a module of one kind in a folder."""

import hashlib
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from xmodal.errors import UserError


def load_python_file(path: str, kind: str) -> ModuleType:
    """Runs the file, once for the same bytes, and returns it as a module named PATH@SHA256.

    The module is not importable by that name, so that what it defines is sent to the workers of a cluster by value.
    """
    file = Path(path).expanduser().resolve()
    try:
        source = file.read_bytes()
    except OSError as error:
        raise UserError(f"no {kind} file {path}: {error.strerror or error}") from None
    try:
        return _run(str(file), source)
    except (Exception, SystemExit) as error:  # somebody's file: whatever it does wrong is for its writer to read
        raise UserError(f"{kind} file {path} cannot be loaded: {type(error).__name__}: {error}") from error


def load_module(name: str, *needed: str) -> ModuleType:
    """Imports a module that is found because its file exists; UserError if that fails or it lacks what is needed."""
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:
        file = getattr(find_spec(name), "origin", name)
        raise UserError(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    if missing := [one for one in needed if not hasattr(module, one)]:
        raise UserError(f"{module.__file__} must define {' and '.join(missing)}")
    return module


@cache
def _run(file: str, source: bytes) -> ModuleType:
    name = f"{file}@{hashlib.sha256(source).hexdigest()}"
    spec = spec_from_loader(name, loader=None, origin=file)
    assert spec is not None
    module = module_from_spec(spec)
    module.__file__ = file
    sys.modules[name] = module  # dataclasses look their module up while they are made
    try:
        exec(compile(source, file, "exec"), vars(module))
    finally:
        del sys.modules[name]
    return module
