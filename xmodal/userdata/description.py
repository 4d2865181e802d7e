"""Descriptions of user lists: files, columns, splits.

One is sealed with its lists, as the file DESCRIPTION, so that the identity of every output changes with it.
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from fractions import Fraction

from xmodal.errors import UserError
from xmodal.records.tables import Kind
from xmodal.root.identity import canonical_json, decides, since

DESCRIPTION = "xmodal-own.json"
FORMAT = 1  # of the file
USUAL = {"train": "train", "test": "test", "validation": "val", "valid": "val", "dev": "val"}
SPLITS = (("train", "0.9"), ("val", "0.05"), ("test", "0.05"))


@dataclass(frozen=True)
class ListFile:
    path: str
    bytes: int
    sha256: str | None  # None: its host does not publish a checksum
    split: str | None = None  # of all its rows, unless a column says another


@dataclass(frozen=True)
class Description:
    name: str
    files: tuple[ListFile, ...]
    url: str = "url"
    caption: str = "caption"
    id: str | None = None
    split: str | None = None
    splits: tuple[tuple[str, str], ...] = SPLITS  # name and decimal share; () if a column or the files say the split
    revision: str | None = None  # identifies the bytes of lists without a sha256
    kind: Kind | None = None  # of all items; None: by the endings of their names
    has_header: bool = since("0.2", True)  # else columns of CSV and TSV are named 1, 2, …
    labels: str | None = since("0.2", None)
    keeps_repeats: bool = since("0.2", False)  # the same caption of the same item twice
    folder: str | None = since("0.2", None)  # below which absolute paths are; None: there are none

    def __post_init__(self) -> None:
        shares = [Fraction(share) for _, share in self.splits]
        names = {split_name(name) for name, _ in self.splits}
        if any(share <= 0 for share in shares) or (shares and sum(shares) != 1) or len(names) < len(shares):
            shares_given = ",".join(f"{name}={share}" for name, share in self.splits)
            raise ValueError(f"splits have names of their own and shares above 0 whose sum is 1, not {shares_given}")

    def to_json(self) -> bytes:
        told = asdict(self)
        return canonical_json({"version": FORMAT} | {f.name: told[f.name] for f in fields(self) if decides(f, self)})

    @classmethod
    def from_json(cls, data: bytes) -> "Description":
        fields = json.loads(data)
        if fields.pop("version") != FORMAT:
            raise UserError(f"{DESCRIPTION} was written by another version of xmodal: name the list again")
        files = tuple(ListFile(**file) for file in fields.pop("files"))
        return cls(**fields | {"files": files, "splits": tuple(map(tuple, fields["splits"]))})


def split_name(text: str) -> str:
    """Turns `train` or `TRAIN` into `own/train`, `validation` into `own/val`; keeps `karpathy/train`."""
    name = text if "/" in text else f"own/{USUAL.get(text.lower(), text)}"
    if not re.fullmatch(r"[\w.-]{1,100}/[\w.-]{1,100}", name):
        raise ValueError(f"a split is named by letters, digits and ._-, not {text!r:.60}")
    return name
