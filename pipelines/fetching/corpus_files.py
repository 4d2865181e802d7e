"""The files of a corpus in one command: its annotations and its media, fetched into the ledger and sealed."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.corpus_names import FoundCorpus
from pipelines.fetching.download import may_pass
from pipelines.fetching.fetcher import RawFolder, fetch, unpacked
from pipelines.fetching.ledger import CHANGED, FOLDERS, LINK, State, lose_blobs, reasons_of
from pipelines.fetching.list_changes import ADDED, EDITED, TOUCHED, FileChange, describe_files, file_changes
from pipelines.fetching.sealing import FileSet
from xmodal.corpora import Part, Source
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.root.files import sha256_of
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import blob_key
from xmodal.root.selection import build_command
from xmodal.root.storage import LocalStorage, Storage

UNPACKED_AT_ONCE = 64  # files that lie beside their archive for a moment


class CorpusFiles:
    def __init__(self, options: BuildOptions, found: FoundCorpus) -> None:
        self._options, self._found, self._corpus = options, found, found.corpus
        self._raw, self._is_compared = options.raw or found.media_folder, False
        self._sets: dict[Part, FileSet] = {}
        self._foreseen: Raw | None = None

    def of(self, part: Part) -> FileSet:
        """Leaves out media that annotations list which are not sealed yet."""
        if part not in self._sets:
            corpus, listed = self._corpus, tuple[Source, ...]()
            if part == "media" and corpus.media and (annotations := self._annotations()):
                listed = tuple(corpus.media(annotations))
            required = tuple(source for source in corpus.sources if source.part == part)
            name = corpus.name if part == "annotations" else corpus.media_set
            files = FileSet(self._options.storage, part, name, required, listed)
            is_known = not any(source.members for source in required) or files.sealed
            self._sets[part] = files if is_known else self._with_unpacked(files)
        return self._sets[part]

    def _annotations(self) -> Raw | None:
        sealed = self.of("annotations").sealed
        return raw_of(sealed) if sealed else self._foreseen

    def foresee(self) -> Raw | None:
        """Reads a user's lists where they lie, if they are not sealed yet: `of` then knows their media, for plans."""
        self._foreseen = Raw.of_files(self._found.lists) if self._found.lists else None
        self._sets.pop("media", None)
        return self._annotations()

    def build(self, part: Part) -> Output:
        """Returns the sealed set; annotations, which list the media, come before these."""
        if part == "media" and self._corpus.card == "own":
            self._take_changed_media()
        files, corpus = self.of(part), self._corpus
        if files.sealed:
            return files.sealed
        counts = Counter(source.path for source in files.sources)
        if shared := next((path for path, count in counts.items() if count > 1), None):
            raise UserError(f"{corpus.name}: {counts[shared]} files have one path, {shared}: give each its own")
        lacking = files.to_fetch()
        if part == "media" and corpus.unpack and (annotations := self.of("annotations").sealed):
            wanted = {source.path for source in lacking if not source.url}
            if self._take(files, partial(corpus.unpack, raw_of(annotations), wanted)):
                lacking = files.to_fetch()
        self._fetch(files, lacking)
        return self._seal(files)

    def _with_unpacked(self, files: FileSet) -> FileSet:
        """Puts members in place of archives where the raw folder, or else this root, has them alone."""
        states, raw = files.ledger.states_by_path(), RawFolder(self._raw, files.sources) if self._raw else None
        required = list[Source]()
        for source in files.required:
            state = states.get(source.path)
            has_archive = (state and state.provides(source)) or (raw and raw.find(source))
            members = [] if has_archive else [*_unpacked_members(source, states, raw)]
            is_whole = members and len(members) == len(source.members)
            if is_whole and not all(states.get(member.path) for member in members):
                unpacked = "its unpacked files are taken, of which counts are checked, but no bytes"
                self._options.progress.say(f"{source.path} is not there: {unpacked}")
            required += members if is_whole else [source]
        return replace(files, required=tuple(required)) if required != [*files.required] else files

    def changed_media(self) -> list[FileChange]:
        """Says and gives what has changed beside a user's list since it was taken."""
        files, raw = self.of("media"), self.raw_folder("media")
        changes = file_changes(files.listed, files.ledger, raw) if raw else []
        if said := describe_files(changes):
            self._options.progress.say(f"{self._corpus.name}: {said}")
        return changes

    def _take_changed_media(self) -> None:
        """Has media fetched again that have changed beside the list."""
        if self._is_compared:
            return
        files, self._is_compared, changes = self.of("media"), True, self.changed_media()
        files.ledger.add([one.attempt for one in changes if one.how == TOUCHED])
        if again := [one for one in changes if one.how in (ADDED, EDITED)]:
            edited = [one for one in again if one.how == EDITED]
            lose_blobs(files.storage, {blob_key(one.state.sha256) for one in edited if _is_linked(files.storage, one)})
            files.ledger.lose([one.state for one in again], CHANGED)
            vars(files).pop("sealed", None)

    def retry(self, kind: str | None = None) -> dict[str, Any]:
        """Fetches failed files again; `reasons` are of those that are absent still, if there are any."""
        tried, absent = 0, list[State]()
        for part in FOLDERS:
            files = self.of(part)
            failed = {state.path for state in files.ledger.states() if state.failed and kind in (None, state.kind)}
            again = [source for source in files.sources if source.path in failed]
            self._fetch(files, again)
            tried += len(again)
            if lacking := files.lacking(again):
                states = files.ledger.states_by_path()
                absent += [states[source.path] for source in lacking]
        reasons = reasons_of((state.path, state.kind, state.reason) for state in absent)
        return {"tried": tried, "recovered": tried - len(absent)} | ({"reasons": reasons} if reasons else {})

    def reseal(self) -> dict[str, str]:
        """Seals what the ledgers say now; returns each identity."""
        sealed = {}
        for part in FOLDERS:
            files = self.of(part)
            tried = files.ledger.states_by_path()
            if part == "media" and not tried:
                continue
            if untried := [source.path for source in files.sources if source.path not in tried]:
                never = f"{len(untried):,} files were never tried, such as {untried[0]}"
                cure = build_command(self._options.storage.url, self._corpus.name, FOLDERS[part])
                raise UserError(f"{self._corpus.name}: {never}: build them first ({cure})")
            sealed[FOLDERS[part]] = self._seal(files).identity
        return sealed

    def raw_folder(self, part: Part) -> RawFolder | None:
        if not self._raw:
            return None
        found, sources = self._found, self.of(part).sources
        lists = found.lists if part == "annotations" else {}
        return RawFolder(self._raw, sources, lists, self._corpus.whole_paths, found.follow_links)

    def _seal(self, files: FileSet) -> Output:
        if missing := files.lacking(files.required):
            raise self._are_missing(files, missing)
        if files.part == "annotations":
            self._sets.pop("media", None)  # other annotations may list other media
        return files.seal()

    def _fetch(self, files: FileSet, some: list[Source]) -> None:
        options, raw = self._options, self.raw_folder(files.part)
        if raw and some and options.raw:  # other folders' archives are not searched
            taken = self._take(files, partial(unpacked, raw, some, options.progress.say))
            some = [source for source in some if source.path not in taken]
        fetch(files.ledger, some, raw, options.run, options.progress)
        if raw and raw.follow_links and self._corpus.card == "own":
            paths, states = {source.path for source in some}, files.ledger.states_by_path()
            if links := [path for path in paths & states.keys() if states[path].kind == LINK]:
                about = f"{len(links):,} files that links take from outside the folder, such as {min(links)}"
                options.progress.say(f"{self._corpus.name}: {about}")

    def _take(self, files: FileSet, unpack: Callable[[Path], Iterator[Source]]) -> set[str]:
        """Takes files that are unpacked one after the other; returns their paths."""
        taken = set[str]()
        with TemporaryDirectory(prefix="xmodal-") as name:
            folder = Path(name)
            found = unpack(folder)
            while some := list(islice(found, UNPACKED_AT_ONCE)):
                fetch(files.ledger, some, RawFolder(folder, some), serial, ProgressLine(quiet=True))
                for source in some:
                    taken.add(source.path)
                    (folder / source.path).unlink()
        return taken

    def _are_missing(self, files: FileSet, missing: list[Source]) -> UserError:
        states, few = files.ledger.states_by_path(), [source.path for source in missing[:3]]
        unpacked = [member for source in missing[:3] for member in source.members]
        reasons = "; ".join(f"{path} ({states[path].trouble if path in states else 'never tried'})" for path in few)
        named = ", ".join(few)
        if len(missing) > 3:
            reasons += f" and {len(missing) - 3} more"
            named += " ..."
        named += f" (or {', '.join(unpacked)}, unpacked)" if unpacked else ""
        may_come = any(source.path not in states or may_pass(states[source.path].kind) for source in missing)
        put = "Run the same command again, or put" if may_come else "Put"
        into = "a folder and add --raw FOLDER"
        if self._raw:
            into = f"the folder {self._raw}: neither it nor an archive in it has what was published"
        count = f"{len(missing)} of {len(files.required)} files are missing"
        return UserError(f"{self._corpus.name}: {count}: {reasons}. {put} {named} into {into}")


def _unpacked_members(archive: Source, states: Mapping[str, State], raw: RawFolder | None) -> Iterator[Source]:
    for name in archive.members:
        member = Source(f"{archive.path}!{name}", how=f"unpack {archive.path}", part=archive.part)
        state = states.get(member.path)
        if raw and (file := raw.find(member)):
            yield replace(member, bytes=Path(file).stat().st_size, sha256=sha256_of(Path(file)))
        elif state and not state.failed:
            yield replace(member, bytes=state.size, sha256=state.sha256)


def _is_linked(storage: Storage, change: FileChange) -> bool:
    """Whether a file that was written to is a blob, too, which has other bytes now."""
    key = blob_key(change.state.sha256)
    is_there = isinstance(storage, LocalStorage) and storage.size(key) is not None
    return is_there and os.path.samefile(storage.path(key), change.file)
