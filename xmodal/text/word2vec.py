"""Trains word vectors on a corpus' own captions by gensim: skip-gram, of every word, as a vocabulary drops rare ones.

One thread trains: the same captions, gensim and kind of processor give the same bytes.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError, extra_needed
from xmodal.root.files import new_file

EPOCHS = 5


def train_word2vec(
    captions: Iterable[list[str]], *, width: int = 300, tick: Callable[[int], object] = lambda epochs: None
) -> tuple[list[str], NDArray[np.float32]]:
    """Returns the words of tokenized captions by frequency, and their vectors; `tick` counts epochs."""
    with extra_needed("text", "training word vectors needs gensim"):
        from gensim.models import Word2Vec
        from gensim.models.callbacks import CallbackAny2Vec

    class Ticking(CallbackAny2Vec):  # type: ignore[misc]
        def on_epoch_end(self, model: Any) -> None:
            tick(1)

    sentences = [[sys.intern(word) for word in caption] for caption in captions]
    if not any(sentences):
        raise UserError("there are no words to train vectors of")
    settings = {"vector_size": width, "min_count": 1, "window": 5, "sg": 1, "negative": 5, "seed": 0}
    trained = Word2Vec(sentences, epochs=EPOCHS, workers=1, callbacks=[Ticking()], **settings).wv
    return list(trained.index_to_key), np.asarray(trained.vectors, np.float32)


def write_word2vec(path: Path, words: list[str], vectors: NDArray[np.float32]) -> None:
    """Writes word2vec's binary format, with line feeds."""
    with new_file(path) as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors.astype("<f4"), strict=True):
            file.write(word.encode() + b" " + vector.tobytes() + b"\n")
