"""Image models of transformers, by the names of repositories at huggingface.co; code of a repository is never run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from xmodal.errors import UserError, extra_needed, first_sentences
from xmodal.features.model_facts import ModelFacts, measured, positions, prove
from xmodal.features.weight_files import filled_network, hub_folder, hub_weights, refuse
from xmodal.media.preparation import Preparation

if TYPE_CHECKING:
    from torch import Tensor, nn

SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
LARGE = 384  # pictures of ConvNeXT that have this side are not cropped


def check(name: str) -> None:
    _folder(name)


def find(name: str, weights: str, output: str, sides: tuple[int, int]) -> tuple[str, str, ModelFacts]:
    """The name of a repository is whole with its commit."""
    folder = _folder(name)
    name = f"{name.partition('@')[0]}@{folder.name}"
    how = _prepared(f"transformers/{name}", folder)
    build, see = partial(_untrained, folder), partial(look, output=output)
    return name, weights, measured(f"transformers/{name}", build, see, how)


def _folder(name: str) -> Path:
    """The commit that a name says, or the newest when it was first asked for."""
    with extra_needed("transformers", f"transformers/{name} needs transformers"):
        import transformers  # noqa: F401
    repository, _, revision = name.partition("@")
    cure = "check its name, and that this machine may ask there"
    return hub_folder(repository, revision or None, SETTINGS, f"transformers/{name}", cure)


def _prepared(model: str, folder: Path) -> Preparation:
    from transformers import AutoImageProcessor

    try:
        theirs = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
        size, percent = dict(theirs.size), getattr(theirs, "crop_pct", None)
        side = size.get("shortest_edge", 0)
        resize = (side,) if side else (size["height"], size["width"])
        crop = (theirs.crop_size["height"], theirs.crop_size["width"]) if theirs.do_center_crop else resize
        if percent:
            resize, crop = (int(side / percent),) if side < LARGE else (side, side), (side, side)
        interpolation: Any = Image.Resampling(theirs.resample).name.lower()
        how = Preparation(resize, (crop[0], crop[-1]), interpolation, "floor", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        if theirs.do_normalize:
            how = replace(how, mean=tuple(theirs.image_mean), deviation=tuple(theirs.image_std))
        return prove(model, how, lambda picture: theirs(picture, return_tensors="pt")["pixel_values"][0])
    except (LookupError, TypeError, AttributeError, ValueError, OSError, ImportError) as error:
        why = first_sentences(error)
        raise UserError(f"{model} does not say how Pillow alone can prepare pictures for it: {why}") from error


def load(name: str, weights: str, file: Path | None, output: str) -> "tuple[nn.Module, str]":
    repository, _, commit = name.partition("@")
    build, model = partial(_untrained, _folder(name)), f"transformers/{name}"
    published = partial(hub_weights, repository, commit, f"weights of {model}")
    return filled_network(model, weights, file, build, partial(_fill, output), published)


def _untrained(folder: Path) -> "nn.Module":
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        network: nn.Module = AutoModel.from_config(config)
    except (ValueError, OSError, ImportError) as error:
        raise UserError(f"{folder} has no model that transformers knows: {first_sentences(error)}") from error
    return network


def _fill(output: str, network: "nn.Module", state: "Mapping[str, Tensor]") -> None:
    """By transformers itself, which knows older names; entries of a head before or after the model are left."""
    import torch
    from transformers import PreTrainedModel

    assert isinstance(network, PreTrainedModel)
    with _quiet():
        filled, told = type(network).from_pretrained(
            None, config=network.config, state_dict=dict(state), output_loading_info=True, dtype=torch.float32
        )
    prefix = f"{network.base_model_prefix}."
    has_head = any(key.startswith(prefix) for key in state)
    unknown = [key for key in told["unexpected_keys"] if not has_head or key.startswith(prefix)]
    lacking = [key for key in told["missing_keys"] if output == "pooled" or not key.startswith("pooler.")]
    if lacking and all(key.startswith("pooler.") for key in lacking):
        raise UserError(f"the weights of this {type(network).__name__} have no pooled output: --set output=tokens")
    refuse({"lacks": sorted(lacking), "has unknown": sorted(unknown)})
    network.load_state_dict(filled.state_dict())


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def look(network: "nn.Module", pixels_N3HW: "Tensor", output: str) -> "Tensor":
    """Looks by the part of a model that sees, if it has another."""
    seen = getattr(network, "get_image_features", network)(pixel_values=pixels_N3HW)
    if output == "tokens":
        maps = seen.last_hidden_state
        return positions(maps, maps.shape[1])
    if seen.get("pooler_output") is None:
        raise UserError(f"{type(network).__name__} has no pooled output: --set output=tokens")
    pooled: Tensor = seen.pooler_output.flatten(1)
    return pooled
