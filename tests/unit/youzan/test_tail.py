"""A message that is given up goes to the end of its own partition, and is finished only then (YZ-13)."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.errors import NotSent
from gnsq_lite.youzan.messages import YouzanMessage
from gnsq_lite.youzan.tail import to_tail
from tests.unit.youzan.owner import OWNER

pytestmark = pytest.mark.rule("YZ-13")


class Writer:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[Any] = []
        self.error = error

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        partition: int | None,
        headers: dict[str, Any] | None,
        trace_id: int | None,
    ) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((topic, body, partition, headers, trace_id))


def message(header: bytes | None, trace_id: int = 0) -> YouzanMessage:
    return YouzanMessage(OWNER, 0, 9, b"\0" * 8 + trace_id.to_bytes(8, "big"), (b"x", header, None, None), 3)


def test_it_goes_to_its_partition_with_its_trace_id_and_its_headers_but_the_servers_own() -> None:
    writer = Writer()
    to_tail(writer)(message(None))
    to_tail(writer)(message(b'{"a":1,"##client_dispatch_tag":"t","##trace_id":"5","##x":1}', 5))
    assert writer.calls == [
        ("t", b"x", 3, None, None),
        ("t", b"x", 3, {"a": 1, "##client_dispatch_tag": "t"}, 5),
    ]


def test_what_could_not_be_published_is_not_finished() -> None:
    with pytest.raises(NotSent):
        to_tail(Writer(NotSent("no nsqd")))(message(None))
