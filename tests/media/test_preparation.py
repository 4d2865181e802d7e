"""Prepared pictures equal those of torchvision's own transforms, whatever the picture's sides and orientation."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torchvision import transforms  # type: ignore[import-untyped]
from torchvision.transforms import InterpolationMode

from tests.media.test_vision import encoded, scene_image
from xmodal.errors import UserError
from xmodal.features.model_facts import pixels_of, prove
from xmodal.media.images import DEVIATION, MEAN, UnreadableImage
from xmodal.media.preparation import Preparation, prepare, ten_crops

MEDIA = Path(__file__).parents[3] / "shared/media"
SIDES = ((333, 500), (500, 333), (97, 61), (224, 224), (256, 300), (225, 1001), (31, 30))
ORIENTATION = 0x0112
FINISH = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]


def photographs() -> list[bytes]:
    """Pictures of odd sides, one held in each of the eight ways."""
    found = [encoded(scene_image(place).resize(size), "JPEG") for place, size in enumerate(SIDES)]
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        found.append(encoded(scene_image(orientation).resize((301, 213)), "JPEG", exif=exif))
    return found


def upright(data: bytes) -> Image.Image:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")


def finished(pixels: NDArray[np.uint8], how: Preparation) -> NDArray[np.float32]:
    found: NDArray[np.float32] = pixels_of(torch.from_numpy(np.stack([pixels])), how)[0].numpy()
    return found


CASES: dict[str, tuple[Preparation, list[Any]]] = {
    "torchvision": (Preparation(), [transforms.Resize(256), transforms.CenterCrop(224)]),
    "odd crop": (Preparation((64,), (33, 47)), [transforms.Resize(64), transforms.CenterCrop((33, 47))]),
    "bicubic": (
        Preparation((73,), (72, 72), "bicubic"),
        [transforms.Resize(73, InterpolationMode.BICUBIC), transforms.CenterCrop(72)],
    ),
    "squashed": (
        Preparation((72, 80), (72, 80), "lanczos"),
        [transforms.Resize((72, 80), InterpolationMode.LANCZOS)],
    ),
    "whole": (Preparation((96,), None), [transforms.Resize(96)]),
    "as it is": (Preparation((), None), []),
}


@pytest.mark.parametrize("name", CASES)
def test_pixels_are_those_of_torchvisions_transforms(name: str) -> None:
    how, steps = CASES[name]
    theirs = transforms.Compose([*steps, *FINISH])
    for data in photographs():
        np.testing.assert_array_equal(finished(prepare(data, how), how), theirs(upright(data)).numpy())


def test_ten_crops_are_those_of_torchvision() -> None:
    how, tall = Preparation(), Preparation(crop=None)
    theirs = transforms.Compose([transforms.Resize(256), transforms.TenCrop(224)])
    for data in photographs():
        expected = np.stack([np.asarray(crop) for crop in theirs(upright(data))])
        np.testing.assert_array_equal(ten_crops(prepare(data, tall), how), expected)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Pillow, where a file's metadata are broken
def test_photographs_of_others_are_prepared_as_torchvision_does() -> None:
    paths = sorted(path for path in MEDIA.glob("*") if path.suffix in (".jpg", ".png"))
    if not paths:
        pytest.skip(f"no {MEDIA}")
    theirs, seen = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *FINISH]), 0
    for path in paths:
        data = path.read_bytes()
        try:
            image = Image.open(io.BytesIO(data))
            plain = image.mode in ("RGB", "L") and not image.has_transparency_data
            found = finished(prepare(data, Preparation()), Preparation()) if plain else None
        except (UnreadableImage, OSError):
            continue
        if found is not None:
            np.testing.assert_array_equal(found, theirs(upright(data)).numpy(), err_msg=path.name)
            seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    ("how", "size"), [(Preparation(), (1, 20_000)), (Preparation(crop=None, most_pixels=1 << 20), (10, 200))]
)
def test_a_picture_like_a_thread_is_refused_before_it_is_resized(how: Preparation, size: tuple[int, int]) -> None:
    with pytest.raises(UnreadableImage, match=f"{size[0]} x {size[1]} pixels are too narrow to resize"):
        prepare(encoded(Image.new("RGB", size)), how)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Preparation(interpolation="bicubic"), transforms.Resize(256)),
        (Preparation((250,)), transforms.Resize(256)),
        (Preparation(mean=(0.5, 0.5, 0.5)), transforms.Resize(256)),
        (Preparation(crop=(200, 200)), transforms.Resize(256)),
        (Preparation(middle="floor"), transforms.Resize(256)),
    ],
)
def test_settings_that_do_not_repeat_a_librarys_transforms_are_refused(
    ours: Preparation, theirs: Callable[[Image.Image], Image.Image]
) -> None:
    whole = transforms.Compose([theirs, transforms.CenterCrop(224), *FINISH])
    assert prove("a model", Preparation(), whole) == Preparation()
    with pytest.raises(UserError, match="a model prepares pictures in a way that Pillow alone cannot repeat"):
        prove("a model", ours, whole)
