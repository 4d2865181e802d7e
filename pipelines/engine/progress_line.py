"""Progress on stderr: one line redrawn on a terminal, one now and then in a log, none when quiet."""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TextIO

from xmodal.errors import UserError
from xmodal.progress import printable

TERMINAL_SECONDS = 0.1
LOG_SECONDS = 30.0


class ProgressLine:
    def __init__(
        self, stream: TextIO | None = None, quiet: bool = False, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._stream, self._quiet = stream or sys.stderr, quiet
        self._redraws = self._stream.isatty()
        self._log = log  # takes every line, quiet or not, but none redrawn

    def logged(self, log: Callable[[str], None]) -> "ProgressLine":
        return ProgressLine(self._stream, self._quiet, log)

    def say(self, text: str) -> None:
        self._log(text)
        if not self._quiet:
            print(printable(text), file=self._stream, flush=True)

    @contextmanager
    def listening(self, heard: Callable[[], Iterable[str]]) -> Iterator[None]:
        """Says now and then what is new in `heard()`, while this process is at work or waits."""
        over, known = Event(), set[str]()

        def news() -> list[str]:
            new = set[str]()
            with suppress(OSError, UserError, ValueError):  # it is heard later, or is no text
                new = set(heard()) - known
            known.update(new)
            return sorted(new)

        def listen() -> None:
            while not over.wait(LOG_SECONDS):
                for text in news():
                    self.say(text)

        news()  # the last words of an earlier driver's

        thread = Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def over(
        self, name: str, total: int, done: int = 0, unit: str = "units", remark: Callable[[], str] = str
    ) -> Iterator[Callable[[int], None]]:
        """Gives the function to call with how many were just done; each line ends with the remark of that moment."""
        started = shown = logged = time.monotonic()
        now_done = done

        def line() -> str:
            return _line(name, now_done, done, total, unit, time.monotonic() - started) + remark()

        def tick(count: int) -> None:
            nonlocal now_done, shown, logged
            now_done += count
            if now_done == total and not self._redraws:
                return  # the last line says so
            now = time.monotonic()
            if now - logged >= LOG_SECONDS:
                logged = now
                self._log(line())
            if now - shown >= (TERMINAL_SECONDS if self._redraws else LOG_SECONDS):
                shown = now
                self._draw(line())

        try:
            yield tick
        finally:
            last = line()
            self._log(last)
            self._draw(last, is_last=True)

    def _draw(self, line: str, is_last: bool = False) -> None:
        if self._quiet:
            return
        line, end = printable(line), "\n"
        if self._redraws:
            line = f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}"  # one that wraps cannot be redrawn
            end = "\n" if is_last else ""
        print(line, end=end, file=self._stream, flush=True)


def _line(name: str, now_done: int, before: int, total: int, unit: str, seconds: float) -> str:
    rate = (now_done - before) / seconds if seconds > 0 else 0.0
    percent = 100 * now_done // total if total else 100
    text = f"{name}: {now_done:,}/{total:,} {unit} ({percent} %)"
    if now_done == before:
        return text + (", all done before" if now_done == total else "")
    text += f", {rate:,.1f} {unit}/s" if rate >= 1 else f", {60 * rate:.1f} {unit}/min"
    if now_done < total and rate > 0:
        return f"{text}, {duration((total - now_done) / rate)} left"
    return f"{text}, in {duration(seconds)}"


def duration(seconds: float) -> str:
    """`9 s`, `3 min`, `2 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
