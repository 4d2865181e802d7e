"""Explains errors of a person's disk, machine or object store in one line."""

import errno
import os
import tempfile
from contextlib import suppress

from pipelines.upkeep.machine import how_to_install
from xmodal.errors import UserError, forget_command

DISK = {
    errno.EDQUOT: "your disk quota is used up: free some space",
    errno.EFBIG: "the disk takes no file that large: choose another root",
    errno.EROFS: "the disk is read-only: choose another root",
    errno.EACCES: "no permission to read or write there: have it given, or choose another root",
    errno.EPERM: "not permitted there (no hard links?): choose another root",
}
OBJECT_STORES = {"botocore", "aiobotocore", "aiohttp"}
AGAIN = "then run the same command again: what is committed is kept"
FEW_INODES = 16  # a failed write may have given some back


def explain(error: Exception, root: str) -> str | None:
    """Says what a person can do about an error; None for one of xmodal itself."""
    if isinstance(error, UserError):
        said = str(error)
        cure = _explain_missing(error.__cause__)
        return f"{said}; {cure}" if cure and "pip install" not in said else said
    if isinstance(error, OSError):
        return _explain_disk(error, root)
    if type(error).__module__.partition(".")[0] in OBJECT_STORES:
        return f"the object store of {root} does not answer as it should: {error}"
    return _explain_missing(error)


def _explain_missing(error: BaseException | None) -> str | None:
    return how_to_install(error.name or "") if isinstance(error, ModuleNotFoundError) else None


def _explain_disk(error: OSError, root: str) -> str:
    where = f" ({error.filename})" if error.filename else ""
    folder, file = _absolute(root), _absolute(error.filename or "")
    verify = forget_command(root)
    if "temporary directory" in str(error):  # as `tempfile` says it
        return "no folder takes temporary files: free some space, or have TMPDIR name one that you can write to"
    if "bucket does not exist" in str(error):
        return f"the bucket of {root} does not exist: make it, or choose another root"
    if error.errno == errno.ENOSPC:
        return f"{_explain_full(file, folder)}; {AGAIN}"
    is_of_root = bool(file) and (folder.startswith(file) or file.startswith(folder))
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EPERM) and root and is_of_root:
        if not os.path.isdir(folder):
            return f"the folder {root} cannot be made: choose another root"
        if error.errno == errno.ENOENT:
            return f"a file is missing{where}: {verify} has it made again by the next build or retry"
    if error.errno is None:
        return f"{error}: if a file under {root} is damaged, {verify} finds it"
    if error.errno not in DISK:
        return f"{error.strerror}{where}"
    return f"{DISK[error.errno]}{where}; {AGAIN}"


def _absolute(path: object) -> str:
    return os.path.abspath(os.path.expanduser(str(path))) if path and "://" not in str(path) else ""


def _explain_full(file: str, root: str) -> str:
    """Says which disk is full: that of the file, or else of the root or the temporary files, and of what."""
    temporary = ""
    with suppress(FileNotFoundError):
        temporary = os.path.realpath(tempfile.gettempdir())
    folder = file or min(filter(None, (root, temporary)), key=_free_bytes, default="/")
    cure = ", or have TMPDIR name a folder of another disk" if folder == temporary else ""
    found = _disk(folder)
    if found.f_files and found.f_favail < FEW_INODES and found.f_bavail:
        return f"the disk of {folder} has bytes free, but takes no more files (inodes): delete some there{cure}"
    return f"the disk of {folder} is full: free some space{cure}"


def _free_bytes(folder: str) -> int:
    return _disk(folder).f_bavail * _disk(folder).f_frsize


def _disk(folder: str) -> os.statvfs_result:
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.statvfs(folder)
