"""The one exception a person is meant to read."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class UserError(Exception):
    """Something the user can act on: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits non-zero. Everything else that is raised is a defect.
    """


def few(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def forget_command(root: str) -> str:
    """The command that removes what is damaged under a root, as a message advises it."""
    return f"`xmodal verify --forget --root {shlex.quote(root)}`"


@contextmanager
def extra_needed(extra: str, why: str) -> Iterator[None]:
    """Says how to get a package that an import lacks."""
    try:
        yield
    except ImportError as missing:
        raise UserError(f"{why}: pip install -e '.[{extra}]' in the checkout") from missing
