"""One corpus in one command: its files, and its stages, each resolved and brought up to date at most once.

Parsing needs no media; media that corpora share (one media set) are fetched and computed on once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipelines import stages
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import GivenFiles, Needs, StageKind
from pipelines.engine.typed_settings import apply
from pipelines.fetching.corpus_files import CorpusFiles
from pipelines.fetching.corpus_names import FoundCorpus
from pipelines.fetching.ledger import FOLDERS, folder_of, incomplete_folders, reasons_of
from pipelines.fetching.list_changes import ADDED, EDITED
from pipelines.stages import FILE_SETS, ITEM_KINDS
from pipelines.stages.records import Census
from pipelines.stages.semantics import WITHOUT_REGIONS
from pipelines.upkeep.machine import how_to_install_missing
from xmodal.corpora import Corpus, Part
from xmodal.errors import UserError
from xmodal.records.tables import CAPTIONS_OF_PAPERS, TABLES, Item, read_rows
from xmodal.root.outputs import TRUNCATED, Output, directories
from xmodal.root.sealed_sets import read_lock, use_records

PARTS: dict[str, Part] = {folder: part for part, folder in FOLDERS.items()}


@dataclass(frozen=True)
class ParsedList:
    items: tuple[Item, ...]
    counts: Mapping[str, int]  # as records count their rows


class CorpusBuild:
    """Ends with the command: the next one looks at everything anew."""

    def __init__(self, options: BuildOptions, corpus: Corpus, found: FoundCorpus | None = None) -> None:
        self.options, self.corpus, self.found = options, corpus, found or FoundCorpus(corpus)
        self.files = CorpusFiles(options, self.found)
        self._stages: dict[str, Stage[Any, Any]] = {}
        self._finished: dict[str, Output] = {}
        self._parsed: ParsedList | None = None
        self.changed_media = frozenset[str]()  # that a build takes anew, once they are foreseen

    def build(self, name: str) -> Output:
        self.refuse_early([name])
        for each in stages.with_needs([name]):
            output = self.files.build(PARTS[each]) if each in FILE_SETS else self._build(each)
        return output

    def refuse_early(self, names: Sequence[str]) -> None:
        """Refuses before anything is fetched."""
        for kind in kinds_for(self.corpus, names):
            self._check(kind)

    def refuse_without_packages(self, names: Sequence[str]) -> None:
        """Refuses what this machine cannot compute before anything is fetched; what is there already needs nothing."""
        now = CorpusBuild(self.options, self.corpus, self.found)  # one of its own, as the build may seal other files
        for kind in kinds_for(self.corpus, names):
            cures = how_to_install_missing(kind.packages)
            if cures and not kind.also and not now.finished(kind.name):  # tags of files need none
                raise UserError(f"{self.corpus.name}/{kind.name} cannot be built here: {cures}")

    def refuse_without_items(self, kind: StageKind) -> None:
        """Refuses a stage of pictures for a corpus of clips, or the other way, once its items are known."""
        is_of_items = "media" in kind.needs and kind.of in ITEM_KINDS
        if is_of_items and self.knows_items and not self.items_of(kind.of):
            raise _lacks(self.corpus, kind)

    def stage(self, name: str) -> Stage[Any, Any] | None:
        """The stage with its settings; None while something that it needs is not finished."""
        if name not in self._stages:
            kind = stages.load(name)
            outputs = self.finished_needs(kind)
            if len(outputs) < len(kind.needs):
                return None
            self._check(kind)
            files = {file: path for file, path in self.options.files.items() if file in kind.files}
            needs = Needs(outputs, GivenFiles(files), lambda: self.items_of(kind.of), self.corpus)
            self.refuse_without_items(kind)
            self._stages[name] = kind.make(self.config(kind), needs)
        return self._stages[name]

    def finished_needs(self, kind: StageKind) -> dict[str, Output]:
        return {need: output for need in kind.needs if (output := self.finished(need))}

    def config(self, kind: StageKind) -> Any:
        return apply(kind.config(), kind.name, self.options.settings)

    def finished(self, name: str) -> Output | None:
        """The output of a stage, or a sealed set, where it is up to date."""
        if name in FILE_SETS:
            is_stale = name == "media" and self.changed_media
            return None if is_stale else self.files.of(PARTS[name]).sealed
        if name not in self._finished and (stage := self.stage(name)):
            output = Output(self.options.storage, stage.folder)
            if output.complete:
                self._finished[name] = output
        return self._finished.get(name)

    def items_of(self, kind: str | None) -> tuple[Item, ...]:
        """The items of the records by id; only those of `kind` if that is a kind of items."""
        return tuple(item for item in self._items if kind not in ITEM_KINDS or item.kind == kind)

    @cached_property
    def _items(self) -> tuple[Item, ...]:
        if self._parsed:
            return self._parsed.items
        records = self.finished("records")
        assert records is not None
        return tuple(sorted(read_rows(records, Item), key=lambda item: item.id))

    @property
    def knows_items(self) -> bool:
        return self._parsed is not None or self.finished("records") is not None

    def foresee(self) -> None:
        """Reads a user's list that is not built, and looks at the files beside it, for plans; nothing is written."""
        if self.corpus.card != "own":
            return
        if raw := None if self.finished("records") else self.files.foresee():
            census, counts, items = Census(self.corpus.name), Counter[str](), list[Item]()
            for row in self.corpus.parse(raw):
                census.add(row)
                counts[TABLES[type(row)]] += 1
                items += [row] if isinstance(row, Item) else []
            ordered = tuple(sorted(items, key=lambda item: item.id))
            self._parsed = ParsedList(ordered, {**counts, **census.counts()})
        anew = (change for change in self.files.changed_media() if change.how in (ADDED, EDITED))
        self.changed_media = frozenset(change.state.path for change in anew)

    def _build(self, name: str) -> Output:
        stage, kind = self.stage(name), stages.load(name)
        assert stage is not None
        if not (self.finished(name) or kind.also):  # those have runs of their own
            stage = replace(stage, seconds=self.core_seconds(kind) or 0.0)
        output = build(stage, self.options.storage, self.options.run, self.options.progress)
        if name == "records":
            use_records(output)
        return output

    def core_seconds(self, kind: StageKind) -> float | None:
        """Estimates what all of a stage takes one core; before a parse, for what the corpus promises."""
        counts = self.counts_for(kind)
        if kind.seconds is None or counts is None:
            return None
        stage = self.stage(kind.name)
        return kind.seconds(stage.config if stage else self.config(kind), counts) or None

    def counts_for(self, kind: StageKind) -> Mapping[str, int] | None:
        """Numbers of the items and captions that a stage reads; None where a corpus promises none before a parse."""
        if self.knows_items:
            records = self.finished("records")
            parsed = self._parsed.counts if self._parsed else {}
            counts = records.totals["counts"] if records else parsed
            kinds = Counter(item.kind for item in self.items_of(kind.of))
            return {"captions": 0, **counts, "items": kinds.total(), "clips": kinds["clip"]}
        if items := self.corpus.counts.get("items"):
            clips = items if "clip" in self.corpus.kinds else 0
            return {"captions": items * CAPTIONS_OF_PAPERS, "clips": clips, **self.corpus.counts}
        return None

    def _check(self, kind: StageKind) -> None:
        if kind.check:
            kind.check(self.config(kind), self.options.files)


def kinds_for(corpus: Corpus | None, names: Sequence[str]) -> list[StageKind]:
    """These stages and those they need, without files; UserError if the corpus has none of what one is for."""
    kinds = [stages.load(name) for name in stages.with_needs([*names]) if name not in FILE_SETS]
    for kind in kinds:
        if corpus and corpus.kinds and kind.of not in (None, *corpus.kinds):
            raise _lacks(corpus, kind)
    return kinds


def _lacks(corpus: Corpus, kind: StageKind) -> UserError:
    if kind.of not in ITEM_KINDS:
        cure = ": name the list again with --labels COLUMN" if corpus.card == "own" else ""
        return UserError(f"{corpus.name} has no labels of kind {kind.of}, which {kind.name} needs{cure}")
    has, other = ("pictures", "clips") if kind.of == "image" else ("clips", "pictures")
    cure = f"; if they are {has}, name the list again with --kind {kind.of}" if corpus.card == "own" else ""
    return UserError(f"{corpus.name} has no {has}: {kind.name} is for {has}, not {other}{cure}")


def stages_of(corpus: Corpus) -> list[str]:
    kinds = {kind.name: kind.of for kind in stages.all()}
    return [name for name in stages.targets() if kinds.get(name) in (None, *corpus.kinds)]


def unread(options: BuildOptions, names: Sequence[str]) -> list[str]:
    """Settings and files that no build of these stages, or of what they need, reads."""
    read = {"records", *stages.with_needs([*names])}
    files = {file for name in read - {*FILE_SETS} for file in stages.load(name).files}
    settings = [setting for setting in options.settings if setting.partition(".")[0] not in read]
    return settings + [f"--file {name}" for name in options.files if name not in files]


def build_stages(work: CorpusBuild, names: Iterable[str]) -> list[dict[str, Any]]:
    """Brings these stages up to date, with a row for each.

    Of `planned` files or items `absent` are not there; another try may be spared failures of the classes in `retry`.
    """
    before = {output.folder for output in directories(work.options.storage) if output.complete}
    rows = []
    for name in names:
        output = work.build(name)
        row: dict[str, Any] = {"corpus": work.corpus.name, "stage": name, "identity": output.identity}
        row |= {"path": output.where, "built": output.folder not in before}
        row |= {total: output.totals[total] for total in ("bytes", "counts", "failures")}
        rows.append(row | (_absent_files(work, output) if name in FILE_SETS else _absent_items(work, name, output)))
    return rows


def _absent_items(work: CorpusBuild, name: str, output: Output) -> dict[str, Any]:
    failures, stage = output.totals["failures"], work.stage(name)
    return {
        "planned": len(work.items_of(stages.load(name).of)) if "media" in stages.with_needs([name]) else 0,
        "absent": sum(count for kind, count in failures.items() if kind != TRUNCATED)
        + output.totals["counts"].get(WITHOUT_REGIONS, 0),
        "retry": [kind for kind in stage.passing if kind in failures] if stage else [],
    }


def _absent_files(work: CorpusBuild, sealed: Output) -> dict[str, Any]:
    """Also why media are absent, with one file of each class, and the folders that lack files."""
    present, missing = (sealed.totals["counts"][key] for key in ("present", "absent"))
    row: dict[str, Any] = {"planned": present + missing, "absent": missing}
    if not missing:
        return row
    files, absent = Counter[str](), set[str]()
    for locked in read_lock(sealed):
        files[folder_of(locked.path)] += 1
        if not locked.sha256:
            absent.add(locked.path)
    states = work.files.of("media").ledger.states()
    why = reasons_of(
        (state.path, state.kind, state.reason) for state in states if state.failed and state.path in absent
    )
    return row | {"reasons": why, "folders": incomplete_folders(files, Counter(map(folder_of, sorted(absent))))}
