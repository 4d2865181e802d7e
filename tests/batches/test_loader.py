"""The loader: every sample once an epoch for any number of ranks, from anywhere on, in memory that nobody else sees."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
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

from pipelines.engine.building import build
from tests.toy_root import Facts, facts, item_id
from tests.toy_root import one_thread as one_thread
from tests.toy_stages import ARRAYS, Arrays, array_values, arrays
from xmodal.batches.batch import ANNOTATED, Batch, Stream
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Captions, Loader
from xmodal.batches.reader import Reader
from xmodal.batches.texts import Texts
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import Features
from xmodal.root.outputs import find
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
    message = f"7 samples a step cannot be shared equally by {world} ranks: {advice} as batch_size$"
    with pytest.raises(UserError, match=message):
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


@pytest.mark.parametrize("name", ["grids", "boxes", "frames"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_come_in_the_dtype_asked_for(root: str, name: str, dtype: torch.dtype) -> None:
    for batch in Loader(reader(root, name), BATCH, dtype=dtype):
        part = stream(batch)
        assert part.visual.values.dtype == dtype
        for row, item in enumerate(part.visual_items.tolist()):
            wanted = values(name, item).astype(str(dtype).removeprefix("torch."))
            np.testing.assert_array_equal(part.visual.values[row, : len(wanted)].numpy(), wanted)
