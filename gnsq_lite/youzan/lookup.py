"""Parses the answers of Youzan's nsqlookupd to ``/lookup`` (YZ-2) and ``/listlookup`` (YZ-1).

The server may send null instead of an empty value.  In ``/listlookup`` it sends ports as strings.  The parser of
``/lookup`` leaves out partitions and nodes with unusable addresses.  The parsers raise HTTPResponseError if all
addresses are unusable, and for any other error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gnsq_lite.dialect import Endpoint, Role, node_endpoint, usable
from gnsq_lite.errors import HTTPResponseError
from gnsq_lite.options import Address
from gnsq_lite.text import printable
from gnsq_lite.youzan.constants import MAX_PARTITIONS


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The partitions of a topic and their leaders.

    ``partition_num`` also counts the partitions that nsqlookupd does not list because they have no leader or are not
    writable.  It is 0 if the server is in no cluster.  ``has_meta`` is true if the server sent the topic's metainfo.
    ``lists_partitions`` is true if the server listed any partition, even an unusable one.
    """

    partition_num: int = 0
    extend_support: bool = False
    ordered: bool = False
    partitions: Mapping[int, Endpoint] = field(default_factory=dict)
    producers: tuple[Endpoint, ...] = ()
    has_meta: bool = False
    lists_partitions: bool = False

    @property
    def has_partitions(self) -> bool:
        """Whether the topic has partitions, so that a publish must go to the leader of a partition."""
        return self.has_meta or self.lists_partitions

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return an endpoint for each listed partition, in order.  If the topic has no partitions, return the nsqds."""
        if self.has_partitions:
            return tuple(self.partitions[number] for number in sorted(self.partitions))
        return self.producers

    def led_by(self, address: Address) -> tuple[int, ...]:
        """Return the partitions that the nsqd at *address* leads."""
        return tuple(sorted(n for n, endpoint in self.partitions.items() if endpoint.address == address))


EMPTY = TopicLayout()


def lookup_path(topic: str, role: Role) -> str:
    """Return the path and query of the lookup of a topic (YZ-2).

    Readers need the metainfo, because extend_support in IDENTIFY must match the topic (YZ-15).
    """
    access = "w" if role == "write" else "r"
    return f"/lookup?topic={quote(topic, safe='')}&access={access}&metainfo=true"


def parse_layout(data: Any, left_out: dict[str, None]) -> TopicLayout:
    """Parse the decoded answer to ``/lookup``, and add the errors of unusable entries to *left_out*.

    If the answer is null, the layout is empty.  Raises HTTPResponseError.
    """
    data = _value({"answer": data}, "answer", {})
    meta, listed, nodes = _value(data, "meta", {}), _value(data, "partitions", {}), _value(data, "producers", [])
    count = _value(meta, "partition_num", 0)
    if not 0 <= count <= MAX_PARTITIONS:
        raise _bad(f"partition_num is {str(count)[:40]}, which is not between 0 and {MAX_PARTITIONS}")
    leaders = usable(listed.items(), _leader, left_out)
    producers = usable(nodes, node_endpoint, left_out)
    if left_out and not leaders and not producers:
        raise _bad(next(iter(left_out)))
    return TopicLayout(
        partition_num=count,
        extend_support=_value(meta, "extend_support", False),
        ordered=_value(meta, "ordered", False),
        partitions={endpoint.partition: endpoint for endpoint in leaders if endpoint.partition is not None},
        producers=tuple(dict.fromkeys(producers)),
        has_meta=bool(meta),
        lists_partitions=bool(listed),
    )


def parse_lookupds(data: Any) -> tuple[Address, ...]:
    """Parse the answer to ``/listlookup``, and return the HTTP addresses of the nsqlookupds, the leader first.

    If nsqlookupd is in no cluster, return ().  Raises HTTPResponseError.
    """
    data = _value({"answer": data}, "answer", {})
    leader, nodes = _value(data, "lookupdleader", {}), _value(data, "lookupdnodes", [])
    if leader.get("NodeIP"):
        nodes = [leader, *nodes]
    return tuple(dict.fromkeys(_lookupd(node) for node in nodes))


def _lookupd(node: Any) -> Address:
    if not isinstance(node, Mapping):
        raise _bad("an nsqlookupd is not an object")
    endpoint = node_endpoint({"broadcast_address": node.get("NodeIP"), "tcp_port": node.get("HttpPort")})
    return endpoint.address


def _leader(listed: tuple[str, Any]) -> Endpoint:
    return node_endpoint(listed[1], _partition(listed[0]))


def _partition(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 3 or int(key) >= MAX_PARTITIONS:
        raise _bad(printable(f"no partition has the number {key[:40]!r}"))
    return int(key)


def _value(data: Any, key: str, empty: Any) -> Any:
    """Return ``data[key]``, or *empty* if it is missing or null.  Raises HTTPResponseError for a wrong JSON type."""
    value = data.get(key)
    if value is None:
        return empty
    if type(value) is not type(empty):
        raise _bad(f"{key} is {type(value).__name__}, not {type(empty).__name__}")
    return value


def _bad(why: str) -> HTTPResponseError:
    return HTTPResponseError("lookup", why)
