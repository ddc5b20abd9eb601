"""Keeps the counts of the last ten minutes, so that the charts of the live page are full when it opens."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger("gnsq_lite.supervise")

#: Seconds between two samples, and number of samples that are kept: ten minutes.
EVERY, SAMPLES = 5.0, 120
#: Values of a handler in a sample.
_NAMES = ("topic", "channel", "finished", "failures", "given_up", "in_flight")


class History:
    """The last samples of a worker.  *read* returns its document, with or without depths."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES)

    def sample(self) -> None:
        """Keep the counts of now, once a process has answered."""
        document = self._read()
        handlers = [{name: each[name] for name in _NAMES} for each in document["handlers"]]
        if handlers:
            self._samples.append({"at": document["at"], "handlers": handlers})

    def sample_until(self, is_over: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> None:
        """Take a sample every :data:`EVERY` seconds until *is_over* returns true."""
        while not is_over():
            try:
                self.sample()
            except Exception:
                log.warning("the counts of the live page's charts could not be read", exc_info=True)
            sleep(EVERY)

    def document(self) -> dict[str, Any]:
        """Return the samples, the oldest first.  The counts of a handler drop when a process restarts."""
        return {"samples": list(self._samples.copy())}
