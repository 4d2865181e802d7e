"""The words of a run, and the file of vectors that they start from."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.batches.examples import Examples
from xmodal.errors import UserError
from xmodal.progress import MB, Progress, in_megabytes
from xmodal.recipes import Recipe, Tokens
from xmodal.text.vocabularies import SPECIALS, UNKNOWN, Vocabulary
from xmodal.text.word_vectors import Coverage, read_vectors, vectors_sha256
from xmodal.training import run_folder

NO_WORDS = Vocabulary("whitespace", SPECIALS)  # of captions that are vectors
FEW = 0.5  # a smaller share of known words is worth a warning


def known_words(recipe: Recipe, train: Examples, vocabulary: Vocabulary, progress: Progress) -> tuple[int, float]:
    """Says and returns the number of words, and the known share of the training captions' words."""
    counts = np.bincount(train.words.numbers, minlength=len(vocabulary))
    known, unknown = int(counts[len(SPECIALS) :].sum()), int(counts[UNKNOWN])
    share = known / (known + unknown) if known + unknown else 1.0
    assert isinstance(recipe.text, Tokens)
    cure = f"text.minimum_count={recipe.text.minimum_count} decides which words are kept"
    if not share:
        raise UserError(f"no word of the captions is in the vocabulary: {cure}")
    words = len(vocabulary) - len(SPECIALS)
    progress.say(f"vocabulary: {words:,} words; {1 - share:.1%} of the captions' words are not in it")
    if share < FEW:
        progress.say(f"warning: less than half of the captions' words are known: {cure}")
    return words, share


def word_vectors(
    file: Path | None, train: Examples, vocabulary: Vocabulary, progress: Progress
) -> NDArray[np.float32] | None:
    if file is None:
        return None
    specials = len(SPECIALS)
    with progress.over("word vectors", file.stat().st_size // MB, unit="MB") as tick:
        vectors = read_vectors(file, vocabulary.words, tick=in_megabytes(tick))
    words = vocabulary.words[specials:]
    counts = np.bincount(train.words.numbers, minlength=len(vocabulary))[specials:].tolist()
    progress.say(f"{file}: {Coverage.of(words, vectors[specials:], dict(zip(words, counts, strict=True)))}")
    return vectors


def sha256_of_vectors(recipe: Recipe, run: str, file: Path | None) -> str:
    """The sha256 of the file, which a run that goes on knows already."""
    named = recipe.text.vectors if isinstance(recipe.text, Tokens) else None
    if file is not None:
        if named is None:
            raise UserError(f"recipe {recipe.name!r} starts its words from no vectors, so {file} is of no use")
        return vectors_sha256(file)
    if named is None:
        return ""
    if run_folder.read_vocabulary(run) is None:
        raise UserError(
            f"recipe {recipe.name!r} starts its words from {named}: give the file (--vectors FILE), or --set "
            "text.vectors=none"
        )
    known = run_folder.read(run).vectors
    if known and not run_folder.has_state(run):
        raise UserError(f"{run} was stopped before anything was saved: give its word vectors again (--vectors FILE)")
    return known
