"""Leakage: media that lie in two splits, or in two corpora, as the same bytes or as nearly the same picture.

Exact is the same sha256; near is fingerprints of which every frame differs in `distance` bits or fewer
(xmodal/fingerprints.py says what that finds and misses). Splits of two authors divide the same items in two ways and
never mix, so of one corpus only splits of one author are compared; between corpora all are.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xmodal.fingerprints import BITS, FRAMES
from xmodal.outputs import Output
from xmodal.trouble import Trouble

DISTANCE = 6  # see xmodal/fingerprints.py
FARTHEST = 12  # 150,000 fingerprints then take half a minute, and at 6 bits some seconds
CELLS_AT_ONCE = 1 << 20  # of a tile: 8 MB
Looks = NDArray[np.uint64]
Pairs: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # one row, another, their distance


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Of the media that are there; what is flat or does not decode has no looks, and is compared by its bytes alone."""

    media: tuple[str, ...]
    sha256: tuple[str, ...]
    looks: tuple[tuple[int, ...] | None, ...]

    @staticmethod
    def read(output: Output) -> "Fingerprints":
        """What the stage `fingerprints` has made."""
        tables = [_table(output, name) for name in sorted(output.files)]
        media, sha256, looks = (
            [value for table in tables for value in table[name].to_pylist()] for name in ("media", "sha256", "looks")
        )
        return Fingerprints(tuple(media), tuple(sha256), tuple(None if some is None else tuple(some) for some in looks))


@dataclass(frozen=True, eq=False)
class Part:
    """One split of a corpus: of each item whose medium is there, the sha256 of its bytes, and its looks."""

    corpus: str
    split: str
    ids: tuple[str, ...]  # of all items
    items: Mapping[str, tuple[str, tuple[int, ...] | None]]

    @staticmethod
    def of(corpus: str, split: str, media: Mapping[str, str], known: Fingerprints) -> "Part":
        """`media` by id; one without fingerprint is absent."""
        rows = {path: row for row, path in enumerate(known.media)}
        found = {item: rows[path] for item, path in sorted(media.items()) if path in rows}
        items = {item: (known.sha256[row], known.looks[row]) for item, row in found.items()}
        return Part(corpus, split, tuple(sorted(media)), items)

    @property
    def name(self) -> str:
        return f"{self.corpus}: {self.split}"

    @property
    def author(self) -> str:
        return self.split.rpartition("/")[0]

    @property
    def is_training(self) -> bool:
        return self.split.rpartition("/")[2].startswith("train")


@dataclass(frozen=True, eq=False)
class Leak:
    """What two splits share: items that are in both, pairs of equal bytes, and near pairs with the bits they differ in.

    A pair has an item of `one` and an item of `other`.
    """

    one: Part
    other: Part
    same: tuple[str, ...]
    exact: tuple[tuple[str, str], ...]
    near: tuple[tuple[str, str, int], ...]

    def items(self, part: Part) -> set[str]:
        """Those of one of the two splits."""
        side = (self.one, self.other).index(part)
        return {*self.same, *(pair[side] for pair in self.exact), *(str(pair[side]) for pair in self.near)}


def leaks(parts: Sequence[Part], distance: int = DISTANCE) -> list[Leak]:
    """One of every two splits that can be compared, in the order of `parts`, also where they share nothing."""
    if not 0 <= distance <= FARTHEST:
        raise Trouble(f"a distance is 0 to {FARTHEST} of {BITS} bits, not {distance}: farther pictures are no copies")
    exact, near = _equal(parts), _near(parts, distance)
    return [_leak(parts[one], parts[other], exact[one, other], near[one, other]) for one, other in compared(parts)]


def compared(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """Places of the splits that can leak into each other."""
    for one, other in combinations(range(len(parts)), 2):
        first, second = parts[one], parts[other]
        if first.corpus != second.corpus or first.author == second.author:
            yield one, other


def clean(found: Iterable[Leak], part: Part) -> tuple[list[str], set[str]]:
    """The items of a split that no training split has, nor anything near them; and those that were dropped.

    Of absent ones no more than their ids is known: they stay, and readers of features leave them out.
    """
    against = [leak for leak in found if part in (leak.one, leak.other)]
    against = [leak for leak in against if (leak.other if leak.one is part else leak.one).is_training]
    if not against:
        raise Trouble(f"{part.name} cannot be cleaned: there is no training split to compare it with")
    dropped = set[str]().union(*(leak.items(part) for leak in against))
    if not (left := [item for item in part.ids if item not in dropped]):
        raise Trouble(f"{part.name}: nothing is left, all of its {len(dropped):,} items are in training splits")
    return left, dropped


def near_pairs(looks_NF: Looks, distance: int) -> Pairs:
    """Every pair of rows, one < other, of which no frame differs in more bits; the greatest distance of the frames.

    Of distance + 1 parts of 64 bits one at least is equal where no more than `distance` bits differ: only rows with an
    equal part are compared, and no pair is lost.
    """
    edges = np.linspace(0, BITS, distance + 2).astype(np.uint64).tolist()
    ones, others = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low, high in pairwise(edges):
        keys = looks_NF[:, 0] << np.uint64(BITS - high) >> np.uint64(BITS - high + low)
        for bucket in _buckets(keys):
            height = max(1, CELLS_AT_ONCE // len(bucket))
            for start in range(0, len(bucket), height):
                rows, columns = bucket[start : start + height], bucket[start:]
                differing = np.bitwise_count(looks_NF[rows, None, 0] ^ looks_NF[None, columns, 0])
                row, column = np.nonzero(differing <= distance)
                ones.append(rows[row][column > row])
                others.append(columns[column][column > row])
    count = len(looks_NF)
    one, other = np.divmod(np.unique(np.concatenate(ones) * count + np.concatenate(others)), max(count, 1))
    farthest = np.bitwise_count(looks_NF[one] ^ looks_NF[other]).max(axis=1, initial=0).astype(np.int64)
    kept = farthest <= distance
    return one[kept], other[kept], farthest[kept]


def _buckets(keys: Looks) -> Iterator[NDArray[np.int64]]:
    """Rows of equal keys, ascending, where there are at least two."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order[:1]]) != 0)
    starts = np.concatenate([[0], starts, [len(keys)]])
    for place in np.flatnonzero(np.diff(starts) > 1).tolist():
        yield order[starts[place] : starts[place + 1]]


Member: TypeAlias = tuple[int, str]  # the place of a split, and an item of it
Shared: TypeAlias = dict[tuple[int, int], list[tuple[str, str, int]]]  # by the places of two splits


def _equal(parts: Sequence[Part]) -> Shared:
    """By bytes, also an item with itself where it is in two splits."""
    members = defaultdict[str, list[Member]](list)
    for place, part in enumerate(parts):
        for item, (sha256, _) in part.items.items():
            members[sha256].append((place, item))
    return _shared(parts, ((some, some, 0) for some in members.values() if len(some) > 1))


def _near(parts: Sequence[Part], distance: int) -> Shared:
    """By looks, also those of equal bytes."""
    members = defaultdict[tuple[int, ...], list[Member]](list)
    for place, part in enumerate(parts):
        for item, (_, looks) in part.items.items():
            if looks is not None:
                members[looks].append((place, item))
    some = list(members.values())
    pairs = near_pairs(np.array(list(members), np.uint64).reshape(-1, FRAMES), distance)
    within = ((each, each, 0) for each in some if len(each) > 1)
    between = ((some[one], some[other], far) for one, other, far in zip(*map(np.ndarray.tolist, pairs), strict=True))
    return _shared(parts, (pair for pairs in (within, between) for pair in pairs))


def _shared(parts: Sequence[Part], groups: Iterable[tuple[list[Member], list[Member], int]]) -> Shared:
    """Pairs of members of two groups, by their splits; of a group with itself each pair once."""
    wanted, found = set(compared(parts)), defaultdict[tuple[int, int], list[tuple[str, str, int]]](list)
    for first, second, far in groups:
        for one, item in first:
            for other, another in second:
                if (one, other) in wanted:
                    found[one, other].append((item, another, far))
                elif first is not second and (other, one) in wanted:
                    found[other, one].append((another, item, far))
    return found


def _leak(one: Part, other: Part, equal: list[tuple[str, str, int]], near: list[tuple[str, str, int]]) -> Leak:
    """Where corpora share ids by chance, items of the two are still two."""
    both = set(one.ids) & set(other.ids) if one.corpus == other.corpus else set[str]()
    bytes_equal = {(item, another) for item, another, _ in equal}
    exact = (pair for pair in bytes_equal if pair[0] != pair[1] or pair[0] not in both)
    unequal = (pair for pair in near if pair[:2] not in bytes_equal)
    return Leak(one, other, tuple(sorted(both)), tuple(sorted(exact)), tuple(sorted(unequal)))


def _table(output: Output, name: str) -> pa.Table:
    try:
        table = pq.ParquetFile(pa.BufferReader(output.read(name))).read(use_threads=False)
    except pa.ArrowException as error:
        raise Trouble(f"{output.where}/{name} is corrupt ({error})") from error
    if table.column_names != ["media", "sha256", "looks"]:
        raise Trouble(f"{output.where}/{name} is no table of fingerprints: it has {table.column_names}")
    return table
