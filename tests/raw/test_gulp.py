"""Gulp dumps in a raw folder: each clip becomes one medium, and what a chunk says is believed only if it can be."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipelines.demo import mrw, tgif
from pipelines.demo.world import World, scene
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.ledger import Ledger
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.publishers.gulp import jpegs, write_chunk
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.media.images import open_frames
from xmodal.raw import gulp
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.root.sealed_sets import read_lock
from xmodal.root.storage import open_storage

WORLD = World(items=12, image_size=32, captions_per_item=2, motion=1)
FRAMES = jpegs(scene(WORLD, 0))
META = "meta_0.gmeta"


def without_addresses(corpus: Corpus) -> Corpus:
    """So that nobody is asked."""
    listed = corpus.media
    assert listed is not None
    return replace(corpus, media=lambda raw: (replace(one, url=None, how="ask the authors") for one in listed(raw)))


@pytest.mark.parametrize("name", ["tgif", "mrw"])
def test_a_dump_of_the_authors_is_taken_as_it_is(name: str, tmp_path: Path) -> None:
    """As their scripts write it: a folder a split, several sentences of a GIF, and clips that the corpus has not."""
    raw, root = tmp_path / "raw", str(tmp_path / "root")
    corpus = {"tgif": tgif.write, "mrw": mrw.write}[name](WORLD, raw)
    for clip in (*raw.rglob("*.gif"), *raw.rglob("*.mp4")):
        clip.unlink()
    clips = {each.id: jpegs(each.scene) for each in (tgif.animations if name == "tgif" else mrw.reactions)(WORLD)}
    ids = list(clips)
    write_chunk(raw / "gulp/train", 0, [(id, clips[id], ["one"]) for id in ids[:5]] + [("other", FRAMES, ["x"])])
    write_chunk(raw / "gulp/train", 1, [(id, clips[id], ["one"]) for id in ids[5:9]])
    write_chunk(raw / "gulp/test", 0, [(id, clips[id], ["one", "two", "three"]) for id in ids[9:11]])
    site = BuildOptions(open_storage(root), raw=raw)
    sealed = CorpusBuild(site, without_addresses(corpus)).build("media")
    states = {Path(state.path).stem: state for state in Ledger(site.storage, "media", name).states()}
    assert {id for id, state in states.items() if state.status == "local"} == set(ids[:11])
    assert (states[ids[11]].status, states[ids[11]].kind) == ("failed", "by_hand")
    for locked in read_lock(sealed):
        if locked.sha256:
            with raw_of(sealed).open(locked.path) as file:
                assert file.read() == b"".join(clips[Path(locked.path).stem])


def test_a_clip_of_a_dump_can_be_looked_at() -> None:
    """Frames of another time are other frames."""
    shown = open_frames(b"".join(FRAMES), 3)
    expected = [FRAMES[(2 * n + 1) * len(FRAMES) // 6] for n in range(3)]
    for frame, data in zip(shown, expected, strict=True):
        with Image.open(io.BytesIO(data)) as image:
            assert frame.tobytes() == image.tobytes()


def test_every_clip_has_its_frames(tmp_path: Path) -> None:
    write_chunk(tmp_path, 0, [("a", FRAMES, ["x"]), ("b", FRAMES[:1], ["y"])])
    assert [(id, list(frames)) for id, frames in gulp.clips(Raw.folder(tmp_path), META)] == [
        ("a", FRAMES),
        ("b", FRAMES[:1]),
    ]


def test_equal_sizes_alone_are_no_repetition(tmp_path: Path) -> None:
    """Of a clip that was added once all frames count, whatever their sizes."""
    write_chunk(tmp_path, 0, [("a", FRAMES[:1] * 4, ["x"])])
    assert [list(frames) for _, frames in gulp.clips(Raw.folder(tmp_path), META)] == [FRAMES[:1] * 4]


Edit = Callable[[dict[str, Any]], object]


def info(*values: object) -> Edit:
    return lambda told: told["b"]["frame_info"].__setitem__(1, list(values))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (info(10**9, 0, 8), r"clip b: frame_info\[1\] is \[1000000000, 0, 8\], outside of the"),
        (info(-4, 0, 8), r"clip b: frame_info\[1\] is \[-4, 0, 8\], outside of"),
        (info(0, 0, 10**9), r"frame_info\[1\] .* outside of"),
        (info(0, 9, 8), r"frame_info\[1\] .* outside of"),
        (info(0, -1, 8), r"frame_info\[1\] .* outside of"),
        (info(0, 0, 0), r"frame_info\[1\] .* outside of"),
        (info(0, 0), r"frame_info\[1\] is \[0, 0\], not \[begin, padding, bytes\]"),
        (info(0, 0, True), r"frame_info\[1\] is \[0, 0, True\], not"),
        (info(0, 0, "8"), r"frame_info\[1\] is \[0, 0, '8'\], not"),
        (lambda told: told["b"].update(frame_info=[]), r"clip b has 0 frames"),
        (lambda told: told["b"].pop("frame_info"), r"clip b has no 'frame_info'"),
        (lambda told: told["b"].pop("meta_data"), r"clip b has no 'meta_data'"),
        (lambda told: told.update({"../b": told.pop("b")}), r"'\.\./b' is no id of a clip"),
        (lambda told: told.update({"": told.pop("b")}), r"'' is no id of a clip"),
        (lambda told: told.update(b=[]), r"clip b has no 'frame_info'"),
    ],
)
def test_a_chunk_that_says_what_cannot_be_is_refused_before_any_clip(tmp_path: Path, edit: Edit, message: str) -> None:
    write_chunk(tmp_path, 0, [("a", FRAMES, ["x"]), ("b", FRAMES, ["y"])])
    told = json.loads((tmp_path / META).read_text())
    edit(told)
    (tmp_path / META).write_text(json.dumps(told))
    with pytest.raises(UserError, match=rf"{META}.*{message}"):
        next(gulp.clips(Raw.folder(tmp_path), META))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"1" * 5_000])
def test_what_is_no_list_of_clips_is_refused(tmp_path: Path, text: bytes) -> None:
    write_chunk(tmp_path, 0, [("a", FRAMES, ["x"])])
    (tmp_path / META).write_bytes(text)
    with pytest.raises(UserError, match=f"{META} is not the JSON it should be"):
        next(gulp.clips(Raw.folder(tmp_path), META))


def test_frames_that_are_no_pictures_and_a_chunk_without_data_are_refused(tmp_path: Path) -> None:
    write_chunk(tmp_path, 0, [("a", [b"GIF89a!!"], ["x"])])
    clips = gulp.clips(Raw.folder(tmp_path), META)
    _, frames = next(clips)
    with pytest.raises(UserError, match=r"data_0\.gulp: clip a: frame 0, at byte 0, is no JPEG"):
        next(frames)
    (tmp_path / "data_0.gulp").unlink()
    with pytest.raises(UserError, match=rf"{META} is there without data_0\.gulp"):
        next(gulp.clips(Raw.folder(tmp_path), META))


def test_a_hostile_chunk_is_told_of_and_the_others_are_read(tmp_path: Path) -> None:
    """The clips that it had may still be had from their addresses, so nothing ends."""
    raw, said = tmp_path / "raw", io.StringIO()
    corpus = mrw.write(WORLD, raw)
    clips = [(each.id, jpegs(each.scene), ["x"]) for each in mrw.reactions(WORLD)]
    write_chunk(raw, 0, clips)
    write_chunk(raw, 1, clips[:3])
    (raw / "meta_1.gmeta").write_text("{")
    CorpusBuild(BuildOptions(open_storage(str(tmp_path / "root")), raw=raw, progress=ProgressLine(said)), corpus).build(
        "media"
    )
    assert not re.search("meta_1", said.getvalue())  # nothing was lacking any more
    (raw / META).write_text(json.dumps({"../../x": {"meta_data": [], "frame_info": []}}))
    with pytest.raises(
        UserError, match=r"meta_0\.gmeta: '\.\./\.\./x' is no id .* files without an address may be in it"
    ):
        CorpusBuild(
            BuildOptions(open_storage(str(tmp_path / "other")), raw=raw, progress=ProgressLine(said)),
            without_addresses(corpus),
        ).build("media")
