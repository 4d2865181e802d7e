"""Finished outputs under a root, whichever stage made them.

    <root>/<stage>/<identity>/stage.json      what this is: name, version, config, inputs
                              units.tsv       one line a unit: its name, then its files, sizes, checksums and counts
                              complete.json   written last: the checksum of units.tsv and the totals
                              …               the files themselves

A directory without complete.json is work in progress and is refused. A root may come from anybody: what its files say
is checked where they are read, so that no name leads elsewhere.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

from xmodal.errors import UserError, forget_command
from xmodal.root.checked_files import open_checked, size_problem
from xmodal.root.identity import DIGITS, canonical_json, fingerprint, to_plain
from xmodal.root.storage import Storage, open_storage

LAYOUT = 1
TOTALS = {"units": int, "files": int, "bytes": int, "counts": dict, "failures": dict, "units_sha256": str}
TRUNCATED = "truncated"  # the class of failures that have a row all the same, made of what there was
LARGEST_JSON = 2**24  # bytes of stage.json or complete.json
LARGEST_LIST = 2**30  # bytes of units.tsv, or of another file that is read whole
UNIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,199}")
FILE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9._=+-]{0,199}(?<!\.)(/[A-Za-z0-9.][A-Za-z0-9._=+-]{0,199}(?<!\.))*")
SHA256 = re.compile(r"[0-9a-f]{64}")
OURS = {"stage.json", "units.tsv", "complete.json"}


@dataclass(frozen=True)
class Unit:
    """A committed piece of work; a file is (bytes, sha256), a failure (row, class, reason)."""

    name: str
    files: Mapping[str, tuple[int, str]]
    counts: Mapping[str, int]
    failures: tuple[tuple[str, str, str], ...] = ()
    key: str | None = None  # the fingerprint of what decided it, if other outputs of the stage may take it over

    @property
    def absent(self) -> list[str]:
        """Rows that the output lacks or holds as zeros."""
        return [row for row, kind, _ in self.failures if kind != TRUNCATED]

    def line(self) -> bytes:
        facts: dict[str, object] = {"files": self.files, "counts": self.counts}
        facts |= {"failures": self.failures} if self.failures else {}
        facts |= {"key": self.key} if self.key else {}
        return self.name.encode() + b"\t" + canonical_json(facts) + b"\n"

    @staticmethod
    def from_line(line: bytes, where: str, cure: str) -> "Unit":
        """Reads what `line` wrote; refuses other forms and unsafe names, by `where` the line stands and a `cure`."""
        name, _, body = line.partition(b"\t")
        try:
            facts = json.loads(body)
            files = {file: (size, digest) for file, (size, digest) in facts["files"].items()}
            failures = tuple((row, kind, reason) for row, kind, reason in facts.get("failures", ()))
            unit = Unit(name.decode(), files, facts["counts"], failures, facts.get("key"))
            is_sound = unit.is_sound
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            is_sound = False
        if not is_sound:
            raise UserError(f"{where} has a line that xmodal does not write, {line[:60]!r}: {cure}")
        return unit

    @property
    def is_sound(self) -> bool:
        """Whether the names stay within the output's folder, and all else is what a build writes."""
        texts = [text for failure in self.failures for text in failure]
        return (
            UNIT_NAME.fullmatch(self.name) is not None
            and all(FILE_NAME.fullmatch(file) and file not in OURS for file in self.files)
            and all(_is_count(size) and SHA256.fullmatch(digest) for size, digest in self.files.values())
            and all(map(_is_count, self.counts.values()))
            and all(isinstance(text, str) for text in [*texts, self.key or ""])
        )


@dataclass(frozen=True)
class Output:
    """A directory of a stage, finished if it is `complete`."""

    storage: Storage
    folder: str

    @cached_property
    def about(self) -> dict[str, Any]:
        """stage.json, checked against its identity."""
        about = _read_json(self.storage, f"{self.folder}/stage.json")
        decides = {name: about.get(name) for name in ("stage", "version", "config", "inputs")}
        if not fingerprint(decides)[:DIGITS] == about.get("identity") == self.folder.rpartition("/")[2]:
            raise UserError(f"{self.where}/stage.json has changed: {self.cure}")
        if not isinstance(about["stage"], str) or not _names_outputs(about["inputs"]):
            raise UserError(f"{self.where}/stage.json does not describe an output: {self.cure}")
        return about

    @property
    def stage(self) -> str:
        return str(self.about["stage"])

    @property
    def identity(self) -> str:
        return str(self.about["identity"])

    @property
    def config(self) -> dict[str, Any]:
        config = self.about["config"]
        return dict(config) if isinstance(config, dict) else {}

    @cached_property
    def totals(self) -> dict[str, Any]:
        """complete.json, as TOTALS says."""
        totals = _read_json(self.storage, f"{self.folder}/complete.json")
        if any(type(totals.get(name)) is not kind for name, kind in TOTALS.items()):
            raise UserError(f"{self.where}/complete.json does not sum up an output: {self.cure}")
        return totals

    @property
    def complete(self) -> bool:
        return self.storage.size(f"{self.folder}/complete.json") is not None

    def units(self) -> Iterator[Unit]:
        """Every unit in order of its name."""
        data, where = _read(self.storage, f"{self.folder}/units.tsv", LARGEST_LIST), f"{self.where}/units.tsv"
        if hashlib.sha256(data).hexdigest() != self.totals["units_sha256"]:
            raise UserError(f"{where} is not what was committed, by complete.json: {self.cure}")
        return (Unit.from_line(line, where, self.cure) for line in data.splitlines())

    @cached_property
    def _committed(self) -> dict[str, tuple[int, str]]:
        return {name: facts for unit in self.units() for name, facts in unit.files.items()}

    @cached_property
    def files(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self._committed.items()}

    @cached_property
    def checksums(self) -> dict[str, str]:
        return {name: sha256 for name, (_, sha256) in self._committed.items()}

    def read(self, name: str) -> bytes:
        """Reads one file and refuses bytes that were not committed."""
        self.check(name)
        data = self.storage.read(f"{self.folder}/{name}", LARGEST_LIST)
        if hashlib.sha256(data).hexdigest() != self.checksums[name]:
            raise UserError(f"{self.where}/{name} is not what was committed: {self.cure}")
        return data

    def open(self, name: str) -> BinaryIO:
        """Opens one file, of any size, and refuses bytes that were not committed."""
        self.check(name)
        key = f"{self.folder}/{name}"
        return open_checked(self.storage, key, self.files[name], self.checksums[name], self.cure)

    def check(self, name: str) -> None:
        """Refuses a file that is missing or has another size than was committed: enough where chunks have checksums."""
        if name not in self.files:
            raise UserError(f"{self.where} has no file {name!r}; it has: {', '.join(list(self.files)[:8])}")
        if problem := size_problem(self.storage, f"{self.folder}/{name}", self.files[name]):
            raise UserError(f"{self.where}/{name} is {problem}: {self.cure}")

    @property
    def where(self) -> str:
        return os.path.join(self.storage.url, self.folder)

    @property
    def cure(self) -> str:
        return cure_under(self.storage.url)


def cure_under(root: str) -> str:
    """Says what to do about an output under a root that is damaged."""
    return f"{forget_command(root)} removes what it is part of, then build again"


def find(root: str, stage: str | None = None, **config: object) -> list[Output]:
    """Finds finished outputs by stage and by values in their config."""
    found = (output for output in directories(open_storage(root), stage) if output.complete)
    return [o for o in found if all(o.config.get(name) == to_plain(value) for name, value in config.items())]


def made_of(source: Output, stage: str | None = None) -> Iterator[Output]:
    """Finds finished outputs, of one stage or any, whose first input is `source`."""
    made = (output for output in directories(source.storage, stage) if output.complete)
    return (o for o in made if [first["identity"] for first in o.about["inputs"][:1]] == [source.identity])


def directories(storage: Storage, stage: str | None = None) -> Iterator[Output]:
    """Finds outputs, finished or not."""
    for name in storage.names("") if stage is None else [stage]:
        if name.startswith(("_", ".")) or name == "blobs":
            continue
        for identity in storage.names(name):
            folder = f"{name}/{identity}"
            if any(storage.size(f"{folder}/{file}") is not None for file in ("stage.json", "complete.json")):
                yield Output(storage, folder)


def _read_json(storage: Storage, key: str) -> dict[str, Any]:
    try:
        value = json.loads(_read(storage, key, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{storage.url}/{key} is corrupt ({error}): {cure_under(storage.url)}") from error
    if not isinstance(value, dict) or value.get("layout") != LAYOUT:
        raise UserError(f"{storage.url}/{key} was written by another version of xmodal: use that, or another root")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _names_outputs(inputs: object) -> bool:
    return isinstance(inputs, list) and all(
        isinstance(made, dict) and isinstance(made.get("stage"), str) and isinstance(made.get("identity"), str)
        for made in inputs
    )


def _read(storage: Storage, key: str, most: int) -> bytes:
    try:
        return storage.read(key, most)
    except FileNotFoundError:
        raise UserError(f"{storage.url}/{key} is missing: {cure_under(storage.url)}") from None
