"""Rules of numbers in configs and recipes; a message names the one that is wrong."""

from collections.abc import Callable
from functools import partial
from typing import Any


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
