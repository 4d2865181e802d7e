"""Image models of timm, by its names: a model, and after a dot whose weights and preparation."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmodal.errors import UserError, extra_needed
from xmodal.features.model_facts import ModelFacts, measured, positions, prove
from xmodal.features.weight_files import UNTRAINED, filled_network, hub_weights, load_exactly
from xmodal.media.preparation import Preparation

if TYPE_CHECKING:
    from torch import Tensor, nn


def check(name: str) -> None:
    _config(name)


def find(name: str, weights: str, output: str, sides: tuple[int, int]) -> tuple[str, str, ModelFacts]:
    config = _config(name)
    name, model = f"{config.architecture}.{config.tag}".removesuffix("."), f"timm/{name}"
    return (
        name,
        weights,
        measured(model, partial(_untrained, name), partial(look, output=output), _prepared(name, config)),
    )


def _config(name: str) -> Any:
    with extra_needed("timm", f"timm/{name} needs timm"):
        import timm
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise UserError(f"no model timm/{name}: {error}") from None
    if config is None or not timm.is_model(name.partition(".")[0]):
        near = get_close_matches(name, timm.list_models(), n=1)
        raise UserError(
            f"no model timm/{name}{f' (do you mean timm/{near[0]}?)' if near else ''}: timm.list_models() has all"
        )
    return config


def _prepared(name: str, config: Any) -> Preparation:
    from timm.data import create_transform, resolve_data_config

    told = resolve_data_config(pretrained_cfg=config.to_dict())
    height, width = told["input_size"][1:]
    resize = tuple(int(side / told["crop_pct"]) for side in (height, width))
    how = Preparation(
        resize if told["crop_mode"] == "squash" else resize[:1],
        (height, width),
        told["interpolation"],
        mean=tuple(told["mean"]),
        deviation=tuple(told["std"]),
    )
    return prove(f"timm/{name}", how, create_transform(**told))


def load(name: str, weights: str, file: Path | None, output: str) -> "tuple[nn.Module, str]":
    config = _config(name)

    def published() -> Path:
        if not config.hf_hub_id:
            raise UserError(f"timm/{name} has no published weights at huggingface.co: {UNTRAINED}")
        repository, _, revision = config.hf_hub_id.partition("@")
        return hub_weights(repository, revision or None, f"weights of timm/{name}")

    def fill(network: "nn.Module", state: "Mapping[str, Tensor]") -> None:
        heads = [config.classifier] if isinstance(config.classifier, str) else config.classifier or ()
        load_exactly(network, state, tuple(f"{head}." for head in heads))

    return filled_network(f"timm/{name}", weights, file, lambda: _untrained(name), fill, published)


def _untrained(name: str) -> "nn.Module":
    import timm

    network: nn.Module = timm.create_model(name, num_classes=0)
    return network


def look(network: "nn.Module", pixels_N3HW: "Tensor", output: str) -> "Tensor":
    if output == "pooled":
        return network(pixels_N3HW)  # type: ignore[no-any-return]
    return positions(network.forward_features(pixels_N3HW), network.num_features)  # type: ignore[operator,arg-type]
