"""Work by all cores whose numbers do not depend on how many cores there are."""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from xmodal.errors import extra_needed

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Is `map` by as many threads as there are cores; each item is one thread's, so its bits stay."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(function, items)


def one_thread_each() -> Any:
    """Keeps products of matrices from dividing themselves among threads, which changes their last bits."""
    with extra_needed("text", "codes of sentences need scikit-learn"):
        import threadpoolctl  # comes with it
    importlib.import_module("scipy.linalg")  # only what is loaded is limited, and it has products of its own
    return threadpoolctl.threadpool_limits(1)
