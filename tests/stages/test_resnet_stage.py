"""The resnet stage: pictures of the generated world, sealed, become a store; what is missing or broken is counted."""

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from pipelines.demo.coco import Picture, pictures, write
from pipelines.demo.world import World
from pipelines.engine.building import Worker, build, pending, serial
from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.engine.stage_kind import Pairs
from pipelines.engine.typed_settings import parse_settings
from pipelines.fetching.sealing import Sealed
from pipelines.stages.resnet import ResNetConfig
from tests.conftest import tree_digest
from tests.made import resnet
from tests.media.test_vision import named_state, pixels
from xmodal.errors import UserError
from xmodal.features.networks import load
from xmodal.features.store import FeatureStore
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import LOCK, Locked, blob_key
from xmodal.root.storage import Storage, open_storage

WORLD = World(items=20, image_size=64)
TINY = ResNetConfig("resnet18", "random:0", resize=64, crop=64, batch_size=4, rows_per_shard=8)


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("world")
    write(WORLD, folder)
    return {f"zips/{name}.zip": (folder / f"zips/{name}.zip").read_bytes() for name in ("train2014", "val2014")}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


def media_of(picture: Picture) -> str:
    return f"zips/{picture.folder}.zip!{picture.folder}/{picture.filename}"


ITEMS: Pairs = tuple(sorted((str(picture.cocoid), media_of(picture)) for picture in pictures(WORLD)))


def sealed(storage: Storage, files: Mapping[str, bytes | None], name: str = "world") -> Output:
    """A media set of these files; None is one that was sealed as absent."""
    lock = b""
    for path, data in sorted(files.items()):
        sha256 = None if data is None else hashlib.sha256(data).hexdigest()
        if data is not None and sha256 is not None:
            storage.write(blob_key(sha256), data)
        lock += Locked(path, len(data or b""), sha256).line()

    def write_lock(work: None, sink: Sink) -> Counts:
        with sink.file(LOCK) as file:
            file.write(lock)
        return {}

    config = Sealed(name, "these", hashlib.sha256(lock).hexdigest())
    return build(Stage("media", config, lambda c, i: iter([("lock", None)]), lambda c, i: write_lock), storage)


def changed(archive: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The archive with other members; None leaves one out."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def test_the_features_are_those_of_the_network(storage: Storage, archives: dict[str, bytes]) -> None:
    output = build(resnet(sealed(storage, archives), ITEMS, TINY), storage)
    store = FeatureStore(output)
    assert store.ids == tuple(id for id, _ in ITEMS)
    assert not store.absent
    with zipfile.ZipFile(io.BytesIO(archives["zips/val2014.zip"])) as archive:
        data = {f"zips/val2014.zip!{name}": archive.read(name) for name in archive.namelist()}
    extractor = load(TINY)
    for id, media in ITEMS:
        if media in data:
            alone = extractor(pixels(data[media], TINY)[None])
            np.testing.assert_allclose(store.read([id]), alone, rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(
        zarr.open_array(f"{output.where}/{store.spec.name}", mode="r")[...], store.take(range(20))
    )


def test_the_store_says_what_made_it(storage: Storage, archives: dict[str, bytes]) -> None:
    output = build(resnet(sealed(storage, archives), ITEMS, TINY), storage)
    provenance = zarr.open_group(output.where, mode="r").attrs["provenance"]
    assert isinstance(provenance, dict)
    told = {"network": "resnet18", "weights": "random:0", "output": "grid", "dtype": "float16", "batch_size": 4}
    assert told.items() <= provenance.items()
    assert provenance["preprocessing"] == FeatureStore(output).provenance["preprocessing"]
    assert {"resize": 64, "crop": 64, "interpolation": "bilinear"}.items() <= provenance["preprocessing"].items()
    assert provenance["weights_sha256"] == load(TINY).weights_sha256
    assert provenance["versions"].keys() == {"pillow", "torch", "torchvision", "xmodal"}
    assert output.totals["counts"] == {"rows": 20}
    assert output.config["network"] == "resnet18"


@pytest.mark.parametrize("changes", [{"output": "pooled"}, {"dtype": "float32"}, {"crop": 32, "rows_per_shard": 4}])
def test_what_the_config_asks_for(storage: Storage, archives: dict[str, bytes], changes: dict[str, Any]) -> None:
    config = replace(TINY, **changes)
    store = FeatureStore(build(resnet(sealed(storage, archives), ITEMS[:6], config), storage))
    assert store.spec == replace(config.spec, rows_per_chunk=config.spec.chunk_rows)
    assert store.take(range(6)).shape == (6, *config.spec.row_shape)


def backwards(
    open_worker: Callable[[], Worker], units: Iterator[tuple[str, Any]], resources: Resources
) -> Iterator[Any]:
    return serial(open_worker, iter(list(units)[::-1]), resources)


def by_turns(
    open_worker: Callable[[], Worker], units: Iterator[tuple[str, Any]], resources: Resources
) -> Iterator[Any]:
    """Two workers, each with a network of its own."""
    planned = list(units)
    return chain(*(serial(open_worker, iter(planned[first::2]), resources) for first in (0, 1)))


def test_workers_and_their_order_change_no_byte(tmp_path: Path, archives: dict[str, bytes]) -> None:
    threads, trees = torch.get_num_threads(), set()
    for number, run in enumerate((serial, backwards, by_turns)):
        storage = open_storage(str(tmp_path / str(number)))
        media = sealed(storage, broken(archives))
        build(resnet(media, ITEMS, TINY), storage, run)
        trees.add(tree_digest(storage.url))
        torch.set_num_threads(2)
    torch.set_num_threads(threads)
    assert len(trees) == 1


BROKEN, ABSENT = ITEMS[3], ITEMS[9]


def broken(archives: dict[str, bytes]) -> dict[str, bytes]:
    """One picture is cut off, and one is not in its archive."""

    def change(name: str, data: bytes) -> bytes | None:
        if ABSENT[1].endswith(name):
            return None
        return data[:300] if BROKEN[1].endswith(name) else data

    return {path: changed(archive, change) for path, archive in archives.items()}


def test_pictures_that_are_broken_or_absent_are_counted_and_refused(
    storage: Storage, archives: dict[str, bytes]
) -> None:
    whole = FeatureStore(build(resnet(sealed(storage, archives), ITEMS, TINY), storage))
    output = build(resnet(sealed(storage, broken(archives)), ITEMS, TINY), storage)
    assert output.totals["failures"] == {"absent": 1, "unreadable": 1}
    failures = {row: (kind, reason) for unit in output.units() for row, kind, reason in unit.failures}
    assert failures[BROKEN[0]][0] == "unreadable"
    assert "Truncated" in failures[BROKEN[0]][1]
    assert failures[ABSENT[0]] == ("absent", ABSENT[1].replace("!", " has no member "))
    store = FeatureStore(output)
    assert store.absent == {BROKEN[0], ABSENT[0]}
    with pytest.raises(UserError, match=f"has no features of '{BROKEN[0]}'"):
        store.read([ITEMS[0][0], BROKEN[0]])
    others = [id for id, _ in ITEMS if id not in store.absent]
    np.testing.assert_array_equal(store.read(others), whole.read(others))
    values = np.asarray(zarr.open_array(f"{output.where}/{store.spec.name}", mode="r")[...])
    assert not values[[3, 9]].any()


def test_a_truncated_picture_has_a_row_and_is_told(storage: Storage, archives: dict[str, bytes]) -> None:
    """Two thirds of it are there; the others of its batch are as they were."""
    short, others = ITEMS[5], [id for id, _ in ITEMS if id != ITEMS[5][0]]

    def shortened(name: str, data: bytes) -> bytes:
        return data[: len(data) * 2 // 3] if short[1].endswith(name) else data

    files = {path: changed(archive, shortened) for path, archive in archives.items()}
    output = build(resnet(sealed(storage, files), ITEMS, TINY), storage)
    assert output.totals["failures"] == {"truncated": 1}
    assert output.totals["counts"] == {"rows": 20}
    assert [(row, kind) for unit in output.units() for row, kind, _ in unit.failures] == [(short[0], "truncated")]
    store, whole = FeatureStore(output), FeatureStore(build(resnet(sealed(storage, archives), ITEMS, TINY), storage))
    assert not store.absent
    np.testing.assert_array_equal(store.read(others), whole.read(others))
    row = store.read([short[0]])
    assert np.isfinite(row).all()
    assert row.any()
    assert (row != whole.read([short[0]])).any()


def test_a_whole_archive_may_be_absent(storage: Storage, archives: dict[str, bytes]) -> None:
    media = sealed(storage, {"zips/train2014.zip": None, "zips/val2014.zip": archives["zips/val2014.zip"]})
    store = FeatureStore(build(resnet(media, ITEMS, TINY), storage))
    assert store.absent == {id for id, media in ITEMS if media.startswith("zips/train2014.zip")}


def test_a_damaged_archive_stops_the_stage(storage: Storage, archives: dict[str, bytes]) -> None:
    media = sealed(storage, archives | {"zips/val2014.zip": archives["zips/val2014.zip"][:2000]})
    with pytest.raises(UserError, match=r"zips/val2014\.zip is damaged .*fetch it again"):
        build(resnet(media, ITEMS, TINY), storage)


def test_a_later_seal_redoes_only_the_shards_that_it_changes(storage: Storage, archives: dict[str, bytes]) -> None:
    with zipfile.ZipFile(io.BytesIO(archives["zips/train2014.zip"])) as archive:
        files: dict[str, bytes | None] = {name: archive.read(name) for name in sorted(archive.namelist())}
    items = tuple((path, path) for path in files)
    late = items[10][0]
    before = build(resnet(sealed(storage, files | {late: None}), items, TINY), storage)
    assert FeatureStore(before).absent == {late}
    log = Log()
    after = build(log.watch(resnet(sealed(storage, files), items, TINY)), storage)
    assert log.done == ["ArrayShard of 4"]
    assert FeatureStore(after).absent == frozenset()
    assert before.identity != after.identity


class Log:
    def __init__(self) -> None:
        self.done: list[str] = []

    def watch(self, stage: Stage[Any, Any]) -> Stage[Any, Any]:
        def opened(config: Any, inputs: Inputs) -> Callable[[Any, Sink], Counts]:
            do = stage.open(config, inputs)

            def write(work: Any, sink: Sink) -> Counts:
                self.done.append(f"{type(work).__name__} of {len(work.ids)}")
                return do(work, sink)

            return write

        return replace(stage, open=opened)


def test_weights_are_known_by_their_checksum(storage: Storage, archives: dict[str, bytes], tmp_path: Path) -> None:
    torch.save(dict(named_state(load(replace(TINY, weights="random:7")).trunk)), tmp_path / "here.pth")
    (tmp_path / "there.pth").write_bytes((tmp_path / "here.pth").read_bytes())
    media = sealed(storage, archives)
    here, there = (resnet(media, ITEMS, TINY, tmp_path / name) for name in ("here.pth", "there.pth"))
    assert here.identity == there.identity != resnet(media, ITEMS, TINY).identity
    from_file = FeatureStore(build(here, storage))
    seeded = FeatureStore(build(resnet(media, ITEMS, replace(TINY, weights="random:7")), storage))
    np.testing.assert_array_equal(from_file.take(range(20)), seeded.take(range(20)))
    assert str(from_file.provenance["weights"]) == f"sha256:{from_file.provenance['weights_sha256']}"


def test_what_decides_an_identity(storage: Storage, archives: dict[str, bytes]) -> None:
    media = sealed(storage, archives)
    stages = [resnet(media, ITEMS, TINY), resnet(media, ITEMS[1:], TINY)]
    for changes in ({"weights": "random:1"}, {"resize": 72}, {"batch_size": 5}, {"rows_per_shard": 4}):
        stages.append(resnet(media, ITEMS, replace(TINY, **changes)))
    assert len({stage.identity for stage in stages}) == len(stages)
    assert resnet(media, tuple(ITEMS), replace(TINY)).identity == stages[0].identity
    assert pending(stages[0], storage) == (4, 4)


@pytest.mark.parametrize("items", [ITEMS[::-1], (ITEMS[0], ITEMS[0])])
def test_items_ascend_and_come_once(storage: Storage, archives: dict[str, bytes], items: Pairs) -> None:
    with pytest.raises(AssertionError, match=r"items ascend by id and have one row each, but '\d+' comes too late"):
        resnet(sealed(storage, archives), items, TINY)


def test_no_items_make_an_empty_store(storage: Storage, archives: dict[str, bytes]) -> None:
    assert len(FeatureStore(build(resnet(sealed(storage, archives), (), TINY), storage))) == 0


def test_the_command_line_can_set_what_decides() -> None:
    texts = ["weights=random:3", "network=resnet50", "rows_per_shard=128", "resnet.crop=96"]
    settings = parse_settings(texts, {"resnet": ResNetConfig()})
    assert settings == {
        "resnet.weights": "random:3",
        "resnet.network": "resnet50",
        "resnet.rows_per_shard": 128,
        "resnet.crop": 96,
    }
    for text, message in (("items=x", "no setting 'items'"), ("network=vgg", "not one of resnet18")):
        with pytest.raises(UserError, match=message):
            parse_settings([text], {"resnet": ResNetConfig()})
    with pytest.raises(ValueError, match="does not fill whole pages"):
        ResNetConfig("resnet18", "random:0", output="pooled", rows_per_shard=3)
