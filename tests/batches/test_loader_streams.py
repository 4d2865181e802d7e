"""The loader with several streams, processes and captions, and with frames of clips."""

import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.batches.test_loader import (
    BATCH,
    MODES,
    WORLDS,
    captions,
    check,
    ranks,
    reader,
    run,
    steps,
    stream,
    values,
    visual_items,
)
from tests.batches.test_loader import made as made
from tests.batches.test_loader import root as root
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Stream
from xmodal.batches.loader import Captions, Loader
from xmodal.batches.reader import Reader
from xmodal.recipes import Features, Neighbours

TWO = {ANNOTATED: ("grids", 40, 0), UNANNOTATED: ("boxes", 23, 60)}


def two(root: str) -> dict[str, Reader]:
    return {name: reader(root, array, items, first=first) for name, (array, items, first) in TWO.items()}


@pytest.mark.usefixtures("made")
def test_two_streams_advance_together(root: str) -> None:
    loader = Loader(two(root), BATCH, seed=2)
    assert len(loader) == -(-79 // BATCH)
    epochs = [list(loader) for _ in range(3)]
    for batches in epochs:
        assert sorted(captions(batches)) == list(range(79))
        for batch in batches:
            assert set(batch.streams) == set(TWO)
            check(stream(batch))
            part = stream(batch, UNANNOTATED)
            assert len(part.captions) == len(stream(batch).captions)
            for row, item in enumerate(part.visual_items.tolist()):
                np.testing.assert_array_equal(part.visual.values[row].numpy(), values("boxes", 60 + item))
    others = [caption for batches in epochs for caption in captions(batches, UNANNOTATED)]
    count = sum(1 + item % 3 for item in range(23))
    for start in range(0, len(others) - count + 1, count):
        assert sorted(others[start : start + count]) == list(range(count))
    assert others[:count] != others[count : 2 * count]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=WORLDS, after=WORLDS, cut=st.integers(1, 3), epoch=st.integers(0, 3), mode=MODES)
def test_two_streams_go_on_together(root: str, before: int, after: int, cut: int, epoch: int, mode: Captions) -> None:
    """Also where an epoch of the shorter one ends within a batch, and captions are drawn."""
    alone = Loader(two(root), BATCH, captions=mode)
    first, second = (ranks(two(root), world, captions=mode) for world in (before, after))
    for loader in [alone, *first]:
        loader.set_epoch(epoch)
    expected = list(alone)
    seen = steps(first, cut)
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
    for step, batch in zip(seen + steps(second), expected, strict=True):
        for name in TWO:
            count = len(captions([batch], name))
            assert captions(step, name)[:count] == captions([batch], name)


def test_frames_of_a_second_stream_do_not_depend_on_the_ranks(root: str) -> None:
    clips = reader(root, "frames", 23, frames=Features("arrays", 3), first=60)
    streams = {ANNOTATED: reader(root, items=60), UNANNOTATED: clips}
    alone, together = Loader(streams, BATCH), ranks(streams, 2)
    for batch, step in zip(alone, steps(together), strict=True):
        found = np.concatenate([stream(part, UNANNOTATED).visual.values.numpy() for part in step])
        expected = stream(batch, UNANNOTATED).visual.values.numpy()
        np.testing.assert_array_equal(found[: len(expected)], expected)


def test_whole_clips_are_padded(root: str) -> None:
    lengths = set[int]()
    for batch in Loader(reader(root, "frames"), BATCH):
        check(stream(batch), "frames")
        lengths |= set(stream(batch).visual.lengths.tolist())
        assert stream(batch).visual.values.shape[1] == stream(batch).visual.lengths.max()
    assert len(lengths) > 5


def places(part: Stream, row: int) -> list[int]:
    """Which frames of its clip a row is; no two frames are alike."""
    clip = values("frames", int(part.visual_items[row]))
    found = [np.flatnonzero((clip == frame).all(axis=1)).tolist() for frame in part.visual.values[row].numpy()]
    assert all(len(match) == 1 for match in found)
    return [place for (place,) in found]


def test_training_draws_frames_for_every_sample_and_epoch(root: str) -> None:
    loader = Loader(reader(root, "frames", frames=Features("arrays", 3)), BATCH)
    seen: dict[int, set[tuple[int, ...]]] = {}
    for _ in range(8):
        for batch in loader:
            part = stream(batch)
            assert part.visual.values.shape[1:] == (3, 16)
            assert part.visual.mask.all()
            for row, caption in enumerate(part.captions.tolist()):
                found = places(part, row)
                seen.setdefault(caption, set()).add(tuple(found))
                assert is_clip(found, len(values("frames", int(part.visual_items[row]))))
    drawn = {caption: len(found) for caption, found in seen.items()}
    long = [caption for caption in drawn if len(values("frames", reader(root).examples.caption_items[caption])) > 9]
    assert len(long) > 5
    assert min(drawn[caption] for caption in long) > 1


def is_clip(found: list[int], length: int) -> bool:
    """docs/models.md#frame-sampling: one stride of 1, 2 or 3; where a clip ends, its last frame taken is repeated."""
    for stride in (1, 2, 3):
        for start in range(max(0, length - stride * len(found)) + 1):
            wanted = [place for place in range(start, start + stride * len(found), stride) if place < length]
            if found == wanted + [wanted[-1]] * (len(found) - len(wanted)):
                return True
    return False


def test_a_sample_s_frames_do_not_depend_on_its_batch(root: str) -> None:
    one = reader(root, "frames", frames=Features("arrays", 4))
    found = []
    for loaders in (ranks(one, 1), ranks(one, 3), ranks(one, 2, 20)):
        drawn = {}
        for step in steps(loaders):
            for part in map(stream, step):
                drawn |= {c: places(part, row) for row, c in enumerate(part.captions.tolist()) if c not in drawn}
        found.append(drawn)
    assert found[0] == found[1] == found[2]


def test_evaluation_reads_every_clip_alike(root: str) -> None:
    one = reader(root, "frames", frames=Features("arrays", 8, ends=2))
    read = one.visual(slice(0, 40))
    for item in range(40):
        clip = values("frames", item)
        ends = 2 if len(clip) > 4 else 0
        skip = max(1, (len(clip) - 2 * ends + 1) // 8)
        wanted = list(range(ends, len(clip) - ends, skip))[:8]
        wanted += [wanted[-1]] * (8 - len(wanted))
        np.testing.assert_array_equal(read.values[item].numpy(), clip[wanted])
    assert torch.equal(one.visual(np.array([7, 3])).values, read.values[[7, 3]])
    assert read.mask.all()


def test_frames_can_be_spread_evenly(root: str) -> None:
    one = reader(root, "frames", frames=Features("arrays", 8, rule="linspace"))
    training = next(iter(Loader(one, 40, captions="one")))
    for item, read in zip(visual_items([training]), stream(training).visual.values, strict=True):
        clip = values("frames", item)
        wanted = [round(place) for place in np.linspace(0, len(clip) - 1, 8).tolist()]
        np.testing.assert_array_equal(read.numpy(), clip[wanted])
        assert torch.equal(one.visual(np.array([item])).values[0], read)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_torch_s_data_loader_gives_every_sample_once(root: str, workers: int) -> None:
    loader = Loader(reader(root), BATCH, dtype=torch.float32)
    habit = DataLoader(loader, batch_size=None, num_workers=workers)
    assert len(habit) == len(loader) == 7
    own = Loader(reader(root), BATCH)
    for epoch in range(2):
        loader.set_epoch(epoch)
        batches = list(habit)
        assert captions(batches) == captions(list(own))
        for batch in batches:
            part = stream(batch)
            for row, item in enumerate(part.visual_items.tolist()):
                np.testing.assert_array_equal(part.visual.values[row].numpy(), values("grids", item))
    loader.load_state_dict({"seed": 0, "epoch": 0, "cursor": 24})
    own.set_epoch(0)
    assert captions(list(habit)) == captions(list(own))[24:]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_that_live_on_begin_where_they_are_told_to(root: str, start: str, pickled: bool) -> None:
    """Also after a pass that was broken off, of which each of them had made another part."""
    loader, own = (Loader(reader(root), 4, rank=1, world=2) for _ in range(2))
    loader = pickle.loads(pickle.dumps(loader)) if pickled else loader
    habit = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=start)
    for epoch, taken in ((0, 5), (1, None), (1, None), (4, 3), (4, None), (2, None)):
        loader.set_epoch(epoch)
        own.load_state_dict({"seed": 0, "epoch": epoch, "cursor": 0})
        assert captions(list(islice(habit, taken))) == captions(list(islice(own, taken)))
    for one in (loader, own):
        one.load_state_dict({"seed": 3, "epoch": 2, "cursor": 24})
    assert captions(list(habit)) == captions(list(own))


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_another_process_goes_its_own_way(root: str, start: Any) -> None:
    loader = Loader(reader(root), BATCH)
    other = torch.multiprocessing.get_context(start).Process(target=list, args=(loader,))
    other.start()
    other.join(60)
    assert other.exitcode == 0
    expected = captions(list(Loader(reader(root), BATCH)))
    assert captions(list(DataLoader(loader, batch_size=None, num_workers=1))) == expected


PROCESS = """
import json, sys, time
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from tests.batches.test_loader import Loader, captions, reader, stream
torch.set_num_threads(1)
root, meeting, rank, state = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
loader = Loader(reader(root), 12, dtype=torch.float32)
loader.load_state_dict(state)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
seen = []
for batch in loader:
    model(stream(batch).visual.values).sum().backward()
    seen.append(captions([batch]))
gathered = [None, None]
distributed.all_gather_object(gathered, (seen, loader.state_dict()))
if rank == 0:
    print(json.dumps(gathered))
distributed.destroy_process_group()
time.sleep(0.2)  # gloo's threads let go of the last message a moment later, and abort an interpreter that has ended
"""


def test_distributed_processes_share_an_epoch(root: str, tmp_path: Path) -> None:
    """Rank and world are found; each has as many steps, or the gradients would wait for each other for ever."""
    state = {"seed": 4, "epoch": 2, "cursor": 12}
    arguments = root, str(tmp_path / "meeting")
    loopback = {"GLOO_SOCKET_IFNAME": "lo"}
    children = [run(PROCESS, *arguments, str(rank), json.dumps(state), **loopback) for rank in range(2)]
    try:
        told = [child.communicate(timeout=90) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [child.returncode for child in children] == [0, 0], told
    (first, after), (second, other) = json.loads(told[0][0])
    assert after == other == {"seed": 4, "epoch": 3, "cursor": 0}
    assert [len(part) for part in first] == [len(part) for part in second] == [6] * 5 + [4]
    alone = Loader(reader(root), BATCH)
    alone.load_state_dict(state)
    together = [caption for parts in zip(first, second, strict=True) for part in parts for caption in part]
    assert together[:67] == captions(list(alone))
    assert len(together) == 68


def test_a_loader_without_its_annotated_stream_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match="streams are 'annotated'"):
        next(iter(Loader({UNANNOTATED: reader(root)}, BATCH)))


def test_a_rule_that_there_is_not_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match="linspaced"):
        list(Loader(reader(root, "frames", frames=Features("arrays", 8, rule="linspaced")), BATCH))  # type: ignore[arg-type]


@given(world=WORLDS, count=st.integers(2, 4), epoch=st.integers(0, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_pair_brings_captions_of_its_item_whoever_reads_it(root: str, world: int, count: int, epoch: int) -> None:
    """Items here have one, two or three captions: those of one come again, so that all ranks have equally many."""
    alone, *shared = (
        Loader(reader(root), BATCH, sampler=Neighbours(count)),
        *ranks(reader(root), world, sampler=Neighbours(count)),
    )
    for loader in (alone, *shared):
        loader.set_epoch(epoch)
    examples, order = reader(root).examples, list[int]()
    for batch, parts in zip(alone, steps(shared), strict=True):
        whole = stream(batch)
        rows = whole.captions.reshape(-1, count)
        order += rows[:, 0].tolist()
        together = torch.cat([stream(part).captions for part in parts])
        assert together[: len(whole.captions)].tolist() == whole.captions.tolist()
        assert all(len(stream(part).text) == count * len(stream(part).visual) for part in parts)
        assert whole.positives.tolist() == [[row, count * row + n] for row in range(len(rows)) for n in range(count)]
        for item, brought in zip(whole.visual_items.tolist(), rows.tolist(), strict=True):
            own = np.flatnonzero(examples.caption_items == item).tolist()
            assert set(brought) <= set(own)
            assert len(set(brought)) == min(count, len(own))
        check(whole)
    assert sorted(order) == list(range(len(examples.words)))


def test_neighbours_are_of_a_pair_and_two_or_more(root: str) -> None:
    with pytest.raises(ValueError, match="captions are 'each', not 'all'"):
        Loader(reader(root), BATCH, sampler=Neighbours(2), captions="all")
    with pytest.raises(ValueError, match="2 or more, not 1"):
        Neighbours(1)
