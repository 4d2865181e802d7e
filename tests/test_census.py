"""What contradicts itself in a corpus' rows is refused, in whatever order the kinds of rows come."""

import pytest

from pipelines.records import Census
from xmodal.records import Caption, Item, Label, Match, Region, Row, Split
from xmodal.trouble import Trouble

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
    ],
)
def test_a_contradiction_is_refused(row: Row, complaint: str) -> None:
    assert counted(WHOLE)["items:me/train"] == 1
    for rows in ([*WHOLE, row], [row, *WHOLE]):
        with pytest.raises(Trouble, match=f"^toy: {complaint}$"):
            counted(rows)
