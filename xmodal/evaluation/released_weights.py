"""Released weights: files of the papers' authors as models of ours. The names in a file tell its layout.

    PVSE    a state_dict of img_enc.* and txt_enc.*, or one as "model" of a dict
    PCME    {"model": a state_dict with uncertain_net as well, "criterion": a and b of the loss, ...}
    VSE++   {"model": [state of the image encoder, state of the text encoder], "opt": Namespace, ...}

Names and shapes are those of the official code; no released file could be looked at: that PVSE saves its state_dict as
it is, and how options are called in "opt" or "args", is unverified. Names may start at "module", as wrapped networks
save them. What cannot be mapped is refused by name, so no weight is silently lost.

A checkpoint is evaluated on features as its CNN gives them, or on pictures, where the CNN is in the file: the report
tells which. Training moves that CNN, if only its batch norm (docs/models.md#pvse-encoders), so on features of another
of the same name the model recalls less than its authors say.
"""

import argparse
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import filter as filter_names
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import measure, with_distance
from xmodal.features.networks import Network, ResNet, load, weights_sha256
from xmodal.features.opening import describe_network, open_features
from xmodal.features.store import FeatureStore
from xmodal.metrics.reports import Report
from xmodal.models import Inputs, Scorer
from xmodal.models.pcme import PCMEConfig, own_name
from xmodal.models.pvse import PVSEConfig
from xmodal.models.vsepp import VSEPPConfig
from xmodal.progress import Progress, Silence
from xmodal.recipes import Config, Features, Pixels, View
from xmodal.root.selection import find_output
from xmodal.text.vocabularies import load_vocabulary
from xmodal.training.checkpoint import DAMAGE
from xmodal.training.finetuning import WithBackbone
from xmodal.training.picture_crops import PictureReader
from xmodal.training.validation import check_device

State = Mapping[str, Tensor]
Options = Mapping[str, Any]  # the flags of the official training, where a file has them
TRUNK = "img_enc.cnn."
NAMED = 5  # names that a message lists
GRID = 7 * 7  # places of a ResNet's last map of 224 x 224 pixels, by which all of them were trained
PIXELS = "pixels"  # the stage whose pictures the CNN in a file looks at
PLACES = {"conv1": 0, "bn1": 1, **{f"layer{number}": 3 + number for number in range(1, 5)}}  # in an `Extractor.trunk`
# by the blocks of the third layer, and whether each has three convolutions
RESNETS: dict[tuple[int, bool], Network] = {
    (2, False): "resnet18",
    (6, False): "resnet34",
    (6, True): "resnet50",
    (23, True): "resnet101",
    (36, True): "resnet152",
}


@dataclass(frozen=True, eq=False)
class Released:
    """A model and its weights, by our names.

    The words of the vocabulary are in no checkpoint, and the number of training items is not known (0).
    """

    layout: str
    config: Config
    inputs: Inputs
    state: dict[str, Tensor]
    trunk: dict[str, Tensor]  # the weights of its CNN, if it has one, by the CNN's own names

    def build(self) -> nn.Module:
        with torch.device("meta"):  # no weights that are overwritten at once
            model = self.config.build(self.inputs)
        assert isinstance(model, nn.Module)
        model.load_state_dict({name: value.clone() for name, value in self.state.items()}, assign=True)
        return model.eval()

    def build_with_trunk(self) -> WithBackbone:
        if self.network is None:
            raise UserError("has no ResNet to look at pictures: name features that it was trained on")
        extractor = load(ResNet(self.network, "random:0"))  # of VSE++ too: it takes the mean of the grid
        try:
            parts = [(name.split(".", 1), value) for name, value in self.trunk.items() if not name.startswith("fc.")]
            extractor.trunk.load_state_dict({f"{PLACES[part]}.{rest}": value for (part, rest), value in parts})
        except (LookupError, ValueError, RuntimeError) as error:
            raise UserError(f"has a CNN that is no whole {self.network}: {_line(error)}") from error
        return WithBackbone(self.build(), extractor).eval()

    @property
    def network(self) -> Network | None:
        """The CNN in the file, as the resnet stage names it; None if there is none, or another kind."""
        blocks = {name.split(".")[1] for name in self.trunk if name.startswith("layer3.")}
        return RESNETS.get((len(blocks), "layer3.0.conv3.weight" in self.trunk))


@dataclass(frozen=True)
class Layout:
    """The names of one official code."""

    model: str
    has: tuple[str, ...]  # patterns of names
    ours: Callable[[str], str | None]  # our name; None for a name that the code does not have
    sizes: Callable[[State, Options], tuple[Config, Inputs]]
    lacks: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # beginnings of names that the official code has and never reads

    def fits(self, state: State) -> bool:
        found = [pattern for pattern in (*self.has, *self.lacks) if filter_names(state, pattern)]
        return found == [*self.has]


def read(path: str | Path) -> Released:
    """Reads a released file: tensors and plain values alone, nothing in it is executed."""
    try:
        return convert(*_parts(_loaded(path)))
    except UserError as trouble:
        raise UserError(f"{path}: {trouble}") from trouble


def evaluate(
    path: Path,
    vocabulary: Path,
    root: str,
    view: View,
    visual: Features,
    *,
    released: Released | None = None,
    records: str | None = None,
    features: str | None = None,
    device: str = "cpu",
    distance: str | None = None,
    extended: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Computes every metric of a released file on a view of a corpus.

    `released` is what `read` made of the file. `records` and `features` are identities, for a root with several.
    """
    check_device(device)
    released, words = released or read(path), load_vocabulary(vocabulary)
    if len(words) != released.inputs.text_width:
        raise UserError(
            f"{vocabulary} has {len(words):,} words, but {path} was trained with {released.inputs.text_width:,}: "
            "give the vocabulary that was released with it"
        )
    if distance is not None:
        released = replace(released, config=with_distance(released.config, distance, released.layout))
    tables = find_output(root, "records", records, corpus=view.corpus)
    store = open_features(root, visual.stage, features, tables)
    examples = Examples.of(tables, view, store, words)
    opened = _on_pictures if visual.stage == PIXELS else _on_features
    try:
        scorer, reader, cnn = opened(released, examples, store, visual)
    except UserError as trouble:
        raise UserError(f"{path} ({released.layout}) {trouble}") from trouble
    scorer.to(device)
    assert isinstance(scorer, Scorer)
    by = f", by {distance}" if distance else ""
    return measure(
        scorer,
        reader,
        tables,
        view,
        extended,
        progress or Silence(),
        device,
        recipe=f"{released.layout} of {path.name}, words of {vocabulary.name}{by}",
        fingerprint=weights_sha256(path),
        features=f"{visual.stage}/{store.output.identity}",
        weights=cnn,
    )


def _on_pictures(
    released: Released, examples: Examples, store: FeatureStore, visual: Features
) -> tuple[nn.Module, Reader, str]:
    """The model, its reader of pictures, and a name for its CNN."""
    if _reads_clips(released.config):
        raise UserError("reads frames of clips, not pictures: name a stage that has them")
    usual, side = ResNet(), store.spec.row_shape[0]  # all were trained on the usual middle of a picture
    if side != usual.resize:
        raise UserError(f"reads pictures of side {usual.resize}, but those of {store.output.where} have {side}")
    reader = PictureReader(examples, store, plan=Pixels("centre", flip=False), crop=usual.crop)
    return released.build_with_trunk(), reader, f"the {released.network} in the file"


def _on_features(
    released: Released, examples: Examples, store: FeatureStore, visual: Features
) -> tuple[nn.Module, Reader, str]:
    """The model, its reader of features, and a name for the CNN that they are by."""
    _check_features(released, store)
    cnn = describe_network(store)
    if released.trunk:
        cnn += ", in place of the CNN in the file"
    if released.network and not _reads_clips(released.config):
        cnn += f", which --set visual.stage={PIXELS} takes"
    return released.build(), Reader(examples, store, visual), cnn


def _reads_clips(config: Config) -> bool:
    return isinstance(config, PVSEConfig) and config.visual == "video"


def _check_features(released: Released, store: FeatureStore) -> None:
    """Refuses features that the file's model was not trained on, as far as it and the store tell."""
    width, spec, is_video = released.inputs.visual_width, store.spec, _reads_clips(released.config)
    shapes = [(width,) if is_video else (GRID, width)]
    if isinstance(released.config, VSEPPConfig):
        shapes.append((width,))
    if spec.row_shape not in shapes or spec.ragged != is_video:
        found, *wanted = (" x ".join(map(str, shape)) for shape in (spec.row_shape, *shapes))
        runs = {True: "rows of any number, each ", False: ""}
        raise UserError(
            f"reads {runs[is_video]}{' or '.join(wanted)} an item, but {store.output.where} has {runs[spec.ragged]}"
            f"{found}: name other features with --set visual.stage=STAGE"
        )
    network = store.provenance.get("network")
    if None not in (network, released.network) and network != released.network:
        raise UserError(
            f"was trained with a {released.network}, but {store.output.where} has features of {network}: "
            f"build them with --set resnet.network={released.network}"
        )


def convert(state: State, options: Options | None = None) -> Released:
    """Converts weights from their official names; without options the released models' defaults are taken."""
    plain = {".".join(part for part in name.split(".") if part != "module"): value for name, value in state.items()}
    head = {name: value for name, value in plain.items() if not name.startswith(TRUNK)}
    layout = next((layout for layout in LAYOUTS if layout.fits(head)), None)
    if layout is None:
        known = ", ".join(layout.model for layout in LAYOUTS)
        raise UserError(f"no checkpoint of {known}: nobody knows {_listed(list(plain))}")
    head = {name: value for name, value in head.items() if not name.startswith(layout.unused)}
    if unknown := [name for name in head if layout.ours(name) is None]:
        raise UserError(f"looks like {layout.model}, which has no {_listed(unknown)}")
    ours = {str(layout.ours(name)): value.float() for name, value in head.items()}
    trunk = {name.removeprefix(TRUNK): value for name, value in plain.items() if name.startswith(TRUNK)}
    try:
        config, inputs = layout.sizes(plain, options or {})
        released = Released(layout.model, config, inputs, ours, trunk)
        released.build()
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"looks like {layout.model}, but does not fit: {_line(error)}") from error
    return released


def _loaded(path: str | Path) -> Any:
    """As `checkpoint.read_tensors`, but old files are no archives, and have their options in a Namespace."""
    try:
        data = BytesIO(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}") from error
    try:
        if zipfile.is_zipfile(data) and (broken := zipfile.ZipFile(data).testzip()) is not None:
            raise zipfile.BadZipFile(f"{broken} has changed")
        data.seek(0)
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(data, map_location="cpu", weights_only=True)
    except (*DAMAGE, OSError) as error:
        raise UserError(f"is damaged, or holds more than weights: {_line(error)}") from error


def _parts(found: Any) -> tuple[dict[str, Tensor], Options]:
    """The weights in one mapping, those of a loss after `criterion`, and the options."""
    options: Options = {}
    if isinstance(found, dict) and "model" in found:
        told = found.get("opt", found.get("args"))
        options = vars(told) if isinstance(told, argparse.Namespace) else {}
        model = found["model"]
        is_pair = isinstance(model, list | tuple) and len(model) == 2
        encoders = zip(("img_enc.", "txt_enc."), model, strict=True) if is_pair else [("", model)]
        named = [*encoders, ("criterion.", found.get("criterion", {}))]
    else:
        named = [("", found)]
    if not all(isinstance(state, Mapping) for _, state in named):
        raise UserError(f"holds a {type(found).__name__}, not weights by name")
    weights = {f"{prefix}{name}": value for prefix, state in named for name, value in state.items()}
    if others := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
        raise UserError(f"holds what is no weight: {_listed(others)}")
    return weights, options


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (", ".join(sorted(names)[:NAMED]) or "what is in it, which is nothing") + more


def _pvse(state: State, options: Options) -> tuple[PVSEConfig, Inputs]:
    """The released weights read out the last word (`--legacy`; docs/models.md#pvse-encoders)."""
    words, word_width = state["txt_enc.embed.weight"].shape
    maps = state.get("img_enc.pie_net.attention.w_2.weight")
    is_video = "img_enc.rnn.weight_ih_l0" in state
    config = PVSEConfig(
        visual="video" if is_video else "image",
        embeddings=0 if maps is None else len(maps),
        width=2 * state["txt_enc.rnn.weight_hh_l0"].shape[1],
        word_width=word_width,
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


ENCODERS = {"img_enc.fc.": "image.", "txt_enc.embed.": "words.", "txt_enc.rnn.": "sentence."}
PIE_NETS = _pie_net("img_enc.pie_net", "visual_pie") | _pie_net("txt_enc.pie_net", "text_pie")


def _beginning_with(names: Mapping[str, str], name: str) -> str | None:
    beginning = next((one for one in names if name.startswith(one)), None)
    return None if beginning is None else names[beginning] + name.removeprefix(beginning)


def _of_pcme(name: str) -> str | None:
    return own_name(name.removeprefix("criterion."))


LAYOUTS = (
    Layout(
        "PVSE",
        has=("txt_enc.rnn.weight_ih_l0_reverse",),
        lacks=("*.uncertain_net.*", "criterion.negative_scale"),
        ours=partial(_beginning_with, ENCODERS | {"img_enc.rnn.": "frames."} | PIE_NETS),
        sizes=_pvse,
    ),
    Layout(
        "PCME",
        has=("img_enc.uncertain_net.*", "criterion.negative_scale"),
        ours=_of_pcme,
        sizes=_pcme,
    ),
    Layout(
        "PCME without spread",
        has=("criterion.negative_scale",),
        lacks=("img_enc.uncertain_net.*",),
        ours=_of_pcme,
        sizes=_pcme,
        unused=("txt_enc.uncertain_net.",),
    ),
    Layout(
        "VSE++",
        has=("img_enc.fc.weight", "txt_enc.rnn.weight_ih_l0"),
        lacks=("*_reverse", "*.pie_net.*"),
        ours=partial(_beginning_with, ENCODERS),
        sizes=_vsepp,
    ),
)
