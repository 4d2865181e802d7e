"""Archives: members of zip and tar files, read without extracting, if the archive is safe and whole."""

import errno
import gzip
import io
import stat
import tarfile
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from lzma import LZMAError
from threading import local
from typing import IO, Any, cast

from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw

# of damaged bytes; RuntimeError: an encrypted member, or an unknown compression method
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, ValueError, RuntimeError, OSError)

LARGEST = 256 * 2**20  # bytes of a medium, which is read whole: a larger member may be a bomb
BUFFER = 2**16


class MissingMedia(LookupError):
    """A medium that its publisher does not have, or that was sealed as absent."""


class _Opened(dict[str, zipfile.ZipFile]):
    """A dict that can be finalized."""


class Archives(local):
    """Reads the media of a sealed set and keeps archives open, each thread its own."""

    def __init__(self, raw: Raw) -> None:
        self._raw, self._stack = raw, ExitStack()
        self._open = _Opened()
        weakref.finalize(self._open, self._stack.close)  # with the thread, which `self` may outlive

    def read(self, media: str, most: int | None = None) -> bytes:
        """Reads an Item's `media`, at most a byte more than `most`; without that, members over LARGEST are refused."""
        if media in self._raw:
            with self._raw.open(media) as file:
                return file.read(-1 if most is None else most + 1)
        path, _, member = media.partition("!")
        if path not in self._raw:
            raise MissingMedia(f"{path} is not in the media set")
        if path not in self._open:
            self._open[path] = self._stack.enter_context(open_archive(self._raw, path))
        archive = self._open[path]
        try:
            size = archive.getinfo(member).file_size
        except KeyError:
            raise MissingMedia(f"{path} has no member {member}") from None
        if most is None and size > LARGEST:
            raise UserError(f"{path}: its member {member} has {size:,} bytes; a medium has at most {LARGEST:,}")
        with archive.open(member) as file:
            # A byte beyond the stated size makes zipfile compare the checksum.
            return file.read((size if most is None else min(most, size)) + 1)


def members(raw: Raw, path: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of each file in an archive. Read a content before asking for the next."""
    if path.endswith(".zip"):
        with open_archive(raw, path) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    with archive.open(member) as content:
                        yield member.filename, content
    else:
        yield from tar_members(raw, path)


def tar_members(raw: Raw, path: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Does `members` for a tar archive, plain or gzipped, which after the last file is known to be whole."""
    with ExitStack() as stack:
        with _refusing_damage(path):
            file: Any = stack.enter_context(raw.open(path))
            is_gzipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            blocks = _Blocks(stack.enter_context(gzip.GzipFile(fileobj=file)) if is_gzipped else file)
            archive = stack.enter_context(tarfile.open(fileobj=blocks, mode="r:"))
        seen = set[str]()
        while member := _next(archive, blocks, path):
            name = member.name.removeprefix("./")
            _refuse_unsafe(path, name, name in seen, not (member.isfile() or member.isdir()))
            if member.isfile():
                seen.add(name)
                content = _Member(cast(IO[bytes], archive.extractfile(member)), path, f" at {name}")
                yield name, io.BufferedReader(content, BUFFER)


def unzipped(raw: Raw, path: str) -> Raw:
    """The same file without its gzip."""

    def open_plain(path: str) -> io.BufferedReader:
        file: Any = raw.open(path)
        plain: Any = gzip.GzipFile(fileobj=file)
        plain.myfileobj = file  # is closed with it
        return io.BufferedReader(_Member(plain, path, ""), BUFFER)

    return Raw([path], open_plain)


def archive_of(media: str) -> str:
    """The file that holds a medium: its archive, or itself."""
    return media.partition("!")[0]


@contextmanager
def open_file(raw: Raw, path: str) -> Iterator[IO[bytes]]:
    """Opens a publisher's file, or the member of a zip file that `archive.zip!member` names."""
    archive, _, member = path.partition("!")
    if not member or path in raw:
        with raw.open(path) as file:
            yield file
        return
    with open_archive(raw, archive) as zipped:
        if member not in zipped.namelist():
            raise UserError(f"{archive} has no member {member}")
        with zipped.open(member) as content:
            yield content


@contextmanager
def open_archive(raw: Raw, path: str) -> Iterator[zipfile.ZipFile]:
    """Opens a zip file whose members are safe. Members of any size can be streamed."""
    with ExitStack() as stack:
        with _refusing_damage(path):
            archive = stack.enter_context(_Archive(stack.enter_context(raw.open(path)), path))
        times = Counter(archive.namelist())
        for member in archive.infolist():
            # `orig_filename` is as written; `filename` ends at a NUL
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            _refuse_unsafe(path, member.orig_filename, times[member.filename] > 1, is_link)
        yield archive


class _Archive(zipfile.ZipFile):
    """Refuses damage where members are opened and read, not in a caller's code."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._path = path
        super().__init__(file)

    def open(self, name: str | zipfile.ZipInfo, *arguments: Any, **named: Any) -> IO[bytes]:
        place = f" at {getattr(name, 'filename', name)}"
        with _refusing_damage(self._path, place):
            file = super().open(name, *arguments, **named)
        return io.BufferedReader(_Member(file, self._path, place), BUFFER)


class _Member(io.RawIOBase):
    def __init__(self, file: IO[bytes], path: str, place: str) -> None:
        self._file, self._path, self._place = file, path, place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _refusing_damage(self._path, self._place):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with _refusing_damage(self._path, self._place):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


class _Blocks(io.BufferedReader):
    """Remembers the block read last: a tar archive that does not end in zeros was cut."""

    last = b""

    def read(self, size: int | None = -1, /) -> bytes:
        self.last = super().read(size)
        return self.last


def _next(archive: tarfile.TarFile, blocks: _Blocks, path: str) -> tarfile.TarInfo | None:
    with _refusing_damage(path):
        if member := archive.next():
            cast(Any, archive).members.clear()  # tarfile keeps all of them
            return member
        if blocks.last != bytes(tarfile.BLOCKSIZE):
            raise EOFError("it ends too early")
        while blocks.read(BUFFER):  # gzip's checksum is behind the end
            continue
    return None


@contextmanager
def _refusing_damage(path: str, place: str = "") -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # the disk or the network, not what was read
        raise UserError(f"{path} is damaged{place} ({error}): delete it and fetch it again") from error


def _refuse_unsafe(path: str, name: str, is_repeated: bool, is_special: bool) -> None:
    faults = {
        "is there twice": is_repeated,
        "is a link or a device": is_special,
        "has a backslash or a NUL in its name": "\\" in name or "\0" in name,
        "has an absolute path": name.startswith("/") or name[1:2] == ":",
        "leaves its folder": ".." in name.split("/"),
    }
    for fault, has_it in faults.items():
        if has_it:
            raise UserError(f"{path} is not safe: its member {name!r} {fault}; get another copy of it")
