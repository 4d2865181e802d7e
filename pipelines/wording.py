"""What each command says to a person: one function a command, from its JSON result to lines of text."""

import os
import shutil
import sys
import time
from typing import Any

from pipelines.commands.check import text
from pipelines.engine.progress_line import duration

Result = dict[str, Any]
STATS = 14  # the width of a column
PLANNED = ("bytes", "writes", "seconds", "requests")


def check(result: Result) -> list[str]:
    return [*text(result)]


def corpora(rows: list[Result]) -> list[str]:
    lines = []
    for row in rows:
        lines.append(f"{row['name']:20} {row['licence']}")
        lines += [f"    by hand: {path}: {how}" for path, how in row["by_hand"].items()]
        lines += [f"    built: {path}" for path in row["built"]]
    return lines


def plan(result: Result) -> list[str]:
    rows, free = result["stages"], result["free_bytes"]
    loads, writes, seconds, requests = (sum(row.get(name, 0) for row in rows) for name in PLANNED)
    needed = loads + writes
    disk = f"{gigabytes(needed)} of disk" + ("" if free is None else f" of {gigabytes(free)} free")
    lines = [_planned(row) for row in rows]
    lines.append(f"in all: {requests:,} requests, {gigabytes(loads)}, about {duration(seconds)} to download; {disk}")
    if waiting := [row for row in rows if "waits_for" in row]:
        lines.append(f"{len(waiting)} of these can be reckoned only once others are done")
    if free is not None and needed > free:
        lines.append(f"this does not fit: {gigabytes(needed - free)} too little on the disk of the root")
    return lines


def _planned(row: Result) -> str:
    name = f"{row['corpus']}/{row['stage']}"
    if "waits_for" in row:
        return f"{name:28} after {row['waits_for']}"
    if "units" in row:
        most = "about" if row["stage"] in ("frames", "clips") else "up to"
        writes = f", {most} {gigabytes(row['writes'])} to write" if row.get("writes") else ""
        return f"{name:28} {row['done']:,} of {row['units']:,} units done{writes}"
    parts = [f"{row['done']:,} of {row['files']:,} files here"]
    parts += [f"{row['at_hand']:,} in the raw folder"] if row["at_hand"] else []
    parts += [f"{row['requests']:,} to download, {gigabytes(row['bytes'])}"] if row["requests"] else []
    parts += [f"{row['unknown_sizes']:,} of them of unknown size"] if row["unknown_sizes"] else []
    parts += [f"to be got by hand: {', '.join(row['by_hand'][:3])}"] if row["by_hand"] else []
    return f"{name:28} {', '.join(parts)}"


def build(result: Result) -> list[str]:
    lines = []
    for row in result["outputs"]:
        name, state = f"{row['corpus']}/{row['stage']}", "built" if row["built"] else "up to date"
        failures = "".join(f", {count:,} {kind}" for kind, count in sorted(row["failures"].items()))
        lines += [f"{name:28} {state:10}  {row['path']}", f"{'':28} {counts(row['counts'])}{failures}"]
        lines += [f"{'':28} {text}" for text in (*_odd(row["counts"]), *_missing(row), *_passing(row))]
    return [*lines, *(f"note: {text}" for text in result.get("notes", ()))]


def _odd(counted: dict[str, int]) -> list[str]:
    return [f"{name}: {count:,}" for name, count in counted.items() if name.startswith("odd: ") and count]


def _missing(row: Result) -> list[str]:
    """Why media are absent and from where, and what brings those that come after all."""
    absent = row.get("absent", {})
    why = [f"{one['files']:,} {kind}, such as {one['path']}: {one['reason']}" for kind, one in absent.items()]
    corpus = row["corpus"]
    cure = f"once they are there: `xmodal retry {corpus} [--raw FOLDER]`, then `xmodal seal {corpus}`, and build again"
    lines = [*_lacking(row.get("folders", {})), *why]
    return [*lines, cure] if lines else []


def _passing(row: Result) -> list[str]:
    """What tries clips again that are not bad for good."""
    from xmodal.media.frame_times import PASSING  # numpy comes in here, of which `doctor` says whether it is there

    kinds = [kind for kind in PASSING if row["stage"] == "frames" and kind in row["failures"]]
    return [f"`xmodal retry {row['corpus']}/frames` tries those of {' and '.join(kinds)} again"] if kinds else []


def train(result: Result) -> list[str]:
    return [
        f"{result['recipe']}: rsum {result['rsum']:.1f} on validation after epoch {result['epoch'] + 1}, "
        f"{result['steps']:,} steps; in {result['run']}",
        f"now `xmodal evaluate {result['run']} --root {result['root']}`",
    ]


def evaluate(table: str) -> list[str]:
    return [table]


def look(result: Result) -> list[str]:
    if "pictures" in result:
        told = [f"{one['path']}: {one['caption']}" for one in result["pictures"]]
        return [*told, f"{len(told)} pictures in {result['folder']}"]
    heads = ("words <unk>", "erased", "mixed")
    plain, *probes = ([probed[name] for name in ("share", "unknown", "erased", "mixed")] for probed in result["probes"])
    return [
        f"mean uncertainty of {result['captions']:,} captions and {result['items']:,} pictures of {result['split']}",
        f"{'share':5}" + "".join(f"{head:>20}" for head in heads),
        "  0 %" + "".join(f"{value:>20.4g}" for value in plain[1:]),
        *(_probed(row, plain) for row in probes),
        *([f"pictures are not probed: {result['unprobed']}"] if result["unprobed"] else []),
        "",
        "R@1 by the query's uncertainty, surest first",
        *(line for side in ("visual_to_text", "text_to_visual") for line in _uncertain(side, result[side])),
    ]


def _probed(row: list[Any], plain: list[Any]) -> str:
    """Each uncertainty, and how far it is above that of the same items as they are."""
    cells = zip(row[1:], plain[1:], strict=True)
    told = ("-" if value is None else f"{value:.4g} ({100 * (value / before - 1):+.1f} %)" for value, before in cells)
    return f"{100 * row[0]:3.0f} %" + "".join(f"{cell:>20}" for cell in told)


def _uncertain(side: str, bins: list[Result]) -> list[str]:
    rows = [("uncertainty", [f"{each['mean']:.4g}" for each in bins])]
    rows += [("queries", [str(each["count"]) for each in bins]), ("R@1", [f"{each['recall']:.1f}" for each in bins])]
    name = side.replace("_", " ")
    return [f"{name:16}{row:12}{''.join(f'{value:>9}' for value in values)}" for row, values in rows]


def stats(result: Result | str) -> list[str]:
    """A line a split; then what else there is, and what the papers print beside what is here."""
    if isinstance(result, str):  # LaTeX
        return [result]
    wide = max(len(part["name"]) for part in result["parts"]) + 2
    heads = ("items", "captions", "an item", "words each", "vocabulary", "4 times")
    return [
        f"{result['corpus']}, records {result['records']}: words by {result['tokenizer']}, full stops are words too",
        f"{'':{wide}}" + "".join(f"{head:>{STATS}}" for head in heads),
        *(
            f"{part['name']:{wide}}" + "".join(f"{cell:>{STATS}}" for cell in _described(part))
            for part in result["parts"]
        ),
        *(line for part in result["parts"] for line in _lengths(part)),
        *(_plausible(part) for part in result["parts"] if part["plausible"]),
        *([f"also {counts(result['counts'])}"] if result["counts"] else []),
        *(f"{name}: {count:,}" for name, count in result["counts"].items() if ":" in name),
        *(f"odd: {rule}: {count:,}" for rule, count in result["oddities"].items()),
        *(_beside(each["printed"], each["found"]) for each in result["beside"]),
    ]


def _described(part: Result) -> list[str]:
    each, words = (part[name] for name in ("captions_per_item", "words_per_caption"))
    spread = "" if not each or each["least"] == each["most"] else f" {each['least']}-{each['most']}"
    return [
        *(f"{part['items']:,}", f"{part['captions']:,}"),
        f"{each['mean']:.2f}{spread}" if each else "-",
        f"{words['mean']:.1f} {words['least']}-{words['most']}" if words else "-",
        *(f"{part['vocabulary']:,}", f"{part['frequent']:,}"),
    ]


def _lengths(part: Result) -> list[str]:
    return [
        f"{part['name']}: {of['mean']:.1f} rows an item in {store}, {of['least']:,} to {of['most']:,}"
        for store, of in part["lengths"].items()
    ]


def _plausible(part: Result) -> str:
    items, matches = part["plausible"]["items"], part["plausible"]["matches"]
    told = ", ".join(f"{count:,} at zeta {zeta} ({count / items:.1f} each)" for zeta, count in enumerate(matches))
    return f"{part['name']}: plausible matches among {items:,} items with categories: {told}"


def _beside(printed: Result, found: float | None) -> str:
    what = f"{printed['what'].replace('_', ' ')} of {printed['split']}"
    here = "not to be found here" if found is None else f"{found:,.1f}".removesuffix(".0") + " here"
    same = found is not None and round(found, 1) == printed["value"]
    note = f" ({printed['note']})" if printed["note"] and not same else ""
    return f"{printed['cites']}: {printed['value']:,} {what}, {'as here' if same else here}{note}"


def reproduce(shown: list[Result]) -> list[str]:
    """An overview is a line each, experiments of a paper have their rows, one alone is told in full."""
    if "rows" not in shown[0]:
        return _overview(shown)
    if len(shown) == 1:
        return _experiment(shown[0])
    return [line for each in shown for line in [*_headed(each), *(f"    {_row(row)}" for row in each["rows"])]]


def _overview(shown: list[Result]) -> list[str]:
    about = ("not reproducible here" if each["why_not"] else ", ".join(each["corpora"]) for each in shown)
    lines = [f"{each['name']:21} {corpora:30} {each['title']}" for each, corpora in zip(shown, about, strict=True)]
    return [*lines, f"{len(shown)} in all; name a paper, or a table such as pvse table 2, for what is ready of it"]


def _headed(each: Result) -> list[str]:
    return [f"{each['name']}: {each['title']}", f"    {each['state']}"]


def _row(row: Result) -> str:
    settings = "".join(f" --set {setting}" for setting in row["settings"])
    waiting = "" if row["ready"] or not row["recipe"] else " (not yet)"
    return f"{row['name']:44} {row['recipe']}{settings}{waiting}".rstrip()


def _experiment(each: Result) -> list[str]:
    parts = [(name, each[name]) for name in ("data", "features", "compute") if each[name]]
    lines = [*_headed(each), *(f"    {name}: {text}" for name, text in parts)]
    lines += [f"    note: {note}" for note in each["notes"]]
    if any("measured" in row for row in each["rows"]):
        lines += _compared(each)
        return [
            *lines,
            *(["what is left to run:", *(f"  {text}" for text in each["to_run"])] if each["to_run"] else []),
        ]
    lines += ["rows:", *(f"  {_row(row)}" for row in each["rows"])] if each["rows"] else []
    lines += _printed(each) if any(row["printed"] for row in each["rows"]) else []
    return [*lines, *(["to run it:", *(f"  {command}" for command in each["to_run"])] if each["to_run"] else [])]


def _printed(each: Result) -> list[str]:
    """The paper's table; the last word of a column stands below the others."""
    above, below = zip(*(column.rpartition(" ")[::2] for column in each["columns"]), strict=True)
    told = [(row["name"], row["printed"].split()) for row in each["rows"] if row["printed"]]
    width = max(map(len, (*above, *below, *(value for _, values in told for value in values)))) + 2
    lines = [("printed:", above), ("", below), *((f"  {name}", values) for name, values in told)]
    return [f"{name[:40]:40}{''.join(f'{value:>{width}}' for value in values)}".rstrip() for name, values in lines]


def _compared(each: Result) -> list[str]:
    """Measured beside printed, a value a line."""
    lines = [f"{'':44} {'':24} {'printed':>10} {'measured':>10}"]
    for row in each["rows"]:
        values, measured = row["printed"].split() or ["-"] * len(each["columns"]), row["measured"] or {}
        for column, value in zip(each["columns"], values, strict=True):
            found = f"{measured[column]:.2f}" if column in measured else "-"
            lines += [f"{row['name']:44} {column:24} {value:>10} {found:>10}"] if row["recipe"] else []
    return lines


def publish(result: Result) -> list[str]:
    splits = [f"{name} {split} ({rows:,})" for name, of in result["rows"].items() for split, rows in of.items()]
    withheld = [f"{part} ({most} at most)" for part, most in result["withheld"].items()]
    return [
        f"{result['path']}: {result['files']:,} files, {gigabytes(result['bytes'])}: {', '.join(splits)}",
        *([f"withheld, as its release says: {', '.join(withheld)}"] if withheld else []),
        *[f"look at it with datasets.load_dataset({result['path']!r}, {name!r})" for name in list(result["rows"])[:1]],
    ]


def import_(result: Result) -> list[str]:
    remarks = [f"from {result['source_dtype']}"] if result["source_dtype"] != result["dtype"] else []
    remarks += [f"one of the {result['copies']} equal rows of each"] if result["copies"] > 1 else []
    state = "imported" if result["built"] else "up to date"
    return [
        f"{result['path']}: {state}, {_features(result)}" + "".join(f", {remark}" for remark in remarks),
        f"`xmodal train RECIPE --set visual.stage={result['stage']}` reads it",
    ]


def export(result: Result) -> list[str]:
    absent = f"; {result['absent']:,} absent ones are left out" if result["absent"] else ""
    beside = f", beside it {' and '.join(result['beside'])}" if result["beside"] else ""
    return [f"{result['path']}: {_features(result)}{beside}{absent}"]


def _features(result: Result) -> str:
    shape = " x ".join(map(str, ["rows"] * result["ragged"] + result["row_shape"])) or "one number"
    return f"{result['items']:,} items, each {shape}, {result['dtype']}"


def demo(result: Result) -> list[str]:
    root, xmodal, runs = os.path.relpath(result["root"]), _as_typed("xmodal"), result["runs"]
    of_pictures = [one for one in runs if one["evaluation"]["corpus"] == "coco"]
    of_clips = [one["evaluation"]["corpus"] for one in runs if one not in of_pictures]
    run = os.path.relpath(of_pictures[-1]["training"]["run"])
    new = any(row["built"] for row in result["outputs"]) or any(one["training"]["trained"] for one in runs)
    return [
        "corpora were fetched, checked, sealed, parsed and learned from" if new else "everything is up to date",
        *build(result),
        *_recall([one["evaluation"] for one in runs]),
        *([_left_out(result["left_out"])] if result["left_out"] else []),
        "what to try next:",
        f"  {xmodal} status --root {root}",
        f"  {xmodal} evaluate {run} --root {root}",
        f"  {xmodal} look {run} --root {root} --attention {os.path.dirname(root)}/maps",
        *(f"  {xmodal} look {name} --root {root} --frames {os.path.dirname(root)}/sheets" for name in of_clips[:1]),
        f"  {xmodal} publish coco --root {root} --out {os.path.dirname(root)}/dataset",
        f"  {xmodal} plan coco --root data        the real corpus",
    ]


def _left_out(corpora: list[str]) -> str:
    return f"{' and '.join(corpora)} are left out, as their clips need PyAV: pip install 'xmodal[video]'"


def _recall(evaluations: list[Result]) -> list[str]:
    """A table a corpus."""
    corpora = dict.fromkeys(one["corpus"] for one in evaluations)
    of = {corpus: [one for one in evaluations if one["corpus"] == corpus] for corpus in corpora}
    return [line for corpus, some in of.items() for line in _recall_on(corpus, some)]


def _recall_on(corpus: str, evaluations: list[Result]) -> list[str]:
    first = evaluations[0]
    told = f"{first['items']} scenes that were not trained on, features by {first['weights']}"
    lines = [f"recall on {corpus}'s {told}:"]
    lines.append(f"  {'':15}{'caption to scene':^27}{'scene to captions':^27}")
    lines.append(f"  {'':15}" + f"{'R@1':>9}{'R@5':>9}{'R@10':>9}" * 2 + f"{'rsum':>9}")
    lines += [f"  {one['recipe']:15}" + _both(one["scores"]["all"], "recall") for one in evaluations]
    return [*lines, f"  {'chance':15}" + _both(first["scores"]["all"], "chance")]


def _both(scores: Result, what: str) -> str:
    found = [scores[side][what][k] for side in ("text_to_visual", "visual_to_text") for k in ("1", "5", "10")]
    return "".join(f"{each:9.1f}" for each in (*found, sum(found)))


def _as_typed(program: str) -> str:
    """How this environment's program is called from here, whether it is on the path or not."""
    beside = os.path.join(os.path.dirname(sys.executable), program)
    return program if shutil.which(program) == beside else os.path.relpath(beside)


def retry(result: Result) -> list[str]:
    lines = []
    for name, done in result["corpora"].items():
        what = "clips" if "unfinished" in done else "files"
        lines.append(f"{name}: {done['recovered']:,} of {done['tried']:,} {what} recovered")
        if what == "clips":
            lines += [
                f"{made} is made of them: build it again, which does what has changed" for made in done["unfinished"]
            ]
        elif done["recovered"]:
            lines.append(f"now `xmodal seal {name} --root {result['root']}`, and build again, to use them")
    return lines


def seal(result: Result) -> list[str]:
    return [f"{name}/{part}: {identity}" for name, parts in result.items() for part, identity in parts.items()]


def status(result: Result) -> list[str]:
    lines = [result["root"]]
    for ledger in result["ledgers"]:
        files = ", ".join(f"{count:,} {state}" for state, count in sorted(ledger["files"].items())) or "nothing tried"
        sealed = f"sealed as {ledger['sealed']}" if ledger["sealed"] else "not sealed"
        lines.append(f"{ledger['ledger']}: {files}, {gigabytes(ledger['bytes'])}, {sealed}")
        for kind, count in sorted(ledger["failures"].items(), key=lambda pair: -pair[1]):
            lines.append(f"    {kind}: {count:,}, such as {_failure(ledger['examples'][kind][0])}")
        lines += [f"    {text}" for text in _lacking(ledger["folders"])]
    for output in result["outputs"]:
        lines.append(output.get("damage") or _output(output))
        for kind, one in output.get("examples", {}).items():
            reason = f" ({one['reason']})" if one["reason"] else ""
            lines.append(f"    {kind}: such as {one['row']}{reason}")
    return lines


def _lacking(folders: Result, most: int = 10) -> list[str]:
    """The worst of them; all are in the JSON."""
    lines = [f"absent: {of['absent']:,} of {of['files']:,} in {name}" for name, of in list(folders.items())[:most]]
    return lines + ([f"and in {len(folders) - most:,} more folders"] if len(folders) > most else [])


def _failure(state: Result) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(state["last_at"]))
    return f"{state['path']} ({state['reason']}; {state['attempts']} attempts, the last {when})"


def _output(output: Result) -> str:
    name = f"{output['stage']}/{output['identity']}" + (f" of {output['of']}" if output["of"] else "")
    if output["complete"]:
        failures = "".join(f", {count:,} {kind}" for kind, count in sorted(output["failures"].items()))
        made = f"{output['files']:,} files, {gigabytes(output['bytes'])}: {counts(output['counts'])}"
        return f"{name}: complete, {made}{failures}"
    return f"{name}: {output['units']:,} of {output['planned'] or '?'} units, not finished: build again to go on"


def verify(result: Result) -> list[str]:
    if not result["damage"]:
        return [f"{result['files']:,} files are as they were committed"]
    lines = [f"{d['output']}/{d['file']}: {d['problem']}" for d in result["damage"]]
    if result["forgotten"]:
        return [*lines, f"{len(lines)} damaged: run `xmodal retry` for blobs/ and `xmodal build` for the rest"]
    return [*lines, f"{len(lines)} damaged: `xmodal verify --root {result['root']} --forget` has them made again"]


def leakage(result: Result) -> list[str]:
    lines = [f"{each['corpus']}: {_fingerprinted(each)}" for each in result["corpora"]]
    lines.append(f"{'pairs of':>60}  {'same item':>9} {'exact':>9} {'near':>9}   (near: {result['distance']} bits)")
    for pair in result["pairs"]:
        found = " ".join(f"{len(pair[how]):9,}" for how in ("same", "exact", "near"))
        lines.append(f"{pair['one'] + '  |  ' + pair['other']:>60}  {found}")
        lines += [f"        {how}: {_few(pair[how])}" for how in ("same", "exact", "near") if pair[how]]
    if not result["pairs"]:
        lines.append("no two splits to compare: name another corpus too")
    if cleaned := result.get("clean"):
        dropped = f", without {len(cleaned['dropped']):,}: {_few(cleaned['dropped'])}" if cleaned["dropped"] else ""
        lines.append(f"{cleaned['name']} has {cleaned['items']:,} items of {cleaned['split']}{dropped}")
        lines += [f"compared with {', '.join(cleaned['against'])}", cleaned["path"]]
    return lines


def _fingerprinted(of: Result) -> str:
    about = (f"{of[name]:,} {name}" for name in ("flat", "unreadable") if of.get(name))
    alone = f" ({', '.join(about)}: compared by their bytes alone)" if of["flat"] or of.get("unreadable") else ""
    return f"{of['media']:,} media{alone}" + (f", {of['absent']:,} absent" if of.get("absent") else "")


def _few(found: list[Any], most: int = 3) -> str:
    """The first of them; all are in the JSON."""
    texts = [each if isinstance(each, str) else " = ".join(each[:2]) for each in found[:most]]
    return ", ".join(texts) + (f" and {len(found) - most:,} more" if len(found) > most else "")


def vectors(result: Result) -> list[str]:
    from xmodal.text.word_vectors import Coverage

    if "captions" in result:
        told = f"{result['words']:,} words of {result['captions']:,} captions, {result['width']} numbers each"
        return [f"{told}, in {result['file']}"]
    words = "" if result["words"] is None else f"{result['words']:,} words, "
    lines = [f"{result['file']}: {result['format']}, {words}{result['width']} numbers each"]
    lines += [str(Coverage(**result["coverage"]))] if "coverage" in result else []
    return lines + ([f"its index is {result['index']}: give that as --vectors"] if "index" in result else [])


def doctor(checks: list[Result]) -> list[str]:
    lines = []
    for check in checks:
        lines.append(f"{check['verdict']:8} {check['name']:22} {check['found']}  (for {check['purpose']})")
        lines += [f"         {check['remedy']}"] if check["verdict"] != "ok" and check["remedy"] else []
    return lines


def counts(named: dict[str, int]) -> str:
    """The totals; what they are split by split is in the JSON."""
    return ", ".join(f"{count:,} {name}" for name, count in named.items() if count and ":" not in name) or "nothing"


def gigabytes(size: float) -> str:
    for unit, amount in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= amount:
            return f"{size / amount:,.1f} {unit}"
    return f"{size:.0f} bytes"
