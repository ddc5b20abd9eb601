"""Which implementation runs: the C extensions, or the Python that does the same.

``GNSQ_LITE_IMPL`` in the environment decides, when the library is imported: ``c`` demands the extensions, and the
import fails where one was not built; ``python`` does without them; without it C is used where it is there.
``GNSQ_LITE_PURE=1`` is the older spelling of ``python``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def wanted(environment: Mapping[str, str]) -> str:
    """Return ``"c"``, ``"python"`` or ``"auto"``.  Raises ImportError for another word."""
    word = environment.get("GNSQ_LITE_IMPL") or ("python" if environment.get("GNSQ_LITE_PURE") == "1" else "auto")
    if word not in ("c", "python", "auto"):
        raise ImportError(f"GNSQ_LITE_IMPL={word!r}: must be 'c', 'python' or 'auto'")
    return word


WANTED = wanted(os.environ)


def do_without(missing: ImportError) -> None:
    """Go on in Python, as no C compiler was at hand; raise ImportError where C is demanded."""
    if WANTED == "c":
        why = "GNSQ_LITE_IMPL=c, and the extension was not built (python setup.py build_ext --inplace)"
        raise ImportError(f"{why}: {missing}") from missing
