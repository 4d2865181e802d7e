"""Import and export: what comes back is what was there, in every format, and what others send may be anything."""

import io
import json
import pickle
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import xmodal
from pipelines import stages
from pipelines.cli import main
from pipelines.engine.building import build, serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.publishing.feature_export import export_features
from pipelines.publishing.feature_import import import_features
from tests.commands.test_cli import Said
from tests.conftest import tree_digest
from tests.toy_root import make_root
from tests.toy_stages import ARRAYS, Arrays, array_values, arrays
from xmodal.errors import UserError
from xmodal.features.foreign_formats import open_foreign
from xmodal.features.store import FeatureStore
from xmodal.root.identity import fingerprint
from xmodal.root.storage import open_storage

h5py = pytest.importorskip("h5py")

QUIET = ProgressLine(quiet=True)
FORMATS = ("x.npy", "x.h5", "x.tar", "folder")
IDS = [f"i{n:05d}" for n in range(Arrays().items) if n != 99]  # that one is absent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A finished output with fixed and ragged arrays of several dtypes, and an absent item."""
    return build(arrays(Arrays()), open_storage(str(tmp_path_factory.mktemp("made")))).where


def export(features: str, out: Path, array: str | None = None, ids: Path | None = None) -> dict[str, Any]:
    return export_features(features, out, array, ids, None, None, QUIET)


def bring_in(path: Path, root: Path, *settings: str, run: Any = serial, **more: Any) -> FeatureStore:
    about = import_features(open_storage(str(root)), "mine", open_foreign(path, **more), settings, run, QUIET)
    return FeatureStore(about["path"])


def npy_of(values: NDArray[Any], allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=allow_pickle)
    return file.getvalue()


def tar_of(path: Path, members: dict[str, bytes], **about: Any) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in about.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(data))
    return path


def some_rows(items: int = 6, *shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(items, *(shape or (8,)))).astype("float32")


def array_with_ids(folder: Path, values: NDArray[Any], ids: list[str] | None = None, name: str = "x.npy") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(npy_of(values))
    names = [f"p{n}" for n in range(len(values))] if ids is None else ids
    (folder / f"{Path(name).stem}_ids.txt").write_text("".join(f"{id}\n" for id in names))
    return folder / name


# ---------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("spec", ARRAYS, ids=lambda spec: f"{spec.name}-{spec.dtype}")
@pytest.mark.parametrize("out", FORMATS)
def test_what_is_exported_and_imported_is_what_was_there(made: str, tmp_path: Path, spec: Any, out: str) -> None:
    path = tmp_path / out
    if spec.ragged and path.suffix == ".npy":
        with pytest.raises(UserError, match=r"ragged.*x\.h5, x\.tar or a folder"):
            export(made, path, spec.name)
        assert list(tmp_path.iterdir()) == []
        return
    about = export(made, path, spec.name)
    assert (about["items"], about["absent"], about["dtype"]) == (159, 1, spec.dtype)
    store = bring_in(path, tmp_path / "root")
    assert (sorted(store.ids), store.spec.dtype, store.spec.ragged) == (IDS, spec.dtype, spec.ragged)
    assert store.spec.row_shape == spec.row_shape
    empty = {id for id in IDS if spec.ragged and not len(array_values(spec, int(id[1:])))}
    assert store.absent == empty
    there = [id for id in IDS if id not in empty]
    for id, rows in zip(there, store.read(there), strict=True):
        np.testing.assert_array_equal(rows if spec.ragged else rows[None], array_values(spec, int(id[1:])))


def test_exports_are_as_their_own_readers_expect_them(made: str, tmp_path: Path) -> None:
    for out in FORMATS:
        export(made, tmp_path / out, "boxes")
    spec = next(spec for spec in ARRAYS if spec.name == "boxes")
    expected = np.concatenate([array_values(spec, int(id[1:])) for id in IDS])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert mapped.dtype == np.float32
    np.testing.assert_array_equal(mapped, expected)
    assert (tmp_path / "x_ids.txt").read_text().split() == IDS
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["features"][()], expected)
        assert [id.decode() for id in file["ids"][()]] == IDS
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert archive.getnames() == [f"{id}.npy" for id in IDS]
    with np.load(tmp_path / "folder/i00003.npz") as item:
        np.testing.assert_array_equal(item["features"], expected[3])
    assert {path.name for path in tmp_path.iterdir()} == {*FORMATS, "x_ids.txt"}, "nothing temporary is left"


def test_an_export_of_some_ids_keeps_their_order_and_counts_the_absent(made: str, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("i00042\ni00099\r\ni00007\n")
    about = export(made, tmp_path / "x.npy", "regions", ids=tmp_path / "some.txt")
    assert (about["items"], about["absent"]) == (2, 1)
    assert (tmp_path / "x_ids.txt").read_text() == "i00042\ni00007\n"
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy")[0], array_values(ARRAYS[0], 42)[0])
    (tmp_path / "some.txt").write_text("i00042\nnobody\n")
    with pytest.raises(UserError, match="has no row for 'nobody'"):
        export(made, tmp_path / "y.npy", "regions", ids=tmp_path / "some.txt")


def test_an_export_of_a_damaged_store_leaves_nothing(tmp_path: Path) -> None:
    store = bring_in(array_with_ids(tmp_path / "a", some_rows(600, 64)), tmp_path / "root")
    shard = Path(store.output.where, "features/c/0/0")
    data = bytearray(shard.read_bytes())
    data[150_000] ^= 1
    shard.write_bytes(data)
    (tmp_path / "out").mkdir()
    for out in FORMATS:
        with pytest.raises(UserError, match=r"features/c/0/0 is damaged"):
            export(store.output.where, tmp_path / "out" / out)
        assert list((tmp_path / "out").iterdir()) == []


def test_an_export_never_replaces_anything(made: str, tmp_path: Path) -> None:
    (tmp_path / "x_ids.txt").write_text("mine")
    with pytest.raises(UserError, match=r"x_ids\.txt is there already"):
        export(made, tmp_path / "x.npy", "regions")
    for out in FORMATS[1:]:
        (tmp_path / out).write_text("mine")
        with pytest.raises(UserError, match="is there already"):
            export(made, tmp_path / out, "regions")
        assert (tmp_path / out).read_text() == "mine"
    with pytest.raises(UserError, match=r"no folder .*nowhere to write x\.h5 to: make it, or give another name"):
        export(made, tmp_path / "nowhere/x.h5", "regions")


@pytest.mark.parametrize(
    "id", ["..", "../a", "/a", "a//b", "a/", "a/../b", "a/.h", ".hidden", "a\\b", "a\nb", "l" * 252, f"{'l' * 256}/a"]
)
def test_an_id_that_is_no_safe_file_name_is_refused_by_name(id: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["features"], file["ids"] = some_rows(2), np.array(["a", id], object)
    store = bring_in(tmp_path / "x.h5", tmp_path / "root")
    for out in ("x.tar", "folder"):
        with pytest.raises(UserError, match=r"^id '(a|l|\.|/)[^ ]*' cannot be written to"):
            export(store.output.where, tmp_path / out)
        assert not (tmp_path / out).exists()
    export(store.output.where, tmp_path / "y.h5")


def test_ids_with_dots_are_not_written_to_a_tar(tmp_path: Path) -> None:
    """To who reads it photo.jpg and photo.png would be one sample."""
    source = array_with_ids(tmp_path / "a", some_rows(3), ["plain", "photo.jpg", "photo.png"])
    made = bring_in(source, tmp_path / "root").output.where
    cure = r"export to x\.h5, x\.npy or a folder, as readers"
    with pytest.raises(UserError, match=rf"^id 'photo\.jpg' cannot be written .* {cure}"):
        export(made, tmp_path / "x.tar")
    assert not (tmp_path / "x.tar").exists()
    for number, out in enumerate(("x.npy", "x.h5", "folder")):
        export(made, tmp_path / out)
        assert set(bring_in(tmp_path / out, tmp_path / f"root{number}").ids) == {"plain", "photo.jpg", "photo.png"}


def test_a_refused_id_is_told_the_formats_that_will_do(tmp_path: Path) -> None:
    """A ragged array is no .npy, and what has a dot at its start or a backslash is no file's name."""
    with h5py.File(tmp_path / "ragged.h5", "w") as file:
        file["features"], file["ids"] = some_rows(3), np.array(["a.jpg", "b.jpg"], object)
        file["offsets"] = np.array([0, 1, 3])
    made = bring_in(tmp_path / "ragged.h5", tmp_path / "root").output.where
    with pytest.raises(
        UserError, match=r"^id 'a\.jpg' cannot be written to .*: export to x\.h5 or a folder, as readers"
    ):
        export(made, tmp_path / "x.tar")
    made = bring_in(array_with_ids(tmp_path / "a", some_rows(2), ["a", "b\\c"]), tmp_path / "flat").output.where
    with pytest.raises(UserError, match=r"^id 'b.*c' cannot be written to .*x\.tar: export to x\.h5 or x\.npy$"):
        export(made, tmp_path / "x.tar")


@pytest.mark.parametrize("out", ["folder", "x.tar"])
def test_ids_with_slashes_are_files_in_folders_below(out: str, tmp_path: Path) -> None:
    ids = ["a", "b.d/c", "b/d/e"]
    made = bring_in(array_with_ids(tmp_path / "a", some_rows(3), ids), tmp_path / "root").output.where
    export(made, tmp_path / out)
    if out == "folder":
        assert (tmp_path / "folder/b/d/e.npz").is_file()
    store = bring_in(tmp_path / out, tmp_path / "other")
    assert sorted(store.ids) == ids
    np.testing.assert_array_equal(store.read(ids), some_rows(3))


# --------------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("layout", ["C", "F", "big endian", "Python 2"])
def test_an_array_is_read_however_numpy_wrote_it(layout: str, tmp_path: Path) -> None:
    values = some_rows(6, 3, 8)
    path = array_with_ids(tmp_path / "a", values)
    if layout == "F":
        path.write_bytes(npy_of(np.asfortranarray(values)))
    elif layout == "big endian":
        path.write_bytes(npy_of(values.astype(">f4")))
    elif layout == "Python 2":
        path.write_bytes(python_2(values))
    np.testing.assert_array_equal(bring_in(path, tmp_path / "root").read([f"p{n}" for n in range(6)]), values)


def python_2(values: NDArray[Any]) -> bytes:
    """The header that numpy wrote under Python 2, where a length could be a long integer."""
    shape = "(" + ", ".join(f"{n}L" for n in values.shape) + ")"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(128 - 10 - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + values.tobytes()


def test_of_five_copies_of_each_picture_one_is_kept(tmp_path: Path) -> None:
    values = some_rows(4, 36, 16)
    path = array_with_ids(tmp_path / "a", np.repeat(values, 5, axis=0), ["a", "b", "c", "d"])
    assert open_foreign(path).copies == 5
    np.testing.assert_array_equal(bring_in(path, tmp_path / "root").read(["d", "a"]), values[[3, 0]])
    other = np.repeat(values, 5, axis=0)
    other[13, 35, 15] += 1
    path.write_bytes(npy_of(other))
    with pytest.raises(UserError, match="the 5 rows of 'c' are not the same"):
        bring_in(path, tmp_path / "root")


def test_a_large_array_is_never_held_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.lib.format.open_memmap(path, "w+", "float16", (8192, 4, 1024))
    (tmp_path / "ids.txt").write_text("".join(f"{n}\n" for n in range(8192)))
    tracemalloc.start()
    try:
        store = bring_in(path, tmp_path / "root")
        export(store.output.where, tmp_path / "y.npy")
        assert tracemalloc.get_traced_memory()[1] < 32e6 < path.stat().st_size
    finally:
        tracemalloc.stop()


def test_float64_becomes_float32_and_what_is_not_finite_is_named(tmp_path: Path) -> None:
    values = some_rows().astype("float64")
    path = array_with_ids(tmp_path / "a", values)
    store = bring_in(path, tmp_path / "root")
    assert store.spec.dtype == "float32"
    np.testing.assert_array_equal(store.read(["p5"])[0], values[5].astype("float32"))
    for bad in (np.nan, np.inf, 1e300):
        values[4, 2] = bad
        path.write_bytes(npy_of(values))
        with pytest.raises(UserError, match=r"/x\.npy: the features of 'p4' are NaN or infinite"):
            bring_in(path, tmp_path / "root")
    tar = tar_of(tmp_path / "x.tar", {"a.npy": npy_of(values[0]), "b.npy": npy_of(values[4])})
    with pytest.raises(UserError, match=r"/x\.tar: the features of 'b' are"):
        bring_in(tar, tmp_path / "root")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["features"], file["ids"], file["offsets"] = values, ["a", "b", "c"], [0, 2, 5, 6]
    with pytest.raises(UserError, match=r"/x\.h5: the features of 'b' are"):
        bring_in(tmp_path / "x.h5", tmp_path / "root")


def test_a_zarr_array_of_others_is_read(tmp_path: Path) -> None:
    values = some_rows(6, 3, 8)
    zarr.create_array(str(tmp_path / "z"), data=values, chunks=(2, 3, 8))
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\ne\nf")
    store = bring_in(tmp_path / "z", tmp_path / "root", ids=tmp_path / "ids.txt")
    np.testing.assert_array_equal(store.read(["f", "a"]), values[[5, 0]])


@pytest.mark.parametrize(
    ("name", "separator", "file"), [("default", "/", "c/1/0"), ("default", ".", "c.1.0"), ("v2", ".", "1.0")]
)
def test_a_zarr_array_of_others_that_lost_a_file_is_refused(
    name: Any, separator: Any, file: str, tmp_path: Path
) -> None:
    """Also where another file lies in its place: what is not there would be read as zeros."""
    encoding = {"name": name, "separator": separator}
    zarr.create_array(str(tmp_path / "z"), data=some_rows(6, 3), chunks=(2, 3), chunk_key_encoding=encoding)
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\ne\nf")
    assert len(open_foreign(tmp_path / "z", tmp_path / "ids.txt").ids) == 6
    lost = tmp_path / "z" / file
    lost.rename(lost.with_name(".DS_Store"))
    with pytest.raises(UserError, match=f"z has no file {file}: what is not there would be read as zeros"):
        open_foreign(tmp_path / "z", tmp_path / "ids.txt")


@pytest.mark.parametrize("rows", [64, 57])
def test_a_zarr_array_of_others_with_half_a_shard_is_refused(rows: int, tmp_path: Path) -> None:
    """As whoever writes it leaves it, who stops before the last rows; chunks beyond the last row lack nothing."""
    about: dict[str, Any] = {"shape": (rows, 8), "chunks": (8, 8), "shards": (32, 8), "dtype": "float32"}
    array = zarr.create_array(str(tmp_path / "z"), compressors=None, filters=None, **about)
    (tmp_path / "ids.txt").write_text("".join(f"{n}\n" for n in range(rows)))
    values = some_rows(rows)
    array[:40] = values[:40]
    with pytest.raises(UserError, match="z/c/1/0 was never written as a whole: what it lacks would be read as zeros"):
        open_foreign(tmp_path / "z", tmp_path / "ids.txt")
    array[40:] = values[40:]
    store = bring_in(tmp_path / "z", tmp_path / "root", ids=tmp_path / "ids.txt")
    np.testing.assert_array_equal(store.read(store.ids), values)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: [],
        lambda about: about | {"shape": "64"},
        lambda about: about | {"chunk_grid": None},
        lambda about: about | {"chunk_key_encoding": None},
        lambda about: about | {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 3]}}},
    ],
)
def test_a_zarr_array_that_is_described_oddly_is_refused(change: Callable[[Any], Any], tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "z"), data=some_rows(6, 3), chunks=(2, 3))
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\ne\nf")
    about = tmp_path / "z/zarr.json"
    about.write_text(json.dumps(change(json.loads(about.read_text()))))
    with pytest.raises(UserError, match=r"zarr\.json describes no array|z/zarr\.json"):
        open_foreign(tmp_path / "z", tmp_path / "ids.txt")


@pytest.mark.parametrize(
    ("ids", "said"), [(np.int64(7), "6 rows, but there are 1 ids"), (None, "dataset ids is empty")]
)
def test_hdf5_with_odd_ids_is_refused(ids: Any, said: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["ids"] = some_rows(), h5py.Empty("i8") if ids is None else ids
    with pytest.raises(UserError, match=said):
        open_foreign(tmp_path / "x.h5")


def test_hdf5_is_read_by_key_with_numbers_as_ids(tmp_path: Path) -> None:
    values = some_rows()
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["deep/features"], file["deep/boxes"] = values, some_rows(seed=1)
        file["image_ids"] = np.arange(10, 16)
    with pytest.raises(UserError, match=r"several arrays.*--key; there are: deep/boxes, deep/features"):
        open_foreign(tmp_path / "x.hdf5")
    store = bring_in(tmp_path / "x.hdf5", tmp_path / "root", key="deep/features")
    np.testing.assert_array_equal(store.read(["15", "10"]), values[[5, 0]])


def test_npz_files_are_read_by_key_or_by_their_only_wide_array(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    values = some_rows(2, 3, 8)
    for n in range(2):
        np.savez_compressed(tmp_path / f"f/{n}.npz", x=values[n], width=640, info=np.array("a picture"))
    assert open_foreign(tmp_path / "f").key == "x"
    np.testing.assert_array_equal(bring_in(tmp_path / "f", tmp_path / "root").read(["1", "0"]), values[::-1])
    for n in range(2):
        np.savez(tmp_path / f"f/{n}.npz", x=values[n], boxes=values[n][:, :4])
    with pytest.raises(UserError, match=r"f/0\.npz \(0\).*say which by --key; there are: boxes, x"):
        open_foreign(tmp_path / "f")
    np.testing.assert_array_equal(
        bring_in(tmp_path / "f", tmp_path / "root", key="boxes").read(["1"])[0], values[1, :, :4]
    )


def test_a_folder_of_tars_is_one_source_and_a_key_chooses_members(tmp_path: Path) -> None:
    values = some_rows(4)
    (tmp_path / "f").mkdir()
    for n in range(2):
        members = {f"./v{2 * n + i}.clip.npy": npy_of(values[2 * n + i]) for i in range(2)}
        tar_of(tmp_path / f"f/{n:05d}.tar", members | {f"v{n}.json": b"{}", f"v{n}.flow.npy": npy_of(values[:1])})
    store = bring_in(tmp_path / "f", tmp_path / "root", key="clip")
    assert store.ids == ("v0", "v1", "v2", "v3")
    np.testing.assert_array_equal(store.read(store.ids), values)


def test_of_several_arrays_a_sample_in_a_tar_one_is_chosen(tmp_path: Path) -> None:
    values = some_rows(4)
    members = {
        f"in/{n}.{name}.npy": npy_of(values[2 * n + i]) for n in range(2) for i, name in enumerate(("img", "txt"))
    }
    tar = tar_of(tmp_path / "x.tar", members)
    with pytest.raises(UserError, match="several arrays a sample, so say which by --key; there are: img, txt"):
        open_foreign(tar)
    store = bring_in(tar, tmp_path / "root", key="txt")
    assert store.ids == ("in/0", "in/1")
    np.testing.assert_array_equal(store.read(store.ids), values[1::2])
    both = tar_of(tmp_path / "y.tar", {"0.npy": npy_of(values[0]), "0.txt.npy": npy_of(values[1])})
    with pytest.raises(UserError, match="there are: npy, txt"):
        open_foreign(both)
    np.testing.assert_array_equal(bring_in(both, tmp_path / "root", key="npy").read(["0"])[0], values[0])


# ---------------------------------------------------------------------------------------------------- as a stage's work


def test_an_import_is_named_by_its_bytes_not_by_its_place(tmp_path: Path) -> None:
    first = bring_in(array_with_ids(tmp_path / "a", some_rows()), tmp_path / "root").output
    assert bring_in(array_with_ids(tmp_path / "b", some_rows()), tmp_path / "root").output.identity == first.identity
    others = [
        bring_in(array_with_ids(tmp_path / "c", some_rows(seed=1)), tmp_path / "root"),
        bring_in(array_with_ids(tmp_path / "d", some_rows(), list("abcdef")), tmp_path / "root"),
        bring_in(tmp_path / "a/x.npy", tmp_path / "root", "rows_per_shard=256"),
    ]
    assert len({first.identity, *(store.output.identity for store in others)}) == 4


def test_the_bytes_of_an_import_are_those_of_its_version(tmp_path: Path) -> None:
    """Where this fails, either the change was not meant, or VERSION must rise with it."""
    values = np.arange(60, dtype="float16").reshape(20, 3)
    members = {f"v{n}.npy": npy_of(values[n : n + 1 + n]) for n in range(5)}
    sources = (array_with_ids(tmp_path / "a", values), tar_of(tmp_path / "x.tar", members))
    made = [bring_in(source, tmp_path / "root").output for source in sources]
    files = {output.identity: {**output.checksums, "rows.parquet": "names pyarrow's version"} for output in made}
    assert fingerprint(files) == "fdb9872fd235f3aefba74cb68a4e49fe2aa6e84375fc7dc252f7a1445d0fc3e1"


def many(tmp_path: Path, ragged: bool) -> tuple[Path, tuple[str, ...]]:
    """A source that is several shards, and the settings that make it so."""
    (tmp_path / "source").mkdir()
    if not ragged:
        return array_with_ids(tmp_path / "source", some_rows(600, 64)), ("rows_per_shard=64", "rows_per_chunk=16")
    values = some_rows(600, 64)
    members = {f"v{n:03d}.npy": npy_of(values[n : n + 1 + n % 7]) for n in range(90)}
    return tar_of(tmp_path / "source/x.tar", members), ("items_per_shard=16", "rows_per_shard=1024")


@pytest.mark.parametrize("ragged", [False, True])
def test_an_import_that_was_stopped_goes_on(ragged: bool, tmp_path: Path) -> None:
    path, settings = many(tmp_path, ragged)
    done: list[str] = []

    def stopped(open_worker: Callable[[], Any], units: Iterator[Any], resources: Any) -> Iterator[Any]:
        work = open_worker()
        for unit in units:
            if len(done) == 3:
                raise KeyboardInterrupt
            done.append(unit[0])
            yield from work([unit])

    def watched(open_worker: Callable[[], Any], units: Iterator[Any], resources: Any) -> Iterator[Any]:
        work = open_worker()
        for unit in units:
            done.append(unit[0])
            yield from work([unit])

    with pytest.raises(KeyboardInterrupt):
        bring_in(path, tmp_path / "root", *settings, run=stopped)
    assert not list((tmp_path / "root").rglob("complete.json"))
    bring_in(path, tmp_path / "root", *settings, run=watched)
    assert len(done) == len(set(done)) > 5, "no unit is done twice"
    bring_in(path, tmp_path / "undisturbed", *settings)
    assert tree_digest(str(tmp_path / "root")) == tree_digest(str(tmp_path / "undisturbed"))


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("ragged", [False, True])
def test_two_workers_write_the_bytes_of_a_serial_import(ragged: bool, tmp_path: Path) -> None:
    from pipelines.engine.ray_runner import RayRunner

    path, settings = many(tmp_path, ragged)
    bring_in(path, tmp_path / "serial", *settings)
    store = bring_in(path, tmp_path / "ray", *settings, run=RayRunner(2))
    assert tree_digest(str(tmp_path / "ray")) == tree_digest(str(tmp_path / "serial"))
    values = some_rows(600, 64)
    found = store.read(["v010"] if ragged else ["p599"])[0]
    np.testing.assert_array_equal(found, values[10:14] if ragged else values[599])


def test_a_source_that_changes_under_an_import_is_refused(tmp_path: Path) -> None:
    path = array_with_ids(tmp_path / "a", some_rows())

    def meanwhile(open_worker: Callable[[], Any], units: Any, resources: Any) -> Any:
        path.write_bytes(npy_of(some_rows(seed=1)))
        return serial(open_worker, units, resources)

    with pytest.raises(UserError, match=r"x\.npy has changed while it was imported"):
        bring_in(path, tmp_path / "root", run=meanwhile)


@pytest.mark.parametrize("name", ["blobs", "letters", "_runs", "../x", "", "clean", "word-counts", *stages.targets()])
def test_a_name_that_belongs_to_something_else_is_refused(name: str, tmp_path: Path) -> None:
    from tests.toy_stages import Letters, letters

    root = open_storage(str(tmp_path / "root"))
    build(letters(Letters()), root)
    before = tree_digest(root.url)
    source = open_foreign(array_with_ids(tmp_path / "a", some_rows()))
    with pytest.raises(UserError, match=r"^--name .*: (that is the name of|a stage is named)"):
        import_features(root, name, source, (), serial, QUIET)
    assert tree_digest(root.url) == before


# ------------------------------------------------------------------------------------------------------ what is refused

GOOD = npy_of(some_rows()[0])
HUGE = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
HUGE += b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999), }".ljust(117) + b"\n"


class Evil:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


PICKLED = npy_of(np.array([Evil()], object), allow_pickle=True)


def hdf5(path: Path, fill: Callable[[Any], None]) -> Path:
    with h5py.File(path, "w") as file:
        file["ids"] = np.array(["a", "b"], object)
        fill(file)
    return path


def npz(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path.parent


def cut(path: Path, keep: float = 0.6) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def damaged_npz(path: Path) -> Path:
    folder = npz(path, {"x.npy": GOOD})
    data = bytearray(path.read_bytes())
    data[60] ^= 255
    path.write_bytes(data)
    return folder


def filled(path: Path, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def with_ids(path: Path, ids: str = "a\nb\n") -> Path:
    (path.parent / "ids.txt").write_text(ids)
    return path


def elsewhere(tmp: Path) -> Path:
    hdf5(tmp / "other.h5", lambda file: file.create_dataset("x", data=some_rows(2)))
    return hdf5(tmp / "x.h5", lambda file: file.__setitem__("x", h5py.ExternalLink("other.h5", "x")))


def test_a_key_does_not_lead_into_another_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.h5 cannot be read: x lies in another file"):
        open_foreign(elsewhere(tmp_path), key="x")


def raw_file(tmp: Path) -> Path:
    (tmp / "secret").write_bytes(bytes(64))
    where = [(str(tmp / "secret"), 0, 64)]
    return hdf5(tmp / "x.h5", lambda file: file.create_dataset("x", (2, 8), "f4", external=where))


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nothing there": (lambda tmp: tmp / "x.npy", r"there is no .*x\.npy"),
    "another kind": (lambda tmp: filled(tmp / "x.mat", GOOD), "x.mat is nothing of these"),
    "empty folder": (lambda tmp: tmp, "is nothing of these"),
    "two kinds": (
        lambda tmp: npz(filled(tmp / "f/x.npy", GOOD).parent / "a.npz", {"x.npy": GOOD}),
        "npy, .npz together",
    ),
    "no ids": (lambda tmp: filled(tmp / "x.npy", GOOD), "x.npy holds no ids: .*--ids, or as x_ids.txt beside"),
    "too few ids": (lambda tmp: array_with_ids(tmp / "f", some_rows(), ["a", "b"]), "6 rows, but there are 2 ids"),
    "an id twice": (lambda tmp: array_with_ids(tmp / "f", some_rows(3), ["a", "b", "a"]), "id 'a' is there twice"),
    "an empty id": (lambda tmp: array_with_ids(tmp / "f", some_rows(3), ["a", "", "b"]), "an id is empty"),
    "ids are no text": (lambda tmp: with_bytes_as_ids(tmp), "ids.txt cannot be read: .*utf-8"),
    "no rows": (lambda tmp: array_with_ids(tmp / "f", some_rows(0), ["a"]), "x.npy has no rows"),
    "rows of nothing": (lambda tmp: array_with_ids(tmp / "f", np.zeros((2, 0), "f4")), "x.npy cannot be imported so"),
    "a number": (lambda tmp: with_ids(filled(tmp / "x.npy", npy_of(np.array(1.0)))), "x.npy has no rows"),
    "empty file": (lambda tmp: with_ids(filled(tmp / "x.npy", b"")), "x.npy cannot be read"),
    "text": (lambda tmp: array_with_ids(tmp / "f", np.array(["a", "b"])), "a feature is one of float16"),
    "pickled npy": (lambda tmp: with_ids(filled(tmp / "x.npy", PICKLED)), "x.npy cannot be read: it holds pickled"),
    "a pickle": (lambda tmp: with_ids(filled(tmp / "x.npy", pickle.dumps(Evil()))), "x.npy cannot be read"),
    "cut npy": (lambda tmp: cut(array_with_ids(tmp / "f", some_rows())), r"x.npy cannot be read: .*it was cut off"),
    "long npy": (lambda tmp: with_ids(filled(tmp / "x.npy", GOOD + GOOD)), "bytes long, not the"),
    "huge npy": (lambda tmp: with_ids(filled(tmp / "x.npy", HUGE + bytes(99))), "bytes long, not the"),
    "cut h5": (
        lambda tmp: cut(hdf5(tmp / "x.h5", lambda f: f.create_dataset("x", data=some_rows(2)))),
        "x.h5 cannot be",
    ),
    "no h5": (lambda tmp: filled(tmp / "x.h5", GOOD), "x.h5 cannot be read"),
    "h5 with a link": (elsewhere, "x.h5 cannot be read: there is no array in it"),
    "h5 of a raw file": (raw_file, "x lies in another file"),
    "h5 without arrays": (lambda tmp: hdf5(tmp / "x.h5", lambda f: None), "there is no array in it"),
    "tar out of itself": (
        lambda tmp: tar_of(tmp / "x.tar", {"../../a.npy": GOOD}),
        r"member '../../a.npy' leads elsewhere",
    ),
    "tar from the top": (
        lambda tmp: tar_of(tmp / "x.tar", {"/etc/a.npy": GOOD}),
        "member '/etc/a.npy' leads elsewhere",
    ),
    "tar with a link": (
        lambda tmp: tar_of(tmp / "x.tar", {"a.npy": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "member 'a.npy' leads elsewhere, or is no plain file",
    ),
    "tar of pickles": (
        lambda tmp: tar_of(tmp / "x.tar", {"a.npy": PICKLED}),
        r"x.tar \(a\) cannot be read: it holds pick",
    ),
    "tar of bombs": (
        lambda tmp: tar_of(tmp / "x.tar", {"a.npy": HUGE}),
        r"x.tar \(a\) cannot be read: it is 128 bytes",
    ),
    "cut tar": (
        lambda tmp: cut(tar_of(tmp / "x.tar", {f"{n}.npy": GOOD for n in range(9)}), 0.5),
        "x.tar cannot be read",
    ),
    "tar without end": (
        lambda tmp: filled(tmp / "x.tar", tar_of(tmp / "y.tar", {"a.npy": GOOD}).read_bytes()[:1024]),
        "x.tar cannot be read: it is damaged or cut off",
    ),
    "tar without members": (lambda tmp: tar_of(tmp / "x.tar", {"a.json": b"{}"}), "x.tar holds no .npy"),
    "an id twice in a tar": (
        lambda tmp: tar_of(tmp / "x.tar", {"a.npy": GOOD, "./a.npy": GOOD}),
        "id 'a' is there twice",
    ),
    "tar of misfits": (
        lambda tmp: tar_of(tmp / "x.tar", {"a.npy": npy_of(some_rows(2, 3)), "b.npy": npy_of(some_rows(2, 4))}),
        r"x.tar \(b\) is \(2, 4\) float32, unlike .*\(a\)",
    ),
    "pickled npz": (
        lambda tmp: npz(tmp / "f/a.npz", {"x.npy": PICKLED}),
        r"a.npz \(a\) cannot be read: it holds pickled",
    ),
    "no npz": (lambda tmp: filled(tmp / "f/a.npz", GOOD).parent, r"a.npz \(a\) cannot be read"),
    "cut npz": (lambda tmp: cut(npz(tmp / "f/a.npz", {"x.npy": GOOD}) / "a.npz").parent, r"a.npz \(a\) cannot be read"),
    "damaged npz": (lambda tmp: damaged_npz(tmp / "f/a.npz"), r"a.npz \(a\) cannot be read"),
    "npz without it": (
        lambda tmp: npz(npz(tmp / "f/a.npz", {"x.npy": GOOD}) / "b.npz", {"y.npy": GOOD}),
        r"b.npz \(b\) cannot be read: .*x.npy",
    ),
    "npz of nothing": (lambda tmp: npz(tmp / "f/a.npz", {}), "there is no array in it"),
}


def with_bytes_as_ids(tmp: Path) -> Path:
    (tmp / "ids.txt").write_bytes(b"\xff\xfe\n")
    return filled(tmp / "x.npy", GOOD)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported_is_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    make, said = REFUSED[case]
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match=said):
        bring_in(make(tmp_path / "in"), tmp_path / "root")
    assert not list(tmp_path.glob("root/mine/*/complete.json"))


def test_layouts_that_no_array_can_have_are_refused(tmp_path: Path) -> None:
    path = array_with_ids(tmp_path / "a", some_rows())
    with pytest.raises(UserError, match="fill whole pages"):
        bring_in(path, tmp_path / "root", "rows_per_shard=3", "rows_per_chunk=1")
    with pytest.raises(UserError, match=r"no setting 'dtype'; there are: import\.rows_per_chunk"):
        bring_in(path, tmp_path / "root", "dtype=float16")
    with pytest.raises(UserError, match="leave out --key"):
        open_foreign(path, key="x")


# ---------------------------------------------------------------------------------------------------------- the command


def xmodal_says(capsys: pytest.CaptureFixture[str], *arguments: object) -> Said:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return Said(code, said.out, said.err)


def test_scans_files_go_out_and_come_back_as_a_stage_to_train_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    root = Path(make_root(tmp_path, items=40, absent=(9,)))
    (features,) = (root / "resnet").iterdir()
    out = tmp_path / "test_ims.npy"
    said = xmodal_says(capsys, "export", features, out, "--split", "toy/test")
    assert said.code == 0, said.err
    assert "2 items, each 64, float16" in said.out
    assert "1 absent or unreadable are left out" in said.out
    ids, captions = ((tmp_path / name).read_text().splitlines() for name in ("test_ims_ids.txt", "test_caps.txt"))
    assert ids == ["p0019", "p0029"]
    told = [line.partition("\t") for line in (tmp_path / "raw/captions.tsv").read_text().splitlines()]
    assert captions == [text for id in ids for picture, _, text in told if picture == f"{id}.jpg"]
    assert len(captions) == 5 * len(np.load(out))

    everything = tmp_path / "all.npy"
    assert xmodal_says(capsys, "export", features, everything).code == 0
    command = ("import", everything, "--root", root, "--name", "theirs", "--serial")
    said = xmodal_says(capsys, *command)
    assert said.code == 0, said.err
    assert "imported, 39 items, each 64, float16" in said.out
    assert "sha256: " in said.err
    again = json.loads(xmodal_says(capsys, *command, "--json").out)
    assert (again["built"], again["items"], again["source_dtype"]) == (False, 39, "float16")
    dataset = xmodal.open(str(root), "pictures")
    theirs, ours = dataset.store("theirs"), dataset.store("resnet")
    np.testing.assert_array_equal(theirs.read(theirs.ids), ours.read(theirs.ids))
    batch = next(iter(dataset.loader("toy/train", "theirs", batch_size=4)))
    assert tuple(batch.streams["annotated"].captions.shape) == (4,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "x.npy", "--root", "ROOT", "--name", "a"], "there is no x.npy"),
        (["import", "FILE", "--root", "ROOT", "--name", "records"], "--name records: that is the name of a stage"),
        (["import", "FILE", "--root", "ROOT", "--name", "a", "--set", "rows=2"], "no setting 'rows'"),
        (["export", "ROOT", "out.h5"], "holds no finished features"),
        (["export", "/no-such-folder", "out.tsv"], "xmodal: /no-such-folder holds no finished features"),
        (["export", "/no-such-folder/it", "out.tsv"], "xmodal: /no-such-folder/it holds no finished features"),
        (["export", "ROOT/a/b", "out.h5", "--split", "x"], "holds no finished features"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    places = {"ROOT": str(tmp_path / "root"), "FILE": str(array_with_ids(tmp_path / "a", some_rows()))}
    named = [places.get(argument, argument.replace("ROOT", places["ROOT"])) for argument in arguments]
    found = xmodal_says(capsys, *named)
    assert said in found.complaint
    assert not (tmp_path / "root").exists()


def test_neither_torch_nor_ray_nor_h5py_is_needed_to_start(tmp_path: Path) -> None:
    code = "import sys, pipelines.publishing.feature_import; print(sorted({'torch', 'ray', 'h5py'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("[]\n", "")
