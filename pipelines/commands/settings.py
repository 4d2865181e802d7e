"""Lists every setting of a stage or a recipe: type, default, where it is documented.

examples:
  xmodal settings resnet                                of a stage, as `xmodal build --set` takes them
  xmodal settings coco/records                          with what the corpus says itself
  xmodal settings vsepp --json                          of a recipe, as `xmodal train --set` takes them
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.commands import _flags
from pipelines.commands._text import Result
from xmodal.errors import UserError

GROUP = "installation"


def flags(parser: argparse.ArgumentParser) -> None:
    stages = f"stages: {', '.join(_flags.stage_names())}; `xmodal recipes` lists the recipes"
    parser.add_argument("name", metavar="CORPUS/STAGE|STAGE|RECIPE", help=stages)


def run(args: argparse.Namespace) -> Result:
    from pipelines.engine.typed_settings import describe

    configs = _configs(args.name)
    return {"name": args.name, "settings": [row for name, config in configs.items() for row in describe(config, name)]}


def text(result: Result) -> Iterator[str]:
    rows = [(row["name"], row["type"], _shown(row["default"]), row["documented"]) for row in result["settings"]]
    if not rows:
        yield f"{result['name']} has no settings"
        return
    rows.insert(0, ("setting", "type", "default", "documented"))
    widths = [min(40, max(len(row[column]) for row in rows)) for column in range(3)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, (*widths, 0), strict=True)).rstrip()


def _shown(value: object) -> str:
    """A value as --set takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _configs(name: str) -> Mapping[str, object]:
    from pipelines.stages._corpus import BEFORE, CONFIGS, STAGES
    from pipelines.stages.records import RecordsConfig
    from xmodal import corpora

    corpus, _, stage = name.rpartition("/")
    if stage in STAGES:
        known = {part: CONFIGS[part] for part in (*sorted(BEFORE.get(stage, ())), stage) if part in CONFIGS}
        return {stage: RecordsConfig.of(corpora.load(corpus))} if corpus and stage == "records" else known
    if corpus:
        raise UserError(f"no stage {stage!r}; there are: {', '.join(STAGES)}")
    return _recipe_configs(name, list(STAGES))


def _recipe_configs(name: str, stages: list[str]) -> Mapping[str, object]:
    from pipelines.engine.typed_settings import nearest
    from pipelines.papers.recipe_runs import configs_of, recipes

    known: dict[str, Any] = recipes()
    if name not in known:
        meant = nearest(name, {one: one for one in (*stages, *known)})
        raise UserError(
            f"no stage and no recipe {name!r}{meant}; `xmodal recipes` lists recipes, stages are {', '.join(stages)}"
        )
    return configs_of(known[name])
