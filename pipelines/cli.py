"""The `xmodal` command: reads the arguments, runs one command, prints its result or one line about what went wrong."""

import argparse
import errno
import json
import os
import sys
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

from pipelines import commands
from xmodal.errors import UserError

DISK = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "your disk quota is used up: free some space",
    errno.EFBIG: "the disk takes no file that large: choose another root",
    errno.EROFS: "the disk is read-only: choose another root",
    errno.EACCES: "no permission to read or write there: have it given, or choose another root",
    errno.EPERM: "not permitted there (no hard links?): choose another root",
}


def main(arguments: list[str] | None = None) -> int:
    parser = commands.parser()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    command = commands.load_all()[args.command]
    root = getattr(args, "root", None) or ""
    try:
        result = _run(command, args)
    except UserError as trouble:
        return _complain(str(trouble))
    except OSError as error:
        return _complain(_about_disk(error, root))
    except ModuleNotFoundError as error:
        from pipelines.upkeep.machine import how_to_install

        if not (cure := how_to_install(error.name or "")):
            raise
        return _complain(cure)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"botocore", "aiobotocore", "aiohttp"}:
            raise
        return _complain(f"the object store of {root} does not answer as it should: {error}")
    except KeyboardInterrupt:
        return _complain("stopped; run the same command again to go on", code=130)
    if not _is_second():
        _show(command, args, result)
    return int(command.exit_code(result)) if hasattr(command, "exit_code") else 0


def _run(command: ModuleType, args: argparse.Namespace) -> Any:
    """Stdout is for the result alone: Ray reports dead workers there, and once more as it leaves."""
    with redirect_stdout(sys.stderr):
        try:
            return command.run(args)
        finally:
            if "pipelines.engine.ray_runner" in sys.modules:
                sys.modules["pipelines.engine.ray_runner"].disconnect()


def _is_second() -> bool:
    """Among several processes that train together only the first prints the result."""
    return "xmodal.batches.distributed" in sys.modules and sys.modules["xmodal.batches.distributed"].rank() > 0


def _show(command: ModuleType, args: argparse.Namespace, result: Any) -> None:
    try:
        print(json.dumps(result, indent=1) if args.json else "\n".join(command.text(result)))
        sys.stdout.flush()
    except BrokenPipeError:  # `xmodal status | head`: the reader has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str, code: int = 1) -> int:
    print(f"xmodal: {' '.join(text.split())}", file=sys.stderr)
    return code


def _about_disk(error: OSError, root: str) -> str:
    where = f" ({error.filename})" if error.filename else ""
    folder = os.path.abspath(os.path.expanduser(root))
    if error.errno == errno.ENOENT and root and not os.path.isdir(folder) and folder.startswith(str(error.filename)):
        return f"the folder {root} cannot be made: choose another root"
    if error.errno == errno.ENOENT and root and str(error.filename).startswith(folder):
        return f"a file is missing{where}: `xmodal verify --forget` has it made again by the next build or retry"
    if error.errno is None:
        return f"{error}: if a file under {root} is damaged, `xmodal verify --forget` finds it"
    if error.errno not in DISK:
        return f"{error.strerror}{where}"
    return f"{DISK[error.errno]}{where}; then run the same command again: what is committed is kept"


if __name__ == "__main__":
    sys.exit(main())
