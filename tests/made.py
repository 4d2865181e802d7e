"""Stages made by hand, of outputs that a test has already, as `CorpusBuild` makes them of a corpus."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelines import stages
from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import Needs
from xmodal.records.tables import Item
from xmodal.root.outputs import Output


def small(folder: Path) -> dict[str, Any]:
    """Options by which every stage is built of a few tiny items, as its kind declares: settings and files."""
    settings = {f"{kind.name}.{name}": value for kind in stages.all() for name, value in kind.small.items()}
    files = {name: folder / name for kind in stages.all() for name in kind.small_files}
    for kind in stages.all():
        for name, data in kind.small_files.items():
            files[name].write_bytes(data)
    return {"settings": settings, "files": files}


def made(
    name: str,
    config: Any,
    items: Iterable[tuple[str, str]] = (),
    files: Mapping[str, Path | None] | None = None,
    **outputs: Any,
) -> Stage[Any, Any]:
    """`items` are ids and media; `outputs` may also be stages, which are built before."""
    kind = stages.load(name)
    given = {file: path for file, path in (files or {}).items() if path}
    if kind.check:
        kind.check(config, given)
    listed = tuple(Item(id, media) for id, media in items)
    return kind.make(config, Needs(outputs, given, lambda: listed))


def resnet(media: Output, items: Any, config: Any, weights: Path | None = None) -> Stage[Any, Any]:
    return made("resnet", config, items, {"weights": weights}, media=media)


def pixels(media: Output, items: Any, config: Any) -> Stage[Any, Any]:
    return made("pixels", config, items, media=media)


def frames(media: Output, items: Any, config: Any) -> Stage[Any, Any]:
    return made("frames", config, items, media=media)


def clips(taken: Stage[Any, Any] | Output, config: Any, weights: Path | None = None) -> Stage[Any, Any]:
    return made("clips", config, files={"weights": weights}, frames=taken)


def sentences(records: Output, coding: Any, config: Any, vectors: Path | None = None) -> Stage[Any, Any]:
    codebook = made("codebook", coding, files={"vectors": vectors}, records=records)
    return made("sentences", config, records=records, codebook=codebook)


def features(media: Output, items: Any, config: Any, weights: Path | None = None) -> Stage[Any, Any]:
    return made("features", config, items, {"weights": weights}, media=media)


def clip_features(taken: Stage[Any, Any] | Output, config: Any, weights: Path | None = None) -> Stage[Any, Any]:
    return made("clip_features", config, files={"weights": weights}, frames=taken)


def tags(media: Output, items: Any, config: Any, **files: Path) -> Stage[Any, Any]:
    return made("tags", config, items, files, media=media)


def concepts(records: Output, tags: Stage[Any, Any] | Output, config: Any, **files: Path) -> Stage[Any, Any]:
    return made("concepts", config, files=files, records=records, tags=tags)
