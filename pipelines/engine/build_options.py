"""Options of a command that builds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.engine.building import Runner, serial
from pipelines.engine.progress_line import ProgressLine
from xmodal.root.storage import Storage


@dataclass(frozen=True)
class BuildOptions:
    """Only `settings` and the bytes of `files` change identities."""

    storage: Storage
    run: Runner = serial
    progress: ProgressLine = field(default_factory=lambda: ProgressLine(quiet=True))
    raw: Path | None = None  # a folder with files of publishers
    settings: Mapping[str, object] = field(default_factory=dict)  # `stage.field` → value
    files: Mapping[str, Path] = field(default_factory=dict)  # by stages' names for them: weights, vectors
