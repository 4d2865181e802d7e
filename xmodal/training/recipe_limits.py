"""Limits of training: what recipes say and training cannot do yet."""

from itertools import pairwise

from xmodal.errors import UserError
from xmodal.recipes import Phrases, Recipe, Tokens


def refuse_unbuilt(recipe: Recipe) -> None:
    if found := unbuilt(recipe):
        raise UserError(f"recipe {recipe.name!r} asks for what training cannot do: {', '.join(found)}")


def unbuilt(recipe: Recipe) -> list[str]:
    asks = {
        "dense texts beside un-annotated items": bool(recipe.unannotated) and not isinstance(recipe.text, Tokens),
        "captions as words, but no phases": not recipe.phases and isinstance(recipe.text, Tokens),
        "features after pictures": any(before.pixels and not after.pixels for before, after in pairwise(recipe.phases)),
        "a sampler": any(isinstance(phase.sampler, Phrases) for phase in recipe.phases),
    }
    return [name for name, asked in asks.items() if asked]
