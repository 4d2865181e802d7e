"""Flickr30k Entities: phrases, chains and boxes of a generated world come back, and what may be odd is met by rules."""

import re
import shutil
import zipfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.demo.world import World, box
from pipelines.engine.build_options import BuildOptions
from pipelines.publishing.dataset_repository import publish
from pipelines.stages.records import Census
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.parsing import R, of, parser_of
from tests.publishers import flickr30k as demo_flickr30k
from tests.publishers.flickr30k import Picture, pictures
from tests.publishers.flickr30k_entities import scene_chain, sentences, unboxed, write
from xmodal.corpora import flickr30k, flickr30k_entities, load
from xmodal.detection.merged_boxes import merge_groups
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Match, Oddity, Region, Row, Split
from xmodal.root.storage import open_storage

REAL = Path(__file__).parents[3] / "shared/data/flickr30k-entities"
WORLD = World(items=60, image_size=48)
ZIP, UNRELATED = "flickr30k_entities/annotations.zip", "flickr30k_entities/UNRELATED_CAPTIONS"
SENTENCE = "[/EN#7/people A man] runs ."
parsed = parser_of(flickr30k_entities)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("entities")
    write(WORLD, folder)
    return folder


@pytest.fixture(scope="session")
def rows(published: Path) -> list[Row]:
    return parsed(published)


# ----------------------------------------------------------------------------------------------------- generated worlds


@settings(max_examples=8, deadline=None)
@given(
    st.builds(
        World,
        items=st.integers(3, 24),
        seed=st.integers(0, 9),
        image_size=st.just(32),
        captions_per_item=st.integers(1, 10),
        ambiguity=st.sampled_from([0, 0.5]),
        partiality=st.sampled_from([0, 0.7]),
    )
)
def test_any_world_comes_back(world: World) -> None:
    with TemporaryDirectory() as folder:
        corpus = write(world, folder)
        rows = parsed(Path(folder))
    for picture, item in zip(pictures(world), of(rows, Item), strict=True):
        size = (picture.scene.width, picture.scene.height)
        assert (item.id, item.media, item.width, item.height) == (
            picture.id,
            f"flickr30k-images/{picture.id}.jpg",
            *size,
        )
        assert [s.name for s in of(rows, Split) if s.item == item.id] == [f"plummer/{picture.plummer}"]
        _same_captions([row for row in of(rows, Caption) if row.item == item.id], picture)
        _same_phrases([row for row in of(rows, Match) if row.item == item.id], picture)
        _same_boxes([row for row in of(rows, Region) if row.item == item.id], picture)
    found = counted(rows)
    assert {name: found[name] for name in corpus.counts} == corpus.counts


def _same_captions(captions: list[Caption], picture: Picture) -> None:
    assert [caption.text for caption in captions] == [text for text, _ in sentences(picture)]
    assert [caption.id for caption in captions] == [f"{picture.id}#{n}" for n in range(len(captions))]
    for number, caption in enumerate(captions):
        odd = picture.unrelated(number)
        assert (caption.source, caption.position) == (("unrelated", 0) if odd else ("human", number))


def _same_phrases(matches: list[Match], picture: Picture) -> None:
    expected = [
        (
            f"{picture.id}#{number}",
            mention.start,
            mention.end,
            str(mention.chain) if mention.chain else None,
            mention.types,
        )
        for number, (_, mentions) in enumerate(sentences(picture))
        for mention in mentions
    ]
    assert [(row.caption, row.start, row.end, row.group, row.types) for row in matches] == expected


def _same_boxes(regions: list[Region], picture: Picture) -> None:
    """Of each chain that a caption speaks of, the boxes of its things."""
    told = {mention.chain: mention.things for _, mentions in sentences(picture) for mention in mentions}
    expected = {
        (str(chain), None if unboxed(picture, thing) else box(picture.scene, picture.scene.things[thing]))
        for chain, things in told.items()
        for thing in things
    } | {(str(chain), None) for chain in told if chain == scene_chain(picture)}
    found = {(row.group, None if row.left is None else (row.left, row.top, row.right, row.bottom)) for row in regions}
    assert found == expected


def test_the_publishers_quirks_are_there(published: Path, rows: list[Row]) -> None:
    regions, matches = of(rows, Region), of(rows, Match)
    chains_of_object, objects_of_chain = defaultdict(set), defaultdict(set)
    for region in regions:
        image, number, chain = region.id.split(":")
        chains_of_object[image, number].add(chain)
        objects_of_chain[chain].add(number)
    assert max(map(len, chains_of_object.values())) > 1
    assert max(map(len, objects_of_chain.values())) > 1
    assert {region.attributes for region in regions} >= {(), ("scene",), ("nobndbox", "scene"), ("nobndbox",)}
    assert max(len(match.types) for match in matches) == 2
    assert any(match.group is None for match in matches)
    with zipfile.ZipFile(published / ZIP) as archive:
        files = [archive.read(name) for name in archive.namelist() if name.startswith("Sentences/")]
    assert any(data.endswith(b"\n\n") for data in files)
    assert any(not line.rstrip(b"]").endswith(b".") for data in files for line in data.splitlines())
    assert not (published / UNRELATED).read_bytes().endswith(b"\n")


def test_spans_are_the_words_of_the_phrase(rows: list[Row]) -> None:
    texts = {caption.id: caption.text for caption in of(rows, Caption)}
    words = {texts[match.caption][match.start : match.end] for match in of(rows, Match) if "scene" in match.types}
    assert {"the grass", "the sand", "the snow"} <= words
    assert all(phrase == phrase.strip() and "[" not in phrase for phrase in words)


def test_equal_worlds_are_equal_bytes(published: Path, tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path)
    assert corpus.counts[f"odd: {flickr30k_entities.UNRELATED_CAPTION}"] == 6
    for source in corpus.sources:
        data = (tmp_path / source.path).read_bytes()
        assert (len(data), data) == (source.bytes, (published / source.path).read_bytes())


def test_pictures_splits_and_captions_are_those_of_flickr30k(rows: list[Row], tmp_path: Path) -> None:
    demo_flickr30k.write(WORLD, tmp_path)
    theirs = list(flickr30k.parse(Raw.folder(tmp_path)))
    assert [(i.id, i.media) for i in of(rows, Item)] == [(i.id, i.media) for i in of(theirs, Item)]
    assert set(of(rows, Split)) == {split for split in of(theirs, Split) if split.name.startswith("plummer/")}
    texts = {caption.id: caption.text for caption in of(theirs, Caption)}
    for caption in of(rows, Caption):
        assert texts[caption.id] in (caption.text, f"{caption.text} .")


def test_media_are_flickr30ks_and_are_sealed_once(tmp_path: Path) -> None:
    world = World(items=3, image_size=32)
    corpora = [demo_flickr30k.write(world, tmp_path / "raw"), write(world, tmp_path / "raw")]
    first, second = (list(corpus.media(Raw.folder(tmp_path / "raw"))) for corpus in corpora if corpus.media)
    assert first == second
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    sealed = [CorpusBuild(site, corpus).build("media") for corpus in corpora]
    assert sealed[0].folder == sealed[1].folder
    assert sealed[0].totals["counts"] == {"absent": 0, "present": 3}


@pytest.mark.parametrize("demo", ["flickr30k", "flickr30k_entities"])
def test_records_are_built_and_published_without_pictures(demo: str, tmp_path: Path) -> None:
    write_raw = {"flickr30k": demo_flickr30k.write, "flickr30k_entities": write}[demo]
    corpus = write_raw(WORLD, tmp_path / "raw")
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    counts = CorpusBuild(site, corpus).build("records").totals["counts"]
    assert counts["captions"] == 300
    report = publish(corpus, site.storage, tmp_path / "out")
    assert report["rows"]["plummer"] == {"train": 48, "val": 6, "test": 6}
    assert ("karpathy" in report["rows"]) == (demo == "flickr30k")
    assert report["withheld"] == {"media": "ids"}
    card = (tmp_path / "out/README.md").read_text()
    assert not re.search(r"\$[a-z]|<!--", card)
    assert not (tmp_path / "out/media").exists()


# ------------------------------------------------------------------------------------------------ archives made by hand


def annotation(objects: str = "", image: str = "5", size: str = "<width>40</width><height>30</height>") -> str:
    return f"<annotation><filename>{image}.jpg</filename><size>{size}</size>{objects}</annotation>"


def thing(*chains: object, box: tuple[object, ...] | None = None, flags: Mapping[str, object] | None = None) -> str:
    names = "".join(f"<name>{chain}</name>" for chain in chains)
    edges = zip(("xmin", "ymin", "xmax", "ymax"), box or (), strict=False)
    inside = "".join(f"<{edge}>{value}</{edge}>" for edge, value in edges)
    said = "".join(f"<{flag}>{value}</{flag}>" for flag, value in (flags or {}).items())
    return f"<object>{names}{said}{f'<bndbox>{inside}</bndbox>' if box else ''}</object>"


def raw(
    folder: Path,
    xml: str | bytes | None = None,
    sentence: str | bytes = SENTENCE,
    unrelated: str = "",
    others: Mapping[str, str] | None = None,
) -> Path:
    """Picture 5 as given here, and two ordinary ones, each in a split of its own."""
    members: dict[str, str | bytes] = {"Annotations/5.xml": xml or annotation(), "Sentences/5.txt": sentence}
    for image in ("6", "70"):
        members |= {f"Annotations/{image}.xml": annotation(image=image), f"Sentences/{image}.txt": SENTENCE}
    (folder / "flickr30k_entities").mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / ZIP, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (members | dict(others or {})).items():
            archive.writestr(name, data)
    for name, image in (("train", "5"), ("val", "6"), ("test", "70")):
        (folder / f"flickr30k_entities/{name}.txt").write_text(f"{image}\n")
    (folder / UNRELATED).write_text(unrelated)
    return folder


def of_five(rows: list[Row], kind: type[R]) -> list[R]:
    return [row for row in of(rows, kind) if getattr(row, "item", "5") == "5"]


@pytest.mark.parametrize(
    ("line", "text", "phrases"),
    [
        ("A man .", "A man .", []),
        ("[/EN#1/people A man]", "A man", [("A man", "1", ("people",))]),
        ("[/EN#1/bodyparts/people his arm] .", "his arm .", [("his arm", "1", ("bodyparts", "people"))]),
        ("in [/EN#0/notvisual it] .", "in it .", [("it", None, ("notvisual",))]),
        ("[/EN#2/clothing a black/white hat]", "a black/white hat", [("a black/white hat", "2", ("clothing",))]),
        (" [/EN#2/other  two  cats ]  sit", "two cats sit", [("two cats", "2", ("other",))]),
        ("[/EN#1/people A][/EN#1/people B]", "AB", [("A", "1", ("people",)), ("B", "1", ("people",))]),
        ("[/EN#3/scene une forêt 🐶] là", "une forêt 🐶 là", [("une forêt 🐶", "3", ("scene",))]),
    ],
)
def test_a_sentence_becomes_text_and_spans(
    line: str, text: str, phrases: list[tuple[str, str | None, tuple[str, ...]]], tmp_path: Path
) -> None:
    rows = parsed(raw(tmp_path, sentence=line))
    assert of_five(rows, Caption) == [Caption("5#0", "5", 0, text)]
    found = of_five(rows, Match)
    assert [(text[row.start : row.end], row.group, row.types) for row in found] == phrases
    assert of(rows, Oddity) == []


def test_chain_0_is_never_one_thing(tmp_path: Path) -> None:
    xml = annotation(thing(0, box=(1, 1, 2, 2)) + thing(0, box=(9, 9, 9, 9)))
    rows = parsed(raw(tmp_path, xml, "[/EN#0/notvisual it] and [/EN#0/notvisual this]"))
    assert [match.group for match in of_five(rows, Match)] == [None, None]
    assert len(list(merge_groups(of(rows, Region)))) == 2


def test_boxes_count_from_0_and_exclude_their_ends(tmp_path: Path) -> None:
    rows = parsed(raw(tmp_path, annotation(thing(7, box=(1, 1, 40, 30)) + thing(7, 8, box=(3, 4, 3, 4)))))
    assert of(rows, Region) == [
        Region("5:0:7", "5", "7", 0, 0, 40, 30),
        Region("5:1:7", "5", "7", 2, 3, 3, 4),
        Region("5:1:8", "5", "8", 2, 3, 3, 4),
    ]


@pytest.mark.parametrize(
    ("element", "attributes", "rules"),
    [
        (thing(7, flags={"scene": 1, "nobndbox": 0}), ("scene",), []),
        (thing(7, flags={"scene": 0, "nobndbox": 1}), ("nobndbox",), []),
        (thing(7, flags={"scene": 1, "nobndbox": 1}), ("nobndbox", "scene"), []),
        (thing(7, flags={"scene": 0, "nobndbox": 0}), (), [flickr30k_entities.UNBOXED]),
        (thing(7), (), [flickr30k_entities.UNBOXED]),
        (thing(7, 7, flags={"scene": 1}), ("scene",), [flickr30k_entities.TWICE]),
    ],
)
def test_an_object_without_a_box_has_no_coordinates(
    element: str, attributes: tuple[str, ...], rules: list[str], tmp_path: Path
) -> None:
    rows = parsed(raw(tmp_path, annotation(element)))
    assert of(rows, Region) == [Region("5:0:7", "5", "7", attributes=attributes)]
    assert [oddity.rule for oddity in of(rows, Oddity)] == rules


@pytest.mark.parametrize("edges", [(0, 1, 5, 5), (1, 0, 5, 5), (1, 1, 41, 5), (1, 1, 5, 31), (-3, 1, 5, 5)])
def test_a_box_beyond_its_picture_is_kept_and_counted(edges: tuple[int, ...], tmp_path: Path) -> None:
    rows = parsed(raw(tmp_path, annotation(thing(7, box=edges))))
    assert of(rows, Region)[0].left == edges[0] - 1
    assert of(rows, Oddity) == [Oddity(flickr30k_entities.BEYOND, f"{ZIP}!Annotations/5.xml: object[0]", "5")]


@pytest.mark.parametrize("line", ["A man [sic] runs", "[/EN#7/people A man]] runs", "[ [/EN#7/people A man]"])
def test_a_stray_bracket_is_text_and_counted(line: str, tmp_path: Path) -> None:
    rows = parsed(raw(tmp_path, sentence=line))
    assert of_five(rows, Caption)[0].text == re.sub(r"\[/\S+ (A man)\]", r"\1", line)
    assert of(rows, Oddity) == [Oddity(flickr30k_entities.BRACKET, f"{ZIP}!Sentences/5.txt:1", "5")]


def test_unrelated_captions_are_apart(tmp_path: Path) -> None:
    told = "\n".join([SENTENCE, "[/EN#0/notvisual Nothing] here .", "The end"])
    rows = parsed(raw(tmp_path, sentence=told, unrelated="# format: <imageID> <sentence number>\n5 2"))
    captions = [(row.id, row.position, row.source) for row in of_five(rows, Caption)]
    assert captions == [("5#0", 0, "human"), ("5#1", 0, "unrelated"), ("5#2", 1, "human")]
    assert [row.caption for row in of_five(rows, Match)] == ["5#0", "5#1"]
    assert of(rows, Oddity) == [Oddity(flickr30k_entities.UNRELATED_CAPTION, f"{UNRELATED}:2", "5")]


def test_line_ends_blank_last_lines_and_byte_order_marks_do_no_harm(tmp_path: Path) -> None:
    expected = parsed(raw(tmp_path, annotation(thing(7, box=(1, 1, 2, 2))), f"{SENTENCE}\nThe end"))
    xml = b"\xef\xbb\xbf" + annotation(thing(7, box=(1, 1, 2, 2))).replace("><", ">\r\n<").encode()
    sentence = b"\xef\xbb\xbf" + f"{SENTENCE}\r\nThe end\r\n \r\n\r\n".encode()
    others = {"README.md": "hello", "Sentences/": "", "__MACOSX/Sentences/._5.txt": "x", "Sentences/.DS_Store": "x"}
    assert parsed(raw(tmp_path, xml, sentence, "\n", others)) == expected


BOX = (1, 1, 5, 5)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<annotation>", r"5.xml is not the XML it should be: no element found: line 1"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>&b;</annotation>", r"Annotations/5.xml has a document type"),
        ("<annotation>&b;</annotation>", r"5.xml is not the XML it should be: undefined entity"),
        ("<!DOCTYPE a><annotation/>".encode("utf-16"), r"5.xml is not UTF-8, at its byte 1"),
        (annotation(image="6"), r"5.xml is of '6.jpg', not of 5.jpg"),
        ("<annotation/>", r"5.xml has no 'filename'"),
        (annotation(size="<width>4</width>"), r"5.xml has no 'size/height'"),
        (annotation(size="<width>0</width><height>3</height>"), r"a picture has pixels, not 0 x 3"),
        (annotation(size="<width>4.5</width><height>3</height>"), r"'size/width' is '4.5', no whole number"),
        (annotation(thing(box=BOX)), r"5.xml: object\[0\] has the names \[\], which are not numbers of chains"),
        (annotation(thing("man", box=BOX)), r"object\[0\] has the names \['man'\]"),
        (annotation(thing(7, box=BOX) + thing(7, box=(1, 1, 5))), r"object\[1\] has no 'bndbox/ymax'"),
        (annotation(thing(7, box=(1, 1, "x", 5))), r"object\[0\]: 'bndbox/xmax' is 'x', no whole number"),
        (annotation(thing(7, box=(5, 1, 4, 5))), r"object\[0\] has an empty box: x from 5 to 4"),
        (annotation(thing(7, box=(1, 5, 4, 4))), r"object\[0\] has an empty box: .* y from 5 to 4"),
        (annotation(thing(7, box=BOX, flags={"nobndbox": 1})), r"has a box and says that it has none: nobndbox"),
        (annotation(thing(7, flags={"scene": "yes"})), r"object\[0\]: 'scene' is 'yes', no whole number"),
        (annotation("<object><name>7</name><bndbox/><bndbox/></object>"), r"object\[0\] has no 'bndbox/xmin'"),
        (
            annotation(thing(7, box=BOX).replace("<bndbox>", "<bndbox/><bndbox><xmin>1</xmin>")),
            r"has 2 'bndbox/xmin' inst",
        ),
        ("<annotation>" + " " * (1 << 20) + "</annotation>", r"5.xml has 1,048,601 bytes; a file of one picture has"),
    ],
)
def test_wrong_annotations_are_refused(xml: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        parsed(raw(tmp_path, xml))


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("", r"Sentences/5.txt has no captions"),
        ("\n \n", r"Sentences/5.txt has no captions"),
        (f"{SENTENCE}\n\n{SENTENCE}", r"Sentences/5.txt:3: a blank line stands before it"),
        (b"A man\n\xe9t\xe9", r"Sentences/5.txt:2 is not UTF-8, at its byte 1"),
        ("A man\n[/EN#7/people A man", r"Sentences/5.txt:2: '\[/EN#7/people A man' is not \[/EN#chain/type words\]"),
        ("[/EN#7/people A [/EN#8/other cat]]", r"txt:1: '\[/EN#7/people A ' is not"),
        ("[/EN#7 A man]", r"txt:1: '\[/EN#7 A man\]' is not"),
        ("[/EN#x/people A man]", r"txt:1: '\[/EN#x/people A man\]' is not"),
        ("[/EN#7/people ]", r"txt:1: '\[/EN#7/people \]' is not"),
        ("[/EN#7/people/man A]", r"txt:1: unknown type 'man'; there are: people, clothing"),
    ],
)
def test_wrong_sentences_are_refused_with_their_place(sentence: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        parsed(raw(tmp_path, sentence=sentence))


@pytest.mark.parametrize(
    ("unrelated", "message"),
    [
        ("5", r"UNRELATED_CAPTIONS:1: '5' is no picture and number of a caption, from 1"),
        ("# x\n5 0", r"UNRELATED_CAPTIONS:2: '5 0' is no picture"),
        ("5 1\n5 1", r"UNRELATED_CAPTIONS:2: id 5 1 is there a second time"),
        ("5 2", r"UNRELATED_CAPTIONS:1: picture 5 has no caption 2"),
        ("8 1", r"UNRELATED_CAPTIONS:1: picture 8 has no caption 1"),
    ],
)
def test_wrong_lists_of_unrelated_captions_are_refused(unrelated: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        parsed(raw(tmp_path, unrelated=unrelated))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"Annotations/8.xml": annotation(image="8")}, r"annotations.zip: picture 8 has no Sentences/8.txt"),
        ({"Sentences/8.txt": SENTENCE}, r"annotations.zip: picture 8 has no Annotations/8.xml"),
        ({"Sentences/x.txt": SENTENCE}, r"annotations.zip: 'x' is no number of a picture"),
        (
            {"Annotations/8.xml": annotation(image="8"), "Sentences/8.txt": SENTENCE},
            r"annotations.zip: picture 8 is in none of flickr30k_entities/train.txt, ",
        ),
    ],
)
def test_pictures_that_are_there_by_half_are_refused(others: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        parsed(raw(tmp_path, others=others))


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("70\n8\n", r"test.txt:2: picture 8 of plummer/test is not in .*annotations.zip"),
        ("70\n5\n", r"test.txt:2: 5 is in plummer/train too"),
        ("", r"test.txt is empty"),
    ],
)
def test_wrong_splits_are_refused(test: str, message: str, tmp_path: Path) -> None:
    (raw(tmp_path) / "flickr30k_entities/test.txt").write_text(test)
    with pytest.raises(UserError, match=message):
        parsed(tmp_path)


def test_an_archive_without_annotations_is_refused(tmp_path: Path) -> None:
    raw(tmp_path)
    with zipfile.ZipFile(tmp_path / ZIP, "w") as archive:
        archive.writestr("annotations/Sentences/5.txt", SENTENCE)
    with pytest.raises(UserError, match=r"annotations.zip has no Sentences/<id>.txt"):
        list(flickr30k_entities.media(Raw.folder(tmp_path)))


# -------------------------------------------------------------------------------------------------------------- regions


def test_merged_is_the_smallest_box_around_all_of_a_group() -> None:
    regions = [
        Region("a", "5", "7", 3, 4, 10, 12, attributes=("x",)),
        Region("b", "5", "8", 0, 0, 1, 1),
        Region("c", "5", "7", 1, 6, 4, 20, names=("man",), attributes=("y", "x")),
        Region("d", "5", "7", attributes=("nobndbox",)),
        Region("e", "6", "7", 9, 9, 10, 10),
        Region("f", "5", "9", attributes=("scene",)),
        Region("g", "5", None, 2, 2, 3, 3),
        Region("h", "5", None, 4, 4, 5, 5),
    ]
    assert list(merge_groups(regions)) == [
        Region("a", "5", "7", 1, 4, 10, 20, names=("man",), attributes=("x", "y", "nobndbox")),
        regions[1],
        regions[4],
        *regions[5:],
    ]
    assert list(merge_groups([])) == []


def test_merging_a_world_covers_every_box(rows: list[Row]) -> None:
    regions = [region for region in of(rows, Region) if region.left is not None]
    around = {(region.item, region.group): region for region in merge_groups(regions)}
    assert len(around) < len(regions)
    for region in regions:
        whole = around[region.item, region.group]
        assert None not in (whole.left, whole.top, whole.right, whole.bottom, region.top, region.right, region.bottom)
        assert whole.left <= region.left  # type: ignore[operator]
        assert whole.top <= region.top  # type: ignore[operator]
        assert whole.right >= region.right  # type: ignore[operator]
        assert whole.bottom >= region.bottom  # type: ignore[operator]


# ----------------------------------------------------------------------------------------------------------- real files


def test_the_corpus_is_the_published_one() -> None:
    corpus, counts = load("flickr30k_entities"), flickr30k_entities.CORPUS.counts
    assert corpus is flickr30k_entities.CORPUS
    assert counts["items"] == sum(counts[f"items:plummer/{name}"] for name in ("train", "val", "test"))
    assert (corpus.media_set, corpus.release) == (flickr30k.CORPUS.media_set, flickr30k.CORPUS.release)
    theirs = {source.path: source for source in flickr30k.CORPUS.sources}
    assert {source for source in corpus.sources if source.path in theirs} <= set(theirs.values())
    assert all(source.url for source in corpus.sources)


def test_real_sentences_are_read(tmp_path: Path) -> None:
    """The eight pictures whose annotated sentences are shown as samples; their XML is not to be had."""
    if not REAL.is_dir():
        pytest.skip("no files of Flickr30k Entities")
    samples = re.findall(r"/(\d+)\.jpg\)\n```\n(.*?)```", (REAL / "data_samples.md").read_text(), re.DOTALL)
    members = {f"Sentences/{image}.txt": text for image, text in samples}
    members |= {f"Annotations/{image}.xml": annotation(image=image) for image, _ in samples}
    raw(tmp_path, others=members)
    with (tmp_path / "flickr30k_entities/train.txt").open("a") as file:
        file.writelines(f"{image}\n" for image, _ in samples)
    rows = parsed(tmp_path)
    captions = [caption for caption in of(rows, Caption) if caption.item not in ("5", "6", "70")]
    matches = [match for match in of(rows, Match) if match.item not in ("5", "6", "70")]
    assert (len(samples), len(captions)) == (8, 40)
    assert len(matches) == sum(text.count("[/EN#") for _, text in samples) > 100
    assert of(rows, Oddity) == []
    text = {caption.id: caption.text for caption in captions}
    assert text["65567#3"] == "A woman holds a man 's arm at a formal event ."
    arm = next(match for match in matches if match.types == ("bodyparts", "people"))
    assert (text[arm.caption][arm.start : arm.end], arm.group) == ("a man 's arm", "255545")
    unseen = [text[match.caption][match.start : match.end] for match in matches if match.group is None]
    assert unseen == ["each other", "the background", "it", "there"]


def test_the_real_lists_fit_each_other(tmp_path: Path) -> None:
    """Every unrelated caption is of a picture of Plummer's split; the annotations of just these are made up."""
    if not REAL.is_dir():
        pytest.skip("no files of Flickr30k Entities")
    unrelated = (REAL / "UNRELATED_CAPTIONS").read_text()
    images = re.findall(r"^(\d+) \d$", unrelated, re.MULTILINE)
    others = {f"Annotations/{image}.xml": annotation(image=image) for image in images}
    raw(tmp_path, others=others | {f"Sentences/{image}.txt": f"{SENTENCE}\n" * 5 for image in images})
    shutil.copy(REAL / "UNRELATED_CAPTIONS", tmp_path / UNRELATED)
    splits = {name: (REAL / f"{name}.txt").read_text().split() for name in ("train", "val", "test")}
    for name, image in (("train", "5"), ("val", "6"), ("test", "70")):
        kept = [one for one in splits[name] if one in images]
        (tmp_path / f"flickr30k_entities/{name}.txt").write_text("\n".join([image, *kept]))
    found = counted(parsed(tmp_path))
    assert found[f"odd: {flickr30k_entities.UNRELATED_CAPTION}"] == len(set(images)) == 21
    assert found["items"] == 24


def counted(rows: list[Row]) -> Counter[str]:
    """What the records stage counts of rows, and refuses of them."""
    census = Census("flickr30k_entities")
    for row in rows:
        census.add(row)
    return Counter({"items": len(of(rows, Item)), "captions": len(of(rows, Caption))} | census.counts())
