"""The one exception a person is meant to read."""

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LONGEST_SENTENCE = 500  # characters: some list all names there are


class UserError(Exception):
    """Something the user can act on: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits non-zero. Everything else that is raised is a defect.
    """


def few(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def first_sentences(error: Exception) -> str:
    """The beginning of what an error of another library says, in one line that ends with a sentence."""
    text = " ".join(str(error).split())
    found = re.match(r"(.{1,200}|.+?)[.!?](?= |$)", text)
    return textwrap.shorten((found[0] if found else text).rstrip("."), LONGEST_SENTENCE, placeholder=" …")


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
