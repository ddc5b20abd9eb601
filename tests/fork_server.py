"""Starts Python programs as forks of a process that has imported their modules: a start costs 0.1 s of CPU, not 0.5.

A fork runs a program as ``python ARGUMENTS`` does, with its own directory, environment, output and process group.
Tests of what happens before or while modules are imported need a new interpreter.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent


class ForkServer:
    """A process that imported *modules*, started with the first program.  *options* are of its interpreter."""

    def __init__(self, modules: Sequence[str], options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, *options, "-m", "tests.fork_server", *modules]
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, **question: Any) -> Any:
        """Send a question and return the answer."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=pipe, stdout=pipe)
            atexit.register(self._end)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def _end(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def start(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[bytes]) -> Forked:
        """Start ``python ARGUMENTS``: a script, ``-c TEXT`` or ``-m MODULE``; its output and errors go to a file."""
        name = os.fspath(output.name)
        return Forked(self, self.ask(arguments=list(arguments), cwd=str(cwd), env=dict(env), output=name))


class Forked(subprocess.Popen[bytes]):
    """A fork, with the methods of a Popen that tests use.  The server is its parent, and waits for it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid, self.returncode = server, pid, None
        self.args, self.stdin, self.stdout, self.stderr, self._sigint_wait_secs = (), None, None, None, 0.0

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        if self.returncode is None:
            self.returncode = self._server.ask(wait=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program and return its exit code.  Raises TimeoutExpired."""
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            time.sleep(0.01)
        return code

    def __del__(self) -> None:
        """Leave a running fork to the server."""


def serve() -> dict[str, Any] | None:
    """Answer questions until the pipe ends; in a fork, return what to run."""
    for line in iter(sys.stdin.buffer.readline, b""):
        question = json.loads(line)
        if "wait" in question:
            pid, status = os.waitpid(question["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif not (answer := os.fork()):
            return question
        print(json.dumps(answer), flush=True)
    return None


def become(arguments: list[str], cwd: str, env: Mapping[str, str], output: str) -> None:
    """Run ``python ARGUMENTS`` in this process."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for path, flags, descriptors in ((os.devnull, os.O_RDONLY, [0]), (output, os.O_WRONLY | os.O_APPEND, [1, 2])):
        opened = os.open(path, flags)
        for descriptor in descriptors:
            os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the end of the process
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.dont_write_bytecode = True
    sys.orig_argv = [sys.executable, *sys.orig_argv[1 : sys.orig_argv.index("-m")], *arguments]
    kind, *rest = arguments
    first = cwd if kind in ("-c", "-m") else os.path.dirname(os.path.abspath(kind))
    sys.path[:1] = [first, *env.get("PYTHONPATH", "").split(os.pathsep)]
    importlib.invalidate_caches()
    if kind == "-c":
        sys.argv, main = ["-c", *rest[1:]], {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(rest[0], "<string>", "exec"), main)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy each page with an object
    if (program := serve()) is not None:
        become(**program)
