"""Metrics of phrase localisation on a split: of a user's scores, or of whatever scores proposals for phrases.

A matrix of scores has the split's phrases as rows, and as columns the proposals of each phrase's picture in their
order; where a picture has fewer than another, the end of its rows is not read. `write_phrases` writes both orders down.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from xmodal.batches.annotated_phrases import AnnotatedPhrases, annotated_phrases, proposals_of
from xmodal.detection.box_geometry import Boxes
from xmodal.errors import UserError
from xmodal.evaluation.matrix_metrics import read_matrix, test_split
from xmodal.metrics.phrase_localisation import FIRST, LocalisationTask, LocalisedPhrases, ScoresOf, localise
from xmodal.recipes import View
from xmodal.root.files import sha256_of
from xmodal.root.outputs import Output
from xmodal.root.selection import find_output

FILES = (".phrases.tsv", ".proposals.tsv")
ALL, BY_TYPE = "all", "by type"
PHRASES, BOUND = "phrases", "bound"
MEASURED = (*(f"R@{k}" for k in FIRST), BOUND)
BY_CHANCE = tuple(f"R@{k} by chance" for k in FIRST)
FIRST_WIDTH, WIDTH = 14, 9  # of columns


@dataclass(frozen=True, kw_only=True)
class PhraseReport:
    """Holds recall, in percent, of all phrases and of each type.

    The row "by type" counts a phrase once for each of its types, as the total of the published evaluation does.
    """

    recipe: str  # or the file of scores
    fingerprint: str  # of the recipe, or the sha256 of the file
    records: str
    proposals: str  # where they are from
    suppression: float | None = None  # overlap with a better proposal, above which one is not ranked
    corpus: str
    split: str
    phrases: int
    boxes: int  # that they name
    pictures: int
    seen: int | None = None  # pictures that the run was trained on
    chosen: int | None = None  # pictures that chose its weights
    pictures_without_proposals: int
    phrases_without_proposals: int  # they count as not found
    left_out: Mapping[str, int]  # by the reason
    rows: Mapping[str, Mapping[str, float]]

    def value(self, column: str, row: str = ALL) -> float | None:
        return self.rows.get(row, {}).get(column)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def to_text(self) -> str:
        lines = [*self._about(), "", _line("", [PHRASES, *MEASURED])]
        for name, row in self.rows.items():
            lines.append(_line(name, [f"{row[PHRASES]:,}", *(f"{row[column]:.2f}" for column in MEASURED)]))
            if name == ALL and BY_CHANCE[0] in row:
                lines.append(_line("  by chance", ["", *(f"{row[column]:.2f}" for column in BY_CHANCE)]))
        return "\n".join(lines)

    def to_latex(self) -> str:
        """Writes a `tabular`, which needs no package."""
        lines = [f"% {line}" for line in self._about()]
        lines += [
            rf"\begin{{tabular}}{{lr{'r' * len(MEASURED)}}}",
            " & ".join(["", PHRASES, *MEASURED]) + r" \\ \hline",
        ]
        for name, row in self.rows.items():
            values = (f"{row[column]:.1f}" for column in MEASURED)
            lines.append(" & ".join([name, f"{row[PHRASES]:,}", *values]) + r" \\")
        return "\n".join([*lines, r"\end{tabular}"])

    def _about(self) -> Iterator[str]:
        asked = f"{self.phrases:,} phrases of {self.pictures:,} pictures, which name {self.boxes:,} boxes"
        if self.seen:
            asked += f"; {self.seen:,} of the pictures were trained on"
        if self.chosen:
            asked += f"; the weights were chosen by {self.chosen:,} of the pictures"
        yield f"{self.recipe} ({self.fingerprint[:12]}) on {self.corpus} {self.split}: {asked}"
        ranked = f", ranked unless a better one overlaps by more than {self.suppression:g}" if self.suppression else ""
        yield f"records {self.records}, proposals {self.proposals}{ranked}"
        if self.phrases_without_proposals:
            of_pictures = f"{self.pictures_without_proposals:,} pictures have no proposals"
            yield f"not found: {self.phrases_without_proposals:,} phrases, as their {of_pictures}"
        if any(self.left_out.values()):
            yield "left out: " + "; ".join(f"{count:,} {reason}" for reason, count in self.left_out.items() if count)


@dataclass(frozen=True, eq=False)
class ScoredPhrases:
    records: Output
    view: View
    phrases: AnnotatedPhrases
    boxes: Mapping[str, Boxes]  # proposals of the pictures that have any, right and bottom excluded
    proposals: str  # which these are
    scores: ScoresOf

    @cached_property
    def task(self) -> LocalisationTask:
        return self.phrases.among(self.boxes)


def open_scores(path: Path, root: str, corpus: str, proposals: str, split: str | None = None) -> ScoredPhrases:
    """Opens a .npy file of scores, which is read some rows at a time."""
    records, view, phrases, boxes, found = _asked(root, corpus, proposals, split)
    matrix, most = read_matrix(path), max(map(len, boxes.values()))
    if matrix.shape != (len(phrases.words), most):
        raise UserError(
            f"{path} is {len(matrix):,} x {matrix.shape[1]:,}, but {view.split} has {len(phrases.words):,} phrases to "
            f"find among up to {most:,} proposals: rows are phrases as --write-ids lists them, columns proposals"
        )
    return ScoredPhrases(records, view, phrases, boxes, found, lambda rows: matrix[rows])


def score_phrases(
    path: Path, root: str, corpus: str, proposals: str, split: str | None = None, suppression: float | None = None
) -> PhraseReport:
    """Computes recall by the scores in a .npy file."""
    asked = open_scores(path, root, corpus, proposals, split)
    about = {"recipe": path.name, "fingerprint": sha256_of(path), "records": asked.records.identity}
    about |= {"proposals": asked.proposals, "corpus": corpus, "split": asked.view.split}
    try:
        return localisation_report(asked.phrases, asked.boxes, asked.scores, suppression, **about)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def localisation_report(
    phrases: AnnotatedPhrases,
    boxes: Mapping[str, Boxes],
    scores: ScoresOf,
    suppression: float | None = None,
    **about: Any,
) -> PhraseReport:
    """Computes recall by `scores`, which are asked for some phrases at a time; `about` are fields of the report.

    `boxes` are the proposals of each picture, with right and bottom excluded.
    """
    found = localise(phrases.among(boxes), scores, suppression=suppression)
    types = phrases.types
    groups = {ALL: found, **{name: found[places] for name, places in types.items()}}
    if sum(map(len, types.values())) > len(found):
        groups[BY_TYPE] = found[np.concatenate([*types.values()])]
    rows = {name: _row(group) | (_by_chance(group) if suppression is None else {}) for name, group in groups.items()}
    return PhraseReport(
        phrases=len(found),
        boxes=len(phrases.boxes_A4),
        pictures=len(phrases.pictures),
        pictures_without_proposals=sum(not len(boxes.get(picture, ())) for picture in phrases.pictures),
        phrases_without_proposals=int((found.counts_P == 0).sum()),
        left_out=phrases.left_out,
        suppression=suppression,
        rows=rows,
        **about,
    )


def write_phrases(prefix: str, root: str, corpus: str, proposals: str, split: str | None = None) -> list[str]:
    """Writes PREFIX.phrases.tsv, a row of scores a line, and PREFIX.proposals.tsv, where columns count for a picture.

    A phrase is its caption, the characters it begins at and ends before, its picture and its words; a proposal is its
    picture, left, top, right and bottom, a line that --file boxes= takes, too.
    """
    if not Path(prefix).parent.is_dir():
        raise UserError(f"{Path(prefix).parent} is no folder: make it, or give another PREFIX")
    _, _, phrases, boxes, _ = _asked(root, corpus, proposals, split)
    asked = zip(phrases.matches, phrases.words, strict=True)
    told = (
        [f"{one.caption}\t{one.start}\t{one.end}\t{one.item}\t{' '.join(words.split())}" for one, words in asked],
        [
            "\t".join([id, *map(repr, box)])
            for id in phrases.pictures
            for box in boxes.get(id, np.zeros((0, 4))).tolist()
        ],
    )
    paths = [prefix + end for end in FILES]
    for path, lines in zip(paths, told, strict=True):
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


def _asked(
    root: str, corpus: str, proposals: str, split: str | None
) -> tuple[Output, View, AnnotatedPhrases, dict[str, Boxes], str]:
    records = find_output(root, "records", corpus=corpus)
    view = View(corpus, split or test_split(records, corpus))
    phrases, (boxes, found) = annotated_phrases(records, view), proposals_of(root, records, proposals)
    there = {id: boxes[id] for id in phrases.pictures if len(boxes.get(id, ()))}
    if not there:
        raise UserError(f"{proposals} has no boxes of the {len(phrases.pictures):,} pictures of {view.split}")
    return records, view, phrases, there, found


def _row(found: LocalisedPhrases) -> dict[str, float]:
    return {PHRASES: len(found), **dict(zip(MEASURED, (*map(found.recall, FIRST), found.bound), strict=True))}


def _by_chance(found: LocalisedPhrases) -> dict[str, float]:
    """Recall of random scores, where all proposals are ranked: with suppression it depends on how boxes overlap."""
    return dict(zip(BY_CHANCE, map(found.chance, FIRST), strict=True))


def _line(name: str, cells: list[str]) -> str:
    return f"{name:{FIRST_WIDTH}}" + "".join(f"{cell:>{WIDTH}}" for cell in cells)
