"""Flickr30k Entities' raw files, made of a generated world: what xmodal/corpora/flickr30k_entities.py describes.

Pictures, splits and captions are those of tests/publishers/flickr30k.py, from an equal world. A phrase that speaks of
things of its scene belongs to the chain of just those things: "two stars" is a chain with two boxes, and what is spoken
of both alone and with others is an object of several chains. What a caption has wrong, or says of places, cannot be
seen. Backgrounds are scenes without a box, some things have no box either, some captions lost their full stop and some
files end in a blank line.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pipelines.demo.files import member, new_archive, written
from pipelines.demo.world import BACKGROUNDS, COLOURS, KINDS, RADII, TEXTURES, WORDS, World, box
from tests.publishers.flickr30k import (
    Picture,
    pictures,
    refuse_what_cannot_be_held,
    tokenised,
    write_pictures,
    write_splits,
)
from xmodal.corpora import Corpus
from xmodal.corpora.flickr30k_entities import (
    ANNOTATIONS,
    CORPUS,
    SENTENCES_MEMBER,
    UNRELATED,
    UNRELATED_CAPTION,
    XML_MEMBER,
)

TYPES = {
    "heart": ("bodyparts", "people"),
    "cross": ("clothing",),
    "ring": ("clothing", "bodyparts"),
    "moon": ("scene",),
}
FACTS = {
    word: (field, value)
    for field, values in (("kind", KINDS), ("colour", COLOURS), ("texture", TEXTURES), ("size", RADII))
    for value in values
    for word in WORDS.get(value, (value,))
}
COUNTS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}
ADJECTIVES = "|".join(word for word, (field, _) in FACTS.items() if field != "kind")
NOUNS = "|".join([*(re.escape(word) for word, (field, _) in FACTS.items() if field == "kind"), "shape"])
SCENES = "|".join(words for name in BACKGROUNDS if name != "night" for words in WORDS[name])
PLACES = "the (?:(?:top|bottom) (?:left|right) corner|upper edge|lower edge|top|bottom|left|middle|right)"
MENTION = re.compile(
    rf"\b(?P<count>{'|'.join(COUNTS)}) (?P<adjectives>(?:(?:{ADJECTIVES}) )*)(?P<noun>{NOUNS})(?:e?s)?\b"
    rf"|\b(?:on|in) (?P<scene>{'|'.join(words.split(' ', 1)[1] for words in SCENES.split('|'))})\b"
    rf"|(?P<place>\b{PLACES}\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Mention:
    """A phrase of a caption; chain 0 and no things if it speaks of nothing that can be seen."""

    start: int
    end: int
    chain: int
    things: tuple[int, ...] = ()
    types: tuple[str, ...] = ("notvisual",)


def sentences(picture: Picture) -> Iterator[tuple[str, list[Mention]]]:
    """The captions as they are annotated, and their phrases in order."""
    for position, wording in enumerate(picture.captions()):
        text = tokenised(wording)
        if (picture.scene.index + position) % 4 == 1:
            text = text.removesuffix(" .")
        seen = not picture.unrelated(position)
        yield text, [_mention(found, picture, seen) for found in MENTION.finditer(text)]


def unboxed(picture: Picture, thing: int) -> bool:
    """Whether nobody drew a box around it."""
    return picture.scene.index % 7 == 3 and thing == 0


def scene_chain(picture: Picture) -> int:
    return 64 * picture.scene.index + 16


def write(world: World, folder: str | Path) -> Corpus:
    """Writes the five files and the pictures; the corpus has sizes and checksums, and the counts of a full parse."""
    path = Path(folder)
    refuse_what_cannot_be_held(world)
    write_pictures(world, path)
    write_splits(world, path)
    with new_archive(path / ANNOTATIONS) as archive:
        for picture in pictures(world):
            _write_annotations(archive, picture)
    rows = [f"{picture.id} {position + 1}" for picture, position in _unrelated(world)]
    (path / UNRELATED).write_text("\n".join(["# format: <imageID> <sentence number>", *rows]), "utf-8", newline="")
    return written(CORPUS, path, _counts(world))


def _mention(found: re.Match[str], picture: Picture, seen: bool) -> Mention:
    name = next(name for name in ("noun", "scene", "place") if found[name])
    start, end = found.span() if name == "noun" else found.span(name)
    if seen and name == "scene":
        return Mention(start, end, scene_chain(picture), types=("scene",))
    if seen and name == "noun" and (things := _things(found, picture)):
        chain = 64 * picture.scene.index + sum(1 << thing for thing in things)
        return Mention(start, end, chain, things, TYPES.get(picture.scene.things[things[0]].kind, ("other",)))
    return Mention(start, end, 0)


def _things(found: re.Match[str], picture: Picture) -> tuple[int, ...]:
    """The first things that are as the words say, if there are as many as they say."""
    said = [FACTS[word] for word in (found["noun"].lower(), *found["adjectives"].lower().split()) if word != "shape"]
    fitting = [
        number
        for number, thing in enumerate(picture.scene.things)
        if all(getattr(thing, field) == value for field, value in said)
    ]
    count = COUNTS[found["count"].lower()]
    return tuple(fitting[:count]) if len(fitting) >= count else ()


def _write_annotations(archive: zipfile.ZipFile, picture: Picture) -> None:
    told = list(sentences(picture))
    chains = {mention.chain: mention.things for _, mentions in told for mention in mentions if mention.chain}
    lines = [_marked(text, mentions) for text, mentions in told] + [""] * (picture.scene.index % 5 == 2)
    for name, data in (
        (XML_MEMBER, _annotation(picture, chains)),
        (SENTENCES_MEMBER, "".join(f"{line}\n" for line in lines).encode()),
    ):
        archive.writestr(member(name.format(picture.id), zipfile.ZIP_DEFLATED), data)


def _marked(text: str, mentions: Iterable[Mention]) -> str:
    marked, after = "", 0
    for mention in mentions:
        marks = f"[/EN#{mention.chain}/{'/'.join(mention.types)} "
        marked += f"{text[after : mention.start]}{marks}{text[mention.start : mention.end]}]"
        after = mention.end
    return marked + text[after:]


def _annotation(picture: Picture, chains: dict[int, tuple[int, ...]]) -> bytes:
    root = Element("annotation")
    SubElement(root, "filename").text = picture.filename
    _numbers(SubElement(root, "size"), width=picture.scene.width, height=picture.scene.height, depth=3)
    for number, thing in enumerate(picture.scene.things):
        names = sorted(chain for chain, things in chains.items() if number in things)
        if names and unboxed(picture, number):
            _numbers(_object(root, names), scene=0, nobndbox=1)
        elif names:
            left, top, right, bottom = box(picture.scene, thing)
            found = SubElement(_object(root, names), "bndbox")
            _numbers(found, xmin=left + 1, ymin=top + 1, xmax=right, ymax=bottom)
    if (chain := scene_chain(picture)) in chains:
        _numbers(_object(root, [chain]), scene=1, nobndbox=picture.scene.index % 2)
    indent(root)
    return bytes(tostring(root))


def _object(root: Element, chains: Iterable[int]) -> Element:
    element = SubElement(root, "object")
    for chain in chains:
        SubElement(element, "name").text = str(chain)
    return element


def _numbers(element: Element, **values: int) -> None:
    for name, value in values.items():
        SubElement(element, name).text = str(value)


def _unrelated(world: World) -> Iterator[tuple[Picture, int]]:
    for picture in pictures(world):
        yield from ((picture, n) for n in range(world.captions_per_item) if picture.unrelated(n))


def _counts(world: World) -> dict[str, int]:
    counts = Counter({"items": world.items, "captions": world.items * world.captions_per_item})
    counts.update(f"items:plummer/{picture.plummer}" for picture in pictures(world))
    counts[f"odd: {UNRELATED_CAPTION}"] = sum(1 for _ in _unrelated(world))
    return {name: counts[name] for name in CORPUS.counts}
