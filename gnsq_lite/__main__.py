"""``python -m gnsq_lite``: the same program as ``gnsq-lite``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; it ends the process with its exit code."""
    if "--patch" in sys.argv[1:] or os.environ.get("GNSQ_LITE_PATCH") == "1":
        from gevent import monkey

        monkey.patch_all()
    try:
        from gnsq_lite.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f'gnsq-lite needs {error.name}: pip install "gnsq_lite[cli]"')
    sys.exit(run())


if __name__ == "__main__":
    main()
