"""A root for the toy corpus of pictures."""

from pathlib import Path

import pytest

from pipelines.engine.build_options import BuildOptions
from tests.made import small
from tests.stages.test_pinned import publish
from xmodal.root.storage import open_storage


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    publish(tmp_path / "raw")
    return BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw", **small(tmp_path))
