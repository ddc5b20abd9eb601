"""Detects changed source files by modification time and size.  This needs no package, and works on all file systems."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable

#: Folders of installed packages.  Their files are not watched.
_INSTALLED = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def loaded_sources() -> set[str]:
    """Return the source files of all loaded modules outside installed packages."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {os.path.abspath(path) for path in found if path and path.endswith(".py") and not _is_installed(path)}


def _is_installed(path: str) -> bool:
    return os.path.abspath(path).startswith(_INSTALLED)


class SourceWatch:
    """Finds a file that was changed, created or removed since the last check.

    Each check calls *files* again, because the process may have loaded more modules.
    """

    def __init__(self, files: Callable[[], Iterable[str]] = loaded_sources) -> None:
        self._files = files
        self._times = {path: _time(path) for path in files()}

    def changed(self) -> str | None:
        """Return the path of a changed file, or None."""
        for path in self._files():
            self._times.setdefault(path, _time(path))
        for path, time in self._times.items():
            if _time(path) != time:
                self._times = {each: _time(each) for each in self._times}
                return path
        return None


def _time(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
