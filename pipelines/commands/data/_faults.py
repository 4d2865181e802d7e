"""Faults of a corpus or a model, by what every one of them owes. Each is a sentence."""

import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from pipelines.demo.files import Unpublishable
from pipelines.demo.world import World
from pipelines.publishing.dataset_card import read_card
from pipelines.stages.records import Census, check_counts
from xmodal import corpora, models
from xmodal.checks import corpus_contract
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.python_files import load_python_file
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import ROWS

WEB_PAGE = b"<html>the page is gone</html>"


def check(text: str, raw: Path | None) -> dict[str, list[str]]:
    """Checks a name or a Python file; `raw` has the files of the corpus."""
    module = _module(text)
    checked, faults, notes = list[str](), list[str](), list[str]()
    if hasattr(module, "CORPUS"):
        corpus = corpora.load(text)
        checked.append(f"corpus {corpus.name}")
        faults += _corpus_faults(text, module, corpus, raw, notes)
    if hasattr(module, "RECIPES") or text in models.names():
        from xmodal.checks import model_contract  # imports torch

        checked.append("model")
        faults += model_contract.faults(module)
        if not getattr(module, "SMALL", ()):
            notes.append("no SMALL, a tuple of configs that compute quickly: the recipes' own configs were checked")
    if not checked:
        raise UserError(f"{text} has neither a CORPUS nor RECIPES")
    return {"checked": checked, "faults": faults, "notes": notes}


def _module(text: str) -> ModuleType:
    if text.endswith(".py"):
        return load_python_file(text, "Python")
    if text in corpora.names():
        return importlib.import_module(f"xmodal.corpora.{text}")
    if text in models.names():
        return models.load(text)
    there = ", ".join([*corpora.names(), *models.names()])
    raise UserError(f"no corpus and no model {text!r}; there are: {there}; a file mine.py also works")


def _corpus_faults(text: str, module: ModuleType, corpus: Corpus, raw: Path | None, notes: list[str]) -> Iterator[str]:
    """Yields faults; adds to the notes what could not be checked."""
    if wrong := list(corpus_contract.type_faults(corpus)):
        yield from wrong
        return
    yield from declaration_faults(module, corpus)
    if not corpus.counts:
        notes.append("CORPUS.counts is empty, so no build notices a file that lacks half: say what a full parse gives")
    with TemporaryDirectory(prefix="xmodal-") as folder:
        if raw:
            faults = list(file_faults(corpus, raw))
            yield from faults
            if not faults:
                notes += corpus_contract.phrase_notes(corpus.parse(Raw.folder(raw)))
        elif text in corpora.names() and (written := write_sample(f"pipelines.demo.{text}", Path(folder))):
            yield from file_faults(written, Path(folder))
        else:
            notes.append(f"{corpus.name} was not parsed: add --raw FOLDER with all of its files")


def declaration_faults(module: ModuleType, corpus: Corpus) -> Iterator[str]:
    yield from corpus_contract.declaration_faults(corpus, (module.__doc__ or "").strip())
    try:
        read_card(corpus)
    except UserError as trouble:
        yield str(trouble)


def write_sample(publisher: str, folder: Path) -> Any:
    """Writes the first generated world that fits a publisher's module; None without the module."""
    if not importlib.util.find_spec(publisher):
        return None
    module = importlib.import_module(publisher)
    for motion, captions in product((0, 0.5, 1), (5, 10)):
        try:
            return module.write(World(40, image_size=32, motion=motion, captions_per_item=captions), folder)
        except Unpublishable:
            continue
    raise AssertionError


def file_faults(corpus: Corpus, folder: Path) -> Iterator[str]:
    """Faults that parsing a folder shows; without any, the files whose damage is not noticed."""
    if faults := list(_parse_faults(corpus, Raw.folder(folder))):
        yield from faults
        return
    listed = [source.path for source in corpus.sources if source.part == "annotations"]
    there = [path for path in listed if (folder / path).is_file()]
    for path in listed:
        if path not in there:
            cure = "leave out of CORPUS.sources what is not read"
            yield f"{path} is not in the folder, and parse does not miss it: {cure}"
        elif not (faults := list(_parse_faults(corpus, _spoiled(folder, there, path)))):
            yield f"a web page in place of {path} is not noticed: refuse lines that nobody published, if it is read"
        elif crash := [fault for fault in faults if fault.startswith("parse ends in ")]:
            cure = "raise UserError with the file and line (xmodal/raw/readers.py)"
            yield f"where {path} is a web page, {crash[0]}: {cure}"


def _spoiled(folder: Path, files: list[str], page: str) -> Raw:
    return Raw(files, lambda path: BytesIO(WEB_PAGE) if path == page else (folder / path).open("rb"))


def _parse_faults(corpus: Corpus, raw: Raw) -> Iterator[str]:
    try:
        yield from corpus_contract.row_faults(corpus, raw)
        count(corpus, raw)
    except UserError as trouble:
        yield str(trouble)
    except corpus_contract.FAILURES as error:
        yield f"parse ends in {type(error).__name__}: {error}"


def count(corpus: Corpus, raw: Raw) -> dict[str, int]:
    """Counts rows, and refuses other counts than the corpus promises."""
    census, kinds = Census(corpus.name), Counter[type]()
    for row in corpus.parse(raw):
        census.add(row)
        kinds[type(row)] += 1
    counts = {name: kinds[kind] for name, kind in ROWS.items() if kinds[kind]} | census.counts()
    check_counts(corpus, counts)
    return counts
