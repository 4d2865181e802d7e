"""Shows how far every output of a root is, and its failures by class.

examples:
  xmodal status --root data
  xmodal status --root s3://bucket/xmodal --json
"""

import time

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import absent, counts, failures, size

GROUP = "data"


def flags(parser: Parser) -> None:
    _flags.root(parser)


def run(args: Args) -> Result:
    from pipelines.upkeep.inspection import status

    return status(_flags.existing(args.root))


def text(result: Result) -> Lines:
    yield result["root"]
    for ledger in result["ledgers"]:
        files = ", ".join(f"{count:,} {state}" for state, count in sorted(ledger["files"].items())) or "nothing tried"
        sealed = f"sealed as {ledger['sealed']}" if ledger["sealed"] else "not sealed"
        yield f"{ledger['ledger']}: {files}, {size(ledger['bytes'])}, {sealed}"
        for kind, count in sorted(ledger["failures"].items(), key=lambda pair: -pair[1]):
            yield f"    {kind}: {count:,}, such as {_failure(ledger['examples'][kind][0])}"
        yield from (f"    {line}" for line in absent(ledger["folders"]))
    for output in result["outputs"]:
        yield output.get("damage") or _output(output)
        for kind, one in output.get("examples", {}).items():
            yield f"    {kind}: such as {one['row']}" + (f" ({one['reason']})" if one["reason"] else "")


def _failure(state: Result) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(state["last_at"]))
    return f"{state['path']} ({state['reason']}; {state['attempts']} attempts, the last {when})"


def _output(output: Result) -> str:
    name = f"{output['stage']}/{output['identity']}" + (f" of {output['of']}" if output["of"] else "")
    if not output["complete"]:
        return f"{name}: {output['units']:,} of {output['planned'] or '?'} units, not finished: build again to go on"
    made = f"{output['files']:,} files, {size(output['bytes'])}: {counts(output['counts'])}"
    return f"{name}: complete, {made}{failures(output['failures'])}"
