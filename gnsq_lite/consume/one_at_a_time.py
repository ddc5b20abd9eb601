"""A connection without an order whose handlers' threads read where it has one message in flight at a time."""

from __future__ import annotations

from gnsq_lite.consume.read_in_threads import ReadInThreads
from gnsq_lite.message import Message


class OneAtATime(ReadInThreads):
    """With a RDY of one nsqd sends a message after the FIN of the one before: the thread that sends that may read this.

    With more than that it is as any other: messages come many at a time.
    """

    def set_ready(self, count: int) -> None:
        """Also: have successes told one by one where RDY is one."""
        super().set_ready(count)
        self.fins = None if count == 1 else self._fins

    def _may_wait(self) -> bool:
        """Also where it is the only thread, if nothing can come elsewhere."""
        return self._threads.can_spare_one() or self._flow.max_in_flight == 1

    def _ends(self, message: Message) -> bool:
        is_alone = self._share == self.in_flight.count == 1 and not (len(self._fins) or self._reqs)
        return is_alone and (self._delivery is None or self._delivery.is_full)

    def _begins(self, message: Message) -> bool:
        return True
