"""Brings stages of corpora up to date; continues where it stopped.

A corpus alone stands for sources, records and media. A stage brings what it needs before it.
The name of your own list takes the list and the files beside it as they are now, and says what has changed.
`xmodal settings STAGE` lists what --set may change; `xmodal plan` takes the same arguments and builds nothing.

examples:
  xmodal build coco/records --root data                 download and parse the captions
  xmodal build coco --root s3://bucket/xmodal --raw ~/Downloads    what you have, also dataset_coco.json unpacked
  xmodal build coco/resnet --root data --set resnet.network=resnet50 --set resnet.weights=IMAGENET1K_V2
  xmodal build mylist.parquet --url url --caption caption --root data    your own data; from then on named mylist
  xmodal build coco/resnet --root data --set resnet.network=resnet18 --weights mine.pth
  xmodal build pictures --captions captions.csv --url file --splits train=0.8,val=0.1,test=0.1 --root data
  xmodal build list.tsv.gz --header no --url 1 --caption 3 --root data      the first and third of columns without names
  xmodal build tagged.json --labels tags --repeats keep --root data         with categories for PMRP
  xmodal build hf://org/name --url image --caption text --root data
  xmodal build coco/tags --root data --file open_images=scores.tsv    its first line is id<tab>tag<tab>score; or an .h5
  xmodal build mine.py --root data --serial             a corpus that a Python file defines; from then on by its name
  xmodal build coco/records --root data --raw part --sample    of a part of its files; from then on named coco-sample
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import absent, command, counts, failures, reasons


def flags(parser: Parser) -> None:
    _flags.targets(parser, "CORPUS[/STAGE]")
    _flags.building(parser)
    _flags.most_absent(parser)
    _flags.own_data(parser)


def run(args: Args) -> Result:
    from pipelines.fetching.corpus_names import building, hints
    from pipelines.stages import is_of
    from pipelines.upkeep.corpus_build import build_stages, unread

    options = _flags.build_options(args)
    _flags.refuse_missing(options.files)
    targets, storage = _flags.parse_targets(args, options), options.storage
    rows, notes = [], []
    if ignored := unread(options, [stage for _, stages in targets for stage in stages]):
        options.progress.say(f"no stage of this build reads {', '.join(ignored)}")
    for work, stages in targets:
        work.refuse_early(stages)
        if not args.address:  # on whose machines all may be there
            work.refuse_without_packages(stages)
    for work, stages in targets:
        with building(storage, work.found):
            rows += build_stages(work, stages)
        notes += hints(storage, work.found, of_clips=any(is_of(stage, "clip") for stage in stages))
    lacking = [_name(row) for row in rows if row["absent"] > args.most_absent * row["planned"]]
    return {"root": storage.url, "outputs": rows, "notes": [*dict.fromkeys(notes)], "too_much_absent": lacking}


def text(result: Result) -> Lines:
    yield from outputs(result)
    for row in result["outputs"]:
        if (name := _name(row)) in result["too_much_absent"]:
            share = f"{row['absent']:,} of {row['planned']:,}"
            yield f"{name}: {share} absent or unusable, most often {_commonest(row)}: exit code 3 (see --most-absent)"


def exit_code(result: Result) -> int:
    return 3 if result["too_much_absent"] else 0


def outputs(result: Result) -> Lines:
    for row in result["outputs"]:
        yield f"{_name(row):28} {'built' if row['built'] else 'up to date':10}  {row['path']}"
        yield from (f"{'':28} {line}" for line in _below(row, result["root"]))
    yield from (f"note: {note}" for note in result.get("notes", ()))


def _below(row: Result, root: str) -> Lines:
    from pipelines.fetching.ledger import LINK

    if row["stage"] == "media" and not row["planned"]:
        yield "no picture or clip: neither CORPUS.sources nor its media(raw) has any, so stages that look at them fail"
        return
    yield counts(row["counts"]) + failures(row["failures"])
    yield from (f"{rule}: {count:,}" for rule, count in row["counts"].items() if rule.startswith("odd: ") and count)
    why = row.get("reasons", {})
    yield from absent(row.get("folders", {}))
    yield from reasons(why)
    if why or row.get("folders"):
        retry, seal = (command(word, row["corpus"], "--root", root) for word in ("retry", "seal"))
        if LINK in why:
            follow = command("build", "LIST", "--follow-links", "--root", root)
            yield f"`{follow}` takes what links lead to, LIST being your list or folder"
        if {*why} != {LINK}:
            yield f"once they are there: `{retry} [--raw FOLDER]`, then `{seal}`, and build again"
    if row.get("retry"):
        yield f"`{command('retry', _name(row), '--root', root)}` tries those of {' and '.join(row['retry'])} again"


def _name(row: Result) -> str:
    return f"{row['corpus']}/{row['stage']}"


def _commonest(row: Result) -> str:
    """The class of most failures, of files with the reason of one of them."""
    from pipelines.stages.semantics import WITHOUT_REGIONS

    classes = {kind: of["files"] for kind, of in row.get("reasons", {}).items()} or dict(row["failures"])
    if without := row["counts"].get(WITHOUT_REGIONS):
        classes[WITHOUT_REGIONS] = without
    kind: str = max(classes, key=classes.__getitem__, default="other bytes than are pinned")
    return f"{kind} ({row['reasons'][kind]['reason']})" if row.get("reasons") else kind
