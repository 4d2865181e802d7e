"""Lists the recipes that can be trained: model, corpus, what each reproduces.

examples:
  xmodal recipes
  xmodal recipes --json
"""

from pipelines.commands import Args, Lines, Parser, Result


def flags(parser: Parser) -> None:
    """Takes none."""


def run(args: Args) -> list[Result]:
    from pipelines.papers.detector_runs import RECIPE
    from pipelines.papers.experiments import find
    from pipelines.papers.recipe_runs import recipes

    detector = {"name": RECIPE.name, "model": "small_faster_rcnn", "corpus": RECIPE.corpus, "cites": "ours"}
    found = [
        {
            "name": recipe.name,
            "model": type(recipe.model).__module__.rpartition(".")[2],
            "corpus": recipe.view.corpus,
            "cites": recipe.cites,
            "reproduces": [each.name for each in find("") if recipe.name in each.recipes],
        }
        for recipe in recipes().values()
    ]
    return [*found, detector | {"reproduces": []}]


def text(result: list[Result]) -> Lines:
    rows = [("recipe", "model", "corpus", "reproduces")]
    rows += [(row["name"], row["model"], row["corpus"], ", ".join(row["reproduces"]) or "-") for row in result]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, (*widths, 0), strict=True))
    yield "`xmodal settings RECIPE` lists what `xmodal train RECIPE --set` may change"
