"""Shows what a build would do, before anything runs: requests, bytes, disk, time.

A list of your own is read, so that a plan knows its items and the sizes of files beside it; nothing is written.

examples:
  xmodal plan coco --root data
  xmodal plan mylist.csv/resnet --root data
  xmodal plan coco/resnet --root data --set resnet.output=pooled --json
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import size
from pipelines.engine.progress_line import duration
from xmodal.errors import few


def flags(parser: Parser) -> None:
    _flags.targets(parser, "CORPUS[/STAGE]")
    _flags.building(parser)
    _flags.own_data(parser)


def run(args: Args) -> Result:
    from pipelines.upkeep.corpus_build import unread
    from pipelines.upkeep.planning import plan

    options = _flags.build_options(args)
    _flags.refuse_missing(options.files)
    targets = _flags.parse_targets(args, options)
    if ignored := unread(options, [stage for _, stages in targets for stage in stages]):
        options.progress.say(f"no stage of this plan reads {', '.join(ignored)}")
    return {"stages": plan(targets), "free_bytes": options.storage.free_bytes()}


def text(result: Result) -> Lines:
    rows, free = result["stages"], result["free_bytes"]
    yield from map(_row, rows)
    totals = ("writes", "seconds", "requests", "compute_seconds")
    writes, seconds, requests, computing = (sum(row.get(name, 0) for row in rows) for name in totals)
    least, most = (sum(row.get("bytes_between", (0, 0))[bound] for row in rows) for bound in (0, 1))
    needed = least + writes
    disk = f"{_interval(needed, most + writes)} of disk" + ("" if free is None else f" of {size(free)} free")
    loads = f"{requests:,} requests, {_interval(least, most)}, about {duration(seconds)} to download"
    yield f"in all: {loads}; {disk}" + (f"; about {duration(computing)} to compute" if computing else "")
    if waiting := [f"{row['corpus']}/{row['stage']}" for row in rows if "waits_for" in row and "items" not in row]:
        yield f"{', '.join(waiting)}: to be reckoned once what each comes after is done; plan again then"
    if free is not None and needed > free:
        yield f"this does not fit: {size(needed - free)} too little on the disk of the root"
    elif free is not None and most + writes > free:
        yield f"this may not fit: at most {size(most + writes - free)} too little on the disk of the root"


def _row(row: Result) -> str:
    name = f"{row['corpus']}/{row['stage']}"
    about = f", {_rows(row)}" if "items" in row else ""
    about += f", about {size(row['writes'])} to write" if row.get("writes") else ""
    if "by" in row:
        cores = f"{row['cores']} core{'s' if row['cores'] > 1 else ''}"
        about += f", about {duration(row['compute_seconds'])} on {cores} and {size(row['memory'])} of memory"
        about += f", by {row['by']}"
    if "waits_for" in row:
        media = f", {_interval(*row['bytes_between'])} by a table" if "bytes_between" in row else ""
        return f"{name:28} after {row['waits_for']}{media}{about}"
    if "units" in row:
        return f"{name:28} {row['done']:,} of {row['units']:,} units done{about}"
    parts = [f"{row['done']:,} of {row['files']:,} files here"]
    parts += [f"{row['at_hand']:,} on this machine, {size(row['at_hand_bytes'])}"] if row["at_hand"] else []
    parts += [f"{row['requests']:,} to download, {_interval(*row['bytes_between'])}"] if row["requests"] else []
    if row["unknown_sizes"]:
        parts += [f"{row['unknown_sizes']:,} of them of unknown size ({row['known_sizes']:,} of this set are known)"]
    parts += [f"{len(row['by_hand']):,} to be got by hand: {few(row['by_hand'], 3)}"] if row["by_hand"] else []
    if row["links"]:
        parts += [f"{len(row['links']):,} refused as links out of the folder (--follow-links): {few(row['links'], 3)}"]
    parts += [f"{row['failed_before']:,} failed before, which only a retry tries again"] if row["failed_before"] else []
    return f"{name:28} {', '.join(parts)}"


def _rows(row: Result) -> str:
    """Says what a stage reads, and which of its rows are there already."""
    rows = f"{row['items']:,} items" + (f" and {row['captions']:,} captions" if "captions" in row else "")
    return rows + (f", {row['taken']:,} rows taken over and {row['new']:,} new" if "taken" in row else "")


def _interval(least: int, most: int) -> str:
    return size(least) if least == most else f"between {size(least)} and {size(most)}"
