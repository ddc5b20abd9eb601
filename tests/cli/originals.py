"""nsq's own utilities, where they are found, and ours beside them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.programs import command, environment
from tests.servers import find_program

#: nsq's name -> ours.
NAMES = {
    "nsq_tail": "tail",
    "nsq_to_file": "to-file",
    "nsq_to_http": "to-http",
    "nsq_to_nsq": "relay",
    "to_nsq": "pub",
    "nsq_stat": "stat",
}


def program(name: str) -> str:
    """Return the path of nsq's utility: ``GNSQ_NSQ_TO_FILE`` and so on, PATH, or beside ``GNSQ_NSQD``; else skip."""
    found = find_program(name, "GNSQ_" + name.upper())
    nsqd = os.environ.get("GNSQ_NSQD")
    if found is None and nsqd and (Path(nsqd).parent / name).exists():
        found = str(Path(nsqd).parent / name)
    if found is None:
        pytest.skip(f"no {name}: put it on PATH, beside GNSQ_NSQD, or name it in GNSQ_{name.upper()}")
    return found


class Side:
    """One of the two: a program that runs with the same flags as the other, and a channel of its own."""

    def __init__(self, name: str, argv: list[str], channel: str, folder: Path) -> None:
        self.name, self.argv, self.channel, self.folder = name, argv, channel, folder
        self.folder.mkdir(exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self._log = (folder.parent / f"{folder.name}.log").open("wb+")

    def start(self, *flags: str, stdin: int | None = None) -> None:
        """Start it in its folder; ``{here}`` in a flag is the folder."""
        self.process = subprocess.Popen(
            [*self.argv, *(flag.replace("{here}", str(self.folder)) for flag in flags)],
            cwd=self.folder,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(PYTHONUNBUFFERED="1", TZ="UTC"),
        )

    def stop(self, number: int) -> int:
        """Send a signal; return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        assert self.process is not None
        try:
            self.process.communicate(timeout=60)
        finally:
            self.kill()
        return self.process.returncode

    def output(self, flags: list[str], stdin: bytes = b"", timeout: float = 60.0) -> tuple[int, bytes, bytes]:
        """Run it to its end; return exit code, output and errors."""
        done = subprocess.run(
            [*self.argv, *flags], input=stdin, capture_output=True, timeout=timeout, env=environment(), check=False
        )
        return done.returncode, done.stdout, done.stderr

    def log(self) -> str:
        """Return what it has written to standard error."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """End it if it runs."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.communicate(timeout=30)

    def close(self) -> None:
        """End it and close its log."""
        self.kill()
        self._log.close()


def pair(name: str, folder: Path) -> tuple[Side, Side]:
    """Return nsq's utility and ours."""
    return (
        Side("nsq", [program(name)], "theirs", folder / "theirs"),
        Side("ours", command(NAMES[name]), "ours", folder / "ours"),
    )


def until(condition: Callable[[], object], what: str, timeout: float = 60.0) -> None:
    """Wait for *condition*; fail with *what* never came."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.02)
