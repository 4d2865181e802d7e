"""Region stores: the ragged features of pictures' regions, and beside each shard a table of what else is known.

An output has the files of a feature store (`xmodal/features/store.py`), whose first array has a row a region, and

    regions-<shard>.parquet    a row an item: its sha256, the picture's size, boxes, classes and attributes

The words that ids of classes and attributes count are in the provenance, under "words".
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xmodal.detection.region_arrays import DetectorWords
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore, shard_ranges
from xmodal.records.tables import open_table
from xmodal.root.outputs import Output

FLOATS, NUMBERS = (pa.list_(pa.field("element", kind, nullable=False)) for kind in (pa.float32(), pa.int32()))
REGIONS = pa.schema(
    {
        "id": pa.string(),
        "sha256": pa.string(),  # of the picture; null where it is not known
        "width": pa.int32(),
        "height": pa.int32(),
        "boxes": FLOATS,  # left, top, right, bottom of each region, from 0
        "class_ids": NUMBERS,  # these four are empty where the detector has none
        "class_scores": FLOATS,
        "attribute_ids": NUMBERS,
        "attribute_scores": FLOATS,
    }
)
WORDS = ("class_ids", "class_scores", "attribute_ids", "attribute_scores")


@dataclass(frozen=True, eq=False, repr=False)
class Named:
    """One word a region: its place among the detector's words, and its probability."""

    ids_K: NDArray[np.int32]
    scores_K: NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class PictureRegions:
    """The kept regions of one picture; boxes are left, top, right, bottom in its pixels, from 0."""

    id: str
    boxes_K4: NDArray[np.float32]
    features_KD: NDArray[Any]
    size: tuple[int, int] | None = None  # width and height
    classes: Named | None = None
    attributes: Named | None = None

    def row(self, sha256: str | None = None) -> dict[str, Any]:
        """The row of a table of REGIONS."""
        width, height = self.size or (None, None)
        found: dict[str, Any] = {"width": width, "height": height, "boxes": self.boxes_K4.ravel()}
        for kind, named in (("class", self.classes), ("attribute", self.attributes)):
            if named:
                found |= {f"{kind}_ids": named.ids_K, f"{kind}_scores": named.scores_K}
        return empty_row(self.id, sha256) | found


def empty_row(id: str, sha256: str | None = None) -> dict[str, Any]:
    """The row of an item without regions, also of one that is absent."""
    lists = dict.fromkeys(("boxes", *WORDS), ())
    return {"id": id, "sha256": sha256, "width": None, "height": None, **lists}


def regions_file(shard: int) -> str:
    return f"regions-{shard:05d}.parquet"


class RegionStore:
    """Reads regions by id. Items that failed when they were made are absent, and refused, as `FeatureStore` does."""

    def __init__(self, source: str | Path | Output) -> None:
        self.store = FeatureStore(source)
        output, spec = self.store.output, self.store.spec
        shards = range(len(shard_ranges(spec, len(self.store))))
        if not spec.ragged or not all(regions_file(shard) in output.files for shard in shards):
            raise UserError(f"{output.where} has features without boxes: it was made by no detector of regions")
        self.table = pa.concat_tables([_read_table(output, shard) for shard in shards] or [REGIONS.empty_table()])
        self.table = self.table.combine_chunks()
        words: dict[str, list[str]] = self.store.provenance.get("words") or {}
        self.words = DetectorWords(tuple(words.get("classes", ())), tuple(words.get("attributes", ())))
        self._check_table()

    @property
    def ids(self) -> tuple[str, ...]:
        return self.store.ids

    @property
    def absent(self) -> frozenset[str]:
        return self.store.absent

    def features(self, id: str) -> NDArray[Any]:
        features: NDArray[Any] = self.store.read([id])[0]
        return features

    def boxes(self, id: str) -> NDArray[np.float32]:
        return self._list(id, "boxes").reshape(-1, 4)

    def size(self, id: str) -> tuple[int, int] | None:
        """Width and height of the picture, if they are known."""
        row = self._row(id)
        width, height = (self.table[name][row].as_py() for name in ("width", "height"))
        return None if width is None or height is None else (width, height)

    def boxes_in(self, id: str, size: tuple[int, int]) -> NDArray[np.float32]:
        """Boxes in pixels of a picture of this width and height; others' detectors may have seen it at another size."""
        times_2 = np.divide(size, self.size(id) or size, dtype=np.float32)
        boxes_K4: NDArray[np.float32] = self.boxes(id) * np.tile(times_2, 2)
        return boxes_K4

    def classes(self, id: str) -> Named | None:
        return self._named(id, "class")

    def attributes(self, id: str) -> Named | None:
        return self._named(id, "attribute")

    def picture(self, id: str) -> PictureRegions:
        named = self.classes(id), self.attributes(id)
        return PictureRegions(id, self.boxes(id), self.features(id), self.size(id), *named)

    def require_words(self, *kinds: Literal["class", "attribute"]) -> None:
        """Refuses regions that have no words, or have ids of a kind without its words."""
        words = {"class": self.words.classes, "attribute": self.words.attributes}
        for kind in kinds:
            if not words[kind] and (kind == "class" or len(pc.list_flatten(self.table[f"{kind}_ids"]))):
                file = {"class": "object_words", "attribute": "attribute_words"}[kind]
                option = file.replace("_", "-")
                raise UserError(
                    f"{self.store.output.where} has regions without words of their {kind}: take those of a detector "
                    f"that names them, or give the words: --file {file}=PATH, or of imported ones --{option} PATH"
                )

    def _row(self, id: str) -> int:
        return int(self.store.rows([id])[0])

    def _list(self, id: str, column: str) -> NDArray[Any]:
        return np.asarray(self.table[column][self._row(id)].values)

    def _named(self, id: str, kind: str) -> Named | None:
        ids = self._list(id, f"{kind}_ids")
        return Named(ids, self._list(id, f"{kind}_scores")) if len(ids) else None

    def _check_table(self) -> None:
        """Refuses a table that does not fit the features or the words: a root may come from anybody."""
        where, cure = self.store.output.where, self.store.output.cure
        if self.table["id"].to_pylist() != list(self.ids):
            raise UserError(f"{where} has other items in its tables of regions than in {self.store.spec.name}: {cure}")
        present = [row for row, id in enumerate(self.ids) if id not in self.absent]
        regions = self.store.lengths(np.array(present, np.int64))
        for column in ("boxes", *WORDS):
            found = np.asarray(pc.fill_null(pc.list_value_length(self.table[column]), -1))[present]
            wrong = found != regions * 4 if column == "boxes" else (found != regions) & (found != 0)
            if wrong.any():
                id = self.ids[present[int(wrong.argmax())]]
                raise UserError(f"{where}: {column} of {id!r} are not as many as its regions: {cure}")
        for column, words in (("class_ids", self.words.classes), ("attribute_ids", self.words.attributes)):
            ids = np.asarray(pc.list_flatten(self.table[column]))
            if words and ids.size and not 0 <= ids.min() <= ids.max() < len(words):
                raise UserError(f"{where} has {column} of which its {len(words):,} words have none: {cure}")


def _read_table(output: Output, shard: int) -> pa.Table:
    name = regions_file(shard)
    with open_table(output, name) as file:
        if not file.schema_arrow.equals(REGIONS):
            raise UserError(f"{output.where}/{name} has other columns than a table of regions: {output.cure}")
        return file.read(use_threads=False)
