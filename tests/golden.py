"""Reference values, computed by the papers' official code or equations: tests/reference/README.md says how."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "reference"


def golden(name: str) -> dict[str, NDArray[Any]]:
    """Reads the arrays of one file; a file that is missing fails the test."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)
