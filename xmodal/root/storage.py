"""Storage of a root: a folder or an object store.

Keys are relative, with `/`. `create` and `link` never overwrite: locally they are hard links with fsync, on an
object store a conditional put and a server-side copy. File systems without hard links (exFAT, some network mounts) are
refused by `xmodal doctor` and by the first commit.

A root may come from anybody. No key leads out of it: `..` and links on the way are refused, and only regular files are
read, so that a pipe or a device cannot hang a reader.
"""

import ctypes
import errno
import io
import os
import shlex
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TypeAlias, cast

from xmodal.errors import UserError


def open_storage(url: str) -> "Storage":
    """Opens `s3://bucket/run`, any other fsspec URL, or a path."""
    if not url:
        raise UserError("the root is empty: name a folder, or a URL such as s3://bucket/run")
    if "://" in url and not url.startswith("file://"):
        return RemoteStorage(url)
    if os.path.isfile(url.removeprefix("file://")):
        raise UserError(f"root {url} is a file: choose a folder you can write to")
    return LocalStorage(url)


CONFLICTS = 8
FEW_FILES = 8  # are made durable one by one, without what others write
LIBC = ctypes.CDLL(None, use_errno=True)
DELETED_AT_ONCE = 1000
IRREGULAR = "is no regular file"


class LocalStorage:
    """A folder. New bytes are written under `_runs/temporary/`, so that readers never see parts of a file."""

    def __init__(self, url: str) -> None:
        self.url = str(Path(url.removeprefix("file://")).expanduser().absolute())
        self._folders = {self.url}  # that are known to be no links: looking at them again costs as much as reading

    def __repr__(self) -> str:
        return f"LocalStorage({self.url!r})"

    def path(self, key: str) -> str:
        """The path of a key, no part of whose folder is a link."""
        if not key:
            return self.url
        _check_key(key)
        path = os.path.join(self.url, key)  # a root may be "/"
        self._check_folder(os.path.dirname(path))
        return path

    def _check_folder(self, folder: str) -> None:
        if folder in self._folders:
            return
        self._check_folder(os.path.dirname(folder))
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISLNK(os.lstat(folder).st_mode):
                raise UserError(f"{folder} is a link: a root is one folder; move it where there is room, and link that")
            self._folders.add(folder)

    def read(self, key: str, most: int | None = None) -> bytes:
        """Reads a file; one of more than `most` bytes is refused."""
        with self.open(key) as file:
            _check_size(f"{self.url}/{key}", os.fstat(file.fileno()).st_size, most)
            return file.read()

    def open(self, key: str) -> BinaryIO:
        path = self.path(key)
        with suppress(IsADirectoryError):
            file = open(path, "rb", opener=partial(_open_regular, self.url))  # noqa: SIM115 - the caller closes it
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file
            file.close()
        raise _irregular(path, self.url)

    def size(self, key: str) -> int | None:
        """The bytes of a file, or None if there is no such file; a folder, a link and a device are none."""
        try:
            found = os.lstat(self.path(key))
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_irregular(self, key: str) -> bool:
        """Whether a link, folder, pipe or device stands in the place of a file."""
        return self.size(key) is None and os.path.lexists(self.path(key))

    def age(self, key: str) -> float:
        """Seconds since a file or folder was made, changed or given another name."""
        found = os.lstat(self.path(key))
        return time.time() - max(found.st_mtime, found.st_ctime)

    def names(self, prefix: str) -> list[str]:
        """The names directly in a folder; none if there is no folder."""
        try:
            return sorted(os.listdir(self.path(prefix)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, key: str, data: bytes) -> bool:
        """Returns False if another writer was first."""
        with self._temporary() as file:
            file.write(data)
            self._sync(file)
            return self._link(file.name, key)

    def write(self, key: str, data: bytes) -> None:
        with self.writer(key) as file:
            file.write(data)

    @contextmanager
    def writer(self, key: str) -> Iterator[BinaryIO]:
        """Opens a file that gets its key, whole and durable, when this ends without error."""
        with self._temporary() as file:
            yield file
            self._sync(file)
            self._make_folder(os.path.dirname(self.path(key)))
            self._replace(file.name, key)

    def keep(self, files: Mapping[str, str]) -> None:
        """Stores files of this machine by their keys, as hard links where possible; existing keys are kept."""
        are_few = len(files) <= FEW_FILES
        for key, file in files.items():
            self._make_folder(os.path.dirname(self.path(key)), sync=are_few)
            try:
                with suppress(FileExistsError):
                    os.link(os.path.realpath(file) if os.path.islink(file) else file, self.path(key))
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES):
                    raise
                with self.writer(key) as copy, open(file, "rb") as source:
                    shutil.copyfileobj(source, copy, 2**20)
        for key in files if are_few else ():
            with self.open(key) as kept:
                os.fsync(kept.fileno())
            self._sync_folder(os.path.dirname(self.path(key)))
        if not are_few:
            self._sync_disk()

    def links(self, file: str) -> bool:
        """Whether `keep` can link a file of this machine, which then takes no room."""
        return os.stat(file).st_dev == os.stat(self._folder_there()).st_dev

    def link(self, source: str, second: str) -> None:
        """Puts the same bytes under a second key, unless that exists already."""
        self._link(self.path(source), second)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._remove(self.path(key))

    def delete_folder(self, key: str) -> None:
        shutil.rmtree(self.path(key), ignore_errors=True)

    def free_bytes(self) -> int | None:
        return shutil.disk_usage(self._folder_there()).free

    def _folder_there(self) -> Path:
        """The root, or the folder that it will be made in."""
        folder = Path(self.url)
        while not folder.exists():
            folder = folder.parent
        return folder

    @contextmanager
    def _temporary(self) -> Iterator[BinaryIO]:
        folder = self.path("_runs/temporary")
        self._make_folder(folder)
        with open(f"{folder}/{uuid.uuid4().hex}", "xb") as file:
            try:
                yield file
            finally:
                self._remove(file.name)

    def _link(self, path: str, key: str) -> bool:
        self._make_folder(os.path.dirname(self.path(key)))
        try:
            os.link(path, self.path(key))
        except FileExistsError:
            return False
        self._sync_folder(os.path.dirname(self.path(key)))
        return True

    def _replace(self, path: str, key: str) -> None:
        try:
            os.replace(path, self.path(key))
        except IsADirectoryError:
            raise _irregular(self.path(key), self.url) from None
        self._sync_folder(os.path.dirname(self.path(key)))

    def _remove(self, path: str) -> None:
        try:
            Path(path).unlink(missing_ok=True)
        except IsADirectoryError:
            raise _irregular(path, self.url) from None

    def _make_folder(self, folder: str, sync: bool = True) -> None:
        """Makes a folder and its parents, durable unless a sync of the disk follows."""
        if not os.path.isdir(folder):
            self._make_folder(os.path.dirname(folder), sync)
            with suppress(FileExistsError):
                os.mkdir(folder)
            if sync:
                self._sync_folder(os.path.dirname(folder))

    def _sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def _sync_disk(self) -> None:
        """Makes durable whatever was written to the disk of the root: one wait in place of two for each file."""
        descriptor = os.open(self.url, os.O_RDONLY)
        try:
            if not hasattr(LIBC, "syncfs"):
                os.sync()
            elif LIBC.syncfs(descriptor):
                raise OSError(ctypes.get_errno(), f"{self.url} cannot be synced")
        finally:
            os.close(descriptor)

    def _sync_folder(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RemoteStorage:
    """An fsspec file system whose `pipe_file(mode="create")` is a conditional put, as S3's."""

    def __init__(self, url: str) -> None:
        import fsspec  # only roots that are URLs need it

        self.url = url.rstrip("/")
        try:
            self._files, self._base = fsspec.url_to_fs(self.url, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise UserError(f"root {url}: {error}") from error

    def __repr__(self) -> str:
        return f"RemoteStorage({self.url!r})"

    def path(self, key: str) -> str:
        _check_key(key)
        return f"{self._base}/{key}" if key else str(self._base)

    def read(self, key: str, most: int | None = None) -> bytes:
        if most is not None:
            _check_size(f"{self.url}/{key}", self.size(key) or 0, most)
        return cast(bytes, self._files.cat_file(self.path(key)))

    def open(self, key: str) -> BinaryIO:
        # fsspec copies its whole block for each line
        return io.BufferedReader(self._files.open(self.path(key), "rb"), 2**20)

    def size(self, key: str) -> int | None:
        try:
            found = self._files.info(self.path(key))
            return found["size"] if found["type"] == "file" else None
        except FileNotFoundError:
            return None

    def is_irregular(self, key: str) -> bool:
        return False  # a store has objects alone

    def age(self, key: str) -> float:
        """Seconds since an object was put; 0 where the store does not tell."""
        changed = self._files.info(self.path(key)).get("LastModified")
        return time.time() - changed.timestamp() if changed else 0.0

    def names(self, prefix: str) -> list[str]:
        try:
            found = self._files.ls(self.path(prefix), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in found})

    def create(self, key: str, data: bytes) -> bool:
        for _ in range(CONFLICTS):
            try:
                self._files.pipe_file(self.path(key), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if "ConditionalRequestConflict" not in str(error):
                    raise
            else:
                return True
        raise OSError(f"{self.url}/{key}: the object store keeps saying that a conditional put is in conflict")

    def write(self, key: str, data: bytes) -> None:
        self._files.pipe_file(self.path(key), data)

    @contextmanager
    def writer(self, key: str) -> Iterator[BinaryIO]:
        """Writes to the local disk first, so that a killed writer leaves nothing in the store."""
        with TemporaryDirectory(prefix="xmodal-") as folder:
            staged = f"{folder}/staged"
            with open(staged, "xb") as file:
                yield file
            self._files.put_file(staged, self.path(key))

    def keep(self, files: Mapping[str, str]) -> None:
        for key, file in files.items():
            if self.size(key) is None:
                self._files.put_file(file, self.path(key))

    def links(self, file: str) -> bool:
        return False

    def link(self, source: str, second: str) -> None:
        if self.size(second) is None:
            self._files.cp_file(self.path(source), self.path(second))

    def delete(self, *keys: str) -> None:
        # fsspec's `rm` takes `*` and `[` for patterns and lists every key first
        paths = [self.path(key) for key in keys]
        if hasattr(self._files, "bulk_delete"):
            for begin in range(0, len(paths), DELETED_AT_ONCE):
                self._files.bulk_delete(paths[begin : begin + DELETED_AT_ONCE])
            return
        for path in paths:
            with suppress(FileNotFoundError):
                self._files.rm_file(path)

    def delete_folder(self, key: str) -> None:
        found = self._files.find(self.path(key))
        self.delete(*(path.removeprefix(f"{self._base}/") for path in found))

    def free_bytes(self) -> int | None:
        return None


Storage: TypeAlias = LocalStorage | RemoteStorage


def _check_key(key: str) -> None:
    if key.startswith("/") or "\0" in key or ".." in key.split("/"):
        raise UserError(f"{key!r} leads out of the root: something else than xmodal has written that name")


def _check_size(where: str, size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise UserError(f"{where} has {size:,} bytes, more than the {most:,} that it may have")


def _open_regular(root: str, path: str, flags: int) -> int:
    """Follows no link, and does not wait for the other end of a pipe."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _irregular(path, root) from None
        raise


def _irregular(path: str, root: str) -> UserError:
    cure = f"delete it, and `xmodal verify --root {shlex.quote(root)}` says what is to be made again"
    return UserError(f"{path} {IRREGULAR}: {cure}")
