"""Run a program on a pseudo-terminal and read its screen."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

from tests.cli.programs import command, environment
from tests.programs import STARTING, wait_for


class Terminal:
    """A program on a pseudo-terminal, and the text on its screen.  Knows only the control codes of these programs."""

    def __init__(self, *arguments: str, width: int = 80, height: int = 24) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        env = {name: value for name, value in environment(TERM="xterm").items() if name != "COLUMNS"}
        adopt = (
            "import fcntl, os, sys, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\nos.execv(sys.argv[1], sys.argv[1:])"
        )
        argv = [sys.executable, "-c", adopt, *command(*arguments)]
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
        os.close(slave)
        self.width, self.raw = width, b""

    def read(self, seconds: float = 0.05) -> None:
        """Take what was written within *seconds*."""
        while select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # it has ended
                return
            if not data:
                return
            self.raw += data

    def shows(self, text: str) -> bool:
        """Whether *text* is on the screen now."""
        self.read()
        return any(text in line for line in self.screen())

    def type(self, data: bytes) -> None:
        """Type *data*."""
        os.write(self._master, data)

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        wait_for(lambda: (self.read(), self.process.poll() is not None)[1], STARTING, "the end")
        self.read()
        return self.process.wait(10)

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._master)

    def screen(self) -> list[str]:
        """Return the lines; a line that is too long goes on in the next, as on a terminal."""
        lines, row, column = [""], 0, 0
        for found in re.finditer(r"\x1b\[([\d;?]*)([a-zA-Z])|(.)", self.raw.decode("utf-8", "replace"), re.S):
            number, letter, char = found.groups()
            if letter == "A":
                row = max(0, row - int(number or 1))
            elif letter == "K":
                lines[row] = ""
            elif char == "\r":
                column = 0
            elif char == "\n":
                row += 1
            elif char is not None:
                if column == self.width:
                    row, column = row + 1, 0
                while len(lines) <= row:
                    lines.append("")
                lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
                column += 1
            while len(lines) <= row:
                lines.append("")
        return [line.rstrip() for line in lines]
