"""Readers and Writers for system tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite import Reader, Writer
from tests.servers import ServerHandle

QUICK: dict[str, Any] = {"reconnect_delay": 0.05, "max_reconnect_delay": 0.2}


POOLS = ["greenlet", "thread", "inline"]


def reader_on(broker: ServerHandle, topic: str, handler: Callable[[Any], Any], **options: Any) -> Reader:
    return Reader(topic, "ch", handler, nsqd_tcp_addresses=broker.tcp_address, **{**QUICK, **options})


def channel(broker: ServerHandle, topic: str) -> dict[str, Any]:
    return broker.stats(topic, "ch")


def depth(broker: ServerHandle, topic: str) -> int:
    return int(broker.stats(topic).get("depth", 0))


def connected(writer: Writer) -> set[str]:
    """Return the addresses that the Writer is connected to; threads and the loop may both have a connection to one."""
    return {each.address for each in writer.stats().connections}
