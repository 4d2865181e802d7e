"""Stages that do almost nothing, so that what the engine does is seen: letters → their words → one index."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.stage import Counts, Inputs, Resources, Sink, Stage

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
