"""Feature stores as stages make them: the same bytes by any workers on any root, whole after kills, read from afar."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from pipelines.engine.building import build
from pipelines.engine.ray_runner import RayRunner
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from tests.conftest import new_bucket, tree_digest
from tests.toy_stages import ARRAYS, Arrays, array_values, arrays
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.foreign_formats import open_foreign
from xmodal.features.store import FeatureStore, extents_file, index_files, shard_file, shard_ranges, write_shard
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

ITEMS = Arrays().items
SHARDS = 3
FAILED = 99
LIMIT = 150 * 2**20
NAMES = [spec.name for spec in ARRAYS]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("undisturbed"))
    build(arrays(Arrays()), open_storage(root))
    return root


@pytest.fixture(scope="module")
def whole(undisturbed: str) -> Output:
    return Output(open_storage(undisturbed), arrays(Arrays()).folder)


def some_items() -> list[int]:
    """In no order, some of them twice, from every shard."""
    order = np.random.default_rng(3).permutation(ITEMS)[:120]
    return [item for item in [*order.tolist(), 0, ITEMS - 1, 0] if item != FAILED]


def check_values(store: FeatureStore, items: list[int]) -> None:
    expected = [array_values(store.spec, item) for item in items]
    read = store.read([f"i{item:05d}" for item in items])
    if not store.spec.ragged:
        np.testing.assert_array_equal(read, np.concatenate(expected))
        return
    assert store.lengths(items).tolist() == [len(rows) for rows in expected]
    for rows, wanted in zip(read, expected, strict=True):
        np.testing.assert_array_equal(rows, wanted)
    for rows, wanted in zip(store.take_padded(items), expected, strict=True):
        np.testing.assert_array_equal(rows[: len(wanted)], wanted)
        assert not rows[len(wanted) :].any()


def test_parts_of_an_item_are_given_as_they_are_mapped(whole: Output) -> None:
    for spec in (spec for spec in ARRAYS if spec.ragged):
        store = FeatureStore(whole, spec.name)
        for item in some_items()[:40]:
            rows = array_values(spec, item)
            for begin, end in ((0, len(rows)), (len(rows) // 3, len(rows) // 2), (len(rows), len(rows))):
                part = store.run(item, begin, end)
                np.testing.assert_array_equal(part, rows[begin:end])
                assert not part.flags.owndata
                assert not part.flags.writeable
            with pytest.raises(IndexError, match=f"outside the {len(rows)} rows of their item"):
                store.run(item, 0, len(rows) + 1)
        with pytest.raises(UserError, match="has no features of 'i00099'"):
            store.run(FAILED, 0, 0)
    with pytest.raises(TypeError, match="has a row an item"):
        FeatureStore(whole, next(spec.name for spec in ARRAYS if not spec.ragged)).run(0, 0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_every_array_of_a_group_reads_as_it_was_written(whole: Output, name: str) -> None:
    store = FeatureStore(whole, name)
    assert store.names == tuple(NAMES)
    assert (store.spec.name, store.provenance) == (name, {"by": "toy"})
    check_values(store, some_items())
    assert store.absent == {"i00099"}
    with pytest.raises(UserError, match="has no features of 'i00099'"):
        store.read(["i00099"])


def test_zarr_reads_every_array_of_a_group(whole: Output) -> None:
    group = zarr.open_group(whole.where, mode="r")
    for spec in ARRAYS:
        rows: Any = group[spec.name]
        extents = np.asarray(group[f"{spec.name}_extents"]) if spec.ragged else None  # type: ignore[arg-type]
        for item in some_items()[:20]:
            start, length = (item, 1) if extents is None else extents[item]
            np.testing.assert_array_equal(rows[start : start + length], array_values(spec, item))


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_writes_the_bytes_of_a_serial_run(
    any_root: str, undisturbed: str, tmp_path: Path, workers: int
) -> None:
    output = build(arrays(Arrays()), open_storage(any_root), RayRunner(workers))
    assert tree_digest(any_root) == tree_digest(undisturbed)
    check_values(FeatureStore(output, "frames", str(tmp_path / "cache")), some_items())


BUILD = """
import sys
from pipelines.engine.building import build
from tests.toy_stages import Arrays, arrays
from xmodal.root.storage import open_storage
root, ledger, victim = sys.argv[1:]
build(arrays(Arrays(), ledger, victim), open_storage(root))
"""


def build_and_die(root: str, ledger: Path, victim: str) -> None:
    """In a process of its own, which kills itself in the middle of a shard."""
    command = [sys.executable, "-c", BUILD, root, str(ledger), victim]
    dead = subprocess.run(command, capture_output=True, text=True, check=False)
    assert dead.returncode == -9, dead.stderr


@pytest.mark.parametrize("victim", ["regions/0", "boxes/1", "frames/1", "tokens/2"])
def test_a_shard_in_work_at_a_kill_is_seen_by_nobody(tmp_path: Path, victim: str) -> None:
    build_and_die(str(tmp_path / "root"), tmp_path / "ledger", victim)
    output = Output(open_storage(str(tmp_path / "root")), arrays(Arrays()).folder)
    killed = int(victim.partition("/")[2])
    for spec in ARRAYS:
        with pytest.raises(UserError, match="holds no finished features"):
            FeatureStore(output, spec.name)
        finished = [output.storage.size(f"{output.folder}/{shard_file(spec, n)}") is not None for n in range(SHARDS)]
        assert finished == [shard < killed for shard in range(SHARDS)]
        if spec.ragged:
            assert output.storage.size(f"{output.folder}/{extents_file(spec, killed)}") is None


@pytest.mark.parametrize("victim", ["regions/1", "frames/1"])
def test_an_unfinished_array_is_not_given_as_fill_values(tmp_path: Path, victim: str) -> None:
    """It says of itself that we wrote it: no import reads it, finished or not."""
    build_and_die(str(tmp_path / "root"), tmp_path / "ledger", victim)
    folder = tmp_path / "root" / arrays(Arrays()).folder
    name = victim.partition("/")[0]
    (tmp_path / "ids.txt").write_text("a")
    with pytest.raises(UserError, match=f"{name} is of a store of xmodal"):
        open_foreign(folder / name, tmp_path / "ids.txt")


def test_a_rerun_after_kills_computes_what_is_missing_and_nothing_else(
    any_root: str, undisturbed: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    build_and_die(any_root, ledger, "frames/1")
    build_and_die(any_root, ledger, "regions/2")
    build(arrays(Arrays(), str(ledger)), open_storage(any_root))
    assert ledger.read_text().split() == ["0", "1", "1", "2", "2"]
    assert tree_digest(any_root) == tree_digest(undisturbed)


@pytest.fixture(scope="module")
def far(s3_endpoint: str, whole: Output) -> Output:
    """The finished output on S3, for all who only read it."""
    return send(whole, new_bucket(s3_endpoint), "")


@pytest.fixture
def spoilable(s3_root: str, whole: Output) -> Output:
    """Two arrays of the finished output on S3, for one test."""
    return send(whole, s3_root, "regions", "frames")


def send(output: Output, root: str, *names: str) -> Output:
    storage = open_storage(root)
    for file in ("stage.json", "units.tsv", "complete.json", "zarr.json", "rows.parquet", *output.files):
        if "/" not in file or file.startswith(names):
            storage.write(f"{output.folder}/{file}", output.storage.read(f"{output.folder}/{file}"))
    return Output(storage, output.folder)


def cached(cache: Path) -> list[str]:
    return sorted(str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file())


def checksum_names(output: Output, spec: FeatureSpec, shards: list[int]) -> list[str]:
    sums = [output.checksums[shard_file(spec, shard)] for shard in shards]
    return sorted(f"{checksum[:2]}/{checksum}" for checksum in sums)


@pytest.mark.parametrize("name", NAMES)
def test_a_far_store_reads_as_a_near_one(far: Output, tmp_path: Path, name: str) -> None:
    check_values(FeatureStore(far.where, name, str(tmp_path)), some_items())


@pytest.mark.parametrize("spec", [ARRAYS[0], ARRAYS[3]], ids=["fixed", "ragged"])
def test_only_shards_that_are_read_are_fetched_and_only_once(
    spoilable: Output, tmp_path: Path, spec: FeatureSpec
) -> None:
    store = FeatureStore(spoilable, spec.name, str(tmp_path))
    assert cached(tmp_path) == []
    check_values(store, [1, 2, 128])
    assert cached(tmp_path) == checksum_names(spoilable, spec, [0, 2])
    for shard in range(SHARDS):
        spoilable.storage.delete(f"{spoilable.folder}/{shard_file(spec, shard)}")
    for again in (store, FeatureStore(spoilable, spec.name, str(tmp_path))):
        check_values(again, [133, 3, 1])
    with pytest.raises(UserError, match=f"{spec.name}/c/1(/0)+ is missing"):
        store.read(["i00065"])
    assert cached(tmp_path) == checksum_names(spoilable, spec, [0, 2])


def test_verify_fetches_and_checks_everything(far: Output, tmp_path: Path) -> None:
    FeatureStore(far, "frames", str(tmp_path)).verify()
    assert cached(tmp_path) == checksum_names(far, ARRAYS[3], list(range(SHARDS)))


def flipped(data: bytes) -> bytes:
    return data[:1000] + bytes([data[1000] ^ 4]) + data[1001:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flipped, r"regions/c/1/0/0 is not what was committed"),
        (lambda data: data[:-1], r"regions/c/1/0/0 is \d+ bytes instead of \d+"),
        (lambda data: data + b"\0", r"regions/c/1/0/0 is \d+ bytes instead of \d+"),
    ],
)
def test_a_changed_far_shard_is_refused_and_not_kept(
    spoilable: Output, tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    store = FeatureStore(spoilable, "regions", str(tmp_path))
    key = f"{spoilable.folder}/regions/c/1/0/0"
    right = spoilable.storage.read(key)
    spoilable.storage.write(key, change(right))
    with pytest.raises(UserError, match=message):
        store.take([64])
    assert cached(tmp_path) == []
    check_values(store, [0])  # the others are as they were
    spoilable.storage.write(key, right)
    check_values(store, [64])


def test_a_damaged_cache_is_found_out(far: Output, tmp_path: Path) -> None:
    FeatureStore(far, "regions", str(tmp_path)).take([0])
    (file,) = (tmp_path / name for name in cached(tmp_path))
    right = file.read_bytes()
    file.write_bytes(flipped(right))
    with pytest.raises(UserError, match=f"{file.name} is damaged: one of the rows 0 to 3"):
        FeatureStore(far, "regions", str(tmp_path)).take([0])
    file.write_bytes(right[:-1])  # as a full disk leaves it: fetched again
    check_values(FeatureStore(far, "regions", str(tmp_path)), [0])


READ = """
import hashlib, sys
import numpy as np
from xmodal.features.store import FeatureStore
store = FeatureStore(sys.argv[1], "regions", sys.argv[2])
sys.stdin.readline()
rows = [row for row in range(len(store)) if row != 99]
print(hashlib.sha256(store.take(rows).tobytes()).hexdigest())
"""


def test_processes_share_a_cache_at_once(far: Output, whole: Output, tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ, far.where, str(tmp_path)]
    pipe = subprocess.PIPE
    readers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    rows = [row for row in range(ITEMS) if row != FAILED]
    expected = hashlib.sha256(FeatureStore(whole, "regions").take(rows).tobytes()).hexdigest()
    for reader in readers:  # each has read the metadata by now, or will: all begin together
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    for reader in readers:
        assert reader.communicate(timeout=60) == (f"{expected}\n", "")
    assert cached(tmp_path) == checksum_names(far, ARRAYS[0], list(range(SHARDS)))


SHARE = """
import multiprocessing, pickle, sys
from concurrent.futures import ThreadPoolExecutor
from xmodal.features.store import FeatureStore
def equal(rows_and_values):
    rows, values = rows_and_values
    return bool((store.take(rows) == values).all())
where, near, cache, context = sys.argv[1:]
store, right = FeatureStore(where, "regions", cache), FeatureStore(near, "regions")
store.take([0])
asked = [[n, n + 64, n + 128] for n in range(1, 32, 3)]
with multiprocessing.get_context(context).Pool(2) as pool:
    if context == "fork":
        found = pool.map_async(equal, [(rows, right.take(rows)) for rows in asked])
        ok = [equal((rows, right.take(rows))) for rows in asked]
        ok += found.get(60)
    else:
        found = pool.map_async(store.take, asked)
        ok = [equal((rows, right.take(rows))) for rows in asked]
        ok += [bool((values == right.take(rows)).all()) for rows, values in zip(asked, found.get(60))]
print(len(ok), all(ok))
"""


@pytest.mark.parametrize("place", ["near", "far"])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_children_read_at_the_same_time_as_their_parent(
    request: pytest.FixtureRequest, whole: Output, tmp_path: Path, context: str, place: str
) -> None:
    """Of a far store shards that the parent has not fetched, too."""
    where = whole.where if place == "near" else request.getfixturevalue("far").where
    command = [sys.executable, "-c", SHARE, where, whole.where, str(tmp_path), context]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (found.stdout, found.stderr) == ("22 True\n", "")


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A memory cgroup of our own below the one we are in, with 150 MB."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    old = next((path for _, kinds, path in lines if "memory" in kinds.split(",")), None)
    new = next((path for number, kinds, path in lines if number == "0" and not kinds), "/")
    parent = Path("/sys/fs/cgroup" + new) if old is None else Path("/sys/fs/cgroup/memory" + old)
    group = parent / f"xmodal-test-{os.getpid()}"
    limit = group / ("memory.max" if old is None else "memory.limit_in_bytes")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        limit.write_text(str(LIMIT))
        yield group
    except OSError as error:
        pytest.skip(f"no memory limit can be set here: {error}")
    finally:
        group.rmdir()


BIG = FeatureSpec("big", (8, 2048), "float32", rows_per_shard=1024)  # 64 MiB a shard
BIG_ROWS = 6 * 1024


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """384 MiB, of which nothing is in memory: each value is its row's number."""
    root = tmp_path_factory.mktemp("big")
    output = build(Stage("big", Arrays(BIG_ROWS), plan_big, open_big), open_storage(str(root)))
    for name in output.files:
        with open_storage(str(root)).open(f"{output.folder}/{name}") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    yield output.where
    shutil.rmtree(root)


def plan_big(config: Arrays, inputs: Inputs) -> Iterator[tuple[str, range]]:
    return ((f"shard-{rows.start:05d}", rows) for rows in shard_ranges(BIG, config.items))


def open_big(config: Arrays, inputs: Inputs) -> Callable[[range, Sink], Counts]:
    def write(rows: range, sink: Sink) -> Counts:
        files = index_files(BIG, [str(row) for row in range(config.items)], {}) if not rows.start else {}
        for name, data in files.items():
            with sink.file(name) as file:
                file.write(data)
        blocks = (
            np.zeros((64, 8, 2048), np.float32) + np.arange(n, n + 64, dtype=np.float32)[:, None, None]
            for n in rows[::64]
        )
        with sink.file(shard_file(BIG, rows.start // BIG.shard_rows)) as file:
            write_shard(file, BIG, rows, blocks)
        return {}

    return write


READ_ALL = """
import os, pathlib, resource, sys
where, group = sys.argv[1:]
if group:
    pathlib.Path(group, "cgroup.procs").write_text(str(os.getpid()))
import numpy as np
from xmodal.features.store import FeatureStore
store, out = FeatureStore(where), np.empty((128, 8, 2048), np.float32)
if not group:
    used = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData:")]
    room = int(used[0]) * 1024 + 64 * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (room, room))
    try:
        np.ones(2**27, np.uint8)
        print("there is no limit")
    except MemoryError:
        pass
for rows in np.random.default_rng(0).permutation(len(store)).reshape(-1, 128):
    store.take(rows, out)
    if (out != rows[:, None, None]).any():
        print("wrong values")
        break
print("read", len(store))
"""


def read_all(big: str, group: str) -> None:
    command = [sys.executable, "-c", READ_ALL, big, group]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, f"read {BIG_ROWS}\n", "")


def test_a_store_larger_than_the_memory_of_its_cgroup_is_read(big: str, memory_group: Path) -> None:
    read_all(big, str(memory_group))
    peaks = [memory_group / name for name in ("memory.peak", "memory.max_usage_in_bytes")]
    assert all(int(file.read_text()) <= LIMIT for file in peaks if file.exists())


def test_reading_takes_no_memory_of_its_own(big: str) -> None:
    """384 MiB are read with 64 MiB more than an open store has, as RLIMIT_DATA counts them."""
    read_all(big, "")
