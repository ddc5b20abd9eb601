"""Publishes a message again, at the end of its partition, when a Reader gives the message up (YZ-13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gnsq_lite.message import Message
from gnsq_lite.youzan.messages import CompressedMessage


class Publisher(Protocol):
    """A Writer, or an object with the same ``publish()``."""

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        partition: int | None,
        headers: dict[str, Any] | None,
        trace_id: int | None,
    ) -> Any: ...


def to_tail(writer: Publisher) -> Callable[[Message], None]:
    """Return an ``on_give_up`` that publishes the message again, to the same partition, with its headers and trace id.

    The Reader finishes the old message after nsqd's OK, or requeues it if the publish fails.  A crash between OK and
    FIN leaves a duplicate.  The new message starts with attempt 1, and is handled after later messages of its key.
    """

    def give_up(message: Message) -> None:
        headers = message.raw_headers if isinstance(message, CompressedMessage) else message.headers
        trace_id = message.trace_id or None  # nsqd sends 0 for a message without a trace id
        writer.publish(message.topic, message.raw_body, partition=message.partition, headers=headers, trace_id=trace_id)

    return give_up
