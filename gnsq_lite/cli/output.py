"""Output of commands: colour and live progress on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import os
import time
import unicodedata
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Output(Console):
    """A Console that raises BrokenPipeError.  rich's Console would instead exit with 1 and print nothing.

    ``:a:``, for example in an IPv6 address, is printed unchanged; rich would print an emoji.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


#: Standard output.  Off a terminal: no colour, no cursor movement, no wrapping.
console = Output(highlight=False, soft_wrap=True)

#: Standard error.
errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


#: Characters of a progress bar.
_BAR = 24


class Progress:
    """Progress display: counts and rates in a live line on a terminal, else in a line every few seconds."""

    def __init__(self, title: str, *, every: float = 2.0) -> None:
        self._title, self._every = title, every
        self._live: Live | None = None
        self._began = time.monotonic()
        self._printed = self._began

    def __enter__(self) -> Progress:
        if errors.is_terminal:
            self._live = Live(Text(""), console=errors, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, *, part: float | None = None, **counts: int) -> None:
        """Show the current counts.  If *part*, the fraction done, is given, also show a bar and the time left."""
        now = time.monotonic()
        elapsed = max(now - self._began, 1e-9)
        line = "  ".join(f"{name} {count:,} ({count / elapsed:,.0f}/s)" for name, count in counts.items())
        if part is not None and 0 < part <= 1:
            full = round(part * _BAR)
            left = elapsed / part - elapsed
            line = f"{'#' * full}{'.' * (_BAR - full)} {part:4.0%}  {line}  {left:,.0f} s left"
        if self._live is not None:
            self._live.update(Text(f"{self._title}  {line}"))
        elif now - self._printed >= self._every:
            self._printed = now
            errors.print(f"{self._title}: {line}", markup=False)


def visible(text: str) -> str:
    """Return *text* without control characters, except tab and newline, and without direction marks."""
    if text.isprintable():
        return text
    return "".join(_shown(letter) for letter in text)


def _shown(letter: str) -> str:
    if letter in "\t\n" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return letter
    return letter.encode("unicode_escape", "surrogatepass").decode()


def echo(text: Any) -> None:
    """Print one line unchanged, and flush."""
    print(text, flush=True)
