"""``python -m tests.asan``: the C part, built with AddressSanitizer and UndefinedBehaviorSanitizer, under its tests.

A copy of the package is built apart, so the tree keeps its own.  Python's allocations are malloc's, so that each is
watched.  Then the tests that reach the C part run, and the fuzz targets that do, for ``--seconds`` each, on mutations
of the corpus; the inputs are the same for the same ``--seed``.  Exit status 1 when anything failed or a sanitizer
reported something in any process.  Needs Linux and gcc or clang with its sanitizers (CC names another).  Leaks are not
looked for: Python leaves much.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
#: The stack is greenlet's, which copies it while frames stand on it, red zones and all: heap and globals are watched.
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1")
NO_STACK = {
    "gcc": "--param=asan-stack=0",
    "clang": "-shared-libasan -mllvm -asan-stack=0 -Wno-unused-command-line-argument",
}
LINK = {"gcc": "", "clang": "-shared-libasan"}
TESTS = (
    *("tests/unit/test_speed.py", "tests/unit/test_packing.py", "tests/unit/test_runner.py", "tests/unit/wire"),
    *("tests/unit/test_rows.py", "tests/unit/test_speed_lists.py", "tests/unit/test_workers.py"),
    *("tests/unit/youzan/test_messages.py", "tests/unit/youzan/test_hashing.py", "tests/fuzz"),
    *("tests/system/test_hostile_nsqd.py",),
)
#: Targets that reach the C part.
TARGETS = ("frames", "message", "youzan", "packed", "rows")
#: Large fields and limits, which chance alone does not find.
NUMBERS = (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x10\x00")
LOOK = "from gnsq_lite._core import native; print(native.__file__)"


def compiler() -> tuple[str, str]:
    """Return the compiler and its kind, "gcc" or "clang"; raises SystemExit where there is none."""
    for name in (os.environ.get("CC"), "gcc", "clang"):
        if name and shutil.which(name):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            return name, "clang" if "clang" in told else "gcc"
    raise SystemExit("no C compiler: put gcc or clang on PATH, or name one in CC")


def library(cc: str, name: str) -> str:
    """Return the path of a library of *cc*."""
    found = subprocess.run([cc, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(found):
        raise SystemExit(f"{cc} has no {name}: install its sanitizers")
    return os.path.realpath(found)


def copy(folder: Path) -> None:
    """Copy package and tests into *folder*."""
    for name in ("gnsq_lite", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "found"))
    for name in ("setup.py", "README.rst", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)


def build(folder: Path) -> dict[str, str]:
    """Build the C part in *folder*; return the variables to run it with."""
    cc, kind = compiler()
    common = " ".join(FLAGS)
    chosen = {"CC": cc, "CFLAGS": f"{common} {NO_STACK[kind]}", "LDFLAGS": f"{common} {LINK[kind]}"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, **chosen})
    asan = "libasan.so" if kind == "gcc" else f"libclang_rt.asan-{os.uname().machine}.so"
    variables = {
        **os.environ,
        # libstdc++ before its user, greenlet, so that its exceptions pass through.
        "LD_PRELOAD": f"{library(cc, asan)} {library(cc, 'libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:strict_string_checks=1:log_path=" + str(folder / "report"),
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1:log_path=" + str(folder / "report"),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    paths = looked.stdout.split()
    if len(paths) != 1 or not all(path.startswith(str(folder)) for path in paths):
        raise SystemExit(f"the C part was not built:\n{looked.stdout}{looked.stderr}")
    return variables


def mutated(rng: random.Random, inputs: list[bytes]) -> bytes:
    """Return an input that is like one or two of *inputs*."""
    found = bytearray(rng.choice(inputs))
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(found))
        change = rng.randrange(5)
        if change == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            del found[at : at + rng.randint(1, 16)]
        elif change == 2:
            found[at:at] = rng.randbytes(rng.randint(1, 64))
        elif change == 3:
            found[at : at + 4] = rng.choice(NUMBERS)
        else:
            found[at:] = rng.choice(inputs)
    return bytes(found)


def fuzz(name: str, seconds: float, seed: int) -> None:
    """Run one target on mutations of its corpus; raises what it raises, with the input on standard error."""
    from tests.fuzz.targets import TARGETS as KNOWN

    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    rng, count = random.Random(f"{name}-{seed}"), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(100):
            data = mutated(rng, inputs)
            try:
                KNOWN[name](data)
            except BaseException:
                print(f"{name}: broken by {data!r}", file=sys.stderr)
                raise
        count += 100
    print(f"{name}: {count} inputs", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Build, run tests and targets, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.asan", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="for each fuzz target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument(
        "tests", nargs="*", default=TESTS, help="arguments of pytest in place of the tests of the C part"
    )
    chosen = parser.parse_args(arguments)
    if chosen.target:
        fuzz(chosen.target, chosen.seconds, chosen.seed)
        return 0
    with tempfile.TemporaryDirectory(prefix="gnsq-lite-asan-") as path:
        copy(Path(path))
        variables = build(Path(path))
        commands = [["pytest", "-q", "--capture=sys", "-p", "no:cacheprovider", "-o", "timeout=300", *chosen.tests]]
        commands += [target(name, chosen.seconds, chosen.seed) for name in TARGETS]
        failed = [
            command[:3]
            for command in commands
            if subprocess.run([sys.executable, "-m", *command], cwd=path, env=variables, check=False).returncode
        ]
        said = reports(Path(path))
    for text in said:
        print(text)
    for command in failed:
        print("failed:", *command)
    return 1 if failed or said else 0


def reports(folder: Path) -> list[str]:
    """Return the reports of the sanitizers, from all processes."""
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("report.*"))]


def target(name: str, seconds: float, seed: int) -> list[str]:
    """Return the arguments that run one fuzz target."""
    return ["tests.asan", "--target", name, "--seconds", str(seconds), "--seed", str(seed)]


if __name__ == "__main__":
    sys.exit(main())
