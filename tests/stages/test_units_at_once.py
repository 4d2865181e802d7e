"""A worker with a GPU does several units at once, in threads that share its network: bytes are those of one thread."""

import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from pipelines.engine.building import OpenWorker, Runner, Units, build
from pipelines.engine.commits import Record
from pipelines.engine.picture_decoder import PictureDecoder, SquareDecoder
from pipelines.engine.stage import Resources, Stage
from pipelines.engine.stage_kind import Needs
from pipelines.stage_forms.media_stages import PictureExtractor, picture_stage
from pipelines.stages.pixels import PixelsConfig
from pipelines.stages.resnet import ResNetConfig
from tests.conftest import tree_digest
from tests.made import clips, frames, resnet
from tests.stages.test_deadlines import many_scans, photograph
from tests.stages.test_growing_lists import CLIPS, FRAMES, clip
from tests.stages.test_resnet_stage import sealed
from xmodal.records.tables import Item
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

THREADS = 4
SECONDS = 60  # until a test gives up
SMALL = ResNetConfig("resnet18", "random:0", resize=32, crop=32, batch_size=3, rows_per_shard=8, deadline=2.0)
SIDE = 32

Rows = Callable[[NDArray[Any]], NDArray[Any]]


def at_once(open_worker: OpenWorker, units: Units, resources: Resources) -> Iterator[Record]:
    worker = open_worker()
    with ThreadPoolExecutor(THREADS) as threads:
        for records in threads.map(lambda unit: worker([unit]), list(units)):
            yield from records


def spoilt() -> dict[str, bytes]:
    """One picture is cut, one none, and one takes for ever."""
    return {"05.jpg": photograph(5)[:-400], "11.jpg": b"<html>", "18.jpg": many_scans(3000)}


def media_of(others: dict[str, bytes]) -> dict[str, bytes]:
    """Photographs and others, half of them in a zip."""
    pictures = {f"{number:02d}.jpg": photograph(number) for number in range(40)} | others
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
        for name in [*pictures][::2]:
            archive.writestr(zipfile.ZipInfo(name), pictures.pop(name))
    return pictures | {"even.zip": packed.getvalue()}


def listed(count: int) -> tuple[tuple[str, str], ...]:
    names = [f"{number:02d}.jpg" for number in range(count)]
    return tuple((name, name if number % 2 else f"even.zip!{name}") for number, name in enumerate(names))


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("in-turn"))
    build(resnet(sealed(open_storage(root), media_of(spoilt())), listed(43), SMALL), open_storage(root))
    return tree_digest(root)


def test_failures_and_bytes_are_those_of_one_thread(tmp_path: Path, in_turn: str) -> None:
    storage = open_storage(str(tmp_path))
    found = build(resnet(sealed(storage, media_of(spoilt())), listed(43), SMALL), storage, at_once)
    assert found.totals["failures"] == {"absent": 3, "timeout": 1, "truncated": 1, "unreadable": 1}
    assert tree_digest(storage.url) == in_turn


def test_rows_of_an_earlier_output_are_taken_over_by_all_threads(tmp_path: Path, in_turn: str) -> None:
    storage = open_storage(str(tmp_path / "grown"))
    media = sealed(storage, media_of(spoilt()))
    earlier = build(resnet(media, listed(40)[::2], SMALL), storage)
    build(resnet(media, listed(43), SMALL), storage, at_once)
    storage.delete_folder(earlier.folder)
    assert tree_digest(storage.url) == in_turn


def test_runs_of_clips_are_those_of_one_thread(tmp_path: Path) -> None:
    trees = set[str]()
    for number, run in enumerate((None, at_once)):
        storage = open_storage(str(tmp_path / str(number)))
        files = {f"{name:02d}.gif": clip(name) for name in range(14)} | {"07.gif": b"<html>"}
        items = tuple((name, name) for name in sorted(files))
        stage = clips(build(frames(sealed(storage, files), items, FRAMES), storage), CLIPS)
        build(stage, storage, *([run] if run else []))
        trees.add(tree_digest(storage.url))
    assert len(trees) == 1


def looking(
    media: Output, rows: Rows, decoder: PictureDecoder | None = None, watch: Callable[[], Any] = list
) -> Stage[Any, Any]:
    """A stage of rows of SIDE x SIDE pixels, whose network is `rows`; each picture that is decoded calls `watch`."""
    config = PixelsConfig(side=SIDE, rows_per_shard=8)
    needs = Needs({"media": media}, {}, lambda: tuple(Item(*item) for item in listed(40)))

    def opened(config: PixelsConfig) -> PictureExtractor:
        used = decoder or SquareDecoder(SIDE, SIDE, SECONDS)

        def see(data: bytes, cut: Callable[[str], None]) -> NDArray[Any]:
            seen = np.frombuffer(used.decode(data, cut), np.uint8)[-SIDE * SIDE * 3 :].reshape(SIDE, SIDE, 3)
            watch()
            return seen

        return PictureExtractor(see, lambda pictures: rows(np.stack(pictures)), 3, {}, used.expect)

    return picture_stage("looks", config, needs, 1, opened)


def mean(pixels: NDArray[Any]) -> NDArray[Any]:
    """Unlike a network's, rows that say with which others they were in a batch."""
    return np.broadcast_to(pixels.mean(0).astype(np.uint8), pixels.shape)


def built(folder: Path, rows: Rows = mean, run: Runner | None = None, **options: Any) -> str:
    storage = open_storage(str(folder))
    build(looking(sealed(storage, media_of({})), rows, **options), storage, *([run] if run else []))
    return tree_digest(storage.url)


def test_a_unit_alone_decides_which_pictures_are_a_batch(tmp_path: Path) -> None:
    assert built(tmp_path / "threads", run=at_once) == built(tmp_path / "one")


def test_others_are_decoded_while_the_network_computes_for_one(tmp_path: Path) -> None:
    computing, seen, at_work = threading.Event(), threading.Event(), threading.Lock()

    def rows(pixels: NDArray[Any]) -> NDArray[Any]:
        assert at_work.acquire(blocking=False), "two threads are at the network"
        computing.set()
        assert seen.wait(SECONDS), "nobody decodes meanwhile"
        sleep(0.1)  # in which others end their batches
        at_work.release()
        return mean(pixels)

    built(tmp_path, rows, at_once, watch=lambda: computing.is_set() and seen.set())
    assert seen.is_set()


def test_one_of_several_decoders_that_dies_costs_its_picture_at_most(tmp_path: Path) -> None:
    files = {f"{number:02d}.jpg": b"picture %d" % number for number in range(1, 40, 2)}
    files |= {"09.jpg": b"once 7", "17.jpg": b"always"}
    trees = set[str]()
    for number, options in enumerate(([], [at_once])):
        storage = open_storage(str(tmp_path / str(number)))
        decoder = PictureDecoder("tests.stages.decoders:stumble", [f"{tmp_path}/{number}.flag", 3 * SIDE**2], SECONDS)
        found = build(looking(sealed(storage, files), mean, decoder), storage, *options)
        failed = [(row, kind) for unit in found.units() for row, kind, _ in unit.failures if kind != "absent"]
        assert failed == [("17.jpg", "worker_died")]
        assert Path(f"{tmp_path}/{number}.flag").exists()
        trees.add(tree_digest(storage.url))
    assert len(trees) == 1


def test_threads_and_decoders_are_of_use_after_a_unit_that_raises(tmp_path: Path) -> None:
    """In the middle of a unit, when a picture has been sent ahead: all others are whole, and so is that unit later."""
    batches, turn = 0, threading.Lock()

    def rows(pixels: NDArray[Any]) -> NDArray[Any]:
        nonlocal batches
        with turn:
            batches += 1
            if batches % 4 == 2:
                raise MemoryError
        return mean(pixels)

    def again(open_worker: OpenWorker, units: Units, resources: Resources) -> Iterator[Record]:
        worker = open_worker()

        def patient(unit: tuple[str, Any]) -> list[Record]:
            while True:
                with suppress(MemoryError):
                    return worker([unit])

        with ThreadPoolExecutor(THREADS) as threads:
            for records in threads.map(patient, list(units)):
                yield from records

    assert built(tmp_path / "raising", rows, again) == built(tmp_path / "one")
    assert batches > 40 / 3


def test_a_unit_that_raises_ends_the_build_and_the_next_goes_on(tmp_path: Path) -> None:
    calls = iter(range(1000))

    def rows(pixels: NDArray[Any]) -> NDArray[Any]:
        if next(calls) == 8:
            raise ZeroDivisionError
        return mean(pixels)

    with pytest.raises(ZeroDivisionError) as caught:
        built(tmp_path / "twice", rows, at_once)
    assert "of stage looks" in caught.value.__notes__[0]
    assert built(tmp_path / "twice", run=at_once) == built(tmp_path / "one")


def test_a_decoder_ends_with_its_thread() -> None:
    decoder = SquareDecoder(SIDE, SIDE, SECONDS)
    pids = list[int]()

    def look() -> None:
        decoder.pixels(photograph(0))
        pids.append(decoder._worker.pid)

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    kept, ended = pids
    with suppress(psutil.NoSuchProcess):
        psutil.Process(ended).wait(SECONDS)
    assert not psutil.pid_exists(ended)
    assert psutil.pid_exists(kept)
