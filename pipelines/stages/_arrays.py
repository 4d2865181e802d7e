"""What units write of an array of features: one unit what it is and whose its rows are, each of the others a shard."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Sink
from xmodal.features.store import FeatureSpec, extents_file, index_files, shard_file, write_ragged_shard, write_shard


def write_index(sink: Sink, spec: FeatureSpec, ids: Sequence[str], provenance: Mapping[str, object]) -> Counts:
    for name, data in index_files(spec, ids, provenance).items():
        with sink.file(name) as file:
            file.write(data)
    return {}


def write_items(sink: Sink, spec: FeatureSpec, items: range, arrays: Iterable[NDArray[Any]]) -> int:
    """Blocks of rows, or of a ragged array the rows of each item, with where they lie; how many rows there are."""
    shard = items.start // spec.shard_items
    with sink.file(shard_file(spec, shard)) as file:
        if not spec.ragged:
            write_shard(file, spec, items, arrays)
            return len(items)
        extents = write_ragged_shard(file, spec, items, arrays)
    with sink.file(extents_file(spec, shard)) as file:
        file.write(extents)
    return int(np.frombuffer(extents, "<i8").reshape(-1, 2)[:, 1].sum())
