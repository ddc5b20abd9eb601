"""A Reader's connection that receives each read as one object, for handlers of columns."""

from __future__ import annotations

from functools import partial
from typing import Any

from gnsq_lite._core import scan_rows
from gnsq_lite.consume.rows import Rows, copies_of, count_ids, count_rows
from gnsq_lite.consume.subscribed import SubscribedConnection
from gnsq_lite.message import Message
from gnsq_lite.wire.identify import Negotiated


class RowsConnection(SubscribedConnection):
    """A SubscribedConnection whose messages are Rows of at most *most_rows* messages.

    With Youzan's NSQ, they are single messages.
    """

    _count = staticmethod(count_rows)
    _count_ids = staticmethod(count_ids)

    def __init__(self, most_rows: int, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._most_rows = most_rows

    def _adopt(self, negotiated: Negotiated) -> None:
        super()._adopt(negotiated)
        decoder: Any = self._decoder
        if decoder.make_message is Message:
            decoder.make_message, decoder.scan = Rows, self._scan

    def _scan(self, data: bytes, at: int, limit: int, make: Any, owner: Any, found: list[Any]) -> int:
        return scan_rows(data, at, limit, make, owner, found, self._most_rows)

    def answer_late(self, message: Message, *, finished: bool) -> None:
        """Queue the answers to an expired message, or to each message of expired Rows."""
        for each in copies_of(message):
            super().answer_late(each, finished=finished)

    def keep_parts(self, messages: list[Message]) -> None:
        """Keep the single messages of Rows until they are answered.  Thread-safe."""
        self.loop.call_soon(partial(self._keep_parts, messages))

    def _keep_parts(self, messages: list[Message]) -> None:
        if self.is_open():
            self._reads.appendleft(messages)  # they are older than the last read
            self._kept += len(messages)
        else:
            for message in messages:
                message._expire()
