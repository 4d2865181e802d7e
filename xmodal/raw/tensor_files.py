"""Files with the tensors of a network, as torch and safetensors write them; reading runs nothing that is in them.

How a file begins says what it is, however it is called.
"""

import re
import warnings
import zipfile
import zlib
from argparse import Namespace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, Literal

from xmodal.errors import extra_needed, few
from xmodal.raw.caffe_files import BEGINS as CAFFE

ZIP, PICKLE = b"PK\x03\x04", re.compile(rb"\x80[\x02-\x05]")
OLD_TORCH = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # a number in the pickle that files of torch before 2020 begin with
SAFETENSORS = re.compile(rb".{4}\x00{4}\{", re.DOTALL)  # the length of a header in JSON, and its beginning
GIT_LFS, WEB_PAGE = b"version https://git-lfs", re.compile(rb"\s*<(!doctype )?html", re.IGNORECASE)
CONTROLS = bytes({*range(32), 127} - {*b"\t\n\f\r"})  # which texts do not have
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, UnpicklingError, AssertionError, AttributeError, EOFError, LookupError),
    *(NotImplementedError, OSError, OverflowError, MemoryError, RecursionError, RuntimeError, TypeError, ValueError),
)
AGAIN, CONVERT = "get the file again", "give a state_dict, as torch.save and safetensors write it"


class NotTensors(ValueError):
    """Says what a file is in place of tensors, and what to do."""

    def __init__(self, what: str, cure: str = AGAIN) -> None:
        super().__init__(f"{what}: {cure}")
        self.what = what


def format_of(file: Path) -> Literal["torch", "safetensors", "pickle", "caffe", "other"]:
    """Tells formats of weights apart; `pickle` is one that torch did not write."""
    begin = _begin(file)
    if begin.startswith(ZIP) or (PICKLE.match(begin) and OLD_TORCH in begin[:32]):
        return "torch"
    if SAFETENSORS.match(begin):
        return "safetensors"
    if PICKLE.match(begin):
        return "pickle"
    return "caffe" if begin.startswith(CAFFE) and not _is_text(begin) else "other"


def read_tensor_file(path: str | Path) -> Any:
    """Reads tensors, and plain values beside them, to the CPU; NotTensors says what the file is else."""
    match format_of(file := Path(path)):
        case "torch":
            with file.open("rb") as opened:
                return load_tensors(opened)
        case "safetensors":
            return _load_safetensors(file)
        case "pickle":
            raise NotTensors("it is a pickle that torch did not write, which could run anything", CONVERT)
        case "caffe":
            raise NotTensors("it looks like a .caffemodel, which this network is not read from", CONVERT)
    raise _refusal(file)


def load_tensors(file: BinaryIO) -> Any:
    """Reads what torch saved to the CPU, also options in a Namespace, and executes nothing."""
    import torch

    try:
        _check_archive(file)
        file.seek(0)
        # torch warns of what other versions might not read
        with torch.serialization.safe_globals([Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except NotTensors:
        raise
    except DAMAGED as error:
        if found := re.search(r"GLOBAL ([\w.]{1,100})", str(error)):
            what = f"it has other objects than tensors ({found[1]}), which are not loaded as they could run anything"
            raise NotTensors(what, "where it was made, torch.save(network.state_dict(), FILE)") from error
        raise NotTensors("it ends early or is damaged") from error


def _check_archive(file: BinaryIO) -> None:
    """Refuses archives with changed parts, which torch would read, and those that torch did not save tensors in."""
    begin = file.read(len(ZIP))
    file.seek(0)
    if begin != ZIP:
        return
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if any(name.endswith("/constants.pkl") for name in names):
            what = "it is a program of TorchScript, which is not run"
            raise NotTensors(what, "torch.save(torch.jit.load(FILE).state_dict(), NEW), and give NEW")
        if not any(name.endswith("/data.pkl") for name in names):
            raise NotTensors(f"it is a zip archive of other things ({few(names, 2)!a})", CONVERT)
        if broken := archive.testzip():
            raise NotTensors(f"{broken!a} in it has changed since it was written")


def _load_safetensors(file: Path) -> Any:
    with extra_needed("safetensors", f"{file} needs safetensors"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    try:
        return load_file(file)
    except (SafetensorError, *DAMAGED) as error:
        raise NotTensors("it ends early or is damaged") from error


def _refusal(file: Path) -> NotTensors:
    """Says what a file of an unknown format seems to be."""
    begin = _begin(file)
    if not begin:
        return NotTensors("it is empty")
    if begin.startswith(GIT_LFS):
        return NotTensors("it only points to the file, which Git LFS keeps", "run `git lfs pull` in its folder")
    if WEB_PAGE.match(begin):
        return NotTensors("it is a web page", "download the file that the page offers")
    if _is_text(begin):
        return NotTensors(f"it is a text ({begin.decode(errors='ignore').strip()[:30]!a})", CONVERT)
    if begin.startswith(b"\x1f\x8b"):
        return NotTensors("it is packed by gzip", "unpack it, and give what was in it")
    return NotTensors("it is no file of torch or safetensors", CONVERT)


def _begin(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(512)


def _is_text(begin: bytes) -> bool:
    """Whether it is UTF-8, but for a letter that is cut at the end."""
    try:
        begin.decode()
    except UnicodeDecodeError as error:
        if error.start < len(begin) - 3:
            return False
    return not any(byte in CONTROLS for byte in begin)
