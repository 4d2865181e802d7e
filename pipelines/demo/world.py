"""A generated world: scenes of shapes, their pictures, and captions that each tell a part of what is there.

A scene depends on the seed, its index and the knobs, never on how many there are: a world is the beginning of every
larger one. Everything is known: kind (the category), colour, texture, size, place, motion and box of each thing, the
background, and who the first thing is: scenes of one `identity` show the same individual, and individuals of one colour
and kind form a class. Positions are shares of the picture, boxes are pixels.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float64]
Mask = NDArray[np.bool_]

KINDS = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "moon", "diamond", "flower")
COLOURS = {
    "red": (214, 40, 40), "orange": (250, 135, 20), "yellow": (248, 220, 50), "green": (30, 140, 50),
    "turquoise": (50, 200, 190), "blue": (40, 75, 205), "purple": (125, 45, 165), "pink": (245, 140, 190),
    "brown": (120, 72, 35), "white": (247, 247, 247), "black": (22, 22, 22),
}  # fmt: skip
TEXTURES = ("plain", "striped", "dotted", "checked")
RADII = {"small": 0.085, "medium": 0.12, "large": 0.16}  # of the shorter side: even the largest fits into a ninth
MOTIONS = {"left": (-0.3, 0.0), "right": (0.3, 0.0), "up": (0.0, -0.3), "down": (0.0, 0.3), "around": (0.0, 0.0)}
BACKGROUNDS = {  # two colours and how finely they mix, as rows and columns of patches
    "grass": ((126, 176, 92), (104, 154, 72), 40, 40), "sand": ((230, 212, 166), (214, 192, 142), 64, 64),
    "snow": ((238, 243, 248), (218, 227, 238), 5, 5), "night": ((26, 30, 62), (40, 44, 84), 4, 4),
    "water": ((112, 170, 222), (90, 150, 206), 24, 3), "wood": ((176, 128, 86), (152, 106, 66), 8, 1),
}  # fmt: skip
PLACES = (
    ("in the top left corner", "at the top", "in the top right corner"),
    ("on the left", "in the middle", "on the right"),
    ("in the bottom left corner", "at the bottom", "in the bottom right corner"),
)
WORDS: Mapping[str, tuple[str, ...]] = {  # the usual way to say it first; a texture is said before the noun
    "circle": ("circle", "disc"), "square": ("square", "box"), "cross": ("cross", "plus sign"),
    "ring": ("ring", "hoop"), "moon": ("moon", "crescent"), "diamond": ("diamond", "kite"),
    "flower": ("flower", "blossom"), "red": ("red", "crimson"), "turquoise": ("turquoise", "teal"),
    "purple": ("purple", "violet"), "pink": ("pink", "rosy"),
    "small": ("small", "little", "tiny"), "large": ("large", "big", "huge"),
    "striped": ("striped", "stripy"), "dotted": ("dotted", "spotted"), "checked": ("checked", "chequered"),
    "left": ("moving left", "drifting to the left"), "right": ("moving right", "drifting to the right"),
    "up": ("moving up", "rising"), "down": ("moving down", "falling"), "around": ("turning", "spinning around"),
    "grass": ("on the grass", "on a lawn"), "sand": ("on the sand", "on a beach"),
    "snow": ("in the snow", "on fresh snow"), "night": ("at night", "in the dark"),
    "water": ("on the water", "on a lake"), "wood": ("on a wooden floor", "on wooden boards"),
    "at the top": ("at the top", "near the upper edge"), "at the bottom": ("at the bottom", "near the lower edge"),
    "in the middle": ("in the middle", "in the centre"), "on the left": ("on the left", "on the left side"),
    "on the right": ("on the right", "on the right side"),
}  # fmt: skip
WEIGHTS = {"kind": 6.0, "colour": 4.0, "texture": 2.0, "size": 1.0, "place": 1.0, "motion": 3.0, "background": 3.0}
SUPERSAMPLING = 3
IDENTITY, LOOKS, LAYOUT, SCENERY, GRAIN, WORDING = range(6)  # streams of random numbers that do not depend on each other


@dataclass(frozen=True)
class World:
    """What decides a world. The last five knobs say how hard it is, and are shares of 1; at 0 each does nothing.

    `image_size` is the longer side in pixels, and `captions_per_item` what a publisher promises: any position can be
    described. With few `identities` the same individuals are met more often. `grain` is the noise of the pixels, as
    the deviation in grey levels.
    """

    items: int = 1000
    seed: int = 0
    image_size: int = 128
    captions_per_item: int = 5
    identities: int = 500
    grain: float = 4.0
    motion: float = 0.0  # scenes that move
    ambiguity: float = 0.1  # scenes that show the things of an earlier scene in other places: its captions nearly fit
    partiality: float = 0.5  # facts of a scene that a caption leaves out
    synonymy: float = 0.2  # words that give way to another word for the same
    noise: float = 0.02  # facts told that are guessed, most of them wrongly

    def __post_init__(self) -> None:
        if self.items < 0 or self.image_size < 32 or min(self.captions_per_item, self.identities) < 1:
            raise ValueError(f"a world has items >= 0, image_size >= 32, a caption and an identity, not {self}")
        for name in ("motion", "ambiguity", "partiality", "synonymy", "noise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Thing:
    """`x` and `y` are its middle at the start; `turn` is in radians."""

    kind: str
    colour: str
    texture: str
    size: str
    row: int = 0  # of the nine places
    column: int = 0
    x: float = 0.5
    y: float = 0.5
    turn: float = 0.0
    motion: str | None = None

    @property
    def place(self) -> str:
        return PLACES[self.row][self.column]


@dataclass(frozen=True)
class Scene:
    index: int
    seed: int
    width: int
    height: int
    background: str
    things: tuple[Thing, ...]  # no two in one place; the first is the individual that the scene is about
    identity: int
    frames: int  # 1 for a still picture
    grain: float

    @property
    def class_name(self) -> str:
        return f"{self.things[0].colour} {self.things[0].kind}"


def scenes(world: World) -> Iterator[Scene]:
    return (scene(world, index) for index in range(world.items))


def scene(world: World, index: int) -> Scene:
    """One scene by its number, at the same cost as any other."""
    random = _random(world.seed, LAYOUT, index)
    source = int(random.integers(index)) if index and random.random() < world.ambiguity else index
    moves = random.random() < world.motion
    wide, high = SHAPES_OF_PICTURES[random.integers(len(SHAPES_OF_PICTURES))]
    width, height = round(world.image_size * wide), round(world.image_size * high)
    identity, background, things = _looks(world, source)
    things = _placed(things, width, height, moves, random)
    frames = int(random.integers(8, 25)) if moves else 1
    return Scene(index, world.seed, width, height, background, things, identity, frames, world.grain)


def frames(scene: Scene) -> Iterator[Pixels]:
    """(height, width, 3) each; the times in between are equal, and how long they are is the publisher's affair."""
    for number in range(scene.frames):
        canvas = _scenery(scene)
        for thing in scene.things:
            _paint(canvas, _moved(thing, number / max(scene.frames - 1, 1)))
        canvas += scene.grain * _random(scene.seed, GRAIN, scene.index, number).standard_normal(canvas.shape)
        yield canvas.clip(0, 255).round().astype(np.uint8)


def draw(scene: Scene) -> Pixels:
    """The picture, or the first frame."""
    return next(frames(scene))


def box(scene: Scene, thing: Thing) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of what is seen of a thing in `draw`; right and bottom are excluded."""
    rows, columns, u, v = _patch(scene.height, scene.width, thing)
    seen = _pixels(_inside(thing.kind, u, v)[..., None])[..., 0] >= 0.5
    down, across = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    left, top = columns.start + int(across[0]), rows.start + int(down[0])
    return left, top, left + int(np.ptp(across)) + 1, top + int(np.ptp(down)) + 1


def describe(scene: Scene, world: World, position: int) -> str:
    """The caption of that position. Whatever it says is true where `noise` is 0, but other scenes may fit it too."""
    random = _random(scene.seed, WORDING, scene.index, position)
    told = _told(scene, 1 - world.partiality, random)
    phrases = [_Phrase(_misremembered(scene.things[i], world.noise, random), told[i]) for i in told if i is not None]
    random.shuffle(phrases)  # type: ignore[arg-type]
    return _sentence(phrases, scene.background if None in told else None, world.synonymy, random)


def _random(seed: int, *key: int) -> Generator:
    return np.random.default_rng([seed, *key])


def _pick(random: Generator, options: Iterable[str]) -> str:
    return list(options)[random.integers(len(list(options)))]


def _looks(world: World, index: int) -> tuple[int, str, tuple[Thing, ...]]:
    """Identity, background and things, without places."""
    random = _random(world.seed, LOOKS, index)
    identity = int(random.integers(world.identities))
    individual = _any_thing(_random(world.seed, IDENTITY, identity))
    company = [_any_thing(random) for _ in range(random.integers(4))]
    return identity, _pick(random, BACKGROUNDS), (individual, *company)


def _any_thing(random: Generator) -> Thing:
    return Thing(*(_pick(random, options) for options in (KINDS, COLOURS, TEXTURES, RADII)))


def _placed(thing: Thing, place: int, width: int, height: int, random: Generator) -> Thing:
    """Anywhere in its ninth of the picture, but whole."""
    row, column = divmod(place, 3)
    radius = RADII[thing.size] * min(width, height)
    x, y = ((n + 0.5) / 3 + (1 / 6 - radius / side) * random.uniform(-1, 1) for n, side in ((column, width), (row, height)))
    return replace(thing, row=row, column=column, x=x, y=y, turn=random.uniform(-0.25, 0.25))


def _moving(thing: Thing, random: Generator) -> Thing:
    """In any direction that does not leave the picture at once."""
    steps = {name: (thing.column + np.sign(x), thing.row + np.sign(y)) for name, (x, y) in MOTIONS.items()}
    return replace(thing, motion=_pick(random, [name for name, end in steps.items() if 0 <= min(end) <= max(end) <= 2]))


def _moved(thing: Thing, time: float) -> Thing:
    """Where it is at a time from 0 to 1."""
    across, down = MOTIONS[thing.motion] if thing.motion else (0.0, 0.0)
    turned = 2 * np.pi if thing.motion == "around" else 0.0
    return replace(thing, x=thing.x + time * across, y=thing.y + time * down, turn=thing.turn + time * turned)


def _scenery(scene: Scene) -> Plane:
    first, second, rows, columns = BACKGROUNDS[scene.background]
    patches = _random(scene.seed, SCENERY, scene.index).random((rows, columns, 1))
    down, across = np.arange(scene.height) * rows // scene.height, np.arange(scene.width) * columns // scene.width
    return first + patches[down][:, across] * np.subtract(second, first)


def _paint(canvas: Plane, thing: Thing) -> None:
    rows, columns, u, v = _patch(*canvas.shape[:2], thing)
    inside = _inside(thing.kind, u, v)
    edge = ~_inside(thing.kind, 1.2 * u, 1.2 * v)
    colour = np.array(COLOURS[thing.colour], float)
    contrast = 0.35 * colour + 0.65 * (20.0 if colour.mean() > 120 else 240.0)
    painted = np.where((edge | _textured(thing.texture, u, v))[..., None], contrast, colour)
    canvas[rows, columns] *= 1 - _pixels(inside[..., None])
    canvas[rows, columns] += _pixels(painted * inside[..., None])


def _patch(height: int, width: int, thing: Thing) -> tuple[slice, slice, Plane, Plane]:
    """Rows and columns of the picture that a thing may touch; where their subpixels lie in it, upright, from -1 to 1."""
    radius, x, y = RADII[thing.size] * min(height, width), thing.x * width, thing.y * height
    left, right = np.clip([int(x - radius), int(x + radius) + 1], 0, width).tolist()
    top, bottom = np.clip([int(y - radius), int(y + radius) + 1], 0, height).tolist()
    across = ((np.arange(left * SUPERSAMPLING, right * SUPERSAMPLING) + 0.5) / SUPERSAMPLING - x) / radius
    down = ((np.arange(top * SUPERSAMPLING, bottom * SUPERSAMPLING) + 0.5)[:, None] / SUPERSAMPLING - y) / radius
    cos, sin = np.cos(thing.turn), np.sin(thing.turn)
    return slice(top, bottom), slice(left, right), across * cos + down * sin, down * cos - across * sin


def _pixels(fine: NDArray[np.generic]) -> Plane:
    """Means of the subpixels of each pixel."""
    height, width, channels = fine.shape
    blocks = (height // SUPERSAMPLING, SUPERSAMPLING, width // SUPERSAMPLING, SUPERSAMPLING, channels)
    return fine.reshape(blocks).mean(axis=(1, 3))


def _inside(kind: str, u: Plane, v: Plane) -> Mask:
    """Which points of the unit disc a shape covers; v points down."""
    radius, angle = np.hypot(u, v), np.arctan2(u, -v)
    match kind:
        case "circle":
            return radius < 0.9
        case "square":
            return np.maximum(abs(u), abs(v)) < 0.7
        case "triangle":
            return (v < 0.6) & (abs(u) < 0.48 * (v + 0.95))
        case "star":
            tip = abs((angle / (0.4 * np.pi) + 0.5) % 1 - 0.5) * 0.4 * np.pi  # the angle to the nearest tip
            return radius * (np.cos(tip) + 2.88 * np.sin(tip)) < 0.98
        case "heart":
            x, y = 1.25 * u, 0.1 - 1.25 * v
            return (x * x + y * y - 1) ** 3 < x * x * y**3
        case "cross":
            return (np.minimum(abs(u), abs(v)) < 0.28) & (np.maximum(abs(u), abs(v)) < 0.9)
        case "ring":
            return abs(radius - 0.72) < 0.22
        case "moon":
            return (radius < 0.95) & (np.hypot(u - 0.45, v) > 0.75)
        case "diamond":
            return abs(u) / 0.6 + abs(v) / 0.98 < 1
        case _:
            return radius < 0.68 + 0.28 * np.cos(5 * angle)  # a flower


def _textured(texture: str, u: Plane, v: Plane) -> Mask:
    match texture:
        case "striped":
            return v * 2.2 % 1 < 0.5
        case "dotted":
            return np.hypot(u * 2 % 1 - 0.5, v * 2 % 1 - 0.5) < 0.32
        case "checked":
            return (np.floor(u * 2.2) + np.floor(v * 2.2)) % 2 == 0
        case _:
            return np.zeros(np.broadcast_shapes(u.shape, v.shape), bool)


@dataclass(frozen=True)
class _Mention:
    """A thing as its witness remembers it, and which of its facts are told."""

    thing: Thing
    told: frozenset[str]
