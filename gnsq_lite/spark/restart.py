"""Starts a query again if a Python process of Spark did not start in time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("gnsq_lite.spark")

#: Spark's error if a Python process does not connect in time, as on a busy machine.  No message was received by it.
_LATE = "Python worker failed to connect back"


def run_query(start: Callable[[], Any], most: int = 10) -> None:
    """Call *start*, which loads the frame and starts a query, and wait for the query's end.

    If "Python worker failed to connect back" ends *start* or the query, call *start* again.  Raises any other error,
    and this one after *most* failures without a batch between them.
    """
    failures = 0
    while True:
        query = None
        try:
            query = start()
            query.awaitTermination()
            return
        except Exception as error:
            made_batch = query is not None and query.lastProgress is not None
            failures = 1 if made_batch else failures + 1
            if _LATE not in str(error) or failures >= most:
                raise
            log.warning("starting the query again: %s (%d)", _LATE, failures)
