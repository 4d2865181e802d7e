"""The loader's memory and threads: what is held is never overwritten, what is dropped is used again."""

import gc
import pickle
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.batches.test_loader import (
    BATCH,
    captions,
    check,
    order,
    reader,
    run,
    steps,
    stream,
    values,
    visual_items,
)
from tests.batches.test_loader import made as made
from tests.batches.test_loader import root as root
from tests.batches.test_loader_streams import TWO, two
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Batch
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import Features
from xmodal.root.outputs import Output, find
from xmodal.root.storage import open_storage


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by the name of the thread that makes a batch."""
    found, visual = list[str](), Reader.visual

    def watched(*arguments: Any) -> Any:
        found.append(threading.current_thread().name)
        return visual(*arguments)

    monkeypatch.setattr(Reader, "visual", watched)
    return found


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("xmodal-loader")]


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
