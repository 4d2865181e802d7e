"""TGIF: what the generated publisher writes comes back as rows, and what is wrong with a file is said."""

import io
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.demo.files import serve_at, write_tgz
from pipelines.demo.tgif import Animation, animations, write
from pipelines.demo.world import World, describe
from pipelines.engine.build_options import BuildOptions
from pipelines.fetching.ledger import Ledger
from pipelines.publishing.dataset_repository import publish
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.misbehaving import serve
from tests.parsing import of, parser_of
from xmodal.corpora import Corpus, load, tgif
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.records.tables import Caption, Item, Oddity, Row, Split
from xmodal.root.sealed_sets import read_lock
from xmodal.root.storage import open_storage

WORLD = World(items=60, image_size=32, captions_per_item=3, motion=0.9)
TABLE, TRAIN, VAL, TEST = "tgif-v1.0.tsv", "splits/train.txt", "splits/val.txt", "splits/test.txt"
REAL = Path(__file__).parents[3] / "shared/data/tgif"
HEX = "0123456789abcdef" * 2
parsed = parser_of(tgif)
Edit = Callable[[bytes], bytes]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, Path]:
    folder = tmp_path_factory.mktemp("tgif")
    return write(WORLD, folder), folder


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), items=st.integers(10, 30), captions=st.integers(1, 4))
def test_any_world_comes_back(tmp_path: Path, seed: int, items: int, captions: int) -> None:
    world = World(items, seed, 32, captions, motion=0.5)
    comes_back(list(animations(world)), write(world, tmp_path), parsed(tmp_path))
    shutil.rmtree(tmp_path)


def test_the_world_comes_back(published: tuple[Corpus, Path]) -> None:
    corpus, folder = published
    rows = parsed(folder)
    comes_back(list(animations(WORLD)), corpus, rows)
    assert of(rows, Oddity) == []


def comes_back(expected: list[Animation], corpus: Corpus, rows: list[Row]) -> None:
    items, splits = of(rows, Item), of(rows, Split)
    assert [(item.id, item.kind, item.media, item.url) for item in items] == [
        (each.id, "clip", f"gifs/{each.id}.gif", each.url) for each in expected
    ]
    assert {split.item: split.name for split in splits} == {each.id: each.split for each in expected}
    captions: dict[str, list[Caption]] = {}
    for caption in of(rows, Caption):
        captions.setdefault(caption.item, []).append(caption)
    for each in expected:
        mine, positions = captions[each.id], list(range(each.captions))
        assert [caption.position for caption in mine] == positions
        said = [describe(each.scene, each.world, position).lower().rstrip(".") for position in positions]
        assert [caption.text.lower().rstrip(".,") for caption in mine] == said
    found = Counter(f"items:{split.name}" for split in splits)
    found.update(f"captions:{split.name}" for split in splits for _ in captions[split.item])
    found.update({"items": len(items), "captions": len(of(rows, Caption))})
    assert corpus.counts == found


def test_the_publishers_quirks_are_there(published: tuple[Corpus, Path]) -> None:
    urls = [each.url for each in animations(WORLD)]
    assert {url.count("/") for url in urls} == {3, 4}
    assert all(any(part in url for url in urls) for part in ("_75sq.gif", "_r1_", "_r11_", "_1280.gif"))
    assert len({url.split(".")[0] for url in urls}) == 5
    assert {each.captions for each in animations(WORLD)} == {1, 2, 3, 4}
    lines = (published[1] / TABLE).read_text().splitlines()
    later = [line.split("\t")[0] for line in lines[-12:]]
    assert set(later) == {each.url for each in animations(WORLD) if each.split == "tgif/test"}  # at the end of the file
    ends = {line[-1] for line in lines}
    assert ends >= {".", ","}
    assert any(line.partition("\t")[2] != line.partition("\t")[2].lower() for line in lines)


def test_media_are_listed_and_lie_where_items_say(published: tuple[Corpus, Path]) -> None:
    corpus, folder = published
    assert corpus.media is not None
    listed = {source.path: source for source in corpus.media(Raw.folder(folder))}
    assert list(listed) == [item.media for item in of(parsed(folder), Item)]
    assert all(source.part == "media" and source.url for source in listed.values())
    for each in animations(WORLD):
        file = folder / f"gifs/{each.id}.gif"
        assert listed[f"gifs/{each.id}.gif"].url == each.url
        assert file.exists() == (not each.gone)
        if not each.gone:
            with Image.open(io.BytesIO(file.read_bytes())) as image:
                assert image.size == (each.scene.width, each.scene.height)
                assert (getattr(image, "n_frames", 1) == 1) == (each.still or each.scene.frames == 1)


def test_equal_worlds_are_equal_bytes(published: tuple[Corpus, Path], tmp_path: Path) -> None:
    assert write(WORLD, tmp_path) == published[0]
    for file in published[1].rglob("*.*"):
        assert (tmp_path / file.relative_to(published[1])).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("world", [replace(WORLD, motion=0.0), replace(WORLD, items=9)])
def test_a_world_that_tgif_cannot_hold_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TGIF has moving pictures in three splits"):
        write(world, tmp_path)


def test_it_is_built_from_its_addresses_and_published_without_its_gifs(
    published: tuple[Corpus, Path], tmp_path: Path
) -> None:
    corpus, folder = published
    storage = open_storage(str(tmp_path / "root"))
    with serve(folder) as server:
        site, served = BuildOptions(storage), serve_at(corpus, server.url)
        records, media = CorpusBuild(site, served).build("records"), CorpusBuild(site, served).build("media")
    gone = {f"gifs/{each.id}.gif" for each in animations(WORLD) if each.gone}
    assert {locked.path for locked in read_lock(media) if not locked.sha256} == gone != set()
    assert records.totals["counts"]["items:tgif/test"] == 6
    out = publish(corpus, storage, tmp_path / "out")
    assert out["withheld"] == {"media": "ids"}
    assert out["rows"] == {"tgif": {"train": 48, "val": 6, "test": 6}}
    assert not list((tmp_path / "out").rglob("*.gif"))
    card = (tmp_path / "out/README.md").read_text()
    assert "| `tgif` | `test` | 6 |" in card
    assert "approved non-commercial research" in card
    assert "$" not in card.replace("{\\'", "")
    assert "<!--" not in card


def test_gifs_that_somebody_has_are_taken_from_the_raw_folder(
    published: tuple[Corpus, Path], tmp_path: Path, folder: Path
) -> None:
    for file in (published[1] / "gifs").iterdir():
        shutil.copy(file, folder)  # by their names alone
    corpus = replace(published[0], media=lambda raw: (replace(s, url=None, how="gone") for s in tgif.media(raw)))
    media = CorpusBuild(BuildOptions(open_storage(str(tmp_path / "root")), raw=folder), corpus).build("media")
    present = {locked.path for locked in read_lock(media) if locked.sha256}
    assert present == {f"gifs/{each.id}.gif" for each in animations(WORLD) if not each.gone}


# ---------------------------------------------------------------------------------------------------------------- rules


def test_every_sentence_is_kept_in_the_files_order(tmp_path: Path) -> None:
    a, b = f"https://38.media.tumblr.com/{HEX}/tumblr_a_r1_75sq.gif", "https://33.media.tumblr.com/tumblr_b_500.gif"
    table = f"{a}\tone\n{b}\ttwo \u00a0 dogs \n{a}\tthree\n{a}\tone\n"
    rows = parsed(small(tmp_path, table, train=a, val=b, test=spare()))
    assert [(c.id, c.item, c.position, c.text) for c in of(rows, Caption)] == [
        ("tumblr_a_r1_75sq#0", "tumblr_a_r1_75sq", 0, "one"),
        ("tumblr_a_r1_75sq#1", "tumblr_a_r1_75sq", 1, "three"),
        ("tumblr_a_r1_75sq#2", "tumblr_a_r1_75sq", 2, "one"),
        ("tumblr_b_500#0", "tumblr_b_500", 0, "two dogs"),
    ]


def test_a_gif_in_no_split_is_kept_and_counted(folder: Path) -> None:
    first, _, rest = (folder / VAL).read_text().partition("\n")
    (folder / VAL).write_text(rest)
    rows = parsed(folder)
    item = first.rpartition("/")[2].removesuffix(".gif")
    assert [odd.rule for odd in of(rows, Oddity)] == ["GIF in no split: kept without one"]
    assert of(rows, Oddity)[0].item == item
    assert of(rows, Oddity)[0].where.startswith(f"{TABLE}:")
    assert item in {row.id for row in of(rows, Item)}
    assert item not in {row.item for row in of(rows, Split)}


def test_an_address_without_sentence_is_left_out_and_counted(folder: Path) -> None:
    with (folder / TEST).open("a") as file:
        file.write(f"{spare()}\n")
    rows = parsed(folder)
    assert of(rows, Oddity) == [
        Oddity("address in a split without sentence: left out", f"{TEST}:7", "tumblr_spare_500")
    ]
    assert len(of(rows, Item)) == len(of(rows, Split)) == 60


def test_a_failed_sentence_is_left_out_and_counted(folder: Path) -> None:
    before = parsed(folder)
    again = (folder / TABLE).read_text().partition("\t")[0]
    with (folder / TABLE).open("a") as file:
        file.write(f"{spare()}\tFailed\n{again}\tFailed\n{again}\tfailed\n")
    rows, count = parsed(folder), len(of(before, Caption))
    odd = of(rows, Oddity)
    assert [(o.rule, o.where) for o in odd] == [
        ('sentence "Failed": left out', f"{TABLE}:{count + 1}"),
        ('sentence "Failed": left out', f"{TABLE}:{count + 2}"),
    ]
    assert of(rows, Item) == of(before, Item)
    assert [c.text for c in of(rows, Caption)].count("failed") == 1
    assert "gifs/tumblr_spare_500.gif" not in {source.path for source in tgif.media(Raw.folder(folder))}


@pytest.mark.parametrize("edit", [lambda text: text.replace(b"\n", b"\r\n"), lambda text: b"\xef\xbb\xbf" + text])
def test_a_byte_order_mark_and_other_line_ends_do_no_harm(folder: Path, edit: Edit) -> None:
    expected = parsed(folder)
    for name in (TABLE, TRAIN, VAL, TEST):
        rewrite(folder, name, edit)
    assert parsed(folder) == expected


# ------------------------------------------------------------------------------------------------------------- troubles


def after_first_line(line: str) -> Edit:
    return lambda text: text.replace(b"\n", f"\n{line}\n".encode(), 1)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (TABLE, lambda text: b"", f"{TABLE} has no sentences"),
        (TABLE, lambda text: b"url\tsentence\n" + text, f"{TABLE}:1: 'url' is no https address of a GIF"),
        (TABLE, lambda text: text.replace(b"https", b"http", 1), f"{TABLE}:1: 'http:.*is no https address of a GIF"),
        (TABLE, lambda text: text.replace(b".gif", b".gifv", 1), f"{TABLE}:1: .*is no https address"),
        (TABLE, lambda text: text.replace(b"\n", b"\t17\n"), f"{TABLE}:1 has 3 columns, not 2"),
        (TABLE, lambda text: text.replace(b"\t", b" ", 1), f"{TABLE}:1 has 1 columns, not 2"),
        (TABLE, after_first_line("https://a.b/tumblr_x_500.gif\t "), f"{TABLE}:2: its sentence is empty"),
        (TABLE, after_first_line("https://a.b/../tumblr_x_500.gif\tx"), f"{TABLE}:2: .*is no https address"),
        (TABLE, lambda text: text.replace(b"\n", b"\xff\n", 1), f"{TABLE}:1 is not UTF-8"),
        (VAL, lambda text: b"", f"{VAL} is empty"),
        (VAL, lambda text: b"\r\n", f"{VAL} is empty"),
        (VAL, lambda text: text + text, f"{VAL}:7: id tumblr_.* is there a second time"),
        (VAL, lambda text: text.replace(b"\n", b" a sentence\n", 1), f"{VAL}:1: .*is no https address of a GIF"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(folder: Path, name: str, edit: Edit, message: str) -> None:
    rewrite(folder, name, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


@pytest.mark.parametrize("name", [TABLE, TRAIN])
def test_two_addresses_with_one_id_are_refused(folder: Path, name: str) -> None:
    url, sentence = (folder / TABLE).read_text().splitlines()[0].split("\t")
    other = f"https://42.media.tumblr.com/{url.rpartition('/')[2]}"
    rewrite(folder, name, after_first_line(f"{other}\t{sentence}" if name == TABLE else other))
    with pytest.raises(UserError, match=f"{name}:2: {other} has the id tumblr_.*, as has {url}"):
        parsed(folder)


def test_a_gif_in_two_splits_is_refused(folder: Path) -> None:
    url = (folder / VAL).read_text().splitlines()[2]
    rewrite(folder, TEST, after_first_line(url))
    with pytest.raises(UserError, match=f"{TEST}:2: tumblr_.* is in tgif/val too"):
        parsed(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / TRAIN).unlink()
    with pytest.raises(UserError, match=f"{TRAIN} is not among the publisher's files"):
        parsed(folder)


# ------------------------------------------------------------------------------------------------------- the real thing


def test_the_corpus_is_the_published_one() -> None:
    corpus, counts = load("tgif"), tgif.CORPUS.counts
    assert corpus is tgif.CORPUS
    assert counts["items"] == sum(counts[f"items:tgif/{name}"] for name in ("train", "val", "test")) == 102_068
    assert all(source.url and source.url.endswith(f"/{source.path}") for source in corpus.sources)


def test_real_lists_and_sentences(tmp_path: Path) -> None:
    """The published val and test, with the few sentences at hand; the rest of the GIFs is without."""
    if not REAL.is_dir():
        pytest.skip("no real samples of TGIF")
    table = (REAL / "tgif-v1.0.sample.tsv").read_text()
    listed = {name: (REAL / f"{name}.txt").read_text() for name in ("val", "test")}
    urls = dict.fromkeys(line.partition("\t")[0] for line in table.splitlines())
    train = "\n".join(url for url in urls if not any(url in text for text in listed.values()))
    folder = small(tmp_path, table, train, listed["val"], listed["test"])
    rows = parsed(folder)
    assert len(of(rows, Item)) == len(of(rows, Split)) == len(urls) == 34
    assert len(of(rows, Caption)) == len(table.splitlines()) == 38
    assert {split.name for split in of(rows, Split)} == {"tgif/train", "tgif/val", "tgif/test"}
    odd = Counter(odd.where.partition(":")[0] for odd in of(rows, Oddity))
    known = Counter(split.name for split in of(rows, Split))
    assert odd == {VAL: 10_708 - known["tgif/val"], TEST: 11_360 - known["tgif/test"]}
    for source in tgif.CORPUS.sources[2:]:
        assert (folder / source.path).stat().st_size == source.bytes


def rewrite(folder: Path, name: str, edit: Edit) -> None:
    (folder / name).write_bytes(edit((folder / name).read_bytes()))


def spare() -> str:
    """An address that nobody describes."""
    return f"https://31.media.tumblr.com/{HEX}/tumblr_spare_500.gif"


def small(folder: Path, table: str, train: str, val: str, test: str) -> Path:
    (folder / "splits").mkdir(parents=True)
    for name, text in ((TABLE, table), (TRAIN, train), (VAL, val), (TEST, test)):
        (folder / name).write_text(text)
    return folder


def test_authors_archives_are_taken_as_they_are(published: tuple[Corpus, Path], tmp_path: Path) -> None:
    """A tar of most GIFs, under a folder of its own, a zip of some, a few files beside; one GIF is nowhere."""
    corpus, whole = published
    raw = Path(shutil.copytree(whole, tmp_path / "raw"))
    gifs = sorted(raw.rglob("*.gif"))
    lost, plain, zipped, tarred = gifs[0], gifs[1:4], gifs[4:10], gifs[10:]
    write_tgz(raw / "tgif.tar.gz", [(f"./tgif/all/{gif.name}", gif.read_bytes()) for gif in tarred])
    with zipfile.ZipFile(raw / "rest.zip", "w") as archive:
        for gif in zipped:
            archive.write(gif, gif.name)
    for gif in (lost, *zipped, *tarred):
        gif.unlink()
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=raw)
    sealed = CorpusBuild(site, without_addresses(corpus)).build("media")
    statuses = Counter(state.status for state in Ledger(site.storage, "media", "tgif").states())
    assert statuses["local"] == len(gifs) - 1
    absent = {Path(entry.path).name for entry in read_lock(sealed) if entry.sha256 is None}
    assert lost.name in absent
    assert absent.isdisjoint(gif.name for gif in gifs[1:])
    for gif in (*plain, *zipped, *tarred):
        with raw_of(sealed).open(f"gifs/{gif.name}") as file:
            assert file.read() == (whole / gif.relative_to(raw)).read_bytes()


def test_a_damaged_archive_of_authors_is_named(published: tuple[Corpus, Path], tmp_path: Path) -> None:
    corpus, whole = published
    raw = Path(shutil.copytree(whole, tmp_path / "raw", ignore=shutil.ignore_patterns("*.gif")))
    (raw / "tgif.tar.gz").write_bytes(b"\x1f\x8bno archive")
    with pytest.raises(UserError, match=r"tgif\.tar\.gz"):
        CorpusBuild(BuildOptions(open_storage(str(tmp_path / "root")), raw=raw), without_addresses(corpus)).build(
            "media"
        )


def without_addresses(corpus: Corpus) -> Corpus:
    """So that nobody is asked."""
    listed = corpus.media
    assert listed is not None
    return replace(corpus, media=lambda raw: (replace(one, url=None, how="ask the authors") for one in listed(raw)))
