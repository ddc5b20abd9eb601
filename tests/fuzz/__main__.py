"""``python -m tests.fuzz TARGET [SECONDS]``: fuzz one target under atheris, or each for SECONDS ("all").

Interesting inputs are kept in ``tests/fuzz/found/TARGET``, which git ignores; an input that fails is written there as
``crash-...`` and belongs into ``tests/fuzz/corpus/TARGET`` with the fix.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["gnsq_lite"]):
        from tests.fuzz.targets import TARGETS

    found = HERE / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    corpus = HERE / "corpus" / name
    arguments = [f"-max_total_time={seconds}", "-max_len=4096", f"-artifact_prefix={found}/", "-rss_limit_mb=1024"]
    atheris.Setup([sys.argv[0], str(found), *([str(corpus)] if corpus.exists() else []), *arguments], TARGETS[name])
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """Return 0 when nothing was found."""
    name = arguments[0] if arguments else "all"
    seconds = int(arguments[1]) if len(arguments) > 1 else 300
    if name != "all":
        fuzz(name, seconds)
        return 0
    from tests.fuzz.targets import TARGETS

    worst = 0
    for each in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz", each, str(seconds)]
        worst = max(worst, subprocess.run(command, check=False, env=dict(os.environ)).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
