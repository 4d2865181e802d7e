"""The tags stage: scores of named tags of whole pictures, one vector an item, merged from several taggers.

A tagger is a network of torchvision, whose scores are an output of the features stage, or a file of scores. The store's
provenance names the tags in order. A row is merged faster than it could be looked up in earlier outputs; what takes
time, the network's scores, is taken over by the features stage.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, given, listed
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.array_stages import ArrayShard, ArrayWriter, PlannedArray, array_stage, write_items
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stage_forms.media_stages import WEIGHTS, check_model, seconds_a_picture
from pipelines.stages import features
from pipelines.stages.features import FeaturesConfig
from xmodal.detection.image_tags import MergedTags, by_maximum
from xmodal.detection.score_files import FORM, TagScores, open_scores
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import FeatureStore
from xmodal.features.torchvision_models import CLASS_COUNT, class_names
from xmodal.raw.array_files import reading
from xmodal.root.files import sha256_of
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output

VERSION = 1
FILES = ("open_images", "imagenet", "places", "sports")  # A3VSE's sources; any scores will do
AT_ONCE = 64  # rows


@dataclass(frozen=True)
class TagsConfig:
    """Scores of each source are divided by the highest one of their picture, unless `normalise` is none."""

    model: str | None = "torchvision/resnet152"  # whose classes are tags; none: only those of files
    weights: str = "published"
    normalise: Literal["maximum", "none"] = "maximum"
    dtype: Literal["float16", "float32"] = "float16"
    batch_size: int = 32  # pictures
    device: Literal["cpu", "cuda"] = "cpu"
    rows_per_shard: int = 1024  # or as many more as fill whole pages
    files: tuple[tuple[str, str], ...] = given(())  # of each file of scores, its name and sha256
    width: int = given(0)
    items: str = listed()

    def __post_init__(self) -> None:
        _ = self.network  # refuses what no network could be

    @property
    def network(self) -> FeaturesConfig | None:
        if self.model is None:
            return None
        return FeaturesConfig(
            self.model,
            self.weights,
            output="classes",
            dtype="float32",
            batch_size=self.batch_size,
            device=self.device,
        )

    @property
    def spec(self) -> FeatureSpec:
        spec = FeatureSpec("tags", (self.width,), self.dtype)
        return replace(spec, rows_per_shard=-(-self.rows_per_shard // spec.page_rows) * spec.page_rows)


def check(config: TagsConfig, files: Mapping[str, Path]) -> None:
    if config.network:
        check_model(config.network, files)
    elif not {*FILES} & {*files}:
        names = f"--file {FILES[0]}=PATH, or {', '.join(FILES[1:])}"
        raise UserError(f"tags without a network need a file of scores: {names}; {FORM}")


def _seconds(config: TagsConfig, counts: Mapping[str, int]) -> float:
    return counts["items"] * (0.001 + (seconds_a_picture(config.network) if config.network else 0.0))


def _bytes(config: TagsConfig, items: int, before: Mapping[str, Output]) -> float:
    """Until its files are read, a network's alone."""
    return float(items * np.dtype(config.dtype).itemsize * (config.width or CLASS_COUNT))


STAGE = StageKind(
    name="tags",
    config=TagsConfig,
    needs=("records", "media"),
    of="image",
    files=("weights", "open_images", "imagenet", "places", "sports"),  # spelled out: `doctor` reads this text
    forms={**WEIGHTS, **dict.fromkeys(FILES, f"scores of tags: {FORM}")},
    packages=("torch", "torchvision"),
    features=True,
    check=check,
    also=("features",),
    estimate=_bytes,
    seconds=_seconds,
    memory=2e9,
    small={"model": "torchvision/resnet18", "weights": "random:0"},
)


def make(config: TagsConfig, needs: Needs) -> Stage[TagsConfig, Any]:
    check(config, needs.files)
    network = features.make(config.network, needs) if config.network else None
    paths = {name: needs.files[name] for name in FILES if name in needs.files}
    files = tuple((name, _sha256(path)) for name, path in paths.items())
    names = ([class_names()] if network else []) + [source.names for source in _of_files(paths, files).values()]
    config = replace(
        config,
        weights=network.config.weights if network else config.weights,
        files=files,
        width=len(MergedTags.of(names).names),
        items=fingerprint(needs.items),
    )
    inputs = (needs["media"], network) if network else (needs["media"],)
    ids = tuple(id for id, _ in needs.items)
    return array_stage(STAGE.name, config, inputs, VERSION, partial(_planned, ids, paths), partial(_open, paths))


def _sha256(path: Path) -> str:
    with reading(path):
        return sha256_of(path)


def _planned(ids: tuple[str, ...], paths: Mapping[str, Path], config: TagsConfig, inputs: Inputs) -> PlannedArray:
    """A shard reads the network's scores, by the checksums of all; those of files are in the config."""
    sources, sha256 = _sources(paths, config, inputs), dict(config.files)
    about = {
        "tags": MergedTags.of([source.names for source in sources.values()]).names,
        "sources": [
            {"name": name, "sha256": sha256.get(name), "names": len(source.names)} for name, source in sources.items()
        ],
        "normalise": config.normalise,
    }
    read = [fingerprint(made.checksums) for made in inputs[1:]]
    return PlannedArray(config.spec, ids, lambda rows: read, about)


def _open(paths: Mapping[str, Path], config: TagsConfig, inputs: Inputs) -> ArrayWriter:
    sources = _sources(paths, config, inputs)
    merged = MergedTags.of([source.names for source in sources.values()])
    normalised = by_maximum if config.normalise == "maximum" else np.asarray

    def blocks(ids: Sequence[str]) -> Iterator[NDArray[Any]]:
        for first in range(0, len(ids), AT_ONCE):
            read = (source.read(ids[first : first + AT_ONCE]) for source in sources.values())
            yield merged.merge([normalised(scores) for scores in read]).astype(config.dtype)

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        write_items(sink, config.spec, work.rows, blocks(work.ids))
        lacking = {name: [id for id in work.ids if id not in source.places] for name, source in sources.items()}
        absent = [id for id in work.ids if all(id in ids for ids in lacking.values())]
        for id in absent:
            sink.fail(id, "absent", f"no scores of it by {' or '.join(sources)}")
        without = {f"without {name}": len(ids) - len(absent) for name, ids in lacking.items() if len(ids) > len(absent)}
        return {"rows": len(work.ids) - len(absent), **without}

    told = FeatureStore(inputs[1]).provenance if inputs[1:] else {}
    return ArrayWriter(config.spec, told, fill)


def _sources(paths: Mapping[str, Path], config: TagsConfig, inputs: Inputs) -> dict[str, TagScores]:
    """By name, a network first."""
    of_network = {str(config.model): _of_network(FeatureStore(made)) for made in inputs[1:]}
    return {**of_network, **_of_files(paths, config.files)}


def _of_network(store: FeatureStore) -> TagScores:
    return TagScores(class_names(), {id: row for row, id in enumerate(store.ids) if id in store}, store.take)


def _of_files(paths: Mapping[str, Path], files: Iterable[tuple[str, str]]) -> dict[str, TagScores]:
    return {name: _opened(paths[name], sha256) for name, sha256 in files}


@lru_cache(maxsize=len(FILES))
def _opened(path: Path, sha256: str) -> TagScores:
    return open_scores(path)
