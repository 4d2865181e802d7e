"""A generated world: scenes of shapes, their pictures, and captions that each describe a part of them.

A scene depends on the seed, its index and the settings, not on the number of scenes: a world is the beginning of every
larger one. Scenes of one `identity` show the same individual as their first thing; individuals of one colour and kind
form a class. Positions are fractions of the picture, boxes are pixels. Colours, words and weights are in world.toml.
"""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float64]
Mask = NDArray[np.bool_]

KINDS: Mapping[str, Callable[[Plane, Plane], Mask]] = {  # the points of the unit disc that they cover; v points down
    "circle": lambda u, v: np.hypot(u, v) < 0.9,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) < 0.7,
    "triangle": lambda u, v: (v < 0.6) & (abs(u) < 0.48 * (v + 0.95)),
    "star": lambda u, v: np.hypot(u, v) * (np.cos(_to_tip(u, v)) + 2.88 * np.sin(_to_tip(u, v))) < 0.98,
    "heart": lambda u, v: 1.56 * u**2 + (0.1 - 1.25 * v) ** 2 - 1 < np.cbrt(1.56 * u**2) * (0.1 - 1.25 * v),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 0.28) & (np.maximum(abs(u), abs(v)) < 0.9),
    "ring": lambda u, v: abs(np.hypot(u, v) - 0.72) < 0.22,
    "moon": lambda u, v: (np.hypot(u, v) < 0.95) & (np.hypot(u - 0.45, v) > 0.75),
    "diamond": lambda u, v: abs(u) / 0.6 + abs(v) / 0.98 < 1,
    "flower": lambda u, v: np.hypot(u, v) < 0.74 + 0.22 * np.cos(6 * np.arctan2(u, -v)),
}
TEXTURES: Mapping[str, Callable[[Plane, Plane], Mask]] = {  # the points in the second colour
    "plain": lambda u, v: np.zeros(v.shape, bool),
    "striped": lambda u, v: v * 2.2 % 1 < 0.5,
    "dotted": lambda u, v: np.hypot(u * 2 % 1 - 0.5, v * 2 % 1 - 0.5) < 0.32,
    "checked": lambda u, v: (np.floor(u * 2.2) + np.floor(v * 2.2)) % 2 == 0,
}
TABLES = tomllib.loads(Path(__file__).with_name("world.toml").read_text("utf-8"))
COLOURS: Mapping[str, list[int]] = TABLES["colours"]
RADII: Mapping[str, float] = TABLES["radii"]
MOTIONS: Mapping[str, list[float]] = TABLES["motions"]
BACKGROUNDS: Mapping[str, Any] = TABLES["backgrounds"]
PLACES: list[list[str]] = TABLES["places"]
WORDS: Mapping[str, list[str]] = TABLES["words"]
WEIGHTS: Mapping[str, float] = TABLES["weights"]
SUPERSAMPLING = 3
IDENTITY, LOOKS, LAYOUT, SCENERY, GRAIN, WORDING = range(6)  # independent streams of random numbers


@dataclass(frozen=True)
class World:
    """The last five settings are fractions of 1; at 0 each does nothing."""

    items: int = 1000
    seed: int = 0
    image_size: int = 128  # pixels of the longer side
    captions_per_item: int = 5  # that a publisher promises; any position can be described
    identities: int = 500  # with fewer, the same individuals come more often
    grain: float = 4.0  # noise of the pixels: the deviation in grey levels
    motion: float = 0.0  # scenes that move
    ambiguity: float = 0.1  # scenes with the things of an earlier scene at other places: captions of both nearly fit
    partiality: float = 0.5  # facts of a scene that a caption leaves out
    synonymy: float = 0.2  # words that are replaced by a synonym
    noise: float = 0.02  # facts that a caption guesses, mostly wrongly

    def __post_init__(self) -> None:
        assert self.items >= 0
        assert self.image_size >= 32
        assert min(self.captions_per_item, self.identities) >= 1
        shares = self.motion, self.ambiguity, self.partiality, self.synonymy, self.noise
        assert 0 <= min(shares) <= max(shares) <= 1


@dataclass(frozen=True)
class Thing:
    kind: str
    colour: str
    texture: str
    size: str
    row: int = 1  # of the ninth that it starts in
    column: int = 1
    x: float = 0.5  # of its middle at the start
    y: float = 0.5
    turn: float = 0.0  # radians
    motion: str | None = None


@dataclass(frozen=True)
class Scene:
    index: int
    seed: int
    width: int
    height: int
    background: str
    things: tuple[Thing, ...]  # 1 to 4, each in a ninth of its own; the first is the individual
    identity: int
    frames: int  # 1 for a still picture
    grain: float


def scenes(world: World) -> Iterator[Scene]:
    return (scene(world, index) for index in range(world.items))


def scene(world: World, index: int) -> Scene:
    random = _random(world.seed, LAYOUT, index)
    sides = ((1.0, 1.0), (1.0, 0.75), (0.75, 1.0))[random.integers(3)]
    width, height = (round(world.image_size * side) for side in sides)
    source = int(random.integers(index)) if index and random.random() < world.ambiguity else index
    identity, background, things = _looks(world, source)
    places = random.choice(9, len(things), replace=False).tolist()
    things = [_placed(thing, place, width, height, random) for thing, place in zip(things, places, strict=True)]
    frames = 1
    if random.random() < world.motion:
        first, *others = things
        things = [_moving(first, random), *(_moving(one, random) if random.random() < 0.5 else one for one in others)]
        frames = int(random.integers(8, 25))
    return Scene(index, world.seed, width, height, background, tuple(things), identity, frames, world.grain)


def frames(scene: Scene) -> Iterator[Pixels]:
    """Paints the frames of a scene, (height, width, 3) each, evenly spaced in time."""
    for number in range(scene.frames):
        canvas = _scenery(scene)
        for thing in scene.things:
            _paint(canvas, _moved(thing, number / max(scene.frames - 1, 1)))
        canvas += scene.grain * _random(scene.seed, GRAIN, scene.index, number).standard_normal(canvas.shape)
        yield canvas.clip(0, 255).round().astype(np.uint8)


def draw(scene: Scene) -> Pixels:
    """Paints a scene, or its first frame."""
    return next(frames(scene))


def box(scene: Scene, thing: Thing) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a thing in `draw`'s picture; right and bottom are excluded."""
    rows, columns, u, v = _patch(scene.height, scene.width, thing)
    seen = _pixels(KINDS[thing.kind](u, v)) > 0
    down, across = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    left, top = columns.start + int(across[0]), rows.start + int(down[0])
    return left, top, left + int(np.ptp(across)) + 1, top + int(np.ptp(down)) + 1


def describe(scene: Scene, world: World, position: int) -> str:
    """Writes the caption of a position. All it says is true if `noise` is 0; it may fit other scenes, too."""
    random = _random(scene.seed, WORDING, scene.index, position)
    told = _told(scene, 1 - world.partiality, random)
    remembered = [(_remembered(scene.things[i], world.noise, random), told[i]) for i in told if i >= 0]
    words = _Words(world.synonymy, random)
    background = f" {words.say(scene.background)}" if -1 in told else ""
    return _sentence(_listing(remembered, words), background, random)


def _random(seed: int, *key: int) -> Generator:
    return np.random.default_rng([seed, *key])


def _pick(random: Generator, options: Iterable[str]) -> str:
    choices = list(options)
    return choices[random.integers(len(choices))]


def _looks(world: World, index: int) -> tuple[int, str, list[Thing]]:
    random = _random(world.seed, LOOKS, index)
    identity = int(random.integers(world.identities))
    individual = _any_thing(_random(world.seed, IDENTITY, identity))
    company = [_any_thing(random) for _ in range(random.integers(4))]
    return identity, _pick(random, BACKGROUNDS), [individual, *company]


def _any_thing(random: Generator) -> Thing:
    kind, colour, size = (_pick(random, options) for options in (KINDS, COLOURS, RADII))
    return Thing(kind, colour, _pick(random, ("plain", *TEXTURES)), size)


def _placed(thing: Thing, place: int, width: int, height: int, random: Generator) -> Thing:
    row, column = divmod(place, 3)
    radius = RADII[thing.size] * min(width, height)
    x = (column + 0.5) / 3 + random.uniform(-1, 1) * (1 / 6 - radius / width)
    y = (row + 0.5) / 3 + random.uniform(-1, 1) * (1 / 6 - radius / height)
    return replace(thing, row=row, column=column, x=x, y=y, turn=random.uniform(-0.25, 0.25))


def _moving(thing: Thing, random: Generator) -> Thing:
    """Gives a thing a motion that does not lead out of the picture."""
    ends = {name: (thing.column + np.sign(x), thing.row + np.sign(y)) for name, (x, y) in MOTIONS.items()}
    return replace(thing, motion=_pick(random, [name for name, end in ends.items() if 0 <= min(end) <= max(end) <= 2]))


def _moved(thing: Thing, time: float) -> Thing:
    """The thing at a time from 0 to 1."""
    across, down = MOTIONS.get(thing.motion or "", (0.0, 0.0))
    turned = 2 * np.pi if thing.motion == "around" else 0.0
    return replace(thing, x=thing.x + time * across, y=thing.y + time * down, turn=thing.turn + time * turned)


def _scenery(scene: Scene) -> Plane:
    first, second, rows, columns = BACKGROUNDS[scene.background]
    patches = _random(scene.seed, SCENERY, scene.index).random((rows, columns, 1))
    down, across = np.arange(scene.height) * rows // scene.height, np.arange(scene.width) * columns // scene.width
    return np.asarray(first + patches[down][:, across] * np.subtract(second, first))


def _paint(canvas: Plane, thing: Thing) -> None:
    """Paints a thing with an outline, so that it is seen on a background of its own colour."""
    rows, columns, u, v = _patch(canvas.shape[0], canvas.shape[1], thing)
    inside = KINDS[thing.kind](u, v)
    outline = ~KINDS[thing.kind](1.2 * u, 1.2 * v)
    colour = np.array(COLOURS[thing.colour], float)
    contrast = 0.35 * colour + 0.65 * (20.0 if colour.mean() > 120 else 240.0)
    covered = _pixels(inside)[..., None]
    contrasting = _pixels(inside & (outline | TEXTURES[thing.texture](u, v)))[..., None]
    canvas[rows, columns] *= 1 - covered
    canvas[rows, columns] += (covered - contrasting) * colour + contrasting * contrast


def _patch(height: int, width: int, thing: Thing) -> tuple[slice, slice, Plane, Plane]:
    """Rows and columns that a thing may touch, and the coordinates of their subpixels in its unit disc."""
    radius, x, y = RADII[thing.size] * min(height, width), thing.x * width, thing.y * height
    left, right = np.clip([int(x - radius), int(x + radius) + 1], 0, width).tolist()
    top, bottom = np.clip([int(y - radius), int(y + radius) + 1], 0, height).tolist()
    across = ((np.arange(left * SUPERSAMPLING, right * SUPERSAMPLING) + 0.5) / SUPERSAMPLING - x) / radius
    down = ((np.arange(top * SUPERSAMPLING, bottom * SUPERSAMPLING) + 0.5)[:, None] / SUPERSAMPLING - y) / radius
    cos, sin = np.cos(thing.turn), np.sin(thing.turn)
    return slice(top, bottom), slice(left, right), across * cos + down * sin, down * cos - across * sin


def _pixels(fine: Mask) -> Plane:
    """The fraction of true subpixels of each pixel."""
    height, width = fine.shape
    blocks = fine.reshape(height // SUPERSAMPLING, SUPERSAMPLING, width // SUPERSAMPLING, SUPERSAMPLING)
    return np.asarray(blocks.mean(axis=(1, 3)))


def _to_tip(u: Plane, v: Plane) -> Plane:
    """Angle to the nearest of a star's five tips."""
    return np.asarray(abs((np.arctan2(u, -v) / (0.4 * np.pi) + 0.5) % 1 - 0.5) * 0.4 * np.pi)


def _told(scene: Scene, share: float, random: Generator) -> dict[int, set[str]]:
    """Chooses the facts of each thing that a caption tells, of one thing at least; -1 is the scene itself."""
    facts = [(i, name) for i, thing in enumerate(scene.things) for name in _facts(thing)] + [(-1, "background")]
    weights = np.array([WEIGHTS[name] for _, name in facts])
    chosen = random.choice(len(facts), max(1, round(share * len(facts))), replace=False, p=weights / weights.sum())
    told = defaultdict[int, set[str]](set)
    for thing, name in (facts[n] for n in chosen):
        told[thing].add(name)
    return told | {0: {"kind"}} if told.keys() == {-1} else told


def _facts(thing: Thing) -> list[str]:
    """Leaves out what nobody tells: plain, of medium size, at rest."""
    telling = {"texture": thing.texture != "plain", "size": thing.size != "medium", "motion": thing.motion is not None}
    return [name for name in WEIGHTS if name != "background" and telling.get(name, True)]


def _remembered(thing: Thing, noise: float, random: Generator) -> Thing:
    known: dict[str, Iterable[str]] = {"kind": KINDS, "colour": COLOURS, "texture": TEXTURES, "size": RADII}
    guessed = {name: _pick(random, options) for name, options in known.items() if random.random() < noise}
    return replace(thing, **guessed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Words:
    synonymy: float
    random: Generator

    def say(self, word: str) -> str:
        usual, *others = WORDS.get(word, (word,))
        return _pick(self.random, others) if others and self.random.random() < self.synonymy else usual

    def phrase(self, thing: Thing, told: set[str]) -> tuple[str, str]:
        """A noun with its adjectives, and what follows it: ("small red star", "at the top")."""
        facts = {"size": thing.size, "texture": thing.texture, "colour": thing.colour}
        core = [self.say(fact) for name, fact in facts.items() if name in told and fact not in ("medium", "plain")]
        core.append(self.say(thing.kind) if "kind" in told else "shape")
        rest = [self.say(thing.motion)] if "motion" in told and thing.motion else []
        if "place" in told:
            rest.append(self.say(PLACES[thing.row][thing.column]))
        return " ".join(core), " ".join(rest)


def _listing(mentions: list[tuple[Thing, set[str]]], words: _Words) -> str:
    """Lists things in any order. A place may be told by a neighbour, and equal things are counted."""
    mentions = [mentions[i] for i in words.random.permutation(len(mentions))]
    parts = []
    if len(mentions) > 1 and "place" in mentions[0][1] and words.random.random() < 0.5:
        (thing, told), (other, known), *mentions = mentions
        first, second = words.phrase(thing, told - {"place"}), words.phrase(other, known)
        parts = [f"{_one(*first)} {_relation(thing, other)} {_one(*second)}"]
    counted = Counter(words.phrase(thing, told) for thing, told in mentions)
    parts += [_one(*phrase) if n == 1 else _several(n, *phrase) for phrase, n in counted.items()]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _relation(thing: Thing, other: Thing) -> str:
    if thing.column != other.column:
        return "to the left of" if thing.column < other.column else "to the right of"
    return "above" if thing.row < other.row else "below"


def _one(core: str, rest: str) -> str:
    return f"{'an' if core[0] in 'aeiou' else 'a'} {core} {rest}".rstrip()


def _several(count: int, core: str, rest: str) -> str:
    plural = core + ("es" if core.endswith(("s", "x")) else "s")
    return f"{('two', 'three', 'four')[count - 2]} {plural} {rest}".rstrip()


def _sentence(listing: str, background: str, random: Generator) -> str:
    """Forms a sentence, sometimes without a capital letter or a full stop."""
    there = f"there {'is' if listing.startswith('a') else 'are'} {listing}"
    forms = [f"{start}{background}" for start in (listing, there, f"a picture of {listing}")]
    text = _pick(random, [*forms, f"{background} {there}".strip()])
    text = text[0].upper() + text[1:] if random.random() < 0.85 else text
    return text + "." if random.random() < 0.75 else text
