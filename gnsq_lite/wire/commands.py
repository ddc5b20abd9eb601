"""Encodes the commands of a client, one function per command (WIRE-7).

The functions raise an error for arguments for which nsqd would close the connection (WIRE-8).  Sizes are unsigned
big-endian 32-bit numbers.  Times are seconds here, and whole milliseconds on the wire.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final

from gnsq_lite._core import pack, with_sizes
from gnsq_lite.errors import BodyTypeError, InvalidBody, MessageTooLarge, OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.wire.constants import MAX_DURATION_MS, MAX_INT32, MESSAGE_ID_LENGTH
from gnsq_lite.wire.names import check_channel, check_topic

_size = Struct(">I").pack
_size_and_count = Struct(">II").pack

#: NOP: the answer to a heartbeat (HB-1).
NOP: Final = b"NOP\n"
#: CLS: nsqd sends no more messages, and answers CLOSE_WAIT.
CLS: Final = b"CLS\n"


# -- the handshake ----------------------------------------------------------------------------------------------------


def identify(payload: bytes) -> bytes:
    """Encode IDENTIFY with *payload*, its JSON."""
    return b"IDENTIFY\n" + _size(len(payload)) + payload


def auth(secret: bytes) -> bytes:
    """Encode AUTH.  Raises OptionError for an empty secret."""
    if not secret:
        raise OptionError("auth_secret", secret, "must not be empty")  # nsqd/protocol_v2.go:510
    return b"AUTH\n" + _size(len(secret)) + secret


def subscribe(topic: str, channel: str) -> bytes:
    """Encode SUB.  Raises InvalidName."""
    return b"SUB " + check_topic(topic) + b" " + check_channel(channel) + b"\n"


# -- publishing -------------------------------------------------------------------------------------------------------


def publish(topic: str, body: bytes) -> bytes:
    """Encode PUB.  Raises InvalidName, BodyTypeError, InvalidBody, MessageTooLarge."""
    check_body(body)
    return PUBLISH_HEADS[topic] + _size(len(body)) + body


def multipublish(topic: str, bodies: Iterable[bytes]) -> bytes:
    """Encode MPUB.  Raises InvalidName, BodyTypeError, InvalidBody, MessageTooLarge."""
    return multipublish_packed(multipublish_head(topic), listed(bodies))


def defer_publish(topic: str, body: bytes, delay_s: float) -> bytes:
    """Encode DPUB: nsqd defers the message for *delay_s* seconds, rounded up to whole milliseconds.

    Raises OptionError for a negative delay, and the errors of :func:`publish`.
    """
    check_body(body)
    return b"DPUB %b %d\n" % (check_topic(topic), _milliseconds("defer", delay_s)) + _size(len(body)) + body


class _PublishHeads(dict[str, bytes]):
    def __missing__(self, topic: str) -> bytes:
        if len(self) >= _MOST_HEADS:
            self.clear()
        head = self[topic] = b"PUB " + check_topic(topic) + b"\n"
        return head


#: Maximum number of topics whose PUB line is cached.
_MOST_HEADS = 10_000

#: Cache of PUB command lines, which precede size and body, by topic.  A lookup may raise InvalidName.
PUBLISH_HEADS: Final = _PublishHeads()


def multipublish_head(topic: str) -> bytes:
    """Return the MPUB command line, which precedes :func:`multipublish_body`.  Raises InvalidName."""
    return b"MPUB " + check_topic(topic) + b"\n"


def multipublish_body(bodies: Sequence[bytes]) -> bytes:
    """Encode the part of MPUB after the command line: size, count, and each body with its size.

    The caller has checked the bodies with :func:`check_bodies`.  Raises MessageTooLarge if the total exceeds the size
    field.
    """
    size = 4 + 4 * len(bodies) + sum(map(len, bodies))
    if size > MAX_INT32:
        raise MessageTooLarge(size - 4, MAX_INT32 - 4)
    return _size_and_count(size, len(bodies)) + with_sizes(bodies)


def multipublish_packed(head: bytes, bodies: list[Any], max_size: int = MAX_INT32) -> bytes:
    """Encode MPUB after *head*, its command line.  Raises the errors of :func:`check_bodies`."""
    return pack(head, bodies, max_size) or head + multipublish_body(check_bodies(bodies, max_size))


def check_body(body: object, max_size: int = MAX_INT32) -> None:
    """Check one body (WIRE-8).  Raises BodyTypeError, InvalidBody for an empty body, MessageTooLarge.

    A bytearray or memoryview is an error too, because it could change before it is sent.
    """
    if not isinstance(body, bytes):
        raise BodyTypeError(type(body).__name__)
    if not body:
        raise InvalidBody("a message body must not be empty")
    if len(body) > max_size:
        raise MessageTooLarge(len(body), max_size)


def check_bodies(bodies: Iterable[object], max_size: int = MAX_INT32) -> list[bytes]:
    """Check the bodies of a batch, and return them as a list.  Raises the errors of check_body() and listed()."""
    checked = listed(bodies)
    for body in checked:
        check_body(body, max_size)
    return checked


def listed(bodies: Iterable[object]) -> list[Any]:
    """Convert *bodies* to a list without checking each body.  Raises InvalidBody for a single body or an empty list."""
    if isinstance(bodies, (str, bytes, bytearray, memoryview)):
        raise InvalidBody(f"a batch is a sequence of bodies, not one {type(bodies).__name__}")
    try:
        batch = list(bodies)
    except TypeError:
        raise InvalidBody(f"a batch is a sequence of bodies, not {type(bodies).__name__}") from None
    if not batch:
        raise InvalidBody("a batch must have at least one body")
    return batch


# -- consuming --------------------------------------------------------------------------------------------------------


def ready(count: int) -> bytes:
    """Encode RDY: nsqd may have *count* messages in flight on the connection.  Raises OptionError."""
    check_number("count", count, 0, math.inf, whole=True)  # nsqd/protocol_v2.go:666
    return b"RDY %d\n" % count


def finish(message_id: bytes) -> bytes:
    """Encode FIN: nsqd deletes the message.  Raises OptionError for an id that is not 16 bytes."""
    if len(message_id) != MESSAGE_ID_LENGTH:
        raise _bad_id(message_id)
    return b"FIN " + message_id + b"\n"


def requeue(message_id: bytes, delay_s: float) -> bytes:
    """Encode REQ: nsqd sends the message again after *delay_s* seconds, rounded up to whole milliseconds.

    Raises OptionError for a negative delay and for an id that is not 16 bytes.
    """
    if len(message_id) != MESSAGE_ID_LENGTH:
        raise _bad_id(message_id)
    return b"REQ %b %d\n" % (message_id, _milliseconds("delay", delay_s))


def touch(message_id: bytes) -> bytes:
    """Encode TOUCH: nsqd restarts the message timeout.  Raises OptionError for an id that is not 16 bytes."""
    if len(message_id) != MESSAGE_ID_LENGTH:
        raise _bad_id(message_id)
    return b"TOUCH " + message_id + b"\n"


def _bad_id(message_id: bytes) -> OptionError:
    return OptionError("message_id", message_id, f"must be {MESSAGE_ID_LENGTH} bytes, as nsqd sent them")


def _milliseconds(name: str, seconds: float) -> int:
    """Convert seconds to whole milliseconds, rounded up.  Raises OptionError unless *seconds* is a number >= 0."""
    check_number(name, seconds, 0, math.inf)
    # In binary 0.07 * 1000 is a little more than 70, but must not become 71.
    return min(math.ceil(round(seconds * 1000, 6)), MAX_DURATION_MS)
