"""Weights that the papers' authors released, as models of ours. A layout is known by the names in the file alone.

    PVSE    a state_dict of img_enc.* and txt_enc.*, or one as "model" of a dict
    PCME    {"model": a state_dict with uncertain_net as well, "criterion": a and b of the loss, ...}
    VSE++   {"model": [state of the image encoder, state of the text encoder], "opt": Namespace, ...}

Names and shapes are those of the official code's modules. The released files themselves could not be looked at: that
PVSE saves its state_dict as it is, and how options are called in "opt" or "args", is unverified. Names may start at
"module", as wrapped networks save them. What cannot be mapped is refused by name, so no weight is silently lost.
"""

import argparse
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xmodal.evaluation import DAMAGE
from xmodal.models import Config, Inputs
from xmodal.models.pcme import PCMEConfig, own_name
from xmodal.models.pvse import PVSEConfig
from xmodal.models.vsepp import VSEPPConfig
from xmodal.trouble import Trouble

State = Mapping[str, Tensor]
Options = Mapping[str, Any]  # the flags of the official training, where a file has them
TRUNK = "img_enc.cnn."
NAMED = 5  # names that a message lists


@dataclass(frozen=True, eq=False)
class Released:
    """A model and its weights by our names; `trunk` are those of its CNN, by the CNN's own names, if there are any.

    The words of the vocabulary are in no checkpoint, and the number of training items is not known (0).
    """

    config: Config
    inputs: Inputs
    state: dict[str, Tensor]
    trunk: dict[str, Tensor]

    def build(self) -> nn.Module:
        with torch.device("meta"):  # no weights that are overwritten at once
            model = self.config.build(self.inputs)
        assert isinstance(model, nn.Module)
        model.load_state_dict({name: value.clone() for name, value in self.state.items()}, assign=True)
        return model.eval()


@dataclass(frozen=True)
class Layout:
    """How one official code names things; `ours` is None where a name is unknown."""

    model: str
    has: tuple[str, ...]  # patterns
    lacks: tuple[str, ...]
    ours: Callable[[str], str | None]
    sizes: Callable[[State, Options], tuple[Config, Inputs]]
    unused: tuple[str, ...] = ()  # beginnings of names that the official code has and never reads

    def fits(self, state: State) -> bool:
        def found(pattern: str) -> bool:
            return any(fnmatchcase(name, pattern) for name in state)

        return all(map(found, self.has)) and not any(map(found, self.lacks))


def read(path: str | Path) -> Released:
    """A released file; only tensors and plain values are read, nothing in it is executed."""
    try:
        return convert(*_parts(_loaded(path)))
    except Trouble as trouble:
        raise Trouble(f"{path}: {trouble}") from trouble


def convert(state: State, options: Options | None = None) -> Released:
    """Weights by their official names; without options the defaults of the released models are taken."""
    plain = {".".join(part for part in name.split(".") if part != "module"): value for name, value in state.items()}
    head = {name: value for name, value in plain.items() if not name.startswith(TRUNK)}
    layout = next((layout for layout in LAYOUTS if layout.fits(head)), None)
    if layout is None:
        known = ", ".join(layout.model for layout in LAYOUTS)
        raise Trouble(f"no checkpoint of {known}: nobody knows {_listed(list(plain))}")
    head = {name: value for name, value in head.items() if not name.startswith(layout.unused)}
    if unknown := [name for name in head if layout.ours(name) is None]:
        raise Trouble(f"looks like {layout.model}, which has no {_listed(unknown)}")
    ours = {str(layout.ours(name)): value.float() for name, value in head.items()}
    trunk = {name.removeprefix(TRUNK): value for name, value in plain.items() if name.startswith(TRUNK)}
    try:
        config, inputs = layout.sizes(plain, options or {})
        released = Released(config, inputs, ours, trunk)
        released.build()
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise Trouble(f"looks like {layout.model}, but does not fit: {_line(error)}") from error
    return released


def _loaded(path: str | Path) -> Any:
    """As `evaluation.read_tensors`, but old files are no archives, and have their options in a Namespace."""
    try:
        data = BytesIO(Path(path).read_bytes())
    except OSError as error:
        raise Trouble(f"cannot be read: {error.strerror}") from error
    try:
        if zipfile.is_zipfile(data) and (broken := zipfile.ZipFile(data).testzip()) is not None:
            raise zipfile.BadZipFile(f"{broken} has changed")
        data.seek(0)
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(data, map_location="cpu", weights_only=True)
    except (*DAMAGE, OSError) as error:
        raise Trouble(f"is damaged, or holds more than weights: {_line(error)}") from error


def _parts(found: Any) -> tuple[dict[str, Tensor], Options]:
    """The weights in one mapping, and the options. Those of a loss follow `criterion`."""
    options: Options = {}
    if isinstance(found, dict) and "model" in found:
        told = found.get("opt", found.get("args"))
        options = vars(told) if isinstance(told, argparse.Namespace) else {}
        model, criterion = found["model"], found.get("criterion", {})
        encoders = zip(("img_enc.", "txt_enc."), model, strict=True) if _is_pair(model) else [("", model)]
        named = [*encoders, ("criterion.", criterion)]
    else:
        named = [("", found)]
    if not all(isinstance(state, Mapping) for _, state in named):
        raise Trouble(f"holds a {type(found).__name__}, not weights by name")
    weights = {f"{prefix}{name}": value for prefix, state in named for name, value in state.items()}
    if others := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
        raise Trouble(f"holds what is no weight: {_listed(others)}")
    return weights, options


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _is_pair(model: Any) -> bool:
    return isinstance(model, list | tuple) and len(model) == 2


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    return (", ".join(sorted(names)[:NAMED]) or "what is in it, which is nothing") + more


def _pvse(state: State, options: Options) -> tuple[PVSEConfig, Inputs]:
    """The released weights read out the last word (`--legacy`; spec, models, section 1.4)."""
    words, words_width = state["txt_enc.embed.weight"].shape
    maps = state.get("img_enc.pie_net.attention.w_2.weight")
    is_video = "img_enc.rnn.weight_ih_l0" in state
    config = PVSEConfig(
        visual="video" if is_video else "image",
        embeddings=0 if maps is None else len(maps),
        width=2 * state["txt_enc.rnn.weight_hh_l0"].shape[1],
        word_width=words_width,
        margin=float(options.get("margin", PVSEConfig.margin)),
        negatives="hardest" if options.get("max_violation", True) else "all",
        similarity="order" if options.get("order", False) else "cosine",
        legacy_last_output=bool(options.get("legacy", True)),
    )
    return config, Inputs(state["img_enc.rnn.weight_ih_l0" if is_video else "img_enc.fc.weight"].shape[1], words, 0)


def _vsepp(state: State, options: Options) -> tuple[VSEPPConfig, Inputs]:
    """The encoder of precomputed features, which has no CNN, does not normalise them."""
    width, visual_width = state["img_enc.fc.weight"].shape
    words, word_width = state["txt_enc.embed.weight"].shape
    order = options.get("measure", "cosine") == "order"
    if bool(options.get("use_abs", order)) != order:
        raise ValueError("absolute values go with the order similarity, and no other")
    config = VSEPPConfig(
        width=width,
        word_width=word_width,
        margin=float(options.get("margin", VSEPPConfig.margin)),
        negatives="hardest" if options.get("max_violation", True) else "all",
        similarity="order" if order else "cosine",
        normalise_features=any(name.startswith(TRUNK) for name in state),
        normalise_image=not options.get("no_imgnorm", False),
    )
    return config, Inputs(visual_width, words, 0)


def _pcme(state: State, options: Options) -> tuple[PCMEConfig, Inputs]:
    width, visual_width = state["img_enc.fc.weight"].shape
    words, word_width = state["txt_enc.embed.weight"].shape
    config = PCMEConfig(width=width, word_width=word_width)
    if not any(name.startswith("img_enc.uncertain_net.") for name in state):
        config = replace(config, samples=0, kl="off", distance="mean")
    return config, Inputs(visual_width, words, 0)


def _pie_net(there: str, here: str) -> dict[str, str]:
    return {
        f"{there}.attention.w_1.": f"{here}.hidden.",
        f"{there}.attention.w_2.": f"{here}.maps.",
        f"{there}.fc.": f"{here}.guided.",
        f"{there}.layer_norm.": f"{here}.norm.",
    }


_ENCODERS = {"img_enc.fc.": "image.", "txt_enc.embed.": "words.", "txt_enc.rnn.": "sentence."}
_PIE_NETS = _pie_net("img_enc.pie_net", "visual_pie") | _pie_net("txt_enc.pie_net", "text_pie")


def _beginning_with(names: Mapping[str, str]) -> Callable[[str], str | None]:
    """By the first beginning, there and here, that a name has."""

    def ours(name: str) -> str | None:
        beginnings = [beginning for beginning in names if name.startswith(beginning)]
        return names[beginnings[0]] + name.removeprefix(beginnings[0]) if beginnings else None

    return ours


LAYOUTS = (
    Layout(
        "PVSE",
        has=("txt_enc.rnn.weight_ih_l0_reverse",),
        lacks=("*.uncertain_net.*", "criterion.negative_scale"),
        ours=_beginning_with(_ENCODERS | {"img_enc.rnn.": "frames."} | _PIE_NETS),
        sizes=_pvse,
    ),
    Layout(
        "PCME",
        has=("img_enc.uncertain_net.*", "criterion.negative_scale"),
        lacks=(),
        ours=lambda name: own_name(name.removeprefix("criterion.")),
        sizes=_pcme,
    ),
    Layout(
        "PCME without spread",
        has=("criterion.negative_scale",),
        lacks=("img_enc.uncertain_net.*",),
        ours=lambda name: own_name(name.removeprefix("criterion.")),
        sizes=_pcme,
        unused=("txt_enc.uncertain_net.",),
    ),
    Layout(
        "VSE++",
        has=("img_enc.fc.weight", "txt_enc.rnn.weight_ih_l0"),
        lacks=("*_reverse", "*.pie_net.*"),
        ours=_beginning_with(_ENCODERS),
        sizes=_vsepp,
    ),
)
