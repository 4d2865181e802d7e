"""The plain pass of `bench_house_first_step`: imports torch, then reads, splits, counts and encodes captions once."""

import sys
from collections import Counter
from itertools import chain

import numpy as np
import pyarrow.parquet as pq
import torch  # noqa: F401

from xmodal.text.tokenizers import tokenizer

table = pq.read_table(sys.argv[1], columns=["item", "position", "text"], use_threads=False)
texts = list(map(tokenizer("nltk"), table["text"].to_pylist()))
counts = Counter(chain.from_iterable(texts))
kept = sorted((word for word, count in counts.items() if count >= 4), key=lambda word: (-counts[word], word))
ids = {word: number for number, word in enumerate(kept, 4)}
encoded = [np.array([ids.get(word, 3) for word in words], np.int32) for words in texts]
