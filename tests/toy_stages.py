"""Stages that do almost nothing, so that what the engine does is seen: letters → their words → one index."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import extents_file, index_files, shard_file, shard_ranges, write_ragged_shard, write_shard

HALF = Resources(cpus=0.5)


@dataclass(frozen=True)
class Letters:
    count: int = 12
    seconds: float = 0.0
    salt: str = ""


@dataclass(frozen=True)
class Words:
    length: int = 3


def letters(config: Letters) -> Stage[Letters, int]:
    """A unit writes one or two files, by turns, and every fifth none; some rows fail."""
    return Stage("letters", config, _plan_letters, _open_letters, resources=HALF)


def words(source: Stage[Letters, int], config: Words) -> Stage[Words, str]:
    return Stage("words", config, _plan_words, _open_words, inputs=(source,), resources=HALF)


def _plan_letters(config: Letters, inputs: Inputs) -> Iterator[tuple[str, int]]:
    for number in range(config.count):
        yield f"{number:05d}", number


def _open_letters(config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    def write(number: int, sink: Sink) -> Counts:
        time.sleep(config.seconds)
        for part in range(0 if number % 5 == 4 else 1 + number % 2):
            with sink.file(f"data/{number:05d}.{part}") as file:
                for _ in range(number % 7):
                    file.write(f"{config.salt}{number} ".encode() * 50)
        if number % 4 == 3:
            sink.fail(f"row {number}", "unreadable", "every fourth is")
        return {"letters": number % 7}

    return write


def _plan_words(config: Words, inputs: Inputs) -> Iterator[tuple[str, str]]:
    for name in sorted(inputs[0].files):
        yield name.replace("/", "-"), name


def _open_words(config: Words, inputs: Inputs) -> Callable[[str, Sink], Counts]:
    def write(name: str, sink: Sink) -> Counts:
        with inputs[0].open(name) as source, sink.file(f"{name}.words") as file:
            text = source.read()
            file.write(text[: config.length])
        return {"words": 1, "bytes read": len(text)}

    return write


def together(count: int, at_once: int) -> Stage[Letters, int]:
    """A worker ends no unit before so many are begun."""
    return Stage("together", Letters(count), _plan_letters, partial(_open_together, at_once))


def _open_together(at_once: int, config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    write, begun = _open_letters(config, inputs), Barrier(at_once)

    def write_together(number: int, sink: Sink) -> Counts:
        sink.say("begun")
        time.sleep(0.1)  # else several are one call
        begun.wait(60)
        return write(number, sink)

    return write_together


def deadly(count: int, victim: int) -> Stage[Letters, int]:
    """One unit kills the process that works on it, every time."""
    return Stage("deadly", Letters(count, salt=str(victim)), _plan_letters, _open_deadly, resources=HALF)


def _open_deadly(config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    def die(number: int, sink: Sink) -> Counts:
        if number == int(config.salt):
            os.kill(os.getpid(), 9)
        return {}

    return die


def failing(count: int, victim: int) -> Stage[Letters, int]:
    """One unit raises."""
    return Stage("failing", Letters(count, salt=str(victim)), _plan_letters, _open_failing, resources=HALF)


def _open_failing(config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    def fail(number: int, sink: Sink) -> Counts:
        with sink.file(f"{number}") as file:
            file.write(b"something")
        if number == int(config.salt):
            raise ZeroDivisionError("a defect in the stage")
        return {}

    return fail


@dataclass(frozen=True)
class Arrays:
    """How many items; each has a row or a run of rows in every one of ARRAYS."""

    items: int = 160


ARRAYS = (
    FeatureSpec("regions", (36, 16), rows_per_chunk=4, rows_per_shard=64),
    FeatureSpec("grids", (4, 4, 16), rows_per_chunk=8, rows_per_shard=64),
    FeatureSpec("boxes", (36, 4), "float32", rows_per_chunk=16, rows_per_shard=64),
    FeatureSpec("frames", (16,), "float16", True, 128, 1024, 64),
    FeatureSpec("jpegs", (), "uint8", True, 4096, 32_768, 64),
    FeatureSpec("tokens", (), "int32", True, 64, 2048, 64),
)
LONGEST = {"frames": 12, "jpegs": 300, "tokens": 30}


def arrays(config: Arrays, ledger: str = "", victim: str = "") -> Stage[Arrays, range]:
    """A unit a shard, with that shard of every array; every shard that is begun is a line of `ledger`.

    `victim` is an array and a shard, as in "frames/2": whoever is in the middle of that one is killed.
    """
    opened = partial(_open_arrays, ledger, victim)
    return Stage("arrays", config, _plan_arrays, opened, resources=HALF)


def array_values(spec: FeatureSpec, item: int) -> NDArray[Any]:
    """What an item has: (1, *row_shape), or of a ragged array (length, *row_shape) where every seventh has none."""
    random = np.random.default_rng([item, len(spec.name)])
    length = int(random.integers(1, LONGEST[spec.name] + 1)) * bool(item % 7) if spec.ragged else 1
    return random.integers(0, 200, (length, *spec.row_shape)).astype(spec.dtype)


def _plan_arrays(config: Arrays, inputs: Inputs) -> Iterator[tuple[str, range]]:
    yield "index", range(0)
    for number, items in enumerate(shard_ranges(ARRAYS[0], config.items)):
        yield f"shard-{number:05d}", items


def _open_arrays(ledger: str, victim: str, config: Arrays, inputs: Inputs) -> Callable[[range, Sink], Counts]:
    def write(items: range, sink: Sink) -> Counts:
        if not items:
            for name, data in index_files(ARRAYS, [f"i{n:05d}" for n in range(config.items)], {"by": "toy"}).items():
                with sink.file(name) as file:
                    file.write(data)
            return {}
        shard = items.start // 64
        if ledger:
            with open(ledger, "a") as file:
                file.write(f"{shard}\n")
        for spec in ARRAYS:
            _write_array(spec, shard, items, sink, victim == f"{spec.name}/{shard}")
        if shard == 1:
            sink.fail("i00099", "unreadable", "it is to be so")
        return {"items": len(items)}

    return write


def _write_array(spec: FeatureSpec, shard: int, items: range, sink: Sink, dies: bool) -> None:
    blocks = _blocks(spec, items, dies)
    if not spec.ragged:
        with sink.file(shard_file(spec, shard)) as file:
            write_shard(file, spec, items, blocks)
        return
    with sink.file(shard_file(spec, shard)) as file:
        extents = write_ragged_shard(file, spec, items, blocks)
    with sink.file(extents_file(spec, shard)) as file:
        file.write(extents)


def _blocks(spec: FeatureSpec, items: range, dies: bool) -> Iterator[NDArray[Any]]:
    for item in items:
        if dies and item == items[len(items) // 2]:
            os.kill(os.getpid(), 9)
        yield array_values(spec, item)
