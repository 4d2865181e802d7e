"""Shows every table and figure of the five papers: what it takes, its state; with --root runs one.

examples:
  xmodal reproduce                                      every experiment, one a line
  xmodal reproduce pvse                                 those of a paper, with their rows
  xmodal reproduce pvse table 2                         one, with all that is printed and the commands to run it
  xmodal reproduce dualpath:VIII --json
  xmodal reproduce pvse-2 --root data --runs runs --vectors glove.840B.300d.txt
                                       trains and evaluates what is ready of it; finished runs stay
  xmodal reproduce a3vse figure 1 --root data --runs runs --curve curve.png
                                       trains nothing: a PNG of the runs that are finished, by the share of pairs
  xmodal reproduce pvse table 2 --latex                the table, also beside what runs measure (with --root)
"""

import re
from pathlib import Path

from pipelines.commands import Args, Lines, Parser, Result, _flags, load_all
from xmodal.errors import UserError, few

SHOWN = 6  # rows that a curve misses


def flags(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="PAPER|TABLE", help="a paper, or one of its tables (default: all)")
    _flags.root(parser, required=False)
    parser.add_argument("--runs", type=_flags.path, default=Path("runs"), help="the folder of all runs (default: runs)")
    curve = "a PNG of what finished runs measure, by the share of pairs that they learned from; trains nothing"
    parser.add_argument("--curve", type=_flags.path, metavar="FILE", help=curve)
    parser.add_argument("--latex", action="store_true", help="the result as LaTeX tables on stdout")
    _flags.training(parser)
    _flags.quiet(parser)


def run(args: Args) -> list[Result] | str:
    from pipelines.papers.reproduction import overview, reproduce

    if args.json and args.latex:
        raise UserError("--json and --latex are two ways to print the same: give one")
    name = " ".join(args.names)
    if not (name or args.root or args.curve or args.json or args.latex):
        return overview()
    setup = _flags.setup(args) if args.root else None
    found = [_curve(name, args)] if args.curve else reproduce(name, setup, args.runs, load_all())
    return "\n".join(line for each in found for line in _latex(each)) if args.latex else found


def _curve(name: str, args: Args) -> Result:
    from pipelines.papers.efficiency_curve import curve
    from pipelines.papers.experiments import Available, find

    if not args.root:
        raise UserError("--curve evaluates runs: add --root with the features that they were trained from")
    first, *others = find(name)
    if others:
        raise UserError(f"--curve draws one table or figure: name it, such as {first.name}")
    return curve(first, Available.now(load_all()), _flags.setup(args), args.runs, args.curve)


def text(result: list[Result]) -> Lines:
    if "rows" not in result[0]:
        for each in result:
            about = "not reproducible here" if each["why_not"] else ", ".join(each["corpora"])
            yield f"{each['name']:21} {about:30} {each['title']}"
        yield f"{len(result)} in all; name a paper, or a table such as pvse table 2, for what is ready of it"
        return
    for each in result:
        yield f"{each['name']}: {each['title']}"
        yield f"    {each['state']}"
        yield from _in_full(each) if len(result) == 1 else (f"    {_row(row)}" for row in each["rows"])


def _in_full(each: Result) -> Lines:
    yield from (f"    {name}: {each[name]}" for name in ("data", "features", "compute") if each[name])
    yield from (f"    note: {note}" for note in each["notes"])
    was_measured = any("measured" in row for row in each["rows"])
    if was_measured:
        yield from _compared(each)
        yield from _drawn(each) if "curve" in each else ()
    elif each["rows"]:
        yield "rows:"
        yield from (f"  {_row(row)}" for row in each["rows"])
        yield from _printed(each)
    if each["to_run"]:
        yield "what is left to run:" if was_measured else "to run it:"
        yield from (f"  {command}" for command in each["to_run"])


def _drawn(each: Result) -> Lines:
    yield f"{each['curve']}: {len(each['points'])} of {len(each['rows'])} rows, by the share of pairs learned from"
    if each["missing"]:
        reasons = few([f"{name} ({reason})" for name, reason in each["missing"].items()], SHOWN)
        yield f"not in it: {reasons}"


def _row(row: Result) -> str:
    settings = "".join(f" --set {setting}" for setting in row["settings"])
    waiting = "" if row["ready"] or not row["recipe"] else " (not yet)"
    return f"{row['name']:44} {row['recipe']}{settings}{waiting}".rstrip()


def _printed(each: Result) -> Lines:
    """The paper's table; the last word of each heading has a line of its own."""
    rows = [(row["name"], row["printed"].split()) for row in each["rows"] if row["printed"]]
    if not rows:
        return
    above, below = zip(*(column.rpartition(" ")[::2] for column in each["columns"]), strict=True)
    lines = [("printed:", above), ("", below), *((f"  {name}", values) for name, values in rows)]
    width = max(len(value) for _, values in lines for value in values) + 2
    for name, values in lines:
        yield f"{name[:40]:40}{''.join(f'{value:>{width}}' for value in values)}".rstrip()


def _compared(each: Result) -> Lines:
    yield f"{'':44} {'':24} {'printed':>10} {'measured':>10}"
    for row in each["rows"]:
        values, measured = row["printed"].split() or ["-"] * len(each["columns"]), row["measured"] or {}
        for column, value in zip(each["columns"], values, strict=True) if row["recipe"] else ():
            found = f"{measured[column]:.2f}" if column in measured else "-"
            yield f"{row['name']:44} {column:24} {value:>10} {found:>10}"
    yield from _measured_on(each)


def _measured_on(each: Result) -> Lines:
    """The items and the features of what was measured; with the rows, if they differ."""
    rows = dict[str, list[str]]()
    for row in each["rows"]:
        if row.get("measured") is not None:
            size = " and ".join(f"{count:,} {what}" for what, count in row["on"].items() if what != "split")
            features = f"features {row['from']['features']} by {row['from']['network']}"
            rows.setdefault(f"measured on {size} of {row['on']['split']}, {features}", []).append(row["name"])
    for where, names in rows.items():
        yield f"{where}: {'; '.join(names)}" if len(rows) > 1 else where


def _latex(each: Result) -> Lines:
    """A `tabular`, which needs no package: the values that are printed, and below them those that are measured."""
    rows = [row for row in each["rows"] if row["printed"] or row.get("measured")]
    if not rows:
        return
    yield f"% {each['name']}: {each['title']}"
    yield from (f"% {line}" for line in _measured_on(each))
    yield rf"\begin{{tabular}}{{ll{'r' * len(each['columns'])}}}"
    yield f" & & {' & '.join(map(_escaped, each['columns']))}" + r" \\ \hline"
    for row in rows:
        name, measured = _escaped(row["name"]), row.get("measured")
        if row["printed"]:
            yield f"{name} & printed & {' & '.join(row['printed'].split())}" + r" \\"
        if measured:
            values = (f"{measured[column]:.1f}" if column in measured else "-" for column in each["columns"])
            yield f"{'' if row['printed'] else name} & measured & {' & '.join(values)}" + r" \\"
    yield r"\end{tabular}"


def _escaped(text: str) -> str:
    return re.sub(r"([%&#_$])", r"\\\1", text)
