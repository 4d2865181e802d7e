"""Modules of the papers' own checkouts, imported as they are: what they import and do not need here is a stub.

The checkouts stay where they are, and nothing of them is kept. A folder of anchors has `pvse` (yalesong/pvse at
874aa16), `pcme` (naver-ai/pcme at 4947684) and `scan` (kuanghuei/SCAN at 8063557).
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import Tensor, nn


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


@contextmanager
def _packages_of(folder: Path) -> Iterator[None]:
    """Its packages, which have names such as `models`, can be imported; afterwards nobody else meets them."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(f"{folder}/"):
                del sys.modules[name]


class Flags(SimpleNamespace):
    """Command line of the one, `Munch` of the other."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class StoredMap(nn.Module):
    """In place of the CNN: gives back the (B, 2048, 7, 7) that it is given, and has what is taken from a ResNet."""

    def __init__(self, pretrained: bool) -> None:
        super().__init__()
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2048, 1)

    def forward(self, maps: Tensor) -> Tensor:
        return maps


def pvse_training(anchors: Path) -> tuple[Any, Any]:
    """The classes of model and loss, for cached maps."""
    model = imported(anchors / "pvse/model.py", "torchtext", "torchvision")
    model.get_cnn = lambda arch, pretrained: StoredMap(pretrained)
    return model.PVSE, imported(anchors / "pvse/loss.py").PVSELoss


def pcme_training(anchors: Path) -> tuple[Any, Any]:
    """The classes of model and loss, for cached maps; the module of the encoder keeps its CNNs as `models`."""
    with _packages_of(anchors / "pcme"), _stubbed(("torchtext", "torchvision")):
        encoder: Any = importlib.import_module("models.image_encoder")
        encoder.models = SimpleNamespace(resnet152=StoredMap)
        model = importlib.import_module("models.pcme")
    return model.PCME, imported(anchors / "pcme/criterions/probemb.py").MCSoftContrastiveLoss


def pvse_evaluation(anchors: Path) -> Any:
    return imported(anchors / "pvse/eval.py", "model", "loss", "vocab", "data", "logger", "option")


def pcme_pmrp(anchors: Path) -> Any:
    return imported(anchors / "pcme/evaluate_pmrp_coco.py", *("fire", "ujson", "tqdm", "datasets", "datasets.coco"))


def scan(anchors: Path) -> Any:
    """The module, in Python 3: a whole half, and the present name of what clips gradients, which is not called."""
    source = (anchors / "scan/model.py").read_text(encoding="utf-8")
    source = source.replace("size(2)/2", "size(2)//2").replace("import clip_grad_norm\n", "import clip_grad_norm_\n")
    module = ModuleType("official_scan")
    exec(compile(source, "scan/model.py", "exec"), module.__dict__)
    return module
