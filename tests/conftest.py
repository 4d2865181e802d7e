"""Fixtures that several test files share."""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

from xmodal import __version__
from xmodal.corpora import Corpus
from xmodal.root.storage import Storage, open_storage

hypothesis.settings.register_profile("untimed", deadline=None)  # no test asserts a time
hypothesis.settings.load_profile("untimed")


@pytest.fixture
def folder(published: Path | tuple[Corpus, Path], tmp_path: Path) -> Path:
    """A copy of what a test file's publisher wrote, that a test may spoil."""
    return Path(shutil.copytree(published if isinstance(published, Path) else published[1], tmp_path / "raw"))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("moto")
    with s3_server() as url:
        yield url


@pytest.fixture
def s3_root(s3_endpoint: str) -> str:
    return new_bucket(s3_endpoint)


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3 server on loopback (moto), with credentials in the environment as boto finds them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    settings |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        _wait_for(url)
        yield url
    finally:
        server.kill()
        server.wait()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def new_bucket(endpoint: str) -> str:
    """The URL of a root in a bucket of its own."""
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
    return f"s3://{bucket}/root"


@pytest.fixture(params=["local", "s3"])
def any_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every root the engine promises to work on."""
    return str(tmp_path / "root") if request.param == "local" else str(request.getfixturevalue("s3_root"))


@pytest.fixture(scope="session")
def ray_cluster(s3_endpoint: str) -> Iterator[None]:
    """One small Ray cluster for all tests that need none of their own; its workers know the S3 server."""
    ray_runner = pytest.importorskip("pipelines.engine.ray_runner")
    ray_runner.connect()
    yield
    ray_runner.disconnect()


def tree_digest(root: str) -> str:
    """One sha256 of what the promise covers: every path and byte outside `_runs/`, but not which xmodal wrote them."""
    digest = hashlib.sha256()
    for key, data in sorted(promised_files(open_storage(root))):
        data = data.replace(f',"xmodal":"{__version__}"'.encode(), b"") if key.endswith("stage.json") else data
        digest.update(f"{key}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def promised_files(storage: Storage, folder: str = "") -> Iterator[tuple[str, bytes]]:
    for name in storage.names(folder):
        key = f"{folder}/{name}" if folder else name
        if name == "_runs":
            continue
        if storage.size(key) is None:
            yield from promised_files(storage, key)
        else:
            yield key, storage.read(key)


def _wait_for(url: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"no answer from {url}")
