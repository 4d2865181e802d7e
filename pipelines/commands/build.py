"""Brings stages of corpora up to date; continues where it stopped.

A corpus alone stands for sources, records and media. A stage brings what it needs before it.
`xmodal settings STAGE` lists what --set may change; `xmodal plan` takes the same arguments and builds nothing.

examples:
  xmodal build coco/records --root data                 download, check and parse the captions
  xmodal build coco --root s3://bucket/xmodal --raw ~/Downloads
  xmodal build coco/resnet --root data --set resnet.network=resnet50 --set resnet.weights=IMAGENET1K_V2
  xmodal build mylist.parquet --url url --caption caption --root data    your own data; from then on named mylist
  xmodal build pictures --captions captions.csv --url file --splits train=0.8,val=0.1,test=0.1 --root data
  xmodal build hf://org/name --url image --caption text --root data
  xmodal build mine.py --root data --serial             a corpus that a Python file defines; from then on by its name
  xmodal build coco/records --root data --raw part --sample    of a part of its files; from then on named coco-sample
"""

import argparse

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import absent, command, counts, failures

GROUP = "data"


def flags(parser: Parser) -> None:
    _flags.targets(parser, "CORPUS[/STAGE]")
    _flags.root(parser)
    _flags.building(parser)
    _flags.sample(parser)
    parser.add_argument(
        "--most-absent",
        type=_share,
        metavar="SHARE",
        help="exit with 3 where more than this share, 0 to 1, is absent or unusable (default: only where all is)",
    )
    _flags.own_data(parser)


def run(args: Args) -> Result:
    from pipelines.fetching.corpus_names import building, hints
    from pipelines.stages import is_of
    from pipelines.upkeep.corpus_build import build_stages, unread

    options, rows, notes = _flags.build_options(args), [], []
    targets, storage = _flags.parse_targets(args, options), options.storage
    if ignored := unread(options.settings, [stage for _, stages in targets for stage in stages]):
        options.progress.say(f"no stage of this build reads {', '.join(ignored)}")
    for work, stages in targets:
        corpus, place = work.corpus, work.options.list_at
        with building(storage, corpus, place):
            rows += build_stages(work, stages)
        notes += hints(storage, corpus, place, of_clips=any(is_of(stage, "clip") for stage in stages))
    lacking = [f"{row['corpus']}/{row['stage']}" for row in rows if _lacks(row, args.most_absent)]
    return {"root": storage.url, "outputs": rows, "notes": [*dict.fromkeys(notes)], "too_much_absent": lacking}


def text(result: Result) -> Lines:
    yield from outputs(result)
    for row in result["outputs"]:
        if (name := f"{row['corpus']}/{row['stage']}") in result["too_much_absent"]:
            share = f"{row['absent']:,} of {row['planned']:,}"
            yield f"{name}: {share} absent or unusable, so the exit code is 3 (see --most-absent)"


def exit_code(result: Result) -> int:
    return 3 if result["too_much_absent"] else 0


def outputs(result: Result) -> Lines:
    """Two lines an output, and what is odd or absent in it; the demo shows them too."""
    for row in result["outputs"]:
        name, state = f"{row['corpus']}/{row['stage']}", "built" if row["built"] else "up to date"
        yield f"{name:28} {state:10}  {row['path']}"
        yield f"{'':28} {counts(row['counts'])}{failures(row['failures'])}"
        odd = (f"{rule}: {count:,}" for rule, count in row["counts"].items() if rule.startswith("odd: ") and count)
        yield from (f"{'':28} {line}" for line in (*odd, *_absent(row), *_retry(row)))
    yield from (f"note: {note}" for note in result.get("notes", ()))


def _absent(row: Result) -> list[str]:
    """Where media are absent: how many of which folders, why, and what brings those that come after all."""
    why = row.get("reasons", {}).items()
    lines = [f"{one['files']:,} {kind}, such as {one['path']}: {one['reason']}" for kind, one in why]
    lines = [*absent(row.get("folders", {})), *lines]
    retry, seal = command("retry", row["corpus"]), command("seal", row["corpus"])
    cure = f"once they are there: `{retry} [--raw FOLDER]`, then `{seal}`, and build again"
    return [*lines, cure] if lines else []


def _retry(row: Result) -> list[str]:
    """The command that tries failed items again, where another try may help."""
    again = command("retry", f"{row['corpus']}/{row['stage']}")
    return [f"`{again}` tries those of {' and '.join(row['retry'])} again"] if row.get("retry") else []


def _lacks(row: Result, most: float | None) -> bool:
    planned, absent = int(row["planned"]), int(row["absent"])
    return 0 < planned <= absent if most is None else absent > most * planned


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"a share from 0 to 1, not {text}")
    return share
