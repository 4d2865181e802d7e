"""Loads a Python file of a user's own: a corpus or a model that is no module of this package."""

import hashlib
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_loader
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
