"""Shows how far every output of a root is, its failures by class, and changes of your own lists.

examples:
  xmodal status --root data
  xmodal status mine.py --root data
  xmodal status --root s3://bucket/xmodal --json
"""

import time

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import absent, command, counts, failures, size
from xmodal.errors import UserError


def flags(parser: Parser) -> None:
    parser.add_argument("corpora", nargs="*", metavar="CORPUS", help="only what is of these: names, mine.py or a list")
    _flags.root(parser)


def run(args: Args) -> Result:
    from pipelines.fetching.corpus_names import changes
    from pipelines.upkeep.inspection import status

    storage, names = _flags.existing(args.root), {_flags.corpus_name(text, args) for text in args.corpora}
    changed, kept = changes(storage, names)
    found = status(storage) | {"changes": changed, "kept": kept}
    return _of_corpora(found, names) if names else found


def _of_corpora(found: Result, names: set[str]) -> Result:
    configs = [output["config"] for output in found["outputs"] if output.get("stage") == "records"]
    whose = names | {config["media_set"] for config in configs if config["corpus"] in names}
    ledgers = [ledger for ledger in found["ledgers"] if ledger["ledger"].rpartition("/")[2] in whose]
    outputs = [output for output in found["outputs"] if output.get("of") in whose]
    if missing := names - {ledger["ledger"].rpartition("/")[2] for ledger in ledgers}:
        listed = f"`{command('corpora', '--root', found['root'])}` lists what is"
        raise UserError(f"nothing of {min(missing)} is under {found['root']}: {listed}")
    return found | {"ledgers": ledgers, "outputs": outputs}


def text(result: Result) -> Lines:
    yield result["root"]
    yield from (f"{name}: {reason}" for name, said in result["kept"].items() for reason in said)
    for name, said in result["changes"].items():
        yield from (f"{name}: {change}" for change in said)
        yield f"{name}: `{command('build', name, '--root', result['root'])}` takes it as it is now"
    yield from (ledger["damage"] for ledger in result["ledgers"] if "damage" in ledger)
    for ledger in result["ledgers"]:
        if "damage" in ledger:
            continue
        files = ", ".join(f"{count:,} {state}" for state, count in sorted(ledger["files"].items())) or "nothing tried"
        sealed = f"sealed as {ledger['sealed']}" if ledger["sealed"] else "not sealed"
        yield f"{ledger['ledger']}: {files}, {size(ledger['bytes'])}, {sealed}"
        for kind, count in sorted(ledger["failures"].items(), key=lambda pair: -pair[1]):
            yield f"    {kind}: {count:,}, such as {_failure(ledger['examples'][kind][0])}"
        yield from (f"    {line}" for line in absent(ledger["folders"]))
    for output in result["outputs"]:
        yield output.get("damage") or _output(output, result["root"])
        for kind, one in output.get("examples", {}).items():
            yield f"    {kind}: such as {one['row']}" + (f" ({one['reason']})" if one["reason"] else "")


def _failure(state: Result) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(state["last_at"]))
    return f"{state['path']} ({state['reason']}; {state['attempts']} attempts, the last {when})"


def _output(output: Result, root: str) -> str:
    name = f"{output['stage']}/{output['identity']}" + (f" {output['differs']}" if "differs" in output else "")
    name += f" of {output['of']}" if output["of"] else ""
    if not output["complete"]:
        what = "not finished: build again to go on"
        if output["ended"]:
            what = f"not finished, as its last build ended with: {output['ended']}; build again"
            what += "" if output["units"] else f", or remove {output['path']}, in which nothing is done yet"
        if not output["needed"]:
            what = f"of a replaced list: `{command('prune', '--root', root)}` removes it, a day after it was begun"
        return f"{name}: {output['units']:,} of {output['planned'] or '?'} units, {what}"
    made = f"{output['files']:,} files, {size(output['bytes'])}: {counts(output['counts'])}"
    return f"{name}: complete, {made}{failures(output['failures'])}"
