"""Checks of this machine: what it has, what it lacks, what that is needed for, and how to get it."""

import ast
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xmodal.root.storage import Storage, open_storage


@dataclass(frozen=True)
class Check:
    name: str
    verdict: Literal["ok", "missing", "broken"]
    found: str
    purpose: str
    remedy: str = ""
    needed: bool = False  # by everything: doctor exits non-zero without it


PACKAGES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("packages.toml").read_text())


def how_to_install(module: str) -> str | None:
    """The cure where a package is missing; None for a module that no extra brings."""
    for name, about in PACKAGES.items():
        if module.partition(".")[0] == about.get("module", name):
            return f"{name} is not installed: {_remedy(name, **about)}"
    return None


def how_to_install_missing(packages: Iterable[str]) -> str:
    """The cures of those that are missing; '' if none is."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return "; ".join(dict.fromkeys(how_to_install(name) or f"{name} is not installed" for name in missing))


def _remedy(name: str, extra: str = "", **about: object) -> str:
    return f"pip install -e '.[{extra}]' in the checkout" if extra else f"pip install {name}"


def examine(root: str | None) -> list[Check]:
    remedy = "" if sys.version_info[:2] >= (3, 11) else "use Python 3.11 or newer"
    python = _judged("python", platform.python_version(), "everything", remedy, needed=True)
    packages = [_package(name, **about) for name, about in PACKAGES.items()]
    checks = [python, *packages, _torch_pair(), *_stages(), _shared_memory(), *(_root(root) if root else [])]
    return [check for check in checks if check]


def _judged(name: str, found: str, purpose: str, remedy: str, needed: bool = False) -> Check:
    return Check(name, "broken" if remedy else "ok", found, purpose, remedy, needed)


def _package(name: str, purpose: str, module: str = "", extra: str = "", needed: bool = False) -> Check:
    if importlib.util.find_spec(module or name) is None:
        return Check(name, "missing", "not installed", purpose, _remedy(name, extra), needed)
    return Check(name, "ok", importlib.metadata.version(name), purpose, needed=needed)


def _stages() -> Iterator[Check]:
    """The packages and files of stages, from the text of their declarations: importing them takes long."""
    files = (Path(__file__).parents[1] / "stages").rglob("[!_]*.py")
    for file in sorted(files, key=lambda file: file.stem):
        calls = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Call)]
        words = [word for call in calls if ast.unparse(call.func) == "StageKind" for word in call.keywords]
        asked = {word.arg: ast.literal_eval(word.value) for word in words if word.arg in ("packages", "files")}
        packages, taken = asked.get("packages", ()), [f"--file {name}=PATH" for name in asked.get("files", ())]
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        found = [", ".join(packages)] if packages else []
        if missing:
            found = [f"without {' and '.join(missing)}"]
        found += [f"reads {' and '.join(taken)}"] if taken else []
        if found:
            cures = "; ".join(dict.fromkeys(how_to_install(name) or "" for name in missing))
            purpose = f"xmodal build CORPUS/{file.stem}"
            yield Check(f"stage {file.stem}", "missing" if missing else "ok", "; ".join(found), purpose, cures)


def _torch_pair() -> Check | None:
    """Uses an operator of torchvision, which fails with any but its own torch."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "torchvision")):
        return None
    probe = "import torch, torchvision; torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)"
    tried = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    name, purpose = "torch for torchvision", "visual features"
    if tried.returncode == 0:
        return Check(name, "ok", "its operators run", purpose)
    why = (tried.stderr.strip().splitlines() or ["it fails"])[-1]
    return Check(name, "broken", why, purpose, "pip install --force-reinstall 'torch==2.14.*' 'torchvision==0.29.*'")


def _shared_memory() -> Check:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except FileNotFoundError:
        return Check("/dev/shm", "ok", "none on this system", "Ray")
    cure = "give the machine or container 512 MB of shared memory (docker run --shm-size=1g)"
    return _judged("/dev/shm", f"{free / 1e9:.1f} GB free", "Ray", "" if free >= 2**29 else cure)


def _root(url: str) -> list[Check]:
    """Tries whether a root is writable and knows put-if-absent, and leaves nothing there."""
    storage, temporary = open_storage(url), Path(url, "_runs/temporary")
    new = [path for path in (temporary, *temporary.parents) if not path.exists()]
    checks = [_put_if_absent(storage, url)]
    if (free := storage.free_bytes()) is not None:
        remedy = "" if free > 10**9 else "free some space"
        checks.append(_judged("disk of the root", f"{free / 1e9:.1f} GB free", "outputs", remedy))
    for path in new:
        with suppress(OSError):
            path.rmdir()
    return checks


def _put_if_absent(storage: Storage, url: str) -> Check:
    key, found, remedy = f".xmodal-doctor-{uuid.uuid4().hex}", "writable, put-if-absent works", ""
    try:
        if [storage.create(key, b"first"), storage.create(key, b"second")] != [True, False]:
            found, remedy = "no put-if-absent", "choose another file system"
        storage.delete(key)
    except OSError as error:
        found, remedy = str(error), "choose a folder you can write to, or a bucket that there is"
    return _judged(f"root {url}", found, "outputs", remedy, needed=True)
