"""Run commands of ``gnsq-lite``, in processes and in the test's process."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from gnsq_lite.cli import app, lists
from tests.programs import Program, piped


def command(*arguments: str) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "gnsq_lite", *arguments]


def environment(**more: str) -> dict[str, str]:
    """Return an environment without the addresses that this machine configures."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("NSQ", "GNSQ_LITE"))}
    return {**known, "COLUMNS": "200", "PYTHONWARNINGS": "default", **more}


def run(*arguments: str, stdin: bytes = b"", timeout: float = 60.0, **env: str) -> Any:
    """Run a command in a process to its end; return a CompletedProcess with bytes."""
    return subprocess.run(
        command(*arguments), input=stdin, capture_output=True, timeout=timeout, env=environment(**env), check=False
    )


def call(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, output and errors."""
    done = run_here(*arguments)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def run_here(*arguments: str, stdin: bytes = b"", **env: str) -> Any:
    """Run a command in this process; return a CompletedProcess with bytes, like :func:`run`.

    It saves the start of an interpreter and the imports, about 0.2 s of CPU time for each command.  Exit codes of the
    operating system, signals and terminals need :func:`run` or :func:`started`.
    """
    streams = [io.TextIOWrapper(io.BytesIO(data), "utf-8", write_through=True) for data in (stdin, b"", b"")]
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(known := environment(**env)):
            patch.delenv(name)
        for name, value in known.items():
            patch.setenv(name, value)
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        patch.setattr(lists, "_printed", set())  # a process prints each warning once
        code = exit_code(arguments)
    out, err = (stream.buffer.getvalue() for stream in streams[1:])  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(arguments, code, out, err)


def exit_code(arguments: Sequence[str]) -> int:
    """Run a command in this process with the test's own streams and environment; return its exit code."""
    with new_logging():
        return app.run(arguments)


@contextmanager
def new_logging() -> Iterator[None]:
    """Give a command the root logger of a new process, and take away the handlers that the command adds.

    A handler that stayed would write the records of later tests to a closed stream.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def started(*arguments: str) -> Iterator[Program]:
    """Run a command until the test stops it."""
    with piped(command(*arguments)[1:], environment()) as program:
        yield program
