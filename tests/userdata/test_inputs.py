"""Lists as people have them: packed, without a header, with absolute paths, labels, repeats and very long cells."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.fetching.user_lists import find_lists
from tests.commands.test_cli import Xmodal
from tests.toy_root import one_thread as one_thread
from tests.userdata.test_own import (
    RESNET,
    SHARES,
    TRAINING,
    WRITERS,
    built,
    captions_of,
    odd,
    parsed,
    table,
    write_csv,
    write_jsonl,
    write_pictures,
)
from tests.userdata.test_own import root as root
from tests.userdata.test_own import xmodal as xmodal
from xmodal.batches.reader import shortened
from xmodal.batches.texts import Texts
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.records.tables import Caption, Item, Label, Oddity, Split
from xmodal.root.files import sha256_of
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import END, START
from xmodal.userdata.description import Description, ListFile
from xmodal.userdata.entries import ABSOLUTE, LINES, ODD_LABEL, OUTSIDE
from xmodal.userdata.user_corpus import AGAIN

SOME = [{"url": f"p{n}.png", "caption": f"a picture, number {n}"} for n in range(3)]
WRITE = WRITERS | {"json": lambda path, some: path.write_text(json.dumps(some, indent=1))}


def units(root: Path, identity: str) -> list[Any]:
    return [
        (unit.name, sorted(unit.files.items()))
        for unit in Output(open_storage(str(root)), f"records/{identity}").units()
    ]


@pytest.mark.parametrize("kind", [*WRITE, *(f"{kind}.gz" for kind in WRITE)])
def test_a_list_of_every_kind_gives_the_same_rows_packed_or_not(kind: str, tmp_path: Path) -> None:
    plain = tmp_path / f"list.{kind.removesuffix('.gz')}"
    WRITE[kind.removesuffix(".gz")](plain, SOME)
    if kind.endswith(".gz"):
        (tmp_path / f"list.{kind}").write_bytes(gzip.compress(plain.read_bytes()))
    write_jsonl(tmp_path / "same.jsonl", SOME)
    assert parsed(tmp_path, f"list.{kind}") == parsed(tmp_path, "same.jsonl")


def test_a_packed_list_names_the_corpus_and_is_found_in_a_folder(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", 3)
    (tmp_path / "mine/captions.json.gz").write_bytes(gzip.compress(json.dumps(SOME).encode()))
    (tmp_path / "mine/other.json.gz").write_bytes(gzip.compress(json.dumps(SOME).encode()))
    rows = [xmodal.done("build", tmp_path / "mine" / name, "--root", root) for name in ("", "other.json.gz")]
    assert [{row["corpus"] for row in each["outputs"]} for each in rows] == [{"mine"}, {"other"}]
    assert all(built(each, "media")["counts"] == {"present": 3, "absent": 0} for each in rows)
    first, other = (units(root, built(each, "records")["identity"]) for each in rows)
    assert first == other, "the same bytes"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"images": []}', r"a\.json is not the JSON it should be, at character 0: '\[' expected"),
        ("a.json", b'[{"url": "p0.png", "caption": "a"}, 7]', r"a\.json\[1\] is no JSON object"),
        ("a.json", b'[{"url": "p0.png"}]', r"a\.json\[0\] has no column 'caption'; its columns are url"),
        ("a.csv.gz", b"url,caption\n", r"a\.csv\.gz is damaged .*Not a gzipped file"),
        ("a.csv.gz", gzip.compress(b"url,caption\n" + b"p0.png,a\n" * 9999)[:-20], r"a\.csv\.gz is damaged"),
        ("a.parquet.gz", gzip.compress(b"PAR1 but no more"), r"a\.parquet\.gz is damaged, or not what its name says"),
    ],
)
def test_a_list_that_is_not_what_its_name_says_is_refused(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        parsed(tmp_path, name)


def test_columns_of_a_list_without_a_header_are_named_by_number(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    (tmp_path / "list.tsv").write_text("".join(f"{n}\tp{n}.png\ttest\ta picture {n}\n" for n in range(3)))
    said = xmodal("build", tmp_path / "list.tsv/records", "--root", root).complaint
    assert said.endswith(
        "columns are 0, p0.png, test, a picture 0; if they are a row, add --header no, and name columns by number"
    )
    flags = ("--header", "no", "--url", "2", "--caption", "4", "--id", "1", "--split", "3")
    rows = xmodal.done("build", tmp_path / "list.tsv", "--root", root, *flags)
    identity = built(rows, "records")["identity"]
    assert [item.id for item in table(root, Item, "items", identity)] == ["0", "1", "2"], "also the first line"
    assert [caption.text for caption in table(root, Caption, "captions", identity)] == [
        f"a picture {n}" for n in range(3)
    ]
    assert not any(row["built"] for row in xmodal.done("build", tmp_path / "list.tsv", "--root", root)["outputs"])
    said = xmodal("build", tmp_path / "list.tsv/records", "--root", root, "--caption", "5").complaint
    assert "list.tsv:1 has no column '5'; its columns are 1, 2, 3, 4" in said
    said = xmodal("build", tmp_path / "list.tsv/records", "--root", root, "--header", "yes").complaint
    assert "has no column '2'" in said


def test_a_list_without_a_header_is_csv_or_tsv(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "list.jsonl", SOME)
    with pytest.raises(
        UserError, match=r"list\.jsonl names its columns in itself: only CSV and TSV may have no header"
    ):
        parsed(tmp_path, "list.jsonl", has_header=False)


def test_absolute_paths_are_taken_below_the_folder_and_refused_elsewhere(
    xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    write_pictures(tmp_path / "data/in", 3)
    write_pictures(tmp_path / "other", 1)
    paths = [*(f"{tmp_path}/data/in/p{n}.png" for n in range(2)), "in/p2.png"]
    away = [f"{tmp_path}/other/p0.png", f"{tmp_path}/data/../other/p0.png", f"{tmp_path}/database/p0.png"]
    write_csv(tmp_path / "list.csv", [{"url": path, "caption": "a"} for path in [*paths, *away]])
    folder = ("build", tmp_path / "data", "--captions", tmp_path / "list.csv", "--root", root)
    rows = xmodal.done(*folder)
    assert built(rows, "media")["counts"] == {"present": 3, "absent": 0}
    items = table(root, Item, "items", built(rows, "records")["identity"])
    assert [item.media for item in items] == ["in/p0.png", "in/p1.png", "in/p2.png"]
    counts = built(rows, "records")["counts"]
    assert counts[f"odd: {OUTSIDE}"] == 2
    assert not any(row["built"] for row in xmodal.done(*folder)["outputs"])
    assert not any(row["built"] for row in xmodal.done("build", "data", "--root", root)["outputs"])
    beside = xmodal.done("build", tmp_path / "list.csv", "--root", root, "--name", "b")
    assert built(beside, "media")["counts"] == {"present": 3, "absent": 2}, "data/in/p0.png and the like"
    (tmp_path / "far").mkdir()
    write_csv(tmp_path / "far/list.csv", [{"url": path, "caption": "a"} for path in paths[:2]])
    assert f"; 2 of {ABSOLUTE}" in xmodal("build", tmp_path / "far/list.csv/records", "--root", root).complaint


def test_a_dataset_of_paths_that_its_own_library_wrote_is_taken_where_they_lie(
    xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    names = write_pictures(tmp_path / "data", 3)
    pictures = [{"bytes": None, "path": f"{tmp_path}/data/{name}"} for name in names]
    table = pa.table(
        {"url": pa.array(pictures, pa.struct({"bytes": pa.binary(), "path": pa.string()})), "caption": names}
    )
    pq.write_table(table, tmp_path / "data/train.parquet")
    rows = xmodal.done("build", tmp_path / "data", "--root", root)
    assert built(rows, "media")["counts"] == {"present": 3, "absent": 0}


def test_absolute_paths_through_a_link_are_below_the_folder_that_it_leads_to(tmp_path: Path) -> None:
    from pipelines.fetching.user_lists import describe, find_lists

    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for written in ("there", "link"):
        write_csv(tmp_path / "there/list.csv", [{"url": f"{tmp_path}/{written}/p0.png", "caption": "a"}])
        found = find_lists(str(tmp_path / "link/list.csv"), None)
        assert describe("mine", found, {}, None).folder == str(tmp_path / written)


def test_what_no_option_says_changes_no_description() -> None:
    said = json.loads(Description("mine", (ListFile("a.csv", 1, None),)).to_json())
    assert said.keys() == {
        *("version", "name", "files", "url", "caption", "id", "split", "splits", "revision", "kind"),
    }
    for changes in ({"has_header": False}, {"labels": "x"}, {"keeps_repeats": True}, {"folder": "/data"}):
        changed = Description("mine", (ListFile("a.csv", 1, None),), **changes)  # type: ignore[arg-type]
        assert Description.from_json(changed.to_json()) == changed
        assert json.loads(changed.to_json()) == said | changes


def test_labels_come_from_lists_texts_and_all_rows_of_an_item(tmp_path: Path) -> None:
    cells: list[Any] = ["cat; dog", ["cat", "a bird;b"], 7, None, "", ["x" * 300, "line\x07"]]
    write_jsonl(tmp_path / "a.jsonl", [{"url": "p.png", "caption": str(n), "tags": c} for n, c in enumerate(cells)])
    rows = parsed(tmp_path, "a.jsonl", labels="tags")
    assert [row for row in rows if isinstance(row, Label)] == [
        Label("p.png", "category", name) for name in ("cat", "dog", "a bird;b", "7")
    ]
    assert odd(rows) == {ODD_LABEL: 2}
    assert [row for row in rows if not isinstance(row, Label | Oddity)] == [
        row for row in parsed(tmp_path, "a.jsonl") if not isinstance(row, Oddity)
    ]
    write_jsonl(tmp_path / "a.jsonl", [{"url": "p.png", "caption": "a", "tags": True}])
    with pytest.raises(UserError, match=r"a\.jsonl:1: a label is True, neither text nor a whole number"):
        parsed(tmp_path, "a.jsonl", labels="tags")


def test_pmrp_counts_by_the_labels_of_own_data(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 24)
    some = [{"url": name, "caption": f"picture {name}", "tags": f"t{n % 2};all"} for n, name in enumerate(names)]
    write_csv(tmp_path / "mine.csv", some)
    xmodal.done("build", tmp_path / "mine.csv", "--root", root, "--splits", SHARES)
    refused = xmodal("build", "mine/plausible", "--root", root)
    assert "mine has no labels of kind category" in refused.complaint
    labelled = xmodal.done("build", tmp_path / "mine.csv", "--root", root, "--labels", "tags")
    identity = built(labelled, "records")["identity"]
    without = built(xmodal.done("build", tmp_path / "mine.csv", "--root", root, "--labels", ""), "records")
    assert (without["built"], without["counts"]["labels"]) == (False, 0)
    again = built(xmodal.done("build", tmp_path / "mine.csv", "--root", root, "--labels", "tags"), "records")
    assert (again["identity"], again["counts"]["labels"]) == (identity, 48)
    assert built(xmodal.done("build", "mine/plausible", "--root", root), "plausible")["counts"]["label sets"] == 2
    sets = [part for setting in RESNET for part in ("--set", setting)]
    xmodal.done("build", "mine/resnet", "--root", root, *sets)
    chosen = [part for setting in TRAINING for part in ("--set", setting)]
    xmodal.done("train", "vsepp", "--corpus", "mine", "--root", root, "--run", tmp_path / "run", *chosen)
    found = xmodal.done("evaluate", tmp_path / "run", "--root", root)["plausible"]["all"]["text_to_visual"]
    ids = {split.item for split in table(root, Split, "splits", identity) if split.name == "own/test"}
    odd_ones = sum(int(id[1:-4]) % 2 for id in ids)
    same = odd_ones**2 + (len(ids) - odd_ones) ** 2  # pairs with the same labels; the others differ in two
    assert found["queries"] == len(ids)
    assert found["by_chance"] == pytest.approx(
        {"0": 100 * same / len(ids) ** 2, "1": 100 * same / len(ids) ** 2, "2": 100}
    )
    assert found["r_precision"]["2"] == 100


def test_a_file_of_weights_counts_for_any_network(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 2)
    write_csv(tmp_path / "mine.csv", [{"url": name, "caption": "a"} for name in names])
    sizes = ("--set", "resnet.network=resnet18", "--set", "resnet.resize=32", "--set", "resnet.crop=32")
    command = ("build", f"{tmp_path}/mine.csv/resnet", "--root", root, *sizes)
    assert "no weights 'IMAGENET1K_V2' for resnet18" in xmodal(*command).complaint
    assert not root.exists(), "it is refused before anything is fetched"
    file, identities = tmp_path / "own.pth", []
    for seed in (1, 2):
        torch.manual_seed(seed)
        torch.save(torchvision.models.get_model("resnet18").state_dict(), file)
        identity = built(xmodal.done(*command, "--weights", file), "resnet")["identity"]
        assert FeatureStore(f"{root}/resnet/{identity}").provenance["weights_sha256"] == sha256_of(file)
        identities.append(identity)
    assert len({*identities}) == 2
    both = f"--set resnet.weights=random:1 and the file {file} both say which weights: leave one of them out"
    assert both in xmodal(*command, "--weights", file, "--set", "resnet.weights=random:1").complaint
    wrong = xmodal(*command[:3], root, "--set", "resnet.network=resnet34", *sizes[2:], "--weights", file).complaint
    assert "own.pth are no state_dict of a resnet34: it lacks layer1.2.conv1.weight, layer1.2.bn1.weight and" in wrong


def test_splits_are_counted_not_the_items_in_them(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    names, splits = write_pictures(tmp_path, 5), ["train", "train", "val", "test", "test"]
    rows = [{"url": name, "caption": name, "split": split} for name, split in zip(names, splits, strict=True)]
    write_csv(tmp_path / "mine.csv", rows)
    said = xmodal("build", f"{tmp_path}/mine.csv/records", "--split", "split", "--root", root).out
    assert "5 captions, 5 items, 3 splits\n" in said
    assert "5 captions, 5 items, 3 splits\n" in xmodal("status", "--root", root).out


def test_the_same_caption_twice_is_kept_on_request(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    some = [{"url": "p0.png", "caption": text} for text in ("a", "b", "a", "a")]
    write_csv(tmp_path / "a.csv", some)
    kept = parsed(tmp_path, "a.csv", keeps_repeats=True)
    assert captions_of(kept) == {"p0.png": ["a", "b", "a", "a"]}
    assert odd(kept) == {}
    dropped = parsed(tmp_path, "a.csv")
    assert odd(dropped) == {AGAIN: 2}
    ids = {row.id for row in kept if isinstance(row, Caption)}
    assert len(ids) == 4
    assert {row.id for row in dropped if isinstance(row, Caption)} < ids, "ids of the first ones stay"
    for flag, captions in (("keep", 4), (None, 4), ("drop", 2)):
        flags = ("--repeats", flag) if flag else ()
        rows = xmodal.done("build", tmp_path / "a.csv/records", "--root", root, *flags)
        assert built(rows, "records")["counts"]["captions"] == captions


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.json.gz"])
def test_a_packed_line_without_end_is_refused_before_it_fills_the_memory(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b'[{"url": "' + b"a" * 100 * 2**20, 1))
    with pytest.raises(UserError, match=r"a\.csv\.gz:1 has 33,554,432|a\.jsonl\.gz:1 has 33,554,432|is not the JSON"):
        parsed(tmp_path, name)


def test_a_cell_of_a_million_characters_costs_nothing_but_its_length(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [{"url": "p0.png", "caption": "word " * 200_000}, *SOME[1:]])
    found = captions_of(parsed(tmp_path, "a.csv"))
    assert len(found["p0.png"][0]) == 999_999
    assert len(found) == 3


def test_a_caption_of_many_thousand_words_is_cut_where_it_is_read_and_counted(
    xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    names = write_pictures(tmp_path, 24)
    some = [
        {"url": name, "caption": f"picture {name}" if n % 2 else "the dog " * 20_000} for n, name in enumerate(names)
    ]
    write_jsonl(tmp_path / "mine.jsonl", some)
    sets = [part for setting in RESNET for part in ("--set", setting)]
    xmodal.done("build", f"{tmp_path}/mine.jsonl/resnet", "--root", root, "--splits", SHARES, *sets)
    assert xmodal.done("stats", "mine", "--root", root)["parts"][0]["words_per_caption"]["most"] == 40_000
    chosen = [part for setting in TRAINING for part in ("--set", setting)]
    train = ("train", "vsepp", "--corpus", "mine", "--root", root, "--run", tmp_path / "run", *chosen)
    for command in (train, ("evaluate", tmp_path / "run", "--root", root)):
        said = xmodal(*command)
        assert said.code == 0, said
        assert re.search(r"\d captions, \d of them cut to 512 words", said.err)
    refused = xmodal(*train, "--set", "text.longest=513").complaint
    assert "longest is at most 512, not 513" in refused


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(4, 9), max_size=9), max_size=6), st.integers(1, 9))
def test_texts_are_shortened_together_as_each_alone(lists: list[list[int]], longest: int) -> None:
    texts = [np.array([START, *words, END], np.int32) for words in lists]
    found = Texts.of(texts).shortened(longest)
    assert [text.tolist() for text in found] == [shortened(text, longest).tolist() for text in texts]


@pytest.mark.parametrize(
    ("name", "content"),
    [("state.json", '{"step": 3}'), ("state.json", "[1]"), ("dataset_dict.json", '{"splits": 3}'), ("state.json", "7")],
)
def test_somebody_elses_json_is_no_dataset(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=rf"{re.escape(str(tmp_path / name))} is not what `save_to_disk` writes"):
        find_lists(str(tmp_path), None)


def test_quotes_in_a_tsv_are_characters_unless_they_enclose_a_cell_and_none_takes_rows_with_it(tmp_path: Path) -> None:
    texts = ['"an open quote', '"Stop" says the sign', 'he says "no"', '"a ""whole"" cell"', '"', "plain"]
    lines = [f"p{n}.png\t{text}\n" for n, text in enumerate(texts)]
    (tmp_path / "list.tsv").write_text("".join(["url\tcaption\n", *lines, "\n", '"q\tt.png"\t""\r\n']))
    said = [text for text, *_ in filter(None, captions_of(parsed(tmp_path, "list.tsv")).values())]
    assert said == [*texts[:3], 'a "whole" cell', *texts[4:]]


def test_a_csv_cell_of_several_lines_is_kept_and_counted(tmp_path: Path) -> None:
    write_csv(tmp_path / "list.csv", [{"url": "a.png", "caption": "one\ntwo"}, {"url": "b.png", "caption": "three"}])
    rows = parsed(tmp_path, "list.csv")
    assert captions_of(rows) == {"a.png": ["one two"], "b.png": ["three"]}
    assert odd(rows) == {LINES: 1}
