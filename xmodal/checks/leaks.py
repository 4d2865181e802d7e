"""Leaks: media that lie in two splits, or in two corpora, as the same bytes or as nearly the same picture.

Exact copies have one sha256. Near copies differ, in every frame, in at most `distance` bits of their perceptual hashes
(docs/corpora.md#near-copies says what that finds). Within a corpus only splits of one author are compared, as those
of two divide the same items in two ways, and no split with a part of itself. Between corpora all are compared.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, combinations, islice, pairwise
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from xmodal.checks.perceptual_hashes import BITS, FRAMES, MIN_FRAMES, PerceptualHashes
from xmodal.errors import UserError
from xmodal.records.tables import read_columns
from xmodal.root.outputs import Output

DISTANCE = 6  # bits
FARTHEST = 12  # 150,000 fingerprints then take half a minute, and at 6 bits some seconds
CELLS_AT_ONCE = 1 << 20  # of a tile: 8 MB
Frames = NDArray[np.uint64]
Fingerprint: TypeAlias = tuple[str, PerceptualHashes | None]  # sha256; without hashes if flat or not to be decoded
K = TypeVar("K", bound=Hashable)
Member: TypeAlias = tuple[str, Hashable]  # an item, and what it has in common with items that are no copies of it
Groups: TypeAlias = Mapping[K, list[Member]]
Pairs: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # one row, another, their distance


def read_fingerprints(output: Output) -> dict[str, Fingerprint]:
    """Reads an output of the stage `fingerprints`, by the media's paths."""
    found = dict[str, Fingerprint]()
    for name in sorted(output.files):
        columns = read_columns(output, name, "media", "sha256", "looks").columns
        for path, sha256, hashes in zip(*(column.to_pylist() for column in columns), strict=True):
            found[path] = sha256, None if hashes is None else tuple(hashes)
    return found


@dataclass(frozen=True, eq=False)
class SplitMedia:
    corpus: str
    split: str
    ids: tuple[str, ...]  # of all items, also without medium
    items: Mapping[str, Fingerprint]  # of items whose medium is there

    @property
    def name(self) -> str:
        return f"{self.corpus}: {self.split}"

    @property
    def author(self) -> str:
        return self.split.rpartition("/")[0]

    @property
    def is_training(self) -> bool:
        return self.split.rpartition("/")[2].startswith("train")

    @property
    def is_held_out(self) -> bool:
        return self.split.rpartition("/")[2].startswith(("val", "dev", "test"))


@dataclass(frozen=True, eq=False)
class Leak:
    """Two splits and what they share. Each item is paired with the first of many equal ones in the other split:
    placeholders for a thousand lost pictures would make a million pairs."""

    one: SplitMedia
    other: SplitMedia
    same: tuple[str, ...]  # items of both
    exact: tuple[tuple[str, str], ...]  # equal bytes
    near: tuple[tuple[str, str, int], ...]  # with the bits they differ in

    def beside(self, part: SplitMedia) -> SplitMedia | None:
        """The other of the two splits; None if `part` is neither."""
        return {self.one: self.other, self.other: self.one}.get(part)

    def items(self, part: SplitMedia) -> set[str]:
        side = (self.one, self.other).index(part)
        return {*self.same, *(pair[side] for pair in self.exact), *(str(pair[side]) for pair in self.near)}


def leaks(
    splits: Sequence[SplitMedia], distance: int = DISTANCE, asked: Set[tuple[int, int]] = frozenset()
) -> list[Leak]:
    """Compares all splits that can leak into each other, and pairs of places that are `asked` for.

    Pairs of splits that share nothing are listed too.
    """
    if not 0 <= distance <= FARTHEST:
        raise UserError(f"a distance is 0 to {FARTHEST} of {BITS} bits, not {distance}: farther pictures are no copies")
    by_bytes, by_hashes = list[Groups[str]](), list[Groups[PerceptualHashes]]()
    for part in splits:
        items = [(item, sha256, hashes) for item, (sha256, hashes) in sorted(part.items.items())]
        # an item is not its own copy in another split, and equal bytes are no near copies
        by_bytes.append(_grouped((sha256, (item, (part.corpus, item))) for item, sha256, _ in items))
        by_hashes.append(_grouped((hashes, (item, sha256)) for item, sha256, hashes in items if hashes is not None))
    near = _near(chain.from_iterable(by_hashes), distance)
    found = []
    for place, another in combinations(range(len(splits)), 2):
        one, other = splits[place], splits[another]
        if (place, another) in asked or _can_leak(one, other):
            same = set(one.ids) & set(other.ids) if one.corpus == other.corpus else set[str]()
            exact = tuple((item, copy) for item, copy, _ in _copies(by_bytes[place], by_bytes[another]))
            alike = _copies(by_hashes[place], by_hashes[another], near)
            found.append(Leak(one, other, tuple(sorted(same)), exact, tuple(alike)))
    return found


def _can_leak(one: SplitMedia, other: SplitMedia) -> bool:
    """False for another author's split, and for a part by design, as karpathy/restval of karpathy/train."""
    if one.corpus != other.corpus:
        return True
    nested = set(one.ids) <= set(other.ids) or set(one.ids) >= set(other.ids)
    held_out = any(a.is_training and b.is_held_out for a, b in ((one, other), (other, one)))
    return one.author == other.author and (held_out or not nested)


def clean(against: Iterable[Leak], part: SplitMedia) -> tuple[list[str], set[str]]:
    """Divides the split's items into those in no leak, those without medium too, and those in one."""
    dropped = set[str]().union(*(leak.items(part) for leak in against))
    if left := [item for item in part.ids if item not in dropped]:
        return left, dropped
    raise UserError(f"{part.name}: nothing is left, all of its {len(dropped):,} items are in what it is compared with")


def near_pairs(hashes_NF: Frames, known_NF: NDArray[np.bool_], distance: int) -> Pairs:
    """Pairs of rows, one < other, whose frames differ in at most `distance` bits, with the largest difference.

    Only frames with a hash on both sides are compared; every pair has MIN_FRAMES of them or more.
    """
    count = len(hashes_NF)
    one, other = np.divmod(_candidates(hashes_NF, known_NF, distance), max(count, 1))
    both = known_NF[one] & known_NF[other]
    differing = np.bitwise_count(hashes_NF[one] ^ hashes_NF[other]) * both
    farthest = differing.max(axis=1, initial=0).astype(np.int64)
    kept = (farthest <= distance) & (both.sum(axis=1) >= MIN_FRAMES)
    return one[kept], other[kept], farthest[kept]


def _candidates(hashes_NF: Frames, known_NF: NDArray[np.bool_], distance: int) -> NDArray[np.int64]:
    """Pairs of rows that are near by one frame, as numbers one * N + other."""
    count, found = len(hashes_NF), [np.zeros(0, np.int64)]
    for frame in range(FRAMES - MIN_FRAMES + 1):  # a pair has MIN_FRAMES in common: one of these at least
        if known_NF[:, :frame].all() and frame:
            break
        rows = np.flatnonzero(known_NF[:, frame])
        found += [rows[one] * count + rows[other] for one, other in _near_by_one(hashes_NF[rows, frame], distance)]
    return np.unique(np.concatenate(found))


def _near_by_one(hashes_N: Frames, distance: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of rows that differ in at most `distance` bits; some come twice.

    Cut into distance + 1 parts, two such hashes have at least one part in common: only rows that do are compared.
    """
    for low, high in pairwise(np.linspace(0, BITS, distance + 2).astype(np.uint64).tolist()):
        keys = hashes_N << np.uint64(BITS - high) >> np.uint64(BITS - high + low)
        for bucket in _buckets(keys):
            height = max(1, CELLS_AT_ONCE // len(bucket))
            for start in range(0, len(bucket), height):
                rows, columns = bucket[start : start + height], bucket[start:]
                row, column = np.nonzero(np.bitwise_count(hashes_N[rows, None] ^ hashes_N[None, columns]) <= distance)
                yield rows[row][column > row], columns[column][column > row]


def _buckets(keys: Frames) -> Iterator[NDArray[np.int64]]:
    """Groups of at least two rows with equal keys, ascending."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order[:1]]) != 0)
    starts = np.concatenate([[0], starts, [len(keys)]])
    for place in np.flatnonzero(np.diff(starts) > 1).tolist():
        yield order[starts[place] : starts[place + 1]]


def _grouped(members: Iterable[tuple[K, Member]]) -> Groups[K]:
    groups = defaultdict[K, list[Member]](list)
    for key, member in members:
        groups[key].append(member)
    return groups


def _near(hashes: Iterable[PerceptualHashes], distance: int) -> list[tuple[PerceptualHashes, PerceptualHashes, int]]:
    known = list(dict.fromkeys(hashes))
    bits = np.array([[each or 0 for each in row] for row in known], np.uint64).reshape(-1, FRAMES)
    there = np.array([[each is not None for each in row] for row in known], bool).reshape(-1, FRAMES)
    found = zip(*map(np.ndarray.tolist, near_pairs(bits, there, distance)), strict=True)
    pairs = [(known[one], known[other], far) for one, other, far in found]
    return pairs + [(other, one, far) for one, other, far in pairs]


def _copies(ones: Groups[K], others: Groups[K], near: Iterable[tuple[K, K, int]] = ()) -> list[tuple[str, str, int]]:
    """Pairs items of two splits whose groups are equal or near, with the bits they differ in."""
    found = set[tuple[str, str, int]]()
    for one, other, bits in chain(((both, both, 0) for both in ones.keys() & others.keys()), near):
        if one in ones and other in others:
            found |= {(item, another, bits) for item, another in _pairs(ones[one], others[other])}
            found |= {(item, another, bits) for another, item in _pairs(others[other], ones[one])}
    return sorted(found)


def _pairs(ones: list[Member], others: list[Member]) -> Iterator[tuple[str, str]]:
    """Pairs each item with the first item of the other side that it has nothing in common with."""
    for item, own in ones:
        yield from islice(((item, other) for other, its in others if its != own), 1)
