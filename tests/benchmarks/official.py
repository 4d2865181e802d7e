"""Modules of the papers' own checkouts, imported as they are: what they import and do not need here is a stub.

The checkouts stay where they are, and nothing of them is kept. A folder of anchors has `pvse` (yalesong/pvse at
874aa16) and `pcme` (naver-ai/pcme at 4947684).
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def imported(path: Path, *stubs: str) -> Any:
    """The module of a file; modules named in `stubs` have any name, and nothing behind it."""
    spec = importlib.util.spec_from_file_location(f"official_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _stubbed(stubs):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _stubbed(names: tuple[str, ...]) -> Iterator[None]:
    """Only these names are put back: a module such as torch, imported meanwhile, cannot be imported twice."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: _Stub(name) for name in names})
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda first=None, *rest, **named: first  # tqdm gives back what it is given


def pvse_evaluation(anchors: Path) -> Any:
    return imported(anchors / "pvse/eval.py", "model", "loss", "vocab", "data", "logger", "option")


def pcme_pmrp(anchors: Path) -> Any:
    return imported(anchors / "pcme/evaluate_pmrp_coco.py", *("fire", "ujson", "tqdm", "datasets", "datasets.coco"))
