"""Settings of the documentation; ``tox -e docs`` builds it with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from gnsq_lite.version import __version__

project = "gnsq_lite"
author = "The gnsq_lite developers"
release = version = __version__
extensions: list[str] = []
html_theme = "alabaster"
exclude_patterns = ["_build"]
