"""`xmodal features`: anybody's folder becomes one store, goes on after a kill, and grows with the folder."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from PIL import Image

from tests.clips import gif, numbered
from tests.commands.test_cli import Xmodal, in_subprocess
from tests.commands.test_cli import xmodal as xmodal
from xmodal.errors import UserError
from xmodal.features.image_models import ImageModel, open_model
from xmodal.features.store import FeatureStore

SMALL = ["--model", "resnet18", *(f"--set={one}" for one in ("resize=32", "crop=32"))]
TINY = [*SMALL, "--set=weights=random:0"]
PICTURES = [*TINY, "--set=rows_per_shard=4"]  # as few as fill a page
CLIPS = [
    *TINY,
    *(f"--set={one}" for one in ("short_side=32", "frames.items_per_shard=2", "clip_features.items_per_shard=2")),
]
ODD = (
    "with space.jpg",
    "ünïcode/日本.PNG",
    "new\nline.webp",
    "tab\there.bmp",
    "a!b.jpg",
    " lead.jpg",
    "it's.jpeg",
    "$x.tif",
)


def picture(seed: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)).save(data, "PNG")
    return data.getvalue()


def put(folder: Path, **names: int) -> None:
    for name, seed in names.items():
        write(folder, f"{name}.jpg", picture(seed))


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten pictures in three folders; the current folder is beside it."""
    monkeypatch.chdir(tmp_path)
    for number in range(10):
        write(tmp_path / "pics", ("", "a/", "a/b/")[number % 3] + f"{number}.jpg", picture(number))
    return tmp_path / "pics"


@pytest.fixture
def clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        write(tmp_path / "gifs", f"{number}.gif", clip(number))
    return tmp_path / "gifs"


def clip(number: int) -> bytes:
    return gif([numbered(10 * number + frame, delay=12) for frame in range(number + 1)])


def rows(store: Path) -> dict[str, Any]:
    opened = FeatureStore(store)
    return {id: opened.read([id])[0] for id in opened.ids if id in opened}


def same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(some[id], others[id]) for id in some)


# --------------------------------------------------------------------------------------------------- what a store is


def test_a_folder_becomes_a_store_that_everything_opens(xmodal: Xmodal, folder: Path) -> None:
    made = xmodal.done("features", folder, *PICTURES)
    store = folder.parent / "pics-resnet18.zarr"
    assert made["store"] == str(store)
    assert (made["kind"], made["items"], made["row_shape"], made["built"]) == ("image", 10, [512], True)
    assert (made["network"], made["weights"], len(made["weights_sha256"])) == ("torchvision/resnet18", "random:0", 64)
    opened = FeatureStore(store)
    assert opened.ids == tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg")))
    opened.verify()
    values = zarr.open_group(store, mode="r")["resnet18-pooled"][...]
    np.testing.assert_array_equal(values, opened.read(opened.ids))
    xmodal.done("export", store, folder.parent / "x.npy")
    np.testing.assert_array_equal(np.load(folder.parent / "x.npy"), values)
    assert {path.name for path in folder.parent.iterdir()} == {"pics", store.name, "x.npy", "x_ids.txt"}


def test_a_row_is_what_a_build_makes_of_the_same_picture(xmodal: Xmodal, folder: Path, tmp_path: Path) -> None:
    xmodal.done("features", folder, *PICTURES)
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg")]
    (folder / "captions.csv").write_text("".join(["url,caption\n", *(f"{path},a\n" for path in paths)]))
    settings = [one.replace("--set=", "--set=features.") for one in PICTURES[2:]]
    built = xmodal.done(
        "build", f"{folder}/features", "--root", "root", "--set=features.model=torchvision/resnet18", *settings
    )
    assert same(rows(Path(built["outputs"][-1]["path"])), rows(tmp_path / "pics-resnet18.zarr"))


def test_names_are_ids_however_odd(xmodal: Xmodal, tmp_path: Path) -> None:
    for seed, name in enumerate(ODD):
        write(tmp_path / "odd", name, picture(seed))
    made = xmodal.done("features", tmp_path / "odd", *PICTURES, "--out", tmp_path / "store of ü")
    assert (made["items"], made["absent"], made["left_out"]) == (len(ODD), {}, {})
    assert {*FeatureStore(tmp_path / "store of ü").ids} == {*ODD}
    assert not xmodal.done("features", tmp_path / "odd", *PICTURES, "--out", tmp_path / "store of ü")["built"]


def test_what_is_no_picture_is_left_out_and_counted(xmodal: Xmodal, folder: Path) -> None:
    for name in (".hidden.jpg", ".git/x.jpg", "a/notes.txt", "b.TXT", "README", "c.heic"):
        write(folder, name, b"?")
    os.mkfifo(folder / "pipe.jpg")
    os.mkdir(os.fsencode(folder) + b"/\xfe")
    for name in (b"/\xff.jpg", b"/\xfe/0.jpg"):
        os.link(folder / "0.jpg", os.fsencode(folder) + name)
    write(folder, "empty/.keep", b"")
    made = xmodal.done("features", folder, *PICTURES)
    assert made["items"] == 10
    others = {"pipes, devices or links to nothing": 1, "names not in UTF-8": 2, "without an ending": 1}
    assert made["left_out"] == others | {"hidden": 3, ".txt": 2, ".heic": 1}
    said = xmodal("features", folder, *PICTURES)
    assert "left out: 3 hidden, 2 .txt, " in said.out


def test_unreadable_pictures_are_named_and_refused(xmodal: Xmodal, folder: Path) -> None:
    whole = picture(99)
    for name, data in {"broken.jpg": b"nothing", "empty.png": b"", "cut.png": whole[: len(whole) // 2]}.items():
        write(folder, name, data)
    made = xmodal.done("features", folder, *PICTURES)
    assert made["absent"].keys() == {"broken.jpg", "empty.png"}
    assert made["truncated"].keys() == {"cut.png"}
    store = FeatureStore(made["store"])
    assert store.absent == {"broken.jpg", "empty.png"}
    with pytest.raises(UserError, match=r"has no features of 'broken\.jpg'"):
        store.read(["broken.jpg"])
    assert not zarr.open_group(made["store"], mode="r")["resnet18-pooled"][store.ids.index("broken.jpg")].any()
    said = xmodal("features", folder, *PICTURES)
    assert "absent: 'broken.jpg': unreadable: no image format that is known" in said.out
    assert said.code == 0
    said = xmodal("features", folder, *PICTURES, "--most-absent", "0.1")
    assert said.code == 3
    assert "2 of 13 absent or unusable: exit code 3" in said.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(xmodal: Xmodal, folder: Path) -> None:
    (folder / "0.jpg").chmod(0)
    assert xmodal.done("features", folder, *PICTURES)["absent"] == {"0.jpg": "absent: it cannot be read"}


def test_links_out_of_the_folder_are_left_out_unless_followed(xmodal: Xmodal, folder: Path, tmp_path: Path) -> None:
    put(tmp_path / "other", one=20, two=21)
    (folder / "file.jpg").symlink_to(tmp_path / "other/one.jpg")
    (folder / "within.jpg").symlink_to(folder / "0.jpg")
    (folder / "linked").symlink_to(tmp_path / "other")
    (folder / "round").symlink_to(folder)
    (folder / "nothing.jpg").symlink_to(folder / "gone")
    (folder / "itself.jpg").symlink_to(folder / "itself.jpg")
    made = xmodal.done("features", folder, *PICTURES, "--out", "store")
    assert made["left_out"] == {"links": 3, "pipes, devices or links to nothing": 2}
    assert {"within.jpg"} == {*FeatureStore("store").ids} - {
        f"{p}{n}.jpg" for n in range(10) for p in ("", "a/", "a/b/")
    }
    said = xmodal("features", folder, *PICTURES, "--out", "store").out
    assert "left out: 3 links, 2 pipes, devices or links to nothing; --follow-links takes" in said
    made = xmodal.done("features", folder, *PICTURES, "--out", "store", "--follow-links")
    assert made["left_out"] == {"pipes, devices or links to nothing": 2, "links": 1}
    assert {*FeatureStore("store").ids} >= {"within.jpg", "file.jpg", "linked/one.jpg", "linked/two.jpg"}


def test_links_that_were_followed_are_named(xmodal: Xmodal, folder: Path, tmp_path: Path) -> None:
    put(tmp_path / "other/deep", one=20, two=21)
    (folder / "file.jpg").symlink_to("../other/deep/one.jpg")
    (folder / "a/linked").symlink_to(tmp_path / "other")
    (folder / "within.jpg").symlink_to(folder / "0.jpg")
    assert xmodal.done("features", folder, *PICTURES, "--out", "few")["followed"] == {}
    made = xmodal.done("features", folder, *PICTURES, "--out", "store", "--follow-links")
    led = {"a/linked": str(tmp_path / "other"), "file.jpg": str(tmp_path / "other/deep/one.jpg")}
    assert made["followed"] == led
    said = xmodal("features", folder, *PICTURES, "--out", "store", "--follow-links").out.splitlines()
    assert [line for line in said if line.startswith("followed: ")] == [
        f"followed: {link!r}: {place}" for link, place in led.items()
    ]


def test_help_says_which_links_are_taken_anyway() -> None:
    said = " ".join(in_subprocess("features", "--help").out.split())
    assert "--follow-links also files outside of DIR, and folders, that links lead to (default: only links to" in said


def test_what_is_left_out_once_is_named_as_one(xmodal: Xmodal, folder: Path) -> None:
    xmodal.done("features", folder, *PICTURES, "--out", folder / "store")
    (folder / "linked").symlink_to(folder.parent)
    said = xmodal("features", folder, *PICTURES, "--out", "store").out
    assert "left out: 1 link, 1 store of features; --follow-links" in said


def test_an_empty_folder_is_refused_and_nothing_is_made(xmodal: Xmodal, tmp_path: Path) -> None:
    write(tmp_path / "pics", "notes.txt", b"")
    said = xmodal("features", tmp_path / "pics", *PICTURES, "--out", tmp_path / "store")
    assert said.complaint.endswith("pics has no pictures, by the endings of names; there are: 1 .txt")
    assert xmodal("features", tmp_path / "nowhere", *PICTURES).complaint.endswith(
        "nowhere is no folder: name one with pictures or clips"
    )
    assert not (tmp_path / "store").exists()


def test_a_folder_that_cannot_be_written_is_only_read(xmodal: Xmodal, folder: Path) -> None:
    before = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    for path in (folder, folder / "a", folder / "a/b"):
        path.chmod(0o555)
    assert xmodal.done("features", folder, *PICTURES)["items"] == 10
    for path in (folder, folder / "a", folder / "a/b"):
        path.chmod(0o755)
    after = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    assert {path: (facts.st_mtime_ns, facts.st_nlink) for path, facts in before.items()} == {
        path: (facts.st_mtime_ns, facts.st_nlink) for path, facts in after.items()
    }


def test_a_store_that_cannot_be_written_is_told_by_its_name(
    xmodal: Xmodal, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = xmodal.done("features", folder, *PICTURES, "--out", "store")
    may = os.access
    closed = {str(tmp_path / "store"), str(tmp_path / "store/_runs")}
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in closed and may(path, mode))
    said = xmodal("features", folder, *PICTURES, "--out", "store")
    assert said.complaint.endswith(
        f"{made['store']} cannot be written (Permission denied): name another store with --out"
    )


def test_a_store_within_its_folder_is_none_of_its_pictures(
    xmodal: Xmodal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    made = xmodal.done("features", ".", *PICTURES)
    assert made["store"] == str(folder / "pics-resnet18.zarr")
    again = xmodal.done("features", ".", *PICTURES)
    assert (again["items"], again["built"], again["left_out"]) == (10, False, {"stores of features": 1})


# --------------------------------------------------------------------------------------------- clips, and which of both


def test_a_folder_of_clips_has_a_row_for_each_sample(xmodal: Xmodal, clips: Path) -> None:
    write(clips, "broken.mp4", b"nothing")
    made = xmodal.done("features", clips, *CLIPS)
    assert (made["kind"], made["items"], made["ragged"]) == ("clip", 6, True)
    assert {*made["absent"]} == {"broken.mp4"}
    assert "frames" not in made["absent"]["broken.mp4"]
    store = FeatureStore(made["store"])
    assert [len(each) for each in store.read([f"{number}.gif" for number in range(5)])] == [1, 2, 3, 4, 5]


def test_a_clip_that_is_cut_short_is_named(xmodal: Xmodal, clips: Path) -> None:
    whole = (clips / "4.gif").read_bytes()
    (clips / "4.gif").write_bytes(whole[: len(whole) * 2 // 3])
    made = xmodal.done("features", clips, *CLIPS)
    assert (made["absent"], made["truncated"]) == ({}, {"4.gif": "the file ends within a block"})
    assert 0 < len(FeatureStore(made["store"]).read(["4.gif"])[0]) < 5
    assert "truncated: '4.gif': the file ends within a block" in xmodal("features", clips, *CLIPS).out


def test_a_folder_of_both_asks_which(xmodal: Xmodal, folder: Path) -> None:
    write(folder, "x.gif", clip(3))
    write(folder, "y.mp4", b"nothing")
    said = xmodal("features", folder, *PICTURES).complaint
    assert "has 10 pictures and 2 clips: --kind image takes the pictures and the first frames of GIFs" in said
    made = xmodal.done("features", folder, *PICTURES, "--kind", "image", "--out", "images")
    assert (made["items"], made["left_out"], made["absent"]) == (11, {".mp4": 1}, {})
    made = xmodal.done("features", folder, *CLIPS, "--kind", "clip", "--out", "clips")
    assert (made["items"], made["left_out"]) == (2, {".jpg": 10})


# ------------------------------------------------------------------------------------------------- nobody's loss


@pytest.mark.parametrize("name", ["notes.txt", "zarr.json", "_other"])
def test_what_is_somebody_elses_is_not_overwritten(name: str, xmodal: Xmodal, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "store", name, b"mine")
    said = xmodal("features", folder, *PICTURES, "--out", "store").complaint
    assert said.endswith("store is there already and is no store of a folder's features: name another store with --out")
    assert [path.read_bytes() for path in (tmp_path / "store").iterdir()] == [b"mine"]
    assert "is there already" in xmodal("features", folder, *PICTURES, "--out", f"store/{name}").complaint
    (tmp_path / "empty").mkdir()
    assert xmodal.done("features", folder, *PICTURES, "--out", "empty")["built"]


def test_a_store_stays_with_its_folder_and_settings(xmodal: Xmodal, folder: Path, tmp_path: Path) -> None:
    made = xmodal.done("features", folder, *PICTURES, "--out", "store")
    before = rows(Path(made["store"]))
    said = xmodal("features", folder, *PICTURES, "--set=output=grid", "--out", "store").complaint
    assert said.endswith("store has features by other settings (output=pooled): name another store with --out")
    put(tmp_path / "other", x=1)
    said = xmodal("features", tmp_path / "other", *PICTURES, "--out", "store").complaint
    assert said.endswith(f"store has features of {folder}, not of {tmp_path}/other: name another store with --out")
    assert same(before, rows(Path(made["store"])))
    (tmp_path / "store/README").write_text("mine")
    folder.rename(tmp_path / "moved")
    put(tmp_path / "moved", new=70)
    assert xmodal.done("features", tmp_path / "moved", *PICTURES, "--out", "store")["items"] == 11
    assert (tmp_path / "store/README").read_text() == "mine"


def test_a_weight_file_is_named_by_its_checksum(xmodal: Xmodal, folder: Path, tmp_path: Path) -> None:
    network = open_model(ImageModel("torchvision/resnet18", "random:0")).network
    torch.save(network.state_dict(), tmp_path / "mine.pth")
    made = xmodal.done("features", folder, *SMALL, "--weights", tmp_path / "mine.pth")
    assert made["weights"] == f"sha256:{made['weights_sha256']}"
    assert xmodal("features", folder, *SMALL, "--weights", tmp_path / "mine.pth").out.count(made["weights"]) == 1
    assert "there is no file" in xmodal("features", folder, *SMALL, "--weights", "gone.pth").complaint


@pytest.mark.parametrize(("model", "setting"), [("resnet18", "features.weights"), ("small", "regions.weights")])
def test_weights_by_a_setting_and_by_a_file_are_refused(model: str, setting: str, xmodal: Xmodal, folder: Path) -> None:
    (folder.parent / "mine.pth").write_bytes(b"weights")
    said = xmodal("features", folder, "--model", model, "--set=weights=random:1", "--weights", "mine.pth").complaint
    both = f"--set {setting}=random:1 and the file mine.pth both say which weights: leave one of them out"
    assert said == f"xmodal: {both}"
    assert {path.name for path in folder.parent.iterdir()} == {"pics", "mine.pth"}


def test_checksums_that_nobody_knows_are_not_printed(xmodal: Xmodal, folder: Path) -> None:
    keep_two(folder)
    said = xmodal("features", folder, "--model", "small", "--set=regions.weights=random:0")
    assert f"of {folder}, by small random:0\n" in said.out, said.err


def test_a_wrong_file_of_weights_does_not_keep_the_name_of_the_store(xmodal: Xmodal, folder: Path) -> None:
    (folder.parent / "text.pth").write_text("no weights")
    assert "text.pth are no state_dict" in xmodal("features", folder, *SMALL, "--weights", "text.pth").err
    assert {path.name for path in folder.parent.iterdir()} == {"pics", "text.pth"}
    assert xmodal.done("features", folder, *PICTURES)["built"]


def test_without_torch_nothing_is_left_and_the_cure_is_told(folder: Path) -> None:
    before = "sys=__import__('sys'); sys.modules['torch'] = None;"
    out = folder.parent / "store"
    said = in_subprocess("features", folder, *PICTURES, "--out", out, "--serial", before=before)
    cure = "torch is not installed: pip install -e '.[train]' in the checkout"
    assert (said.code, said.err) == (1, f"xmodal: features of {folder} cannot be built here: {cure}\n")
    assert [path.name for path in folder.parent.iterdir()] == ["pics"]


def test_a_refusal_leaves_an_empty_folder_as_it_was(xmodal: Xmodal, folder: Path) -> None:
    (folder.parent / "text.pth").write_text("no weights")
    (folder.parent / "store").mkdir()
    assert "no state_dict" in xmodal("features", folder, *SMALL, "--weights", "text.pth", "--out", "store").err
    assert [*(folder.parent / "store").iterdir()] == []


def test_an_unknown_model_is_refused_with_those_there_are(xmodal: Xmodal, folder: Path) -> None:
    said = xmodal("features", folder, "--model", "resnet19").complaint
    assert "no model 'resnet19' (do you mean resnet18?); there are: resnet18, resnet34, resnet50" in said
    assert "say torchvision/NAME, timm/NAME or" in xmodal("features", folder, "--model", "../x").complaint
    assert "has no output tokens" in xmodal("features", folder, "--model", "resnet18", "--set=output=tokens").complaint
    assert [path.name for path in folder.parent.iterdir()] == ["pics"]


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("resnet-50", "do you mean resnet50?"),
        ("botom-up-36", "do you mean bottom-up-36?"),
        ("bottom_up_36", "do you mean bottom-up-36?"),
        ("torchvision/fasterrcnn_resnet50", "no detector torchvision/fasterrcnn_resnet50; there are: "),
        ("small/er-36", "its name is small"),
        ("torchvision/alexnet", "no model torchvision/alexnet; there are: "),
    ],
)
def test_a_misspelt_model_is_told_before_the_folder_is_walked(
    model: str, meant: str, xmodal: Xmodal, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()  # a walk would find that it has no pictures
    assert meant in xmodal("features", tmp_path / "empty", "--model", model).complaint


@pytest.mark.parametrize(
    ("model", "setting", "name"),
    [
        ("resnet18", "model=torchvision/resnet34", "features.model"),
        ("bottom-up-36", "regions.most=50", "regions.most"),
        ("small", "detector=bottom_up", "regions.detector"),
    ],
)
def test_a_setting_that_the_models_name_says_is_refused(
    model: str, setting: str, name: str, xmodal: Xmodal, folder: Path
) -> None:
    said = xmodal("features", folder, "--model", model, "--set", setting).complaint
    assert f"--model {model} says {name} already" in said


@pytest.mark.parametrize(("model", "settings"), [("timm/test_vit", []), ("vgg16", ["--set=views=ten"])])
def test_models_of_any_library_are_named_as_they_are(
    model: str, settings: list[str], xmodal: Xmodal, folder: Path
) -> None:
    pytest.importorskip("timm")
    keep_two(folder)
    made = xmodal.done("features", folder, "--model", model, "--set=weights=random:0", *settings)
    assert made["network"].startswith(model if "/" in model else f"torchvision/{model}")
    assert made["store"] == str(folder.parent / f"pics-{model.replace('/', '-')}.zarr")
    assert (made["items"], made["absent"], len(made["row_shape"])) == (2, {}, 1)


def keep_two(folder: Path) -> None:
    for path in sorted(folder.rglob("*.jpg"))[2:]:
        path.unlink()


def test_help_shows_examples_and_json_is_all_of_stdout(xmodal: Xmodal, folder: Path) -> None:
    said = in_subprocess("features", "--help")
    assert "xmodal features ~/pictures --model resnet50" in said.out
    made = xmodal("features", folder, *PICTURES, "--json")
    assert json.loads(made.out)["items"] == 10
    assert f"features of 10 pictures of {folder} go to" in made.err
