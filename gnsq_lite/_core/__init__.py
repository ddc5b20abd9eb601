"""Code that runs once per message, and the encoding of batches, in C and in Python with the same results.

The environment variable ``GNSQ_LITE_IMPL`` chooses at import: ``c`` requires the extension, and the import fails if it
was not built; ``python`` ignores the extension; without the variable the extension is used if it was built.  The
extension needs the GIL.  A free-threaded Python that loads the extension enables the GIL again, and emits a
RuntimeWarning.  ``PYTHON_GIL=0`` disables the extension.

The contract between C and Python:

A message has a ``_token`` until it is answered: NEW, ASYNC, EXPIRED or LATE_ASYNC (:mod:`gnsq_lite.message`).  Only the
thread that deletes the token sends the answer, so each message has one answer.  ``know_message(Message, NEW, ASYNC)``
gives C the slots of Message.  ``scan`` fills the slots if the message factory is Message, and else calls the factory.

``Runner.drain(queue, seat)`` pops jobs from the left of the queue and stores the current job in ``seat[1]``, if *seat*
is given.  C handles a job itself if the job is an instance of Message, its token is NEW, and its attempts are at most
*most*.  C calls ``handler(message)`` and then acts on the result:

========================================  ==========================================================================
the handler                               C does
========================================  ==========================================================================
returned None, token NEW                  delete the token; ``connection.fins.add(message.id)``, or, if ``fins`` is no
                                          Fins, ``connection.handled(message)``
returned None, no token: it has answered  nothing
returned None, any other token            ``returned(message, None)``
returned another value                    ``returned(message, value)``
raised                                    ``failed(message, error)``; an exception of failed() propagates from drain()
========================================  ==========================================================================

Every other job goes to ``run(job)``, which handles it in Python; Python's ``drain`` calls ``run`` for every job
(:func:`gnsq_lite.consume.run_handler.make_runner` makes all four functions).  drain() returns after a job if the
worker's turn is over, and before a job if there is a surplus of workers.
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
    """Return the value of GNSQ_LITE_IMPL.  Raises ImportError for an unknown value, and for ``"c"`` without the GIL."""
    word = environment.get("GNSQ_LITE_IMPL") or "auto"
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
    """Fall back to Python because the extension was not built; raise ImportError if ``GNSQ_LITE_IMPL`` is ``c``."""
    if WANTED == "c":
        why = "GNSQ_LITE_IMPL=c, and the extension was not built (python setup.py build_ext --inplace)"
        raise ImportError(f"{why}: {missing}") from missing


def know_nothing(*classes: Any) -> None:
    """Do nothing; in C this function registers the classes whose slots C fills directly."""


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
    """The unsent FINs of one connection; :meth:`add` is thread-safe.

    Args:
        wake: Called in the thread of :meth:`add` if ``due`` was False; :meth:`add` sets ``due`` first.
    """

    __slots__ = ("_ids", "_wake", "due")

    def __init__(self, wake: Callable[[], object], /) -> None:
        self._ids: list[bytes] = []
        self._wake = wake
        self.due = False

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: bytes, /) -> None:
        """Queue the FIN of message *id*; call *wake* unless :attr:`due` is set."""
        self._ids.append(id)
        if not self.due:
            self.due = True
            self._wake()

    def take(self) -> tuple[bytes, int]:
        """Remove the queued FINs; return their bytes and their number."""
        ids = self._ids
        count = len(ids)  # ids that other threads add meanwhile stay queued
        if not count:
            return b"", 0
        taken = b"FIN " + b"\nFIN ".join(ids[:count]) + b"\n"
        del ids[:count]
        return taken, count


class Runner:
    """Calls a handler for each queued message in turn.

    Args:
        handler: Called by C instead of *run*, for a new message with at most *most* attempts.
        run: Handles a job of any kind: calls the handler and answers the message.
        failed: Called by C with the message and the exception of *handler*.
        returned: Called by C with the message and the result of *handler*, unless the result is None and the message is
            new or answered.
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
        #: Number of surplus workers; above 0, drain() returns after its current job.
        self.surplus = 0
        self._turn_ends = float("inf")

    def begin_turn(self, seconds: float, /) -> None:
        """End the turn of drain() in *seconds*, after the job that runs then; without this call a turn never ends."""
        self._turn_ends = time.monotonic() + seconds

    def drain(self, queue: Any, seat: list[Any] | None = None, /) -> int:
        """Handle the jobs of *queue*, a deque, in turn; return why it stopped.

        *seat* is a list of the worker and its current job (None between two drains), which other threads may read.
        """
        return drain(self, queue, seat)


know_classes(Fins, Runner)
