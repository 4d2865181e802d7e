"""Sentences as one vector each, by a codebook that is fitted once, on a sample of sentences, and then never changes.

    hglmm, gmm, lmm   Fisher vectors of the sentence's word vectors (xmodal/text/fisher.py), which independent component
                      analysis has turned first; the papers' 30 components of 300 dimensions give 18,000 numbers
    mean              the mean of the word vectors, as they are
    tfidf             how often each of the sample's most frequent words occurs, times its rarity there: the logarithm
                      of (1 + sentences) / (1 + those with it), plus 1; of length 1. It takes no word vectors, and drops
                      and shortens no words, which papers that report it do

Independent components are of the words as often as the sample has them, the mixture of each of its words once: no paper
says how often, and of words as often as they occur most components are of one word alone. Principal components make
`width` numbers of longer codes, of 18,000 6,000 (Two-Branch), found by a seeded search where there are many; shorter
codes stay as they are, and tfidf has so many words. Words without a vector, or that are no dimension, count for
nothing: a sentence that has none but those is zeros, equally near to everything, so that it is scored and cannot win.

All is computed by one thread, as the number of threads changes the last bits. With the papers' numbers a codebook takes
0.5 GB, and fitting it on 20,000 sentences some 6 GB and half an hour.

Shapes: S sentences, V words, E numbers of a word vector, F of a code, W of one that was shortened.
"""

import io
import json
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.root.identity import canonical_json
from xmodal.text.fisher import Kind, Mixture, Numbers, fisher_vectors, fit_mixture, normalised
from xmodal.text.tokenizers import Tokenizer, by_frequency, check_names, tokenized, tokenizer

Method = Literal["hglmm", "gmm", "lmm", "mean", "tfidf"]
Sentences = Sequence[Sequence[str]]

AT_ONCE = 256  # sentences: 40 MB of codes, whose batches decide their last bits


@dataclass(frozen=True)
class Coding:
    """What decides a codebook, beside the captions and word vectors that it is fitted on."""

    method: Method = "hglmm"
    components: int = 30
    width: int = 6000
    tokenizer: str = "nltk"
    cleaning: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"no method {self.method!r}; there are: {', '.join(get_args(Method))}")
        if self.components < 1 or self.width < 1 or self.seed < 0:
            raise ValueError("components and width are 1 or more, and the seed 0 or more")
        check_names(self.tokenizer, self.cleaning)


@dataclass(frozen=True, eq=False)
class Turn:
    """Moves a centre to zero and looks along axes: principal or independent components."""

    centre_F: NDArray[Any]
    axes_WF: NDArray[Any]

    def __call__(self, values_SF: NDArray[Any]) -> NDArray[Any]:
        turned_SW: NDArray[Any] = (values_SF.astype(self.axes_WF.dtype) - self.centre_F) @ self.axes_WF.T
        return turned_SW


@dataclass(frozen=True, eq=False)
class Codebook:
    """`vectors_VE` are the words' vectors, for Fisher vectors turned already; of tfidf each word's rarity."""

    coding: Coding
    words: tuple[str, ...]
    vectors_VE: NDArray[np.float32]
    mixture: Mixture | None = None
    principal: Turn | None = None

    @property
    def width(self) -> int:
        """How many numbers a sentence becomes."""
        return len(self.principal.axes_WF) if self.principal else self._unshortened

    def encode(self, captions: Iterable[str]) -> NDArray[np.float32]:
        """(S, width); a caption's last bits depend on which others are beside it."""
        sentences = list(map(self._split, captions))
        codes_SW = np.zeros((len(sentences), self.width), np.float32)
        with _one_thread():
            for start in range(0, len(sentences), AT_ONCE):
                some = slice(start, start + AT_ONCE)
                codes_SF, is_known_S = self._code(sentences[some])
                codes_SW[some][is_known_S] = (self.principal(codes_SF) if self.principal else codes_SF)[is_known_S]
        return codes_SW

    def to_bytes(self) -> bytes:
        """Arrays without pickles, as `numpy.load` opens them; the same codebook has the same bytes."""
        about = {"coding": asdict(self.coding), "words": self.words}
        arrays: dict[str, Any] = {
            "about": np.frombuffer(canonical_json(about), np.uint8),
            "vectors_VE": self.vectors_VE,
        }
        for part in (self.mixture, self.principal):
            arrays |= _arrays(part) if part else {}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Codebook":
        """`where` is named if the file is cut, edited or no codebook."""
        try:
            arrays = dict(np.load(io.BytesIO(data), allow_pickle=False))
            about = json.loads(arrays["about"].tobytes())
            coding, words = Coding(**about["coding"]), tuple(about["words"])
            return cls(coding, words, arrays["vectors_VE"], _of(Mixture, arrays), _of(Turn, arrays))
        except (zipfile.BadZipFile, EOFError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{where} is no codebook, or damaged ({error})") from error

    @property
    def _unshortened(self) -> int:
        if self.coding.method == "tfidf":
            return len(self.words)
        return 2 * self.mixture.centres_KD.size if self.mixture else self.vectors_VE.shape[1]

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.coding.tokenizer, self.coding.cleaning)

    def _code(self, sentences: Sentences) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(S, F) before principal components; and whether a sentence has any word that is known."""
        used_U, counts_SU = self._counted(sentences)
        lengths_S = counts_SU.sum(axis=1)
        vectors_UE = self.vectors_VE[used_U].astype(np.float64)
        if self.mixture:
            return normalised(fisher_vectors(self.mixture, vectors_UE, counts_SU)), lengths_S > 0
        if self.coding.method == "tfidf":
            codes_SF = np.zeros((len(sentences), len(self.words)))
            codes_SF[:, used_U] = counts_SU.toarray() * vectors_UE[:, 0]
            codes_SF /= np.maximum(np.linalg.norm(codes_SF, axis=1, keepdims=True), 1)
        else:
            codes_SF = counts_SU @ vectors_UE / np.maximum(lengths_S, 1)[:, None]
        return codes_SF.astype(np.float32), lengths_S > 0

    def _counted(self, sentences: Sentences) -> tuple[NDArray[np.int64], Any]:
        """(U,) the words that occur, and (S, U) how often each does in each sentence, as scipy.sparse has it."""
        from scipy.sparse import csr_array  # type: ignore[import-untyped]

        known = [[self._rows[word] for word in words if word in self._rows] for words in sentences]
        starts = np.cumsum([0, *map(len, known)])
        words = np.fromiter(chain.from_iterable(known), np.int64, int(starts[-1]))
        used_U, places = np.unique(words, return_inverse=True)
        counts_SU = csr_array((np.ones(len(words)), places, starts), shape=(len(known), len(used_U)))
        counts_SU.sum_duplicates()  # in order of the words: their order in a sentence changes no bit
        return used_U, counts_SU


P = TypeVar("P", Mixture, Turn)


def _arrays(part: Mixture | Turn) -> dict[str, NDArray[Any]]:
    return {each.name: getattr(part, each.name) for each in fields(part)}


def _of(kind: type[P], arrays: Mapping[str, NDArray[Any]]) -> P | None:
    """A part that a codebook may do without, from its arrays."""
    names = [each.name for each in fields(kind)]
    return kind(**{name: arrays[name] for name in names}) if names[0] in arrays else None


def fit(
    coding: Coding, sample: Iterable[str], words: Sequence[str] = (), vectors_VE: NDArray[np.float32] | None = None
) -> tuple[Codebook, dict[str, Any]]:
    """The codebook, and what is to be told of it.

    `words` are all that will ever be encoded, each with a vector or NaN; tfidf takes none.
    """
    sentences = list(tokenized(sample, coding.tokenizer, coding.cleaning))
    with _one_thread():
        if coding.method == "tfidf":
            return _rarities(coding, sentences), {}
        if vectors_VE is None:
            raise ValueError(f"{coding.method} needs word vectors")
        has_V = np.isfinite(vectors_VE).all(axis=1)
        there = tuple(words[row] for row in np.flatnonzero(has_V).tolist())
        codebook, told = Codebook(coding, there, vectors_VE[has_V]), dict[str, Any]()
        if coding.method != "mean":
            codebook, told = _with_mixture(codebook, coding.method, sentences)
        return _shortening(codebook, sentences), told


def _rarities(coding: Coding, sample: Sentences) -> Codebook:
    occurrences = Counter(chain.from_iterable(sample))
    sentences = Counter(chain.from_iterable(map(set, sample)))
    if not occurrences:
        raise UserError("the sample has no words")
    words = by_frequency(occurrences.items())[: coding.width]
    found = np.array([sentences[word] for word in words])
    rarities_V = np.log((1 + len(sample)) / (1 + found)) + 1
    return Codebook(coding, tuple(words), rarities_V[:, None].astype(np.float32))


def _with_mixture(codebook: Codebook, kind: Kind, sample: Sentences) -> tuple[Codebook, dict[str, Any]]:
    """Components are independent of the words as often as the sample has them, the mixture is of each word once."""
    used_U, counts_SU = codebook._counted(sample)
    if not len(used_U):
        raise UserError("the sample has no word that there is a vector of")
    coding, vectors_UE = codebook.coding, codebook.vectors_VE[used_U].astype(np.float64)
    directions = int(np.linalg.matrix_rank(vectors_UE - vectors_UE.mean(axis=0)))
    if not directions:
        raise UserError("all words of the sample have one and the same vector")
    known = int((counts_SU.sum(axis=1) > 0).sum())
    _check_enough(known, coding.width, 2 * coding.components * directions)  # the rest takes half an hour
    counts_U, seed = counts_SU.sum(axis=0), coding.seed
    independent, converged = _independent(vectors_UE, counts_U, directions, seed)
    turned_VD = independent(codebook.vectors_VE.astype(np.float64)).astype(np.float32)
    words_UD = turned_VD[used_U].astype(np.float64)
    mixture, likelihoods = fit_mixture(words_UD, coding.components, kind, seed)
    told = {
        "words": int(counts_U.sum()),
        "different words": len(used_U),
        "dimensions": words_UD.shape[1],
        "independent components converged": converged,
        "rounds": len(likelihoods),
        "log-likelihood of a word": round(likelihoods[-1], 4),
        "components of one word": int((mixture.weights_K * len(used_U) < 1.5).sum()),
        "Laplacian": round(float(mixture.laplacian_KD.mean()), 4),
    }
    return replace(codebook, vectors_VE=turned_VD, mixture=mixture), told


def _independent(vectors_UE: Numbers, counts_U: Numbers, directions: int, seed: int) -> tuple[Turn, bool]:
    """Of the `directions` in which the words differ; whether it converged, as on real words it may not."""
    from sklearn.decomposition import FastICA  # type: ignore[import-untyped]
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]

    analysis = FastICA(directions, whiten="unit-variance", whiten_solver="svd", random_state=seed)
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):  # by those that are left out
        warnings.simplefilter("ignore", ConvergenceWarning)
        analysis.fit(np.repeat(vectors_UE, counts_U.astype(np.int64), axis=0))
    return Turn(analysis.mean_, analysis.components_), analysis.n_iter_ < analysis.max_iter


def _shortening(codebook: Codebook, sample: Sentences) -> Codebook:
    coding, length = codebook.coding, codebook.width
    if length <= coding.width:
        return codebook
    from sklearn.decomposition import PCA

    codes_SF = np.empty((len(sample), length), np.float32)
    is_known_S = np.empty(len(sample), bool)
    for start in range(0, len(sample), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        codes_SF[some], is_known_S[some] = codebook._code(sample[some])
    codes_SF = codes_SF if is_known_S.all() else codes_SF[is_known_S]
    _check_enough(len(codes_SF), coding.width, length)
    analysis = PCA(coding.width, random_state=coding.seed, copy=False).fit(codes_SF)
    return replace(codebook, principal=Turn(analysis.mean_, analysis.components_))


def _check_enough(sentences: int, width: int, length: int) -> None:
    if sentences <= width < length:
        raise UserError(
            f"{sentences:,} sentences of the sample cannot tell which {width:,} of {length:,} dimensions to keep: it "
            "takes more sentences than that, or a smaller width"
        )


def _one_thread() -> AbstractContextManager[Any]:
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn
    except ImportError:
        raise UserError("codes of sentences need scikit-learn: pip install -e '.[text]' in the checkout") from None
    limited: AbstractContextManager[Any] = threadpool_limits(1)
    return limited
