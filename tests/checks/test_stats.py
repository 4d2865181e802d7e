"""Descriptive tables: what `xmodal stats` says of a generated corpus, against the same numbers counted the slow way."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest

import xmodal
from pipelines.cli import main
from pipelines.commands.models.stats import beside
from pipelines.demo import coco
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.papers.experiments import FOLDER, papers, printed_of
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.publishers import cub, flickr30k_entities
from tests.toy_root import PICTURES, item_id, make_root
from xmodal import corpora
from xmodal.checks.statistics import PlausiblePairs, Spread, describe
from xmodal.corpora import Corpus
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import extents_file, index_files, shard_file, write_ragged_shard
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Label, Match, Oddity, Region, Row, Split
from xmodal.root.storage import open_storage
from xmodal.text.tokenizers import tokenizer

COCO = World(items=60, image_size=32)
OWN = """
from dataclasses import replace
from xmodal.corpora import Printed
CORPUS = replace(CORPUS, printed=(Printed("items", 20, "My paper"),))
"""
WRITERS: dict[str, tuple[Callable[[World, Path], Corpus], World]] = {
    "coco": (coco.write, COCO),
    "cub": (cub.write, World(items=40, image_size=32, captions_per_item=10, identities=10)),
}


@pytest.fixture(scope="module", params=WRITERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, list[Row]]:
    """A root, the corpus in it, and the rows that its parser yields."""
    write, world = WRITERS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    corpus = write(world, folder / "raw")
    CorpusBuild(BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw"), corpus).build("records")
    return str(folder / "root"), corpus.name, list(corpus.parse(Raw.folder(folder / "raw")))


def test_every_split_is_counted_as_by_hand(made: tuple[str, str, list[Row]]) -> None:
    root, name, rows = made
    found = describe(xmodal.open(root, name))
    captions, splits = [r for r in rows if isinstance(r, Caption)], [r for r in rows if isinstance(r, Split)]
    members = {"all": {r.id for r in rows if isinstance(r, Item)}}
    members |= {split.name: {s.item for s in splits if s.name == split.name} for split in splits}
    split_words = tokenizer("nltk")
    authors, known = sorted({name.split("/")[0] for name in members} - {"all"}), ("train", "val", "test", "restval")
    ordered = [f"{author}/{part}" for author in authors for part in known if f"{author}/{part}" in members]
    assert [part.name for part in found.parts] == ["all", *ordered]
    for part in found.parts:
        own = [caption for caption in captions if caption.item in members[part.name]]
        lengths = [len(split_words(caption.text)) for caption in own]
        words = Counter(word for caption in own for word in split_words(caption.text))
        each = Counter(caption.item for caption in own)
        assert (part.items, part.captions, part.silent) == (len(members[part.name]), len(own), 0)
        assert part.first_five == sum(min(count, 5) for count in each.values())
        assert part.captions_per_item == Spread(len(own) / len(each), min(each.values()), max(each.values()))
        assert part.words_per_caption == Spread(sum(lengths) / len(own), min(lengths), max(lengths))
        assert (part.tokens, part.vocabulary) == (sum(lengths), len(words))
        assert part.frequent == sum(count >= 4 for count in words.values())
    assert found.oddities == dict(Counter(r.rule for r in rows if isinstance(r, Oddity)))


def test_what_else_there_is_is_counted_by_kind(made: tuple[str, str, list[Row]]) -> None:
    root, name, rows = made
    counts = describe(xmodal.open(root, name)).counts
    labels, regions = [r for r in rows if isinstance(r, Label)], [r for r in rows if isinstance(r, Region)]
    assert counts["pictures"] == sum(isinstance(row, Item) for row in rows)
    for kind in {label.kind for label in labels}:
        names = [label.name for label in labels if label.kind == kind]
        assert (counts[f"labels: {kind}"], counts[f"different labels: {kind}"]) == (len(names), len(set(names)))
    assert counts.get("regions", 0) == counts.get("regions with a box", 0) == len(regions)


def test_chains_and_phrases_are_counted(tmp_path: Path) -> None:
    corpus = flickr30k_entities.write(World(items=30, image_size=32), tmp_path / "raw")
    CorpusBuild(BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw"), corpus).build("records")
    rows = list(corpus.parse(Raw.folder(tmp_path / "raw")))
    counts = describe(xmodal.open(str(tmp_path / "root"), corpus.name)).counts
    regions, matches = [r for r in rows if isinstance(r, Region)], [r for r in rows if isinstance(r, Match)]
    assert counts["groups of regions"] == len({(r.item, r.group) for r in regions if r.group is not None})
    assert counts["regions with a box"] == sum(r.left is not None for r in regions) < counts["regions"] == len(regions)
    assert counts["matches of phrases"] == sum(match.start is not None for match in matches) > 0
    assert counts.get("matches of captions", 0) == sum(match.start is None for match in matches)


def test_silent_items_and_lengths_of_clips_are_told(tmp_path: Path) -> None:
    """The last item of all has no captions."""
    root = make_root(tmp_path, items=20)
    assert [part.lengths for part in describe(xmodal.open(root, "pictures")).parts] == [{}] * 5
    output = build(clips(Clips(20)), open_storage(root))
    found = {part.name: part for part in describe(xmodal.open(root, "pictures")).parts}
    store = f"clips/{output.identity}"
    lengths = {number: 1 + number % 7 for number in range(20)}
    assert found["all"].lengths == {store: Spread(sum(lengths.values()) / 20, 1, 7)}
    assert found["toy/test"].lengths == {store: Spread(3.0, 3, 3)}
    assert (found["toy/silent"].silent, found["toy/silent"].captions_per_item) == (1, Spread(0, 0, 0))
    assert found["toy/silent"].words_per_caption is None
    assert found["all"].silent == 1


@dataclass(frozen=True)
class Clips:
    items: int


def clips(config: Clips) -> Stage[Clips, None]:
    spec = FeatureSpec("frames", (4,), ragged=True, rows_per_shard=512, items_per_shard=64)

    def plan(config: Clips, inputs: Inputs) -> Iterator[tuple[str, None]]:
        yield "all", None

    def write(work: None, sink: Sink) -> Counts:
        for name, data in index_files(spec, [item_id(n) for n in range(config.items)], {}).items():
            with sink.file(name) as file:
                file.write(data)
        arrays = (np.ones((1 + n % 7, 4), "float16") for n in range(config.items))
        with sink.file(shard_file(spec, 0)) as file:
            extents = write_ragged_shard(file, spec, range(config.items), arrays)
        with sink.file(extents_file(spec, 0)) as file:
            file.write(extents)
        return {"rows": config.items}

    return Stage("clips", config, plan, lambda config, inputs: write)


def test_papers_stand_beside_what_is_there(made: tuple[str, str, list[Row]]) -> None:
    root, name, _ = made
    printed = printed_of(name)
    found = describe(xmodal.open(root, name), printed)
    told = {(b.printed.what, b.printed.split): b.found for b in found.beside}
    assert tuple(beside.printed for beside in found.beside) == printed
    assert told["items", "all"] == found.parts[0].items
    assert None not in told.values()


def test_what_is_printed_is_of_corpora_and_splits_that_there_are() -> None:
    """Where the corpus' own counts can tell, they agree with the paper or the difference is explained."""
    tables = [tomllib.loads((FOLDER / f"{paper}.toml").read_text()).get("printed", {}) for paper in papers()]
    assert {name for table in tables for name in table} <= {*corpora.names()}
    for name in corpora.names():
        counts = corpora.load(name).counts
        for each in printed_of(name):
            what = {"first_five": "captions[:5]"}.get(each.what, each.what)
            known = counts.get(what if each.split == "all" else f"{what}:{each.split}", each.value)
            assert known == each.value or each.note, each
            assert each.cites


def test_the_command_says_json_and_latex(made: tuple[str, str, list[Row]], capsys: pytest.CaptureFixture[str]) -> None:
    root, name, _ = made
    found = describe(xmodal.open(root, name), printed_of(name))
    assert main(["stats", name, "--root", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(asdict(found)))
    assert main(["stats", name, "--root", root]) == 0
    lines = capsys.readouterr().out.splitlines()
    for part in found.parts:
        (line,) = (line for line in lines if line.split()[:1] == [part.name] and ":" not in line)
        assert line.split()[1:3] == [f"{part.items:,}", f"{part.captions:,}"]
    assert any(line.startswith(found.beside[0].printed.cites) for line in lines)
    assert main(["stats", name, "--root", root, "--latex"]) == 0
    latex = capsys.readouterr().out
    assert latex.count(r"\\") == 1 + len(found.parts)
    assert r"\begin{tabular}{lrrrrr}" in latex
    assert main(["stats", "mrw", "--root", root]) == 1
    assert "no corpus 'mrw' under" in capsys.readouterr().err


def test_columns_stay_apart_beside_a_long_caption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.csv").write_text(f"url,caption\na.png,{'word ' * 140_000}\nb.png,one\nb.png,two\n")
    root = str(tmp_path / "root")
    assert main(["build", f"{tmp_path}/list.csv/records", "--root", root, "--splits", "train=1"]) == 0
    assert main(["stats", "list", "--root", root]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("own/train"))
    assert "  46667.3 1-140000  " in line


def test_what_a_file_of_ones_own_cites_stands_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, mine = make_root(tmp_path, items=20), tmp_path / "mine.py"
    mine.write_text(PICTURES.read_text() + OWN)
    assert main(["stats", str(mine), "--root", root]) == 0
    assert "My paper: 20 items of all, as here" in capsys.readouterr().out


def test_plausible_matches_are_counted_by_level_where_they_are_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, root = coco.write(COCO, tmp_path / "raw"), str(tmp_path / "root")
    site = BuildOptions(open_storage(root), raw=tmp_path / "raw")
    build_stages(CorpusBuild(site, corpus), ["records"])
    assert {part.plausible for part in describe(xmodal.open(root, "coco")).parts} == {None}
    build_stages(CorpusBuild(site, corpus), ["plausible"])
    rows = list(corpus.parse(Raw.folder(tmp_path / "raw")))
    shown = {
        r.item: {s.name for s in rows if isinstance(s, Label) and s.item == r.item}
        for r in rows
        if isinstance(r, Label)
    }
    members = {r.item for r in rows if isinstance(r, Split) and r.name == "karpathy/train"} & shown.keys()
    found = {part.name: part.plausible for part in describe(xmodal.open(root, "coco")).parts}
    for name, some in (("all", shown.keys()), ("karpathy/train", members)):
        differing = [len(shown[one] ^ shown[other]) for one in some for other in some if one != other]
        assert found[name] == PlausiblePairs(len(some), tuple(sum(d <= zeta for d in differing) for zeta in (0, 1, 2)))
    assert main(["stats", "coco", "--root", root]) == 0
    train = found["karpathy/train"]
    assert train is not None
    assert re.search(
        rf"karpathy/train: plausible matches among {train.items} items with categories: {train.matches[0]:,} at zeta 0",
        capsys.readouterr().out,
    )


def test_a_number_that_a_paper_rounds_says_why() -> None:
    printed = {"what": "items", "value": 100_000, "cites": "PVSE, table 1", "split": "all", "note": "rounded"}
    wanted = "PVSE, table 1: 100,000 items of all, 102,068 here (rounded)"
    assert beside(printed, 102_068.0) == wanted
    assert beside(printed, 100_000.0) == "PVSE, table 1: 100,000 items of all, as here"
    assert beside(printed, None).endswith("not to be found here (rounded)")
