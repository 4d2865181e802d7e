"""Trains a recipe from cached features; goes on where it stopped.

`xmodal recipes` lists the recipes, `xmodal settings RECIPE` what --set may change.

The recipe `detector` needs no features: it learns from a corpus' pictures and their regions (boxes, names and, where
there are any, attributes), in its splits train and val. Of the options it takes --root, --corpus, --run, --records,
--device, --set, --json and --quiet. It writes RUN/detector.pt, for `xmodal build CORPUS/regions`.

examples:
  xmodal train vsepp --root data --run runs/vsepp
  xmodal train pvse-coco --root data --vectors glove.840B.300d.txt --set phase1.epochs=3 --set model.width=512
  xmodal train vsepp --corpus mylist --root data        on your own data
  xmodal train mine.py --root data; xmodal train mine.py:NAME --root data    a model of your own, one of its recipes
  xmodal train vsepp --root data --device cuda --workers 4 --address auto
  xmodal train detector --corpus visual_genome --root data --set steps=100000 --set side=320
"""

from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import command
from xmodal.errors import UserError

if TYPE_CHECKING:
    from xmodal.recipes import Recipe

NOT_OF_DETECTORS = ("workers", "address", "tensorboard", "features", "pixels", "texts", "weights", "vectors")  # flags


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help="such as vsepp, or a file mine.py")
    _flags.root(parser)
    add("--corpus", help="another one than the recipe's, in its splits of the same name")
    add("--run", type=_flags.path, help="the folder of the run (default: runs/RECIPE, or runs/RECIPE-CORPUS)")
    _flags.training(parser)
    _flags.settings(parser, "batch_size=64, model.width=512, phase1.optimiser.learning_rate=0.001")
    add("--workers", type=_flags.count, default=0, help="processes that train together, by Ray Train")
    add("--address", help="the Ray cluster of --workers (auto, or host:port); default: this machine")
    add("--tensorboard", action="store_true", help="write RUN/tensorboard beside RUN/log.jsonl")
    _flags.quiet(parser)


def run(args: Args) -> Result:
    from pipelines.papers import detector_runs
    from pipelines.papers.recipe_runs import on_corpus, recipe_with, train, train_on_ray

    if args.recipe == detector_runs.RECIPE.name:
        return _detector(args)
    recipe, setup = recipe_with(args.recipe, args.set), _flags.setup(args)
    corpus = args.corpus and _flags.corpus_name(args.corpus, args)
    _flags.warn_of_changes(args, corpus or recipe.view.corpus)
    if corpus:
        recipe = on_corpus(recipe, setup, corpus)
    _refuse_unread(recipe, args)
    run = args.run or Path("runs") / "-".join(filter(None, (recipe.name, corpus)))
    if args.workers:
        return train_on_ray(recipe, setup, run, args.workers, args.address, args.quiet, tensorboard=args.tensorboard)
    return train(recipe, setup, run, args.tensorboard)


def _refuse_unread(recipe: "Recipe", args: Args) -> None:
    """Refuses flags that would change nothing."""
    from pipelines.papers.experiments import texts_of
    from xmodal.recipes import Features

    sees_pictures = any(phase.pixels for phase in recipe.phases)
    reads = {
        "workers": bool(recipe.phases),  # a closed form is solved by one process
        "tensorboard": bool(recipe.phases),
        "pixels": sees_pictures or recipe.visual.stage == "pixels",
        "texts": isinstance(recipe.text, Features) or bool(texts_of(recipe)),
        "weights": sees_pictures,
    }
    if given := [f"--{name}" for name, is_read in reads.items() if getattr(args, name) and not is_read]:
        raise UserError(f"recipe {recipe.name!r} does not take {', '.join(given)}: leave that out")


def _detector(args: Args) -> Result:
    from pipelines.papers.detector_runs import detector_with, train_detector

    if given := [f"--{name}" for name in NOT_OF_DETECTORS if getattr(args, name)]:
        raise UserError(f"a detector is trained without {', '.join(given)}: leave that out")
    recipe = detector_with(args.corpus and _flags.corpus_name(args.corpus, args), args.set)
    _flags.warn_of_changes(args, recipe.corpus)
    run = args.run or Path("runs") / f"{recipe.name}-{recipe.corpus}"
    return train_detector(recipe, _flags.setup(args), run)


def text(result: Result) -> Lines:
    if "weights" in result:
        pairs = "pairs of attribute and class" if result["attributes"] else "classes, as there are no attributes,"
        scores = f"recall {result['recall']:.3f} and precision {result['precision']:.3f} of {pairs}"
        yield f"{result['recipe']}: {scores} on {result['validation']} after {result['steps']:,} steps"
        if result["unreadable"]:
            of = f"of {result['measured'] + result['unreadable']:,} pictures of {result['validation']}"
            yield f"not measured, as absent or unreadable: {result['unreadable']:,} {of}"
        yield f"its weights are {result['weights']}"
        target, file = f"{result['corpus']}/semantics", f"detector={result['weights']}"
        detector = ("--set", "regions.detector=small", "--file", file)
        yield f"now `{command('build', target, '--root', result['root'], *detector)}`"
        return
    yield f"{result['recipe']}: rsum {result['rsum']:.1f} on validation {_how_far(result)}; in {result['run']}"
    yield f"now `{command('evaluate', result['run'], '--root', result['root'])}`"


def _how_far(result: Result) -> str:
    if result["steps"]:
        return f"after epoch {result['epoch']} of phase {result['phase']}, {result['steps']:,} steps in all"
    return f"by a closed form of {result['solved_pairs']:,} pairs" if result["solved_pairs"] else "without any training"
