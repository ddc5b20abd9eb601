"""Start programs as processes, wait for them, and always end them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from subprocess import Popen
from typing import IO, Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
#: Seconds after which a test fails that waits for something quick.
PATIENCE = 10.0
#: Seconds after which a test fails that waits for a new process: on a busy machine, imports alone take seconds.
STARTING = 40.0


def wait_for(
    condition: Callable[[], T], timeout: float = PATIENCE, what: str = "", sleep: Callable[[float], object] = time.sleep
) -> T:
    """Call *condition* until its result is true and return that result.

    It is called after 5 ms, and then after a tenth of the time that has passed, but at least every 50 ms.
    After *timeout* seconds the test fails and shows the last result and the variables that *condition* uses.
    On a machine whose load is above its cores, *timeout* grows with the load.
    *sleep* is ``gevent.sleep`` where the greenlets of the test's own thread must run meanwhile.
    """
    timeout *= max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    began = time.monotonic()
    while not (result := condition()):
        if (waited := time.monotonic() - began) > timeout:
            used = inspect.getclosurevars(condition).nonlocals if inspect.isfunction(condition) else {}
            seen = {
                name: value.stats() if type(value).__name__ in ("Reader", "Writer") else value
                for name, value in used.items()
            }
            raise AssertionError(f"{what or 'not true'} after {timeout:g} s: {result!r}; {repr(seen)[:2000]}")
        sleep(min(0.05, 0.005 + waited / 10))
    return result


class Program:
    """A running program.  Its output and errors go to the file *log*, or to pipes if there is none."""

    def __init__(self, process: Popen[bytes], log: Path | None = None) -> None:
        self.process, self.log = process, log

    @property
    def output(self) -> str:
        """Return the text of *log*."""
        assert self.log is not None
        return self.log.read_text(encoding="utf-8", errors="replace")

    def says(self, text: str, times: int = 1, timeout: float = STARTING) -> None:
        """Wait until *text* is in the output *times* times."""
        deadline = time.monotonic() + timeout
        while self.output.count(text) < times:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.output}"
            assert self.process.poll() is None, (
                f"it ended with {self.process.returncode}, no {text!r} in:\n{self.output}"
            )
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        self.process.send_signal(number)

    def ends(self, timeout: float = STARTING) -> int:
        """Wait for the end of the program and return its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.output}") from None

    def write(self, data: bytes) -> None:
        """Write *data* to the standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read_line(self, errors: bool = False) -> bytes:
        """Read a line of the output, or of the errors, from its pipe."""
        pipe = self.process.stderr if errors else self.process.stdout
        assert pipe is not None
        return pipe.readline()

    def stop(self, number: int = SIGTERM) -> tuple[int, bytes, bytes]:
        """Send a signal; return the exit code, and the rest of the output and the errors in the pipes."""
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=STARTING)
        return self.process.returncode, out, errors


def interpreter(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[bytes]) -> Popen[bytes]:
    """Start Python with *arguments* as the leader of a process group."""
    command, null, merged = [sys.executable, *arguments], subprocess.DEVNULL, subprocess.STDOUT
    return Popen(command, cwd=cwd, env=env, stdin=null, stdout=output, stderr=merged, start_new_session=True)


@contextmanager
def running(
    arguments: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    name: str = "program",
    start: Callable[..., Popen[bytes]] = interpreter,
) -> Iterator[Program]:
    """Run Python with *arguments* in *folder*, which is on its path.

    *start* starts it: :func:`interpreter`, or the method of a :class:`tests.fork_server.ForkServer`.
    """
    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(env or {}),
    }
    log = folder / f"{name}.log"
    with log.open("wb") as file, start(arguments, folder, environment, file) as process:
        program = Program(process, log)
        try:
            yield program
        except BaseException:
            print(program.output)  # pytest shows it with what failed
            raise
        finally:
            _end(process)


@contextmanager
def piped(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """Run Python with *arguments*; its input, output and errors are pipes."""
    pipe = subprocess.PIPE
    with Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        try:
            yield Program(process)
        finally:
            _end(process)


def _end(process: Popen[bytes]) -> None:
    """End *process* by SIGTERM, or by SIGKILL after 5 s."""
    if process.poll() is None:
        process.send_signal(SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


#: Seconds a process may take, on a busy machine.
LIMIT = 40.0


def python(text: str, *arguments: str, limit: float = LIMIT, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run *text* in a fresh interpreter that warns of everything but, since 3.12, of forks beside threads."""
    command = [sys.executable, "-X", "dev", "-W", "ignore:This process:DeprecationWarning", "-c", text, *arguments]
    done = subprocess.run(command, capture_output=True, timeout=limit, check=False, **options)
    if done.returncode < 0:  # ended by a signal: why is in what an assertion shortens
        print(done.stderr.decode(errors="replace"))
    return done
