"""nsqlookupd's HTTP API: what nsqlookupd 1.3.0 and Youzan's nsqlookupd offer to clients and administrators.

Answers are taken bare or in the older wrapper ``{"status_code", "status_txt", "data"}`` (DISC-3).  A name that NSQ
would refuse raises InvalidName before anything is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from gnsq_lite.errors import HTTPStatusError, NSQError
from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.fields import fill, items, names
from gnsq_lite.http.nodes import (
    LookupdInfo,
    LookupdNodes,
    LookupResult,
    Node,
    TopicMeta,
    parse_lookup,
    parse_lookupds,
    parse_node,
)
from gnsq_lite.options import Address, format_address, parse_address
from gnsq_lite.wire.names import check_channel, check_topic

log = logging.getLogger("gnsq_lite.http")


def is_unknown_topic(error: HTTPStatusError) -> bool:
    """Whether *error* says that nsqlookupd does not know the topic (DISC-5); nsqd's 404 ``NOT_FOUND`` does not."""
    text = error.text.lower()
    # The status is 404, or 500 where an older server wraps its errors.  The last two texts are
    # Youzan's: nsqlookupd/http.go doLookup, tryFindRegsFromRegister.
    texts = ("topic_not_found", "key not found", "topic has no channel")
    return error.status in (404, 500) and any(each in text for each in texts)


class LookupdClient(HTTPClient):
    """The HTTP API of one nsqlookupd (port 4161); see :class:`~gnsq_lite.http.client.HTTPClient` for the arguments."""

    default_port = 4161

    def info(self) -> LookupdInfo:
        """Return the version."""
        reply = self.get("/info")
        return fill(reply.url, LookupdInfo, reply.json())

    def lookup(
        self,
        topic: str,
        *,
        access: Literal["r", "w"] | None = None,
        metainfo: bool | None = None,
        partition: int | None = None,
    ) -> LookupResult:
        """Return the nsqds that have the topic; for a topic that is not known, a result with ``found`` False.

        Args:
            access, metainfo, partition: For Youzan's nsqlookupd: partitions to read or to write, with how the topic
                is made, only one of them.  A plain one ignores them.
        """
        check_topic(topic)
        params = {"topic": topic, "access": access, "metainfo": metainfo, "partition": partition}
        try:
            reply = self.get("/lookup", params)
            data = reply.json()
        except HTTPStatusError as error:
            if is_unknown_topic(error):
                return LookupResult(found=False)
            raise
        return parse_lookup(reply.url, data)

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics."""
        reply = self.get("/topics")
        return names(reply.url, reply.json(), "topics", required=True)

    def channels(self, topic: str, *, partition: int | None = None) -> tuple[str, ...]:
        """Return the names of the topic's channels; none for a topic that is not known."""
        check_topic(topic)
        reply = self.get("/channels", {"topic": topic, "partition": partition})
        return names(reply.url, reply.json(), "channels", required=True)

    def nodes(self) -> tuple[Node, ...]:
        """Return all nsqds, with their topics and which of these are tombstoned."""
        reply = self.get("/nodes")
        return tuple(parse_node(reply.url, node) for node in items(reply.url, reply.json(), "producers", required=True))

    def create_topic(
        self,
        topic: str,
        *,
        partition_num: int | None = None,
        replicator: int | None = None,
        extend: bool | None = None,
        ordered_multi: bool | None = None,
        multi_part: bool | None = None,
        disable_channel_auto_create: bool | None = None,
    ) -> None:
        """Register the topic; one that exists stays as it is.

        All but the name are for Youzan's nsqlookupd, which makes the topic's partitions on its nsqds and needs
        ``partition_num`` and ``replicator``; they can take publishes once ``lookup(access="w")`` lists them all.
        """
        check_topic(topic)
        params = {
            "topic": topic,
            "partition_num": partition_num,
            "replicator": replicator,
            "extend": extend,
            "orderedmulti": ordered_multi,
            "multipart": multi_part,
            "disable_channel_auto_create": disable_channel_auto_create,
        }
        self.post("/topic/create", params)

    def delete_topic(self, topic: str, *, force: bool | None = None) -> None:
        """Forget the topic and its channels.

        A plain nsqlookupd only forgets who has it: nsqds that still have the topic register it again.  Youzan's
        deletes it, all partitions and messages, on its nsqds.
        """
        check_topic(topic)
        self.post("/topic/delete", {"topic": topic, "partition": "**", "force": force})

    def tombstone_topic(self, topic: str, node: str | Address, *, restore: bool | None = None) -> None:
        """Have lookups of the topic leave *node* out for a while (nsqlookupd's ``--tombstone-lifetime``).

        nsqlookupd says OK for a node it does not know, too.

        Args:
            node: nsqd's ``broadcast_address:http_port``, or the pair, such as :attr:`Node.http_address`, sent as it is.
            restore: On Youzan's nsqlookupd, take that back.
        """
        check_topic(topic)
        # nsqlookupd compares the text, and has an IPv6 address without brackets.
        host, port = node if isinstance(node, tuple) else parse_address(node, default_port=4151, option="node")
        self.post("/topic/tombstone", {"topic": topic, "node": f"{host}:{port}", "restore": restore})

    def create_channel(self, topic: str, channel: str) -> None:
        """Register the channel and its topic: an nsqd that gets the topic later makes the channel at once."""
        self._channel("create", topic, channel)

    def delete_channel(self, topic: str, channel: str) -> None:
        """Forget the channel; nsqds that still have it register it again.  404 for one that is not known."""
        self._channel("delete", topic, channel)

    def _channel(self, act: str, topic: str, channel: str) -> None:
        check_topic(topic)
        check_channel(channel)
        self.post(f"/channel/{act}", {"topic": topic, "channel": channel})

    # -- Youzan's nsqlookupd; a plain one answers HTTPStatusError 404 ------------------------------------------------

    def list_lookupds(self) -> LookupdNodes:
        """Return the cluster's nsqlookupds and their leader (YZ-1); an empty result where there is no cluster."""
        reply = self.get("/listlookup")
        return parse_lookupds(reply.url, reply.json())

    def topics_meta(self) -> tuple[TopicMeta, ...]:
        """Return how each topic is made; empty where there is no cluster."""
        reply = self.get("/topics", {"metaInfo": True})
        return tuple(fill(reply.url, TopicMeta, entry) for entry in items(reply.url, reply.json(), "meta_info"))


def http_addresses(topic: str, lookupds: Iterable[str], **settings: Any) -> dict[str, str]:
    """Return the HTTP address of each nsqd that an nsqlookupd lists for *topic*, by its TCP address.

    *settings* are :class:`LookupdClient`'s.  An nsqlookupd that does not answer is left out.
    """
    found: dict[str, str] = {}
    for address in lookupds:
        try:
            with LookupdClient(address, **settings) as client:
                nodes = client.lookup(topic).producers
        except NSQError as error:
            log.debug("no nsqds of %s through %s: %s", topic, address, error)
            continue
        found |= {format_address(node.tcp_address): format_address(node.http_address) for node in nodes}
    return found


def http_address(nsqd: str, known: Mapping[str, str]) -> str | None:
    """Return the HTTP address of *nsqd*: the *known* one, or port 4151 for TCP port 4150; None if it is unknown."""
    if nsqd not in known and nsqd.endswith(":4150"):
        return nsqd.removesuffix(":4150") + ":4151"
    return known.get(nsqd)
