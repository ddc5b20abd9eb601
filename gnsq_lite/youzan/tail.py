"""Publishes a message again, at the end of its partition, when a Reader gives the message up (YZ-13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gnsq_lite.message import Message
from gnsq_lite.youzan.constants import RESERVED, TAG_KEY
from gnsq_lite.youzan.messages import CompressedMessage


class Publisher(Protocol):
    """A Writer, or an object with the same ``publish()``."""

    def publish(self, topic: str, body: bytes, *, partition: int | None, headers: dict[str, Any] | None) -> Any: ...


def to_tail(writer: Publisher) -> Callable[[Message], None]:
    """Return an ``on_give_up`` that publishes the message again, to the same partition and with the same headers.

    The Reader finishes the old message after nsqd's OK, or requeues it if the publish fails.  A crash between OK and
    FIN leaves a duplicate.  The new message starts with attempt 1, and is handled after later messages of its key.
    """

    def give_up(message: Message) -> None:
        headers = message.raw_headers if isinstance(message, CompressedMessage) else message.headers
        if headers is not None:  # publish() refuses the server's reserved keys, except the tag
            headers = {k: v for k, v in headers.items() if not k.startswith(RESERVED) or k == TAG_KEY}
        writer.publish(message.topic, message.raw_body, partition=message.partition, headers=headers)

    return give_up
