"""Reference values of the papers' official code, which lie beside the repository and not in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[2] / "shared/golden"


def golden(name: str) -> dict[str, NDArray[Any]]:
    """The arrays of one file; the test is skipped where the folder or the file is not."""
    path = FOLDER / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no reference values {path.name}")
    with np.load(path) as file:
        return dict(file)
