"""Opens the features of a corpus and refuses those of other media."""

import math
from functools import partial

from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import Positional
from xmodal.records.tables import Item, read_rows
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output, find
from xmodal.root.selection import _media_set, choose, is_of, made_from


def open_features(root: str, stage: str, identity: str | None, records: Output, model: object = None) -> FeatureStore:
    """As `choose` does among those of the records' media set; others are refused, though ids may be the same.

    So is one position an item where the `model`, a config, looks at positions: all its maps would be the same.
    """
    of, fits = records.config.get("corpus", "CORPUS"), partial(is_of, records=records)
    if identity is None and len(whole := of_all(list(filter(fits, find(root, stage))), records)) == 1:
        identity = whole[0].identity
    store = FeatureStore(choose(root, stage, identity, of=of, fits=fits))
    if not fits(store.output):
        raise UserError(
            f"{store.output.where} has features of the media set {_media_set(store.output)!r}, but "
            f"{records.config.get('corpus')} is of {records.config['media_set']!r}: name other features, or build them"
        )
    if model is not None and not store.spec.row_shape:
        raise UserError(f"{store.output.where} has no features to train from, but {store.output.stage}")
    if isinstance(model, Positional) and model.looks_at_positions and _is_one_position(store):
        raise UserError(
            f"{store.output.where} has one position an item, and {type(model).__name__.removesuffix('Config')} chooses "
            "among several: name features of a grid or of frames, or build a grid (--set resnet.output=grid)"
        )
    return store


def of_all(features: list[Output], records: Output) -> list[Output]:
    """Of several those with a row for just these items, if there are any: others are of a list before it grew."""
    if len(features) < 2:
        return features
    items = list(read_rows(records, Item))
    planned = {
        fingerprint(sorted((i.id, i.media) for i in items if (i.kind == "image") is are)) for are in (True, False)
    }
    return [output for output in features if _planned(output) in planned] or features


def _planned(features: Output) -> object:
    """The fingerprint of the items that have a row; features of clips have those that their frames have."""
    return (made_from(features, "frames") or features).config.get("items")


def _is_one_position(store: FeatureStore) -> bool:
    return not store.spec.ragged and math.prod(store.spec.row_shape[:-1]) == 1


def made_by(store: FeatureStore) -> str:
    """The network of the features, its weights and their checksum, as far as the store tells."""
    told = [str(store.provenance[name]) for name in ("network", "weights") if store.provenance.get(name)]
    digest = store.provenance.get("weights_sha256")
    return (" ".join(told) or "an unnamed network") + (f" (sha256 {digest})" if digest else "")
