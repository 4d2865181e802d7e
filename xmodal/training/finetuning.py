"""Fine-tuning from pictures: the features' network is trained in front of the model.

Shapes: B samples, F frames of a clip (1 of a picture), H and W pixels, R positions of a grid, D width of a feature.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, normalize

from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.batches.distributed import normalise_whole_batches
from xmodal.errors import UserError
from xmodal.features.networks import VGG, ResNet, load_trunk
from xmodal.features.store import FeatureStore
from xmodal.features.torchvision_models import STRIDE
from xmodal.losses.mining import in_evaluation

VGGS = "torchvision/vgg"  # begins their names in the features stage


class WithBackbone(nn.Module):
    """A `Trainable` that reads pictures, (B, F, 3, H, W): the features' network, then a model of features.

    The model's parameters keep the names of earlier phases, the network's are called `trunk.*`.
    """

    model: Any  # a `Trainable`

    def __init__(self, model: nn.Module, trunk: nn.Module, network: ResNet | VGG) -> None:
        super().__init__()
        if hasattr(model, "trunk"):
            raise ValueError(f"{type(model).__name__} has a trunk already")
        model.add_module("trunk", trunk)
        self.model = model
        self.network = network

    def encode_visual(self, visual: Padded) -> Any:
        features = self.features(visual)
        if self.network.output != "grid" and hasattr(self.model, "encode_windows"):
            return self.model.encode_windows(features)
        return self.model.encode_visual(features)

    def encode_text(self, text: Padded) -> Any:
        return self.model.encode_text(text)

    def similarity(self, visual: Any, text: Any) -> Tensor:
        scores: Tensor = self.model.similarity(visual, text)
        return scores

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        streams = {name: self._stream(stream) for name, stream in batch.streams.items()}
        terms: dict[str, Tensor] = self.model.objective(replace(batch, streams=streams))
        return terms

    def features(self, visual: Padded) -> Padded:
        """Computes features as a store has them: (B, R, D) for a grid, (B, F, D) for pooled ones.

        Pooled ones of pictures that are larger than the network's crop are (B, F x R, D): of all windows of its size.
        Where the store has sums over windows, so are these: (B, 1, D).
        """
        maps_NDHW: Tensor = self.model.get_submodule("trunk")(visual.values.flatten(0, 1))
        if self.network.output == "pooled":
            maps_NDHW = avg_pool2d(maps_NDHW, self.network.crop // STRIDE, stride=1)
        maps_NRD = maps_NDHW.flatten(2).transpose(1, 2)
        rows_NRD = maps_NRD.float()  # in mixed precision, too: an RNN's input is of its weights' type
        rows_BRD = rows_NRD.reshape(len(visual), -1, rows_NRD.shape[2])
        if isinstance(self.network, VGG) and self.network.views == "whole":
            rows_BRD = normalize(rows_BRD.sum(dim=1, keepdim=True), dim=2)
        return Padded.whole(rows_BRD)

    def _stream(self, stream: Stream) -> Stream:
        """The features that are trained, and for mining those of the same pictures in evaluation mode."""
        mined = None
        if stream.has_candidates:
            with in_evaluation(self):
                mined = self.features(stream.visual)
        return replace(stream, visual=self.features(stream.visual), visual_in_evaluation=mined)

    def named_parameters(self, *arguments: Any, **options: Any) -> Any:
        return self.model.named_parameters(*arguments, **options)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.model.state_dict(*arguments, **options)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return self.model.load_state_dict(state, strict, assign)


def attach_backbone(model: nn.Module, features: FeatureStore, weights_file: Path | None = None) -> WithBackbone:
    """Puts the features' network in front of a model, on the CPU."""
    network = network_of(features)
    trunk, digest = load_trunk(network, weights_file)
    if digest != features.provenance.get("weights_sha256"):
        raise UserError(
            f"{features.output.where} was made with other weights than {network.network} {network.weights} has here: "
            "build the features again"
        )
    return WithBackbone(model, normalise_whole_batches(trunk), network)


def attach_empty_backbone(model: nn.Module, features: FeatureStore) -> WithBackbone:
    """As `attach_backbone`, for weights that are loaded next."""
    network = network_of(features)
    trunk, _ = load_trunk(replace(network, weights="random:0"))
    return WithBackbone(model, normalise_whole_batches(trunk), network)


def network_of(features: FeatureStore) -> ResNet | VGG:
    told = features.provenance
    try:
        network = _vgg(told) if str(told["network"]).startswith(VGGS) else _resnet(told)
        if network.spec.row_shape != features.spec.row_shape:
            raise ValueError(f"rows are {features.spec.row_shape}, not {network.spec.row_shape}")
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{features.output.where} does not say which network made it ({error!r}): training from pixels needs "
            "features of the resnet or the clips stage, or fc7 of a VGG of the features stage"
        ) from error
    return network


def _resnet(told: Mapping[str, Any]) -> ResNet:
    sizes = {name: told["preprocessing"][name] for name in ("resize", "crop")}
    return ResNet(**{name: told[name] for name in ("network", "weights", "output", "dtype")}, **sizes)


def _vgg(told: Mapping[str, Any]) -> VGG:
    sizes = told["preprocessing"]
    crop = {} if sizes["crop"] is None else {"crop": sizes["crop"][0]}  # whole pictures have no crop
    named = {name: told[name] for name in ("weights", "views", "output")}
    return VGG(str(told["network"]).partition("/")[2], resize=sizes["resize"][0], **named, **crop)
