"""The `xmodal` command: runs one command, prints its result or one line about what went wrong."""

import json
import os
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from operator import methodcaller
from types import ModuleType
from typing import Any

from pipelines import commands
from pipelines.commands._errors import explain
from xmodal.progress import printable


def main(arguments: list[str] | None = None) -> int:
    parser, root = commands.parser(), ""
    try:
        args = parser.parse_args(arguments)
        if args.command is None:
            parser.print_help()
            return 0
        command, root = commands.load_all()[args.command], getattr(args, "root", None) or ""
        result = _run(command, args)
    except KeyboardInterrupt:
        return _complain("stopped; run the same command again to go on", code=130)
    except Exception as error:
        if not (text := explain(error, root)):
            raise
        return _complain(text)
    together = sys.modules.get("xmodal.batches.distributed")
    if not together or together.rank() == 0:  # of several processes that train together the first one prints
        _show(args.json, command, result)
    return int(command.exit_code(result)) if hasattr(command, "exit_code") else 0


def _run(command: ModuleType, args: Namespace) -> Any:
    """Keeps stdout for the result: Ray reports dead workers there, and once more as it leaves."""
    with redirect_stdout(sys.stderr):
        try:
            return command.run(args)
        finally:
            if ray := sys.modules.get("pipelines.engine.ray_runner"):
                ray.disconnect()


def _show(as_json: bool, command: ModuleType, result: Any) -> None:
    if as_json or not (isinstance(result, str) or hasattr(command, "text")):
        text = json.dumps(result, indent=1, default=methodcaller("tolist"))  # numbers of numpy
    else:
        text = printable(result if isinstance(result, str) else "\n".join(command.text(result)))
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `xmodal status | head`: the reader has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str, code: int = 1) -> int:
    print(f"xmodal: {printable(' '.join(text.split()))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
