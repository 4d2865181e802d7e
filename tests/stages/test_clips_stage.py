"""The clips stage: frames of clips, taken once, become runs of features; a clip without frames is counted and refused.

And what reads them: loaders, PVSE's video model through `train` and `evaluate`, and a publication.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import xmodal
from pipelines.cli import main
from pipelines.commands.data import plan as plan_command
from pipelines.demo import coco, tgif
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build, pending, serial
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.engine.typed_settings import parse_settings
from pipelines.papers.recipe_runs import recipes
from pipelines.stages.clips import ClipsConfig
from pipelines.stages.frames import FramesConfig
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from pipelines.upkeep.planning import plan
from tests.clips import gif, numbered, shown_of_delays
from tests.conftest import tree_digest
from tests.made import clips, frames
from tests.media.test_vision import named_state, pixels
from tests.stages.test_resnet_stage import backwards, by_turns, sealed
from tests.stages.test_resnet_stage import storage as storage
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.batches.sample_order import evaluation_frames
from xmodal.corpora import load as load_corpus
from xmodal.errors import UserError
from xmodal.features.frame_store import FrameStore
from xmodal.features.networks import load
from xmodal.features.opening import open_features
from xmodal.features.store import FeatureStore
from xmodal.media.frame_sampling import encode_jpeg
from xmodal.recipes import Features
from xmodal.root.outputs import Output
from xmodal.root.storage import Storage, open_storage
from xmodal.training import run_folder

TAKEN = FramesConfig(short_side=64, items_per_shard=4)
TINY = ClipsConfig("resnet18", "random:0", resize=64, crop=64, batch_size=4, items_per_shard=3)
DELAYS_MS = {f"c{n}": [60 + 40 * (n + i) % 300 for i in range(1 + 2 * n)] for n in range(8)}
GONE, BROKEN = "c4", "c6"
ITEMS = tuple((id, f"gifs/{id}.gif") for id in DELAYS_MS)


def files(**changed: bytes | None) -> dict[str, bytes | None]:
    """A GIF a clip, of 1, 3, 5, … frames; each shows another number."""
    made: dict[str, bytes | None] = {
        id: gif([numbered(10 * n + i, delay=ms // 10) for i, ms in enumerate(delays)])
        for n, (id, delays) in enumerate(DELAYS_MS.items())
    }
    return {f"gifs/{id}.gif": data for id, data in (made | changed).items()}


def stage_of(storage: Storage, config: ClipsConfig = TINY, **changed: bytes | None) -> Stage[Any, Any]:
    return clips(frames(sealed(storage, files(**changed)), ITEMS, TAKEN), config)


def frames_of(output: Output) -> FrameStore:
    (made_from,) = output.about["inputs"]
    return FrameStore(Output(output.storage, f"frames/{made_from['identity']}"))


def test_every_sample_has_the_features_of_the_frame_it_shows(storage: Storage) -> None:
    output = build(stage_of(storage), storage)
    store, taken, extractor = FeatureStore(output), frames_of(output), load(TINY)
    assert store.ids == tuple(DELAYS_MS)
    assert not store.absent
    assert (store.spec.ragged, store.spec.row_shape, store.spec.dtype) == (True, (512,), "float16")
    for id, delays in DELAYS_MS.items():
        (rows,) = store.read([id])
        shown = shown_of_delays(delays)
        assert len(rows) == len(shown)
        alone = np.concatenate([extractor(pixels(jpeg, TINY)[None]) for jpeg in taken.jpegs(id)])
        numbers = sorted(set(shown))
        np.testing.assert_allclose(rows, alone[[numbers.index(frame) for frame in shown]], rtol=5e-3, atol=5e-3)
        for earlier, later in zip(range(len(shown) - 1), range(1, len(shown)), strict=True):
            assert (rows[earlier] == rows[later]).all() == (shown[earlier] == shown[later])
    samples = sum(len(shown_of_delays(delays)) for delays in DELAYS_MS.values())
    assert output.totals["counts"] == {"clips": 8, "rows": samples}


def test_the_store_says_what_made_it(storage: Storage) -> None:
    output = build(stage_of(storage), storage)
    provenance = FeatureStore(output).provenance
    told = {"network": "resnet18", "weights": "random:0", "output": "pooled", "batch_size": 4}
    assert told.items() <= provenance.items()
    assert provenance["weights_sha256"] == load(TINY).weights_sha256
    assert {"fps": 8, "short_side": 64, "delays": "browser"}.items() <= provenance["frames"].items()


def test_workers_and_their_order_change_no_byte(tmp_path: Path) -> None:
    threads, trees = torch.get_num_threads(), set()
    for number, run in enumerate((serial, backwards, by_turns)):
        storage = open_storage(str(tmp_path / str(number)))
        build(stage_of(storage, c4=None), storage, run)
        trees.add(tree_digest(storage.url))
        torch.set_num_threads(2)
    torch.set_num_threads(threads)
    assert len(trees) == 1


def test_clips_without_frames_are_counted_and_refused(storage: Storage) -> None:
    whole = FeatureStore(build(stage_of(storage), storage))
    output = build(stage_of(storage, c4=None, c6=b"<html>sorry</html>"), storage)
    assert output.totals["failures"] == {"absent": 2}
    store = FeatureStore(output)
    assert store.absent == {GONE, BROKEN}
    assert [id for unit in output.units() for id, _, _ in unit.failures] == [GONE, BROKEN]
    with pytest.raises(UserError, match=f"has no features of '{GONE}'"):
        store.read(["c0", GONE])
    for id in DELAYS_MS.keys() - store.absent:
        np.testing.assert_allclose(store.read([id])[0], whole.read([id])[0], rtol=5e-3, atol=5e-3)
    np.testing.assert_array_equal(store.read(["c0", "c1", "c2"])[2], whole.read(["c2"])[0])  # in a shard of their own


def test_a_clip_too_narrow_for_the_network_is_a_failure_and_costs_no_other(storage: Storage) -> None:
    narrow, kept = encode_jpeg(np.zeros((60_000, 1, 3), np.uint8)), replace(TAKEN, upscale=False)
    taken = [frames(sealed(storage, files(**some)), ITEMS, kept) for some in ({}, {"c4": narrow})]
    whole, output = (build(clips(stage, TINY), storage) for stage in taken)
    assert output.totals["failures"] == {"unreadable": 1}
    assert output.totals["counts"]["clips"] == 7
    store, other = FeatureStore(output), FeatureStore(whole)
    assert store.absent == {GONE}
    for id in DELAYS_MS.keys() - store.absent:
        np.testing.assert_allclose(store.read([id])[0], other.read([id])[0], rtol=5e-3, atol=5e-3)


def test_a_shard_of_clips_that_are_all_absent(storage: Storage) -> None:
    output = build(stage_of(storage, c0=None, c1=None, c2=None), storage)
    assert FeatureStore(output).absent == {"c0", "c1", "c2"}
    assert len(FeatureStore(output).read(["c7"])[0]) == len(shown_of_delays(DELAYS_MS["c7"]))


def test_a_later_seal_redoes_only_the_shards_that_it_changes(storage: Storage) -> None:
    """Shards of three clips, of frames in shards of four: of the second both are read."""
    before = build(stage_of(storage, c7=None), storage)
    done: list[str] = []
    after = build(watched(stage_of(storage), done), storage)
    assert done == ["c3", "c6"]
    fresh = open_storage(f"{storage.url}-fresh")
    again = build(stage_of(fresh), fresh)
    assert (after.identity, after.checksums) == (again.identity, again.checksums)
    assert before.identity != after.identity


def watched(stage: Stage[Any, Any], done: list[str]) -> Stage[Any, Any]:
    def opened(config: Any, inputs: Inputs) -> Callable[[Any, Sink], Counts]:
        do = stage.open(config, inputs)

        def write(work: Any, sink: Sink) -> Counts:
            done.append(work.ids[0])
            return do(work, sink)

        return write

    return replace(stage, open=opened)


def test_what_decides_an_identity(storage: Storage, tmp_path: Path) -> None:
    torch.save(dict(named_state(load(replace(TINY, weights="random:7")).trunk)), tmp_path / "here.pth")
    media = sealed(storage, files())
    taken = frames(media, ITEMS, TAKEN)
    stages = [clips(taken, TINY), clips(frames(media, ITEMS, replace(TAKEN, fps=4)), TINY)]
    stages += [clips(taken, TINY, tmp_path / "here.pth")]
    for changes in ({"weights": "random:7"}, {"resize": 72}, {"batch_size": 5}, {"items_per_shard": 4}):
        stages.append(clips(taken, replace(TINY, **changes)))
    assert len({stage.identity for stage in stages}) == len(stages)
    build(taken, storage)
    assert pending(stages[0], storage) == (4, 4)
    from_file, seeded = (FeatureStore(build(stages[place], storage)) for place in (2, 3))
    np.testing.assert_array_equal(from_file.read(["c5"])[0], seeded.read(["c5"])[0])


def test_a_clip_has_one_row_a_sample() -> None:
    with pytest.raises(ValueError, match="its output is pooled"):
        ClipsConfig("resnet18", "random:0", output="grid")
    assert parse_settings(["clips.network=resnet50"], {"clips": ClipsConfig()}) == {"clips.network": "resnet50"}
    most = 2048  # samples of a clip, at most: no shard of the usual length is ever too short
    assert ClipsConfig().items_per_shard * most <= ClipsConfig().spec.shard_rows


def test_pictures_have_no_clips(tmp_path: Path) -> None:
    corpus = coco.write(World(20, image_size=32), tmp_path / "raw")
    with pytest.raises(UserError, match=r"coco has no clips: \w+ is for clips, not pictures"):
        build_stages(
            CorpusBuild(BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw"), corpus), ["clips"]
        )


# ----------------------------------------------------------------------------------------------------- what reads them

SETTINGS: dict[str, object] = {"clips.network": "resnet18", "clips.weights": "random:0", "frames.short_side": 64}
SETTINGS |= {"clips.resize": 64, "clips.crop": 64}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world in TGIF's files, from its GIFs to the features of its clips; and another corpus beside it."""
    folder = tmp_path_factory.mktemp("tgif")
    corpus = tgif.write(World(40, image_size=64, motion=1.0), folder / "raw")
    storage = open_storage(str(folder / "root"))
    site = BuildOptions(storage, raw=folder / "raw", settings=SETTINGS)
    corpus = replace(corpus, media=lambda raw: (replace(one, url=None, how="gone") for one in tgif_media(raw)))
    assert {row["stage"]: row.get("waits_for") for row in plan([(CorpusBuild(site, corpus), ["clips"])])} == {
        "sources": None,
        "records": "sources",
        "media": "sources",
        "frames": "records and media",
        "clips": "frames",
    }
    build_stages(CorpusBuild(site, corpus), ["records", "media"])
    planned, waiting = plan([(CorpusBuild(site, corpus), ["clips"])])
    assert (planned["stage"], waiting["waits_for"]) == ("frames", "frames")
    (planned,) = plan([(CorpusBuild(site, corpus), ["frames"])])
    assert planned["writes"] == 40 * 850_000 // 16, "as many pixels a frame as 64 pixels of 256 make"
    (taken,) = build_stages(CorpusBuild(site, corpus), ["frames"])
    (planned,) = plan([(CorpusBuild(site, corpus), ["clips"])])
    assert planned["writes"] == taken["counts"]["samples"] * 512 * 2
    assert "kB to write, about" in next(plan_command.text({"stages": [planned], "free_bytes": None}))
    (row,) = build_stages(CorpusBuild(site, corpus), ["clips"])
    assert row["counts"]["clips"] == 38
    assert row["failures"] == {"absent": 2}
    assert plan([(CorpusBuild(site, corpus), ["clips"])])[0] == {
        "corpus": "tgif",
        "stage": "clips",
        "units": 2,
        "done": 2,
        "writes": 0,
    }
    build_stages(CorpusBuild(site, replace(corpus, name="twin", media_set="twin")), ["records"])
    return folder / "root"


def tgif_media(raw: Any) -> Any:
    media = load_corpus("tgif").media
    assert media is not None
    return media(raw)


def test_three_lines_from_a_root_to_batches_of_clips(root: Path) -> None:
    data = xmodal.open(str(root), "tgif")
    shapes = [batch.streams["annotated"].visual.values.shape for batch in data.loader(frames=8, batch_size=8)]
    assert {shape[1:] for shape in shapes} == {(8, 512)}
    assert {output.stage for output in data.features} == {"clips", "frames"}
    assert xmodal.open(str(root), "twin").features == ()  # which are of other media


def test_pvse_learns_from_clips_and_is_evaluated_as_the_paper_does(root: Path, tmp_path: Path, capsys: Any) -> None:
    sets = ("text.vectors=none", "phase2.epochs=0", "phase1.epochs=2", "model.width=16", "model.word_width=8")
    settings = [part for text in (*sets, "batch_size=8") for part in ("--set", text)]
    run = str(tmp_path / "run")
    assert main(["train", "pvse-tgif", "--root", str(root), "--run", run, *settings]) == 0
    started = run_folder.read(run)
    assert started.recipe.visual == Features("clips", frames=8, ends=6)
    capsys.readouterr()
    looked = ["look", run, "--root", str(root), "--attention", str(tmp_path / "sheets"), "--first", "2"]
    assert main([*looked, "--json"]) == 0
    for drawn in json.loads(capsys.readouterr().out)["pictures"]:
        with Image.open(drawn["path"]) as sheet:
            assert sheet.height > 64 > len(drawn["caption"].split()) > 0
    assert main(["evaluate", run, "--root", str(root), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["split"], report["items"], report["absent"]) == ("tgif/test", 3, 1)
    assert report["weights"].startswith("resnet18 random:0")


def test_status_counts_the_clips_that_can_be_used(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--root", str(root)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("frames/"))
    assert re.search(r": 38 clips, [\d,]+ frames, 38 ok, [\d,]+ samples, 2 absent$", line), line


def test_clips_of_a_list_that_grew_are_those_of_all_its_items(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for path, data in files().items():
        (tmp_path / "raw" / Path(path).name).write_bytes(data or b"")
    names = sorted(path.name for path in (tmp_path / "raw").iterdir())
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    for count in (4, 8):
        captions = "".join(f"{name},something {name}\n" for name in names[:count])
        (tmp_path / "raw/list.csv").write_text(f"url,caption\n{captions}")
        target = [f"{tmp_path / 'raw/list.csv'}/clips", "--root", str(tmp_path / "root"), "--serial"]
        assert main(["build", *target, *settings]) == 0
    data = xmodal.open(str(tmp_path / "root"), "list")
    assert len([output for output in data.features if output.stage == "clips"]) == 2
    assert len(data.store().ids) == 8
    records = data.records
    assert len(open_features(data.root, "clips", None, records).ids) == 8


def test_ends_are_left_out_in_evaluation(root: Path) -> None:
    data = xmodal.open(str(root), "tgif")
    store = data.store()
    view = replace(recipes()["pvse-tgif"].validation, split="tgif/train")
    examples = Examples.of(data.records, view, store, data.vocabulary("tgif/train"))
    values = Reader(examples, store, Features("clips", frames=8, ends=6)).visual(slice(None)).values.numpy()
    lengths = store.lengths(examples.rows)
    assert (lengths > 12).any()
    assert (lengths <= 12).any()
    for place, (id, length) in enumerate(zip(examples.ids, lengths.tolist(), strict=True)):
        ends = 6 if length > 12 else 0
        skip = max(1, (length - 2 * ends + 1) // 8)
        inside = list(range(ends, length - ends, skip))[:8]
        padded = inside + (8 - len(inside)) * inside[-1:]
        np.testing.assert_array_equal(values[place], store.read([id])[0][padded])
        assert evaluation_frames(np.array([length]), 8, "official", 6)[0].tolist() == padded
