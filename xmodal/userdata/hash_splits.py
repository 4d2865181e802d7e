"""Splits by hash: items fall into splits of given shares by their ids.

The first 16 hexadecimal digits of an id's sha256, as a fraction of 16^16, are divided by the shares. A split without
items takes the one whose fraction is nearest, from a split that has others; it goes back when the list grows.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction

from xmodal.records.tables import Oddity, Split
from xmodal.userdata.description import split_name

NEAREST = "a split without items by hash: it takes the nearest one"
EMPTY_SPLIT = "a split without items"


def hash_splits(shares: Sequence[tuple[str, str]], ids: Collection[str]) -> Iterator[Split | Oddity]:
    """Divides items by shares: a split's name and a decimal number each."""
    bounds, total = list[tuple[str, int, int]](), Fraction(0)  # the first number of each split, and that of the next
    for name, share in shares:
        first, total = math.ceil(total * 2**64), total + Fraction(share)
        bounds.append((split_name(name), first, math.ceil(total * 2**64)))
    splits = {id: next(name for name, _, end in bounds if _number(id) < end) for id in ids}
    items = Counter(splits.values())
    moved = []
    for name, first, end in bounds:
        free = [id for id in ids if items[splits[id]] > 1] if not items[name] else []
        if free:
            nearest = min(free, key=lambda id: (max(first - _number(id), _number(id) - end), id))
            items[splits[nearest]] -= 1
            splits[nearest], items[name] = name, 1
            moved.append(name)
    yield from (Split(id, splits[id]) for id in ids)
    yield from (Oddity(NEAREST, name) for name in moved)
    yield from (Oddity(EMPTY_SPLIT, name) for name, _, _ in bounds if not items[name])


def _number(id: str) -> int:
    return int(hashlib.sha256(id.encode()).hexdigest()[:16], 16)
