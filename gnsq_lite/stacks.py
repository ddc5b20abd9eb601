"""Python stacks and tracebacks without the library's frames."""

from __future__ import annotations

import os
import traceback
from types import FrameType, TracebackType

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: Maximum number of frames of a stack.  The outermost frames are left out.
_MOST = 20


def of_frame(frame: FrameType | None) -> str:
    """Return the stack of *frame* as one line, such as ``shop/tasks.py:12 charge > http/ssl.py:125 recv``, or ""."""
    return of_frames([each for each, _ in traceback.walk_stack(frame)] if frame is not None else [])


def of_frames(frames: list[FrameType]) -> str:
    """Return a stack, whose innermost frame is the first, as one line.

    The stack begins after the outermost frame of the library, so the start of a thread is left out too.
    """
    found = frames[::-1]
    ours = [each.f_code.co_filename.startswith(_OURS) for each in found]
    start = ours.index(True) if True in ours else 0
    shown = [each for each, is_ours in zip(found[start:], ours[start:], strict=True) if not is_ours][-_MOST:]
    return " > ".join(f"{_short(each.f_code.co_filename)}:{each.f_lineno} {each.f_code.co_name}" for each in shown)


def _short(path: str) -> str:
    return os.sep.join(path.split(os.sep)[-2:])


def text_of(error: BaseException) -> str:
    """Return the class, the text and the notes of *error* as one text."""
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """Return the text and the notes of *error* as one text."""
    try:
        return ": ".join([str(error), *getattr(error, "__notes__", ())])
    except Exception:  # raised by the __str__ of *error*
        return "(the text of this error cannot be shown)"


def exc_info_of(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return ``exc_info`` for a log record, whose traceback begins at the first frame that is not the library's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return type(error), error, trace or error.__traceback__


def of_error(error: BaseException) -> str:
    """Return the traceback of *error* and of its causes without the library's frames, unless all are the library's."""
    found = traceback.TracebackException.from_exception(error)
    waiting: list[traceback.TracebackException | None] = [found]
    while waiting:
        each = waiting.pop()
        if each is not None:
            users = [frame for frame in each.stack if not frame.filename.startswith(_OURS)]
            each.stack = traceback.StackSummary.from_list(users or each.stack)
            waiting += [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]
    return "".join(found.format())
