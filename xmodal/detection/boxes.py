"""Regions as those who score boxes need them: what is published box by box, put together thing by thing."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from xmodal.records.tables import Region


def merged(regions: Iterable[Region]) -> Iterator[Region]:
    """One region for each group of an item, around all of its boxes: "two men" are found where both are.

    Phrase localisation is scored so. A group without any box stays without; a region of no group stays as it is. The
    id is that of the group's first region, and the order that of first regions.
    """
    groups = defaultdict[tuple[str, str | int], list[Region]](list)
    for number, region in enumerate(regions):
        groups[region.item, number if region.group is None else region.group].append(region)
    return map(_around, groups.values())


def _around(regions: list[Region]) -> Region:
    lefts, tops, rights, bottoms = (
        [getattr(region, side) for region in regions if region.left is not None]
        for side in ("left", "top", "right", "bottom")
    )
    return replace(
        regions[0],
        left=min(lefts, default=None),
        top=min(tops, default=None),
        right=max(rights, default=None),
        bottom=max(bottoms, default=None),
        names=tuple(dict.fromkeys(chain.from_iterable(region.names for region in regions))),
        attributes=tuple(dict.fromkeys(chain.from_iterable(region.attributes for region in regions))),
    )
