"""Flickr30k Entities: the phrases of Flickr30k's 158,915 captions, and the boxes of the things they name.

flickr30k_entities/annotations.zip has two files for each of the 31,783 pictures. Sentences/<id>.txt has its captions,
one a line. A phrase is "[/EN#", the number of its chain, its types after slashes, a space, its words and "]":

    [/EN#255542/people a man] and [/EN#255543/people woman] dressed for [/EN#255546/other a wedding function] .
    [/EN#255543/people A woman] holds [/EN#255545/bodyparts/people a man 's arm] in [/EN#0/notvisual the background]

Annotations/<id>.xml has the objects of the picture, each with the numbers of its chains:

    <annotation>
      <filename>65567.jpg</filename>
      <size><width>500</width><height>375</height><depth>3</depth></size>
      <object>
        <name>255542</name><name>255544</name>
        <bndbox><xmin>61</xmin><ymin>4</ymin><xmax>254</xmax><ymax>375</ymax></bndbox>
      </object>
      <object><name>255548</name><scene>1</scene><nobndbox>0</nobndbox></object>
    </annotation>

flickr30k_entities/{train,val,test}.txt has Plummer's split, an id a line. flickr30k_entities/UNRELATED_CAPTIONS has the
captions that do not belong to their pictures, as id and number of the line, from 1:

    # format: <imageID> <sentence number>
    129602216 5

A phrase becomes a Match with its range of characters; its group is its chain. An object becomes a Region for each of
its chains: `<id>:<number of the object>:<chain>`.

The traps (more: docs/corpora.md#flickr30k-entities):
- Chain 0 stands for what cannot be seen: such phrases have no group.
- Boxes count pixels from 1 and include the last one: 1 is subtracted from xmin and ymin, which gives Region's edges.
- A chain may have no object, or many boxes: rows as published. `xmodal.detection.merged_boxes` merges these.
- The region of an object without box has no coordinates, and the flags that are set as `attributes`: "scene" (it is
  the whole picture) or "nobndbox".
- Captions of UNRELATED_CAPTIONS have the source "unrelated", so readers of "human" captions do not see them. Positions
  count within each source, ids count lines, from 0.
- Blank lines may end a file of sentences; one before others is refused.
"""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from xmodal.corpora import Corpus, Source
from xmodal.corpora.flickr30k import HOW, LICENCE, PLUMMER, PLUMMERS
from xmodal.errors import UserError
from xmodal.raw.archives import open_archive
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import lines, lines_of, matched, once, split_files
from xmodal.recipes import HUMAN, UNRELATED_TEXT
from xmodal.records.tables import Caption, Item, Match, Oddity, Region, Row, Split

ANNOTATIONS, UNRELATED = "flickr30k_entities/annotations.zip", "flickr30k_entities/UNRELATED_CAPTIONS"
SENTENCES_MEMBER, XML_MEMBER = "Sentences/{}.txt", "Annotations/{}.xml"
PUBLISHER = "https://raw.githubusercontent.com/BryanPlummer/flickr30k_entities/master"
TYPES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other", "notvisual")
NOT_VISUAL = "0"  # stands for no chain
PHRASE = re.compile(r"\[/EN#([0-9]+)((?:/[^\s/\[\]]+)+) ([^\[\]]+)\]")
MEMBER = re.compile(r"Sentences/(.*)\.txt|Annotations/(.*)\.xml")
LONGEST = 1 << 20  # bytes of a member: a larger one may be a bomb
FLAGS = ("nobndbox", "scene")
UNRELATED_CAPTION = "caption unrelated to its picture: of source 'unrelated'"
BEYOND = "box beyond the edges of its picture: kept"
UNBOXED = "object with neither box nor flag: without coordinates"
TWICE = "chain twice in one object: taken once"
BRACKET = "bracket that belongs to no phrase: kept as text"

Unrelated = dict[str, str]  # place in the file, by picture and number of the caption, such as "129602216 5"


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures by their numbers, each followed by its split, regions, captions and phrases."""
    plummer, unrelated, images = split_files(raw, PLUMMER, lambda id, where: id), _unrelated(raw), set[str]()
    with open_archive(raw, ANNOTATIONS) as archive:
        for image in _images(archive):
            if image not in plummer:
                raise UserError(f"{ANNOTATIONS}: picture {image} is in none of {', '.join(PLUMMER)}")
            images.add(image)
            yield from _item_and_regions(archive, image)
            yield Split(image, plummer[image][0])
            yield from _captions(archive, image, unrelated)
    for image, (split, where) in plummer.items():
        if image not in images:
            raise UserError(f"{where}: picture {image} of {split} is not in {ANNOTATIONS}")
    for caption, where in unrelated.items():
        raise UserError(f"{where}: picture {caption.replace(' ', ' has no caption ')}")


def media(raw: Raw) -> Iterator[Source]:
    """Flickr30k's own pictures, by the paths that Flickr30k gives them."""
    with open_archive(raw, ANNOTATIONS) as archive:
        for image in _images(archive):
            yield Source(f"flickr30k-images/{image}.jpg", how=HOW, part="media")


def _images(archive: zipfile.ZipFile) -> list[str]:
    """Lists the pictures, each of which must have both files."""
    members = set(archive.namelist())
    images = {found[1] or found[2] for found in map(MEMBER.fullmatch, members) if found}
    for image in sorted(images):
        matched("[0-9]{1,20}", image, ANNOTATIONS, "number of a picture")
        for name in (XML_MEMBER.format(image), SENTENCES_MEMBER.format(image)):
            if name not in members:
                raise UserError(f"{ANNOTATIONS}: picture {image} has no {name}")
    if not images:
        raise UserError(f"{ANNOTATIONS} has no {SENTENCES_MEMBER.format('<id>')}")
    return sorted(images, key=lambda image: (int(image), image))


def _unrelated(raw: Raw) -> Unrelated:
    found: Unrelated = {}
    for where, line in lines(raw, UNRELATED):
        if not line.startswith("#"):
            expected = "picture and number of a caption, from 1"
            caption = matched("[0-9]+ [1-9][0-9]{0,3}", line.strip(), where, expected)[0]
            found[once(found, caption, where)] = where
    return found


def _read(archive: zipfile.ZipFile, name: str) -> tuple[str, bytes]:
    where, size = f"{ANNOTATIONS}!{name}", archive.getinfo(name).file_size
    if size > LONGEST:
        raise UserError(f"{where} has {size:,} bytes; a file of one picture has at most {LONGEST:,}")
    return where, archive.read(name)


def _captions(archive: zipfile.ZipFile, image: str, unrelated: Unrelated) -> Iterator[Row]:
    positions = Counter[str]()
    for number, (where, line) in enumerate(_sentences(*_read(archive, SENTENCES_MEMBER.format(image)))):
        key, odd = f"{image}#{number}", unrelated.pop(f"{image} {number + 1}", None)
        source = UNRELATED_TEXT if odd else HUMAN
        text, phrases, has_brackets = _caption(line, where, key, image)
        yield Caption(key, image, positions[source], text, source)
        yield from phrases
        if has_brackets:
            yield Oddity(BRACKET, where, image)
        if odd:
            yield Oddity(UNRELATED_CAPTION, odd, image)
        positions[source] += 1


def _sentences(where: str, data: bytes) -> list[tuple[str, str]]:
    """Captions with their places."""
    found = [(place, line) for place, line in lines_of(io.BytesIO(data), where) if line.strip()]
    for number, (place, _) in enumerate(found, 1):
        if place != f"{where}:{number}":
            raise UserError(f"{place}: a blank line stands before it, so the captions' numbers cannot be told")
    if not found:
        raise UserError(f"{where} has no captions")
    return found


def _caption(line: str, where: str, key: str, image: str) -> tuple[str, list[Match], bool]:
    """The text of a caption without marks, its phrases, and whether brackets are left."""
    line, text, phrases, after = " ".join(line.split()), "", list[Match](), 0
    for found in PHRASE.finditer(line):
        words, types = found[3].strip(), tuple(found[2][1:].split("/"))
        if unknown := [name for name in types if name not in TYPES]:
            raise UserError(f"{where}: unknown type {unknown[0]!r}; there are: {', '.join(TYPES)}")
        text += line[after : found.start()]
        phrases.append(Match(key, image, _group(found[1]), len(text), len(text) + len(words), types))
        text += words
        after = found.end()
    others = PHRASE.sub("\n", line)
    if broken := re.search(r"\[/.*", others):
        raise UserError(f"{where}: {broken[0]!r:.60} is not [/EN#chain/type words]")
    return text + line[after:], phrases, "[" in others or "]" in others


def _group(chain: str) -> str | None:
    return None if chain == NOT_VISUAL else chain


def _item_and_regions(archive: zipfile.ZipFile, image: str) -> Iterator[Row]:
    where, data = _read(archive, XML_MEMBER.format(image))
    root = _xml(data, where)
    if (filename := _text(root, "filename", where)) != f"{image}.jpg":
        raise UserError(f"{where} is of {filename!r:.60}, not of {image}.jpg")
    width, height = _number(root, "size/width", where), _number(root, "size/height", where)
    if min(width, height) < 1:
        raise UserError(f"{where}: a picture has pixels, not {width} x {height}")
    yield Item(image, f"flickr30k-images/{image}.jpg", width=width, height=height)
    for number, element in enumerate(root.findall("object")):
        here = f"{where}: object[{number}]"
        box = _box(element, here)
        flags = tuple(flag for flag in FLAGS if element.find(flag) is not None and _number(element, flag, here))
        if box and flags:
            raise UserError(f"{here} has a box and says that it has none: {', '.join(flags)}")
        chains = [(name.text or "").strip() for name in element.findall("name")]
        if not chains or not all(re.fullmatch("[0-9]+", chain) for chain in chains):
            raise UserError(f"{here} has the names {chains}, which are not numbers of chains")
        left, top, right, bottom = box or (None, None, None, None)
        for chain in dict.fromkeys(chains):
            key = f"{image}:{number}:{chain}"
            yield Region(key, image, _group(chain), left, top, right, bottom, attributes=flags)
        if not box and not flags:
            yield Oddity(UNBOXED, here, image)
        if box and (min(box[:2]) < 0 or box[2] > width or box[3] > height):
            yield Oddity(BEYOND, here, image)
        if len(set(chains)) < len(chains):
            yield Oddity(TWICE, here, image)


def _box(element: Element, where: str) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom of an object, from 0, with right and bottom excluded."""
    if element.find("bndbox") is None:
        return None
    edges = ("xmin", "ymin", "xmax", "ymax")
    left, top, right, bottom = (_number(element, f"bndbox/{edge}", where) for edge in edges)
    if left > right or top > bottom:
        raise UserError(f"{where} has an empty box: x from {left} to {right}, y from {top} to {bottom}")
    return left - 1, top - 1, right, bottom


def _xml(data: bytes, where: str) -> Element:
    try:
        text = data.decode("utf-8-sig")  # whatever it declares: another encoding could hide a document type
        if "<!DOCTYPE" in text:
            raise UserError(f"{where} has a document type, which is not read")
        return ElementTree.fromstring(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8, at its byte {error.start + 1}") from None
    except ElementTree.ParseError as error:
        raise UserError(f"{where} is not the XML it should be: {error}") from error


def _text(element: Element, path: str, where: str) -> str:
    found = element.findall(path)
    if len(found) != 1:
        raise UserError(f"{where} has {len(found) or 'no'} {path!r}{' instead of one' if found else ''}")
    return (found[0].text or "").strip()


def _number(element: Element, path: str, where: str) -> int:
    text = _text(element, path, where)
    if not re.fullmatch("-?[0-9]{1,9}", text):
        raise UserError(f"{where}: {path!r} is {text!r:.40}, no whole number")
    return int(text)


CORPUS = Corpus(
    name="flickr30k_entities",
    homepage="https://github.com/BryanPlummer/flickr30k_entities",
    licence=LICENCE,
    media_set="flickr30k",
    sources=(
        Source(ANNOTATIONS, f"{PUBLISHER}/annotations.zip"),
        *PLUMMERS,
        Source(UNRELATED, f"{PUBLISHER}/UNRELATED_CAPTIONS"),
    ),
    parse=parse,
    media=media,
    release={"annotations": "all", "media": "ids"},
    counts={
        "items": 31_783,
        "items:plummer/train": 29_783,
        "items:plummer/val": 1_000,
        "items:plummer/test": 1_000,
        "captions": 158_915,
        f"odd: {UNRELATED_CAPTION}": 21,
    },
    kinds=frozenset({"image"}),
)
