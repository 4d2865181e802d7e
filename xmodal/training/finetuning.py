"""Fine-tuning from pictures: the features' network is trained in front of the model.

Shapes: B samples, F frames of a clip (1 of a picture), H and W pixels, R positions of a grid, D width of a feature.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.errors import UserError
from xmodal.features.networks import Extractor, ResNet, load
from xmodal.features.store import FeatureStore
from xmodal.features.torchvision_models import STRIDE
from xmodal.losses.mining import in_evaluation


class WithBackbone(nn.Module):
    """A `Trainable` that reads pictures, (B, F, 3, H, W): the features' network, then a model of features.

    The model's parameters keep the names of earlier phases, the network's are called `trunk.*`.
    """

    model: Any  # a `Trainable`

    def __init__(self, model: nn.Module, extractor: Extractor) -> None:
        super().__init__()
        if hasattr(model, "trunk"):
            raise ValueError(f"{type(model).__name__} has a trunk already")
        model.add_module("trunk", extractor.trunk)
        self.model = model
        self.pooled = extractor.config.output == "pooled"
        self.window = extractor.config.crop // STRIDE

    def encode_visual(self, visual: Padded) -> Any:
        features = self.features(visual)
        if self.pooled and hasattr(self.model, "encode_windows"):
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
        """
        maps_NDHW: Tensor = self.model.get_submodule("trunk")(visual.values.flatten(0, 1))
        maps_NDR = (avg_pool2d(maps_NDHW, self.window, stride=1) if self.pooled else maps_NDHW).flatten(2)
        rows_NRD = maps_NDR.transpose(1, 2).float()  # in mixed precision, too: an RNN's input is of its weights' type
        return Padded.whole(rows_NRD.reshape(len(visual), -1, rows_NRD.shape[2]))

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
    extractor = load(network, weights_file)
    if extractor.weights_sha256 != features.provenance.get("weights_sha256"):
        raise UserError(
            f"{features.output.where} was made with other weights than {network.network} {network.weights} has here: "
            "build the features again"
        )
    return WithBackbone(model, extractor)


def attach_empty_backbone(model: nn.Module, features: FeatureStore) -> WithBackbone:
    """As `attach_backbone`, for weights that are loaded next."""
    return WithBackbone(model, load(replace(network_of(features), weights="random:0")))


def network_of(features: FeatureStore) -> ResNet:
    told = features.provenance
    try:
        sizes = {name: told["preprocessing"][name] for name in ("resize", "crop")}
        network = ResNet(**{name: told[name] for name in ("network", "weights", "output", "dtype")}, **sizes)
        if network.spec.row_shape != features.spec.row_shape:
            raise ValueError(f"rows are {features.spec.row_shape}, not {network.spec.row_shape}")
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{features.output.where} does not say which network made it ({error!r}): training from pixels needs "
            "features of the resnet or the clips stage"
        ) from error
    return network
