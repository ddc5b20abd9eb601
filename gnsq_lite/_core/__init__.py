"""Code that runs once per message or encodes batches, in C and in Python with the same results.

The environment variable ``GNSQ_LITE_IMPL`` chooses at import.  With ``c`` the import fails if the extension was not
built.  With ``python`` the extension is not used.  Without the variable the extension is used if it was built.  The
extension does not need the GIL.

The contract between C and Python:

A message has a ``_token`` until it is answered: NEW, ASYNC, EXPIRED or LATE_ASYNC (:mod:`gnsq_lite.message`).  Only the
thread whose ``swap_token(message, token, None)`` returns True sends the answer, so each message has one answer.
``know_message(Message, NEW, ASYNC)`` gives C the slots of Message.  If the message factory is Message, ``scan`` fills
the slots.  If not, ``scan`` calls the factory.

``drain(runner, queue, worker)`` pops jobs from the left of the queue and stores the current job in ``worker[1]``.  C
handles a job itself if the job is an instance of Message, its token is NEW, and it has at most ``runner.most``
attempts.  C calls ``handler(message)`` and then acts on the result:

========================================  ==========================================================================
the handler                               C does
========================================  ==========================================================================
returned None, token NEW                  delete the token; then ``connection.fins.add(message.id)`` if ``fins`` is a
                                          Fins, or ``connection.handled(message)``
returned None, no token (it answered)     nothing
returned None, any other token            ``returned(message, None)``
returned another value                    ``returned(message, value)``
raised                                    ``failed(message, error)``; drain() raises the exceptions of failed()
========================================  ==========================================================================

If ``runner.writes_fins`` is true, C may leave a FIN in ``fins.ids`` without a call of ``wake``.  C then calls ``write``
before drain() returns, before a FIN for another connection is queued, and before the next job if ``fins.is_held`` is
false or a few milliseconds have passed.

Every other job goes to ``run(job)``, which handles it in Python.  Python's ``drain`` calls ``run`` for every job.
:mod:`gnsq_lite.consume.run_handler` creates these functions.  After a job, drain() returns True if the time is past
``runner.slice_ends``.  Before a job, drain() returns False if there are surplus workers or the queue is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gnsq_lite._core import twin
from gnsq_lite._core.twin import with_sizes as with_sizes


def wanted(environment: Mapping[str, str]) -> str:
    """Return "c", "python" or "auto".  Raises ImportError for another GNSQ_LITE_IMPL."""
    word = environment.get("GNSQ_LITE_IMPL") or "auto"
    if word not in ("c", "python", "auto"):
        raise ImportError(f"GNSQ_LITE_IMPL={word!r}: must be 'c', 'python' or 'auto'")
    return word


WANTED = wanted(os.environ)


def do_without(missing: ImportError) -> None:
    """Raise ImportError if ``GNSQ_LITE_IMPL`` is ``c``, because the extension cannot be imported (*missing*)."""
    if WANTED == "c":
        why = "GNSQ_LITE_IMPL=c, and the extension was not built (python setup.py build_ext --inplace)"
        raise ImportError(f"{why}: {missing}") from missing


if TYPE_CHECKING:  # both modules have the same functions
    from gnsq_lite._core import native as chosen
else:
    chosen = twin
    if WANTED != "python":
        try:
            from gnsq_lite._core import native as chosen
        except ImportError as missing:
            do_without(missing)

is_accelerated = chosen is not twin
scan, drain, pack, murmur3_32 = chosen.scan, chosen.drain, chosen.pack, chosen.murmur3_32
all_answered, all_new = chosen.all_answered, chosen.all_new
finish_open, columns, know_message = chosen.finish_open, chosen.columns, chosen.know_message
scan_rows, frame_columns = chosen.scan_rows, chosen.frame_columns
receive, exchange = chosen.receive, chosen.exchange
swap_token = chosen.swap_token


class Fins:
    """The unsent FINs of one connection.  :meth:`add` is thread-safe.

    Args:
        wake: Schedules a write of the FINs.  If ``due`` is False, :meth:`add` sets ``due`` and then calls *wake*.
        write: Writes the FINs in the calling thread.
    """

    __slots__ = ("_wake", "_write", "due", "ids", "is_alone", "is_held")

    def __init__(self, wake: Callable[[], object], write: Callable[[], object] | None = None, /) -> None:
        #: The ids of the messages to finish.
        self.ids: list[bytes] = []
        self._wake, self._write = wake, write or wake
        self.due = False
        #: Whether the thread of the handler writes the FIN of each job after the job.
        self.is_alone = False
        #: Whether this thread may write the FINs of several short jobs together.
        self.is_held = False

    def add(self, id: bytes, /) -> None:
        """Queue the FIN of message *id*."""
        self.ids.append(id)
        if not self.due:
            self.due = True
            self._wake()


class Runner:
    """The functions that ``drain()`` calls for each queued job.

    Args:
        handler: Called by C instead of *run*, for a new message with at most *most* attempts.
        run: Handles any job: calls the handler and answers the message.
        failed: Called by C with the message and the exception of *handler*.
        returned: Called by C with the message and the result of *handler*, unless C itself handles that case.
    """

    __slots__ = ("failed", "handler", "most", "returned", "run", "slice_ends", "surplus", "writes_fins")

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
        #: Number of surplus workers.  If there are any, drain() returns after its current job.
        self.surplus = 0
        #: Monotonic time after which drain() returns, when its current job ends.
        self.slice_ends = float("inf")
        #: Whether the workers are native threads, which may write FINs (see the module docstring).
        self.writes_fins = False


chosen.know_classes(Fins, Runner)
