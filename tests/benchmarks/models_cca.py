"""CCA streamed over two stores beside numpy over the same pairs in memory, and the memory of COCO's size."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tests.benchmarks.measured import Bar, Measured, timed
from tests.features.test_features import write_store
from xmodal.batches.batch import Padded, Stream
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.batches.texts import Texts
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import FeatureStore
from xmodal.models import Inputs
from xmodal.models.cca import CCA, CCAConfig
from xmodal.training.closed_form import blocks_of, stream_of

BARS = {"cca_vs_numpy": Bar(minimum=0.8), "cca_coco_mb": Bar(maximum=2048)}
ITEMS, CAPTIONS = 4_000, 5
VISUAL, TEXT = 1_024, 1_536
COCO = 4_096, 6_000
BLOCK, ROUNDS = 1_024, 5
Numbers = NDArray[np.float64]


def measure() -> Iterator[dict[str, Measured]]:
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        yield {"cca_vs_numpy": _beside_numpy(Path(folder))}
    yield {"cca_coco_mb": _memory()}


def _beside_numpy(folder: Path) -> Measured:
    """In turns. Numpy's pairs are in memory in double precision, ours are read; the correlations are the same."""
    reader = _reader(folder)
    everything = stream_of(reader, slice(0, ITEMS))
    owners = everything.positives[:, 0]
    x, y = (side.double().numpy() for side in (everything.visual.values[owners, 0], everything.text.values[:, 0]))
    config, found = CCAConfig(), list[Any]()

    def ours() -> None:
        model = config.build(Inputs(VISUAL, TEXT, 0))
        model.solve(stream_of(reader, items) for items in blocks_of(reader.examples, BLOCK))
        found.append(model.correlations.numpy())

    spent = []
    for _ in range(ROUNDS):
        spent.append((timed(lambda: found.append(_numpy(x, y, config))), timed(ours)))
        np.testing.assert_allclose(*found[-2:], atol=1e-9)
    runs = tuple(round(theirs / mine, 3) for theirs, mine in spent)
    theirs, mine = np.median(spent, axis=0).tolist()
    what = f"numpy over {ITEMS * CAPTIONS:,} pairs of {VISUAL:,} and {TEXT:,} numbers in memory, one thread"
    told = f"{what}, {theirs:.2f} s; ours from the store, five captions an item, {mine:.2f} s"
    return Measured(float(np.median(runs)), "x", told, runs)


def _reader(folder: Path) -> Reader:
    random = np.random.default_rng(0)
    facts = random.standard_normal((ITEMS, 64))
    visual = facts @ random.standard_normal((64, VISUAL)) + random.standard_normal((ITEMS, VISUAL))
    texts = np.repeat(facts, CAPTIONS, 0) @ random.standard_normal((64, TEXT))
    texts += random.standard_normal(texts.shape)
    stores = []
    for name, values in (("facts", visual), ("sentences", texts)):
        spec = FeatureSpec(name, values.shape[1:], "float16")
        stores.append(FeatureStore(write_store(folder / name, spec, values.astype(np.float16), 64, {})))
    store, sentences = stores
    words = Texts(np.arange(len(texts), dtype=np.int32), np.arange(len(texts) + 1))
    owners = np.repeat(np.arange(ITEMS), CAPTIONS)
    return Reader(Examples(store.ids, np.arange(ITEMS), sentences.ids, owners, words, sentences=sentences), store)


def _numpy(x: Numbers, y: Numbers, config: CCAConfig) -> Numbers:
    def ridged(covariance: Numbers) -> Numbers:
        ridge = config.eta * np.linalg.eigvalsh(covariance)[-1] + config.ridge
        return np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))

    x, y = x - x.mean(0), y - y.mean(0)
    visual, text = ridged(x.T @ x / (len(x) - 1)), ridged(y.T @ y / (len(y) - 1))
    whitened = np.linalg.solve(text, np.linalg.solve(visual, x.T @ y / (len(x) - 1)).T).T
    left, correlations, right = np.linalg.svd(whitened, full_matrices=False)
    np.linalg.solve(visual.T, left)
    np.linalg.solve(text.T, right.T)
    return correlations


def _memory() -> Measured:
    """Of a process that does nothing else, beyond what it has before the first block."""
    program = "from tests.benchmarks.models_cca import solve_as_large_as_coco; print(solve_as_large_as_coco())"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    megabytes = float(found.stdout)
    held = sum(8 * a * b for a, b in ((COCO[0], COCO[0]), COCO, (COCO[1], COCO[1]))) / 2**20
    told = f"peak of solving sides of {COCO[0]:,} and {COCO[1]:,} numbers, of which {held:.0f} are their covariances"
    return Measured(megabytes, "MB", told, (megabytes,))


def solve_as_large_as_coco() -> float:
    """In MB. How many pairs there are changes nothing."""
    model, before = CCA(CCAConfig(), *COCO), _memory_mb("VmRSS")
    model.solve(_random_block(number) for number in range(3))
    return _memory_mb("VmHWM") - before


def _random_block(seed: int) -> Stream:
    random, items = torch.Generator().manual_seed(seed), BLOCK // CAPTIONS
    visual = Padded.whole(torch.randn(items, 1, COCO[0], generator=random))
    text = Padded.whole(torch.randn(items * CAPTIONS, 1, COCO[1], generator=random))
    rows, texts = torch.arange(items), torch.arange(items * CAPTIONS)
    owners = rows.repeat_interleave(CAPTIONS)
    return Stream(visual, text, rows, owners, texts, torch.stack([owners, texts], dim=1))


def _memory_mb(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024
