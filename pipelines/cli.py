"""The `xmodal` command: names what to do, takes circumstances as flags, and says in one line what went wrong."""

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from keyword import iskeyword
from pathlib import Path
from typing import Any

from pipelines.arguments import known_arguments
from xmodal.errors import UserError

WEIGHTS = (".pth", ".pt", ".tar")

DISK = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "your disk quota is used up: free some space",
    errno.EFBIG: "the disk takes no file that large: choose another root",
    errno.EROFS: "the disk is read-only: choose another root",
    errno.EACCES: "no permission to read or write there: have it given, or choose another root",
    errno.EPERM: "not permitted there (no hard links?): choose another root",
}
FETCHED = ("sources", "media")  # a retry of either is of all files of the corpus


def main(arguments: list[str] | None = None) -> int:
    parser = known_arguments(__doc__)
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 0
    try:
        result, code = _carry_out(chosen)
    except UserError as trouble:
        return _complain(str(trouble))
    except OSError as error:
        return _complain(_about_disk(error, chosen))
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"botocore", "aiobotocore", "aiohttp"}:
            raise
        return _complain(f"the object store of {chosen.root} does not answer as it should: {error}")
    except KeyboardInterrupt:
        return _complain("stopped; run the same command again to go on", code=130)
    if not _is_second():
        _show(chosen, result)
    return code


def _carry_out(chosen: argparse.Namespace) -> tuple[Any, int]:
    """Stdout is for the result alone: Ray tells of dead workers there, and once more as it leaves."""
    with redirect_stdout(sys.stderr):
        try:
            return COMMANDS[chosen.command](chosen)
        finally:
            if "pipelines.engine.ray_runner" in sys.modules:
                sys.modules["pipelines.engine.ray_runner"].disconnect()


def _is_second() -> bool:
    """Of several processes that train together the first one says how it went."""
    return "xmodal.batches.distributed" in sys.modules and sys.modules["xmodal.batches.distributed"].rank() > 0


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
    if error.errno not in DISK:
        return f"{error.strerror}{where}"
    return f"{DISK[error.errno]}{where}; then run the same command again: what is committed is kept"


def _corpora(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.fetching import corpus_names
    from pipelines.stages._corpus import stages_of
    from pipelines.upkeep.inspection import origin
    from xmodal import corpora
    from xmodal.root.outputs import directories
    from xmodal.root.storage import open_storage

    storage = open_storage(chosen.root) if chosen.root else None
    built = [(o, origin(o)) for o in directories(storage) if o.complete] if storage else []
    yours = corpus_names.user_corpora(storage) if storage else []
    rows = []
    for corpus in [*map(corpora.load, corpora.names()), *yours]:
        about = {
            "name": corpus.name,
            "homepage": corpus.homepage,
            "licence": corpus.licence,
            "stages": stages_of(corpus),
        }
        by_hand = {source.path: source.how for source in corpus.sources if source.url is None}
        whose = (("annotations", corpus.name), ("media", corpus.media_set))
        found = [output.where for output, of in built if of in whose]
        rows.append(about | {"by_hand": by_hand, "built": found})
    return rows, 0


def _plan(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.upkeep.planning import plan

    site = _site(chosen)
    rows = [row for of, corpus, stages in _targets(chosen, site) for row in plan(of, corpus, stages)]
    return {"stages": rows, "free_bytes": site.storage.free_bytes()}, 0


def _build(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.fetching import corpus_names, user_lists
    from pipelines.stages._corpus import build_stages, unread

    site, rows, notes = _site(chosen), [], []
    targets = _targets(chosen, site)
    if ignored := unread(site.settings, (stage for _, _, stages in targets for stage in stages)):
        site.progress.say(f"no stage of this build reads {', '.join(ignored)}")
    for of, corpus, stages in targets:
        with corpus_names.building(of.storage, corpus, of.list_at):
            rows += build_stages(of, corpus, stages)
        notes += user_lists.notes(of.storage, corpus.name) if of.list_at else []
        notes += [corpus_names.SAMPLE_NOTE.format(corpus.name)] if corpus.sample else []
        notes += user_lists.not_clips(of.storage, corpus.name) if {"frames", "clips"} & {*stages} else []
    return {"root": site.storage.url, "outputs": rows, "notes": [*dict.fromkeys(notes)]}, 0


def _retry(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.stages._corpus import retry
    from pipelines.upkeep.retries import retry_units

    done = {}
    for text, (of, corpus, stages) in zip(chosen.targets, _targets(chosen, _site(chosen)), strict=True):
        if len(stages) == 1 and stages[0] not in FETCHED:
            done[text] = retry_units(of, corpus, stages[0], chosen.failure)
        else:
            done[text] = retry(of, corpus, chosen.failure)
    return {"root": chosen.root, "corpora": done}, 0


def _seal(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.stages._corpus import Site, reseal
    from xmodal.root.storage import open_storage

    site = Site(open_storage(chosen.root))
    return {corpus.name: reseal(of, corpus) for of, corpus, _ in _targets(chosen, site)}, 0


def _status(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.upkeep.inspection import status

    return status(_existing(chosen.root)), 0


def _verify(chosen: argparse.Namespace) -> tuple[Any, int]:
    from dataclasses import asdict

    from pipelines.engine.progress_line import Progress
    from pipelines.upkeep.inspection import forget, verify

    storage = _existing(chosen.root)
    files, damage = verify(storage, Progress())
    if chosen.forget:
        forget(storage, damage)
    found = [asdict(d) for d in damage]
    return {"root": chosen.root, "files": files, "damage": found, "forgotten": chosen.forget}, 1 if damage else 0


def _train(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.papers.recipe_runs import on_corpus, recipe_with, train, train_on_ray

    recipe = recipe_with(chosen.recipe, chosen.set)
    corpus = _name_of(chosen.corpus, chosen.root)
    if corpus:
        recipe = on_corpus(recipe, chosen.root, corpus, chosen.records)
    run = chosen.run or Path("runs") / "-".join(filter(None, (recipe.name, corpus)))
    told = ("records", "features", "pixels", "vectors", "weights", "device", "tensorboard")
    circumstances = {name: getattr(chosen, name) for name in told}
    if not chosen.workers:
        return train(recipe, chosen.root, run, **circumstances), 0
    return train_on_ray(recipe, chosen.root, run, chosen.workers, chosen.address, **circumstances), 0


def _evaluate(chosen: argparse.Namespace) -> tuple[Any, int]:
    from xmodal.evaluation.matrix_metrics import score, write_ids

    _check_evaluated(chosen)
    chosen.corpus = _name_of(chosen.corpus, chosen.root)
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
    from pipelines.engine.progress_line import Progress
    from pipelines.papers.recipe_runs import evaluate, evaluate_released

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
    from xmodal.training.run_folder import BEST, RECIPE

    if not chosen.run or chosen.run.is_dir() or (chosen.run.name == BEST and (chosen.run.parent / RECIPE).is_file()):
        return False
    return chosen.run.is_file() or chosen.run.suffix in WEIGHTS


def _check_evaluated(chosen: argparse.Namespace) -> None:
    if chosen.json and chosen.latex:
        raise UserError("--json and --latex are two ways to print the same: give one")
    is_released = _is_released(chosen)
    if is_released and not chosen.vocabulary:
        raise UserError(f"{chosen.run} is weights alone: add --vocabulary with the words that were released with it")
    if not is_released and any((chosen.vocabulary, chosen.records, chosen.features, chosen.set)):
        raise UserError(
            "--vocabulary, --records, --features and --set belong to a file of weights: a run knows its own"
        )
    if sum(map(bool, (chosen.run, chosen.scores, chosen.write_ids))) != 1:
        raise UserError("say what to evaluate: the folder of a run, or --scores with a matrix")
    if chosen.run and chosen.corpus and not is_released:
        raise UserError("a run knows its own corpus: leave out --corpus, and choose among its splits with --split")
    if not chosen.run and not chosen.corpus:
        raise UserError("--scores and --write-ids need --corpus")
    if chosen.ids and not chosen.scores:
        raise UserError("--ids belongs to --scores: it says what the matrix' rows and columns are")


def _look(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.engine.progress_line import Progress
    from pipelines.papers.recipe_runs import look, look_at_clips

    if chosen.probes and (chosen.items or chosen.first is not None):
        raise UserError("--items and --first belong to --attention and --frames: probes are of a whole split")
    some = {"items": chosen.items} | ({} if chosen.first is None else {"first": chosen.first})
    if chosen.frames:
        some |= {"split": chosen.split, "features": chosen.features}
        return look_at_clips(_name_of(str(chosen.run), chosen.root), chosen.root, chosen.frames, Progress(), **some), 0
    if chosen.features:
        raise UserError("--features belongs to --frames: a run knows its own")
    where = (chosen.run, chosen.root, chosen.split, chosen.device)
    return look(*where, Progress(), chosen.attention, **some), 0


def _stats(chosen: argparse.Namespace) -> tuple[Any, int]:
    from dataclasses import asdict

    from pipelines.engine.progress_line import Progress
    from xmodal import corpora
    from xmodal.batches.dataset import open_dataset
    from xmodal.checks.statistics import describe

    ours = chosen.corpus.endswith(".py") or chosen.corpus in corpora.names()
    corpus = corpora.load(chosen.corpus) if ours else None
    dataset = open_dataset(chosen.root, _name_of(chosen.corpus, chosen.root), chosen.records)
    with Progress().over("read", dataset.records.totals["counts"]["captions"], unit="captions") as tick:
        found = describe(dataset, corpus.printed if corpus else (), tick)
    return found.to_latex() if chosen.latex and not chosen.json else asdict(found), 0


def _reproduce(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.engine.progress_line import Progress
    from pipelines.reproducing import overview, reproduce

    told, text = ("records", "features", "pixels", "vectors", "weights", "device"), " ".join(chosen.names)
    if not (text or chosen.root or chosen.json):
        return overview(), 0
    circumstances = {name: getattr(chosen, name) for name in told}
    return reproduce(text, chosen.root, chosen.runs, progress=Progress(), **circumstances), 0


def _leakage(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.stages._corpus import Site
    from pipelines.upkeep.leakage_report import leakage
    from xmodal.root.outputs import find

    storage = _existing(chosen.root)
    known = {output.config["corpus"] for output in find(chosen.root, "records")}
    names = [_name_of(text, chosen.root) for text in chosen.targets]
    for name in names:
        if name not in known:
            _target(name, chosen, Site(storage))  # refuses what is no corpus at all
    distance = {} if chosen.distance is None else {"distance": chosen.distance}
    return leakage(storage, names, split=chosen.clean, against=chosen.against, **distance), 0


def _publish(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.engine.progress_line import Progress
    from pipelines.publishing.dataset_repository import feature_stores, publish
    from pipelines.stages._corpus import Site

    if len(chosen.targets) != 1:
        raise UserError("publish takes one corpus, because --out is one folder")
    storage = _existing(chosen.root)
    ((_, corpus, _),) = _targets(chosen, Site(storage))
    return publish(corpus, storage, chosen.out, feature_stores(corpus, storage), Progress()), 0


def _check(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.commands import check

    result = check.run(chosen)
    return result, check.exit_code(result)


def _import(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.engine.progress_line import Progress
    from pipelines.publishing.feature_import import import_features
    from xmodal.features.foreign_formats import open_source
    from xmodal.root.storage import open_storage

    source = open_source(chosen.source, chosen.ids, chosen.key)
    where = open_storage(chosen.root)
    return import_features(where, chosen.name, source, chosen.set, _runner(chosen), Progress()), 0


def _export(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.engine.progress_line import Progress
    from pipelines.publishing.feature_export import export_features

    some = (chosen.ids, chosen.split, chosen.corpus)
    return export_features(chosen.features, chosen.out, chosen.array, *some, Progress()), 0


def _vectors(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.commands.vectors import tell, train
    from pipelines.engine.progress_line import Progress

    if not chosen.train:
        if chosen.root or chosen.split or chosen.tokenizer or chosen.cleaning:
            raise UserError("--root, --split, --tokenizer and --cleaning are of --train: of what is learned, and how")
        return tell(Path(chosen.file), chosen.words, chosen.index, Progress()), 0
    if not (chosen.root and chosen.split) or chosen.words or chosen.index:
        raise UserError("--train takes a corpus with --root and --split; ask for --words and --index of what it wrote")
    words = (chosen.tokenizer or "nltk", chosen.cleaning or "none")
    return train(_name_of(chosen.file, chosen.root), chosen.root, chosen.split, *words, chosen.train, Progress()), 0


def _demo(chosen: argparse.Namespace) -> tuple[Any, int]:
    from pipelines.demo.run import demo
    from pipelines.demo.world import World

    if "://" in (chosen.root or ""):
        raise UserError("the demo takes a folder of this machine as its root")
    folder = Path(chosen.root or "demo")
    chosen.root = str(folder / "root")
    return demo(_site(chosen), folder, World(chosen.items)), 0


def _doctor(chosen: argparse.Namespace) -> tuple[Any, int]:
    from dataclasses import asdict

    from pipelines.upkeep.machine import examine

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
    "check": _check,
    "import": _import,
    "export": _export,
    "vectors": _vectors,
    "demo": _demo,
    "doctor": _doctor,
}


def _site(chosen: argparse.Namespace) -> Any:
    from pipelines.engine.progress_line import Progress
    from pipelines.engine.typed_settings import parse_settings
    from pipelines.stages._corpus import CONFIGS, Site
    from xmodal.root.storage import open_storage

    if chosen.raw is not None and not chosen.raw.is_dir():
        raise UserError(f"--raw {chosen.raw} is not a folder")
    settings = parse_settings(chosen.set, CONFIGS)
    storage = open_storage(chosen.root)
    return Site(storage, _runner(chosen), Progress(), chosen.raw, chosen.weights, chosen.vectors, settings)


def _runner(chosen: argparse.Namespace) -> Any:
    """Ray is imported when the first unit is to be done: an up-to-date root needs none."""
    from pipelines.engine.building import serial

    def on_ray(open_worker: Any, units: Any, resources: Any) -> Iterator[Any]:
        try:
            from pipelines.engine.ray_runner import RayRunner
        except ModuleNotFoundError as error:
            raise UserError(f"{error.name} is not installed: pip install 'xmodal[cluster]', or add --serial") from error
        yield from RayRunner(chosen.workers, chosen.address)(open_worker, units, resources)

    return serial if chosen.serial else on_ray


def _targets(chosen: argparse.Namespace, site: Any) -> list[tuple[Any, Any, list[str]]]:
    """`coco` is its data, `coco/resnet` one stage; a Python file or your own data may stand for the name."""
    from pipelines.fetching.user_lists import is_data
    from pipelines.stages._corpus import STAGES, USUAL
    from xmodal import corpora

    targets = []
    for text in chosen.targets:
        name, _, stage = text.rpartition("/")
        if not name or stage not in STAGES or (name not in corpora.names() and os.path.isdir(text)):
            if "/" in text and not text.endswith(".py") and not is_data(text, {}, site.storage):
                raise UserError(f"no stage {stage!r}; there are: {', '.join(STAGES)}")
            name, stage = text, ""
        of, corpus = _target(name, chosen, site)
        targets.append((of, corpus, [stage] if stage else list(USUAL)))
    return targets


def _target(name: str, chosen: argparse.Namespace, site: Any) -> tuple[Any, Any]:
    """The corpus, and the site with where its files lie."""
    from dataclasses import replace

    from pipelines.fetching import corpus_names, user_lists

    found = corpus_names.find_corpus(
        name, user_lists.flags_given(chosen), site.storage, getattr(chosen, "sample", False)
    )
    if found.media_folder and not site.raw:
        site = replace(site, raw=found.media_folder, archives=False)  # nobody asked to look into archives
    return replace(site, files=found.list_files, list_at=found.place), found.corpus


def _name_of(text: Any, root: str) -> Any:
    """The name of a corpus, where a user's file or list stands for it."""
    from pipelines.fetching.corpus_names import name_of
    from xmodal.root.storage import open_storage

    return name_of(text, open_storage(root)) if text else text


def _existing(root: str) -> Any:
    from xmodal.root.storage import open_storage

    storage = open_storage(root)
    if not storage.names(""):
        raise UserError(f"there is nothing under {root}: is this the root you built?")
    return storage


if __name__ == "__main__":
    sys.exit(main())
