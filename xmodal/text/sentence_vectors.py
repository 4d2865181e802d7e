"""Sentence vectors: one vector a sentence, by a codebook that is fitted once on a sample of sentences.

    hglmm, gmm, lmm   Fisher vectors (xmodal/text/fisher.py) of word vectors after independent component analysis
    mean              the mean of the word vectors
    tfidf             counts of the sample's `width` most frequent words, times their rarity, which is
                      log((1 + sentences) / (1 + sentences with the word)) + 1; at length 1

Principal components shorten longer codes to `width` numbers. Words without a vector are ignored; a sentence of such
words alone is zeros (docs/models.md#fisher-vectors).

With the papers' numbers a codebook takes 0.5 GB, and fitting it on 20,000 sentences some 5 GB and five minutes.

Shapes: S sentences, V words, U words in use, E numbers of a word vector, F numbers of a code, W of a shortened one.
"""

import hashlib
import io
import json
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.number_rules import one_or_more, zero_or_more
from xmodal.root.identity import canonical_json
from xmodal.text.fisher import Kind, Mixture, Numbers, Say, fisher_vectors, fit_mixture, normalised
from xmodal.text.principal_axes import principal_axes
from xmodal.text.threads import in_threads, one_thread_each
from xmodal.text.tokenizers import Tokenizer, by_frequency, check_names, tokenized, tokenizer

Method = Literal["hglmm", "gmm", "lmm", "mean", "tfidf"]
Sentences = Sequence[Sequence[str]]

ALIKE = 16  # rows of a product that OpenBLAS rounds alike, on x86 of any age: of more, some otherwise
AT_ONCE = 256  # sentences of a batch: 40 MB of codes


@dataclass(frozen=True)
class Coding:
    method: Method = "hglmm"
    components: int = 30
    width: int = 6000
    tokenizer: str = "nltk"
    cleaning: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"no method {self.method!r}; there are: {', '.join(get_args(Method))}")
        one_or_more(components=self.components, width=self.width)
        zero_or_more(seed=self.seed)
        check_names(self.tokenizer, self.cleaning)


@dataclass(frozen=True, eq=False)
class Projection:
    centre_F: NDArray[Any]
    axes_WF: NDArray[Any]

    def __call__(self, values_SF: NDArray[Any]) -> NDArray[Any]:
        """(S, W), a row the same bits whatever rows are beside it."""
        values_SF = values_SF.astype(self.axes_WF.dtype) - self.centre_F
        found_SW = np.empty((len(values_SF), len(self.axes_WF)), values_SF.dtype)
        for start in range(0, len(values_SF), ALIKE):
            some = values_SF[start : start + ALIKE]
            padded = np.pad(some, [(0, ALIKE - len(some)), (0, 0)])
            found_SW[start : start + ALIKE] = (self.axes_WF @ padded.T).T[: len(some)]
        return found_SW


@dataclass(frozen=True, eq=False)
class Codebook:
    coding: Coding
    words: tuple[str, ...]
    vectors_VE: NDArray[np.float32]  # of the words, rotated for Fisher vectors; for tfidf the rarities
    mixture: Mixture | None = None
    principal: Projection | None = None

    def __repr__(self) -> str:
        return f"<Codebook {self.coding.method}: {len(self.words):,} words, {self.width:,} numbers a sentence>"

    @property
    def width(self) -> int:
        if self.principal:
            return len(self.principal.axes_WF)
        if self.coding.method == "tfidf":
            return len(self.words)
        return 2 * self.mixture.centres_KD.size if self.mixture else self.vectors_VE.shape[1]

    def encode(self, captions: Iterable[str]) -> NDArray[np.float32]:
        """(S, width), the same bits whatever captions are beside one."""
        sentences = list(map(self._split, captions))
        codes_SW = np.zeros((len(sentences), self.width), np.float32)
        with one_thread_each():
            for start in range(0, len(sentences), AT_ONCE):
                codes, is_known = self._code(sentences[start : start + AT_ONCE])
                codes = self.principal(codes) if self.principal else codes
                codes_SW[start : start + AT_ONCE][is_known] = codes[is_known]
        return codes_SW

    def source(self, caption: str) -> str:
        """The sha256 of all that decides a caption's code."""
        words = sorted(word for word in self._split(caption) if word in self._rows)
        vectors = self.vectors_VE[[self._rows[word] for word in words]].tobytes()
        return hashlib.sha256(self._fitted + " ".join(words).encode() + vectors).hexdigest()

    @cached_property
    def _fitted(self) -> bytes:
        digest = hashlib.sha256(canonical_json(asdict(self.coding)))
        arrays = [getattr(part, each.name) for part in (self.mixture, self.principal) if part for each in fields(part)]
        for array in [*arrays, self.vectors_VE] if self.coding.method == "tfidf" else arrays:
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()

    def to_bytes(self) -> bytes:
        about = canonical_json({"coding": asdict(self.coding), "words": self.words})
        arrays: dict[str, Any] = {"about": np.frombuffer(about, np.uint8), "vectors_VE": self.vectors_VE}
        for part in (self.mixture, self.principal):
            arrays |= {field.name: getattr(part, field.name) for field in fields(part)} if part else {}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Codebook":
        try:
            arrays = dict(np.load(io.BytesIO(data), allow_pickle=False))
            about = json.loads(arrays["about"].tobytes())
            coding, words = Coding(**about["coding"]), tuple(about["words"])
            return cls(coding, words, arrays["vectors_VE"], _part(Mixture, arrays), _part(Projection, arrays))
        except (zipfile.BadZipFile, EOFError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{where} is no codebook, or damaged ({error})") from error

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def _shares_VK(self) -> Numbers:
        """Each component's share of every word, all at once and padded: the words beside one change the last bits."""
        assert self.mixture
        padded = np.pad(self.vectors_VE.astype(np.float64), [(0, -len(self.words) % ALIKE), (0, 0)])
        return self.mixture.posteriors(padded)[0][: len(self.words)]

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.coding.tokenizer, self.coding.cleaning)

    def _code(self, sentences: Sentences) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Returns unshortened codes, and which sentences have a known word."""
        used_U, counts_SU = self._counted(sentences)
        lengths_S = counts_SU.sum(axis=1)
        vectors_UE = self.vectors_VE[used_U].astype(np.float64)
        if self.mixture:
            moves_SF = fisher_vectors(self.mixture, vectors_UE, counts_SU, self._shares_VK[used_U])
            return normalised(moves_SF), lengths_S > 0
        if self.coding.method == "tfidf":
            codes_SF = np.zeros((len(sentences), len(self.words)))
            codes_SF[:, used_U] = counts_SU.toarray() * vectors_UE[:, 0]
            codes_SF /= np.maximum(np.linalg.norm(codes_SF, axis=1, keepdims=True), 1)
        else:
            codes_SF = counts_SU @ vectors_UE / np.maximum(lengths_S, 1)[:, None]
        return codes_SF.astype(np.float32), lengths_S > 0

    def _counted(self, sentences: Sentences) -> tuple[NDArray[np.int64], Any]:
        """Returns (U,) the words that occur, and (S, U) their counts, sparse."""
        from scipy.sparse import csr_array

        known = [[self._rows[word] for word in words if word in self._rows] for words in sentences]
        starts = np.cumsum([0, *map(len, known)])
        words = np.fromiter(chain.from_iterable(known), np.int64, int(starts[-1]))
        used_U, places = np.unique(words, return_inverse=True)
        counts_SU = csr_array((np.ones(len(words)), places, starts), shape=(len(known), len(used_U)))
        counts_SU.sum_duplicates()  # their order in a sentence changes no bit
        return used_U, counts_SU


def _part(kind: type[Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    """None if the codebook has none."""
    names = [field.name for field in fields(kind)]
    return kind(**{name: arrays[name] for name in names}) if names[0] in arrays else None


def fit(
    coding: Coding,
    sample: Iterable[str],
    words: Sequence[str] = (),
    vectors_VE: NDArray[np.float32] | None = None,
    say: Say = lambda text: None,
) -> tuple[Codebook, dict[str, Any]]:
    """Fits a codebook; returns the facts to report, too.

    `words` are all that will ever be encoded, each with a vector or NaN; tfidf takes none. `say` hears how far it is.
    """
    sentences = list(tokenized(sample, coding.tokenizer, coding.cleaning))
    with one_thread_each():
        if coding.method == "tfidf":
            return _rarities(coding, sentences), {}
        assert vectors_VE is not None, f"{coding.method} needs word vectors"
        has_V = np.isfinite(vectors_VE).all(axis=1)
        known = tuple(words[row] for row in np.flatnonzero(has_V).tolist())
        codebook, facts = Codebook(coding, known, vectors_VE[has_V]), dict[str, Any]()
        if coding.method != "mean":
            codebook, facts = _with_mixture(codebook, coding.method, sentences, say)
        order = sorted(range(len(known)), key=known.__getitem__)  # a sum's last bits depend on the order of words
        codebook = replace(codebook, words=tuple(sorted(known)), vectors_VE=codebook.vectors_VE[order])
        return _shortened(codebook, sentences, say), facts


def _rarities(coding: Coding, sample: Sentences) -> Codebook:
    occurrences = Counter(chain.from_iterable(sample))
    if not occurrences:
        raise UserError("the sample has no words")
    words = by_frequency(occurrences.items())[: coding.width]
    sentences = Counter(chain.from_iterable(map(set, sample)))
    rarities_V = np.log((1 + len(sample)) / (1 + np.array([sentences[word] for word in words]))) + 1
    return Codebook(coding, tuple(words), rarities_V[:, None].astype(np.float32))


def _with_mixture(codebook: Codebook, kind: Kind, sample: Sentences, say: Say) -> tuple[Codebook, dict[str, Any]]:
    used_U, counts_SU = codebook._counted(sample)
    if not len(used_U):
        raise UserError("the sample has no word that there is a vector of")
    coding, vectors_UE = codebook.coding, codebook.vectors_VE[used_U].astype(np.float64)
    directions = int(np.linalg.matrix_rank(vectors_UE - vectors_UE.mean(axis=0)))
    if not directions:
        raise UserError("all words of the sample have one and the same vector")
    known = int((counts_SU.sum(axis=1) > 0).sum())
    _check_enough(known, coding.width, 2 * coding.components * directions)  # before half an hour of work
    counts_U = counts_SU.sum(axis=0).astype(np.int64)
    independent, converged = _independent(vectors_UE, counts_U / counts_U.sum(), directions, coding.seed, say)
    rotated_VD = independent(codebook.vectors_VE.astype(np.float64)).astype(np.float32)
    words_UD = rotated_VD[used_U].astype(np.float64)
    mixture, likelihoods = fit_mixture(words_UD, coding.components, kind, coding.seed, say)
    facts = {
        "words": int(counts_U.sum()),
        "different words": len(used_U),
        "dimensions": words_UD.shape[1],
        "independent components converged": converged,
        "rounds": len(likelihoods),
        "log-likelihood of a word": round(likelihoods[-1], 4),
        "components of one word": int((mixture.weights_K * len(used_U) < 1.5).sum()),
        "Laplacian": round(float(mixture.laplacian_KD.mean()), 4),
    }
    return replace(codebook, vectors_VE=rotated_VD, mixture=mixture), facts


def _independent(
    vectors_UE: Numbers, shares_U: Numbers, directions: int, seed: int, say: Say
) -> tuple[Projection, bool]:
    """Gives what the analysis of all occurrences of the words gives, as `shares_U` counts them."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    rounds = 0

    def weighted_tanh(values_DU: Numbers) -> tuple[Numbers, Numbers]:
        nonlocal rounds
        say(f"independent components: round {(rounds := rounds + 1)} of at most {analysis.max_iter}")
        np.tanh(values_DU, out=values_DU)
        slopes_D = (1 - values_DU**2) @ shares_U
        return values_DU * (shares_U * len(shares_U)), slopes_D

    mean_E = shares_U @ vectors_UE
    off_UE = vectors_UE - mean_E
    _, spreads, axes = np.linalg.svd(off_UE * np.sqrt(shares_U)[:, None], full_matrices=False)
    whitening_DE = (axes * np.sign(axes[:, :1]))[:directions] / spreads[:directions, None]
    white_UD = off_UE @ whitening_DE.T
    analysis = FastICA(whiten=False, fun=weighted_tanh, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        analysis.fit(white_UD)
    components_DD = analysis.components_
    components_DD = components_DD / np.sqrt((white_UD @ components_DD.T).T ** 2 @ shares_U)[:, None]
    return Projection(mean_E, components_DD @ whitening_DE), analysis.n_iter_ < analysis.max_iter


def _shortened(codebook: Codebook, sample: Sentences, say: Say) -> Codebook:
    coding, length = codebook.coding, codebook.width
    if length <= coding.width:
        return codebook
    batches = [sample[start : start + AT_ONCE] for start in range(0, len(sample), AT_ONCE)]
    codes_SF, is_known_S = np.empty((len(sample), length), np.float32), np.empty(len(sample), bool)
    for number, (codes, is_known) in enumerate(in_threads(codebook._code, batches)):
        say(f"codes: {number * AT_ONCE:,} of {len(sample):,} captions")
        rows = slice(number * AT_ONCE, number * AT_ONCE + len(codes))
        codes_SF[rows], is_known_S[rows] = codes, is_known
    codes_SF = codes_SF if is_known_S.all() else codes_SF[is_known_S]
    _check_enough(len(codes_SF), coding.width, length)
    parts = len(codebook.mixture.weights_K) if codebook.mixture else 1
    return replace(codebook, principal=Projection(*principal_axes(codes_SF, coding.width, parts, coding.seed, say)))


def _check_enough(sentences: int, width: int, length: int) -> None:
    if sentences <= width < length:
        untold = f"cannot tell which {width:,} of {length:,} dimensions to keep"
        raise UserError(f"{sentences:,} sentences of the sample {untold}: take more, or a smaller width")
