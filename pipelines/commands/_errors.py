"""Explains errors of a person's disk, machine or object store in one line."""

import errno
import os

from pipelines.upkeep.machine import how_to_install
from xmodal.errors import UserError

DISK = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "your disk quota is used up: free some space",
    errno.EFBIG: "the disk takes no file that large: choose another root",
    errno.EROFS: "the disk is read-only: choose another root",
    errno.EACCES: "no permission to read or write there: have it given, or choose another root",
    errno.EPERM: "not permitted there (no hard links?): choose another root",
}
OBJECT_STORES = {"botocore", "aiobotocore", "aiohttp"}


def explain(error: Exception, root: str) -> str | None:
    """Says what a person can do about an error; None for one of xmodal itself."""
    if isinstance(error, UserError):
        cure = _explain_missing(error.__cause__)
        return f"{error}; {cure}" if cure and "pip install" not in str(error) else str(error)
    if isinstance(error, OSError):
        return _explain_disk(error, root)
    if type(error).__module__.partition(".")[0] in OBJECT_STORES:
        return f"the object store of {root} does not answer as it should: {error}"
    return _explain_missing(error)


def _explain_missing(error: BaseException | None) -> str | None:
    return how_to_install(error.name or "") if isinstance(error, ModuleNotFoundError) else None


def _explain_disk(error: OSError, root: str) -> str:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOENT and root:
        folder, file = os.path.abspath(os.path.expanduser(root)), str(error.filename)
        if not os.path.isdir(folder) and folder.startswith(file):
            return f"the folder {root} cannot be made: choose another root"
        if file.startswith(folder):
            return f"a file is missing{where}: `xmodal verify --forget` has it made again by the next build or retry"
    if error.errno is None:
        return f"{error}: if a file under {root} is damaged, `xmodal verify --forget` finds it"
    if error.errno not in DISK:
        return f"{error.strerror}{where}"
    return f"{DISK[error.errno]}{where}; then run the same command again: what is committed is kept"
