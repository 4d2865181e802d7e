"""Vectors of 12,000 words from files of 1 GB: against gensim, and against a loop that parses every line."""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.measured import Measured
from xmodal.text.vector_files import VectorFile
from xmodal.text.vector_index import write_index
from xmodal.text.word_vectors import read_vectors

BYTES, WIDTH, WORDS, DRAWN, OURS = 10**9, 300, 12_000, 2_000, 5
Read = Callable[[Path, list[str]], NDArray[np.float32]]
Seconds = list[float]


def measure() -> dict[str, Measured]:
    """From the page cache, where all have been read before. Others are read once where that takes long, as it says."""
    with tempfile.TemporaryDirectory() as folder:
        text, binary, index = (Path(folder, name) for name in ("glove.txt", "word2vec.bin", "glove.index"))
        of_text, of_binary = _write(text, _lines()), _write(binary, _entries())
        gensims, binaries = _compared(text, of_text, _gensim_text, 1), _compared(binary, of_binary, _gensim_binary, 3)
        extra = [_extra_mb(text, of_text), _extra_mb(binary, of_binary)]
        write_index(VectorFile.open(text), index)
        assert (read_vectors(index, of_text) == read_vectors(text, of_text)).all()
        indexed = [round(1e3 * _seconds(read_vectors, index, of_text)[0], 3) for _ in range(9)]
        return {
            "glove_text_vs_gensim": _ratio(gensims, "gensim's load_word2vec_format(no_header=True), then the rows"),
            "word2vec_binary_vs_gensim": _ratio(binaries, "gensim's load_word2vec_format(binary=True), then the rows"),
            "glove_text_vs_line_loop": _ratio(_compared(text, of_text, _line_loop, 1), "a loop that parses every line"),
            "vectors_extra_mb": Measured(max(extra), "MB", "of memory, at most, beside the matrix", tuple(extra)),
            "vectors_index_ms": Measured(
                statistics.median(indexed), "ms", "the same 12,000 words from an index", tuple(indexed)
            ),
        }


def _ratio(compared: tuple[Seconds, Seconds], against: str) -> Measured:
    ours, theirs = compared
    runs = tuple(round(statistics.median(theirs) / each, 2) for each in ours)
    told = f"{against}: {statistics.median(theirs):.1f} s (of {len(theirs)}) to {statistics.median(ours):.2f} s"
    return Measured(statistics.median(runs), "times", told, runs)


def _compared(path: Path, words: list[str], theirs: Read, times: int) -> tuple[Seconds, Seconds]:
    """Ours in between theirs; the rows must be the same."""
    ours, others = Seconds(), Seconds()
    expected = read_vectors(path, words)
    for number in range(OURS):
        ours.append(_seconds(read_vectors, path, words)[0])
        if number < times:
            seconds, found = _seconds(theirs, path, words)
            assert (found == expected).all()
            others.append(seconds)
    return ours, others


def _seconds(read: Read, path: Path, words: list[str]) -> tuple[float, NDArray[np.float32]]:
    started = time.perf_counter()
    found = read(path, words)
    return time.perf_counter() - started, found


def _gensim_text(path: Path, words: list[str]) -> NDArray[np.float32]:
    from gensim.models import KeyedVectors

    return np.asarray(KeyedVectors.load_word2vec_format(str(path), no_header=True)[words])


def _gensim_binary(path: Path, words: list[str]) -> NDArray[np.float32]:
    from gensim.models import KeyedVectors

    return np.asarray(KeyedVectors.load_word2vec_format(str(path), binary=True)[words])


def _line_loop(path: Path, words: list[str]) -> NDArray[np.float32]:
    found, wanted = {}, set(words)
    with path.open(encoding="utf-8") as file:
        for line in file:
            word, *numbers = line.rstrip().split(" ")
            vector = np.array([*map(float, numbers)], np.float32)
            if word in wanted:
                found[word] = vector
    return np.stack([found[word] for word in words])


def _extra_mb(path: Path, words: list[str]) -> float:
    """In a process of its own, whose peak is told by the kernel."""
    code = f"from tests.benchmarks.text_vectors import tell_peak; tell_peak({str(path)!r})"
    told = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(words), capture_output=True, text=True, check=True
    )
    return float(told.stdout)


def tell_peak(path: str) -> None:
    words, before = sys.stdin.read().split("\n"), _peak_bytes()
    matrix = read_vectors(Path(path), words)
    print(round((_peak_bytes() - before - matrix.nbytes) / 1e6, 1))


def _peak_bytes() -> int:
    """Not getrusage: that begins with the peak of whoever started the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _write(path: Path, parts: Iterator[tuple[str, bytes]]) -> list[str]:
    """Some of the words that were written, in any order."""
    words = []
    with path.open("wb") as file:
        for word, data in parts:
            words.append(word)
            file.write(data)
    return [str(word) for word in np.random.default_rng(1).choice(words, WORDS, replace=False)]


def _rows() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(0, 0.4, (DRAWN, WIDTH)).astype(np.float32)


def _lines() -> Iterator[tuple[str, bytes]]:
    """With five digits a number, as GloVe's."""
    tails = [" ".join(f"{value:.5g}" for value in row).encode() for row in _rows()]
    written = 0
    for number, tail in enumerate(itertools.cycle(tails)):
        line = b"word%d %s\n" % (number, tail)
        if (written := written + len(line)) > BYTES:
            return
        yield f"word{number}", line


def _entries() -> Iterator[tuple[str, bytes]]:
    rows, count = [row.tobytes() for row in _rows()], BYTES // (4 * WIDTH + len("word123456 \n"))
    head = b"%d %d\n" % (count, WIDTH)
    for number, row in enumerate(itertools.islice(itertools.cycle(rows), count)):
        yield f"word{number}", b"%sword%d %s\n" % (head if number == 0 else b"", number, row)
