"""Stages that make regions of pictures: features of each region, and a table of boxes and words beside each shard.

A picture is looked at alone. One without regions, that does not decode, or with numbers that are not finite is a
failure with an empty row, which readers refuse. With given boxes nothing is selected, and all keep their order;
those without an area in their picture are left out, and counted.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.engine.picture_decoder import DEADLINE, PreparedDecoder
from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage, given, listed
from pipelines.engine.stage_kind import Needs, OpenMedia
from pipelines.stage_forms.array_stages import ArrayShard, ArrayWriter, write_items, write_table
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stage_forms.media_stages import media_stage, not_finite, read_medium
from xmodal.detection.box_geometry import has_area
from xmodal.detection.given_boxes import FORM as BOXES
from xmodal.detection.given_boxes import Boxes, boxes_in_file, boxes_of_phrases, boxes_of_records, boxes_within
from xmodal.detection.region_arrays import Regions
from xmodal.detection.region_store import REGIONS, Named, PictureRegions, empty_row, regions_file
from xmodal.detectors import Detector, kind_of, module_of
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.weight_files import OF_FILE, weights_sha256
from xmodal.media.images import UnreadableImage
from xmodal.media.preparation import Preparation
from xmodal.number_rules import above_zero
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.root.files import sha256_of
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import TRUNCATED, Output

WORDS = ("object_words", "attribute_words")  # files that some detectors read
WIDTH = 2048  # numbers of a feature, for estimates
WITHOUT_AREA = "boxes without area in their picture"  # a count
FORMS = {
    "detector": "weights, or a checkpoint, of the detector",
    "object_words": "the name of a class a line, as bottom-up attention's objects_vocab.txt",
    "attribute_words": "the name of an attribute a line, as bottom-up attention's attributes_vocab.txt",
    "boxes": BOXES,
}
AS_IT_IS = Preparation(resize=(), crop=None)


@dataclass(frozen=True)
class RegionSettings:
    """`boxes` says where they are from: the detector, the records, or --file boxes=PATH.

    Of the records they are all annotated boxes, or one around all that each phrase names.
    """

    detector: str = ""
    weights: str = "published"  # or random:<seed>, or the file that --file detector=PATH names
    boxes: Literal["detected", "records", "phrases", "file"] = "detected"
    dtype: Literal["float16", "float32"] = "float16"
    device: Literal["cpu", "cuda"] = "cpu"
    deadline: float = DEADLINE  # seconds to decode one picture
    items_per_shard: int = 32  # minutes of work for the slowest detector
    object_words: str = given()  # the sha256 of a file, as is the next one
    attribute_words: str = given()
    given_boxes: str = listed()
    items: str = listed()

    def __post_init__(self) -> None:
        above_zero(deadline=self.deadline)
        _ = self.spec  # refuses impossible lengths

    @property
    def spec(self) -> FeatureSpec:
        """The declared width gives way to that of the detector, which is loaded later."""
        return FeatureSpec("regions", (WIDTH,), self.dtype, ragged=True, items_per_shard=self.items_per_shard)

    @property
    def selection(self) -> Mapping[str, float | None]:
        """The settings by which `select` keeps regions."""
        return {}

    def select(self, found: Regions) -> Regions:
        return found


def check_detector(config: RegionSettings, files: Mapping[str, Path]) -> None:
    module, name = module_of(config.detector)
    module.check(name, f"{OF_FILE}{'0' * 64}" if "detector" in files else config.weights)
    if config.boxes == "file" and "boxes" not in files:
        raise UserError(f"boxes=file needs the file: --file boxes=PATH, {BOXES}")
    if config.boxes != "file" and "boxes" in files:
        raise UserError(f"--file boxes=PATH is not read with boxes={config.boxes}: set boxes=file, or leave it out")


def refuse_unread_words(config: RegionSettings, files: Mapping[str, Path]) -> None:
    read = kind_of(config.detector).files
    if unread := [f"--file {name}=PATH" for name in WORDS if name in files and name not in read]:
        raise UserError(f"detector {config.detector} does not read {' and '.join(unread)}: leave that out")


def seconds_a_picture(config: RegionSettings) -> float:
    """Estimates one core's time; 0 for a GPU, on which nobody has measured it."""
    share = 0.25 if config.boxes != "detected" else 1.0  # some tens of boxes, not hundreds of candidates
    return share * kind_of(config.detector).seconds if config.device == "cpu" else 0.0


def bytes_of_regions(config: RegionSettings, items: int, before: Mapping[str, Output]) -> float:
    """Estimates 36 regions a picture."""
    return float(items * 36 * config.spec.row_bytes)


def region_stage(name: str, config: Any, needs: Needs, version: int) -> Stage[Any, Any]:
    read, boxes = kind_of(config.detector).files, _given_boxes(config, needs)
    files = {name: path for name in read if (path := needs.files.get(name))}
    words = {file: sha256_of(path) for file, path in files.items() if file.endswith("_words")}
    weights = f"{OF_FILE}{weights_sha256(files['detector'])}" if "detector" in files else config.weights
    config = replace(config, weights=weights, given_boxes=fingerprint(boxes) if boxes is not None else "", **words)
    stage = media_stage(name, config, needs, version, partial(_open, name, files, needs.open_media), boxes)
    module, variant = module_of(config.detector)
    return replace(
        stage,
        resources=Resources(gpus=float(config.device == "cuda")),
        remark="; ".join(filter(None, (_unnamed(read, files), _unknown(boxes, needs)))),
        try_files=partial(module.load, variant, weights, files, "cpu") if files else None,
    )


def _given_boxes(config: RegionSettings, needs: Needs) -> dict[str, Boxes] | None:
    if config.boxes == "detected":
        return None
    if config.boxes == "file":
        return boxes_in_file(needs.files["boxes"])
    if "records" not in needs.outputs:
        raise UserError("a folder has no annotated boxes: boxes=file takes those of --file boxes=PATH")
    return (boxes_of_phrases if config.boxes == "phrases" else boxes_of_records)(needs["records"])


def _unnamed(read: Collection[str], files: Collection[str]) -> str:
    """Says that words are lacking, before days of work on regions that cannot become semantics."""
    lacking = " and ".join(f"--file {name}=PATH" for name in WORDS if name in read and name not in files)
    return (
        f"without {lacking} there can be no semantics of these regions: they have numbers for words" if lacking else ""
    )


def _unknown(boxes: Mapping[str, Boxes] | None, needs: Needs) -> str:
    """Says which boxes of a user's file are of no picture."""
    if not boxes or "boxes" not in needs.files:
        return ""
    pictures = {id for id, _ in needs.items}
    others = [id for id in boxes if id not in pictures]
    count = "1 id" if len(others) == 1 else f"{len(others):,} ids"
    are = "is no picture" if len(others) == 1 else "are no pictures"
    where = "corpus" if "records" in needs.outputs else "folder"
    return f"{count} of {needs.files['boxes'].name} {are} of the {where}, such as {others[0]!r}" if others else ""


def _open(name: str, files: Mapping[str, Path], open_media: OpenMedia, config: Any, inputs: Inputs) -> ArrayWriter:
    module, variant = module_of(config.detector)
    detector = module.load(variant, config.weights, files, config.device)
    spec = replace(config.spec, row_shape=(detector.width,))
    archives, decoder = Archives(open_media(inputs[0])), PreparedDecoder(AS_IT_IS, config.deadline)
    looking = _Looking(detector, config, Lock())

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        media, checksums, *given_boxes = work.reads
        sealed, rows = dict(checksums), list[dict[str, Any]]()

        def look(id: str, path: str, boxes: Boxes | None) -> tuple[dict[str, Any], NDArray[Any]]:
            source, cut = None, list[str]()
            try:
                sha256, data = read_medium(archives, path, sealed)
                source = fingerprint([sha256, boxes]) if given_boxes else sha256
                if before := earlier.find(source, sink, spec):
                    before.fail_again(id, sink)
                    return {**before.facts, "id": id}, before.values
                picture_HW3 = decoder.pixels(archives.read(path) if data is None else data, cut.append)
                for reason in cut:
                    sink.fail(id, TRUNCATED, reason)
                found = looking.at(id, picture_HW3, boxes if given_boxes else None)
                return found.row(source), found.features_KD
            except MissingMedia as missing:
                sink.fail(id, "absent", str(missing))
            except (UnreadableImage, _NotUsable) as failure:
                sink.fail(id, failure.kind, str(failure))
            return empty_row(id, source), np.zeros((0, *spec.row_shape), spec.dtype)

        def arrays() -> Iterator[NDArray[Any]]:
            boxes = given_boxes[0] if given_boxes else [None] * len(work.ids)
            for number, item in enumerate(zip(work.ids, media, boxes, strict=True), 1):
                row, features_KD = look(*item)
                rows.append(row)
                sink.say(f"{name}: {number} of {len(work.ids)} pictures of unit {sink.unit}")
                yield features_KD

        regions = write_items(sink, spec, work.rows, arrays())
        shard = work.first // spec.shard_items
        write_table(sink, regions_file(shard), pa.Table.from_pylist(rows, REGIONS))
        counts = {"pictures": sum(len(row["boxes"]) > 0 for row in rows), "regions": regions}
        if given_boxes:
            asked = sum(len(boxes) for boxes, row in zip(given_boxes[0], rows, strict=True) if len(row["boxes"]))
            counts[WITHOUT_AREA] = asked - regions
        return counts

    return ArrayWriter(spec, _provenance(detector, config), fill, REGIONS)


class _NotUsable(Exception):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, eq=False)
class _Looking:
    """A detector that threads share, and what is kept of what it sees."""

    detector: Detector
    config: RegionSettings
    turn: Lock

    def at(self, id: str, picture_HW3: NDArray[np.uint8], boxes: Boxes | None) -> PictureRegions:
        if boxes == ():
            raise _NotUsable("no_regions", "no boxes are given for it")
        height, width = picture_HW3.shape[:2]
        if boxes is None:
            candidates = self._extract(picture_HW3, None)
            found = self.config.select(candidates)
            if not len(found) and not _is_finite(candidates if len(candidates) else self._whole(picture_HW3)):
                raise _NotUsable(*not_finite(self.config.dtype))
        else:
            inside_K4 = np.clip(boxes_within(boxes, (width, height)), 0, [width, height] * 2).astype(np.float32)
            has_area_K = has_area(inside_K4)
            if not has_area_K.any():
                raise _NotUsable("no_regions", f"no box has an area in the picture of {width} x {height} pixels")
            found = self._extract(picture_HW3, [inside_K4[has_area_K]])
        if not len(found):
            raise _NotUsable("no_regions", "nothing is found in it")
        with np.errstate(over="ignore"):
            features_KD = found.features_KD.astype(self.config.dtype)
        if not (_is_finite(found) and np.isfinite(features_KD).all()):
            raise _NotUsable(*not_finite(self.config.dtype))
        scores = (found.class_scores_KC, found.attribute_scores_KA)
        return PictureRegions(id, found.boxes_K4, features_KD, (width, height), *map(_named, scores))

    def _whole(self, picture_HW3: NDArray[np.uint8]) -> Regions:
        """Looks at all of a picture: some networks drop candidates that are not finite themselves."""
        height, width = picture_HW3.shape[:2]
        return self._extract(picture_HW3, [np.array([[0, 0, width, height]], np.float32)])

    def _extract(self, picture_HW3: NDArray[np.uint8], boxes: list[NDArray[np.float32]] | None) -> Regions:
        with self.turn:
            return self.detector.extract([picture_HW3], boxes)[0]


def _is_finite(found: Regions) -> bool:
    values = (found.features_KD, found.boxes_K4, found.class_scores_KC, found.attribute_scores_KA)
    return all(np.isfinite(each).all() for each in values if each is not None)


def _named(scores_KC: NDArray[np.float32] | None) -> Named | None:
    """The most probable word of each region; column 0, which is none, is left out."""
    if scores_KC is None:
        return None
    words_KC = scores_KC[:, 1:]
    return Named(words_KC.argmax(1).astype(np.int32), words_KC.max(1))


def _provenance(detector: Detector, config: RegionSettings) -> dict[str, Any]:
    told = {"boxes": config.boxes, "dtype": config.dtype, **config.selection}
    return {**detector.provenance(), **told, "words": asdict(detector.words)}
