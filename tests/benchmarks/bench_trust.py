"""Trust: what it costs to compare bytes before they are used, and to decode where a deadline holds."""

import io
import statistics
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from pipelines import stages
from pipelines.engine.building import KEPT_BYTES, build
from pipelines.engine.killable_worker import keep_memory
from pipelines.engine.picture_decoder import DEADLINE, PictureDecoder, SquareDecoder
from pipelines.engine.stage_kind import Needs
from pipelines.stages.resnet import ResNetConfig
from tests.benchmarks import trust_codebook, trust_growth, trust_scores
from tests.benchmarks.measured import Bar, Measured, timed
from tests.stages.test_pinned import digests
from tests.stages.test_resnet_stage import sealed
from tests.upkeep.test_damage import silent_differences
from tests.upkeep.test_damage_before_builds import wrong_outputs
from xmodal.checks.perceptual_hashes import hash_media
from xmodal.media.preparation import square
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.records.tables import Item
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import blob_key, read_lock
from xmodal.root.storage import open_storage

BARS = {
    "checked_reading_vs_unchecked": Bar(minimum=0.95),
    "silent_differences": Bar(maximum=0),
    "killable_pictures_cost": Bar(maximum=1.05),
    **trust_scores.BARS,
    **trust_codebook.BARS,
    **trust_growth.BARS,
}
PICTURES, ROUNDS, DAMAGES, TURNS = 96, 5, 500, 21
SIZE = (500, 375)  # pixels, as COCO's and Flickr's, of some 90 kB each


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    pictures = [picture(number) for number in range(PICTURES)]
    yield {"killable_pictures_cost": _killable(pictures)}
    with tempfile.TemporaryDirectory() as folder:
        yield {"checked_reading_vs_unchecked": _checked(pictures, Path(folder))}
    with tempfile.TemporaryDirectory() as folder:
        digests(Path(folder))
        found = list(silent_differences(Path(folder), Path(folder) / "damaged", DAMAGES))
        found += wrong_outputs(Path(folder), Path(folder) / "builds", DAMAGES)
    told = f"of {DAMAGES} seeded damages to finished roots, and {DAMAGES} before a build, those that were believed"
    yield {"silent_differences": Measured(len(found), "", told, (len(found),))}
    with tempfile.TemporaryDirectory() as folder:
        yield trust_scores.measure(Path(folder))
    yield trust_codebook.measure()
    with tempfile.TemporaryDirectory() as folder:
        yield trust_growth.measure(Path(folder))


def picture(seed: int) -> bytes:
    """Smooth colours with grain: a JPEG of a photograph's size and cost."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
    grain = random.normal(0, 12, (SIZE[1], SIZE[0], 3))
    data = io.BytesIO()
    Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(data, "JPEG", quality=90)
    return data.getvalue()


def _killable(pictures: Sequence[bytes]) -> Measured:
    """Both ways by turns; as in a worker freed memory is kept, and units of both stages have more pictures, 1,024."""
    keep_memory(KEPT_BYTES)
    squares, looks = (
        SquareDecoder(256, 224, DEADLINE),
        PictureDecoder("pipelines.stages.fingerprints:looks", None, DEADLINE),
    )
    media = [b"i" + data for data in pictures]
    ways: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "pixels": (
            lambda: [square(data, 256, 224) for data in pictures],
            lambda: _in_turn(squares, squares.pixels, pictures),
        ),
        "fingerprints": (
            lambda: [hash_media(data, "image") for data in pictures],
            lambda: _in_turn(looks, looks.decode, media),
        ),
    }
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, both in ways.items():
            spent = [0.0, 0.0]
            for way in (0, 1) if turn % 2 else (1, 0):
                spent[way] = timed(both[way])
            ratios[name].append(spent[1] / spent[0])
    medians = {name: statistics.median(runs[1:]) for name, runs in ratios.items()}
    told = ", ".join(f"{name} {value:.3f}" for name, value in medians.items())
    worst = max(medians, key=medians.__getitem__)
    runs = tuple(round(run, 4) for run in ratios[worst][1:])
    return Measured(medians[worst], "x", f"seconds of the same pictures in process ({told})", runs)


def _in_turn(decoder: PictureDecoder, decode: Callable[[bytes], object], pictures: Sequence[bytes]) -> None:
    """As stages do: each picture is sent while the one before it is decoded."""
    for data, following in pairwise([*pictures, None]):
        assert data is not None
        if following is not None:
            decoder.expect(following)
        decode(data)


def _checked(pictures: Sequence[bytes], folder: Path) -> Measured:
    """The resnet18 stage over files and over a zip; the other way opens the same blobs without a look at them."""
    names = [f"{number:03d}.jpg" for number in range(len(pictures))]
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
        for name, data in zip(names, pictures, strict=True):
            archive.writestr(name, data)
    sets = {
        "files": (dict(zip(names, pictures, strict=True)), names),
        "zip": ({"all.zip": packed.getvalue()}, [f"all.zip!{name}" for name in names]),
    }
    config = ResNetConfig("resnet18", "random:0", output="pooled")
    medians, runs = {}, {}
    for kind, (files, media) in sets.items():
        ratios = []
        for turn in range(ROUNDS + 1):
            spent = {}
            for opened in (raw_of, unchecked)[:: 1 if turn % 2 else -1]:
                storage = open_storage(str(folder / f"{kind}-{turn}-{opened.__name__}"))
                items = tuple(map(Item, names, media))
                needs = Needs({"media": sealed(storage, files)}, {}, lambda items=items: items, open_media=opened)
                stage = stages.load("resnet").make(config, needs)
                spent[opened] = timed(lambda stage=stage, storage=storage: build(stage, storage))
            ratios.append(spent[unchecked] / spent[raw_of])
        medians[kind], runs[kind] = statistics.median(ratios[1:]), ratios[1:]
    told = ", ".join(f"{kind} {value:.3f}" for kind, value in medians.items())
    worst = min(medians, key=medians.__getitem__)
    return Measured(
        medians[worst], "x", f"throughput without checksums ({told})", tuple(round(r, 4) for r in runs[worst])
    )


def unchecked(media: Output) -> Raw:
    keys = {locked.path: blob_key(locked.sha256) for locked in read_lock(media) if locked.sha256}
    return Raw(keys, lambda path: media.storage.open(keys[path]))
