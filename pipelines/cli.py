"""The `xmodal` command: names what to do, takes circumstances as flags, and says in one line what went wrong."""

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from keyword import iskeyword
from pathlib import Path
from typing import Any

from xmodal.trouble import Trouble

EPILOG = """examples:
  xmodal corpora                                        what can be built
  xmodal plan coco --root data                          what it would take
  xmodal build coco/records --root data                 download, check and parse the captions
  xmodal build coco --root s3://bucket/xmodal --raw ~/Downloads
  xmodal build coco/resnet --root data --set resnet.network=resnet50 --set resnet.weights=IMAGENET1K_V2
  xmodal train vsepp --root data --run runs/vsepp; xmodal evaluate runs/vsepp --root data
  xmodal reproduce pvse; xmodal reproduce "pvse table 2" --root data --runs runs
  xmodal look runs/pvse --root data --attention maps    where it looks; --probes: what makes a PCME unsure
  xmodal evaluate --scores sims.npy --corpus coco --root data    anybody's similarity matrix
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data    weights that a paper's authors released
  xmodal build coco/fingerprints --root data; xmodal leakage coco --root data --clean karpathy/test
  xmodal stats coco --root data                         what it consists of, beside what the papers print of it
  xmodal publish coco --root data --out coco-captions
  xmodal import dev_ims.npy --root data --name scan36; xmodal export data/scan36/IDENTITY features.h5
  xmodal status --root data; xmodal retry coco --root data
  xmodal build mylist.parquet --url url --caption caption --root data    your own data; from then on named mylist
  xmodal build pictures --captions captions.csv --url file --splits train=0.8,val=0.1,test=0.1 --root data
  xmodal build hf://org/name --url image --caption text --root data
  xmodal train vsepp --corpus mylist --root data; xmodal publish mylist --root data --out mine
  xmodal build mine.py --root data --serial             a corpus that a Python file defines, without Ray

A command that was stopped, by whatever, is continued by running it again."""

WEIGHTS = (".pth", ".pt", ".tar")

REPRODUCE = """examples:
  xmodal reproduce                                      every experiment, one a line
  xmodal reproduce pvse                                 those of a paper, with their rows
  xmodal reproduce pvse table 2                         one, with all that is printed and the commands to run it
  xmodal reproduce dualpath:VIII --json
  xmodal reproduce pvse-2 --root data --runs runs --vectors glove.840B.300d.txt
                                       trains and evaluates what is ready of it; finished runs stay"""

EVALUATE = """examples:
  xmodal evaluate runs/vsepp --root data                a run, on the test split of its corpus
  xmodal evaluate runs/pcme --root data --split karpathy/val --distance elk --json
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data --corpus coco
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data --set visual.stage=pixels     by the CNN in the file
  xmodal evaluate tgif.pth --vocabulary tgif_vocab.pkl --root data --corpus tgif --set visual.frames=8
  xmodal evaluate --scores sims.npy --corpus coco --root data

A file of PVSE, PCME or VSE++ is evaluated on features of a corpus, read as that paper's recipe for the corpus reads:
7 x 7 x 2048 of its ResNet; VSE++ takes their mean too. Training has moved the CNN of most files: authors' numbers need
visual.stage=pixels, which looks at the pictures by the CNN in the file."""

DISK = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "your disk quota is used up: free some space",
    errno.EFBIG: "the disk takes no file that large: choose another root",
    errno.EROFS: "the disk is read-only: choose another root",
    errno.EACCES: "no permission to write there: choose another root",
    errno.EPERM: "not permitted there (no hard links?): choose another root",
}


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 0
    try:
        result, code = COMMANDS[chosen.command](chosen)
    except Trouble as trouble:
        return _complain(str(trouble))
    except OSError as error:
        return _complain(_about_disk(error, chosen))
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"botocore", "aiobotocore", "aiohttp"}:
            raise
        return _complain(f"the object store of {chosen.root} does not answer as it should: {error}")
    except KeyboardInterrupt:
        return _complain("stopped; run the same command again to go on", code=130)
    finally:
        if "pipelines.ray_runner" in sys.modules:
            sys.modules["pipelines.ray_runner"].disconnect()
    if not _is_second():
        _show(chosen, result)
    return code


def _is_second() -> bool:
    """Of several processes that train together the first one says how it went."""
    return "xmodal.together" in sys.modules and sys.modules["xmodal.together"].rank() > 0


def _show(chosen: argparse.Namespace, result: Any) -> None:
    from pipelines import wording

    try:
        said = getattr(wording, chosen.command + "_" * iskeyword(chosen.command))  # `import` is no name in Python
        print(json.dumps(result, indent=1) if chosen.json else "\n".join(said(result)))
        sys.stdout.flush()
    except BrokenPipeError:  # `xmodal status | head`: whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str, code: int = 1) -> int:
    print(f"xmodal: {' '.join(text.split())}", file=sys.stderr)
    return code


def _about_disk(error: OSError, chosen: argparse.Namespace) -> str:
    where = f" ({error.filename})" if error.filename else ""
    root = os.path.abspath(os.path.expanduser(chosen.root or ""))
    if error.errno == errno.ENOENT and str(error.filename).startswith(root):
        return f"a file is missing{where}: `xmodal verify --forget` has it made again by the next build or retry"
    if error.errno is None:
        return f"{error}: if a file under {chosen.root} is damaged, `xmodal verify --forget` finds it"
    advice = DISK.get(error.errno or 0, str(error.strerror or error))
    return f"{advice}{where}; then run the same command again: what is committed is kept"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xmodal", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, text: str, *, targets: str = "", root: bool | None = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        if targets:
            sub.add_argument(
                "targets",
                nargs="+",
                metavar=targets,
                help="a corpus, a list or folder of yours, mine.py; /STAGE for one",
            )
        sub.set_defaults(root=None)
        if root is not None:
            sub.add_argument("--root", required=root, help="where outputs are: a folder, or a URL, s3://bucket/run")
        sub.add_argument("--json", action="store_true", help="the result as JSON on stdout")
        return sub

    command("corpora", "every corpus: licence, what is built under a root", root=False)
    for name, text in (
        ("plan", "what a build would do, before anything runs"),
        ("build", "bring stages up to date; continues where it stopped"),
    ):
        building = command(name, text, targets="CORPUS[/STAGE]")
        _circumstances(building)
        _own(building)
    retry = command("retry", "try the failed files again, and nothing else", targets="CORPUS")
    retry.add_argument("--class", dest="kind", help="only failures of this class, such as timeout or http_404")
    _circumstances(retry)
    command("seal", "a new sealed set from what the ledger says now", targets="CORPUS")
    command("status", "progress, and failures by class")
    verify = command("verify", "read every byte and compare it with the records")
    verify.add_argument("--forget", action="store_true", help="have damaged parts made again by the next build")
    _training(command("train", "train a recipe from cached features; goes on where it stopped"))
    _evaluating(command("evaluate", "every metric of a run, released weights or a similarity matrix on a split"))
    _looking(command("look", "where a run's model looks, as pictures; or what makes it unsure"))
    _describing(command("stats", "descriptive tables of a corpus as parsed, beside what the papers print of it"))
    _reproducing(
        command("reproduce", "every table and figure of the five papers: what it takes, and its state", root=False)
    )
    _leaking(command("leakage", "media that lie in several splits, or in several corpora, and nearly so"))
    publish = command("publish", "a Hugging Face dataset in a local folder", targets="CORPUS")
    publish.add_argument("--out", type=_local, required=True, help="the folder; one of an earlier publish is replaced")
    _importing(command("import", "features that you have already, as the output of a stage; goes on where it stopped"))
    _exporting(command("export", "features as .npy, .h5, webdataset .tar, or an npz an item", root=None))
    demo = command("demo", "everything, on a small generated world with COCO's files", root=False)
    demo.add_argument("--items", type=int, default=1000, help="scenes in the world (default: 1000)")
    _circumstances(demo)
    command("doctor", "what is missing on this machine and how to get it", root=False)
    return parser


def _own(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group(
        "your own data",
        "A list (.parquet, .csv, .tsv, .jsonl), a folder with one, or a Hugging Face dataset (a folder, or "
        "hf://org/name) in place of a corpus. Without these flags it is read as this root read it last.",
    )
    own.add_argument("--url", metavar="COLUMN", help="addresses, paths beside the list, or pictures (default: url)")
    own.add_argument("--caption", metavar="COLUMN", help="a text or a list of texts (default: caption)")
    own.add_argument("--id", metavar="COLUMN", help="(default: made from the address, the path or the picture)")
    own.add_argument("--split", metavar="COLUMN", help="the split of each row (default: as --splits)")
    own.add_argument("--splits", metavar="NAME=SHARE,…", help="by hash of the id (train=0.9,val=0.05,test=0.05)")
    own.add_argument("--captions", metavar="FILE", help="the list of a folder, where it is not captions.* in it")
    own.add_argument("--name", help="the name of the corpus (default: that of the list or folder)")


def _training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="such as vsepp; a wrong name lists them all")
    parser.add_argument("--corpus", help="another one than the recipe's, in its splits of the same name")
    parser.add_argument("--run", type=_local, help="the folder of the run (default: runs/RECIPE)")
    parser.add_argument("--records", help="identity of the records, where the root has several")
    parser.add_argument("--features", help="identity of the features, where the root has several")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    parser.add_argument("--pixels", help="identity of the resized pictures, where the root has several")
    parser.add_argument(
        "--vectors", type=_local, metavar="FILE", help="the word vectors that the recipe names, as text"
    )
    parser.add_argument("--weights", type=_local, metavar="FILE", help="of the features' network, to train it further")
    parser.add_argument("--workers", type=_count, default=0, help="processes that train together, by Ray Train")
    parser.add_argument("--address", help="the Ray cluster of --workers (auto, or host:port); default: this machine")
    parser.add_argument("--tensorboard", action="store_true", help="write RUN/tensorboard beside RUN/log.jsonl")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="epochs=3, model.width=512")


def _evaluating(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EVALUATE
    parser.add_argument(
        "run",
        type=_local,
        nargs="?",
        metavar="RUN|FILE",
        help="the folder of a run, or its best.pt; weights in a file of PVSE, PCME or VSE++; or use --scores",
    )
    parser.add_argument(
        "--vocabulary", type=_local, metavar="WORDS", help="of FILE: the .pkl or .json released with it, or of a run"
    )
    parser.add_argument("--records", help="identity of FILE's records, where the root has several")
    parser.add_argument("--features", help="identity of FILE's features, where the root has several")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="of FILE: visual.stage=frames, visual.frames=8"
    )
    parser.add_argument("--split", help="such as karpathy/val (default: the test split)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    parser.add_argument("--distance", help="another score of the same weights: elk, js, wasserstein, … (PCME)")
    parser.add_argument("--eccv", type=_local, metavar="DIR", help="a folder with ECCV-Caption's two JSON files")
    parser.add_argument("--latex", action="store_true", help="the result as LaTeX tables on stdout")
    parser.add_argument(
        "--scores",
        type=_local,
        metavar="FILE",
        help="a .npy matrix of similarities, greater is closer: rows are the split's items, columns the captions of "
        "the first item, of the second, …, as --write-ids lists them; or the first captions of each, 5 for example",
    )
    parser.add_argument("--corpus", help="the corpus of --scores, and of FILE (default there: coco)")
    parser.add_argument(
        "--ids", metavar="PREFIX", help="rows and columns as PREFIX.items.txt and PREFIX.captions.txt say"
    )
    parser.add_argument(
        "--write-ids", metavar="PREFIX", help="writes these two files for --corpus, and does nothing else"
    )


def _looking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=_local, help="the folder of a run")
    parser.add_argument("--split", help="such as karpathy/val (default: the test split)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--attention", type=_local, metavar="DIR", help="a PNG an item: every map of attention over it")
    what.add_argument(
        "--probes", action="store_true", help="uncertainty by what is taken away, and recall by it (PCME)"
    )
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--items", nargs="+", default=[], metavar="ID", help="of --attention: these items of the split")
    some.add_argument("--first", type=_count, metavar="N", help="of --attention: its first items (default: 8)")


def _leaking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="CORPUS", help="corpora whose fingerprints are built")
    parser.add_argument(
        "--distance", type=_count, metavar="N", help="near pictures differ in at most so many bits of 64 (default: 6)"
    )
    parser.add_argument(
        "--clean",
        metavar="SPLIT",
        help="of the first corpus, karpathy/test: written beside it without what lies in training splits",
    )


def _describing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="CORPUS", help="a corpus or a file mine.py, with records under the root")
    parser.add_argument("--records", help="identity of the records, where the root has several")
    parser.add_argument("--latex", action="store_true", help="the splits as a LaTeX table on stdout")


def _importing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=_local, help="x.npy, x.h5, x.tar, a Zarr array, or a folder of .npz, .npy, .tar")
    parser.add_argument("--name", required=True, help="the stage that it becomes, as recipes name it (visual.stage)")
    parser.add_argument("--ids", type=_local, help="a file with one id a line (default: x_ids.txt or ids.txt beside)")
    parser.add_argument("--key", help="which array of an .h5 or of every .npz; of a tar, the KEY of ID.KEY.npy")
    _workers(parser)


def _exporting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("features", help="the directory of the features: ROOT/STAGE/IDENTITY")
    parser.add_argument("out", type=_local, help="x.npy, x.h5 or x.tar; any other name is a folder of .npz")
    parser.add_argument("--array", help="which array of the features (default: the first)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--ids", type=_local, help="a file with one id a line: these alone, in this order")
    chosen.add_argument("--split", help="such as karpathy/test: its items; x_ims.npy gets captions in x_caps.txt")
    parser.add_argument("--corpus", help="of the split, where the root has several")


def _reproducing(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = REPRODUCE
    parser.add_argument("names", nargs="*", metavar="PAPER|TABLE", help="a paper, or one of its tables (default: all)")
    parser.add_argument("--runs", type=_local, default=Path("runs"), help="the folder of all runs (default: runs)")
    parser.add_argument("--records", help="identity of the records, where the root has several")
    parser.add_argument("--features", help="identity of the features, where the root has several")
    parser.add_argument("--pixels", help="identity of the resized pictures, where the root has several")
    parser.add_argument(
        "--vectors", type=_local, metavar="FILE", help="the word vectors that its recipes name, as text"
    )
    parser.add_argument("--weights", type=_local, metavar="FILE", help="of the features' network, to train it further")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")


def _local(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"a path on this machine, not {text}")
    return Path(text).expanduser()


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a whole number, not {text}")
    return int(text)


def _circumstances(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--raw", type=_local, help="a folder with files you have already, also in archives; linked, if possible"
    )
    _workers(parser)
    parser.add_argument("--weights", type=_local, help="a state_dict for the network, in place of its named weights")


def _workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="a Ray cluster to run on (auto, or host:port); default: this machine")
    parser.add_argument("--workers", type=_count, default=0, help="at most so many; default: all there is room for")
    parser.add_argument("--serial", action="store_true", help="one after the other in this process, without Ray")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; changes identity")


def _corpora(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines import own
    from pipelines.corpus import STAGES
    from xmodal import corpora
    from xmodal.outputs import directories
    from xmodal.storage import open_storage

    storage = open_storage(chosen.root) if chosen.root else None
    built = [o for o in directories(storage) if o.complete] if storage else []
    yours = [own.remembered(storage, name) for name in own.names(storage)] if storage else []
    rows = []
    for corpus in [*map(corpora.load, corpora.names()), *filter(None, yours)]:
        about = {"name": corpus.name, "homepage": corpus.homepage, "licence": corpus.licence, "stages": list(STAGES)}
        by_hand = {source.path: source.how for source in corpus.sources if source.url is None}
        names = (corpus.name, corpus.media_set)
        found = [o.where for o in built if o.config.get("corpus", o.config.get("name")) in names]
        rows.append(about | {"by_hand": by_hand, "built": found})
    return rows, 0


def _plan(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.plan import plan

    site = _site(chosen)
    rows = [row for of, corpus, stages in _targets(chosen, site) for row in plan(of, corpus, stages)]
    return {"stages": rows, "free_bytes": site.storage.free_bytes()}, 0


def _build(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.corpus import build_stages

    site = _site(chosen)
    rows = [row for of, corpus, stages in _targets(chosen, site) for row in build_stages(of, corpus, stages)]
    return {"root": site.storage.url, "outputs": rows}, 0


def _retry(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.corpus import retry

    site = _site(chosen)
    corpora = zip(chosen.targets, _targets(chosen, site), strict=True)
    return {
        "root": chosen.root,
        "corpora": {text: retry(of, corpus, chosen.kind) for text, (of, corpus, _) in corpora},
    }, 0


def _seal(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.corpus import Site, reseal
    from xmodal.storage import open_storage

    site = Site(open_storage(chosen.root))
    return {corpus.name: reseal(of, corpus) for of, corpus, _ in _targets(chosen, site)}, 0


def _status(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.inspect import status

    return status(_existing(chosen.root)), 0


def _verify(chosen: argparse.Namespace) -> tuple[Any, int]:
    from dataclasses import asdict

    from pipelines.inspect import forget, verify
    from pipelines.progress import Progress

    storage = _existing(chosen.root)
    files, damage = verify(storage, Progress())
    if chosen.forget:
        forget(storage, damage)
    found = [asdict(d) for d in damage]
    return {"root": chosen.root, "files": files, "damage": found, "forgotten": chosen.forget}, 1 if damage else 0


def _train(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.experiments import on_corpus, recipe_with, train, train_on_ray

    recipe = recipe_with(chosen.recipe, chosen.set)
    if chosen.corpus:
        recipe = on_corpus(recipe, chosen.root, chosen.corpus, chosen.records)
    run = chosen.run or Path("runs") / "-".join(filter(None, (recipe.name, chosen.corpus)))
    told = ("records", "features", "pixels", "vectors", "weights", "device", "tensorboard")
    circumstances = {name: getattr(chosen, name) for name in told}
    if not chosen.workers:
        return train(recipe, chosen.root, run, **circumstances), 0
    return train_on_ray(recipe, chosen.root, run, chosen.workers, chosen.address, **circumstances), 0


def _evaluate(chosen: argparse.Namespace) -> tuple[Any, int]:
    from xmodal.scoring import score, write_ids

    _check_evaluated(chosen)
    if chosen.write_ids:
        written = write_ids(chosen.write_ids, chosen.root, chosen.corpus, chosen.split)
        return (written if chosen.json else "\n".join(written)), 0
    if chosen.scores:
        names = {"prefix": chosen.ids, "extended": chosen.eccv}
        report = score(chosen.scores, chosen.root, chosen.corpus, chosen.split, **names)
    else:
        report = _evaluate_model(chosen)
    if chosen.json:
        return json.loads(report.to_json()), 0
    return report.to_latex() if chosen.latex else report.to_text(), 0


def _evaluate_model(chosen: argparse.Namespace) -> Any:
    from pipelines.experiments import evaluate, evaluate_released
    from pipelines.progress import Progress

    asked: dict[str, Any] = {"device": chosen.device, "progress": Progress()}
    asked |= {"distance": chosen.distance, "extended": chosen.eccv}
    if not _is_released(chosen):
        run = chosen.run.parent if chosen.run.is_file() else chosen.run
        return evaluate(run, chosen.root, chosen.split, **asked)
    asked |= {"records": chosen.records, "features": chosen.features}
    where = (chosen.root, chosen.corpus or "coco", chosen.split)
    return evaluate_released(chosen.run, chosen.vocabulary, *where, chosen.set, **asked)


def _is_released(chosen: argparse.Namespace) -> bool:
    """Whether what is to be evaluated is a file of weights, and no run."""
    from xmodal.runs import BEST, RECIPE

    if not chosen.run or chosen.run.is_dir() or (chosen.run.name == BEST and (chosen.run.parent / RECIPE).is_file()):
        return False
    return chosen.run.is_file() or chosen.run.suffix in WEIGHTS


def _check_evaluated(chosen: argparse.Namespace) -> None:
    is_released = _is_released(chosen)
    if is_released and not chosen.vocabulary:
        raise Trouble(f"{chosen.run} is weights alone: add --vocabulary with the words that were released with it")
    if not is_released and any((chosen.vocabulary, chosen.records, chosen.features, chosen.set)):
        raise Trouble("--vocabulary, --records, --features and --set belong to a file of weights: a run knows its own")
    if sum(map(bool, (chosen.run, chosen.scores, chosen.write_ids))) != 1:
        raise Trouble("say what to evaluate: the folder of a run, or --scores with a matrix")
    if bool(chosen.corpus) == bool(chosen.run) and not is_released:
        raise Trouble("--scores and --write-ids need --corpus; a run knows its own")
    if chosen.ids and not chosen.scores:
        raise Trouble("--ids belongs to --scores: it says what the matrix' rows and columns are")


def _look(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.experiments import look
    from pipelines.progress import Progress

    if chosen.probes and (chosen.items or chosen.first is not None):
        raise Trouble("--items and --first belong to --attention: probes are of a whole split")
    some = {"items": chosen.items} | ({} if chosen.first is None else {"first": chosen.first})
    where = (chosen.run, chosen.root, chosen.split, chosen.device)
    return look(*where, Progress(), chosen.attention, **some), 0


def _stats(chosen: argparse.Namespace) -> tuple[Any, int]:
    from dataclasses import asdict

    from pipelines.progress import Progress
    from xmodal import corpora
    from xmodal.dataset import open_dataset
    from xmodal.stats import describe

    name = corpora.load(chosen.corpus).name if chosen.corpus.endswith(".py") else chosen.corpus
    dataset = open_dataset(chosen.root, name, chosen.records)
    with Progress().over("read", dataset.records.totals["counts"]["captions"], unit="captions") as tick:
        found = describe(dataset, tick)
    return found.to_latex() if chosen.latex and not chosen.json else asdict(found), 0


def _reproduce(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.progress import Progress
    from pipelines.reproducing import overview, reproduce

    told, text = ("records", "features", "pixels", "vectors", "weights", "device"), " ".join(chosen.names)
    if not (text or chosen.root or chosen.json):
        return overview(), 0
    circumstances = {name: getattr(chosen, name) for name in told}
    return reproduce(text, chosen.root, chosen.runs, progress=Progress(), **circumstances), 0


def _leakage(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.corpus import Site
    from pipelines.leakage import leakage

    site = Site(_existing(chosen.root))
    distance = {} if chosen.distance is None else {"distance": chosen.distance}
    return leakage(site, [corpus for _, corpus, _ in _targets(chosen, site)], split=chosen.clean, **distance), 0


def _publish(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.corpus import Site
    from pipelines.progress import Progress
    from pipelines.publish import feature_stores, publish

    if len(chosen.targets) != 1:
        raise Trouble("publish takes one corpus, because --out is one folder")
    storage = _existing(chosen.root)
    ((_, corpus, _),) = _targets(chosen, Site(storage))
    return publish(corpus, storage, chosen.out, feature_stores(corpus, storage), Progress()), 0


def _import(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.exchange import import_features
    from pipelines.progress import Progress
    from xmodal.exchange import open_source
    from xmodal.storage import open_storage

    source = open_source(chosen.source, chosen.ids, chosen.key)
    where = open_storage(chosen.root)
    return import_features(where, chosen.name, source, chosen.set, _runner(chosen), Progress()), 0


def _export(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.exchange import export_features
    from pipelines.progress import Progress

    some = (chosen.ids, chosen.split, chosen.corpus)
    return export_features(chosen.features, chosen.out, chosen.array, *some, Progress()), 0


def _demo(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.demo.run import demo
    from pipelines.demo.world import World

    if "://" in (chosen.root or ""):
        raise Trouble("the demo takes a folder of this machine as its root")
    folder = Path(chosen.root or "demo")
    chosen.root = str(folder / "root")
    return demo(_site(chosen), folder, World(chosen.items)), 0


def _doctor(chosen: argparse.Namespace) -> tuple[Any, int]:
    from dataclasses import asdict

    from pipelines.doctor import examine

    checks = examine(chosen.root)
    return [asdict(check) for check in checks], int(any(c.needed and c.verdict != "ok" for c in checks))


COMMANDS: dict[str, Callable[[argparse.Namespace], tuple[Any, int]]] = {
    "corpora": _corpora,
    "plan": _plan,
    "build": _build,
    "retry": _retry,
    "seal": _seal,
    "status": _status,
    "verify": _verify,
    "train": _train,
    "evaluate": _evaluate,
    "look": _look,
    "stats": _stats,
    "reproduce": _reproduce,
    "leakage": _leakage,
    "publish": _publish,
    "import": _import,
    "export": _export,
    "demo": _demo,
    "doctor": _doctor,
}


def _site(chosen: argparse.Namespace) -> Any:
    from pipelines.corpus import CONFIGS, Site
    from pipelines.progress import Progress
    from pipelines.settings import parse_settings
    from xmodal.storage import open_storage

    if chosen.raw is not None and not chosen.raw.is_dir():
        raise Trouble(f"--raw {chosen.raw} is not a folder")
    settings = parse_settings(chosen.set, CONFIGS)
    storage = open_storage(chosen.root)
    return Site(storage, _runner(chosen), Progress(), chosen.raw, chosen.weights, settings)


def _runner(chosen: argparse.Namespace) -> Any:
    """Ray is imported when the first unit is to be done: an up-to-date root needs none."""
    from pipelines.engine import serial

    def on_ray(open_worker: Any, units: Any, resources: Any) -> Iterator[Any]:
        try:
            from pipelines.ray_runner import RayRunner
        except ModuleNotFoundError as error:
            raise Trouble(f"{error.name} is not installed: pip install 'xmodal[cluster]', or add --serial") from error
        yield from RayRunner(chosen.workers, chosen.address)(open_worker, units, resources)

    return serial if chosen.serial else on_ray


def _targets(chosen: argparse.Namespace, site: Any) -> list[tuple[Any, Any, list[str]]]:
    """`coco` is its data, `coco/resnet` one stage; a Python file or your own data may stand for the name."""
    from pipelines.corpus import STAGES, USUAL
    from pipelines.own import is_data
    from xmodal import corpora

    targets = []
    for text in chosen.targets:
        name, _, stage = text.rpartition("/")
        if not name or stage not in STAGES or (name not in corpora.names() and os.path.isdir(text)):
            if "/" in text and not text.endswith(".py") and not is_data(text, {}, site.storage):
                raise Trouble(f"no stage {stage!r}; there are: {', '.join(STAGES)}")
            name, stage = text, ""
        of, corpus = _target(name, chosen, site)
        targets.append((of, corpus, [stage] if stage else list(USUAL)))
    return targets


def _target(name: str, chosen: argparse.Namespace, site: Any) -> tuple[Any, Any]:
    """The corpus, and the site with where its files lie."""
    from dataclasses import replace

    from pipelines import own
    from xmodal import corpora

    flags = own.told(chosen)
    if name not in corpora.names() and own.is_data(name, flags, site.storage):
        found = own.describe(name, flags, site.storage)
        return replace(site, raw=site.raw or found.folder, files=found.places), found.corpus
    if flags:
        raise Trouble(f"--{next(iter(flags))} is for data of your own: a list, a folder or hf://…, which {name} is not")
    known = None if name.endswith(".py") or name in corpora.names() else own.remembered(site.storage, name)
    return site, known or corpora.load(name)


def _existing(root: str) -> Any:
    from xmodal.storage import open_storage

    storage = open_storage(root)
    if not storage.names(""):
        raise Trouble(f"there is nothing under {root}: is this the root you built?")
    return storage


if __name__ == "__main__":
    sys.exit(main())
