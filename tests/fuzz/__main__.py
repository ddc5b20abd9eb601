"""``python -m tests.fuzz TARGET [SECONDS]``: fuzz one target under atheris, or each for SECONDS ("all").

Interesting inputs are kept in ``tests/fuzz/found/TARGET``, which git ignores; an input that fails is written there as
``crash-...`` and belongs into ``tests/fuzz/corpus/TARGET`` with the fix.  ``python -m tests.fuzz merge`` adds to the
corpus, which the suite replays, the fewest found inputs that reach what nothing there reaches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(name: str, arguments: list[str]) -> None:
    """Hand this process over to libFuzzer, with *arguments* for it; it ends with it."""
    import atheris

    with atheris.instrument_imports(include=["gnsq_lite"]):
        from tests.fuzz.targets import TARGETS

    atheris.Setup([f"{sys.executable} -m tests.fuzz {name}", *arguments], TARGETS[name])  # so it starts itself again
    atheris.Fuzz()


def fuzz(name: str, what: str) -> None:
    """Fuzz one target for *what* seconds, or "merge" what was found into the corpus."""
    found, corpus = HERE / "found" / name, HERE / "corpus" / name
    found.mkdir(parents=True, exist_ok=True)
    if what == "merge":
        run(name, ["-merge=1", str(corpus), str(found)])
    limits = [f"-max_total_time={int(what)}", "-max_len=4096", f"-artifact_prefix={found}/", "-rss_limit_mb=1024"]
    run(name, [str(found), *([str(corpus)] if corpus.exists() else []), *limits])


def main(arguments: list[str]) -> int:
    """Return 0 when nothing was found."""
    name, *rest = arguments or ["all"]
    if any(each.startswith("-") for each in rest):
        run(name, rest)  # libFuzzer has started itself again
    if name not in ("all", "merge"):
        fuzz(name, rest[0] if rest else "300")
    from tests.fuzz.targets import TARGETS

    worst = 0
    what = "merge" if name == "merge" else (rest[0] if rest else "300")
    for each in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz", each, what]
        worst = max(worst, subprocess.run(command, check=False, env=dict(os.environ)).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
