"""Runs ``gnsq-lite`` as ``python -m gnsq_lite``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence


def main() -> None:
    """Run the command line, and exit with its exit code."""
    if _wants_patch(sys.argv[1:], os.environ):
        from gevent import monkey

        monkey.patch_all()
    try:
        from gnsq_lite.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f'gnsq-lite needs {error.name}: pip install ".[cli]" in a checkout of gnsq_lite')
    sys.exit(run())


def _wants_patch(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether to monkey-patch this process, as --patch or GNSQ_LITE_PATCH asks.  Never patch a supervisor."""
    supervises = arguments[:1] == ["worker"] or arguments[:2] == ["--patch", "worker"]
    if supervises and "--no-supervise" not in arguments and "GNSQ_LITE_SUPERVISED" not in environ:
        return False
    return "--patch" in arguments or environ.get("GNSQ_LITE_PATCH") == "1"


if __name__ == "__main__":
    main()
