"""What is done once per message, and the bytes of a batch: in C where it was built, else in Python, with one result.

``GNSQ_LITE_IMPL`` in the environment decides, when the library is imported: ``c`` demands the extension, and the import
fails where it was not built; ``python`` does without it; without the variable C is used where it is there.
``GNSQ_LITE_PURE=1`` is the older spelling of ``python``.  The extension needs the GIL: a free-threaded Python that
loads it takes the GIL back, and says so in a RuntimeWarning.  With ``PYTHON_GIL=0`` the extension is left out.

What C and Python agree upon:

A message has a ``_token`` until it is answered: NEW, ASYNC, EXPIRED or LATE_ASYNC (:mod:`gnsq_lite.message`).  Who
deletes it answers, so there is one answer, whatever the threads.  ``know_message(Message, NEW, ASYNC)`` tells C the
slots, and a :class:`gnsq_lite.message.Tailed` those of a subclass; ``scan`` calls whatever else makes messages.

``Runner.drain(queue, seat)`` takes jobs from the left of the queue, and shows in ``seat[1]``, if there is a seat, the
one it is at.  C handles a job by itself where it is a Message, or of a subclass, whose token is NEW and whose attempts
are at most *most*; then it calls ``handler(message)``, and

========================================  ==========================================================================
the handler                               C does
========================================  ==========================================================================
returned None, token NEW                  delete the token; ``connection.fins.add(message.id)``, or, where ``fins`` is
                                          not Fins, ``connection.handled(message)``
returned None, no token: it has answered  nothing
returned None, any other token            ``returned(message, None)``
returned another value                    ``returned(message, value)``
raised                                    ``failed(message, error)``; what that raises leaves drain()
========================================  ==========================================================================

Every other job goes to ``run(job)``, which does all of it in Python, and is what Python's ``drain`` calls for each job
(:func:`gnsq_lite.consume.run_handler.make_runner` makes all four).  After each job drain() returns where its turn is
over; before each, where there is a surplus of workers.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from gnsq_lite._core.twin import (
    QUEUE_EMPTY,
    SURPLUS,
    TURN_OVER,
    pure_all_new,
    pure_columns,
    pure_drain,
    pure_finish_open,
    pure_keep_open,
    pure_murmur3_32,
    pure_pack,
    pure_scan,
    pure_skip_answered,
    with_sizes,
)

__all__ = ["QUEUE_EMPTY", "SURPLUS", "TURN_OVER", "with_sizes"]


def wanted(environment: Mapping[str, str], has_gil: bool = True) -> str:
    """Return ``"c"``, ``"python"`` or ``"auto"``.  Raises ImportError for another word, and for C without the GIL."""
    word = environment.get("GNSQ_LITE_IMPL") or ("python" if environment.get("GNSQ_LITE_PURE") == "1" else "auto")
    if word not in ("c", "python", "auto"):
        raise ImportError(f"GNSQ_LITE_IMPL={word!r}: must be 'c', 'python' or 'auto'")
    if has_gil:
        return word
    if word == "c":
        raise ImportError("GNSQ_LITE_IMPL=c, and the extension does not run without the GIL (PYTHON_GIL=0)")
    warnings.warn("gnsq_lite is not tested without the GIL: leave PYTHON_GIL=0 out", RuntimeWarning, stacklevel=2)
    return "python"


WANTED = wanted(os.environ, has_gil=getattr(sys.flags, "gil", 1) != 0)


def do_without(missing: ImportError) -> None:
    """Go on in Python, as no C compiler was at hand; raise ImportError where C is demanded."""
    if WANTED == "c":
        why = "GNSQ_LITE_IMPL=c, and the extension was not built (python setup.py build_ext --inplace)"
        raise ImportError(f"{why}: {missing}") from missing


def know_nothing(*classes: Any) -> None:
    """Python needs to know nothing; C fills the slots of these classes directly."""


scan, skip_answered, drain, know_message, know_classes = (
    pure_scan,
    pure_skip_answered,
    pure_drain,
    know_nothing,
    know_nothing,
)
all_new, keep_open, finish_open, columns = pure_all_new, pure_keep_open, pure_finish_open, pure_columns
pack, murmur3_32, is_accelerated = pure_pack, pure_murmur3_32, False
if WANTED != "python":
    try:
        from gnsq_lite._core import native
    except ImportError as missing:
        do_without(missing)
    else:
        scan, skip_answered, drain = native.scan, native.skip_answered, native.drain
        know_message, know_classes = native.know_message, native.know_classes
        all_new, keep_open = native.all_new, native.keep_open
        finish_open, columns = native.finish_open, native.columns
        pack, murmur3_32, is_accelerated = native.pack, native.murmur3_32, True


class Fins:
    """The FINs of one connection that are not sent yet; :meth:`add` may be called in any thread.

    Args:
        wake: Called, wherever :meth:`add` was, when something is queued and ``due`` is False; ``due`` is True then.
    """

    __slots__ = ("_ids", "_wake", "due")

    def __init__(self, wake: Callable[[], object], /) -> None:
        self._ids: list[bytes] = []
        self._wake = wake
        self.due = False

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: bytes, /) -> None:
        """Queue the FIN of *id*; call wake unless it is due."""
        self._ids.append(id)
        if not self.due:
            self.due = True
            self._wake()

    def take(self) -> tuple[bytes, int]:
        """Return the bytes of the queued FINs, and their number; forget them."""
        ids = self._ids
        count = len(ids)  # other threads may add meanwhile: that is left
        if not count:
            return b"", 0
        taken = b"FIN " + b"\nFIN ".join(ids[:count]) + b"\n"
        del ids[:count]
        return taken, count


class Runner:
    """Calls a handler for one queued message after the other.

    Args:
        handler: Called by C, for a message that is new and was not sent more than *most* times, instead of *run*.
        run: Handles one job, whatever it is: calls the handler and answers.
        failed: Called by C with such a message and what its handler raised.
        returned: Called by C with such a message and what its handler returned, unless that is None and the message was
            left new or answered.
    """

    __slots__ = ("_turn_ends", "failed", "handler", "most", "returned", "run", "surplus")

    def __init__(
        self,
        handler: Callable[[Any], object],
        most: int,
        run: Callable[[Any], None],
        failed: Callable[[Any, BaseException], None],
        returned: Callable[[Any, object], None],
    ) -> None:
        self.handler, self.most = handler, most
        self.run, self.failed, self.returned = run, failed, returned
        #: Above 0: drain() returns after its job.
        self.surplus = 0
        self._turn_ends = float("inf")

    def begin_turn(self, seconds: float, /) -> None:
        """Let drain() return *seconds* from now, after the job that runs then; without this it never does."""
        self._turn_ends = time.monotonic() + seconds

    def drain(self, queue: Any, seat: list[Any] | None = None, /) -> int:
        """Handle the jobs of *queue*, a deque, one after the other; return why it stopped.

        *seat* is the caller's list of itself and what it is at, None between two drains: others may look.
        """
        return drain(self, queue, seat)


know_classes(Fins, Runner)
