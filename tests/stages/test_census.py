"""What contradicts itself in a corpus' rows is refused, in whatever order the kinds of rows come."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from pipelines.stages import records
from pipelines.stages.records import Census
from xmodal.errors import UserError
from xmodal.records.tables import Caption, Item, Label, Match, Region, Row, Split

WHOLE: list[Row] = [
    Match("c", "a"),
    Label("a", "category", "ant"),
    Region("r", "a"),
    Split("a", "me/train"),
    Split("a", "you/train"),
    Caption("c", "a", 0, "an ant"),
    Item("a", "a.jpg"),
]


def counted(rows: list[Row]) -> dict[str, int]:
    census = Census("toy")
    for row in rows:
        census.add(row)
    return census.counts()


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (Item("a", "b.jpg"), "item 'a' comes twice"),
        (Caption("c", "a", 1, "again"), "caption 'c' comes twice"),
        (Region("r", "a", "another"), "region 'r' comes twice"),
        (Split("a", "me/train"), "item 'a' comes twice in split 'me/train'"),
        (Caption("d", "nobody", 0, "an ant"), "a caption names item 'nobody', which does not exist"),
        (Split("nobody", "me/train"), "a split names item 'nobody', which does not exist"),
        (Region("s", "nobody"), "a region names item 'nobody', which does not exist"),
        (Label("nobody", "category", "ant"), "a label names item 'nobody', which does not exist"),
        (Match("c", "nobody"), "a match names item 'nobody', which does not exist"),
        (Match("none", "a"), "a match names caption 'none', which does not exist"),
        (
            Region("s", "a", "g", 9, 0, 5, 4),
            "region 's' has left 9, top 0, right 5, bottom 4: give left < right and .*",
        ),
        (Region("s", "a", "g", 0, 3, 5, 3), "region 's' has left 0, top 3, right 5, bottom 3: give .*"),
        (Region("s", "a", "g", 3, 0, 3, 4), "region 's' has left 3, top 0, right 3, bottom 4: give .*"),
        (Region("s", "a", "g", 0, 0, 5, float("inf")), "region 's' has .* bottom inf: give .*"),
        (Region("s", "a", "g", float("-inf"), 0, 5, 4), "region 's' has left -inf, .*"),
        (Region("s", "a", "g", "0", 0, 5, 4), "region 's' has left 0, .*"),  # type: ignore[arg-type]
        (Region("s", "a", "g", 0, 0, float("nan"), 3), "region 's' has left 0, top 0, right nan, bottom 3: .*"),
        (Region("s", "a", "g", 0, 0, float("inf"), 3), "region 's' has .* finite numbers of pixels, .*"),
        (Region("s", "a", "g", 0, 0, 5), "region 's' has left 0, top 0, right 5, bottom None: .* or None for all four"),
        (Match("c", "a", "g", 3, 3), "a match of caption 'c' has start 3, end 3: give 0 <= start < end, .*"),
        (Match("c", "a", "g", -1, 2), "a match of caption 'c' has start -1, end 2: .*"),
        (Match("c", "a", "g", None, 2), "a match of caption 'c' has start None, end 2: .* or None for both"),
        (Match("c", "a", "g", 1), "a match of caption 'c' has start 1, end None: .*"),
        (Match("c", "a", "g", 1, 2.0), "a match of caption 'c' has start 1, end 2.0: .*"),  # type: ignore[arg-type]
        (Match("c", "a", "g", 3, 7), "a match of caption 'c' ends beyond its text: .*"),
    ],
)
def test_a_contradiction_is_refused(row: Row, complaint: str) -> None:
    assert counted(WHOLE)["items:me/train"] == 1
    for rows in ([*WHOLE, row], [row, *WHOLE]):
        with pytest.raises(UserError, match=f"^toy: {complaint}$"):
            counted(rows)


def test_a_box_and_a_phrase_may_be_as_large_as_they_can_or_left_out() -> None:
    counted([*WHOLE, Region("whole", "a", "g", -1.5, 0, 1e6, 0.5), Match("c", "a", "g", 0, len("an ant"))])
    counted([*WHOLE, Region("none", "a", "g"), Match("c", "a", "g")])
    numbers: Any = np.arange(5)  # as pandas and numpy give them to a parser
    counted([*WHOLE, Region("numpy", "a", "g", *numbers[:2], *numbers[3:]), Match("c", "a", "g", *numbers[1:3])])


@pytest.mark.parametrize("first", [0, 6, 7, 12])
@pytest.mark.parametrize("second", [1, 5, 8, 20])
def test_a_region_that_comes_again_much_later_is_found(
    first: int, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LATEST", 7)
    rows: list[Row] = [Item("a", "a.jpg"), *(Region(f"r{number}", "a") for number in range(20))]
    counted(rows)
    rows.insert(max(first + 2, second), Region(f"r{first}", "a"))
    with pytest.raises(UserError, match=f"^toy: region 'r{first}' comes twice$"):
        counted(rows)


def test_regions_are_counted_in_few_bytes_each() -> None:
    """There are millions: as they are, their ids would take a hundred bytes each."""
    count, census = 200_000, Census("toy")
    census.add(Item("a", "a.jpg"))
    tracemalloc.start()
    for number in range(count):
        census.add(Region(f"2417997/{number}", "a"))
    census.counts()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 32 * count
