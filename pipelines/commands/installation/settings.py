"""Lists every setting of a stage or a recipe: type, default, where it is documented.

examples:
  xmodal settings resnet                                of a stage, as `xmodal build --set` takes them
  xmodal settings tgif/frames                           of a stage that the corpus can have
  xmodal settings vsepp --json                          of a recipe, as `xmodal train --set` takes them
  xmodal settings mine.py                               of a recipe in a file of your own
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from xmodal.errors import UserError


def flags(parser: Parser) -> None:
    stages = f"stages: {', '.join(_flags.stage_names())}; `xmodal recipes` lists the recipes"
    parser.add_argument("name", metavar="CORPUS/STAGE|STAGE|RECIPE", help=stages)


def run(args: Args) -> Result:
    from pipelines import stages
    from pipelines.engine.typed_settings import describe
    from pipelines.upkeep.corpus_build import kinds_for
    from xmodal import corpora

    corpus, _, stage = args.name.rpartition("/")
    is_file = stage.partition(":")[0].endswith(".py")
    kinds = []
    if stage in stages.targets():  # its settings, and those of what is built before it
        is_known = corpus.endswith(".py") or corpus in corpora.names()  # else of a user's list, which a root knows
        kinds = kinds_for(corpora.load(corpus) if is_known else None, [stage])
        configs = {kind.name: kind.config() for kind in kinds}
    elif corpus and not is_file:
        raise UserError(f"no stage {stage!r}; there are: {', '.join(stages.targets())}")
    else:
        configs = _of_recipe(args.name, is_file)
    rows = [row for name, config in configs.items() for row in describe(config, name)]
    files = {name: kind.forms.get(name, "") for kind in kinds for name in kind.files}
    return {"name": args.name, "settings": rows, "files": files}


def text(result: Result) -> Lines:
    rows = [(row["name"], row["type"], _shown(row["default"]), row["documented"]) for row in result["settings"]]
    if not rows:
        yield f"{result['name']} has no settings"
        return
    rows.insert(0, ("setting", "type", "default", "documented"))
    widths = [min(40, max(len(row[column]) for row in rows)) for column in range(3)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, (*widths, 0), strict=True)).rstrip()
    for name, form in sorted(result["files"].items()):
        yield f"it reads a file: --file {name}=PATH" + (f": {form}" if form else "")


def _shown(value: object) -> str:
    """As --set takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    if value == "":
        return '""'
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _of_recipe(name: str, is_file: bool) -> dict[str, object]:
    from pipelines import stages
    from pipelines.engine.typed_settings import nearest
    from pipelines.papers.detector_runs import RECIPE
    from pipelines.papers.recipe_runs import configs_of, find_recipe, recipes

    if name == RECIPE.name:
        return {name: RECIPE}
    known, there = recipes(), stages.targets()
    if not is_file and name not in known:
        meant = nearest(name, {one: one for one in (*there, *known)})
        raise UserError(f"no stage or recipe {name!r}{meant}; stages: {', '.join(there)}; recipes: `xmodal recipes`")
    return configs_of(find_recipe(name))
