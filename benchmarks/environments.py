"""Builds the environments of the clients at their first use: a virtual environment per peer, and the Go program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.cases import Implementation

HERE = Path(__file__).parent
OUT = HERE / "out"
PEERS = HERE / "peers"


#: Clients that need a newer Python than this project does.
_NEEDS = {"asyncnsq": (3, 12)}


class Unavailable(Exception):
    """A client cannot be measured on this machine.  The text has the reason."""


def command(implementation: Implementation) -> list[str]:
    """Build the environment of *implementation*, and return the command of its driver.  Raises Unavailable."""
    if implementation.driver in ("go", "youzan"):
        return [str(_go(implementation.name, PEERS / implementation.driver))]
    python = Path(sys.executable) if not implementation.environment else _venv(implementation.environment)
    return [str(python), str(PEERS / implementation.driver)]


def _venv(name: str) -> Path:
    """Return the Python of the peer's environment, with the packages that ``peers/requirements`` pins."""
    place = OUT / "envs" / name
    pins = PEERS / "requirements" / f"{name}.txt"
    stamp = place / "built-from.txt"
    python = place / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != pins.read_text():
        print(f"building the environment of {name} ...", file=sys.stderr)
        shutil.rmtree(place, ignore_errors=True)
        _run([_python(name), "-m", "venv", str(place)], name)
        _run([str(python), "-m", "pip", "install", "--quiet", "-r", str(pins)], name)
        stamp.write_text(pins.read_text())
    return python


def _python(name: str) -> str:
    """Return a Python for the environment of a client: this one if it is new enough, or else the newest on PATH."""
    needed = _NEEDS.get(name, (3, 10))
    if sys.version_info >= needed:
        return sys.executable
    check = f"import sys; sys.exit(sys.version_info < {needed})"
    for found in filter(None, (shutil.which(f"python3.{minor}") for minor in range(20, needed[1] - 1, -1))):
        if subprocess.run([found, "-c", check], capture_output=True, check=False).returncode == 0:
            return found
    raise Unavailable(f"{name} needs Python {needed[0]}.{needed[1]} or newer")


def _go(name: str, folder: Path) -> Path:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("Go is not installed")
    program = (OUT / "envs" / name).resolve()
    sources = sorted(folder.glob("*"))
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        print(f"building the {name} program ...", file=sys.stderr)
        program.parent.mkdir(parents=True, exist_ok=True)
        _run([go, "build", "-o", str(program), "."], name, folder)
    return program


def _run(argv: list[str], name: str, cwd: Path | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Unavailable(f"{name} cannot be built: {lines[-1]}")


def variables() -> dict[str, str]:
    """Return the variables of this process, with this checkout on PYTHONPATH, for a driver."""
    return {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONDONTWRITEBYTECODE": "1"}


def versions() -> dict[str, str]:
    """Return the versions that affect the figures: Python, gnsq_lite's dependencies, the peers, Go."""
    from importlib import metadata

    found = {"python": sys.version.split()[0]}
    for package in ("gevent", "greenlet", "python-snappy", "cramjam"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    for pins in sorted((PEERS / "requirements").glob("*.txt")):
        for line in pins.read_text().splitlines():
            name, _, version = line.partition("==")
            if name == pins.stem:
                found[name] = version
    go = shutil.which("go")
    if go is not None:
        found["go"] = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout.split()[2][2:]
        for line in (PEERS / "go" / "go.mod").read_text().splitlines():
            if "nsqio/go-nsq" in line:
                found["go-nsq"] = line.split()[-1].lstrip("v")
    return found
