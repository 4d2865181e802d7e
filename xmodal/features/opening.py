"""Opens the features of a corpus."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow.compute as pc

from xmodal.errors import UserError
from xmodal.features.store import ROWS, FeatureStore
from xmodal.features.weight_files import OF_FILE
from xmodal.recipes import OF_CAPTIONS, Positional
from xmodal.records.tables import Item, read_columns, read_rows
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output, find
from xmodal.root.selection import (
    ancestor,
    build_command,
    changed_media,
    current,
    find_output,
    may_share_media,
    media_set_of,
)


def open_features(
    root: str,
    stage: str,
    identity: str | None,
    records: Output,
    model: object = None,
    network: str = "",
    built: Sequence[str] = (),
) -> FeatureStore:
    """Opens the one output of a stage that is current and belongs to the records; see `find_output`.

    Refuses features of another media set, by another network if one is named, and of one position an item if `model`,
    a config, looks at several. Those of media that have changed since are opened by their identity alone. `built` are
    the settings that a message says to build them with; of several stages, only those of this one count.
    """
    if stage in OF_CAPTIONS or any(map(has_rows_of_texts, find(root, stage))):
        raise UserError(
            f"{stage} has a row a caption, not one a picture or clip: name features of these (--set visual.stage=STAGE)"
        )
    settings = _settings_to_build(stage, network, built)
    of, fits = str(records.config.get("corpus", "CORPUS")), partial(may_share_media, records=records)
    command = build_command(root, of, stage, settings)
    found = [] if identity else [one for one in filter(fits, find(root, stage)) if is_by(one, network)]
    among = covering_all_items(found, records)
    if found and not among:
        raise UserError(
            f"{of} in {root} has no {stage} but scores of classes, which tags are made of: build it first "
            f"({command}), or name these by --features {found[0].identity}"
        )
    meant = {output.folder for output in among}
    store = FeatureStore(
        find_output(root, stage, identity, of=of, fits=lambda output: output.folder in meant, settings=settings)
    )
    if not fits(store.output):
        raise UserError(
            f"{store.output.where} has features of the media set {media_set_of(store.output)!r}, but {of} is of "
            f"{records.config['media_set']!r}: name other features, or build them ({command})"
        )
    if not is_by(store.output, network):
        other = store.provenance["network"]
        raise UserError(
            f"{store.output.where} has features by {other}, not by the recipe's {network}: build these "
            f"({command}), or take those (--set visual.network={other})"
        )
    if model is not None:
        _refuse_to_train(store, model)
    return store


def _settings_to_build(stage: str, network: str, built: Sequence[str]) -> list[str]:
    """Settings of a stage, where a network that is named takes the place of the one in `built`."""
    named = network_setting(stage, network) if network else ""
    replaced = named.partition("=")[0]
    others = [one for one in built if one.startswith(f"{stage}.") and one.partition("=")[0] != replaced]
    return [*([named] if named else []), *others]


def _refuse_to_train(store: FeatureStore, model: object) -> None:
    if not store.spec.row_shape:
        raise UserError(f"{store.output.where} has no features to train from, but {store.output.stage}")
    is_one_position = not store.spec.ragged and math.prod(store.spec.row_shape[:-1]) == 1
    if is_one_position and isinstance(model, Positional) and model.looks_at_positions:
        raise UserError(
            f"{store.output.where} has one position an item, and {type(model).__name__.removesuffix('Config')} chooses "
            "among several: name features of frames or of a grid (--set resnet.output=grid)"
        )


def has_rows_of_texts(features: Output) -> bool:
    """Is true of features that were made of records, and have rows of texts, not of items."""
    if features.stage in OF_CAPTIONS:  # a name is known at once, half a million ids are not
        return True
    records = ancestor(features, "records")
    if records is None or ROWS not in features.files:
        return False
    ids = read_columns(features, ROWS, "id")["id"]
    items = read_columns(records, "items.parquet", "id")["id"]
    return not pc.all(pc.is_in(ids, items.combine_chunks())).as_py()


def is_by(features: Output, network: str) -> bool:
    """Is false if features name another network; "" is any, and imported features may name none."""
    return not network or FeatureStore(features).provenance.get("network") in (None, network)


def network_setting(stage: str, network: str) -> str:
    """Says by which network a stage's features are to be built, as `--set` takes it."""
    return f"{stage}.{'model' if stage == 'features' else 'network'}={network}"


def covering_all_items(features: list[Output], records: Output) -> list[Output]:
    """Drops outputs of an earlier state and those that lack items, unless all do; refuses if all media changed.

    Scores of classes, which the tags stage makes for itself, count only where somebody names them.
    """
    features = [output for output in features if output.config.get("output") != "classes"]
    changes = [changed_media(output, str(records.config.get("corpus", "CORPUS"))) for output in features]
    if changes and all(changes):
        raise UserError(changes[0])
    if len(features := current([one for one, change in zip(features, changes, strict=True) if not change])) < 2:
        return features
    items = list(read_rows(records, Item))
    planned = {
        fingerprint(sorted((i.id, i.media) for i in items if (i.kind == "image") is are)) for are in (True, False)
    }
    # features of clips have the items of their frames
    return [o for o in features if (ancestor(o, "frames") or o).config.get("items") in planned] or features


def describe_network(store: FeatureStore) -> str:
    """Names a network and its weights, or else the stage of its features."""
    return name_network(store.provenance) or f"stage {store.output.stage}"


def name_network(provenance: Mapping[str, object]) -> str:
    """Names a network, its weights and their checksum, as far as they are known; '' if they are not."""
    known = [str(provenance[name]) for name in ("network", "weights") if provenance.get(name)]
    digest = provenance.get("weights_sha256")
    if digest and f"{OF_FILE}{digest}" not in known:
        known.append(f"(sha256 {digest})")
    return " ".join(known)
