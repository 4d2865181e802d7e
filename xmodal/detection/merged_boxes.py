"""Boxes: joins the published boxes of one thing into one region, as scoring needs them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from xmodal.records.tables import Region


def merge_groups(regions: Iterable[Region]) -> Iterator[Region]:
    """Yields one region a group, around all of its boxes, as phrase localisation is scored.

    A group without boxes stays without; a region of no group stays as it is. A group has its first region's id.
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
