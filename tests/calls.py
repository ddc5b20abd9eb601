"""Which functions of a class are called: in any thread, and without a profile, which a greenlet may not survive.

(A greenlet that is killed while another thread's profile was set ends Python 3.15.2, with greenlet 3.5.6.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


def note_calls(*classes: type) -> set[str]:
    """Return a set to which the name of each function of *classes* is added when it is called."""
    called: set[str] = set()
    for each in classes:
        for name, function in list(vars(each).items()):
            if isinstance(function, FunctionType):
                setattr(each, name, _noting(function, name, called))
    return called


def _noting(function: Callable[..., Any], name: str, called: set[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        return function(*args, **kwargs)

    return noting
