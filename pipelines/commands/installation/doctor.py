"""Checks what this machine lacks, what that is needed for, and how to get it.

The exit code is 1 where something lacks that nothing works without.

examples:
  xmodal doctor
  xmodal doctor --root s3://bucket/xmodal               also whether a root can be written to
"""

from dataclasses import asdict

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.upkeep.machine import examine


def flags(parser: Parser) -> None:
    _flags.root(parser, required=False)


def run(args: Args) -> list[Result]:
    return [*map(asdict, examine(args.root))]


def text(result: list[Result]) -> Lines:
    for check in result:
        yield f"{check['verdict']:8} {check['name']:22} {check['found']}  (for {check['purpose']})"
        if check["verdict"] != "ok" and check["remedy"]:
            yield f"         {check['remedy']}"


def exit_code(result: list[Result]) -> int:
    return int(any(check["needed"] and check["verdict"] != "ok" for check in result))
