"""How several commands show counts, sizes, failures, features and commands to a person."""

import shlex
from collections.abc import Mapping

from pipelines.commands import Result

MOST_FOLDERS = 10


def counts(named: Mapping[str, int]) -> str:
    """The totals; those of each split are in the JSON. Records count a row of `splits` for each item of a split."""
    if "splits" in named:
        named = {**named, "splits": sum(name.startswith("items:") for name in named)}
    return ", ".join(f"{count:,} {name}" for name, count in named.items() if count and ":" not in name) or "nothing"


def failures(named: Mapping[str, int]) -> str:
    """Failures after the counts of an output, in which rows of truncated files are counted."""
    kinds = sorted(named, key=lambda kind: (kind != "truncated", kind))
    return "".join(f", {named[kind]:,} {'of them ' if kind == 'truncated' else ''}{kind}" for kind in kinds)


def size(number: float) -> str:
    for unit, amount in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= amount:
            return f"{number / amount:,.1f} {unit}"
    return f"{number:.0f} bytes"


def absent(folders: Result) -> list[str]:
    """The folders with most absent files; all are in the JSON."""
    lines = [f"absent: {of['absent']:,} of {of['files']:,} in {name}" for name, of in folders.items()]
    more = len(folders) - MOST_FOLDERS
    return lines[:MOST_FOLDERS] + ([f"and in {more:,} more folders"] if more > 0 else [])


def reasons(found: Result) -> list[str]:
    """A line for each class of failures, with one of them."""
    return [f"{of['files']:,} {kind}, such as {of['path']}: {of['reason']}" for kind, of in found.items()]


def features(result: Result) -> str:
    shape = " x ".join([*(["rows"] if result["ragged"] else []), *map(str, result["row_shape"])]) or "one number"
    return f"{result['items']:,} items, each {shape}, {result['dtype']}"


def command(*words: object) -> str:
    return shlex.join(map(str, ("xmodal", *words)))
