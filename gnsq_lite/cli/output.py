"""Prints the output of commands.  A terminal gets colour and live progress, any other output gets plain lines."""

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

    Text such as ``:a:``, a possible part of an IPv6 address, is printed unchanged.  rich would print an emoji.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


#: Standard output.  Only a terminal gets colours, cursor movements and wrapped lines.
console = Output(highlight=False, soft_wrap=True)

#: Standard error.
errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


#: Width of a progress bar, in characters.
_BAR = 24


class Progress:
    """Shows counts and rates, on a terminal in a live line, otherwise in a new line every few seconds."""

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
        """Show the current counts.  If the fraction *part* of the work is known, also show a bar and the time left."""
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
    """Escape the control characters and direction marks in *text*, except tab and newline."""
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
