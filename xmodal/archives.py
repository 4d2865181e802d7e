"""Media that lie inside archives: read one by one, never extracted, and only from archives that are safe and whole."""

import errno
import stat
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from lzma import LZMAError

from xmodal.corpora import Raw
from xmodal.trouble import Trouble

# What reading damaged bytes raises; a RuntimeError is an encrypted member or a method that nobody knows.
DAMAGE = (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, ValueError, RuntimeError, OSError)


class MissingMedia(LookupError):
    """A medium that its publisher does not have, or that was sealed as absent: for the caller to count."""


class Archives:
    """The media of a sealed set. An archive is opened at its first use and kept, so each worker needs its own."""

    def __init__(self, raw: Raw) -> None:
        self._raw, self._stack = raw, ExitStack()
        self._open: dict[str, zipfile.ZipFile] = {}
        weakref.finalize(self, self._stack.close)

    def read(self, media: str) -> bytes:
        """`media` as an Item has it: a path in the media set, or `archive.zip!member`."""
        if media in self._raw:
            with self._raw.open(media) as file:
                return file.read()
        archive, _, member = media.partition("!")
        if archive not in self._raw:
            raise MissingMedia(f"{archive} is not in the media set")
        if archive not in self._open:
            self._open[archive] = self._stack.enter_context(open_archive(self._raw, archive))
        return _read(self._open[archive], archive, member)


def archive_of(media: str) -> str:
    """The file of the media set that a medium is read from, where it is no file itself."""
    return media.partition("!")[0]


@contextmanager
def open_archive(raw: Raw, path: str) -> Iterator[zipfile.ZipFile]:
    """A zip file whose members were looked at; damage found while it is open is a Trouble that names the archive."""
    with _refusing_damage(path), raw.open(path) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if why := _unsafe(member):
                raise Trouble(f"{path} is not safe: its member {member.orig_filename!r} {why}; get another copy of it")
        yield archive


def _read(archive: zipfile.ZipFile, path: str, member: str) -> bytes:
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise MissingMedia(f"{path} has no member {member}") from None
    with _refusing_damage(path, f" at {member}"):
        return archive.read(info)


@contextmanager
def _refusing_damage(path: str, place: str = "") -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # the disk or the network, not what was read
        raise Trouble(f"{path} is damaged{place} ({error}): delete it and fetch it again") from error


def _unsafe(member: zipfile.ZipInfo) -> str | None:
    name = member.orig_filename  # as it is written, where `filename` ends at a NUL
    if "\\" in name or "\0" in name:
        return "has a backslash or a NUL in its name"
    if name.startswith("/") or name[1:2] == ":":
        return "has an absolute path"
    if ".." in name.split("/"):
        return "leaves its folder"
    return "is a link" if stat.S_ISLNK(member.external_attr >> 16) else None
