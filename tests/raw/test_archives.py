"""Archives: what is inside is read where it lies; what is unsafe, damaged or missing is said."""

import gc
import io
import random
import tarfile
import zipfile
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import pytest

from xmodal.errors import UserError
from xmodal.raw import archives as module
from xmodal.raw.archives import Archives, MissingMedia, archive_of, open_archive, tar_members
from xmodal.raw.raw_files import Raw

PICTURE = b"bytes of a picture " * 20


def media_set(folder: Path, members: dict[str, bytes]) -> Archives:
    with zipfile.ZipFile(folder / "pictures.zip", "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return Archives(Raw.folder(folder))


def test_a_member_and_a_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "alone.jpg").write_bytes(b"alone")
    (tmp_path / "wow!.jpg").write_bytes(b"wow")
    archives = media_set(tmp_path, {"train/": b"", "train/a.jpg": PICTURE, "train/b!.jpg": b"b"})
    media = ("pictures.zip!train/a.jpg", "pictures.zip!train/b!.jpg", "alone.jpg", "wow!.jpg")
    assert [archives.read(each) for each in media] == [PICTURE, b"b", b"alone", b"wow"]
    assert archive_of(media[0]) == "pictures.zip"


def test_an_archive_is_opened_once_and_closed_when_let_go(tmp_path: Path) -> None:
    media_set(tmp_path, {"a": b"1", "b": b"2"})
    raw = CountingRaw.folder(tmp_path)
    archives = Archives(raw)
    assert (archives.read("pictures.zip!a"), archives.read("pictures.zip!b")) == (b"1", b"2")
    assert len(raw.opened) == 1
    del archives
    gc.collect()
    assert raw.opened[0].closed


def test_what_a_thread_opened_is_closed_when_it_ends(tmp_path: Path) -> None:
    media_set(tmp_path, {"a": b"1"})
    raw = CountingRaw.folder(tmp_path)
    archives = Archives(raw)
    assert archives.read("pictures.zip!a") == b"1"
    thread = Thread(target=archives.read, args=["pictures.zip!a"])
    thread.start()
    thread.join()
    gc.collect()
    assert [file.closed for file in raw.opened] == [False, True]


class CountingRaw(Raw):
    opened: list[BinaryIO]

    @staticmethod
    def folder(path: str | Path) -> "CountingRaw":
        files = {file.name: file for file in Path(path).iterdir()}
        raw = CountingRaw(files, lambda name: files[name].open("rb"))
        raw.opened = []
        return raw

    def open(self, path: str) -> BinaryIO:
        self.opened.append(super().open(path))
        return self.opened[-1]


def test_nothing_is_extracted(tmp_path: Path) -> None:
    media_set(tmp_path, {"a.jpg": PICTURE}).read("pictures.zip!a.jpg")
    assert [path.name for path in tmp_path.iterdir()] == ["pictures.zip"]


@pytest.mark.parametrize(
    ("media", "message"),
    [
        ("pictures.zip!b.jpg", r"pictures\.zip has no member b\.jpg"),
        ("pictures.zip!", r"pictures\.zip has no member "),
        ("other.zip!a.jpg", r"other\.zip is not in the media set"),
        ("gone.jpg", r"gone\.jpg is not in the media set"),
    ],
)
def test_what_is_missing_can_be_counted(tmp_path: Path, media: str, message: str) -> None:
    with pytest.raises(MissingMedia, match=message):
        media_set(tmp_path, {"a.jpg": PICTURE}).read(media)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/etc/passwd", "has an absolute path"),
        ("C:/windows", "has an absolute path"),
        ("../up.jpg", "leaves its folder"),
        ("train/../../up.jpg", "leaves its folder"),
        ("train\\up.jpg", "has a backslash"),
        ("train?up.jpg", "has a backslash or a NUL"),
    ],
)
def test_an_unsafe_archive_is_refused_whatever_is_read(tmp_path: Path, name: str, why: str) -> None:
    archives = media_set(tmp_path, {"a.jpg": PICTURE, name: b"x"})
    data = (tmp_path / "pictures.zip").read_bytes().replace(b"?", b"\0")  # which no zipfile writes
    (tmp_path / "pictures.zip").write_bytes(data)
    with pytest.raises(UserError, match=rf"pictures\.zip is not safe: its member '.*' {why}"):
        archives.read("pictures.zip!a.jpg")


def test_a_link_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link.jpg")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(UserError, match=r"pictures\.zip is not safe: its member 'link\.jpg' is a link"):
        Archives(Raw.folder(tmp_path)).read("pictures.zip!link.jpg")


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    archives = media_set(tmp_path, {"a.jpg": PICTURE, "b.jpg": b"other"})
    data = (tmp_path / "pictures.zip").read_bytes().replace(b"b.jpg", b"a.jpg")
    (tmp_path / "pictures.zip").write_bytes(data)
    with pytest.raises(UserError, match=r"pictures\.zip is not safe: its member 'a\.jpg' is there twice"):
        archives.read("pictures.zip!a.jpg")


def test_a_member_too_large_to_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archives = media_set(tmp_path, {"a.jpg": PICTURE, "b.jpg": PICTURE + b"!"})
    monkeypatch.setattr(module, "LARGEST", len(PICTURE))
    assert archives.read("pictures.zip!a.jpg") == PICTURE
    with pytest.raises(UserError, match=r"pictures\.zip: its member b\.jpg has 381 bytes; a medium has at most 380"):
        archives.read("pictures.zip!b.jpg")


@pytest.mark.parametrize("error", [ValueError("mine"), OSError("mine"), EOFError("mine")])
def test_an_error_of_the_caller_is_no_damage(tmp_path: Path, error: Exception) -> None:
    media_set(tmp_path, {"a.jpg": PICTURE})
    with pytest.raises(type(error), match="mine"), open_archive(Raw.folder(tmp_path), "pictures.zip"):
        raise error


def test_damage_met_in_streaming_is_named(tmp_path: Path) -> None:
    media_set(tmp_path, {"a.jpg": PICTURE})
    data = bytearray((tmp_path / "pictures.zip").read_bytes())
    data[data.index(b"a.jpg") + 12] ^= 255
    (tmp_path / "pictures.zip").write_bytes(data)
    with (
        open_archive(Raw.folder(tmp_path), "pictures.zip") as archive,
        archive.open("a.jpg") as file,
        pytest.raises(UserError, match=r"pictures\.zip is damaged at a\.jpg"),
    ):
        file.read()


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    archives = media_set(tmp_path, {"a.jpg": PICTURE, "b.jpg": PICTURE})
    data = bytearray((tmp_path / "pictures.zip").read_bytes())
    data[data.index(b"a.jpg") + 12] ^= 255
    (tmp_path / "pictures.zip").write_bytes(data)
    assert archives.read("pictures.zip!b.jpg") == PICTURE
    with pytest.raises(UserError, match=r"pictures\.zip is damaged at a\.jpg .*fetch it again"):
        archives.read("pictures.zip!a.jpg")


def test_a_truncated_or_wrong_file_is_named(tmp_path: Path) -> None:
    media_set(tmp_path, {"a.jpg": PICTURE})
    whole = (tmp_path / "pictures.zip").read_bytes()
    for data in (b"", b"<html>404</html>", whole[: len(whole) // 2], whole[:-1]):
        (tmp_path / "pictures.zip").write_bytes(data)
        with pytest.raises(UserError, match=r"pictures\.zip is damaged .*delete it and fetch it again"):
            Archives(Raw.folder(tmp_path)).read("pictures.zip!a.jpg")


def test_damage_anywhere_is_trouble_and_never_other_bytes(tmp_path: Path) -> None:
    media_set(tmp_path, {"a.jpg": PICTURE, "b.jpg": PICTURE})
    whole, dice = (tmp_path / "pictures.zip").read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] = dice.randrange(256)
        (tmp_path / "pictures.zip").write_bytes(damaged)
        try:
            assert Archives(Raw.folder(tmp_path)).read("pictures.zip!a.jpg") == PICTURE
        except (UserError, MissingMedia):
            continue


def tar_of(folder: Path, members: dict[str, bytes], gzipped: bool = True) -> Path:
    path = folder / "birds.tgz"
    with tarfile.open(path, "w:gz" if gzipped else "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def streamed(folder: Path) -> dict[str, bytes]:
    return {name: file.read() for name, file in tar_members(Raw.folder(folder), "birds.tgz")}


@pytest.mark.parametrize("gzipped", [True, False])
def test_members_of_a_tar_come_in_its_order(tmp_path: Path, gzipped: bool) -> None:
    members = {"z.txt": PICTURE, "./sub/a.txt": b"", "b.jpg": bytes(100_000)}
    tar_of(tmp_path, members, gzipped)
    found = streamed(tmp_path)
    assert list(found.items()) == [("z.txt", PICTURE), ("sub/a.txt", b""), ("b.jpg", bytes(100_000))]
    assert [path.name for path in tmp_path.iterdir()] == ["birds.tgz"]


def test_members_of_a_tar_need_not_be_read(tmp_path: Path) -> None:
    tar_of(tmp_path, {"a": bytes(5000), "b": PICTURE, "c": b"c"})
    found = [(name, file.read(3)) for name, file in tar_members(Raw.folder(tmp_path), "birds.tgz") if name != "b"]
    assert found == [("a", bytes(3)), ("c", b"c")]


@pytest.mark.parametrize(
    ("name", "why"),
    [("/etc/passwd", "absolute path"), ("../up", "leaves its folder"), ("a\\b", "a backslash"), ("a.txt", "twice")],
)
def test_an_unsafe_tar_is_refused(tmp_path: Path, name: str, why: str) -> None:
    path = tmp_path / "birds.tgz"
    with tarfile.open(path, "w") as archive:
        for each in ("a.txt", name):
            archive.addfile(tarfile.TarInfo(each))
    with pytest.raises(UserError, match=rf"birds\.tgz is not safe: its member .* {why}"):
        streamed(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "birds.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("odd")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(UserError, match="'odd' is a link or a device"):
        streamed(tmp_path)


@pytest.mark.parametrize("gzipped", [True, False])
def test_a_tar_that_was_cut_anywhere_is_damaged(tmp_path: Path, gzipped: bool) -> None:
    noise = random.Random(0).randbytes(1000)
    path = tar_of(tmp_path, {"a": noise, "b": noise, "c": b""}, gzipped)
    whole = path.read_bytes()
    end = len(whole) if gzipped else 1536 + 1536 + 512 + 512  # behind the first block of zeros comes nothing
    for length in [0, 1, 2, 300, 511, 512, 600, 1536, 1537, 2048, 3072, 3500, end - 512, end - 1]:
        if length < end:
            path.write_bytes(whole[:length])
            with pytest.raises(UserError, match=r"birds\.tgz is damaged"):
                streamed(tmp_path)


def test_damage_anywhere_in_a_gzipped_tar_is_trouble_and_never_other_bytes(tmp_path: Path) -> None:
    members = {"a": PICTURE, "b": random.Random(1).randbytes(700)}
    path, dice = tar_of(tmp_path, members), random.Random(0)
    whole = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            assert streamed(tmp_path) == members
        except UserError:
            continue


def test_a_header_that_is_none_does_not_end_a_tar_in_silence(tmp_path: Path) -> None:
    path = tar_of(tmp_path, {"a": PICTURE, "b": PICTURE}, gzipped=False)
    data = bytearray(path.read_bytes())
    data[1024] ^= 255
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"birds\.tgz is damaged \(it ends too early\)"):
        streamed(tmp_path)
