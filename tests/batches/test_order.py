"""What is read, in which order: the same wherever one enters, fair to every sample; frames as the papers take them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.golden import golden
from xmodal.batches.sample_order import Order, SampleRandom, evaluation_frames, neighbours, training_frames

ENDS = {"mrw": 0, "tgif": 6}
SEEDS = st.integers(0, 2**40)


@given(count=st.integers(1, 40), seed=SEEDS, stream=st.integers(0, 3), epochs=st.integers(1, 4))
def test_every_epoch_is_a_permutation(count: int, seed: int, stream: int, epochs: int) -> None:
    taken = Order(count, seed, stream).take(0, count * epochs).reshape(epochs, count)
    assert (np.sort(taken, axis=1) == np.arange(count)).all()


@given(count=st.integers(1, 30), seed=SEEDS, data=st.data())
def test_an_order_may_be_entered_anywhere_and_cut_anyhow(count: int, seed: int, data: st.DataObject) -> None:
    whole = Order(count, seed).take(0, 100)
    start = data.draw(st.integers(0, 98))
    stop = data.draw(st.integers(start + 1, 100))
    assert Order(count, seed).take(start, stop).tolist() == whole[start:stop].tolist()


def test_epochs_seeds_and_streams_are_shuffled_anew() -> None:
    orders = {
        Order(50, seed, stream).take(50 * e, 50 * e + 50).tobytes() for seed, stream, e in product(*[range(4)] * 3)
    }
    assert len(orders) == 4**3


def test_an_order_that_was_taken_may_be_changed() -> None:
    first = Order(10, 0).take(0, 10)
    kept = first.copy()
    first[:] = -1
    assert Order(10, 0).take(0, 10).tolist() == kept.tolist()


@given(
    samples=st.lists(st.integers(0, 10**9), min_size=1, max_size=20, unique=True),
    seed=SEEDS,
    epoch=st.integers(0, 1000),
    which=st.integers(0, 3),
    data=st.data(),
)
def test_a_draw_depends_on_nothing_but_its_sample(
    samples: list[int], seed: int, epoch: int, which: int, data: st.DataObject
) -> None:
    bounds = np.array(data.draw(st.lists(st.integers(1, 50), min_size=len(samples), max_size=len(samples))))
    numbers = np.array(samples)
    together = SampleRandom(seed, epoch, numbers).integers(bounds, which)
    each = [SampleRandom(seed, epoch, numbers[[n]]) for n in range(len(samples))]
    alone = [int(draws.integers(bounds[[n]], which)[0]) for n, draws in enumerate(each)]
    assert together.tolist() == alone
    assert ((together >= 0) & (together < bounds)).all()


@pytest.mark.parametrize(("seed", "epoch", "which", "bound"), list(product((0, 7), (0, 1), (0, 1, 2), (2, 3, 5, 40))))
def test_draws_are_uniform_and_neighbours_are_independent(seed: int, epoch: int, which: int, bound: int) -> None:
    count = 40_000
    drawn = SampleRandom(seed, epoch, np.arange(count)).integers(bound, which)
    assert_uniform(np.bincount(drawn, minlength=bound))
    assert_uniform(np.bincount(drawn[:-1:2] * bound + drawn[1::2], minlength=bound**2))


@pytest.mark.parametrize("other", [(0, 1, 0), (1, 0, 0), (0, 0, 1)])
def test_draws_of_other_epochs_seeds_and_kinds_are_independent(other: tuple[int, int, int]) -> None:
    samples, (seed, epoch, which) = np.arange(20_000), other
    pairs = SampleRandom(0, 0, samples).integers(5, 0) * 5 + SampleRandom(seed, epoch, samples).integers(5, which)
    assert_uniform(np.bincount(pairs, minlength=25))


def assert_uniform(counts: NDArray[np.int64]) -> None:
    """Chi-squared, five standard deviations above what is expected."""
    expected, freedom = counts.sum() / len(counts), len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5 + 10


def slow_support(n: int, frames: int) -> set[tuple[int, ...]]:
    """docs/models.md#frame-sampling: every clip that training may read."""
    found = set()
    for skip in (1, 2, 3):
        for start in range(max(0, n - skip * frames) + 1):
            places = list(range(start, min(n, start + skip * frames), skip))
            found.add(tuple(places + [places[-1]] * (frames - len(places))))
    return found


def slow_evaluation(n: int, frames: int, ends: int) -> list[int]:
    dropped = ends if n > 2 * ends else 0
    skip = max(1, (n - 2 * dropped + 1) // frames)
    places = list(range(dropped, n - dropped, skip))[:frames]
    return places + [places[-1]] * (frames - len(places))


@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=6), frames=st.integers(1, 12), ends=st.integers(0, 8))
def test_evaluation_frames_are_those_of_the_definition(lengths: list[int], frames: int, ends: int) -> None:
    found = evaluation_frames(np.array(lengths), frames, "official", ends)
    assert found.tolist() == [slow_evaluation(n, frames, ends) for n in lengths]


@pytest.mark.parametrize("n", [1, 2, 5, 11, 12])
def test_clips_no_longer_than_their_ends_keep_them(n: int) -> None:
    assert evaluation_frames(np.array([n]), 8, "official", 6).tolist() == [slow_evaluation(n, 8, 0)]


@settings(max_examples=60)
@given(n=st.integers(1, 40), frames=st.sampled_from([1, 3, 4, 8]), seed=SEEDS, epoch=st.integers(0, 99))
def test_training_reads_all_clips_of_the_definition_and_no_others(n: int, frames: int, seed: int, epoch: int) -> None:
    found = training_frames(np.full(5000, n), frames, "official", SampleRandom(seed, epoch, np.arange(5000)))
    assert set(map(tuple, found.tolist())) == slow_support(n, frames)


def test_strides_and_starts_are_uniform() -> None:
    places = training_frames(np.full(30_000, 40), 8, "official", SampleRandom(3, 1, np.arange(30_000)))
    strides = places[:, 1] - places[:, 0]
    assert (np.diff(places, axis=1) == strides[:, None]).all()
    assert_uniform(np.bincount(strides)[1:])
    for stride in (1, 2, 3):
        assert_uniform(np.bincount(places[strides == stride, 0], minlength=41 - 8 * stride))


@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=8), frames=st.integers(1, 40), data=st.data())
def test_the_frames_of_a_clip_do_not_depend_on_other_clips(
    lengths: list[int], frames: int, data: st.DataObject
) -> None:
    rule = data.draw(st.sampled_from(["official", "linspace"]))
    lengths_B, samples_B = np.array(lengths), np.arange(len(lengths))
    train = training_frames(lengths_B, frames, rule, SampleRandom(0, 0, samples_B))
    test = evaluation_frames(lengths_B, frames, rule, 2)
    for row in range(len(lengths)):
        one = slice(row, row + 1)
        alone = training_frames(lengths_B[one], frames, rule, SampleRandom(0, 0, samples_B[one]))
        assert train[one].tolist() == alone.tolist()
        assert test[one].tolist() == evaluation_frames(lengths_B[one], frames, rule, 2).tolist()


def test_even_frames_of_a_long_clip_beside_one_of_a_single_frame() -> None:
    """A place that is half way between two frames, 31.5, is rounded alike in any company."""
    alone = evaluation_frames(np.array([46]), 11, "linspace", 0)
    assert evaluation_frames(np.array([46, 1]), 11, "linspace", 0)[:1].tolist() == alone.tolist()


@pytest.mark.parametrize("frames", [1, 4, 8])
def test_even_frames_are_those_of_the_definition(frames: int) -> None:
    lengths_B = np.arange(1, 121)
    expected = [[round(place) for place in np.linspace(0, n - 1, frames).tolist()] for n in lengths_B.tolist()]
    assert evaluation_frames(lengths_B, frames, "linspace", 6).tolist() == expected
    assert training_frames(lengths_B, frames, "linspace", SampleRandom(0, 0, lengths_B)).tolist() == expected


@pytest.mark.parametrize("corpus", list(ENDS))
def test_evaluation_frames_are_those_of_the_official_code(corpus: str) -> None:
    reference = golden(f"video_frame_sampling_{corpus}_len4")
    ok = reference["eval_ok"]
    found = evaluation_frames(reference["n_frames"][ok], 4, "official", ENDS[corpus])
    np.testing.assert_array_equal(found, reference["eval_indices"][ok])
    assert ok.sum() == 120 - 2 * ENDS[corpus]


@pytest.mark.parametrize("corpus", list(ENDS))
def test_training_frames_are_those_of_the_official_code(corpus: str) -> None:
    """Its 200 draws of a length are among ours; where they are enough to show all that it may draw, they are ours."""
    reference = golden(f"video_frame_sampling_{corpus}_len4")
    names = [name for name in reference if name.startswith("train_samples_n")]
    assert len(names) == 5
    for name in names:
        n = int(name.removeprefix("train_samples_n"))
        theirs = set(map(tuple, reference[name].tolist()))
        found = training_frames(np.full(5000, n), 4, "official", SampleRandom(0, 0, np.arange(5000)))
        ours = set(map(tuple, found.tolist()))
        assert theirs <= ours
        assert n > 10 or theirs == ours


@given(st.lists(st.integers(1, 7), min_size=1, max_size=20), st.integers(2, 9), SEEDS, st.data())
def test_a_caption_comes_with_others_of_its_item_and_none_comes_twice_before_all_have(
    counts: list[int], captions: int, seed: int, data: st.DataObject
) -> None:
    places = [data.draw(st.integers(0, count - 1)) for count in counts]
    found = neighbours(
        np.array(places), np.array(counts), captions, SampleRandom(seed, 0, np.arange(len(counts)))
    ).tolist()
    for (first, *others), place, count in zip(found, places, counts, strict=True):
        assert first == place
        assert len(others) == captions - 1
        rest = {*range(count)} - {place}
        expected = len(others) if len(others) < len(rest) else len(rest)
        assert len(set(others)) == max(expected, 1)
        assert set(others) <= (rest or {place})


def test_neighbours_are_drawn_alike() -> None:
    draws = SampleRandom(0, 0, np.arange(8000))
    found = neighbours(np.full(8000, 1), np.full(8000, 5), 2, draws)[:, 1]
    counts = np.bincount(found, minlength=5)
    assert counts[1] == 0
    assert (np.abs(np.delete(counts, 1) - 2000) < 200).all()
