"""The schedule against its definition in fractions; sizes and limits without a codec."""

from dataclasses import fields
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clips import shown
from xmodal.media.frame_times import Limits, Refused, Sampling, Timeline, from_delays

UNITS = st.sampled_from([Fraction(1, d) for d in (8, 24, 100, 1000, 12288, 30_000, 90_000)] + [Fraction(1001, 30_000)])


@given(
    st.lists(st.integers(-50, 400), min_size=1, max_size=30, unique=True),
    st.integers(0, 200),
    UNITS,
    st.integers(1, 60),
)
def test_the_schedule_is_the_definition(starts: list[int], last: int, unit: Fraction, fps: int) -> None:
    starts.sort()
    found = Timeline(tuple(starts), starts[-1] + last, unit).shown(fps)
    assert found == shown([start * unit for start in starts], (starts[-1] + last) * unit, fps)


@given(st.lists(st.sampled_from([0, 10, 20, 30, 120, 130, 1000]), min_size=1, max_size=30))
def test_raw_delays_show_a_frame_of_none_only_at_the_end(delays_ms: list[int]) -> None:
    found = from_delays(delays_ms, "raw").shown(8)
    assert all(delays_ms[frame] for frame in found) or not any(delays_ms)
    assert len(found) == max(1, -(-sum(delays_ms) * 8 // 1000))


def test_ties_are_exact_where_floats_are_not() -> None:
    """30000/1001 frames a second for an hour, and 24: every third frame begins just at a sample."""
    assert Timeline(tuple(range(86_400)), 86_400, Fraction(1, 24)).shown(8) == list(range(0, 86_400, 3))
    ntsc = Timeline(tuple(range(0, 108_000_000, 1001)), 108_000_000, Fraction(1, 30_000)).shown(8)
    assert ntsc == [k * 3750 // 1001 for k in range(28_800)]


def test_times_are_whole_microseconds_after_the_first_frame() -> None:
    assert [Timeline((7, 8, 31), 40, Fraction(1, 24)).start_us(frame) for frame in range(3)] == [0, 41_666, 1_000_000]


@pytest.mark.parametrize(
    ("size", "config", "expected"),
    [
        ((128, 96), Sampling(), (341, 256)),
        ((96, 128), Sampling(), (256, 341)),
        ((640, 512), Sampling(), (320, 256)),
        ((128, 96), Sampling(upscale=False), (128, 96)),
        ((1280, 720), Sampling(upscale=False), (455, 256)),
        ((257, 3), Sampling(short_side=1), (86, 1)),
    ],
)
def test_the_shorter_side_is_as_asked(size: tuple[int, int], config: Sampling, expected: tuple[int, int]) -> None:
    assert config.size(*size) == expected
    assert config.size(*size[::-1]) == expected[::-1]


@pytest.mark.parametrize(
    ("size", "status"),
    [((0, 5), "zero_size"), ((5000, 5000), "too_many_pixels"), ((1, 10_000), "too_many_pixels")],
)
def test_canvases_that_are_refused(size: tuple[int, int], status: str) -> None:
    """A thread of pixels is small until it is sampled."""
    with pytest.raises(Refused) as refused:
        Limits().check_canvas(*size, Sampling())
    assert refused.value.status == status
    Limits().check_canvas(4096, 4096, Sampling())


@pytest.mark.parametrize(
    "wrong", [{"fps": 0}, {"fps": 7.5}, {"short_side": 0}, {"delays": "firefox"}, {"backend": "opencv"}]
)
def test_a_sampling_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [limit.name for limit in fields(Limits)])
def test_a_limit_that_lets_nothing_through_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"less than 1 of {name}"):
        Limits(**{name: 0})
    assert vars(Limits(**{name: 1}))[name] == 1
