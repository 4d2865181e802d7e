"""The pixels stage: every picture a square of bytes, the same by any number of workers; what is missing is counted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image
from torchvision import transforms  # type: ignore[import-untyped]

from pipelines.engine.building import build, serial
from pipelines.engine.ray_runner import RayRunner
from pipelines.engine.typed_settings import parse_settings
from pipelines.stages.pixels import PixelsConfig
from tests.conftest import tree_digest
from tests.made import pixels, resnet
from tests.media.test_vision import PICTURE, encoded
from tests.stages.test_resnet_stage import ABSENT, BROKEN, ITEMS, TINY, backwards, broken, sealed
from tests.stages.test_resnet_stage import archives as archives
from tests.stages.test_resnet_stage import storage as storage
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.media.images import open_image
from xmodal.root.storage import Storage, open_storage

SMALL = PixelsConfig(side=32, rows_per_shard=8)
SIZES = [(96, 71), (71, 96), (64, 64), (333, 500), (30, 20), (65, 200), (32, 32)]


def test_a_row_is_the_middle_of_the_resized_picture(storage: Storage) -> None:
    files: dict[str, bytes | None] = {f"p{n}.png": encoded(PICTURE.resize(size)) for n, size in enumerate(SIZES)}
    files["p9.jpg"] = encoded(PICTURE.convert("L").resize((50, 40)), "JPEG")
    items = tuple((path, path) for path in sorted(files))
    output = build(pixels(sealed(storage, files), items, SMALL), storage)
    store = FeatureStore(output)
    assert (store.spec.row_shape, store.spec.dtype, store.spec.name) == ((32, 32, 3), "uint8", "pixels")
    cut = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32)])
    for path, data in files.items():
        np.testing.assert_array_equal(store.read([path])[0], np.asarray(cut(open_image(data or b""))))
    array = zarr.open_array(f"{output.where}/pixels", mode="r")
    np.testing.assert_array_equal(array[...], store.take(range(len(items))))


def test_the_store_says_how_its_pictures_were_cut(storage: Storage, archives: dict[str, bytes]) -> None:
    told = FeatureStore(build(pixels(sealed(storage, archives), ITEMS, SMALL), storage)).provenance
    assert told["preprocessing"] == {"resize": 32, "crop": 32, "interpolation": "bilinear", "colours": "RGB"}
    assert told["versions"].keys() == {"pillow", "xmodal"}


def test_pictures_that_are_broken_or_absent_are_counted_and_refused(
    storage: Storage, archives: dict[str, bytes]
) -> None:
    output = build(pixels(sealed(storage, broken(archives)), ITEMS, SMALL), storage)
    assert output.totals["failures"] == {"absent": 1, "unreadable": 1}
    assert output.totals["counts"] == {"rows": 18}
    store = FeatureStore(output)
    assert store.absent == {BROKEN[0], ABSENT[0]}
    with pytest.raises(UserError, match=f"has no features of '{ABSENT[0]}'"):
        store.read([ABSENT[0]])
    values = np.asarray(zarr.open_array(f"{output.where}/pixels", mode="r")[...])
    assert [row for row in range(20) if not values[row].any()] == [3, 9]


@pytest.mark.usefixtures("ray_cluster")
def test_workers_and_their_order_change_no_byte(tmp_path: Path, archives: dict[str, bytes]) -> None:
    trees = set()
    for number, run in enumerate((serial, backwards, RayRunner(1), RayRunner(2))):
        storage = open_storage(str(tmp_path / str(number)))
        build(pixels(sealed(storage, broken(archives)), ITEMS, SMALL), storage, run)
        trees.add(tree_digest(storage.url))
    assert len(trees) == 1


def test_a_later_seal_redoes_only_the_shards_that_it_changes(tmp_path: Path) -> None:
    files: dict[str, bytes | None] = {f"p{n:02d}": encoded(Image.new("RGB", (40, 32), (n, 0, 0))) for n in range(20)}
    items = tuple((path, path) for path in files)
    storage = open_storage(str(tmp_path / "root"))
    before = build(pixels(sealed(storage, files | {"p10": None}), items, SMALL), storage)
    stage, done = pixels(sealed(storage, files), items, SMALL), list[int]()

    def counted(config: PixelsConfig, inputs: object) -> object:
        do = stage.open(config, inputs)  # type: ignore[arg-type]
        return lambda work, sink: (done.append(work.first), do(work, sink))[1]

    after = build(replace(stage, open=counted), storage)  # type: ignore[arg-type]
    assert done == [8]
    assert (FeatureStore(before).absent, FeatureStore(after).absent) == ({"p10"}, frozenset())


def test_a_shard_of_another_store_is_refused(tmp_path: Path, archives: dict[str, bytes]) -> None:
    """One of the same layout and length, in the same place, whose own checksums are right."""
    files = []
    for number in range(2):
        storage = open_storage(str(tmp_path / str(number)))
        items = [(f"{number}{id}", media) for id, media in ITEMS]
        output = build(pixels(sealed(storage, archives), items, SMALL), storage)
        files.append(Path(output.where, "pixels/c/1/0/0/0"))
    files[1].write_bytes(files[0].read_bytes())
    store = FeatureStore(output)
    store.take([7])
    with pytest.raises(UserError, match="pixels/c/1/0/0/0 is damaged"):
        store.take([8])


def test_features_and_pixels_of_the_same_items_have_the_same_rows(storage: Storage, archives: dict[str, bytes]) -> None:
    media = sealed(storage, broken(archives))
    features = FeatureStore(build(resnet(media, ITEMS, TINY), storage))
    squares = FeatureStore(build(pixels(media, ITEMS, SMALL), storage))
    assert (features.ids, features.absent) == (squares.ids, squares.absent)


def test_what_can_be_set() -> None:
    configs = {"resnet": TINY, "pixels": SMALL}
    settings = parse_settings(["side=64", "pixels.rows_per_shard=4"], configs)
    assert settings == {"pixels.side": 64, "pixels.rows_per_shard": 4}
    with pytest.raises(UserError, match=r"say which one: resnet\.rows_per_shard, pixels\.rows_per_shard"):
        parse_settings(["rows_per_shard=4"], configs)
    for changes, message in (({"side": 0}, "at least 1 pixel"), ({"rows_per_shard": 3}, "does not fill whole pages")):
        with pytest.raises(ValueError, match=message):
            replace(SMALL, **changes)


def test_a_side_is_another_identity(storage: Storage, archives: dict[str, bytes]) -> None:
    media = sealed(storage, archives)
    stages = [pixels(media, ITEMS, SMALL), pixels(media, ITEMS[1:], SMALL), pixels(media, ITEMS, PixelsConfig(side=64))]
    assert len({stage.identity for stage in stages}) == 3
    with pytest.raises(AssertionError, match=r"items ascend by id .* but '\d+' comes too late"):
        pixels(media, ITEMS[::-1], SMALL)
