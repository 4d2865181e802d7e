"""Splits by hash: items fall into splits of given shares by the hash of their ids, whatever their order.

The first 16 hexadecimal digits of an id's sha256, as a fraction of 16^16, are divided by the shares in their order. A
split without items takes the one whose fraction is nearest, from a split that has others: so small lists have every
split. That item goes back when the list grows; all others stay.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from xmodal.records.tables import Oddity, Split
from xmodal.userdata.description import split_name

NEAREST = "a split without items by hash: it takes the nearest one"
EMPTY_SPLIT = "a split without items"


class HashSplits:
    """Counts the items of each split, and assigns splits when all items are known."""

    def __init__(self, shares: Sequence[tuple[str, str]]) -> None:
        end, self._ends = Fraction(0), list[tuple[str, int]]()
        for name, share in shares:
            end += Fraction(share)
            self._ends.append((split_name(name), math.ceil(end * 2**64)))
        self._items = Counter[str]()

    def add(self, id: str) -> None:
        self._items[self._split(id)] += 1

    def rows(self, ids: Mapping[str, object]) -> Iterator[Split | Oddity]:
        nearest = self._nearest(ids)
        yield from (Split(id, nearest.get(id) or self._split(id)) for id in ids)
        yield from (Oddity(NEAREST, name) for name in nearest.values())
        yield from (Oddity(EMPTY_SPLIT, name) for name, _ in self._ends if not self._items[name])

    def _split(self, id: str) -> str:
        number = _number(id)
        return next(name for name, end in self._ends if number < end)

    def _nearest(self, ids: Mapping[str, object]) -> dict[str, str]:
        """For each empty split, the id nearest to its share. An item that is alone in its split is not taken."""
        moved = dict[str, str]()
        for (name, end), (_, first) in zip(self._ends, [("", 0), *self._ends], strict=False):
            left = ids.keys() - moved.keys() if not self._items[name] else ()
            if free := [id for id in left if self._items[self._split(id)] > 1]:
                chosen = min(free, key=lambda id: (max(first - _number(id), _number(id) - end), id))
                self._items[self._split(chosen)] -= 1
                self._items[name], moved[chosen] = 1, name
        return moved


def _number(id: str) -> int:
    return int(hashlib.sha256(id.encode()).hexdigest()[:16], 16)
