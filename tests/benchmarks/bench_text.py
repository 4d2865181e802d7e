"""Text: word vectors beside gensim's readers, tokenizers beside a plain map, Fisher vectors beside a plain loop."""

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import text_fisher, text_tokens, text_vectors
from tests.benchmarks.measured import Bar, Measured

BARS = {
    "glove_text_vs_gensim": Bar(minimum=60),
    "word2vec_binary_vs_gensim": Bar(minimum=6),
    "glove_text_vs_line_loop": Bar(minimum=8),
    "vectors_extra_mb": Bar(maximum=300),
    "vectors_index_ms": Bar(),
    "tokenize_vs_map": Bar(minimum=0.9),
    "tokenize_two_workers_vs_one": Bar(minimum=1.8),
    "count_vs_nltk": Bar(),
    "fisher_vs_numpy_loop": Bar(minimum=5),
}


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    for part in (text_fisher, text_tokens, text_vectors):
        yield part.measure()
