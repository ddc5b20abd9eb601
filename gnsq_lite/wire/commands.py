"""What a client sends: one function per command gives its bytes (WIRE-7).

Whatever nsqd would close the connection for is refused here, before a byte is sent (WIRE-8).  Sizes are unsigned
big-endian 32-bit numbers; times are seconds here and whole milliseconds on the wire.
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

#: No operation: the answer to a heartbeat (HB-1).  "NOP"
NOP: Final = b"NOP\n"
#: Close cleanly: nsqd sends no further message and answers CLOSE_WAIT.  "CLS"
CLS: Final = b"CLS\n"


# -- the handshake ----------------------------------------------------------------------------------------------------


def identify(payload: bytes) -> bytes:
    """IDENTIFY with its JSON.  "IDENTIFY" """
    return b"IDENTIFY\n" + _size(len(payload)) + payload


def auth(secret: bytes) -> bytes:
    """AUTH with the secret as it is.  "AUTH"  Raises OptionError, which does not show the secret."""
    if not secret:
        raise OptionError("auth_secret", secret, "must not be empty")  # nsqd/protocol_v2.go:510
    return b"AUTH\n" + _size(len(secret)) + secret


def subscribe(topic: str, channel: str) -> bytes:
    """SUB.  "SUB"  Raises InvalidName."""
    return b"SUB " + check_topic(topic) + b" " + check_channel(channel) + b"\n"


# -- publishing -------------------------------------------------------------------------------------------------------


def publish(topic: str, body: bytes) -> bytes:
    """PUB.  "PUB"  Raises InvalidName, BodyTypeError, InvalidBody, MessageTooLarge."""
    check_body(body)
    return publish_head(topic) + _size(len(body)) + body


def multipublish(topic: str, bodies: Iterable[bytes]) -> bytes:
    """MPUB: all of the bodies or none.  "MPUB"  Raises InvalidName, BodyTypeError, InvalidBody, MessageTooLarge."""
    return multipublish_packed(multipublish_head(topic), listed(bodies))


def defer_publish(topic: str, body: bytes, delay_s: float) -> bytes:
    """DPUB: nsqd holds the message back for *delay_s* seconds, rounded up to whole milliseconds.  "DPUB"

    Raises OptionError for a delay below 0, for which nsqd would close the connection; and what :func:`publish` raises.
    """
    check_body(body)
    return b"DPUB %b %d\n" % (check_topic(topic), _milliseconds("defer", delay_s)) + _size(len(body)) + body


class _PublishHeads(dict[str, bytes]):
    def __missing__(self, topic: str) -> bytes:
        if len(self) >= _MOST_HEADS:
            self.clear()
        head = self[topic] = b"PUB " + check_topic(topic) + b"\n"
        return head


#: Topics whose PUB is kept ready.
_MOST_HEADS = 10_000

#: PUB's first line, by topic; the size and the body follow.  Looking one up raises InvalidName.
PUBLISH_HEADS: Final = _PublishHeads()


def publish_head(topic: str) -> bytes:
    """Return PUB's first line; the size and the body follow.  Raises InvalidName."""
    return PUBLISH_HEADS[topic]


def multipublish_head(topic: str) -> bytes:
    """Return MPUB's first line; :func:`multipublish_body` follows.  Raises InvalidName."""
    return b"MPUB " + check_topic(topic) + b"\n"


def multipublish_body(bodies: Sequence[bytes]) -> bytes:
    """Return what follows MPUB's first line: size, count, and each body with its size.

    The bodies are taken as they are; :func:`check_bodies` checks.  Raises MessageTooLarge for more than the size field
    can tell.
    """
    size = 4 + 4 * len(bodies) + sum(map(len, bodies))
    if size > MAX_INT32:
        raise MessageTooLarge(size - 4, MAX_INT32 - 4)
    return _size_and_count(size, len(bodies)) + with_sizes(bodies)


def multipublish_packed(head: bytes, bodies: list[Any], max_size: int = MAX_INT32) -> bytes:
    """Return an MPUB that begins with *head*, :func:`multipublish_head`'s.  Raises as :func:`check_bodies`."""
    return pack(head, bodies, max_size) or head + multipublish_body(check_bodies(bodies, max_size))


def check_body(body: object, max_size: int = MAX_INT32) -> None:
    """Raise BodyTypeError, InvalidBody (empty) or MessageTooLarge for a body nsqd would refuse (WIRE-8).

    Bytes alone are accepted: what can still change (bytearray, memoryview) might do so before it is sent.
    """
    if not isinstance(body, bytes):
        raise BodyTypeError(type(body).__name__)
    if not body:
        raise InvalidBody("a message body must not be empty")
    if len(body) > max_size:
        raise MessageTooLarge(len(body), max_size)


def check_bodies(bodies: Iterable[object], max_size: int = MAX_INT32) -> list[bytes]:
    """Return the bodies of a batch as a list.  Raises as :func:`check_body`, and as :func:`listed`."""
    checked = listed(bodies)
    for body in checked:
        check_body(body, max_size)
    return checked


def listed(bodies: Iterable[object]) -> list[Any]:
    """Return *bodies* as a list, each still to be checked.  Raises InvalidBody for what is no batch, or is empty."""
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
    """RDY: nsqd may have *count* messages in flight on this connection; 0 pauses.  "RDY"  Raises OptionError."""
    check_number("count", count, 0, math.inf, whole=True)  # nsqd/protocol_v2.go:666
    return b"RDY %d\n" % count


def finish(message_id: bytes) -> bytes:
    """FIN: nsqd forgets the message.  "FIN"  Raises OptionError for an id that is not 16 bytes."""
    if len(message_id) != MESSAGE_ID_LENGTH:
        raise _bad_id(message_id)
    return b"FIN " + message_id + b"\n"


def requeue(message_id: bytes, delay_s: float) -> bytes:
    """REQ: nsqd sends the message again, after *delay_s* seconds, rounded up to whole milliseconds.  "REQ"

    nsqd shortens a delay above its --max-req-timeout to that.  Raises OptionError for a delay below 0 and for an id
    that is not 16 bytes.
    """
    if len(message_id) != MESSAGE_ID_LENGTH:
        raise _bad_id(message_id)
    return b"REQ %b %d\n" % (message_id, _milliseconds("delay", delay_s))


def touch(message_id: bytes) -> bytes:
    """TOUCH: restart nsqd's time-out of the message.  "TOUCH"  Raises OptionError as :func:`finish` does."""
    if len(message_id) != MESSAGE_ID_LENGTH:
        raise _bad_id(message_id)
    return b"TOUCH " + message_id + b"\n"


def _bad_id(message_id: bytes) -> OptionError:
    return OptionError("message_id", message_id, f"must be {MESSAGE_ID_LENGTH} bytes, as nsqd sent them")


def _milliseconds(name: str, seconds: float) -> int:
    """Return whole milliseconds, rounded up.  Raises OptionError for what is negative, no number or NaN."""
    check_number(name, seconds, 0, math.inf)
    # Seconds are rarely exact in binary: 0.07 * 1000 is a little above 70 and must not become 71.
    return min(math.ceil(round(seconds * 1000, 6)), MAX_DURATION_MS)
