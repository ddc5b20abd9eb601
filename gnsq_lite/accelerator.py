"""Which implementation runs: the C extensions, or the Python that does the same.

``GNSQ_LITE_IMPL`` in the environment decides, when the library is imported: ``c`` demands the extensions, and the
import fails where one was not built; ``python`` does without them; without it C is used where it is there.
``GNSQ_LITE_PURE=1`` is the older spelling of ``python``.

The extensions need the GIL: a free-threaded Python that loads them takes it back, and says so in a RuntimeWarning.
Where it was told not to (``PYTHON_GIL=0``) they are left out.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping


def wanted(environment: Mapping[str, str], has_gil: bool = True) -> str:
    """Return ``"c"``, ``"python"`` or ``"auto"``.  Raises ImportError for another word, and for C without the GIL."""
    word = environment.get("GNSQ_LITE_IMPL") or ("python" if environment.get("GNSQ_LITE_PURE") == "1" else "auto")
    if word not in ("c", "python", "auto"):
        raise ImportError(f"GNSQ_LITE_IMPL={word!r}: must be 'c', 'python' or 'auto'")
    if has_gil:
        return word
    if word == "c":
        raise ImportError("GNSQ_LITE_IMPL=c, and the extensions do not run without the GIL (PYTHON_GIL=0)")
    warnings.warn("gnsq_lite is not tested without the GIL: leave PYTHON_GIL=0 out", RuntimeWarning, stacklevel=2)
    return "python"


WANTED = wanted(os.environ, has_gil=getattr(sys.flags, "gil", 1) != 0)


def do_without(missing: ImportError) -> None:
    """Go on in Python, as no C compiler was at hand; raise ImportError where C is demanded."""
    if WANTED == "c":
        why = "GNSQ_LITE_IMPL=c, and the extension was not built (python setup.py build_ext --inplace)"
        raise ImportError(f"{why}: {missing}") from missing
