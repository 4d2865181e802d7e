"""Leaks: media that lie in two splits, or in two corpora, as the same bytes or as nearly the same picture.

Exact copies have one sha256. Near copies differ, in every frame, in at most `distance` bits of their perceptual hashes
(`checks.perceptual_hashes` says what that finds and misses). Splits of two authors divide the same items in two ways
and never mix: within a corpus only splits of one author are compared, and no split with a part of itself. Between
corpora all are compared. A training on another author's split is named by the caller, and compared as well.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, combinations, islice, pairwise, product
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from xmodal.checks.perceptual_hashes import BITS, FRAMES, MIN_FRAMES, PerceptualHashes
from xmodal.errors import UserError
from xmodal.records.tables import read_columns
from xmodal.root.outputs import Output

DISTANCE = 6  # bits: see xmodal/checks/perceptual_hashes.py
FARTHEST = 12  # 150,000 fingerprints then take half a minute, and at 6 bits some seconds
CELLS_AT_ONCE = 1 << 20  # of a tile: 8 MB
Frames = NDArray[np.uint64]
PlacePairs: TypeAlias = Set[tuple[int, int]]  # places of two splits that are compared
K = TypeVar("K", bound=Hashable)
Pairs: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # one row, another, their distance


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Checksums and perceptual hashes of media; one that is flat or does not decode has a checksum alone."""

    media: tuple[str, ...]
    sha256: tuple[str, ...]
    hashes: tuple[PerceptualHashes | None, ...]

    @staticmethod
    def read(output: Output) -> "Fingerprints":
        """Reads an output of the stage `fingerprints`."""
        tables = [read_columns(output, name, "media", "sha256", "looks") for name in sorted(output.files)]
        media, sha256, hashes = (
            [value for table in tables for value in table[name].to_pylist()] for name in ("media", "sha256", "looks")
        )
        return Fingerprints(
            tuple(media), tuple(sha256), tuple(None if some is None else tuple(some) for some in hashes)
        )


@dataclass(frozen=True, eq=False)
class SplitMedia:
    """One split of a corpus, with the checksum and the hashes of every medium that is there."""

    corpus: str
    split: str
    ids: tuple[str, ...]  # of all items, also without medium
    items: Mapping[str, tuple[str, PerceptualHashes | None]]

    @staticmethod
    def of(corpus: str, split: str, media: Mapping[str, str], known: Fingerprints) -> "SplitMedia":
        """Finds the fingerprints of `media`, paths by id; a medium without fingerprint is absent."""
        rows = {path: row for row, path in enumerate(known.media)}
        found = {item: rows[path] for item, path in sorted(media.items()) if path in rows}
        items = {item: (known.sha256[row], known.hashes[row]) for item, row in found.items()}
        return SplitMedia(corpus, split, tuple(sorted(media)), items)

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
    """Two splits and what they share: common items, pairs of equal bytes, and near pairs with the bits they differ in.

    A pair has an item of `one` and an item of `other`. Among many equal pictures each is paired with the first of the
    other split alone: a placeholder that a publisher gave for a thousand lost pictures would make a million pairs.
    """

    one: SplitMedia
    other: SplitMedia
    same: tuple[str, ...]
    exact: tuple[tuple[str, str], ...]
    near: tuple[tuple[str, str, int], ...]

    def beside(self, part: SplitMedia) -> SplitMedia | None:
        """The other of the two splits; None if `part` is neither."""
        if part is self.one:
            return self.other
        return self.one if part is self.other else None

    def items(self, part: SplitMedia) -> set[str]:
        """The leaked items of one of the two splits."""
        side = (self.one, self.other).index(part)
        return {*self.same, *(pair[side] for pair in self.exact), *(str(pair[side]) for pair in self.near)}


def leaks(splits: Sequence[SplitMedia], distance: int = DISTANCE, asked: PlacePairs = frozenset()) -> list[Leak]:
    """Compares all splits that can leak, and pairs of places that are `asked` for, in the order of `splits`.

    Pairs of splits that share nothing are listed too.
    """
    if not 0 <= distance <= FARTHEST:
        raise UserError(f"a distance is 0 to {FARTHEST} of {BITS} bits, not {distance}: farther pictures are no copies")
    places = sorted({*compared(splits), *asked})
    exact, near = _equal(splits, set(places)), _near(splits, distance, set(places))
    return [_leak(splits[one], splits[other], exact[one, other], near[one, other]) for one, other in places]


def compared(splits: Sequence[SplitMedia]) -> Iterator[tuple[int, int]]:
    """Yields the places of two splits that can leak into each other."""
    for one, other in combinations(range(len(splits)), 2):
        first, second = splits[one], splits[other]
        mixed = first.corpus != second.corpus or first.author == second.author
        if mixed and not _is_part_of_the_other(first, second):
            yield one, other


def _is_part_of_the_other(one: SplitMedia, other: SplitMedia) -> bool:
    """Whether one split contains the other by design, as karpathy/train contains karpathy/restval.

    If one is for training and the other is held out, it is a leak.
    """
    leaky = any(a.is_training and b.is_held_out for a, b in ((one, other), (other, one)))
    nested = set(one.ids) <= set(other.ids) or set(one.ids) >= set(other.ids)
    return one.corpus == other.corpus and nested and not leaky


def clean(against: Iterable[Leak], part: SplitMedia) -> tuple[list[str], set[str]]:
    """The split's items that are in no leak, and the items removed because they are.

    Items whose medium is absent stay: only their ids are known, and readers of features leave them out.
    """
    dropped = set[str]().union(*(leak.items(part) for leak in against))
    if not (left := [item for item in part.ids if item not in dropped]):
        raise UserError(
            f"{part.name}: nothing is left, all of its {len(dropped):,} items are in what it is compared with"
        )
    return left, dropped


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
    """Pairs of rows that are near by one frame, as numbers one * N + other.

    A pair has MIN_FRAMES frames in common: at least one is not among the last MIN_FRAMES - 1.
    """
    count, found = len(hashes_NF), [np.zeros(0, np.int64)]
    for frame in range(FRAMES - MIN_FRAMES + 1):
        if known_NF[:, :frame].all() and frame:
            break
        rows = np.flatnonzero(known_NF[:, frame])
        found += [rows[one] * count + rows[other] for one, other in _near_by_one(hashes_NF[rows, frame], distance)]
    return np.unique(np.concatenate(found))


def _near_by_one(hashes_N: Frames, distance: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of rows that differ in at most `distance` bits; some come twice.

    Cut into distance + 1 parts, two such hashes have at least one part in common: only rows that do are compared.
    """
    edges = np.linspace(0, BITS, distance + 2).astype(np.uint64).tolist()
    for low, high in pairwise(edges):
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


Member: TypeAlias = tuple[str, Hashable]  # an item, and what it has in common with items that are no copies of it
Group: TypeAlias = Mapping[int, list[Member]]  # members of one picture, by the place of their split
Pair: TypeAlias = tuple[str, str, int]  # an item, another, and the bits they differ in
Shared: TypeAlias = dict[tuple[int, int], set[Pair]]  # by the places of two splits


def _equal(splits: Sequence[SplitMedia], wanted: PlacePairs) -> Shared:
    """Pairs of equal bytes. An item in both splits is not its own copy; equal ids in two corpora are two items."""
    groups = _grouped(splits, lambda part, item: (part.items[item][0], (part.corpus, item)))
    return _shared(((some, some, 0) for some in groups.values()), wanted)


def _near(splits: Sequence[SplitMedia], distance: int, wanted: PlacePairs) -> Shared:
    """Pairs of near hashes whose bytes differ."""
    known = _grouped(splits, lambda part, item: (part.items[item][1], part.items[item][0]))
    some = list(known.values())
    hashes = [[each or 0 for each in row] for row in known]
    there = [[each is not None for each in row] for row in known]
    shape = (-1, FRAMES)
    pairs = near_pairs(np.array(hashes, np.uint64).reshape(shape), np.array(there, bool).reshape(shape), distance)
    within = ((each, each, 0) for each in some)
    between = ((some[one], some[other], far) for one, other, far in zip(*map(np.ndarray.tolist, pairs), strict=True))
    return _shared(chain(within, between), wanted)


def _grouped(
    splits: Sequence[SplitMedia], describe: Callable[[SplitMedia, str], tuple[K | None, Hashable]]
) -> dict[K, Group]:
    """Groups items by what `describe` gives of them first; None is no group."""
    groups = dict[K, dict[int, list[Member]]]()
    for place, part in enumerate(splits):
        for item in sorted(part.items):
            key, own = describe(part, item)
            if key is not None:
                groups.setdefault(key, {}).setdefault(place, []).append((item, own))
    return dict(groups)


def _shared(groups: Iterable[tuple[Group, Group, int]], wanted: PlacePairs) -> Shared:
    """Pairs of members of two groups, by their splits."""
    found = defaultdict[tuple[int, int], set[Pair]](set)
    for first, second, bits in groups:
        for one, other in product(first, second):
            if (one, other) in wanted:
                found[one, other] |= _pairs(first[one], second[other], bits)
            elif first is not second and (other, one) in wanted:
                found[other, one] |= _pairs(second[other], first[one], bits)
    return found


def _pairs(ones: list[Member], others: list[Member], bits: int) -> set[Pair]:
    """Pairs every item with the first item of the other side that it has nothing in common with."""
    pairs = {(item, other, bits) for item, own in ones for other in _first_unlike(others, own)}
    return pairs | {(item, other, bits) for other, own in others for item in _first_unlike(ones, own)}


def _first_unlike(members: list[Member], own: Hashable) -> Iterator[str]:
    return islice((item for item, its in members if its != own), 1)


def _leak(one: SplitMedia, other: SplitMedia, equal: set[Pair], near: set[Pair]) -> Leak:
    same = set(one.ids) & set(other.ids) if one.corpus == other.corpus else set[str]()
    exact = sorted((item, another) for item, another, _ in equal)
    return Leak(one, other, tuple(sorted(same)), tuple(exact), tuple(sorted(near)))
