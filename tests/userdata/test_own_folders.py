"""Folders and Hugging Face datasets as a corpus of one's own."""

import json
from pathlib import Path

import pytest

from pipelines.fetching import user_lists
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import no_pauses as no_pauses
from tests.misbehaving import serve
from tests.toy_root import one_thread as one_thread
from tests.userdata.test_own import WRITERS, built, picture, table, write_csv, write_parquet, write_pictures
from tests.userdata.test_own import pictures as pictures
from tests.userdata.test_own import root as root
from tests.userdata.test_own import xmodal as xmodal
from xmodal.records.tables import Item
from xmodal.userdata import embedded_pictures


@pytest.mark.parametrize("how", ["outside", "captions.csv", "metadata.jsonl"])
def test_a_folder_of_pictures_with_a_list(how: str, xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my pictures"
    some = [{"file": name, "text": f"it is {name}"} for name in write_pictures(folder, 3)]
    place = tmp_path / "elsewhere.csv" if how == "outside" else folder / how
    WRITERS[place.suffix[1:]](place, some)
    flags = ["--captions", place] if how == "outside" else []
    rows = xmodal.done("build", folder, "--root", root, "--url", "file", "--caption", "text", *flags)
    assert {row["corpus"] for row in rows["outputs"]} == {"my-pictures"}
    assert built(rows, "media")["counts"]["present"] == 3
    assert built(rows, "records")["counts"]["captions"] == 3
    renamed = xmodal.done("build", f"{folder}/records", "--root", root, "--url", "file", "--caption", "text", *flags)
    assert renamed["outputs"][0]["identity"] == built(rows, "records")["identity"]


def test_a_folder_with_two_lists_or_none_is_refused(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    write_pictures(folder, 1)
    assert "has no list: give one with --captions" in xmodal("build", folder, "--root", root).complaint
    for name in ("captions.csv", "metadata.csv"):
        write_csv(folder / name, [{"url": "p0.png", "caption": "a"}])
    assert "captions.csv and metadata.csv" in xmodal("build", folder, "--root", root).complaint


@pytest.mark.parametrize("layout", ["saved", "saved splits", "parquet"])
def test_a_hugging_face_dataset_with_its_pictures_inside(
    layout: str, xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "dataset"
    features = datasets.Features(
        {"image": datasets.Image(), "captions": datasets.List(datasets.Value("string")), "n": datasets.Value("int64")}
    )
    columns = {
        "image": [{"bytes": picture(n), "path": f"{n}.png"} for n in range(6)],
        "captions": [[f"one of {n}", f"two of {n}"] for n in range(6)],
        "n": list(range(6)),
    }
    whole = datasets.Dataset.from_dict(columns, features)
    if layout == "saved":
        whole.save_to_disk(folder)
    else:
        parts = {"train": whole.select(range(4)), "validation": whole.select(range(4, 6))}
        folder.mkdir()
        if layout == "parquet":
            for name, part in parts.items():
                part.to_parquet(folder / f"{name}-00000-of-00001.parquet")
        else:
            datasets.DatasetDict(parts).save_to_disk(folder)
    rows = xmodal.done("build", folder, "--root", root, "--url", "image", "--caption", "captions", "--id", "n")
    counts = built(rows, "records")["counts"]
    assert (counts["items"], counts["captions"]) == (6, 12)
    if layout != "saved":
        assert (counts["items:own/train"], counts["items:own/val"]) == (4, 2)
    items = table(root, Item, "items", built(rows, "records")["identity"])
    assert [item.id for item in items] == [str(n) for n in range(6)]
    pixels = built(xmodal.done("build", "dataset/pixels", "--root", root), "pixels")
    assert (pixels["counts"], pixels["failures"]) == ({"rows": 6}, {})
    assert built(xmodal.done("build", "dataset/media", "--root", root), "media")["built"] is False


def test_embedded_pictures_that_were_lost_are_taken_out_of_the_list_again(
    xmodal: Xmodal, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_pictures, "MEMBERS", 2)
    some = [{"image": {"bytes": picture(n), "path": None}, "caption": f"picture {n}"} for n in (0, 1, 0, 2, 3, 4, 1)]
    write_parquet(tmp_path / "mine.parquet", some)
    before = xmodal.done("build", tmp_path / "mine.parquet", "--root", root, "--url", "image")
    assert built(before, "records")["counts"]["items"] == 5
    assert built(before, "media")["counts"]["present"] == 3, "of two pictures each, the last of one"
    blob, *_ = [path for path in (root / "blobs").rglob("*") if path.is_file() and path.read_bytes()[:2] == b"PK"]
    blob.unlink()
    assert xmodal("verify", "--root", root, "--forget").code == 1
    (tmp_path / "mine.parquet").unlink()
    after = xmodal.done("build", "mine", "--root", root)
    assert built(after, "media")["identity"] == built(before, "media")["identity"]
    assert blob.is_file()


def test_a_dataset_on_the_hub_is_pinned_to_its_commit(
    xmodal: Xmodal, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    files = site / "datasets/org/birds/resolve/abc123/data"
    files.mkdir(parents=True)
    write_parquet(
        files / "train-00000-of-00001.parquet", [{"image": {"bytes": picture(0), "path": "a.png"}, "text": "a"}]
    )
    write_parquet(
        files / "test-00000-of-00001.parquet", [{"image": {"bytes": picture(1), "path": "b.png"}, "text": "b"}]
    )
    siblings = [{"rfilename": f"data/{file.name}", "size": file.stat().st_size} for file in files.iterdir()]
    about = {"sha": "abc123", "siblings": [*siblings, {"rfilename": "README.md", "size": 1}]}
    api = site / "api/datasets/org/birds/revision/main"
    api.parent.mkdir(parents=True)
    api.write_text(json.dumps(about))
    with serve(site) as server:
        monkeypatch.setattr(user_lists, "HUB", server.url)
        rows = xmodal.done("build", "hf://org/birds", "--root", root, "--url", "image", "--caption", "text")
        (site / "api/datasets/other/birds/revision").mkdir(parents=True)
        (site / "api/datasets/other/birds/revision/main").write_text(api.read_text())
        assert "birds is hf://org/birds here" in xmodal("build", "hf://other/birds", "--root", root).complaint
        assert "answers 404" in xmodal("build", "hf://org/fish", "--root", root).complaint
        api.write_text(json.dumps(about | {"siblings": [{"rfilename": "../../x.parquet", "size": 1}]}))
        assert "stays inside the raw folder" in xmodal("build", "hf://org/birds", "--root", root).complaint
    counts = built(rows, "records")["counts"]
    assert (counts["items:own/train"], counts["items:own/test"]) == (1, 1)
    assert built(rows, "media")["counts"]["present"] == 1
    assert xmodal.done("build", "birds", "--root", root)["outputs"][1]["built"] is False
