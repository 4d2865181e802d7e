"""The frames stage: the same bytes by any workers and after kills, hostile clips that harm no other, and its reader."""

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import zarr
from PIL import Image

import xmodal
from pipelines.cli import main
from pipelines.demo import coco, tgif
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.clip_sampler import ClipSampler, SampleRequest
from pipelines.engine.journal import Journal
from pipelines.engine.killable_worker import ResourceLimit
from pipelines.engine.ray_runner import RayRunner
from pipelines.engine.stage_kind import Pairs
from pipelines.engine.typed_settings import parse_settings
from pipelines.publishing.dataset_repository import feature_stores, publish
from pipelines.stages.frames import FramesConfig
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests import hostile
from tests.clips import RED, gif, jpeg, number_of, numbered, picture, rate, shown_of_delays, video
from tests.conftest import tree_digest
from tests.made import frames
from tests.stages.test_resnet_stage import backwards, sealed
from tests.stages.test_resnet_stage import storage as storage
from xmodal.errors import UserError
from xmodal.features.contact_sheets import LETTERS, attention_sheet, contact_sheet
from xmodal.features.frame_store import FrameStore, clips_file
from xmodal.media.drawing import font_of
from xmodal.media.frame_sampling import encode_jpeg, sample_frames
from xmodal.media.frame_times import Limits, Sampling, Status
from xmodal.records.tables import read_columns
from xmodal.root.outputs import Output
from xmodal.root.storage import Storage, open_storage

REPOSITORY = Path(__file__).parents[2]
SMALL = FramesConfig(short_side=96, items_per_shard=3)
SUICIDE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
DELAYS = [120, 130, 20, 300, 50, 80, 0, 250]


def animation(*delays_ms: int, comment: bytes = b"") -> bytes:
    return gif([numbered(number, delay=delay // 10) for number, delay in enumerate(delays_ms)], comment=comment)


def film(count: int = 24) -> bytes:
    return video(rate(count), base=Fraction(1, 24))


def spoilt(data: bytes) -> bytes:
    """Some bytes of its pictures are others; its index, at the end, is whole."""
    begin = data.index(b"mdat") + 200 + len(data) // 4
    return data[:begin] + bytes(200) + data[begin + 200 :]


FILES: dict[str, bytes | None] = {
    "a.gif": animation(*DELAYS),
    "b.mp4": film(),
    "c.mjpeg": b"".join(jpeg(picture(number)) for number in range(5)),
    "d.gif": b"<html>",
    "e.gif": None,
    "f.gif": animation(*DELAYS)[:-300],
    "g.gif": animation(100, 2000),
    "h.gif": b"",
    "i.mp4": spoilt(film()),
}
FAILED = {"d": "not_media", "e": "absent", "h": "empty_file"}


def listed(files: dict[str, bytes | None]) -> Pairs:
    return tuple((path.partition(".")[0], path) for path in sorted(files))


def built(storage: Storage, files: dict[str, bytes | None], config: FramesConfig = SMALL) -> Output:
    return build(frames(sealed(storage, files), listed(files), config), storage)


def failures(output: Output) -> dict[str, tuple[str, str]]:
    return {id: (kind, reason) for unit in output.units() for id, kind, reason in unit.failures}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Output:
    return built(open_storage(str(tmp_path_factory.mktemp("made") / "root")), FILES)


@pytest.fixture
def worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips may do what `hostile` says."""
    monkeypatch.setattr("pipelines.engine.killable_worker.PROGRAM", hostile.PROGRAM)


# ------------------------------------------------------------------------------------------------------------- reading


def test_a_store_gives_the_frames_that_sampling_gives(made: Output) -> None:
    store = FrameStore(made)
    assert store.ids == tuple("abcdefghi")
    assert {id for id in store.ids if id not in store} == FAILED.keys()
    for id in set(store.ids) - FAILED.keys():
        data = next(data for path, data in FILES.items() if path.startswith(id))
        given: list[bytes] = []
        row = sample_frames(data or b"", lambda f, to=given: to.append(f.jpeg or encode_jpeg(f.pixels_HW3)), SMALL)
        assert store.jpegs(id) == given
        assert store.starts_us(id).tolist() == list(row.starts_us)
        assert store.frame_of_sample(id).tolist() == list(row.frame_of_sample)
        assert (store.starts_us(id).dtype, store.frame_of_sample(id).dtype) == (np.int64, np.int32)


def test_samples_are_decoded_in_the_order_asked(made: Output) -> None:
    store, expected = FrameStore(made.where), shown_of_delays([100 if delay < 20 else delay for delay in DELAYS])
    assert [number_of(frame) for frame in store.pictures("a", range(len(expected)))] == expected
    assert [number_of(frame) for frame in store.pictures("a", [5, 0, 5])] == [expected[5], expected[0], expected[5]]
    assert store.pictures("g", [2, 9]).shape == (2, 96, 128, 3)
    assert store.pictures("g", []).shape == (0, 96, 128, 3)
    last = len(store.jpegs("a")) - 1
    assert store.jpegs("a", [last, 0]) == [store.jpegs("a")[last], store.jpegs("a")[0]]
    for read in (lambda: store.pictures("g", [17]), lambda: store.jpegs("g", [-1]), lambda: store.pictures("g", [-1])):
        with pytest.raises(IndexError, match=r"g has \d+ (samples|frames), and none of number"):
            read()


def test_pictures_are_what_pillow_makes_of_the_jpegs(made: Output) -> None:
    store = FrameStore(made)
    expected = [np.asarray(Image.open(io.BytesIO(one))) for one in store.jpegs("a")]
    shown = [expected[frame] for frame in store.frame_of_sample("a")]
    np.testing.assert_array_equal(store.pictures("a", range(len(shown))), shown)


def test_pictures_without_their_decoder_are_refused(made: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(UserError, match=r"need simplejpeg: pip install -e '.\[video\]'"):
        FrameStore(made).pictures("a", [0])


def test_what_is_not_there_is_refused_by_name(made: Output) -> None:
    store = FrameStore(made)
    for read in (store.jpegs, store.starts_us, store.frame_of_sample):
        with pytest.raises(UserError, match=r"has no frames of 'd': not_media \(begins with b'<html>'\)$"):
            read("d")
        with pytest.raises(UserError, match=r"has no frames of 'h': empty_file$"):
            read("h")
        with pytest.raises(UserError, match="has no row for 'z'"):
            read("z")


def test_motion_jpeg_keeps_its_own_bytes_where_it_keeps_its_size(made: Output) -> None:
    assert FrameStore(made).jpegs("c") == [jpeg(picture(number)) for number in range(5)]


def test_pictures_of_a_clip_have_one_size(storage: Storage) -> None:
    small = np.asarray(Image.fromarray(picture(1)).resize((64, 64)))
    store = FrameStore(built(storage, {"a.mjpeg": jpeg(picture(0)) + jpeg(small)}))
    assert [number_of(frame) for frame in store.pictures("a", [0, 1])] == [0, 1]
    assert store.pictures("a", [1]).shape == (1, 96, 128, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frames/c/0", "frames/c/0 is damaged: one of the rows"),
        (clips_file(0), "clips/00000.parquet is not what was committed"),
        ("frames_extents/c/0/0", "frames_extents/c/0/0 is not what was committed"),
    ],
)
def test_damaged_bytes_are_refused_with_their_file(made: Output, tmp_path: Path, name: str, message: str) -> None:
    root = Path(shutil.copytree(made.storage.url, tmp_path / "root"))
    path = root / made.folder / name
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=message):
        FrameStore(f"{root}/{made.folder}").jpegs("a")


def test_any_zarr_reader_finds_the_jpegs(made: Output) -> None:
    group: Any = zarr.open_group(made.where, mode="r")
    start, length = group["frames_extents"][0]
    assert group["frames"][start : start + length].tobytes() == b"".join(FrameStore(made).jpegs("a"))


# -------------------------------------------------------------------------------------------------- what it says of all


def test_every_clip_has_a_row_and_every_failure_a_reason(made: Output) -> None:
    tables = [pq.read_table(f"{made.where}/{clips_file(shard)}").to_pylist() for shard in range(3)]
    rows = {row["id"]: row for table in tables for row in table}
    assert {id: row["status"] for id, row in rows.items()} == {
        **FAILED, "a": "ok", "b": "ok", "c": "ok", "f": "truncated", "g": "ok", "i": "damaged"
    }  # fmt: skip
    assert {id: kind for id, (kind, _) in failures(made).items()} == FAILED
    assert failures(made)["d"][1] == rows["d"]["message"] != ""
    assert rows["b"]["codec"] == "h264"
    assert rows["b"]["sha256"] == hashlib.sha256(FILES["b.mp4"] or b"").hexdigest()
    assert (rows["a"]["frames"], rows["a"]["samples_planned"], rows["a"]["duration_ms"]) == (8, 9, 1050)
    assert (rows["e"]["sha256"], rows["e"]["stage"]) == (None, "fetch")
    assert [rows[id]["lengths"] for id in FAILED] == [[], [], []]
    counts = made.totals["counts"]
    assert counts.items() >= {"clips": 6, "ok": 4, "truncated": 1, "damaged": 1}.items()
    assert counts["frames"] == sum(len(row["lengths"]) for row in rows.values())
    assert counts["samples"] == sum(len(row["frame_of_sample"]) for row in rows.values())


def test_the_store_says_how_its_frames_were_chosen(made: Output) -> None:
    told = FrameStore(made).provenance
    assert told["sampling"].items() >= {"fps": 8, "short_side": 96, "delays": "browser", "backend": "pyav"}.items()
    assert told["jpeg"] == {"quality": 95, "subsampling": "4:2:0"}
    assert told["versions"].keys() == {"pillow", "av", "xmodal"}


def test_how_it_went_is_beside_the_promise(made: Output) -> None:
    lines = [line.partition(b"\t") for line in Journal(made.storage, f"{made.folder}/_runs/clips").lines()]
    notes = {id.decode(): json.loads(facts) for id, _, facts in lines}
    assert notes.keys() == set("abcdefghi")
    assert notes["a"].keys() == {"at", "attempt", "elapsed_ms", "status", "versions"}
    assert (notes["a"]["attempt"], notes["a"]["elapsed_ms"] > 0) == (1, True)


def test_what_is_asked_for_changes_frames_and_identity(storage: Storage) -> None:
    files: dict[str, bytes | None] = {"a.gif": animation(0, 300, 10, 300)}
    outputs = [built(storage, files, replace(SMALL, **changes)) for changes in ASKED]
    assert len({output.identity for output in outputs}) == len(ASKED)
    plain, raw, large, kept, coarse = map(FrameStore, outputs)
    assert [len(store.frame_of_sample("a")) for store in (plain, raw)] == [7, 5]
    assert [store.pictures("a", [0]).shape[1] for store in (plain, large, kept)] == [96, 192, 96]
    assert len(coarse.jpegs("a", [0])[0]) < len(plain.jpegs("a", [0])[0])


ASKED: list[dict[str, Any]] = [
    {},
    {"delays": "raw"},
    {"short_side": 192},
    {"short_side": 192, "upscale": False},
    {"quality": 30},
]
STATUSES: list[tuple[Status, bytes, dict[str, Any]]] = [
    ("empty_file", b"", {}),
    ("not_media", b"<html>", {}),
    ("no_frames", gif([]), {}),
    ("zero_size", gif([numbered(0)], (0, 96)), {}),
    ("unsupported_codec", animation(100), {"backend": "decord"}),
    ("no_video_stream", b"\x1a\x45\xdf\xa3" + bytes(100), {}),
    ("too_large_bytes", animation(100), {"most_bytes": 100}),
    ("too_many_pixels", animation(100), {"most_pixels": 100}),
    ("too_many_frames", animation(100, 100, 100), {"most_frames": 2}),
    ("too_long", animation(2000, 2000), {"most_seconds": 3}),
    ("too_many_outputs", animation(2000), {"most_samples": 3}),
    ("too_much_work", animation(200, 200), {"most_work": 128 * 96}),
]


@pytest.mark.parametrize(("status", "data", "changes"), STATUSES)
def test_a_clip_that_gives_no_frames_is_a_failure_by_its_status(
    storage: Storage, status: Status, data: bytes, changes: dict[str, Any]
) -> None:
    output = built(storage, {"a.gif": data}, replace(SMALL, **changes))
    (found,) = failures(output).values()
    assert found[0] == status if status != "no_video_stream" else found[0] in ("no_video_stream", "not_media")
    assert output.totals["failures"] == {found[0]: 1}
    assert output.totals["counts"] == {"clips": 0, "frames": 0, "samples": 0}


@pytest.mark.parametrize("archived", [False, True])
def test_of_a_clip_that_is_too_large_no_more_is_read_than_shows_it(storage: Storage, archived: bool) -> None:
    clip, packed = animation(100) + bytes(5000), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.gif", clip)
    files: dict[str, bytes | None] = {"all.zip": packed.getvalue()} if archived else {"a.gif": clip}
    items = (("a", "all.zip!a.gif" if archived else "a.gif"),)
    config = replace(SMALL, most_bytes=1000)
    output = build(frames(sealed(storage, files), items, config), storage)
    assert failures(output) == {"a": ("too_large_bytes", "more than 1000 bytes")}
    (row,) = read_columns(output, "clips/00000.parquet", "bytes", "sha256", "status").to_pylist()
    assert row == {"bytes": 1001, "sha256": None, "status": "too_large_bytes"}


def test_a_name_says_nothing(storage: Storage) -> None:
    files: dict[str, bytes | None] = {
        "a.mp4": animation(*DELAYS),
        "b.mp4": b"<html>",
        "c.mp4": jpeg(picture(7)),
        "d.gif": film(),
        "e.webm": FILES["c.mjpeg"],
    }
    output = built(storage, files)
    store, plain = FrameStore(output), FrameStore(built(storage, {"a.gif": animation(*DELAYS), "d.mp4": film()}))
    assert failures(output).keys() == {"b"}
    assert output.totals["counts"].items() >= {"ok": 3, "single_frame": 1}.items()
    assert (store.jpegs("a"), store.jpegs("d")) == (plain.jpegs("a"), plain.jpegs("d"))
    assert store.jpegs("c") == [jpeg(picture(7))], "a clip of one frame, as a dump of frames may have"
    assert store.frame_of_sample("c").tolist() == [0]


# -------------------------------------------------------------------------------------------------------- hostile clips


@pytest.mark.usefixtures("worse")
def test_a_clip_that_hangs_is_killed_and_the_others_go_on(storage: Storage) -> None:
    files: dict[str, bytes | None] = {
        "a.gif": animation(100),
        "b.gif": animation(100, comment=b"hang"),
        "c.mp4": film(),
    }
    began = time.monotonic()
    output = built(storage, files, replace(SMALL, deadline=3, deadline_rate=0))
    assert time.monotonic() - began > 3
    assert failures(output) == {"b": ("timeout", "not done after 3 seconds")}
    assert output.totals["counts"]["ok"] == 2


@pytest.mark.usefixtures("worse")
def test_a_long_clip_has_longer(storage: Storage) -> None:
    """Thirty frames of 0.1 seconds each take longer than the deadline of a clip of no length."""
    files: dict[str, bytes | None] = {"a.gif": animation(*[250] * 30, comment=b"slow")}
    hasty, patient = (replace(SMALL, deadline=2, deadline_rate=each) for each in (0, 5))
    assert failures(built(storage, files, hasty))["a"][0] == "timeout"
    assert failures(built(storage, files, patient)) == {}


@pytest.mark.usefixtures("worse")
def test_a_clip_that_its_process_dies_of_is_tried_once_more(storage: Storage, tmp_path: Path) -> None:
    once = f"once {tmp_path / 'gone'} ".encode()
    comments = {"a": b"", "b": b"die", "c": once, "d": b"raise", "e": b"devour", "f": b""}
    files: dict[str, bytes | None] = {f"{id}.gif": animation(100, 100, comment=said) for id, said in comments.items()}
    output = built(storage, files)
    assert failures(output) == {
        "b": ("worker_died", "the process was ended by SIGSEGV"),
        "d": ("internal", "ZeroDivisionError: nobody expected this"),
        "e": ("out_of_memory", ""),
    }
    notes = Journal(storage, f"{output.folder}/_runs/clips").lines()
    tried = {line.partition(b"\t")[0].decode(): json.loads(line.partition(b"\t")[2])["attempt"] for line in notes}
    assert tried == {"a": 1, "b": 2, "c": 2, "d": 1, "e": 1, "f": 1}
    store = FrameStore(output)
    assert store.jpegs("a") == store.jpegs("c") == store.jpegs("f")


def test_a_process_that_is_stopped_is_replaced() -> None:
    sampler = ClipSampler(SampleRequest(Sampling(), Limits()), ResourceLimit(3, 0))
    stopped = sampler.pid
    os.kill(stopped, signal.SIGSTOP)
    assert sampler.sample(film()).row.status == "timeout"
    assert not psutil.pid_exists(stopped)
    assert sampler.sample(animation(100)).row.status == "ok"
    sampler.close()


def test_a_process_that_was_killed_while_idle_costs_a_clip_nothing() -> None:
    sampler = ClipSampler(SampleRequest(Sampling(), Limits()), ResourceLimit())
    os.kill(sampler.pid, signal.SIGKILL)
    taken = sampler.sample(animation(100))
    assert (taken.row.status, taken.attempt) == ("ok", 2)
    sampler.close()


def test_no_process_is_left_behind() -> None:
    sampler = ClipSampler(SampleRequest(Sampling(), Limits()), ResourceLimit())
    pid = sampler.pid
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert not [name for name in ("torch", "ray") if f"/{name}/" in mapped]
    del sampler
    assert not psutil.pid_exists(pid)


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "clip.gif").write_bytes(animation(100, comment=b"hang"))
    code = f"""
from pathlib import Path
from pipelines.engine import clip_sampler, killable_worker
from tests import hostile
from xmodal.media.frame_times import Limits, Sampling
killable_worker.PROGRAM = hostile.PROGRAM
sampler = clip_sampler.ClipSampler(clip_sampler.SampleRequest(Sampling(), Limits()), killable_worker.ResourceLimit())
print(sampler.pid, flush=True)
sampler.sample(Path({str(tmp_path / "clip.gif")!r}).read_bytes())
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        assert is_alive(pid)
        parent.kill()
    until = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    """One whose parent nobody is may stay, dead, where the system has nobody to bury it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_that_does_not_start_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, end in (("raise SystemExit(7)", "ended with 7"), (SUICIDE, "was ended by SIGKILL")):
        monkeypatch.setattr("pipelines.engine.killable_worker.PROGRAM", program)
        with pytest.raises(UserError, match=f"the process that decodes media does not start: it {end}"):
            ClipSampler(SampleRequest(Sampling(), Limits()), ResourceLimit())


def test_a_process_that_is_killed_as_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"from tests.hostile import serve_the_second_time; serve_the_second_time({str(tmp_path / 'mark')!r})"
    monkeypatch.setattr("pipelines.engine.killable_worker.PROGRAM", program)
    sampler = ClipSampler(SampleRequest(Sampling(), Limits()), ResourceLimit())
    assert sampler.sample(animation(100)).row.status == "ok"
    sampler.close()


# ------------------------------------------------------------------------------------------------------------ retrying


def write_list(folder: Path) -> list[str]:
    """Five clips, the third of which hangs where `hostile` is at work; and the words of a build of their features."""
    folder.mkdir()
    names = [f"{id}.gif" for id in "abcde"]
    for number, name in enumerate(names):
        (folder / name).write_bytes(animation(100, 100 * number + 100, comment=b"hang" if name == "c.gif" else b""))
    (folder / "list.csv").write_text("url,caption\n" + "".join(f"{name},something\n" for name in names))
    settings = ["frames.short_side=64", "frames.items_per_shard=2", "frames.deadline=2", "frames.deadline_rate=0"]
    settings += ["clips.network=resnet18", "clips.weights=random:0", "clips.resize=64", "clips.crop=64"]
    return [word for setting in (*settings, "clips.items_per_shard=3") for word in ("--set", setting)]


def interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_a_clip_that_took_too_long_is_tried_again_as_if_it_never_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Features are in shards of three clips, of frames in shards of two: the third clip is in the second of those."""
    settings = write_list(tmp_path / "raw")
    root, whole = str(tmp_path / "root"), str(tmp_path / "whole")
    taken, features = (f"{tmp_path / 'raw/list.csv'}/{stage}" for stage in ("frames", "clips"))
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.engine.killable_worker.PROGRAM", hostile.PROGRAM)
        assert main(["build", features, "--root", root, "--serial", *settings]) == 0
        assert main(["build", taken, "--root", root, "--serial", *settings]) == 0
    said = capsys.readouterr().out
    assert "1 timeout" in said
    assert f"`xmodal retry list/frames --root {root}` tries those of timeout again" in said
    again = ["retry", taken, "--root", root, "--serial", *settings]
    assert main([*again, "--class", "worker_died", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["corpora"][taken]["tried"] == 0
    assert main([*again, "--class", "not_media"]) == 1
    assert "not_media is for good: another try of list/frames may be spared timeout, " in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "replace", interrupted)
        assert main(again) == 130
    assert main(again) == 0
    said = capsys.readouterr().out
    assert f"{taken}: 1 of 1 clips recovered" in said
    assert "is made of them: build it again" in said
    assert main(["plan", features, "--root", root, "--json", *settings]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["stages"]
    assert (planned["units"], planned["done"]) == (3, 1), "both shards read frames that were taken again"
    for folder in (root, whole):
        assert main(["build", features, "--root", folder, "--serial", *settings]) == 0
    assert tree_digest(root) == tree_digest(whole)


def test_a_retry_is_of_what_was_built(clips: BuildOptions, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retry", "tgif/frames", "--root", clips.storage.url]) == 1
    assert "there is no tgif/frames: build it first" in capsys.readouterr().err
    assert main(["retry", "tgif/records", "--root", clips.storage.url]) == 1
    assert "tgif/records is made of files: name the corpus" in capsys.readouterr().err


def test_a_later_seal_tries_again_what_may_pass(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, bytes | None] = {"a.gif": animation(100, comment=b"hang"), "b.gif": animation(100)}
    config = replace(SMALL, deadline=2, deadline_rate=0, items_per_shard=1)
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.engine.killable_worker.PROGRAM", hostile.PROGRAM)
        assert failures(built(storage, files, config)).keys() == {"a"}
    assert failures(built(storage, files | {"b.gif": animation(200)}, config)) == {}


# ---------------------------------------------------------------------------------------------------------- same bytes


@pytest.fixture(scope="module")
def undisturbed(made: Output) -> str:
    return tree_digest(made.storage.url)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("run", [backwards, RayRunner(1), RayRunner(2)], ids=["backwards", "one", "two"])
def test_workers_and_their_order_change_no_byte(any_root: str, undisturbed: str, run: Any) -> None:
    storage = open_storage(any_root)
    build(frames(sealed(storage, FILES), listed(FILES), SMALL), storage, run)
    assert tree_digest(any_root) == undisturbed


def test_a_build_that_is_killed_goes_on_to_the_same_bytes(any_root: str, undisturbed: str) -> None:
    storage = open_storage(any_root)
    stage = frames(media := sealed(storage, FILES), listed(FILES), SMALL)
    code = f"""
from pipelines.engine.building import build
from pipelines.stages.frames import FramesConfig
from tests.made import frames
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage
storage = open_storage({any_root!r})
build(frames(Output(storage, {media.folder!r}), {listed(FILES)!r}, {SMALL!r}), storage)
"""
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.PIPE)
    while driver.poll() is None and len(storage.names(f"{stage.folder}/_runs/commits/loose")) < 2:
        time.sleep(0.01)
    driver.kill()
    driver.communicate()
    assert driver.returncode in (0, -signal.SIGKILL)
    build(stage, storage)
    assert tree_digest(any_root) == undisturbed


def test_a_later_seal_redoes_only_the_shards_that_it_changes(storage: Storage) -> None:
    built(storage, FILES)
    files = FILES | {"e.gif": animation(100)}
    stage, done = frames(sealed(storage, files), listed(files), SMALL), list[int]()

    def counted(config: FramesConfig, inputs: Any) -> Any:
        do = stage.open(config, inputs)
        return lambda work, sink: (done.append(work.first), do(work, sink))[1]

    after = build(replace(stage, open=counted), storage)
    assert done == [3]
    assert "e" in FrameStore(after)


# ------------------------------------------------------------------------------------------------------- of a corpus


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> BuildOptions:
    """The frames of a world as TGIF publishes it."""
    folder = tmp_path_factory.mktemp("tgif")
    corpus = tgif.write(World(20, motion=1, image_size=48), folder / "raw")
    settings = parse_settings(["frames.short_side=48"], {"frames": FramesConfig()})
    site = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw", settings=settings)
    (row,) = build_stages(CorpusBuild(site, corpus), ["frames"])
    assert row["counts"]["ok"] + row["failures"]["absent"] == 20
    return site


def test_sheets_of_clips_from_the_command_line(
    clips: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["look", "tgif", "--root", clips.storage.url, "--frames", str(tmp_path / "sheets"), "--json"]
    assert main([*command, "--first", "2"]) == 0
    drawn = json.loads(capsys.readouterr().out)["pictures"]
    assert len(drawn) == 2
    for one in drawn:
        with Image.open(one["path"]) as sheet:
            assert min(sheet.size) > 48
    assert drawn[0]["caption"]
    assert main([*command, "--items", "nobody"]) == 1
    assert "has no row for 'nobody'" in capsys.readouterr().err
    absent = next(
        id
        for unit in FrameStore(f"{clips.storage.url}/frames/{only(clips)}").output.units()
        for id, _, _ in unit.failures
    )
    assert main([*command, "--items", absent]) == 1
    assert f"has no frames of '{absent}': absent (" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_no_trouble_of_the_disk(
    clips: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    assert main(["look", "tgif", "--root", clips.storage.url, "--frames", str(tmp_path / "taken")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"xmodal: File exists ({tmp_path / 'taken'})"


def test_a_status_without_a_reason_is_said_without(made: Output, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--root", made.storage.url]) == 0
    assert "    empty_file: such as h\n" in capsys.readouterr().out


def test_jpegs_are_no_features(clips: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their bytes would pass for a clip of so many positions."""
    with pytest.raises(UserError, match="has single numbers, which are no features"):
        xmodal.open(clips.storage.url, "tgif").loader(features="frames")
    command = ["train", "vsepp-tgif", "--root", clips.storage.url, "--run", str(tmp_path / "run")]
    assert main([*command, "--set", "visual.stage=frames"]) == 1
    assert "has no features to train from, but frames" in capsys.readouterr().err


def test_jpegs_are_not_exported_as_numbers(
    clips: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = f"{clips.storage.url}/frames/{only(clips)}"
    for name in ("x.h5", "x.tar", "x"):
        assert main(["export", made, str(tmp_path / name)]) == 1
        said = capsys.readouterr().err
        assert "holds the JPEGs of clips, which are no features: `xmodal look tgif --frames" in said
        assert main(shlex.split(re.findall("`xmodal (look[^`]*)`", said)[0])) == 0
        assert list((tmp_path / "tgif-frames").iterdir())


def test_of_several_frames_those_to_look_at_are_named_by_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_list(tmp_path / "raw")
    root = ["--root", str(tmp_path / "root")]
    for side in (32, 48):
        settings = ["--set", f"frames.short_side={side}", "--serial"]
        assert main(["build", f"{tmp_path / 'raw/list.csv'}/frames", *root, *settings]) == 0
    capsys.readouterr()
    looked = ["look", "list", *root, "--frames", str(tmp_path / "sheets")]
    assert main(looked) == 1
    said = capsys.readouterr().err
    assert "so say which by --features IDENTITY; there are: " in said
    found = dict(re.findall(r"(\w+) \(short_side=(\d+)\)", said))
    assert sorted(found.values()) == ["32", "48"]
    assert main([*looked, "--features", next(iter(found))]) == 0


def test_of_clips_that_are_all_broken_nothing_is_drawn_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_list(tmp_path / "raw")
    for clip in (tmp_path / "raw").glob("*.gif"):
        clip.write_bytes(b"gone")
    root = ["--root", str(tmp_path / "root")]
    assert main(["build", f"{tmp_path / 'raw/list.csv'}/frames", *root, "--serial"]) == 3
    assert main(["look", "list", *root, "--frames", str(tmp_path / "sheets")]) == 1
    assert "no clip of list has frames: `xmodal status --root" in capsys.readouterr().err
    assert not (tmp_path / "sheets").exists()


def test_a_setting_that_no_stage_of_a_build_reads_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_list(tmp_path / "raw")
    settings = ["resnet.network=resnet101", "clips.crop=64", "frames.short_side=32", "records.row_group=1024"]
    flags = [word for setting in settings for word in ("--set", setting)]
    target = [f"{tmp_path / 'raw/list.csv'}/frames", "--root", str(tmp_path / "root")]
    assert main(["build", *target, *flags, "--serial"]) == 0
    said = capsys.readouterr().err
    assert [line for line in said.splitlines() if "no stage of this build" in line] == [
        "no stage of this build reads resnet.network, clips.crop"
    ]


def only(site: BuildOptions) -> str:
    (identity,) = site.storage.names("frames")
    return identity


def test_frames_are_never_published(clips: BuildOptions, tmp_path: Path) -> None:
    output = Output(clips.storage, f"frames/{only(clips)}")
    assert feature_stores(tgif.CORPUS, clips.storage) == []
    with pytest.raises(UserError, match="holds the pictures themselves, smaller: they are no features to publish"):
        publish(tgif.CORPUS, clips.storage, tmp_path / "out", features=[output])
    publish(tgif.CORPUS, clips.storage, tmp_path / "out")
    assert not (tmp_path / "out/features").exists()


def test_a_sheet_shows_every_frame_below_its_time(made: Output) -> None:
    store = FrameStore(made)
    sheet = np.asarray(contact_sheet(store, "a", "somebody waves " * 20))
    found = [number_of(thumbnail) for thumbnail in thumbnails(sheet)]
    assert found == [number_of(np.asarray(Image.open(io.BytesIO(one)))) for one in store.jpegs("a")]


def test_a_sheet_of_attention_shows_the_samples_that_are_read(made: Output) -> None:
    store, samples = FrameStore(made), np.array([0, 7, 3, 3])
    sheet = attention_sheet(store, "a", "somebody waves", samples, np.full((4, 2), 0.25))
    found = [number_of(thumbnail) for thumbnail in thumbnails(np.asarray(sheet))]
    assert found == [number_of(picture) for picture in store.pictures("a", samples)]
    other = attention_sheet(store, "a", "somebody waves", samples, np.full((4, 2), 0.35))
    assert (np.asarray(sheet) != np.asarray(other)).any(2).any(1).sum() < 40, "the labels differ, and nothing else"


def test_labels_of_a_sheet_do_not_run_into_each_other(made: Output) -> None:
    maps = np.full((4, 12), 1 / 12)
    sheet = attention_sheet(FrameStore(made), "a", "somebody waves", np.array([0, 7, 3, 3]), maps)
    label = "0.00 s: " + ", ".join(["8"] * 12)
    assert sheet.width > 4 * font_of(LETTERS).getlength(label)


def thumbnails(sheet_HW3: np.ndarray) -> list[np.ndarray]:
    """Where the lower left of one is red, found without knowing how the sheet is laid out."""
    red_HW = (np.abs(sheet_HW3.astype(int) - RED) < 40).all(2)
    rows = [top for top in range(1, len(red_HW)) if red_HW[top].any() and not red_HW[top - 1].any()]
    found = []
    for top in rows:
        columns = np.flatnonzero(red_HW[top + 5] & ~np.roll(red_HW[top + 5], 1))
        found += [sheet_HW3[top - 64 : top + 32, left : left + 128] for left in columns]
    return found


def test_of_many_frames_some_are_on_the_sheet(storage: Storage) -> None:
    store = FrameStore(built(storage, {"a.gif": animation(*[130] * 80)}))
    wide, high = contact_sheet(store, "a").size
    assert wide < 2500
    assert high < 1500


def test_a_corpus_without_clips_says_so_before_anything_is_fetched(tmp_path: Path) -> None:
    corpus = coco.write(World(20, image_size=32), tmp_path / "raw")
    with pytest.raises(UserError, match="coco has no clips: frames is for clips, not pictures"):
        build_stages(CorpusBuild(BuildOptions(open_storage(str(tmp_path / "root"))), corpus), ["frames"])
    assert not (tmp_path / "root").exists()


def test_without_pyav_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"frames of clips need av: pip install -e '.\[video\]'"):
        build_stages(CorpusBuild(BuildOptions(open_storage(str(tmp_path / "root"))), tgif.CORPUS), ["frames"])
    assert not (tmp_path / "root").exists()


def test_what_can_be_set() -> None:
    settings = parse_settings(["upscale=false", "frames.most_seconds=60", "deadline=5"], {"frames": SMALL})
    assert settings == {"frames.upscale": False, "frames.most_seconds": 60, "frames.deadline": 5.0}
    for changes, message in (
        ({"quality": 0}, "1 to 100"),
        ({"delays": "mine"}, "browser or raw"),
        ({"fps": 0}, "^fps 0 must be a whole number, 1 or more$"),
        ({"most_pixels": -1}, "less than 1 of pixels"),
        ({"deadline": 0.0}, "above 0"),
        ({"deadline_rate": -1.0}, "not below"),
        ({"memory": 0}, "deadline and memory are above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(SMALL, **changes)
