"""Reports of an evaluation: text, JSON and LaTeX."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from xmodal.metrics import Column
from xmodal.metrics.protocols import Metrics, Scores, nested

OWN = "pairs: a caption is right for its own item alone"
SIDES = ("visual to text", "text to visual")
HEADINGS = {"scores": "gallery", "lists": "right are", "plausible": "plausible"}
FIRST = 22  # the width of the first column
WIDTH = 8  # of each other column
SIDE = 6 * WIDTH  # the least width of a direction: it lines tables up


@dataclass(frozen=True, kw_only=True)
class Report:
    """Facts that only a run has may be None."""

    recipe: str  # or the matrix' file
    fingerprint: str  # of the recipe, or the sha256 of the file
    records: str
    features: str | None = None
    weights: str | None = None  # of the network that made the features
    corpus: str
    split: str
    relevance: str = OWN
    items: int
    captions: int
    absent: int  # items without features, or not in the matrix
    silent: int  # and without captions
    seen: int | None = None  # items that the run was trained on
    chosen: int | None = None  # and that its weights were chosen by
    metrics: Metrics
    floats_per_item: int | None = None  # where a model's distances differ in it

    @property
    def scores(self) -> Mapping[str, Scores]:
        return self.metrics.tables["scores"]

    def to_json(self) -> str:
        found = self.metrics
        about = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "metrics"}
        tables = {table: {name: row.as_json() for name, row in rows.items()} for table, rows in found.tables.items()}
        numbers = nested(found.numbers, {column.name: value for column, value in found.numbers.items()})
        return json.dumps(about | tables | numbers, indent=2)

    def to_text(self) -> str:
        width = max(SIDE, WIDTH * len(_shown(self.scores)))
        lines = [*self._about(), "", " " * FIRST + "  ".join(f"{side:^{width}}" for side in SIDES)]
        for heading, rows in self._tables():
            lines += [*_text(heading, rows), ""]
        for column, value in self.metrics.numbers.items():
            if value is not None:
                note = f" ({column.note})" if column.note else ""
                lines.append(f"{column.text} {value:.{column.digits}f}{note}")
        return "\n".join(line.rstrip() for line in lines).rstrip()

    def to_latex(self) -> str:
        """Writes a `tabular` of each kind, which needs no package."""
        lines = [f"% {line}" for line in self._about()]
        for heading, rows in self._tables():
            lines += _tabular(heading, rows)
        return "\n".join(lines)

    def _tables(self) -> Iterator[tuple[str, Mapping[str, Scores]]]:
        return ((HEADINGS[table], rows) for table, rows in self.metrics.tables.items() if rows)

    def _about(self) -> list[str]:
        asked = f"{self.items:,} items, {self.captions:,} captions"
        what = f"{self.recipe} ({self.fingerprint[:12]}) on {self.corpus} {self.split}: {asked}"
        if self.seen:
            what += f"; {self.seen:,} of them were trained on"
        if self.chosen:
            what += f"; the weights were chosen by {self.chosen:,} of them"
        if self.absent or self.silent:
            lacking = "without features" if self.features else "not in the matrix"
            what += f"; left out: {self.absent} {lacking}, {self.silent} without captions"
        made = f"features {self.features} by {self.weights}; " if self.features else ""
        kept = f"; kept of an item: {self.floats_per_item:,} floats" if self.floats_per_item else ""
        return [what, f"records {self.records}, {made}{self.relevance}{kept}"]


def _shown(rows: Mapping[str, Scores]) -> list[Column]:
    return [column for column in next(iter(rows.values())).columns if column.text]


def _text(heading: str, rows: Mapping[str, Scores]) -> Iterator[str]:
    shown = _shown(rows)
    head = "".join(f"{column.text:>{WIDTH}}" for column in shown).ljust(SIDE)
    first = next(iter(rows.values()))
    yield f"{heading:{FIRST}}{head}  {head}" + "".join(f"{name:>{WIDTH}}" for name in first.sums)
    chances = {column.chance_of: column for column in first.columns if column.chance_of}
    by_chance = [chances.get(column.name) for column in shown]
    for name, row in rows.items():
        folds = f" ({row.galleries} folds)" if row.galleries and row.galleries > 1 else ""
        yield _line(name + folds, row, shown) + _sums(row.sums)
        if chances:
            yield _line("  by chance", row, by_chance) + _sums(row.sums_by_chance)


def _line(name: str, row: Scores, columns: Sequence[Column | None]) -> str:
    sides = [
        "".join(f"{values[column.name]:{WIDTH}.{column.digits}f}" if column else " " * WIDTH for column in columns)
        for values in (row.visual_to_text, row.text_to_visual)
    ]
    return f"{name:{FIRST}}" + "  ".join(side.ljust(SIDE) for side in sides)


def _sums(sums: Mapping[str, float]) -> str:
    return "".join(f"{value:{WIDTH}.1f}" for value in sums.values())


def _tabular(heading: str, rows: Mapping[str, Scores]) -> Iterator[str]:
    first = next(iter(rows.values()))
    columns = [column for column in first.columns if column.latex]
    heads = [heading, *(column.latex for _ in SIDES for column in columns), *first.sums]
    yield rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
    yield "".join(rf" & \multicolumn{{{len(columns)}}}{{c}}{{{side}}}" for side in SIDES) + r" \\"
    yield " & ".join(heads) + r" \\ \hline"
    for name, row in rows.items():
        sides = (row.visual_to_text, row.text_to_visual)
        values = [side[column.name] for side in sides for column in columns] + [*row.sums.values()]
        yield " & ".join([name, *(f"{value:.1f}" for value in values)]) + r" \\"
    yield r"\end{tabular}"
