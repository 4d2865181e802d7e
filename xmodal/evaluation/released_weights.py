"""Released weights: files of the papers' authors as models of ours, told by the names in them.

    PVSE    a state_dict of img_enc.* and txt_enc.*, or one as "model" of a dict
    PCME    {"model": a state_dict with uncertain_net as well, "criterion": a and b of the loss, ...}
    VSE++   {"model": [state of the image encoder, state of the text encoder], "opt": Namespace, ...}
    SCAN    the same, by another "opt", or by a bi-GRU of which each direction is as wide as the image's vectors

No released file could be looked at: that PVSE saves its state_dict as it is, and the names of options, are unverified.
Wrapped networks have "module" in their names.

Training moves the CNN (docs/models.md#pvse-encoders): on features of another of that name a model recalls less than its
authors say; on pictures it uses the CNN in the file.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.errors import UserError, few
from xmodal.evaluation.run_metrics import report, with_distance
from xmodal.features.frame_store import NAME as FRAMES
from xmodal.features.frame_store import FrameStore
from xmodal.features.networks import Network, ResNet, load
from xmodal.features.opening import describe_network
from xmodal.features.store import FeatureStore
from xmodal.features.weight_files import weights_sha256
from xmodal.metrics.reports import Report
from xmodal.models import Inputs, Scorer, pcme
from xmodal.models.pcme import PCMEConfig
from xmodal.models.pvse import PVSEConfig
from xmodal.models.scan import SCANConfig
from xmodal.models.vsepp import VSEPPConfig
from xmodal.raw.tensor_files import NotTensors, read_tensor_file
from xmodal.recipes import Config, Features, Pixels, View
from xmodal.text.vocabularies import ReleasedVocabulary, Vocabulary, load_vocabulary
from xmodal.training.finetuning import WithBackbone
from xmodal.training.picture_crops import ClipReader, PictureReader, PixelReader
from xmodal.training.run_setup import Setup
from xmodal.training.validation import check_device

State = Mapping[str, Tensor]
Options = Mapping[str, Any]  # flags of the official training
TRUNK = "img_enc.cnn."
NAMED = 5  # names that a message lists
GRID = 7 * 7  # places of a ResNet's last map of 224 x 224 pixels, as in all trainings
PLACES = {"conv1": 0, "bn1": 1, **{f"layer{number}": 3 + number for number in range(1, 5)}}  # in an `Extractor.trunk`
# by the convolutions in the third layer
RESNETS: dict[int, Network] = {4: "resnet18", 12: "resnet34", 18: "resnet50", 69: "resnet101", 108: "resnet152"}


@dataclass(frozen=True, eq=False)
class Released:
    layout: str
    config: Config
    inputs: Inputs
    state: dict[str, Tensor]  # by our names
    trunk: dict[str, Tensor]  # of its CNN, if it has one, by the CNN's own names
    path: Path = Path()  # of the file

    def build(self) -> nn.Module:
        model = _unfilled(self.config, self.inputs)
        model.load_state_dict({name: value.clone() for name, value in self.state.items()}, assign=True)
        return model.eval()

    def build_with_trunk(self) -> WithBackbone:
        if self.network is None:
            raise UserError("has no ResNet to look at pictures: name features that it was trained on")
        output: Literal["pooled", "grid"] = "pooled" if self.reads_clips else "grid"  # VSE++ takes the mean itself
        extractor = load(ResNet(self.network, "random:0", output=output))
        try:
            parts = [(name.split(".", 1), value) for name, value in self.trunk.items() if not name.startswith("fc.")]
            extractor.trunk.load_state_dict({f"{PLACES[part]}.{rest}": value for (part, rest), value in parts})
        except (LookupError, ValueError, RuntimeError) as error:
            raise UserError(f"has a CNN that is no whole {self.network}: {_line(error)}") from error
        return WithBackbone(self.build(), extractor.trunk, extractor.config).eval()

    @property
    def network(self) -> Network | None:
        """The CNN in the file; None if there is none, or another kind."""
        return RESNETS.get(sum(name.startswith("layer3.") and ".conv" in name for name in self.trunk))

    @property
    def reads_clips(self) -> bool:
        return isinstance(self.config, PVSEConfig) and self.config.visual == "video"


def evaluate(
    released: Released,
    vocabulary: Path,
    setup: Setup,
    view: View,
    visual: Features,
    *,
    distance: str | None = None,
    extended: Path | None = None,
) -> Report:
    check_device(setup.device)
    path, words = released.path, _load_words(vocabulary, released)
    if distance is not None:
        released = replace(released, config=with_distance(released.config, distance, released.layout))
    tables = setup.tables(view.corpus)
    store = setup.store(visual.stage, tables)
    examples = Examples.of(tables, view, store, words)
    try:
        scorer, reader, cnn = _scorer_and_reader(released, examples, store, visual)
    except UserError as trouble:
        raise UserError(f"{path} ({released.layout}) {trouble}") from trouble
    scorer.to(setup.device)
    assert isinstance(scorer, Scorer)
    by = f", by {distance}" if distance else ""
    return report(
        scorer,
        reader,
        setup,
        tables,
        view,
        extended,
        recipe=f"{released.layout} of {path.name}, words of {vocabulary.name}{by}",
        fingerprint=weights_sha256(path),
        features=f"{visual.stage}/{store.output.identity}",
        weights=cnn,
    )


def _load_words(vocabulary: Path, released: Released) -> Vocabulary | ReleasedVocabulary:
    words = load_vocabulary(vocabulary)
    if len(words) != released.inputs.text_width:
        raise UserError(
            f"{vocabulary} has {len(words):,} words, but {released.path} was trained with "
            f"{released.inputs.text_width:,}: give the vocabulary that was released with it"
        )
    return words


def _scorer_and_reader(
    released: Released, examples: Examples, store: FeatureStore, visual: Features
) -> tuple[nn.Module, Reader, str]:
    """The model, the reader of what it looks at, and the name of the CNN."""
    if visual.stage in ("pixels", FRAMES):
        reader = _pixel_reader(released, examples, store, visual)
        return released.build_with_trunk(), reader, f"the {released.network} in the file"
    cnn = _network_of_features(released, store)
    return released.build(), Reader(examples, store, visual), cnn


def _pixel_reader(released: Released, examples: Examples, store: FeatureStore, visual: Features) -> PixelReader:
    usual, plan = ResNet(), Pixels("centre", flip=False)
    if released.reads_clips != (visual.stage == FRAMES):
        read, stage = ("frames of clips", FRAMES) if released.reads_clips else ("pictures", "pixels")
        raise UserError(f"reads {read}, not {visual.stage}: --set visual.stage={stage}")
    if released.reads_clips:
        if visual.frames is None:
            raise UserError("reads frames of clips: say how many of each: --set visual.frames=8")
        frames = FrameStore(store.output)
        return ClipReader(examples, frames, visual, plan=plan, crop=usual.crop, resize=usual.resize)
    side = store.spec.row_shape[0]
    if side != usual.resize:
        raise UserError(f"reads pictures of side {usual.resize}, but those of {store.output.where} have {side}")
    return PictureReader(examples, store, plan=plan, crop=usual.crop)


def _network_of_features(released: Released, store: FeatureStore) -> str:
    """Names the CNN of features; refuses those that cannot have been trained on."""
    width, spec, clips = released.inputs.visual_width, store.spec, released.reads_clips
    ragged, shapes = clips, [(width,) if clips else (GRID, width)]
    if isinstance(released.config, VSEPPConfig):
        shapes.append((width,))
    if isinstance(released.config, SCANConfig):  # any number of regions, the same for all images or not
        ragged = spec.ragged or len(spec.row_shape) != 2
        shapes = [(width,) if ragged else (spec.row_shape[0], width)]
    if spec.row_shape not in shapes or spec.ragged != ragged:
        found, *wanted = (" x ".join(map(str, shape)) for shape in (spec.row_shape, *shapes))
        runs = {True: "rows of any number, each ", False: ""}
        raise UserError(
            f"reads {runs[ragged]}{' or '.join(wanted)} an item, but {store.output.where} has "
            f"{runs[spec.ragged]}{found}: name other features with --set visual.stage=STAGE"
        )
    network = store.provenance.get("network")
    if network and released.network and network != released.network:
        raise UserError(
            f"was trained with a {released.network}, but {store.output.where} has features of {network}: "
            f"build them with --set resnet.network={released.network}"
        )
    cnn = describe_network(store)
    if released.trunk:
        cnn += ", in place of the CNN in the file"
    return f"{cnn}, which --set visual.stage={FRAMES if clips else 'pixels'} takes" if released.network else cnn


def read(path: str | Path) -> Released:
    """Reads a released file; nothing in it is executed."""
    try:
        return replace(convert(*_parts(read_tensor_file(path))), path=Path(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except NotTensors as error:
        raise UserError(f"{path}: {error}") from error
    except UserError as trouble:
        raise UserError(f"{path}: {trouble}") from trouble


def _parts(found: Any) -> tuple[dict[str, Tensor], Options]:
    """The weights, a loss's after `criterion`, and the options."""
    options: Options = {}
    named = [("", found)]
    if isinstance(found, dict) and "model" in found:
        told, model = found.get("opt", found.get("args")), found["model"]
        options = vars(told) if isinstance(told, argparse.Namespace) else {}
        is_pair = isinstance(model, list | tuple) and len(model) == 2
        encoders = zip(("img_enc.", "txt_enc."), model, strict=True) if is_pair else [("", model)]
        named = [*encoders, ("criterion.", found.get("criterion", {}))]
    if not all(isinstance(state, Mapping) for _, state in named):
        raise UserError(f"holds a {type(found).__name__}, not weights by name")
    weights = {f"{prefix}{name}": value for prefix, state in named for name, value in state.items()}
    if others := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
        raise UserError(f"holds what is no weight: {_listed(others)}")
    return weights, options


def convert(state: State, options: Options | None = None) -> Released:
    """Converts weights from their official names; the options' defaults are those of the released models."""
    plain = {".".join(part for part in name.split(".") if part != "module"): value for name, value in state.items()}
    trunk = {name.removeprefix(TRUNK): value for name, value in plain.items() if name.startswith(TRUNK)}
    layout = _layout(plain, options or {})
    if layout is None:
        raise UserError(f"no checkpoint of PVSE, PCME, VSE++, SCAN: nobody knows {_listed(list(plain))}")
    heads = [name for name in plain if not name.startswith((TRUNK, *layout.unused))]
    try:
        inputs = Inputs(plain[VIDEO if VIDEO in plain else IMAGE].shape[1], len(plain[WORDS]), instances=0)
        config = layout.config(plain, options or {})
        ours = {head: pcme.own_name(head.removeprefix("criterion."), layout.names) for head in heads}
        known = _unfilled(config, inputs).state_dict()
        if unknown := [head for head, name in ours.items() if name not in known]:
            raise UserError(f"looks like {layout.model}, but has weights of other names: {_listed(unknown)}")
        released = Released(layout.model, config, inputs, {ours[head]: plain[head].float() for head in heads}, trunk)
        released.build()
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"looks like {layout.model}, but does not fit: {_line(error)}") from error
    return released


def _unfilled(config: Config, inputs: Inputs) -> nn.Module:
    with torch.device("meta"):  # weights would be overwritten at once
        model = config.build(inputs)
    assert isinstance(model, nn.Module)
    return model


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _listed(names: list[str]) -> str:
    return few(sorted(names), NAMED) or "what is in it, which is nothing"


IMAGE, VIDEO, WORDS = "img_enc.fc.weight", "img_enc.rnn.weight_ih_l0", "txt_enc.embed.weight"
OFFICIAL_NAMES = {  # of parts of a name, replaced in this order
    "img_enc.fc.": "image.",
    "img_enc.rnn.": "frames.",
    "img_enc.pie_net.": "visual_pie.",
    "txt_enc.embed.": "words.",
    "txt_enc.rnn.": "sentence.",
    "txt_enc.pie_net.": "text_pie.",
    ".attention.w_1.": ".hidden.",
    ".attention.w_2.": ".maps.",
    "_pie.fc.": "_pie.guided.",
    ".layer_norm.": ".norm.",
}


@dataclass(frozen=True)
class Layout:
    model: str
    config: Callable[[State, Options], Config]
    names: Mapping[str, str]  # ours by parts of theirs
    unused: tuple[str, ...] = ()  # beginnings of names that the official code never reads


def _layout(state: State, options: Options) -> Layout | None:
    if "criterion.negative_scale" in state:
        if any(name.startswith("img_enc.uncertain_net.") for name in state):
            return Layout("PCME", _pcme, pcme.OFFICIAL_NAMES)
        return Layout("PCME without spread", _pcme_twin, pcme.OFFICIAL_NAMES, unused=("txt_enc.uncertain_net.",))
    if "cross_attn" in options or _adds_directions(state):
        return Layout("SCAN", _scan, OFFICIAL_NAMES)
    if "txt_enc.rnn.weight_ih_l0_reverse" in state:
        return Layout("PVSE", _pvse, OFFICIAL_NAMES)
    if state.keys() >= {IMAGE, "txt_enc.rnn.weight_ih_l0"}:
        return Layout("VSE++", _vsepp, OFFICIAL_NAMES)
    return None


def _ranking(state: State, options: Options) -> dict[str, Any]:
    negatives = "hardest" if options.get("max_violation", True) else "all"
    shared = {"word_width": state[WORDS].shape[1], "negatives": negatives}
    return shared | ({"margin": float(options["margin"])} if "margin" in options else {})


def _pvse(state: State, options: Options) -> PVSEConfig:
    """The released weights read out the last word (`--legacy`; docs/models.md#pvse-encoders)."""
    maps = state.get("img_enc.pie_net.attention.w_2.weight")
    return PVSEConfig(
        visual="video" if VIDEO in state else "image",
        embeddings=0 if maps is None else len(maps),
        width=2 * state["txt_enc.rnn.weight_hh_l0"].shape[1],
        similarity="order" if options.get("order", False) else "cosine",
        legacy_last_output=bool(options.get("legacy", True)),
        **_ranking(state, options),
    )


def _vsepp(state: State, options: Options) -> VSEPPConfig:
    order = options.get("measure", "cosine") == "order"
    if bool(options.get("use_abs", order)) != order:
        raise ValueError("absolute values go with the order similarity, and no other")
    return VSEPPConfig(
        width=len(state[IMAGE]),
        similarity="order" if order else "cosine",
        normalise_features=any(name.startswith(TRUNK) for name in state),  # precomputed ones are not
        normalise_image=not options.get("no_imgnorm", False),
        **_ranking(state, options),
    )


def _adds_directions(state: State) -> bool:
    """PVSE puts the directions of its bi-GRU side by side, SCAN adds them."""
    if not state.keys() >= {IMAGE, "txt_enc.rnn.weight_hh_l0_reverse"}:
        return False
    return len(state[IMAGE]) == state["txt_enc.rnn.weight_hh_l0_reverse"].shape[1]


def _scan(state: State, options: Options) -> SCANConfig:
    """Options that a file lacks are the defaults of SCAN's flags."""
    directions = {"t2i": "text_to_image", "i2t": "image_to_text"}
    chosen: dict[str, Any] = {
        "direction": directions[options.get("cross_attn", "t2i")],
        "aggregation": options.get("agg_func", "LogSumExp").lower(),
        "normalisation": options.get("raw_feature_norm", "clipped_l2norm"),
    }
    return SCANConfig(
        **chosen,
        smoothing=float(options.get("lambda_softmax", 9)),
        sharpness=float(options.get("lambda_lse", 6)),
        width=len(state[IMAGE]),
        bidirectional="txt_enc.rnn.weight_ih_l0_reverse" in state,
        normalise_image=not options.get("no_imgnorm", False),
        normalise_text=not options.get("no_txtnorm", False),
        **_ranking(state, options),
    )


def _pcme(state: State, options: Options) -> PCMEConfig:
    return PCMEConfig(width=len(state[IMAGE]), word_width=state[WORDS].shape[1])


def _pcme_twin(state: State, options: Options) -> PCMEConfig:
    return replace(_pcme(state, options), samples=0, kl="off", distance="mean")
