"""Python stacks and tracebacks without the library's frames."""

from __future__ import annotations

import os
import traceback
from types import FrameType

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: Maximum number of frames of a stack.  The outermost frames are left out.
_MOST = 20


def of_frame(frame: FrameType | None) -> str:
    """Return the stack of *frame* as one line, such as ``shop/tasks.py:12 charge > http/ssl.py:125 recv``, or "".

    The stack begins after the outermost frame of the library, so the start of a thread is left out too.
    """
    found = [each for each, _ in traceback.walk_stack(frame)][::-1] if frame is not None else []
    ours = [each.f_code.co_filename.startswith(_OURS) for each in found]
    start = ours.index(True) if True in ours else 0
    shown = [each for each, is_ours in zip(found[start:], ours[start:], strict=True) if not is_ours][-_MOST:]
    return " > ".join(f"{_short(each.f_code.co_filename)}:{each.f_lineno} {each.f_code.co_name}" for each in shown)


def _short(path: str) -> str:
    return os.sep.join(path.split(os.sep)[-2:])
