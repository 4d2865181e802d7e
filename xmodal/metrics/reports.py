"""What an evaluation found, for people (text), for programs (JSON) and for a paper (LaTeX)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from xmodal.metrics.protocols import Findings
from xmodal.metrics.ranked_lists import ListScores, Plausible
from xmodal.metrics.ranks import RECALLS, Direction, Scores

OWN = "pairs: a caption is right for its own item alone"
SIDES = ("visual to text", "text to visual")
SHOWN = (1, 5, 10)  # of the precisions at k; JSON has all
FIRST = 22  # the width of the first column


@dataclass(frozen=True)
class Report:
    """What a table prints. What only a run has is None where a matrix of somebody's was scored."""

    recipe: str  # or the matrix' file
    fingerprint: str  # of the recipe, or the sha256 of the file
    records: str
    features: str | None
    weights: str | None  # the network that made the features, its weights and their checksum
    corpus: str
    split: str
    relevance: str
    items: int
    captions: int
    absent: int  # items of the split without features, or not in the matrix: nobody was asked about them
    silent: int  # and without captions
    seen: int | None  # items asked about that the run was trained on
    chosen: int | None  # and those by which its weights were chosen
    findings: Findings
    floats_per_item: int | None = None  # kept of an encoded item, where a model's distances differ in it

    @property
    def scores(self) -> Mapping[str, Scores]:
        """Recalls by the gallery."""
        return self.findings.scores

    def to_json(self) -> str:
        findings = self.findings
        scores = {name: asdict(scores) | {"rsum": scores.rsum} for name, scores in findings.scores.items()}
        about = {name: value for name, value in asdict(self).items() if name != "findings"}
        return json.dumps(
            about
            | {"scores": scores, "separation": findings.separation}
            | {"lists": {name: _sides(map(asdict, both)) for name, both in findings.lists.items()}}
            | {"plausible": {name: _sides(map(_with_mean, both)) for name, both in findings.plausible.items()}},
            indent=2,
        )

    def to_text(self) -> str:
        return "\n".join([*self._about(), "", *self._recalls(), "", *self._lists(), *self._plausible(), *self._rest()])

    def to_latex(self) -> str:
        """A `tabular` of each kind, which needs no package; what was evaluated is a comment above."""
        return "\n".join([*(f"% {line}" for line in self._about()), *_latex(self.findings)])

    def _about(self) -> list[str]:
        seen = f"; {self.seen:,} of them were trained on" if self.seen else ""
        seen += f"; the weights were chosen by {self.chosen:,} of them" if self.chosen else ""
        lacking = "without features" if self.features else "not in the matrix"
        left_out = f"; left out: {self.absent} {lacking}, {self.silent} without captions"
        kept = f"; kept of an item: {self.floats_per_item:,} floats" if self.floats_per_item else ""
        made = f"features {self.features} by {self.weights}; " if self.features else ""
        return [
            f"{self.recipe} ({self.fingerprint[:12]}) on {self.corpus} {self.split}: "
            f"{self.items:,} items, {self.captions:,} captions" + seen + left_out * bool(self.absent or self.silent),
            f"records {self.records}, {made}{self.relevance}" + kept,
        ]

    def _recalls(self) -> Iterator[str]:
        head = "".join(f"{f'R@{k}':>8}" for k in RECALLS) + f"{'median':>8}{'mean':>8}{'nMR':>8}"
        yield f"{'':{FIRST}}" + "  ".join(f"{side:^{len(head)}}" for side in SIDES).rstrip()
        yield f"{'gallery':{FIRST}}{head}  {head}    rsum"
        for name, scores in self.findings.scores.items():
            yield from _recall_lines(name, scores)

    def _lists(self) -> Iterator[str]:
        head = "".join(f"{name:>8}" for name in ("R-P", "chance", "mAP@R", "mAP", *(f"P@{k}" for k in SHOWN)))
        yield f"{'right are':{FIRST}}{head}  {head}"
        for name, both in self.findings.lists.items():
            yield f"{name:{FIRST}}" + "  ".join(
                "".join(f"{value:8.2f}" for value in _list_values(side)) for side in both
            )

    def _plausible(self) -> Iterator[str]:
        if self.findings.plausible:
            head = "".join(f"{name:>8}" for name in ("PMRP", "chance", "zeta 0", "zeta 1", "zeta 2", ""))
            yield from ("", f"{'plausible':{FIRST}}{head}  {head}".rstrip())
        for name, both in self.findings.plausible.items():
            sides = ("".join(f"{value:8.2f}" for value in _plausible_values(side)) + " " * 8 for side in both)
            yield f"{name:{FIRST}}{'  '.join(sides)}".rstrip()

    def _rest(self) -> Iterator[str]:
        if self.findings.separation is not None:
            yield from ("", f"indicator S {self.findings.separation:.4f} (0: every right pair beats every wrong one)")


def _sides(both: Iterator[dict[str, object]]) -> dict[str, dict[str, object]]:
    return dict(zip(("visual_to_text", "text_to_visual"), both, strict=True))


def _with_mean(found: Plausible) -> dict[str, object]:
    return asdict(found) | {"mean": found.mean}


def _recall_lines(name: str, scores: Scores) -> Iterator[str]:
    sides = (scores.visual_to_text, scores.text_to_visual)
    folds = f" ({scores.galleries} folds)" if scores.galleries > 1 else ""
    yield f"{name + folds:{FIRST}}{'  '.join(map(_cells, sides))}{scores.rsum:8.1f}"
    chances = ["".join(f"{side.chance[k]:8.2f}" for k in RECALLS) + " " * 24 for side in sides]
    yield f"{'  by chance':{FIRST}}{'  '.join(chances)}{sum(sum(side.chance.values()) for side in sides):8.1f}"


def _cells(side: Direction) -> str:
    recalls = "".join(f"{side.recall[k]:8.2f}" for k in RECALLS)
    return recalls + f"{side.median_rank:8.1f}{side.mean_rank:8.1f}{side.normalised_median:8.4f}"


def _list_values(side: ListScores) -> list[float]:
    at = [side.precision[k] for k in SHOWN]
    return [side.r_precision, side.by_chance, side.map_at_r, side.average_precision, *at]


def _plausible_values(side: Plausible) -> list[float]:
    chance = sum(side.by_chance.values()) / len(side.by_chance)
    return [side.mean, chance, *side.r_precision.values()]


def _latex(findings: Findings) -> Iterator[str]:
    recalls = [f"R@{k}" for k in RECALLS]
    sides = {name: (of.visual_to_text, of.text_to_visual) for name, of in findings.scores.items()}
    rows = {
        name: [value for side in both for value in (*side.recall.values(), side.median_rank)]
        for name, both in sides.items()
    }
    with_sums = {name: [*row, findings.scores[name].rsum] for name, row in rows.items()}
    yield from _tabular("gallery", [*recalls, "median"], with_sums, "rsum")
    lists = {
        name: [value for side in both for value in (side.r_precision, side.map_at_r, side.precision[1])]
        for name, both in findings.lists.items()
    }
    yield from _tabular("right are", ["R-P", "mAP@R", "R@1"], lists)
    if findings.plausible:
        matches = {name: [side.mean for side in both] for name, both in findings.plausible.items()}
        yield from _tabular("plausible", ["PMRP"], matches)


def _tabular(name: str, columns: list[str], rows: dict[str, list[float]], last: str = "") -> Iterator[str]:
    heads, width = [name, *columns, *columns, *filter(None, [last])], len(columns)
    yield rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
    yield "".join(rf" & \multicolumn{{{width}}}{{c}}{{{side}}}" for side in SIDES) + r" \\"
    yield " & ".join(heads) + r" \\ \hline"
    yield from (" & ".join([row, *(f"{value:.1f}" for value in values)]) + r" \\" for row, values in rows.items())
    yield r"\end{tabular}"
