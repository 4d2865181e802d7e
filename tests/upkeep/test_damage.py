"""Damage to any file of a finished root: a reader gives what was committed, or an error that names the file."""

import hashlib
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stages.test_pinned import digests
from xmodal.checks.leaks import read_fingerprints
from xmodal.errors import UserError
from xmodal.features.frame_store import FrameStore
from xmodal.features.store import FeatureStore
from xmodal.metrics.plausible_matches import PlausibleMatches
from xmodal.raw.archives import Archives
from xmodal.raw.raw_files import raw_of
from xmodal.records.tables import ROWS, read_rows
from xmodal.records.views import splits
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import blob_key, read_lock
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import Vocabulary

DAMAGES = 500
Reading = Callable[[Output], Any]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished outputs of every stage: of pictures in `root`, of clips in `clips`."""
    folder = tmp_path_factory.mktemp("built")
    digests(folder)
    return folder


def answer(read: Reading, output: Output) -> bytes | str:
    try:
        return hashlib.sha256(pickle.dumps(read(output))).digest()
    except UserError as error:
        return str(error)


def readings(output: Output) -> Iterator[tuple[str, Reading]]:
    """Every way in which something of this output is read, by the names of the stages that have it."""
    for name in output.files:
        yield f"read {name}", lambda output, name=name: output.read(name)
        yield f"open {name}", lambda output, name=name: output.open(name).read()
    if output.stage in ("sources", "media"):
        for locked in read_lock(output):
            if locked.sha256:
                yield f"blob {locked.path}", lambda output, path=locked.path: raw_of(output).open(path).read()
                yield f"media {locked.path}", lambda output, path=locked.path: Archives(raw_of(output)).read(path)
    if output.stage == "records":
        for table, row in ROWS.items():
            yield f"rows of {table}", lambda output, row=row: list(read_rows(output, row))
        yield "splits", lambda output: splits(output)
    if output.stage == "vocabulary":
        yield "words", lambda output: Vocabulary.from_bytes(output.read("vocabulary.txt"), "").words
    if output.stage == "plausible":
        yield "matches", lambda output: pickle.dumps(PlausibleMatches.read(output))
    if output.stage == "fingerprints":
        yield "looks", lambda output: read_fingerprints(output)
    if output.stage == "frames":
        yield "frames", lambda output: [_present(FrameStore(output).jpegs, id) for id in FrameStore(output).ids]
    if "zarr.json" in output.files:
        yield "features", lambda output: [_present(FeatureStore(output).read, [id]) for id in FeatureStore(output).ids]


def _present(read: Callable[[Any], Any], id: Any) -> Any:
    """What is read of an item, or that it failed when it was built."""
    try:
        found = read(id)
    except UserError as error:
        if any(text in str(error) for text in ("has no frames of", "has no features of")):
            return "failed"
        raise
    return [np.asarray(each).tobytes() for each in found]


def flip(file: Path, other: Path, draw: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    replace(file, bytes(data))


def cut(file: Path, other: Path, draw: random.Random) -> None:
    replace(file, file.read_bytes()[: draw.randrange(file.stat().st_size)])


def zero(file: Path, other: Path, draw: random.Random) -> None:
    data = bytearray(file.read_bytes())
    start = draw.randrange(len(data))
    length = min(len(data) - start, 1 + draw.randrange(512))
    data[start : start + length] = bytes(length)
    replace(file, bytes(data))


def swap(file: Path, other: Path, draw: random.Random) -> None:
    replace(file, other.read_bytes())


def delete(file: Path, other: Path, draw: random.Random) -> None:
    file.unlink()


def replace(file: Path, data: bytes) -> None:
    file.unlink()  # not in place: the bytes may have other names
    file.write_bytes(data)


def files_of(root: Path) -> list[Path]:
    files = [file for file in root.rglob("*") if file.is_file() and not file.relative_to(root).parts[0].startswith("_")]
    return sorted(file for file in files if "_runs" not in file.parts and file.stat().st_size)


def reached(root: Path, file: Path, outputs: list[Output]) -> list[Output]:
    """The outputs that read a file: those whose folder it lies in, or for bytes of sealed sets those that list them."""
    relative = file.relative_to(root)
    if relative.parts[0] != "blobs":
        return [output for output in outputs if output.folder == "/".join(relative.parts[:2])]
    sets = [output for output in outputs if output.stage in ("sources", "media")]
    return [o for o in sets if relative.as_posix() in [blob_key(each.sha256) for each in read_lock(o) if each.sha256]]


def test_no_damage_is_read_silently(roots: Path, tmp_path: Path) -> None:
    silent = list(silent_differences(roots, tmp_path, DAMAGES))
    assert silent == [], "\n".join(silent)


def silent_differences(roots: Path, folder: Path, damages: int) -> Iterator[str]:
    """Spoils one file after the other in copies of both roots; a sentence for each reader that believes it."""
    draw = random.Random(0)
    for name in ("root", "clips"):
        root = folder / name
        shutil.copytree(roots / name, root)
        outputs = [output for output in directories(open_storage(str(root))) if output.complete]
        good = {(o.folder, what): answer(read, o) for o in outputs for what, read in readings(o)}
        assert not [told for told in good.values() if isinstance(told, str)]
        files = files_of(root)
        for number in range(damages // 2):
            file, spoil = draw.choice(files), (flip, flip, flip, cut, zero, swap, delete)[number % 7]
            before = file.read_bytes()
            alike = [one for one in files if one.name == file.name and one.read_bytes() != before]
            read = [(output, list(readings(output))) for output in reached(root, file, outputs)]
            spoil(file, draw.choice(alike or files), draw)
            if not file.exists() or file.read_bytes() != before:
                yield from _differences(root, file, spoil.__name__, read, good)
            file.unlink(missing_ok=True)
            file.write_bytes(before)


def _differences(
    root: Path, file: Path, spoil: str, read: list[tuple[Output, list[tuple[str, Reading]]]], good: dict[Any, Any]
) -> Iterator[str]:
    for output, ways in read:
        for what, way in ways:
            fresh = Output(output.storage, output.folder)
            told = answer(way, fresh)
            if isinstance(told, str) and file.name not in told:
                yield f"{spoil} of {file.relative_to(root)}: {what} of {output.folder} does not name it: {told}"
            elif isinstance(told, bytes) and told != good[output.folder, what]:
                yield f"{spoil} of {file.relative_to(root)}: {what} of {output.folder} gives other data"
