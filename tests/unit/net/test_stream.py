"""What a stream sees of its peer."""

from __future__ import annotations

import socket

import gevent
import pytest

from gnsq_lite.errors import ConnectionLost
from gnsq_lite.net.runtime import Loop
from gnsq_lite.net.stream import Stream

HEARTBEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"


@pytest.mark.rule("PUB-3")
def test_an_end_is_seen_behind_bytes_that_nobody_has_read() -> None:
    """Else a publish goes out to an nsqd that is gone, and its outcome is unknown."""
    here, there = socket.socketpair()
    here.setblocking(False)
    stream = Stream(Loop(gevent.get_hub()), here, "nsqd:4150")
    assert not stream.has_ended()
    there.sendall(HEARTBEAT)
    assert not stream.has_ended()
    there.close()
    assert stream.has_ended()
    assert stream.read() == HEARTBEAT  # it is still the reader's
    with pytest.raises(ConnectionLost, match="closed by nsqd") as lost:
        stream.read()
    stream.close(lost.value)
    assert stream.has_ended()
