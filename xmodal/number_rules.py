"""Rules of numbers and choices in configs and recipes; a message names the one that is wrong."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_numbers(rule: str, holds: Callable[[Any], bool], **numbers: object) -> None:
    """Raises ValueError about the first number that breaks a rule; None breaks none."""
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, int | float) and holds(number)):
            raise ValueError(f"{name} {number!r} must be {rule}")


one_or_more = partial(check_numbers, "a whole number, 1 or more", lambda number: type(number) is int and number > 0)
zero_or_more = partial(check_numbers, "0 or more", lambda number: number >= 0)
above_zero = partial(check_numbers, "above zero", lambda number: number > 0)
shares = partial(check_numbers, "from 0 to 1", lambda number: 0 <= number <= 1)
even = partial(check_numbers, "even and above zero", lambda number: number > 0 and number % 2 == 0)


def known_choices(config: Any) -> None:
    """Raises ValueError about the first field whose value is none that its Literal names."""
    kinds = get_type_hints(type(config))
    for name in (field.name for field in fields(config) if get_origin(kinds[field.name]) is Literal):
        if (chosen := getattr(config, name)) not in (known := get_args(kinds[name])):
            raise ValueError(f"no {name} {chosen!r}; there are: {', '.join(map(str, known))}")
