"""Parsing COCO at its own size, and PCME's plausible matches beside a plain loop over pairs.

COCO's files are made here, in its format and of its size: as many pictures, captions and outlined things, of words and
numbers that mean nothing.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.benchmarks.measured import Bar, Measured
from xmodal.corpora import Corpus, Source, load
from xmodal.corpora.coco import CAPTIONS, CAPTIONS_MEMBER, FOLDERS, INSTANCES, INSTANCES_MEMBER
from xmodal.metrics.plausible_matches import FAR, LabelSets, PlausibleMatches
from xmodal.root.storage import open_storage

BARS = {
    "coco_parse_s": Bar(maximum=60),
    "coco_parse_mb": Bar(maximum=1500),
    "plausible_5k_25k_s": Bar(maximum=2.0),
    "plausible_vs_published": Bar(minimum=100),
    "plausible_113k_s": Bar(),
    "plausible_113k_mb": Bar(maximum=1024),  # the issue's own
}
TRAIN, VAL = 82_783, 40_504  # pictures
SIX = {*range(312), *range(TRAIN, TRAIN + 10), *range(TRAIN + 5000, TRAIN + 5010)}  # which have six captions
THINGS, CATEGORIES = 7, 80  # of a picture, on average; of the corpus
ROUNDS = 3


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    with tempfile.TemporaryDirectory() as folder:
        seconds, mb = _in_a_process("parse", folder)
    yield {
        "coco_parse_s": _one(seconds, "s", "the records stage, of 616,767 captions, one process"),
        "coco_parse_mb": _one(mb, "MB", "its peak"),
    }
    seconds, mb = _in_a_process("expand")
    yield {
        "plausible_113k_s": _one(seconds, "s", "labels like COCO's of 113,287 items, one process"),
        "plausible_113k_mb": _one(mb, "MB", "its peak"),
    }
    yield _expansion()


def _expansion() -> dict[str, Measured]:
    """From label names to every level of 5,000 x 25,000, and by a loop over one pair in a hundred."""
    labels = _labels(5_000)
    rows, columns = np.arange(4_900), np.repeat(np.arange(4_900), 5)
    ours, theirs = [], []
    for turn in range(ROUNDS):
        started = time.perf_counter()
        found = PlausibleMatches.of(LabelSets.of(labels))
        tile = found.tile(rows, columns)
        ours.append(time.perf_counter() - started)
        bits = {item: _as_vector(names) for item, names in labels.items()}
        vectors = [bits[item] for item in found.ids]
        some = np.random.default_rng(turn).choice(len(columns), len(columns) // 100, replace=False).tolist()
        started = time.perf_counter()
        looped = [[min(_differing(vectors[row], vectors[columns[at]]), FAR) for at in some] for row in rows]
        theirs.append(100 * (time.perf_counter() - started))
        if not np.array_equal(tile[:, some], looped):
            raise RuntimeError("the levels are not those of the plain loop")
    ratios = tuple(round(t / o, 1) for t, o in zip(theirs, ours, strict=True))
    told = f"a loop over pairs of label vectors, 1 % of them, scaled: {statistics.median(theirs):.4g} s there"
    return {
        "plausible_5k_25k_s": Measured(statistics.median(ours), "s", "from names to all levels", tuple(ours)),
        "plausible_vs_published": Measured(statistics.median(ratios), "x", told, ratios),
    }


def _differing(one: Any, other: Any) -> int:
    """As published evaluators do, a pair at a time."""
    return int(np.count_nonzero(one != other))


def _as_vector(names: Iterable[str]) -> Any:
    vector = np.zeros(CATEGORIES, np.int8)
    vector[[int(name[1:]) for name in names]] = 1
    return vector


def _labels(items: int) -> dict[str, list[str]]:
    """About three categories an item, some far more frequent than others; two in a hundred have none."""
    random = np.random.default_rng(0)
    often = 1 / np.arange(1, CATEGORIES + 1) ** 0.8
    counts = np.clip(random.geometric(0.34, items), 1, 18) * (random.random(items) < 0.98)
    drawn = (random.choice(CATEGORIES, count, p=often / often.sum()) for count in counts)
    return {f"i{item:06d}": sorted({f"c{name}" for name in names.tolist()}) for item, names in enumerate(drawn)}


def _in_a_process(what: str, *arguments: str) -> tuple[float, float]:
    """Its own seconds, and the most memory that it held."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_corpora", what, *arguments]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(told[0]), float(told[1])


def _one(value: float, unit: str, against: str) -> Measured:
    return Measured(value, unit, against, (value,))


def _parse(folder: Path) -> float:
    write(folder / "raw")
    corpus = _as_written(folder / "raw")
    site = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw")
    build_stages(CorpusBuild(site, corpus), ["sources"])
    _forget_peak()
    started = time.perf_counter()
    build_stages(CorpusBuild(site, corpus), ["records"])
    return time.perf_counter() - started


def _expand() -> float:
    labels = _labels(113_287)
    started = time.perf_counter()
    found = PlausibleMatches.of(LabelSets.of(labels))
    found.count(2)
    return time.perf_counter() - started


def _as_written(folder: Path) -> Corpus:
    """COCO with these files in place of its own; all that it counts has to come out."""
    corpus = load("coco")
    kept = [source for source in corpus.sources if source.part == "annotations"]
    return replace(corpus, sources=tuple(Source(source.path, how="made here") for source in kept))


def write(folder: Path) -> None:
    (folder / INSTANCES).parent.mkdir(parents=True)
    with zipfile.ZipFile(folder / INSTANCES, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, first, stop in ((FOLDERS[0], 0, TRAIN), (FOLDERS[1], TRAIN, TRAIN + VAL)):
            with archive.open(INSTANCES_MEMBER.format(name), "w", force_zip64=True) as file:
                file.writelines(_instances(name, first, stop))
    with (
        zipfile.ZipFile(folder / CAPTIONS, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(CAPTIONS_MEMBER, "w", force_zip64=True) as file,
    ):
        file.write(b'{"images": [')
        file.writelines(_joined(map(_picture, range(TRAIN + VAL))))
        file.write(b'], "dataset": "coco"}')


def _picture(number: int) -> dict[str, Any]:
    random, sentences = np.random.default_rng(number), []
    for place in range(5 + (number in SIX)):
        words = [f"word{word}" for word in random.geometric(0.01, 11).tolist()]
        sentid = 8 * number + place
        sentences.append({"tokens": words, "raw": " ".join(words) + ".", "imgid": number, "sentid": sentid})
    folder = FOLDERS[number >= TRAIN]
    split = "train" if number < TRAIN else "val" if number < TRAIN + 5000 else "test"
    return {
        "filepath": folder,
        "sentids": [sentence["sentid"] for sentence in sentences],
        "filename": f"COCO_{folder}_{number:012d}.jpg",
        "imgid": number,
        "split": split if number < TRAIN + 10_000 else "restval",
        "sentences": sentences,
        "cocoid": number,
    }


def _instances(folder: str, first: int, stop: int) -> Iterator[bytes]:
    licences = [{"url": "http://creativecommons.org/licenses/by/2.0/", "id": 4, "name": "Attribution License"}]
    categories = [{"supercategory": "thing", "id": n + 1, "name": f"c{n}"} for n in range(CATEGORIES)]
    yield f'{{"info": {{}}, "licenses": {json.dumps(licences)}, "categories": {json.dumps(categories)}, '.encode()
    yield b'"images": ['
    yield from _joined(_image(folder, number) for number in range(first, stop))
    yield b'], "annotations": ['
    yield from _joined(_thing(number, n) for number in range(first, stop) for n in range(THINGS))
    yield b"]}"


def _image(folder: str, number: int) -> dict[str, Any]:
    name = f"COCO_{folder}_{number:012d}.jpg"
    url = f"http://images.cocodataset.org/{folder}/{name}"
    return {"license": 4, "file_name": name, "coco_url": url, "height": 480, "width": 640, "id": number}


def _thing(number: int, n: int) -> dict[str, Any]:
    outline = [round(0.37 * ((number * 31 + n * 17 + place) % 1700), 2) for place in range(40)]
    kind = 1 + (number * 7 + n * n * 13) % CATEGORIES
    box = [10.5, 20.25, 100.0, 80.75]
    return {
        "segmentation": [outline],
        "area": 702.1,
        "iscrowd": 0,
        "image_id": number,
        "bbox": box,
        "category_id": kind,
        "id": THINGS * number + n,
    }


def _joined(records: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    for place, record in enumerate(records):
        yield (", " if place else "").encode() + json.dumps(record).encode()


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


if __name__ == "__main__":
    spent = _parse(Path(sys.argv[2])) if sys.argv[1] == "parse" else _expand()
    print(round(spent, 2), round(_peak_mb(), 1))
