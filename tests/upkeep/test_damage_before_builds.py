"""Damage before a build: it says so and makes nothing, or makes the bytes that it makes of undamaged files."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.engine.killable_worker import KillableWorker
from pipelines.engine.picture_decoder import PictureDecoder
from tests.conftest import tree_digest
from tests.stages.test_pinned import builds, digests, root_of
from tests.upkeep.test_damage import cut, delete, files_of, flip, swap, zero
from xmodal.errors import UserError
from xmodal.root.outputs import directories
from xmodal.root.storage import open_storage

DAMAGES = 40
TARGETS = ("records", "vocabulary", "pixels", "fingerprints", "plausible", "resnet", "clips")
_decoders: dict[object, KillableWorker] = {}  # one for all builds


def test_nothing_wrong_is_made_of_damage(tmp_path: Path) -> None:
    digests(tmp_path)
    wrong = list(wrong_outputs(tmp_path, tmp_path / "damaged", DAMAGES))
    assert wrong == [], "\n".join(wrong)


def wrong_outputs(built: Path, folder: Path, damages: int) -> Iterator[str]:
    """Spoils a file of finished roots without one output, builds that, and tells what was made otherwise."""
    draw, refused = random.Random(1), 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PictureDecoder, "_worker", property(_shared))
        for number in range(damages):
            target = draw.choice(TARGETS)
            name = root_of(target)
            root = folder / name
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(built / name, root)
            work = builds(built, folder)[name]
            (made,) = directories(open_storage(str(root)), target)
            good = tree_digest(made.where)
            shutil.rmtree(made.where)
            files = files_of(root)
            file, spoil = draw.choice(files), (flip, flip, flip, cut, zero, swap, delete)[number % 7]
            before = file.read_bytes()
            alike = [one for one in files if one.name == file.name and one.read_bytes() != before]
            spoil(file, draw.choice(alike or files), draw)
            try:
                output = work.build(target)
            except UserError as error:
                refused += 1
                if file.name not in str(error) and str(file.parent) not in str(error):
                    yield f"{spoil.__name__} of {file.relative_to(root)}: {target} does not name it: {error}"
                continue
            if tree_digest(output.where) != good:
                yield f"{spoil.__name__} of {file.relative_to(root)}: {target} is another"
    assert refused > damages / 20


def _shared(decoder: PictureDecoder) -> KillableWorker:
    started = (decoder._function, str(decoder._settings))
    if started not in _decoders:
        _decoders[started] = KillableWorker(decoder._function, decoder._settings, decoder._limit)
    return _decoders[started]
