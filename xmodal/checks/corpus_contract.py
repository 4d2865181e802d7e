"""The contract of a corpus: what its module declares, and what its rows are. Each check yields a sentence a fault.

That ids are unique, that rows name items that exist, and that counts are as promised is checked where records are built
(pipelines/stages/records.py).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

from xmodal.corpora import Corpus, Part, ReleaseClass
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Label, Match, Oddity, Region, Row, Split

LINES = 10  # of a docstring; a sample of each file and the traps take more
FAILURES = (  # by which somebody's parser or model may end
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    *(SystemExit, UserError),
)


def type_faults(corpus: Corpus) -> Iterator[str]:
    for name, declared in get_type_hints(Corpus).items():
        options = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
        kinds, value = tuple(get_origin(option) or option for option in options), getattr(corpus, name)
        if not isinstance(value, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            yield f"CORPUS.{name} is {value!r:.60}: it must be of type {wanted}"


def declaration_faults(corpus: Corpus, about: str) -> Iterator[str]:
    """`about` is the docstring of the corpus' module."""
    lines, has_sample = len(about.splitlines()), re.search(r"^ {4}\S", about, re.MULTILINE)
    if lines <= LINES or not has_sample:
        faults = [f"it has {lines} lines, not over {LINES}"] if lines <= LINES else []
        faults += [] if has_sample else ["no sample is indented by four spaces"]
        yield f"the docstring does not show the raw files and name the traps: {' and '.join(faults)}"
    if not corpus.homepage.startswith("http"):
        yield f"CORPUS.homepage is no address: {corpus.homepage!r}"
    if not corpus.licence.strip():
        yield "CORPUS.licence is empty: say what the publisher allows, or that the publisher says nothing"
    parts, classes = get_args(Part), get_args(ReleaseClass)
    for part, release in corpus.release.items():
        if part not in parts or release not in classes:
            allowed = f"a part is one of {', '.join(parts)}, a class one of {', '.join(classes)}"
            yield f"CORPUS.release has {part!r}: {release!r}: {allowed}"
    if corpus.release.keys() != set(parts):
        yield "CORPUS.release does not say of annotations and media what may be published (at least 'nothing')"
    if not any(source.part == "annotations" for source in corpus.sources):
        yield "CORPUS.sources has no file of part 'annotations', so there is nothing to parse"
    for source in corpus.sources:
        if source.url is not None and not source.url.startswith(("http://", "https://")):
            yield f"source {source.path}: {source.url!r} is neither http nor https"
        if source.url is None and len(source.how) <= 20:
            yield f"source {source.path}: `how` says too little about where a person gets the file: {source.how!r}"
    if not corpus.kinds:
        yield "CORPUS.kinds is empty: say which kinds its items and labels have, such as frozenset({'image'})"


def row_faults(corpus: Corpus, raw: Raw) -> Iterator[str]:
    found = list(corpus.parse(raw))
    again = zip_longest(found, corpus.parse(raw))
    if any(one != other and repr(one) != repr(other) for one, other in again):  # a NaN is never equal
        yield "parse gives other rows a second time: draw nothing at random, and sort what a set or a folder lists"
    if not any(isinstance(row, Item) for row in found):
        yield "parse gives no items"
    kinds = {str(row.kind) for row in found if isinstance(row, Item | Label)}
    if kinds != corpus.kinds:
        declared, there = (", ".join(sorted(some)) or "none" for some in (corpus.kinds, kinds))
        yield f"CORPUS.kinds says {declared}, and the kinds of its items and labels are {there}"
    yield from _split_faults(corpus, found)
    yield from _caption_faults(found)
    seen, unboxed = _phrases(found)
    if seen and len(seen) == len(unboxed) and any(isinstance(row, Region) for row in found):
        cure = "give a Match and the Regions that it names the same item and group"
        yield f"no phrase names a thing with a box, such as {_named(unboxed[0])}: {cure}"
    yield from _media_faults(corpus, raw, found)


def phrase_notes(rows: Iterable[Row]) -> Iterator[str]:
    """Yields a note that counts the phrases of things without a box, which cannot be looked for."""
    seen, unboxed = _phrases(rows)
    if unboxed:
        some = f"{len(unboxed):,} of {len(seen):,} phrases name a thing without a box, such as {_named(unboxed[0])}"
        yield f"{some}: evaluations count them and leave them out"


def _phrases(rows: Iterable[Row]) -> tuple[list[Match], list[Match]]:
    """Lists the phrases that have a group, and those of which no region with a box is of it."""
    seen, boxed = list[Match](), set[tuple[str, str | None]]()
    for row in rows:
        if isinstance(row, Match) and row.start is not None and row.group is not None:
            seen.append(row)
        elif isinstance(row, Region) and row.left is not None:
            boxed.add((row.item, row.group))
    return seen, [match for match in seen if (match.item, match.group) not in boxed]


def _named(match: Match) -> str:
    return f"group {match.group!r} of item {match.item!r} (caption {match.caption!r}, from character {match.start})"


def _split_faults(corpus: Corpus, found: Sequence[Row]) -> Iterator[str]:
    names = dict.fromkeys(row.name for row in found if isinstance(row, Split))
    if not names:
        yield "no item is in a split"
        return
    told = {row.item for row in found if isinstance(row, Split | Oddity)}
    if left := [row.id for row in found if isinstance(row, Item) and row.id not in told]:
        yield f"{len(left):,} items are in no split, such as {left[0]!r}: yield a Split or an Oddity of each"
    for count in corpus.counts:
        what, _, split = count.rpartition(":")
        if what in ("items", "captions") and split not in names and not corpus.counts[count]:
            yield f"CORPUS.counts has {count!r}, a split without items; there are: {', '.join(names)}"
    for name in names:
        if not re.fullmatch("[^/]+/[^/]+", name):
            yield f"split {name!r} is not named after whoever made it: WHO/{name.strip('/').replace('/', '-')}"


def _caption_faults(found: Sequence[Row]) -> Iterator[str]:
    positions = Counter[tuple[str, str]]()
    for row in (row for row in found if isinstance(row, Caption)):
        place = positions[row.item, row.source]
        if not row.text or row.text.strip() != row.text:
            yield f"caption {row.id!r} is empty or has white space around it: {row.text!r}"
            return
        if row.position != place:
            yield f"caption {row.id!r} has position {row.position}, not {place}: count those of an item from 0"
            return
        positions[row.item, row.source] += 1


def _media_faults(corpus: Corpus, raw: Raw, found: Sequence[Row]) -> Iterator[str]:
    listed = Counter(source.path for source in corpus.media(raw)) if corpus.media else Counter[str]()
    yield from (f"media(raw) lists {path} {count} times" for path, count in listed.items() if count > 1)
    offered = {*listed, *(source.path for source in corpus.sources if source.part == "media")}
    if missing := {row.media.partition("!")[0] for row in found if isinstance(row, Item)} - offered:
        yield f"{len(missing):,} media of items are in no source and not in media(raw), such as {min(missing)}"
