"""A stage is one new file: every command knows it, and no other file is edited."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import xmodal
from pipelines import stages
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage_kind import GivenFiles
from pipelines.engine.typed_settings import parse_settings
from pipelines.publishing.dataset_repository import feature_stores
from pipelines.publishing.feature_import import import_features
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages, stages_of, unread
from pipelines.upkeep.inspection import status
from pipelines.upkeep.planning import plan
from pipelines.upkeep.retries import retry_units
from pipelines.upkeep.targets import parse_targets
from tests.made import small
from xmodal.corpora import Corpus, load
from xmodal.errors import UserError
from xmodal.features.foreign_formats import open_foreign
from xmodal.features.store import FeatureStore
from xmodal.root.storage import open_storage

CORPUS = Path(__file__).parents[1] / "fixtures/pictures.py"
STAGE = '''
"""The toy_tints stage: the mean colour of each picture, times the first byte of a file."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from pipelines.engine.picture_decoder import DEADLINE, SquareDecoder
from pipelines.engine.stage import given, listed
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.media_stages import PictureExtractor, bytes_of_rows, picture_stage
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.media.images import UnreadableImage


@dataclass(frozen=True)
class ToyTintsConfig:
    side: int = 4
    palette: str = given()
    items: str = listed()

    @property
    def spec(self):
        return FeatureSpec("features", (3,), "float32", rows_per_shard=1024)


def check(config, files):
    if "toy_palette" not in files:
        raise UserError("toy_tints need a palette: --file toy_palette=FILE")


STAGE = StageKind(
    name="toy_tints",
    config=ToyTintsConfig,
    needs=("records", "media"),
    of="image",
    files=("toy_palette",),
    features=True,
    estimate=bytes_of_rows,
    check=check,
    small={"side": 8},
    small_files={"toy_palette": b"\x02"},
)
BUSY = set()  # sides of pictures that fail now and may be read later


def make(config, needs):
    data = needs.files["toy_palette"].read_bytes()
    palette = hashlib.sha256(data).hexdigest()
    config = replace(config, palette=palette)
    stage = picture_stage(STAGE.name, config, needs, 1, lambda config: extractor(config, data[0]))
    return replace(stage, passing=("unreadable",))


def extractor(config, tint):
    decoder = SquareDecoder(config.side, config.side, DEADLINE)

    def see(data, cut):
        if BUSY:
            raise UnreadableImage("busy")
        return decoder.pixels(data, cut)

    def rows(pictures):
        return np.stack(pictures).mean(axis=(1, 2), dtype=np.float32) * tint

    return PictureExtractor(see, rows, 4, {"toy_palette": config.palette}, decoder.expect)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is searched for stages too."""
    there = tmp_path / "more_stages"
    there.mkdir()
    (there / "toy_tints.py").write_text(STAGE)
    (there / "_shared.py").write_text("raise AssertionError('this is no stage')")
    before = set(sys.modules)
    monkeypatch.setattr(stages, "__path__", [*stages.__path__, str(there)])
    yield there
    for name in set(sys.modules) - before:
        if name.startswith("pipelines.stages."):
            del sys.modules[name]


@pytest.fixture
def published(tmp_path: Path) -> tuple[Corpus, Path]:
    raw = tmp_path / "raw"
    raw.mkdir()
    names = [f"p{number:03d}.jpg" for number in range(8)]
    for number, name in enumerate(names):
        Image.new("RGB", (40, 32), (30 * number, 90, 10)).save(raw / name, "JPEG")
    (raw / "captions.tsv").write_text("".join(f"{name}\ta thing\n{name}\tanother thing\n" for name in names))
    (raw / "splits.json").write_text('{"train": ["' + '", "'.join(names[:6]) + '"], "val": ["p006.jpg", "p007.jpg"]}')
    (raw / "pictures.txt").write_text("".join(f"gopher://gone/{name}\n" for name in names))
    return replace(load(str(CORPUS)), counts={}), raw


@pytest.fixture
def options(folder: Path, published: tuple[Corpus, Path], tmp_path: Path) -> BuildOptions:
    settings = parse_settings(["toy_tints.side=8"], {kind.name: kind.config() for kind in stages.all()})
    palette = small(tmp_path)["files"]["toy_palette"]
    storage = open_storage(str(tmp_path / "root"))
    return BuildOptions(storage, raw=published[1], settings=settings, files={"toy_palette": palette})


def test_a_new_file_is_a_stage_of_every_list(
    options: BuildOptions, published: tuple[Corpus, Path], tmp_path: Path
) -> None:
    assert small(tmp_path)["settings"]["toy_tints.side"] == 8
    assert options.settings == {"toy_tints.side": 8}
    assert "toy_tints" in stages.targets()
    assert "toy_tints" in stages_of(replace(published[0], kinds=frozenset({"image"})))
    assert "toy_tints" not in stages_of(replace(published[0], kinds=frozenset({"clip"})))
    assert unread(options, ["toy_tints"]) == []
    assert unread(options, ["vocabulary"]) == ["toy_tints.side", "--file toy_palette"]
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "x_ids.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match="--name toy_tints: that is the name of a stage"):
        import_features(
            options.storage, "toy_tints", open_foreign(tmp_path / "x.npy"), (), serial, ProgressLine(quiet=True)
        )


def test_a_new_stage_is_planned_and_asks_for_its_file_before_anything_is_fetched(
    options: BuildOptions, published: tuple[Corpus, Path]
) -> None:
    without, target = replace(options, files={}), [f"{CORPUS}/toy_tints"]
    before = plan(parse_targets(target, without, {}))
    assert [row["stage"] for row in before] == ["sources", "records", "media", "toy_tints"]
    assert before[-1]["waits_for"] == "records and media"
    with pytest.raises(UserError, match="toy_tints need a palette: --file toy_palette=FILE"):
        build_stages(CorpusBuild(without, published[0]), ["toy_tints"])
    assert status(options.storage)["outputs"] == []
    build_stages(CorpusBuild(options, published[0]), ["records", "media"])
    (planned,) = plan(parse_targets(target, options, {}))
    assert (planned["units"], planned["done"], planned["writes"]) == (2, 0, 8 * 3 * 4)


def test_a_new_stage_is_built_and_tried_again(options: BuildOptions, published: tuple[Corpus, Path]) -> None:
    work = CorpusBuild(options, published[0])
    build_stages(work, ["records", "media"])
    module = sys.modules["pipelines.stages.toy_tints"]
    module.BUSY.add("now")
    (row,) = build_stages(work, ["toy_tints"])
    assert (row["planned"], row["absent"], row["retry"]) == (8, 8, ["unreadable"])
    told = retry_units(CorpusBuild(options, published[0]), "toy_tints")
    assert (told["tried"], told["recovered"], told["reasons"]["unreadable"]["files"]) == (8, 0, 8)
    module.BUSY.clear()
    assert retry_units(CorpusBuild(options, published[0]), "toy_tints") | {"path": ""} == {
        "tried": 8,
        "recovered": 8,
        "path": "",
        "unfinished": [],
        "of": "pictures",
    }
    (row,) = build_stages(CorpusBuild(options, published[0]), ["toy_tints"])
    assert (row["built"], row["absent"]) == (False, 0)


def test_what_a_new_stage_makes_is_read_and_published(options: BuildOptions, published: tuple[Corpus, Path]) -> None:
    corpus, _ = published
    (row,) = build_stages(CorpusBuild(options, corpus), ["toy_tints"])
    (told,) = [each for each in status(options.storage)["outputs"] if each["stage"] == "toy_tints"]
    assert (told["complete"], told["of"], told["config"]["side"]) == (True, "pictures", 8)
    store = xmodal.open(options.storage.url, "pictures").store()
    assert isinstance(store, FeatureStore)
    np.testing.assert_allclose(store.read(["p003"]), [[2 * 90, 2 * 90, 2 * 10]], atol=8)  # of JPEG
    assert [output.stage for output in feature_stores(corpus, options.storage)] == ["toy_tints"]
    options.files["toy_palette"].write_bytes(b"\x03")
    (other,) = build_stages(CorpusBuild(options, corpus), ["toy_tints"])
    assert other["identity"] != row["identity"], "another file of weights is another identity"


def test_a_corpus_without_its_kind_is_refused_before_anything_is_fetched(
    folder: Path, published: tuple[Corpus, Path], tmp_path: Path
) -> None:
    corpus, raw = published
    options = BuildOptions(open_storage(str(tmp_path / "root")), raw=raw)
    with pytest.raises(UserError, match="pictures has no pictures: toy_tints is for pictures, not clips"):
        build_stages(CorpusBuild(options, replace(corpus, kinds=frozenset({"clip"}))), ["toy_tints"])
    assert options.storage.names("") == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            'name="toy_tints"',
            'name="toy_tint"',
            r"toy_tints\.py must define make.* and STAGE = StageKind\(name='toy_tints'",
        ),
        ("def make", "def made", r"toy_tints\.py must define make"),
        ("import hashlib", "import nowhere", r"toy_tints\.py cannot be loaded: ModuleNotFoundError: .*'nowhere'"),
        ("BUSY = set()", "BUSY = set(", r"toy_tints\.py cannot be loaded: SyntaxError: "),
        (
            '("records", "media")',
            '("recrods",)',
            r"toy_tints\.py: stage toy_tints needs recrods, which is no stage; there are: .*records",
        ),
        (
            '("records", "media")',
            '("records")',
            r"toy_tints\.py: needs='records' is a text: write needs=\('records',\)",
        ),
        ('{"side": 8}', '{"sied": 8}', r"toy_tints\.py: small has 'sied', which is no setting of toy_tints"),
        (
            'files=("toy_palette",)',
            'files="toy_palette"',
            r"toy_tints\.py: files='toy_palette' is a text: write files=\('toy_palette',\)",
        ),
        (
            'of="image"',
            'of="picture"',
            r"toy_tints\.py: of='picture' is no kind of item or label; there are: image, clip, ",
        ),
        (
            "    side: int",
            "    sides: tuple = (3, 4)\n    side: int",
            r"toy_tints\.py: ToyTintsConfig has sides: <class .tuple.>: a setting is bool, .*; else write given",
        ),
        ('("records", "media")', '("toy_tints",)', "stages need each other: toy_tints → toy_tints"),
    ],
)
def test_a_file_that_declares_no_stage_is_named(old: str, new: str, complaint: str, folder: Path) -> None:
    (folder / "toy_tints.py").write_text(STAGE.replace(old, new))
    with pytest.raises(UserError, match=complaint):
        stages.names()


def test_small_files_of_one_name_are_refused(folder: Path) -> None:
    (folder / "toy_tones.py").write_text(STAGE.replace('name="toy_tints"', 'name="toy_tones"'))
    with pytest.raises(
        UserError, match=r"stages toy_tints and toy_tones both give small_files\['toy_palette'\]: rename one"
    ):
        stages.all()


def test_a_file_that_declares_no_stage_is_named_where_it_is_loaded_alone(folder: Path) -> None:
    (folder / "toy_tints.py").write_text(STAGE.replace('of="image"', 'of="picture"'))
    with pytest.raises(UserError, match=r"^\S+toy_tints\.py: of='picture'[^\n]+$"):
        stages.load("toy_tints")


def test_every_stage_comes_after_what_it_needs() -> None:
    names = stages.names()
    for kind in stages.all():
        assert all(names.index(need) < names.index(kind.name) for need in kind.needs if need in names)
    assert names[0] == "records"


def test_a_file_that_nobody_gave_is_asked_for() -> None:
    files = GivenFiles(weights=Path("x.pth"))
    assert (files["weights"], files.get("gains")) == (Path("x.pth"), None)
    with pytest.raises(UserError, match=r"--file gains=PATH is needed"):
        _ = files["gains"]
