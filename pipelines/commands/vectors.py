"""What `xmodal vectors` does: tells of a file of word vectors, converts it, and trains one on a corpus."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.engine.progress_line import ProgressLine
from xmodal.errors import UserError
from xmodal.recipes import View
from xmodal.records.views import captions
from xmodal.root.selection import choose
from xmodal.text.tokenizers import tokenizer
from xmodal.text.vector_files import VectorFile
from xmodal.text.vector_index import check_free, write_index
from xmodal.text.vocabularies import SPECIALS, load_vocabulary
from xmodal.text.word2vec import EPOCHS, train_word2vec, write_word2vec
from xmodal.text.word_vectors import MB, Coverage, in_megabytes, open_vectors, read_vectors


def tell(file: Path, vocabulary: Path | None, index: Path | None, progress: ProgressLine) -> dict[str, Any]:
    """What is in the file, after it was converted to `index`, and which words of a vocabulary it has."""
    words = [word for word in load_vocabulary(vocabulary).words if word not in SPECIALS] if vocabulary else None
    source = open_vectors(file)
    about = {"file": str(file), "format": source.kind, "width": source.width, "words": source.count}
    if index:
        if not isinstance(source, VectorFile):
            raise UserError(f"{file} is an index already")
        with progress.over("convert", file.stat().st_size // MB, unit="MB") as tick:
            made = write_index(source, index, in_megabytes(tick))
        about |= {"index": str(index), "words": made.count}
    if words:
        with progress.over("read", file.stat().st_size // MB, unit="MB") as tick:
            vectors = read_vectors(index or file, words, tick=in_megabytes(tick))
        about |= {"coverage": asdict(Coverage.of(words, vectors))}
    return about


def train(
    corpus: str, root: str, split: str, tokens: str, cleaning: str, out: Path, progress: ProgressLine
) -> dict[str, Any]:
    check_free(out)
    try:
        split_words = tokenizer(tokens, cleaning)
    except ValueError as error:
        raise UserError(f"--tokenizer {tokens} --cleaning {cleaning}: {error}") from error
    records = choose(root, "records", corpus=corpus)
    texts = [split_words(text) for text in captions(records, View(corpus, split))]
    progress.say(f"{corpus}: {len(texts):,} captions of {split}")
    with progress.over("train", EPOCHS, unit="epochs") as tick:
        words, vectors = train_word2vec(texts, tick=tick)
    write_word2vec(out, words, vectors)
    return {"file": str(out), "captions": len(texts), "words": len(words), "width": vectors.shape[1]}
