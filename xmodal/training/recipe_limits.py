"""Limits of training: what recipes say and training cannot do yet."""

from itertools import pairwise

from xmodal.errors import UserError
from xmodal.recipes import OnePerClass, Recipe, Tokens


def refuse_unbuilt(recipe: Recipe) -> None:
    if found := unbuilt(recipe):
        pictures = [f"--set phase{number}.epochs=0" for number, phase in enumerate(recipe.phases, 1) if phase.pixels]
        without = f"; {' '.join(pictures)} leaves that out" if "clips from pixels" in found else ""
        raise UserError(f"recipe {recipe.name!r} asks for what training cannot do: {', '.join(found)}{without}")


def unbuilt(recipe: Recipe) -> list[str]:
    asks = {
        "dense texts": not isinstance(recipe.text, Tokens),
        "an un-annotated stream": recipe.unannotated is not None,
        "a closed form": not recipe.phases,
        "clips from pixels": recipe.visual.frames is not None and any(phase.pixels for phase in recipe.phases),
        "evaluation of whole pictures": any(p.pixels and p.pixels.evaluation != "centre" for p in recipe.phases),
        "features after pictures": any(before.pixels and not after.pixels for before, after in pairwise(recipe.phases)),
        "a sampler": any(not isinstance(phase.sampler, OnePerClass | None) for phase in recipe.phases),
    }
    return [name for name, asked in asks.items() if asked]
