"""Client for the HTTP API of nsqlookupd 1.3.0 and of Youzan's nsqlookupd.

The client accepts responses with and without the older wrapper ``{"status_code", "status_txt", "data"}`` (DISC-3).  A
call with a name that NSQ would refuse raises InvalidName and sends no request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from gnsq_lite.errors import HTTPStatusError, NSQError
from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.fields import fill, items, names
from gnsq_lite.http.nodes import LookupdInfo, LookupResult, Node, TopicMeta, parse_lookup, parse_node
from gnsq_lite.options import Address, format_address, lookupd_address, parse_address
from gnsq_lite.wire.names import check_channel, check_topic

log = logging.getLogger("gnsq_lite.http")


def is_unknown_topic(error: HTTPStatusError) -> bool:
    """Return whether nsqlookupd does not know the topic (DISC-5).  ``NOT_FOUND`` means that the path is unknown."""
    text = error.text.lower()
    # The status is 404, or 500 if an older server wraps its errors.  The last two texts are from
    # Youzan's nsqlookupd/http.go: doLookup, tryFindRegsFromRegister.
    texts = ("topic_not_found", "key not found", "topic has no channel")
    return error.status in (404, 500) and any(each in text for each in texts)


class LookupdClient(HTTPClient):
    """Client for one nsqlookupd (port 4161); see :class:`~gnsq_lite.http.client.HTTPClient` for the arguments.

    The address may end in ``/lookup``, as in pynsq and go-nsq.
    """

    default_port = 4161

    def _parse(self, address: str | Address) -> tuple[str, str, int, str, str | None]:
        return super()._parse(lookupd_address(address))

    def info(self) -> LookupdInfo:
        """Return nsqlookupd's version."""
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
        """Return the nsqds of the topic.  For an unknown topic, ``found`` is False in the result.

        The keywords are only for Youzan's nsqlookupd: *metainfo* requests the topic's configuration, and *partition*
        requests only this partition.

        Args:
            access: "r" for consumers or "w" for producers.
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
        """Return the names of the topic's channels, or () for an unknown topic."""
        check_topic(topic)
        reply = self.get("/channels", {"topic": topic, "partition": partition})
        return names(reply.url, reply.json(), "channels", required=True)

    def nodes(self) -> tuple[Node, ...]:
        """Return all nsqds, with their topics and tombstones."""
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
        """Register the topic if it is not registered.

        The keyword arguments are for Youzan's nsqlookupd, which creates the topic's partitions on nsqds and requires
        ``partition_num`` and ``replicator``.  Publish only after ``lookup(access="w")`` lists all partitions.
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
        """Remove the topic and its channels from nsqlookupd.

        A plain nsqlookupd only removes the registrations, and an nsqd that still has the topic may register it again.
        Youzan's nsqlookupd deletes all partitions and messages of the topic on the nsqds.
        """
        check_topic(topic)
        self.post("/topic/delete", {"topic": topic, "partition": "**", "force": force})

    def tombstone_topic(self, topic: str, node: str | Address, *, restore: bool | None = None) -> None:
        """Hide *node* from lookups of the topic for nsqlookupd's ``--tombstone-lifetime``.

        nsqlookupd responds with OK even if it does not know the node.

        Args:
            node: nsqd's ``broadcast_address:http_port``, or a pair like :attr:`Node.http_address`.
            restore: Remove the tombstone (Youzan's nsqlookupd only).
        """
        check_topic(topic)
        # nsqlookupd compares *node* as text with the registered address, which has no brackets around IPv6.
        host, port = node if isinstance(node, tuple) else parse_address(node, default_port=4151, option="node")
        self.post("/topic/tombstone", {"topic": topic, "node": f"{host}:{port}", "restore": restore})

    def create_channel(self, topic: str, channel: str) -> None:
        """Register the channel and its topic.  An nsqd that creates the topic later also creates the channel."""
        self._channel("create", topic, channel)

    def delete_channel(self, topic: str, channel: str) -> None:
        """Remove the registrations of the channel.  Raises HTTPStatusError (status 404) for an unknown channel."""
        self._channel("delete", topic, channel)

    def _channel(self, act: str, topic: str, channel: str) -> None:
        check_topic(topic)
        check_channel(channel)
        self.post(f"/channel/{act}", {"topic": topic, "channel": channel})

    # -- Youzan's nsqlookupd only; a plain nsqlookupd responds with status 404 ---------------------------------------

    def topics_meta(self) -> tuple[TopicMeta, ...]:
        """Return the configuration of each topic, or () if nsqlookupd does not run in a cluster."""
        reply = self.get("/topics", {"metaInfo": True})
        return tuple(fill(reply.url, TopicMeta, entry) for entry in items(reply.url, reply.json(), "meta_info"))


def http_addresses(topic: str, lookupds: Iterable[str], *, tls: Any, **settings: Any) -> dict[str, str]:
    """Look up *topic* at each nsqlookupd; return a dict from the TCP address to the HTTP address of each nsqd.

    *tls* (for https) and *settings* are keywords of :class:`LookupdClient`.  Skips an nsqlookupd that fails.
    """
    found: dict[str, str] = {}
    for address in lookupds:
        try:
            with LookupdClient(address, tls=tls if address.startswith("https://") else None, **settings) as client:
                nodes = client.lookup(topic).producers
        except NSQError as error:
            log.debug("no nsqds of %s through %s: %s", topic, address, error)
            continue
        found |= {format_address(node.tcp_address): format_address(node.http_address) for node in nodes}
    return found


def http_address(nsqd: str, known: Mapping[str, str]) -> str | None:
    """Return the HTTP address of *nsqd* in *known*, else port 4151 of its host if its TCP port is 4150, else None."""
    if nsqd not in known and nsqd.endswith(":4150"):
        return nsqd.removesuffix(":4150") + ":4151"
    return known.get(nsqd)
