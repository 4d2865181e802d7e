"""`xmodal import`: others' features or regions as the output of a stage.

Units are shards. Workers read the source where it lies: on a cluster all see it.
"""

import hashlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines import stages
from pipelines.engine.building import Runner, build
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage import Counts, Inputs, Sink, given
from pipelines.engine.stage_kind import Needs
from pipelines.engine.typed_settings import apply, parse_settings
from pipelines.stage_forms.array_stages import (
    ArrayShard,
    ArrayWriter,
    PlannedArray,
    array_stage,
    write_items,
    write_table,
)
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stages import semantics
from xmodal.detection.region_arrays import DetectorWords
from xmodal.detection.region_formats import ForeignRegions
from xmodal.detection.region_store import REGIONS, PictureRegions, RegionStore, regions_file
from xmodal.errors import UserError
from xmodal.features.feature_spec import Dtype, FeatureSpec
from xmodal.features.foreign_formats import BLOCK, ForeignFeatures
from xmodal.features.store import ROWS
from xmodal.raw.array_files import reading
from xmodal.records.tables import read_columns
from xmodal.records.views import CLEAN
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output, directories
from xmodal.root.selection import find_output
from xmodal.root.storage import Storage

VERSION = 3
DOUBTFUL = ("boxes that leave their picture", "boxes smaller than a pixel")  # counts: they are kept
Foreign: TypeAlias = ForeignFeatures | ForeignRegions


@dataclass(frozen=True)
class ImportConfig:
    """The source's sha256, the array in it, a fingerprint of its ids, and the layout."""

    source: str = given()
    key: str | None = given(None)
    ids: str = given()
    row_shape: tuple[int, ...] = given(())
    dtype: Dtype = field(default="float32", metadata={"given": True})
    ragged: bool = given(False)
    rows_per_chunk: int | None = None
    rows_per_shard: int | None = None
    items_per_shard: int | None = None
    # the words of the regions' classes and attributes; None for features without regions
    words: DetectorWords | None = field(default=None, metadata={"given": True, "since": "0.2"})

    @property
    def spec(self) -> FeatureSpec:
        lengths = (self.rows_per_chunk, self.rows_per_shard, self.items_per_shard)
        return FeatureSpec("features", self.row_shape, self.dtype, self.ragged, *lengths)


def import_features(
    storage: Storage,
    name: str,
    source: Foreign,
    settings: Sequence[str],
    run: Runner,
    progress: ProgressLine,
    words: DetectorWords | None = None,
) -> dict[str, Any]:
    """Makes a source's features, or regions with their words, the output of stage `name`, and says what it is."""
    _refuse_name(storage, name)
    parsed = parse_settings(list(settings), {"import": ImportConfig()})
    try:
        spec = source.spec("features")
        found = ImportConfig(row_shape=spec.row_shape, dtype=spec.dtype, ragged=spec.ragged)
        spec = apply(found, "import", parsed).spec
    except ValueError as error:
        raise UserError(f"{source.files[0]} cannot be imported so: {error}") from None
    seen = _stamp(source)
    lengths = (spec.chunk_rows, spec.shard_rows, spec.shard_items if spec.ragged else None)
    what = (_sha256(source, progress), source.key, fingerprint(source.ids))
    if isinstance(source, ForeignRegions):
        words = words or DetectorWords()
    elif words:
        raise UserError(f"{source.files[0]} has no regions that words could be of")
    config = ImportConfig(*what, spec.row_shape, spec.dtype, spec.ragged, *lengths, words)
    opened = partial(_open, source, seen)
    stage = array_stage(name, config, (), VERSION, lambda config, inputs: PlannedArray(config.spec, source.ids), opened)
    was_complete = Output(storage, stage.folder).complete
    if isinstance(source, ForeignRegions) and words and not was_complete:
        _refuse_few_words(source, words, progress)
    output = build(stage, storage, run, progress)
    return {
        "stage": name,
        "identity": output.identity,
        "path": output.where,
        "built": not was_complete,
        "items": len(source.ids),
        "row_shape": list(spec.row_shape),
        "ragged": spec.ragged,
        "dtype": spec.dtype,
        "source_dtype": source.dtype,
        "copies": source.copies,
        "doubtful": {name: count for name in DOUBTFUL if (count := output.totals["counts"].get(name))},
    }


def _refuse_few_words(source: ForeignRegions, words: DetectorWords, progress: ProgressLine) -> None:
    """Refuses words that are fewer than the regions' numbers count, before anything is written.

    Reads the source once more, as a refused half would else stay under the root.
    """
    with progress.over("words", len(source.ids), unit="pictures") as tick:
        for picture in source.pictures(range(len(source.ids))):
            kinds = (("object", picture.classes, words.classes), ("attribute", picture.attributes, words.attributes))
            for kind, named, known in kinds:
                if known and named and (most := int(named.ids_K.max(initial=-1))) >= len(known):
                    few = f"{kind} {most:,}, counted from 0, of which --{kind}-words has {len(known):,}"
                    raise UserError(f"{source.files[0]}: {picture.id!r} has {few}: give the words of its detector")
            tick(1)


def write_semantics(storage: Storage, corpus: str, regions: Output, run: Runner, progress: ProgressLine) -> Output:
    """Makes semantics of regions that no stage made, as captions of a corpus."""
    records = find_output(storage.url, "records", corpus=corpus)
    items = set(read_columns(records, "items.parquet", "id")["id"].to_pylist())
    if not items.intersection(found := RegionStore(regions).ids):
        raise UserError(
            f"{corpus} has no item {found[0]!r}, nor any other that {regions.where} has: import with ids of its items"
        )
    made = semantics.make(semantics.SemanticsConfig(), Needs({"records": records, "regions": regions}))
    return build(made, storage, run, progress)


def _open(source: Foreign, seen: str, config: ImportConfig, inputs: Inputs) -> ArrayWriter:
    if _stamp(source) != seen:
        raise UserError(f"{source.files[0]} has changed while it was imported: import it again")
    spec = config.spec

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        if isinstance(source, ForeignRegions):
            return _write_regions(source, spec, work, sink)
        values = source.rows(work.rows)
        write_items(sink, spec, work.rows, _counted(values, work.ids, sink) if spec.ragged else values)
        return {"rows": len(work.ids)}

    provenance: dict[str, Any] = {"imported_sha256": config.source, "key": config.key}
    if config.words:
        provenance["words"] = asdict(config.words)
    return ArrayWriter(spec, provenance, fill)


def _write_regions(source: ForeignRegions, spec: FeatureSpec, work: ArrayShard, sink: Sink) -> Counts:
    rows, doubtful = list[dict[str, Any]](), dict.fromkeys(DOUBTFUL, 0)

    def features() -> Iterator[NDArray[Any]]:
        for picture in source.pictures(work.rows):
            rows.append(picture.row())
            for name, count in zip(DOUBTFUL, _doubtful_boxes(picture), strict=True):
                doubtful[name] += count
            yield picture.features_KD

    count = write_items(sink, spec, work.rows, features())
    write_table(sink, regions_file(work.first // spec.shard_items), pa.Table.from_pylist(rows, schema=REGIONS))
    return {"rows": len(work.ids), "regions": count, **doubtful}


def _doubtful_boxes(picture: PictureRegions) -> tuple[int, int]:
    """Counts boxes that leave their picture by more than a rounded pixel, and those smaller than a pixel."""
    low_K2, high_K2 = picture.boxes_K4[:, :2], picture.boxes_K4[:, 2:]
    leaves_K = (low_K2 < -1).any(1)
    if picture.size:
        leaves_K |= (high_K2 > np.array(picture.size) + 1).any(1)
    return int(leaves_K.sum()), int((high_K2 - low_K2 < 1).any(1).sum())


def _counted(arrays: Iterator[NDArray[Any]], ids: Sequence[str], sink: Sink) -> Iterator[NDArray[Any]]:
    for id, array in zip(ids, arrays, strict=True):
        if not len(array):
            sink.fail(id, "empty", "its length is 0")  # absent: a reader has nothing to give for it
        yield array


def _refuse_name(storage: Storage, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"--name {name}: a stage is named by letters, digits and ._-")
    folders = (folder for kind in stages.all() for folder in (kind.name, *kind.also))
    reserved = {"blobs", CLEAN, *stages.FILE_SETS, *folders}
    others = (output for output in directories(storage, name) if output.complete and ROWS not in output.files)
    if name in reserved or any(others):
        raise UserError(f"--name {name}: that is the name of a stage that makes something else: take another")


def _stamp(source: Foreign) -> str:
    """A fingerprint of sizes and times, much faster than a sha256."""
    try:
        stats = [os.stat(file) for file in source.files]
    except FileNotFoundError as error:
        host = socket.gethostname()
        raise UserError(f"{host} does not see {error.filename}: on a cluster it lies where all nodes see it") from None
    return fingerprint([(found.st_size, found.st_mtime_ns) for found in stats])


def _sha256(source: Foreign, progress: ProgressLine) -> str:
    found = []
    with progress.over("sha256", sum(map(os.path.getsize, source.files)), unit="bytes") as tick:
        for path in source.files:
            digest = hashlib.sha256()
            with reading(path), open(path, "rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
                    tick(len(block))
            found.append(digest.hexdigest())
    return found[0] if len(found) == 1 else fingerprint(found)
