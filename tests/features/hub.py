"""A cache of huggingface.co as huggingface_hub keeps it, with repositories that a test writes."""

from pathlib import Path

import huggingface_hub
import pytest

from xmodal.features.image_models import find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def empty_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is asked for that is not here."""
    find_model.cache_clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


def repository(cache: Path, name: str, commit: str = COMMIT) -> Path:
    """A new folder for the files of a commit, which is the newest."""
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "refs/main").write_text(commit)
    folder = home / "snapshots" / commit
    folder.mkdir(parents=True)
    return folder
