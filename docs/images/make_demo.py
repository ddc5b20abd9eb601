"""Draws demo.svg: the last screen of ``gnsq-lite demo``, as it was on a terminal of 80 columns when this script ran."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from rich.color import ColorType
from rich.terminal_theme import MONOKAI
from rich.text import Text

COMMAND = "gnsq-lite demo"
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_LINE, _TOP = 21, 62


def screen() -> list[Text]:
    """Run the demo on a pseudo-terminal; return the lines that are left on it."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "gnsq_lite", *COMMAND.split()[1:]]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    if running.returncode != 0:
        raise SystemExit(written.decode())
    return [Text.from_ansi(line) for line in left(written.decode())]


def left(written: str) -> list[str]:
    """Return what is still to be seen: a line that was erased or written over is gone."""
    text = re.sub(r"[^\n]*\n?\r*\x1b\[1A\x1b\[2K", "", written.replace("\r\n", "\n").replace("\x1b[?25h", ""))
    lines = [re.split(r"\r|\x1b\[2K", line)[-1] for line in text.split("\n")]
    return [re.sub(r"\x1b\[[?\d;]*[A-HJKSTfhl]", "", line) for line in lines if line.strip()]


def drawn(lines: list[Text]) -> str:
    """Return the picture of a terminal with *lines* below the command."""
    height = _TOP + (len(lines) + 1) * _LINE + 8
    shown = [f'<tspan fill="#7ee787">$</tspan> <tspan fill="#ffffff">{COMMAND}</tspan>']
    shown += ["".join(_spans(line)) for line in lines]
    rows = "\n".join(
        f'<text x="22" y="{_TOP + at * _LINE}" xml:space="preserve">{row}</text>' for at, row in enumerate(shown)
    )
    dots = "".join(f'<circle cx="{24 + 20 * at}" cy="22" r="6" fill="{c}"/>' for at, c in enumerate(_DOTS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" width="700" height="{height}" role="img" '
        f'aria-label="{COMMAND}"><rect width="700" height="{height}" rx="10" fill="#0d1117" stroke="#30363d"/>{dots}'
        f"<style>text{{font-family:{_FONT};font-size:13.5px;fill:#c9d1d9}}</style>\n{rows}\n</svg>\n"
    )


_DOTS = ("#ff5f56", "#ffbd2e", "#27c93f")


def _spans(line: Text) -> list[str]:
    parts = []
    for part in line.divide([edge for span in line.spans for edge in (span.start, span.end)]):
        style = part.get_style_at_offset(_console(), 0) if part.plain else None
        colour = style.color if style is not None else None
        fill = f' fill="{_hex(colour)}"' if colour is not None and colour.type is not ColorType.DEFAULT else ""
        bold = ' font-weight="700"' if style is not None and style.bold else ""
        parts.append(f"<tspan{fill}{bold}>{escape(part.plain)}</tspan>")
    return parts


def _hex(colour: object) -> str:
    return colour.get_truecolor(MONOKAI).hex  # type: ignore[attr-defined,no-any-return]


def _console() -> object:
    from rich.console import Console

    return Console()


if __name__ == "__main__":
    Path(__file__).with_name("demo.svg").write_text(drawn(screen()), encoding="utf-8")
