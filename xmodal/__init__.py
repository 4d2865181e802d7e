"""xmodal: cross-modal corpora, features and models. See README.md; nothing happens on import."""

from typing import TYPE_CHECKING

from xmodal.errors import UserError
from xmodal.root.outputs import Output, find

if TYPE_CHECKING:
    from pathlib import Path

    from xmodal.batches.dataset import Dataset

__all__ = ["Output", "UserError", "find", "open"]
__version__ = "0.1.0"


def open(root: "str | Path", corpus: str, records: str | None = None) -> "Dataset":
    """A built corpus: `xmodal.open("data", "coco").loader(batch_size=128)` gives batches to train on.

    Where a root has several records of a corpus, `records` is the identity of those to open.
    """
    from xmodal.batches.dataset import open_dataset  # tokenizers and Parquet are not for every import

    return open_dataset(str(root), corpus, records)
