"""Word vectors of a corpus' own captions, where no published file is at hand: word2vec as gensim trains it.

Skip-gram with five negatives, a window of five, five epochs, 300 numbers a word, and every word that occurs: a
vocabulary drops the rare ones itself. The same captions give the same bytes, because one thread trains; of the same
version of gensim, and on the same kind of processor, as for every float.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.vector_index import arriving

WIDTH, EPOCHS = 300, 5


def train_word2vec(
    captions: Iterable[list[str]],
    *,
    width: int = WIDTH,
    seed: int = 0,
    tick: Callable[[int], object] = lambda epochs: None,
) -> tuple[list[str], NDArray[np.float32]]:
    """Words of tokenized captions, the frequent ones first, and their vectors; `tick` is told of every epoch."""
    try:
        from gensim.models import Word2Vec  # type: ignore[import-untyped]
        from gensim.models.callbacks import CallbackAny2Vec  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("training word vectors needs gensim: pip install -e '.[text]' in the checkout") from None

    class Ticking(CallbackAny2Vec):  # type: ignore[misc]
        def on_epoch_end(self, model: Any) -> None:
            tick(1)

    sentences = [[sys.intern(word) for word in caption] for caption in captions]
    if not any(sentences):
        raise UserError("there are no words to train vectors of")
    fixed: dict[str, Any] = {"workers": 1, "callbacks": [Ticking()]}
    words = {"vector_size": width, "min_count": 1, "window": 5}
    trained = Word2Vec(sentences, sg=1, negative=5, epochs=EPOCHS, seed=seed, **words, **fixed).wv
    return list(trained.index_to_key), np.asarray(trained.vectors, np.float32)


def write_word2vec(path: Path, words: list[str], vectors: NDArray[np.float32]) -> None:
    """As word2vec's binary, with a line feed after every word's numbers."""
    with arriving(path) as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors.astype("<f4"), strict=True):
            file.write(word.encode() + b" " + vector.tobytes() + b"\n")
