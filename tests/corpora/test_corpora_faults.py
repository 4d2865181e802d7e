"""Every corpus and what may be wrong with a file: a rule of the corpus meets and counts it, or the file is named."""

import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.demo.files import write_tgz
from tests.corpora.test_corpora import name as name
from tests.corpora.test_corpora import rows
from tests.corpora.test_corpora import written as written
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.records.tables import Oddity, Row

TEXT = re.compile(r"(?:.*/)?(?!\._)[^/]+\.(txt|tsv|json|token|xml)|.*/UNRELATED_CAPTIONS")
Edit = Callable[[bytes], bytes]
HARMLESS: dict[str, Edit] = {
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "line ends of Windows": lambda data: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
}
WRONG: dict[str, Edit] = {
    "not UTF-8": lambda data: data[: len(data) // 2] + b"\xff" + data[len(data) // 2 :],
    "empty": lambda data: b"",
    "other columns": lambda data: data.rstrip() + b"\nwhat nobody\texpects,here|at all ? ?\n",
    "its last line twice": lambda data: data.rstrip() + b"\n" + data.rstrip().rpartition(b"\n")[2] + b"\n",
    "cut off": lambda data: data[: 2 * len(data) // 3],
}
MEANT = {  # what a file may well say, by the docstring of its corpus
    ("tgif", "tgif-v1.0.tsv", "its last line twice"): "some GIFs have more sentences, all are kept",
    ("flickr30k_entities", "Sentences", "its last line twice"): "a caption may be said again",
    ("flickr30k_entities", "Sentences", "other columns"): "a caption is any text",
    ("flickr30k_entities", "Sentences", "cut off"): "a caption is any text, and no number of them is promised",
    ("flickr30k_entities", "UNRELATED_CAPTIONS", "empty"): "no caption need be unrelated",
    ("flickr30k_entities", "UNRELATED_CAPTIONS", "cut off"): "no caption need be unrelated",
}


def contents(path: Path) -> dict[str, bytes]:
    """The members of an archive, or a file itself under no name."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    if path.name.endswith("gz"):
        with tarfile.open(path) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    return {"": path.read_bytes()}


def put(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        path.write_bytes(data.getvalue())
    elif path.name.endswith("gz"):
        write_tgz(path, members.items())
    else:
        path.write_bytes(members[""])


def spoiled(written: tuple[Corpus, Path], into: Path, edit: Edit) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of each text that the corpus reads, one of a kind, the kind, its name and its file's; it alone is edited."""
    corpus, folder = written
    sources = [source.path for source in corpus.sources if source.part == "annotations"]
    whole = {path: contents(folder / path) for path in sources}
    for path, members in whole.items():
        put(into / path, members)
    for path, members in whole.items():
        kinds = dict[str, str]()
        for member in members:
            if TEXT.fullmatch(member or path):
                kinds.setdefault(re.sub(r"(text_c10|Sentences|Annotations)/.*", r"\1", member), member)
        for kind, member in kinds.items():
            put(into / path, members | {member: edit(members[member])})
            yield Path(kind or path).name, (Path(member or path).name, Path(path).name)
        put(into / path, members)


def attempt(corpus: Corpus, folder: Path) -> list[Row] | str:
    try:
        return list(rows(corpus, folder))
    except UserError as trouble:
        return str(trouble)


def read_texts(written: tuple[Corpus, Path], into: Path) -> set[str]:
    """Those that parsing cannot do without."""
    garbage = spoiled(written, into, lambda data: b"\xff\n")
    return {kind for kind, _ in garbage if isinstance(attempt(written[0], into), str)}


@pytest.mark.parametrize("fault", HARMLESS)
def test_it_makes_no_difference(fault: str, written: tuple[Corpus, Path], tmp_path: Path) -> None:
    expected = attempt(*written)
    for kind, _ in spoiled(written, tmp_path, HARMLESS[fault]):
        assert attempt(written[0], tmp_path) == expected, kind


@pytest.mark.parametrize("fault", WRONG)
def test_it_is_counted_or_the_file_is_named(fault: str, written: tuple[Corpus, Path], tmp_path: Path) -> None:
    corpus, expected = written[0], attempt(*written)
    read = read_texts(written, tmp_path / "garbage")
    assert read
    for kind, names in spoiled(written, tmp_path / "spoiled", WRONG[fault]):
        found = attempt(corpus, tmp_path / "spoiled")
        if kind not in read:
            continue
        if isinstance(found, str):
            assert any(name in found for name in names), (kind, found)
        elif (corpus.name, kind, fault) not in MEANT:
            odd = [sum(isinstance(row, Oddity) for row in some) for some in (expected, found)]
            assert odd[1] > odd[0], (kind, fault, "is neither counted nor refused")
