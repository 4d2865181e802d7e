"""The declaration of a stage: what a module in pipelines/stages says of it, and what it is made from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.engine.stage import Stage
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.records.tables import Item
from xmodal.root.outputs import Output

Pairs = tuple[tuple[str, str], ...]  # id and media of each item, in order of the ids
OpenMedia = Callable[[Output], Raw]  # opens a sealed set


class GivenFiles(dict[str, Path]):
    """The files that a user gave, by name; one that is needed and was not given is asked for."""

    def __missing__(self, name: str) -> Path:
        raise UserError(f"--file {name}=PATH is needed")


@dataclass(frozen=True)
class Needs:
    """The finished inputs of a stage."""

    outputs: Mapping[str, Output] = field(default_factory=dict)  # by the names in `StageKind.needs`
    files: Mapping[str, Path] = field(default_factory=dict)  # those of `StageKind.files` that the user gave
    read_items: Callable[[], tuple[Item, ...]] = tuple  # those that the stage is for, in order of the ids
    corpus: Corpus | None = None
    open_media: OpenMedia = raw_of

    def __getitem__(self, name: str) -> Output:
        return self.outputs[name]

    @property
    def items(self) -> Pairs:
        return tuple((item.id, item.media) for item in self.read_items())


@dataclass(frozen=True)
class StageKind:
    """A module's declaration of its stage: see CONTRIBUTING.md."""

    name: str  # of the folder under the root, and of the module
    config: Callable[[], Any]  # a frozen dataclass whose fields all have defaults
    needs: tuple[str, ...]  # other stages, or FILE_SETS
    of: str | None = None  # the kind of item ("image", "clip") or label ("category") that a corpus must have
    files: tuple[str, ...] = ()  # what a user may give as --file NAME=PATH
    forms: Mapping[str, str] = field(default_factory=dict)  # what such a file has in it, by its name
    packages: tuple[str, ...] = ()  # those it imports that an extra of pyproject.toml brings: a literal, for doctor
    features: bool = False  # recipes train from it and datasets are published with it
    estimate: Callable[[Any, int, Mapping[str, Output]], float] | None = None  # bytes of so many items
    seconds: Callable[[Any, Mapping[str, int]], float] | None = None  # of one core (EPYC, 2026) for "items", "captions"
    memory: float = 0.0  # bytes of one worker
    check: Callable[[Any, Mapping[str, Path]], None] | None = None  # refuses before anything is fetched
    also: tuple[str, ...] = ()  # folders of further stages, which it builds for itself
    small: Mapping[str, Any] = field(default_factory=dict)  # settings by which tests build it of tiny items
    small_files: Mapping[str, bytes] = field(default_factory=dict)  # whose names no other stage gives
    make: Callable[[Any, Needs], Stage[Any, Any]] = None  # type: ignore[assignment]  # `load` takes it from the module
