"""Loads the Worker or the outbox that a command line names, and explains errors."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TypeVar

from gnsq_lite.errors import NSQError

T = TypeVar("T")


class LoadError(NSQError):
    """The named object could not be loaded.  The text contains a traceback if user code raised."""

    def __init__(self, text: str, files: tuple[str, ...] = ()) -> None:
        super().__init__(text, files)
        #: Source files in which a change may fix the error.
        self.files = files

    def __str__(self) -> str:
        return str(self.args[0])


def load(target: str, kind: type[T], default: str) -> T:
    """Import ``package.module:name``, and return the object of class *kind*.  ``name`` defaults to *default*.

    Python searches the current directory first, as for ``python -m``.  Raises LoadError.
    """
    name, _, attribute = target.partition(":")
    if not name or name.endswith(".py") or "/" in name:
        raise LoadError(f"{target!r} names no module: write package.module:{default}, with dots and without .py")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise LoadError(
                f"cannot import {name!r}: there is no module {error.name!r} in {here} or on sys.path"
            ) from None
        raise explained(repr(name), error) from None
    except (Exception, SystemExit) as error:  # also sys.exit("configuration missing"): a restart would not help
        raise explained(repr(name), error) from None
    found: object = module
    attribute = attribute or default
    for part in attribute.split("."):
        if not hasattr(found, part):
            others = [n for n, v in vars(module).items() if isinstance(v, kind)]
            hint = f"; there is {', '.join(f'{name}:{other}' for other in others)}" if others else ""
            raise LoadError(f"{name!r} has no {attribute!r}{hint}", (str(module.__file__),))
        found = getattr(found, part)
    if not isinstance(found, kind):
        wrong = f"{name}:{attribute} has the class {type(found).__name__}, not {kind.__name__}"
        raise LoadError(wrong, (str(module.__file__),))
    return found


def explained(name: str, error: BaseException) -> LoadError:
    """Return the error for a failed import of *name*.  The traceback in the text begins in the user's code."""
    trace = _users(error.__traceback__)
    lines = traceback.format_exception(type(error), error, trace, chain=error.__suppress_context__ is False)
    files = [frame.filename for frame in traceback.extract_tb(trace)]
    if isinstance(error, SyntaxError) and error.filename:
        files.append(error.filename)
    return LoadError(f"cannot import {name}:\n{''.join(lines).rstrip()}", tuple(files))


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that starts in the imported module."""
    was_import = False
    for frame in _frames(trace):
        is_import = "importlib" in frame.tb_frame.f_code.co_filename
        if was_import and not is_import:
            return frame
        was_import = is_import
    return None


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
