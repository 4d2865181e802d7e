"""The loader: every sample once an epoch for any number of ranks, from anywhere on, in memory that nobody else sees."""

import gc
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from pipelines.engine.building import build
from tests.toy_root import Facts, facts, item_id
from tests.toy_root import one_thread as one_thread
from tests.toy_stages import ARRAYS, Arrays, array_values, arrays
from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Batch, Stream
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Captions, Loader
from xmodal.batches.reader import Reader
from xmodal.batches.texts import Texts
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import Features, Neighbours
from xmodal.root.outputs import Output, find
from xmodal.root.storage import open_storage

ITEMS = 150
WHOLE = [item for item in range(ITEMS) if item % 7 and item != 99]  # the others have no rows, or failed
SPECS = {spec.name: spec for spec in ARRAYS}
HERE = Path(__file__).parents[2]
BATCH = 12  # four ranks and fewer share it equally
MODES = st.sampled_from(get_args(Captions))
WORLDS = st.integers(1, 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("loader"))
    build(arrays(Arrays(ITEMS)), open_storage(root))
    build(facts(Facts(ITEMS, shown="number")), open_storage(root))
    return root


@pytest.fixture(params=[0.0, math.inf], ids=["by threads", "at once"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Where batches are made: who comes back at once would have some made in either place."""
    monkeypatch.setattr("xmodal.batches.loader.WORTH_A_THREAD", request.param)
    return float(request.param)


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by the name of the thread that makes a batch."""
    found, visual = list[str](), Reader.visual

    def watched(*arguments: Any) -> Any:
        found.append(threading.current_thread().name)
        return visual(*arguments)

    monkeypatch.setattr(Reader, "visual", watched)
    return found


@cache
def opened(root: str, name: str) -> FeatureStore:
    return FeatureStore(find(root, "arrays")[0], name)


def reader(root: str, name: str = "grids", items: int = 40, frames: Features | None = None, first: int = 0) -> Reader:
    """Of the first item one caption, of the second two, of the fourth one again; each caption has words of its own."""
    store, numbers = opened(root, name), WHOLE[first : first + items]
    owners = [place for place in range(items) for _ in range(1 + place % 3)]
    examples = Examples(
        ids=tuple(f"i{number:05d}" for number in numbers),
        rows=np.array(numbers),
        caption_ids=tuple(f"c{caption}" for caption in range(len(owners))),
        caption_items=np.array(owners),
        words=Texts.of(words(caption) for caption in range(len(owners))),
    )
    return Reader(examples, store, frames) if frames else Reader(examples, store)


def words(caption: int) -> NDArray[np.int32]:
    return np.array([1, *[4 + caption] * (1 + caption % 4), 2], np.int32)


def values(name: str, item: int) -> NDArray[Any]:
    """What the store was given for the reader's item of this number, as a sequence of positions."""
    spec = SPECS[name]
    found = array_values(spec, WHOLE[item])
    return found if spec.ragged else found.reshape(-1, spec.row_shape[-1])


def stream(batch: Batch, name: str = ANNOTATED) -> Stream:
    return batch.streams[name]


def captions(batches: list[Batch], name: str = ANNOTATED) -> list[int]:
    return [caption for batch in batches for caption in stream(batch, name).captions.tolist()]


def visual_items(batches: list[Batch], name: str = ANNOTATED) -> list[int]:
    return [item for batch in batches for item in stream(batch, name).visual_items.tolist()]


def ranks(reader: Reader | dict[str, Reader], world: int, batch_size: int = BATCH, **settings: Any) -> list[Loader]:
    return [Loader(reader, batch_size, rank=rank, world=world, **settings) for rank in range(world)]


def steps(loaders: list[Loader], count: int | None = None) -> list[list[Batch]]:
    """Of each step the batches of all ranks; after `count` of them the loop is broken off."""
    found = []
    for number, batches in enumerate(zip(*loaders, strict=True)):
        found.append(list(batches))
        if number + 1 == count:
            break
    return found


def order(found: list[list[Batch]]) -> list[int]:
    return [caption for step in found for caption in captions(step)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("xmodal-loader")]


def check(part: Stream, name: str = "grids") -> None:
    """Every row against what was written, and every caption's words."""
    assert part.visual.values.dtype == getattr(torch, SPECS[name].dtype)
    for row, item in enumerate(part.visual_items.tolist()):
        wanted, length = values(name, item), int(part.visual.lengths[row])
        np.testing.assert_array_equal(part.visual.values[row, :length].numpy(), wanted)
        assert part.visual.mask[row].tolist() == [place < len(wanted) for place in range(part.visual.values.shape[1])]
        assert not part.visual.values[row, length:].any()
    for row, caption in enumerate(part.captions.tolist()):
        length = int(part.text.lengths[row])
        assert part.text.values[row, :length].tolist() == words(caption).tolist()
        assert not part.text.values[row, length:].any()


@pytest.mark.parametrize("name", ["grids", "regions", "boxes", "frames"])
@pytest.mark.parametrize("mode", ["each", "one", "all"])
def test_values_and_words_are_those_of_the_store_and_the_captions(root: str, name: str, mode: Any) -> None:
    one = reader(root, name)
    for batch in Loader(one, BATCH, captions=mode):
        part = stream(batch)
        check(part, name)
        owners = one.examples.caption_items
        assert part.text_items.tolist() == owners[part.captions.numpy()].tolist()
        pairs = {(int(part.visual_items[v]), int(part.captions[t])) for v, t in part.positives}
        assert len(pairs) == len(part.positives) == len(part.captions)
        assert all(owners[caption] == item for item, caption in pairs)


def test_a_vector_is_a_sequence_of_one_and_a_grid_is_flattened(root: str) -> None:
    pooled = FeatureStore(find(root, "resnet")[0])
    vectors = replace(reader(root), store=pooled)
    for batch in Loader(vectors, BATCH):
        part = stream(batch)
        assert part.visual.values.shape == (len(part.captions), 1, 64)
        numbers = [WHOLE[item] for item in part.visual_items.tolist()]
        assert part.visual.values[:, 0, 5].tolist() == numbers
        assert part.visual.mask.all()
        assert pooled.ids[numbers[0]] == item_id(numbers[0])
    assert stream(next(iter(Loader(reader(root, "grids"), 4)))).visual.values.shape == (4, 16, 16)


@pytest.mark.usefixtures("made")
def test_each_caption_comes_once_an_epoch_with_its_item(root: str) -> None:
    one = reader(root)
    batches = list(Loader(one, BATCH))
    assert sorted(captions(batches)) == list(range(len(one.examples.words)))
    for batch in batches:
        part = stream(batch)
        assert torch.equal(part.visual_items, part.text_items)
        assert part.positives.tolist() == [[row, row] for row in range(len(part.captions))]


def test_of_each_item_comes_one_caption_drawn_anew_every_epoch(root: str) -> None:
    one = reader(root)
    loader = Loader(one, BATCH, captions="one")
    drawn: dict[int, list[int]] = {item: [] for item in range(40)}
    for _ in range(60):
        batches = list(loader)
        assert sorted(visual_items(batches)) == list(range(40))
        for item, caption in zip(visual_items(batches), captions(batches), strict=True):
            assert one.examples.caption_items[caption] == item
            drawn[item].append(caption)
    for item, found in drawn.items():
        times = [found.count(caption) for caption in sorted(set(found))]
        assert len(times) == 1 + item % 3
        assert min(times) >= 60 / (1 + item % 3) / 4


def test_of_each_item_come_all_captions(root: str) -> None:
    one = reader(root)
    batches = list(Loader(one, BATCH, captions="all"))
    assert sorted(visual_items(batches)) == list(range(40))
    assert sorted(captions(batches)) == list(range(len(one.examples.words)))
    for batch in batches:
        part = stream(batch)
        expected = [
            [v, t]
            for v, item in enumerate(part.visual_items.tolist())
            for t, owner in enumerate(part.text_items.tolist())
            if owner == item
        ]
        assert part.positives.tolist() == expected


def test_a_mode_that_there_is_not_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match="ones"):
        Loader(reader(root), BATCH, captions="ones")  # type: ignore[arg-type]


def test_epochs_are_shuffled_anew_and_only_the_seed_decides(root: str) -> None:
    one, same, other = (Loader(reader(root), BATCH, seed=seed) for seed in (3, 3, 4))
    epochs = [captions(list(one)) for _ in range(4)]
    assert epochs == [captions(list(same)) for _ in range(4)]
    orders = {tuple(epoch) for epoch in [*epochs, captions(list(other)), list(range(len(epochs[0])))]}
    assert len(orders) == 6
    same.set_epoch(2)
    assert captions(list(same)) == epochs[2]
    assert same.state_dict() == {"seed": 3, "epoch": 3, "cursor": 0}


def test_the_world_s_randomness_neither_matters_nor_changes(root: str) -> None:
    found = []
    for seed in (0, 1):
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
        found.append(captions(list(Loader(reader(root), BATCH, captions="one"))))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index,union-attr]
    assert found[0] == found[1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.integers(1, 60), world=WORLDS, share=st.integers(1, 9), seed=st.integers(0, 2**33), data=st.data())
def test_ranks_have_equal_counts_and_together_what_one_would_have(
    root: str, items: int, world: int, share: int, seed: int, data: st.DataObject
) -> None:
    """In the order of the ranks; only at the end of an epoch they borrow, fewer samples than there are ranks."""
    mode = data.draw(MODES)
    one, size = reader(root, items=items), world * share
    alone = Loader(one, size, captions=mode, seed=seed)
    together = ranks(one, world, size, captions=mode, seed=seed)
    count = items if mode != "each" else len(one.examples.words)
    assert {len(loader) for loader in [alone, *together]} == {-(-count // size)}
    for _ in range(2):
        expected, found = list(alone), steps(together)
        assert len(expected) == len(found) == len(alone)
        for batch, step in zip(expected, found, strict=True):
            assert len({len(visual_items([part])) for part in step}) == 1
            both, borrowed = visual_items(step), len(visual_items(step)) - len(visual_items([batch]))
            assert both[: len(both) - borrowed] == visual_items([batch])
            assert captions(step)[: len(captions([batch]))] == captions([batch])
            assert 0 <= borrowed < world
            samples = len(captions([batch])) if mode == "each" else len(visual_items([batch]))
            assert {part.borrowed for part in step} == {-samples % world}
            assert not borrowed or step is found[-1]
        assert len({tuple(loader.state_dict().items()) for loader in [alone, *together]}) == 1


@pytest.mark.parametrize(
    ("world", "advice"), [(2, "take 8 or 6"), (3, "take 9 or 6"), (4, "take 8 or 4"), (8, "take 8")]
)
def test_a_batch_that_cannot_be_shared_equally_is_refused_with_advice(root: str, world: int, advice: str) -> None:
    with pytest.raises(ValueError, match=f"7 samples a step cannot be shared equally by {world} ranks: {advice}$"):
        Loader(reader(root), 7, rank=0, world=world)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"ahead": 0}, "ahead 0"),
        ({"rank": 2, "world": 2}, "rank 2 is not one of 2"),
        ({"rank": -1, "world": 2}, "rank -1 is not one of 2"),
        ({"batch_size": 100, "drop_last": True}, "79 samples are less than one batch of 100"),
    ],
)
def test_settings_that_make_no_sense_are_refused(root: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(reader(root), **{"batch_size": BATCH, **arguments})


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_last_batch_can_be_dropped(root: str, world: int) -> None:
    one = reader(root)
    count = len(one.examples.words)
    together = ranks(one, world, drop_last=True)
    for _ in range(3):
        found = steps(together)
        assert len(found) == len(together[0]) == count // BATCH
        assert {len(captions([batch])) for step in found for batch in step} == {BATCH // world}
        assert len(set(order(found))) == len(order(found)) == count // BATCH * BATCH


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.integers(6, 60), before=WORLDS, after=WORLDS, seed=st.integers(0, 99), data=st.data())
def test_a_state_goes_on_with_exactly_the_remaining_samples(
    root: str, items: int, before: int, after: int, seed: int, data: st.DataObject
) -> None:
    one = reader(root, items=items)
    count = len(one.examples.words)
    sizes = [world * data.draw(st.integers(1, 5)) for world in (before, after)]
    epoch = data.draw(st.integers(0, 2))
    first = ranks(one, before, sizes[0], seed=seed)
    for loader in first:
        loader.set_epoch(epoch)
    assume(len(first[0]) > 1)
    cut = data.draw(st.integers(1, len(first[0]) - 1))
    seen = order(steps(first, cut))
    (state,) = {json.dumps(loader.state_dict()) for loader in first}
    second = ranks(one, after, sizes[1], seed=seed + 1)
    for loader in second:
        loader.load_state_dict(json.loads(state))
    seen += order(steps(second))
    assert sorted(seen[:count]) == list(range(count))
    assert len(seen) - count < max(before, after)
    undisturbed = Loader(one, 5, seed=seed)
    undisturbed.set_epoch(epoch)
    assert seen[:count] == captions(list(undisturbed))
    assert order(steps(second))[:count] == captions(list(undisturbed))


@pytest.mark.parametrize(
    "state",
    [
        {"seed": 0, "epoch": 0, "cursor": 80},
        {"seed": 0, "epoch": 0, "cursor": -1},
        {"seed": 0, "epoch": -1, "cursor": 0},
        {"seed": 0, "epoch": 0},
        {"seed": 0, "epoch": 0, "cursor": 12.0},
        None,
        [0, 0, 0],
    ],
)
def test_a_state_of_other_epochs_is_refused(root: str, state: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="is no place in epochs of 79 samples: give the dict that state_dict"):
        Loader(reader(root), BATCH).load_state_dict(state)


def test_a_state_may_have_numpys_integers(root: str) -> None:
    loader = Loader(reader(root), BATCH)
    loader.load_state_dict({"seed": np.int64(3), "epoch": np.uint8(1), "cursor": torch.tensor(24)})  # type: ignore[dict-item]
    assert json.dumps(loader.state_dict()) == '{"seed": 3, "epoch": 1, "cursor": 24}'


KILLED = """
import json, sys, time
from tests.batches.test_loader import order, ranks, reader
loaders = ranks(reader(sys.argv[1]), 2, seed=5)
with open(sys.argv[2], "a") as file:
    for batches in zip(*loaders, strict=True):
        line = {"seen": order([batches]), "states": [loader.state_dict() for loader in loaders]}
        file.write(json.dumps(line) + "\\n")
        file.flush()
        print(len(line["seen"]), flush=True)
        time.sleep(0.2)
"""


def run(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def test_a_killed_loader_goes_on_with_exactly_the_remaining_samples(root: str, tmp_path: Path) -> None:
    """Two ranks are killed in the middle of an epoch, and one, two, three or four go on."""
    ledger = tmp_path / "ledger"
    with run(KILLED, root, str(ledger)) as child:
        assert child.stdout is not None
        for _ in range(3):
            assert child.stdout.readline() == f"{BATCH}\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    seen = [caption for line in lines for caption in line["seen"]]
    state, other = lines[-1]["states"]
    assert 0 < state["cursor"] == other["cursor"] == len(seen) < 79
    for world in (1, 2, 3, 4):
        rest = ranks(reader(root), world)
        for loader in rest:
            loader.load_state_dict(state)
        both = seen + order(steps(rest))
        assert sorted(both[:79]) == list(range(79))
        assert len(both) - 79 < world
        assert {loader.epoch for loader in rest} == {1}


@pytest.mark.usefixtures("made")
def test_a_loop_that_was_broken_off_goes_on_there(root: str) -> None:
    whole, broken = Loader(reader(root), BATCH), Loader(reader(root), BATCH)
    expected = [captions(list(whole)) for _ in range(2)]
    found = order(steps([broken], 2)) + order(steps([broken], 1)) + order(steps([broken]))
    assert [found, captions(list(broken))] == expected
    assert broken.state_dict() == whole.state_dict()


TAKEN: dict[str, Callable[[Loader], list[Batch]]] = {
    "zip": lambda loader: [batch for _, batch in zip(range(len(loader)), loader, strict=False)],
    "islice": lambda loader: list(islice(loader, len(loader))),
}


@pytest.mark.parametrize("habit", list(TAKEN))
def test_an_epoch_of_which_every_batch_was_taken_is_over(root: str, habit: str) -> None:
    """Though nobody asked whether there is another one: the next loop is the next epoch, never an empty one."""
    whole, counted = Loader(reader(root), BATCH), Loader(reader(root), BATCH)
    expected = [captions(list(whole)) for _ in range(3)]
    assert [captions(TAKEN[habit](counted)) for _ in range(3)] == expected


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


@pytest.mark.parametrize("name", ["grids", "boxes", "frames"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_come_in_the_dtype_asked_for(root: str, name: str, dtype: torch.dtype) -> None:
    for batch in Loader(reader(root, name), BATCH, dtype=dtype):
        part = stream(batch)
        assert part.visual.values.dtype == dtype
        for row, item in enumerate(part.visual_items.tolist()):
            wanted = values(name, item).astype(str(dtype).removeprefix("torch."))
            np.testing.assert_array_equal(part.visual.values[row, : len(wanted)].numpy(), wanted)


HOLD: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda values: values,
    "a slice": lambda values: values[:, :, 3:9],
    "a view": lambda values: values.transpose(1, 2).flatten(1),
    "what was detached": lambda values: values.detach(),
    "an array": lambda values: values.numpy()[..., 1:],
    "the storage": lambda values: (values.untyped_storage(), values.shape),
    "what DLPack gave": lambda values: torch.from_dlpack(values),
}


def held_values(kind: str, held: Any, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What is held now, and what it must be."""
    if kind == "the storage":
        storage, shape = held
        dtype = getattr(torch, values.dtype.name)
        return torch.empty(0, dtype=dtype).set_(storage).flatten()[-values.size :].reshape(shape).numpy(), values  # type: ignore[arg-type]
    return np.asarray(held), np.asarray(HOLD[kind](torch.from_numpy(values)))


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("dtype", [None, torch.float32])
@pytest.mark.parametrize("kind", list(HOLD))
def test_what_is_held_is_never_overwritten(root: str, kind: str, dtype: torch.dtype | None) -> None:
    held = []
    loader = Loader(reader(root), BATCH, dtype=dtype)
    for _ in range(2):
        for batch in loader:
            held.append((HOLD[kind](stream(batch).visual.values), visual_items([batch])))
    del batch
    for some, items in held:
        wanted = np.stack([values("grids", item) for item in items]).astype("float16" if dtype is None else "float32")
        np.testing.assert_array_equal(*held_values(kind, some, wanted))


@pytest.mark.usefixtures("made")
def test_what_a_backward_pass_needs_is_never_overwritten(root: str) -> None:
    weight, losses, expected = torch.ones(16, 16, requires_grad=True), [], np.zeros((16, 16), np.float32)
    for batch in Loader(reader(root), BATCH, dtype=torch.float32):
        losses.append((stream(batch).visual.values * weight).sum())
        expected += sum(values("grids", item).astype(np.float32) for item in visual_items([batch]))
    del batch
    torch.stack(losses).sum().backward()
    assert weight.grad is not None
    np.testing.assert_array_equal(weight.grad.numpy(), expected)


def test_what_evaluation_holds_is_never_overwritten(root: str) -> None:
    one = reader(root)
    held = [one.visual(slice(first, first + 8)).values for first in range(0, 40, 8)]
    for item, read in enumerate(torch.cat(held)):
        np.testing.assert_array_equal(read.numpy(), values("grids", item))


@pytest.mark.usefixtures("made")
def test_the_other_tensors_of_a_batch_are_its_own(root: str) -> None:
    loader = Loader(reader(root), BATCH)
    kept = captions(list(loader))
    loader.set_epoch(0)
    for batch in loader:
        for tensor in (stream(batch).captions, stream(batch).visual_items, stream(batch).text.values):
            tensor.fill_(-1)
        stream(batch).visual.values.fill_(-1)
    loader.set_epoch(0)
    assert captions(list(loader)) == kept


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", ["grids", "frames"])
def test_memory_of_dropped_batches_is_used_again(root: str, name: str) -> None:
    loader = Loader(reader(root, name), 4, ahead=2)
    pointers = [[stream(batch).visual.values.data_ptr() for batch in loader] for _ in range(3)]
    assert len(pointers[0]) == 20
    if name == "grids":  # where lengths differ, memory that is too short is given back
        assert all(len(set(some)) <= 10 for some in pointers)
    assert all(pointer % 64 == 0 for pointer in pointers[0])


def test_a_batch_is_given_back_before_the_next_is_made(root: str, made: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[weakref.ref[Batch]] = []
    alive = list[bool]()
    where = Future if made == 0 else Loader
    name = "result" if made == 0 else "_batch"
    awaited = getattr(where, name)

    def watched(*arguments: Any) -> Any:
        alive.extend(ref() is not None for ref in given)
        return awaited(*arguments)

    monkeypatch.setattr(where, name, watched)
    iterator = iter(Loader(reader(root), 4))
    for _ in range(5):
        given.append(weakref.ref(next(iterator)))
    assert len(alive) == 10
    assert not any(alive)


def test_who_comes_back_at_once_has_the_next_batch_made_in_the_memory_of_the_last(
    root: str, made: float, makers: list[str]
) -> None:
    places = {stream(batch).visual.values.data_ptr() for batch in islice(Loader(reader(root), 4), 10)}
    assert set(makers) <= ({"xmodal-loader_0", "xmodal-loader_1"} if made == 0 else {"MainThread"})
    assert made == 0 or len(places) == 2  # this comprehension holds one while it awaits the next


def test_a_busy_consumer_is_read_ahead_for_and_a_quick_one_is_not(
    root: str, makers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmodal.batches.loader.WORTH_A_THREAD", 0.01)
    for number, _ in enumerate(Loader(reader(root), 4)):
        if number > 10:
            time.sleep(0.02)
    assert "MainThread" in makers[:12]
    assert "MainThread" not in makers[13:]


def test_pickles_hold_no_batches(root: str) -> None:
    loader = Loader(reader(root, "regions"), BATCH)
    fresh = len(pickle.dumps(loader))
    steps([loader], 5)
    assert len(pickle.dumps(loader)) < fresh + 10_000  # how many captions an item has is kept


def test_a_pickled_loader_goes_on(root: str) -> None:
    loader = Loader(two(root), BATCH, seed=9, dtype=torch.float32)
    seen = order(steps([loader], 2))
    copy = pickle.loads(pickle.dumps(loader))
    expected = list(loader)
    for one, other in zip(expected, copy, strict=True):
        for name in TWO:
            assert torch.equal(stream(one, name).visual.values, stream(other, name).visual.values)
            assert torch.equal(stream(one, name).captions, stream(other, name).captions)
    assert sorted(seen + captions(expected)) == list(range(79))
    assert copy.state_dict() == loader.state_dict()


def test_breaking_off_leaves_no_thread(root: str) -> None:
    loader = Loader(reader(root), 4)
    for _ in loader:
        assert threads()
        break
    assert threads() == []
    with pytest.raises(ZeroDivisionError):
        fail_in(loader)
    gc.collect()
    assert threads() == []
    list(loader)
    assert threads() == []


def fail_in(loader: Loader) -> None:
    for batch in loader:
        raise ZeroDivisionError(f"{len(captions([batch]))} samples")


HOLDING = """
import sys
import xmodal.batches.loader
from tests.batches.test_loader import Loader, reader
iteration = iter(Loader(reader(sys.argv[1]), 4))
next(iteration)
sys.modules[sys.argv[2]].iteration = iteration
del iteration
print("read")
"""


@pytest.mark.parametrize("holder", ["__main__", "xmodal.batches.loader"])
def test_a_process_ends_though_an_iteration_is_held(holder: str, root: str) -> None:
    with run(HOLDING, root, holder) as child:
        assert child.communicate(timeout=60) == ("read\n", "")
    assert child.returncode == 0


@pytest.mark.usefixtures("made")
def test_a_flipped_bit_reaches_the_consumer_by_file(root: str, tmp_path: Path) -> None:
    source = find(root, "arrays")[0]
    folder = Path(shutil.copytree(source.where, tmp_path / source.folder))
    shard = folder / "grids/c/0/0/0/0"
    data = bytearray(shard.read_bytes())
    data[30 * 512 + 7] ^= 1  # of the 32 rows that the chunks 0 to 3 hold
    shard.write_bytes(data)
    spoilt = replace(reader(root), store=FeatureStore(Output(open_storage(str(tmp_path)), source.folder), "grids"))
    loader, seen = Loader(spoilt, 2), 0

    def read() -> None:
        nonlocal seen
        for batch in loader:
            check(stream(batch))
            seen += 2

    with pytest.raises(UserError, match=r"grids/c/0/0/0/0 is damaged: one of the rows 24 to 31") as found:
        read()
    assert loader.cursor == seen < 79
    assert loader.epoch == 0
    assert "\n" not in str(found.value)
    del found
    gc.collect()
    assert threads() == []


def test_an_absent_row_reaches_the_consumer_by_name(root: str) -> None:
    one = reader(root)
    rows = one.examples.rows.copy()
    rows[20] = 99
    loader = Loader(replace(one, examples=replace(one.examples, rows=rows)), 4)
    with pytest.raises(UserError, match=r"arrays/\w+ has no features of 'i00099'"):
        list(loader)
    gc.collect()
    assert threads() == []


def test_a_clip_without_frames_is_refused_by_name(root: str) -> None:
    one = reader(root, "frames")
    rows = one.examples.rows.copy()
    rows[20] = 7
    for frames in (Features("arrays"), Features("arrays", 8), Features("arrays", 8, rule="linspace")):
        with pytest.raises((UserError, ValueError, IndexError), match="i00007"):
            list(Loader(replace(one, frames=frames, examples=replace(one.examples, rows=rows)), 4))


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
