"""Checks a corpus or a model against what every corpus or model owes, and says what is missing.

A corpus is checked by what it declares, by its card and, with --raw FOLDER, by what it makes of its files: a corpus of
this package writes small ones itself. A model computes with eight random pairs. The exit code is 1 if anything is
wrong.

examples:
  xmodal check mine.py
  xmodal check mine.py --raw ~/Downloads/mine
  xmodal check coco vsepp
"""

import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from pipelines.commands import Args, Lines, Parser, Result, _flags
from xmodal.errors import UserError

WEB_PAGE = b"<html>the page is gone</html>"


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("targets", nargs="+", metavar="mine.py|NAME", help="a corpus or a model, or the Python file of one, or of both")
    add("--raw", type=_flags.path, help="a folder with the files of the corpus, by the paths of its sources")


def run(args: Args) -> Result:
    if args.raw is not None and not args.raw.is_dir():
        raise UserError(f"--raw {args.raw} is not a folder")
    return {text: check(text, args.raw) for text in args.targets}


def text(result: Result) -> Lines:
    for name, found in result.items():
        verdict = f"{len(found['faults'])} to mend" if found["faults"] else "keeps the contract"
        yield f"{name}, {' and '.join(found['checked'])}: {verdict}"
        yield from (f"    - {fault}" for fault in found["faults"])
        yield from (f"    note: {note}" for note in found["notes"])


def exit_code(result: Result) -> int:
    return int(any(found["faults"] for found in result.values()))


def check(text: str, raw: Path | None = None) -> dict[str, Any]:
    from xmodal import corpora, models

    module = _module(text)
    checked, faults, notes = list[str](), list[str](), list[str]()
    if hasattr(module, "CORPUS"):
        corpus = corpora.load(text)
        checked.append(f"corpus {corpus.name}")
        faults += _corpus_faults(text, module, corpus, raw, notes)
    if hasattr(module, "RECIPES") or text in models.names():
        from xmodal.checks import model_contract

        checked.append("model")
        faults += model_contract.faults(module)
        if not getattr(module, "SMALL", ()):
            notes.append("no SMALL, a tuple of configs that compute quickly: the recipes' own configs were checked")
    if not checked:
        raise UserError(f"{text} has neither a CORPUS nor RECIPES")
    return {"checked": checked, "faults": faults, "notes": notes}


def _corpus_faults(text: str, module: ModuleType, corpus: Any, raw: Path | None, notes: list[str]) -> Iterator[str]:
    """Yields faults; adds to the notes what could not be checked."""
    from xmodal import corpora
    from xmodal.checks.corpus_contract import type_faults

    if wrong := list(type_faults(corpus)):
        yield from wrong
        return
    yield from declaration_faults(module, corpus)
    if not corpus.counts:
        notes.append("CORPUS.counts is empty, so no build notices a file that lacks half: say what a full parse gives")
    with TemporaryDirectory(prefix="xmodal-") as folder:
        if raw:
            yield from file_faults(corpus, raw)
        elif text in corpora.names() and (written := write_sample(f"pipelines.demo.{text}", Path(folder))):
            yield from file_faults(written, Path(folder))
        else:
            notes.append(f"{corpus.name} was not parsed: add --raw FOLDER with its files, or a part of them")


def _module(text: str) -> ModuleType:
    from xmodal import corpora, models
    from xmodal.python_files import load_python_file

    if text.endswith(".py"):
        return load_python_file(text, "Python")
    if text in corpora.names():
        return importlib.import_module(f"xmodal.corpora.{text}")
    if text in models.names():
        return models.load(text)
    there = ", ".join([*corpora.names(), *models.names()])
    raise UserError(f"no corpus and no model {text!r}; there are: {there}; a file mine.py also works")


def write_sample(publisher: str, folder: Path) -> Any:
    """Writes the first generated world that fits a publisher's module; None without the module."""
    from pipelines.demo.files import Unpublishable
    from pipelines.demo.world import World

    if not importlib.util.find_spec(publisher):
        return None
    module = importlib.import_module(publisher)
    for motion, captions in product((0, 0.5, 1), (5, 10)):
        try:
            return module.write(World(40, image_size=32, motion=motion, captions_per_item=captions), folder)
        except Unpublishable:
            continue
    raise AssertionError


def declaration_faults(module: ModuleType, corpus: Any) -> Iterator[str]:
    from pipelines.publishing.dataset_card import read_card
    from xmodal.checks import corpus_contract

    yield from corpus_contract.declaration_faults(corpus, (module.__doc__ or "").strip())
    try:
        read_card(corpus)
    except UserError as trouble:
        yield str(trouble)


def file_faults(corpus: Any, folder: Path) -> Iterator[str]:
    """Faults that parsing a folder shows; without any, the files whose damage is not noticed."""
    if faults := list(_parse_faults(corpus, folder)):
        yield from faults
        return
    for source in corpus.sources:
        if source.part == "annotations":
            yield from _unnoticed(corpus, folder.resolve(), source.path)


def _parse_faults(corpus: Any, folder: Path) -> Iterator[str]:
    from xmodal.checks.corpus_contract import FAILURES, row_faults
    from xmodal.raw.raw_files import Raw

    try:
        yield from row_faults(corpus, Raw.folder(folder))
        count(corpus, folder)
    except UserError as trouble:
        yield str(trouble)
    except FAILURES as error:
        yield f"parse ends in {type(error).__name__}: {error}"


def count(corpus: Any, folder: Path) -> dict[str, int]:
    """Counts rows, and refuses other counts than the corpus promises, as the records stage does."""
    from pipelines.stages.records import Census, check_counts
    from xmodal.raw.raw_files import Raw
    from xmodal.records.tables import ROWS

    census, kinds = Census(corpus.name), Counter[type]()
    for row in corpus.parse(Raw.folder(folder)):
        census.add(row)
        kinds[type(row)] += 1
    counts = {name: kinds[kind] for name, kind in ROWS.items() if kinds[kind]} | census.counts()
    check_counts(corpus, counts)
    return counts


def _unnoticed(corpus: Any, folder: Path, path: str) -> Iterator[str]:
    """Parses the files with a web page in place of one."""
    if not (folder / path).is_file():
        yield f"{path} is not in the folder, and parse does not miss it: leave out of CORPUS.sources what is not read"
        return
    with TemporaryDirectory(prefix="xmodal-") as spoiled:
        for source in corpus.sources:
            file = Path(spoiled, source.path)
            file.parent.mkdir(parents=True, exist_ok=True)
            if source.path == path:
                file.write_bytes(WEB_PAGE)
            elif source.part == "annotations" and (folder / source.path).is_file():
                file.symlink_to(folder / source.path)
        faults = list(_parse_faults(corpus, Path(spoiled)))
    if not faults:
        yield f"a web page in place of {path} is not noticed: refuse lines that nobody published, if it is read"
    elif crash := [fault for fault in faults if fault.startswith("parse ends in ")]:
        yield f"where {path} is a web page, {crash[0]}: raise UserError with the file and line (xmodal/raw/readers.py)"
