"""Pictures of every kind become the same RGB; what is none is said; networks give features that can be repeated."""

import io
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import models, transforms  # type: ignore[import-untyped]
from torchvision.models.feature_extraction import create_feature_extractor  # type: ignore[import-untyped]

from pipelines.demo.world import World, draw, scenes
from xmodal.errors import UserError
from xmodal.features.networks import ResNet, load
from xmodal.features.weight_files import weights_sha256
from xmodal.media.images import MEAN, OnTruncated, UnreadableImage, normalised, open_image
from xmodal.media.preparation import square

MEDIA = Path(__file__).parents[3] / "shared/media"
TINY = ResNet("resnet18", "random:0", resize=72, crop=64, dtype="float32", batch_size=4)


def pixels(data: bytes, config: ResNet, cut: OnTruncated | None = None) -> NDArray[np.float32]:
    """A picture as the network of a config takes it."""
    return normalised(square(data, config.resize, config.crop, cut))


def scene_image(index: int = 0, size: int = 96) -> Image.Image:
    return Image.fromarray(draw(list(scenes(World(items=index + 1, image_size=size)))[index]))


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def colours(data: bytes) -> NDArray[np.uint8]:
    image = open_image(data)
    assert image.mode == "RGB"
    return np.asarray(image)


PICTURE = scene_image()
RGB = np.asarray(PICTURE)
GRAY = np.asarray(PICTURE.convert("L"))


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_formats_without_loss_give_the_picture(form: str) -> None:
    np.testing.assert_array_equal(colours(encoded(PICTURE, form)), RGB)


@pytest.mark.parametrize(("form", "options"), [("JPEG", {"quality": 95}), ("WEBP", {"quality": 95}), ("GIF", {})])
def test_formats_with_loss_give_nearly_the_picture(form: str, options: dict[str, int]) -> None:
    assert np.abs(colours(encoded(PICTURE, form, **options)).astype(int) - RGB).mean() < 6


def test_grayscale_of_8_16_and_1_bit() -> None:
    gray_RGB = np.repeat(GRAY[..., None], 3, axis=2)
    np.testing.assert_array_equal(colours(encoded(PICTURE.convert("L"))), gray_RGB)
    deep = Image.fromarray(GRAY.astype(np.uint16) * 256 + 77)
    for form in ("PNG", "TIFF", "PPM"):
        np.testing.assert_array_equal(colours(encoded(deep, form)), gray_RGB)
    assert set(colours(encoded(PICTURE.convert("1"))).ravel().tolist()) == {0, 255}


def test_cmyk_and_palettes() -> None:
    cmyk = colours(encoded(PICTURE.convert("CMYK"), "JPEG", quality=95)).astype(int)
    assert np.abs(cmyk - RGB).mean() < 4
    palette = PICTURE.quantize(64)
    np.testing.assert_array_equal(colours(encoded(palette)), np.asarray(palette.convert("RGB")))


def test_what_is_transparent_is_white() -> None:
    clear = PICTURE.convert("RGBA")
    alpha = np.full(GRAY.shape, 255, np.uint8)
    alpha[:, :20] = 0
    clear.putalpha(Image.fromarray(alpha))
    expected = RGB.copy()
    expected[:, :20] = 255
    np.testing.assert_array_equal(colours(encoded(clear)), expected)
    assert (colours(encoded(clear.convert("LA")))[:, :20] == 255).all()
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    assert colours(encoded(palette, transparency=0)).tolist() == [[[255, 255, 255], [40, 50, 60]]]
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert colours(encoded(half)).tolist() == [[[127, 127, 127]]]


def test_exif_says_which_side_is_up() -> None:
    undo = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # what a camera held that way would have stored
    for orientation, method in undo.items():
        stored = PICTURE if method is None else PICTURE.transpose(Image.Transpose(method))
        exif = Image.Exif()
        exif[0x0112] = orientation
        for form in ("PNG", "TIFF"):
            np.testing.assert_array_equal(colours(encoded(stored, form, exif=exif)), RGB)


def test_broken_exif_does_not_spoil_a_picture() -> None:
    for exif in (b"Exif\0\0garbage", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0MM\0*"):
        np.testing.assert_array_equal(colours(encoded(PICTURE, exif=exif)), RGB)


def test_of_an_animation_the_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), name) for name in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert colours(data)[0, 0].tolist() == [255, 0, 0]


def png_header(width: int, height: int) -> bytes:
    """A picture of any size in few bytes."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    packed = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def broken_png() -> bytes:
    """After two thirds of its rows there is a block of no known type."""
    rows = b"".join(b"\0" + row.tobytes() for row in RGB)
    stream = zlib.compressobj()
    packed = stream.compress(rows[: len(rows) * 2 // 3]) + stream.flush(zlib.Z_FULL_FLUSH) + b"\x07" * 99
    data = bytearray(png_header(*PICTURE.size))
    at = data.index(b"IDAT") - 4
    length = struct.unpack_from(">I", data, at)[0]
    checked = struct.pack(">I", zlib.crc32(b"IDAT" + packed))
    data[at : at + 12 + length] = struct.pack(">I", len(packed)) + b"IDAT" + packed + checked
    return bytes(data)


def remains(data: bytes) -> tuple[NDArray[np.uint8], str]:
    """Of a picture that may not be all there: what is read, and what is told of it."""
    reasons: list[str] = []
    image = open_image(data, reasons.append)
    assert (image.mode, image.size) == ("RGB", PICTURE.size)
    return np.asarray(image), "; ".join(reasons)


@pytest.mark.parametrize(
    ("form", "options", "missing"),
    [("PNG", {}, 0), ("BMP", {}, 0), ("TIFF", {}, 0), ("PPM", {}, 0), ("JPEG", {"quality": 95}, 128)],
)
def test_of_a_truncated_picture_what_is_there_is_read_and_it_is_told(
    form: str, options: dict[str, int], missing: int
) -> None:
    data = encoded(PICTURE, form, **options)
    found, reason = remains(data[: len(data) * 6 // 10])
    assert "truncated" in reason
    lost = (found == missing).all((1, 2))
    there = slice(20, None) if form == "BMP" else slice(None, -20)  # which is written from below; a block is 16 high
    assert 10 < lost.sum() < 60
    np.testing.assert_array_equal(found[~lost][there], colours(data)[~lost][there])


def test_of_a_broken_stream_the_rows_before_it_are_read() -> None:
    found, reason = remains(broken_png())
    assert "data stream" in reason
    there = int(found.any((1, 2)).sum())
    assert 20 < there < 90
    np.testing.assert_array_equal(found[: there - 1], RGB[: there - 1])
    assert not found[there:].any()


def test_a_header_alone_is_no_picture() -> None:
    for form, end in (("PNG", encoded(PICTURE).find(b"IDAT") + 8), ("BMP", 54)):
        with pytest.raises(UnreadableImage, match="truncated"):
            remains(encoded(PICTURE, form)[:end])


def test_a_whole_picture_is_not_called_truncated() -> None:
    assert remains(encoded(PICTURE, "JPEG", progressive=True))[1] == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("derived_rocket_truncated_60pct.jpg", "truncated"),
        ("pillow_broken_data_stream.png", "data stream"),
        ("skimage_rocket.jpg", None),
        ("skimage_truncated.jpg", "Truncated File Read"),
    ],
)
def test_truncated_pictures_of_others(name: str, reason: str | None) -> None:
    path, reasons = MEDIA / name, list[str]()
    if not path.is_file():
        pytest.skip(f"no {name}")
    if name == "skimage_truncated.jpg":  # its header is not whole
        with pytest.raises(UnreadableImage, match="Truncated File Read"):
            open_image(path.read_bytes(), reasons.append)
        return
    picture = np.asarray(open_image(path.read_bytes(), reasons.append))
    assert picture[:40].std() > 10
    assert len(reasons) == (reason is not None)
    if reason:
        assert reason in reasons[0]
        assert np.ptp(picture[-1]) == 0
        with pytest.raises(UnreadableImage, match=reason):
            open_image(path.read_bytes())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no image format that is known"),
        (b"<html>404</html>", "no image format that is known"),
        (encoded(PICTURE, "EPS"), "no image format that is known"),
        (encoded(PICTURE, "JPEG")[:-400], "truncated"),
        (encoded(PICTURE, "PNG")[:2000], "truncated"),
        (encoded(PICTURE, "GIF")[:1500], "truncated"),
        (broken_png(), "data stream"),
        (png_header(9_000, 9_000), "9000 x 9000 pixels are too many"),
        (png_header(60_000, 60_000), "pixels"),
        (encoded(Image.new("F", (2, 2)), "TIFF"), "real numbers"),
    ],
)
def test_what_is_no_picture_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImage, match=reason):
        open_image(data)


def test_a_picture_like_a_thread_is_refused_before_it_is_resized() -> None:
    with pytest.raises(UnreadableImage, match="1 x 20000 pixels are too narrow to resize"):
        pixels(encoded(Image.new("L", (1, 20_000))), ResNet("resnet18", "random:0"))


def test_damage_anywhere_gives_a_picture_or_a_reason_that_does_not_change() -> None:
    small, dice = PICTURE.resize((24, 20)), random.Random(0)
    files = [encoded(small, form) for form in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")]
    reasons = 0
    for _ in range(600):
        damaged = bytearray(dice.choice(files))
        damaged[dice.randrange(min(len(damaged), 300))] = dice.randrange(256)
        said = outcome(bytes(damaged))
        assert said == outcome(bytes(damaged))
        reasons += isinstance(said, str)
    assert reasons > 100


def outcome(data: bytes) -> str | tuple[int, int]:
    try:
        return open_image(data).size
    except UnreadableImage as unreadable:
        return str(unreadable)


@pytest.mark.parametrize("size", [(96, 71), (71, 96), (64, 64), (333, 500), (30, 20), (65, 200)])
def test_pixels_are_those_of_torchvision(size: tuple[int, int]) -> None:
    image = PICTURE.resize(size)
    steps = [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]
    expected = transforms.Compose([*steps, transforms.Normalize(MEAN, (0.229, 0.224, 0.225))])(image).numpy()
    found = pixels(encoded(image), TINY)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def batch(count: int = 3, config: ResNet = TINY) -> NDArray[np.float32]:
    return np.stack([pixels(encoded(scene_image(index)), config) for index in range(count)])


def test_a_grid_is_the_last_convolution_row_by_row() -> None:
    config = replace(TINY, resize=96, crop=96)
    extractor, pixels_B3HW = load(config), batch(3, config)
    network = models.resnet18().eval()
    network.load_state_dict(dict(named_state(extractor.trunk)), strict=False)
    with torch.inference_mode():
        maps = create_feature_extractor(network, ["layer4"])(torch.from_numpy(pixels_B3HW))["layer4"].numpy()
    grid = extractor(pixels_B3HW)
    assert grid.shape == (3, *config.spec.row_shape) == (3, 9, 512)
    np.testing.assert_allclose(grid[:, 5], maps[:, :, 1, 2], rtol=1e-4, atol=1e-5)
    pooled = load(replace(config, output="pooled"))(pixels_B3HW)
    assert pooled.shape == (3, 512)
    np.testing.assert_allclose(pooled, maps.mean((2, 3)), rtol=1e-4, atol=1e-5)


def named_state(trunk: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The trunk's tensors by the names that the whole network gives them."""
    names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    for name, values in trunk.state_dict().items():
        place, _, rest = name.partition(".")
        yield f"{names[int(place)]}.{rest}", values


@pytest.mark.parametrize("network", ["resnet18", "resnet50", "resnet152"])
def test_random_networks_stay_within_float16(network: Any) -> None:
    config = replace(TINY, network=network, dtype="float16")
    features = load(config)(batch())
    assert features.dtype == np.float16
    assert np.isfinite(features).all()
    assert features.max() < 6000
    assert len({row.tobytes() for row in features}) == 3


def test_a_seed_is_a_network() -> None:
    torch.manual_seed(5)
    first = load(TINY)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), expected)  # nobody's random numbers were disturbed
    again, other = load(TINY), load(replace(TINY, weights="random:1"))
    np.testing.assert_array_equal(first(batch()), again(batch()))
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert (first(batch()) != other(batch())).any()


def test_the_number_of_threads_changes_nothing() -> None:
    extractor, before = load(TINY), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(extractor(batch()))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])


def save(state: Any, file: Path) -> ResNet:
    torch.save(state, file)
    return replace(TINY, weights=f"sha256:{weights_sha256(file)}")


def test_weights_of_a_file(tmp_path: Path) -> None:
    extractor, file = load(TINY), tmp_path / "weights.pth"
    config = save(dict(named_state(extractor.trunk)), file)
    loaded = load(config, file)
    np.testing.assert_array_equal(loaded(batch()), extractor(batch()))
    assert f"sha256:{loaded.weights_sha256}" == config.weights
    assert loaded.provenance()["weights_sha256"] == weights_sha256(file)


@pytest.mark.parametrize(
    ("prefix", "dropped", "told"),
    [
        ("", ("conv1.weight",), r"it lacks conv1\.weight$"),
        (
            "",
            ("bn1.bias", "layer1.0.conv1.weight", "bn1.weight"),
            r"it lacks bn1\.weight, bn1\.bias and 1 more entries$",
        ),
        (
            "module.",
            (),
            r"it has one under names that begin with 'module\.': make a file of that: python -c ",
        ),
    ],
)
def test_entries_that_a_file_of_weights_lacks_or_has_too_many_are_named(
    prefix: str, dropped: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    whole = named_state(load(TINY).trunk)
    state = {f"{prefix}{name}": values for name, values in whole if name not in dropped}
    with pytest.raises(UserError, match=rf"weights\.pth are no state_dict of a resnet18: {told}"):
        load(save(state, tmp_path / "weights.pth"), tmp_path / "weights.pth")


def test_weights_that_torchvision_does_not_have_are_refused_where_no_file_is_given() -> None:
    with pytest.raises(UserError, match=r"no weights 'IMAGENET1K_V2' for resnet18; there are: IMAGENET1K_V1, random"):
        load(replace(TINY, weights="IMAGENET1K_V2"))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code in a file of weights was run",)


@pytest.mark.parametrize("state", [{}, {"conv1.weight": torch.zeros(2)}, [1, 2], Bomb()])
def test_a_file_that_holds_no_such_weights(tmp_path: Path, state: Any, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "weights.pth"
    with pytest.raises(UserError, match=r"weights\.pth are no state_dict of a resnet18"):
        load(save(state, file), file)
    assert capfd.readouterr() == ("", "")


def test_the_file_must_be_the_one_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    config = save(load(TINY).trunk.state_dict(), file)
    file.write_bytes(b"other bytes")
    for given in (file, None):
        with pytest.raises(UserError, match=r"are those of a file, which .* is not: give that file"):
            load(config, given)
    with pytest.raises(UserError, match=r"nowhere\.pth cannot be read: No such file"):
        load(config, tmp_path / "nowhere.pth")


NAMED = ResNet("resnet18", "IMAGENET1K_V1")


def test_weights_that_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("urllib.request.OpenerDirector.open", unreachable)
    cures = (
        r"give their file by --weights FILE \(of a detector: --file detector=PATH\), "
        "or do without training: --set weights=random:0"
    )
    with pytest.raises(UserError, match=rf"IMAGENET1K_V1 of resnet18 cannot be fetched from https://.*{cures}"):
        load(NAMED)
    assert not list(tmp_path.rglob("*.pth"))


def unreachable(*arguments: Any, **options: Any) -> None:
    raise URLError("no network")


def test_fetched_weights_that_were_damaged_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub/checkpoints"
    folder.mkdir(parents=True)
    (folder / "resnet18-f37072fd.pth").write_bytes(b"half of it")
    with pytest.raises(UserError, match=r"resnet18-f37072fd\.pth are damaged: delete the file"):
        load(NAMED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(UserError, match="device cuda: torch finds no GPU"):
        load(replace(TINY, device="cuda"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "vgg19"}, "no network 'vgg19'; there are: resnet18, resnet34"),
        ({"weights": "random:"}, "no weights 'random:' for resnet18; there are: IMAGENET1K_V1, random"),
        ({"weights": "/home/me/weights.pth"}, "sha256:<digest> of a file"),
        ({"crop": 65}, "crop is a multiple of 32"),
        ({"crop": 96}, "at most resize, not 96 of 72"),
        ({"output": "rows"}, "no output 'rows'; there are: grid, pooled"),
        ({"dtype": "bfloat16"}, "no dtype 'bfloat16'; there are: float16, float32"),
        ({"batch_size": 0}, "batch_size is at least 1"),
        ({"device": "tpu"}, "no device 'tpu'; there are: cpu, cuda"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def test_every_name_of_weights_is_one_of_torchvision() -> None:
    for network in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
        for weights in models.get_model_weights(network):
            assert ResNet(network, weights.name).spec.row_shape[0] == 49


def test_planning_with_a_config_needs_no_torch() -> None:
    code = "import sys; from xmodal.features.networks import ResNet; "
    code += "print(ResNet().spec.row_shape, 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "(49, 2048) False\n"
