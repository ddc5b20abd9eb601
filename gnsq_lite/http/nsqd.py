"""Client for the HTTP API of nsqd 1.3.0 and of Youzan's nsqd.

A call with a name that nsqd would refuse raises InvalidName and sends no request.  ``partition`` is for Youzan's nsqd;
a plain nsqd ignores it.  All calls raise the errors of :mod:`gnsq_lite.http.client`.  A call to delete, empty, pause or
unpause an unknown topic or channel raises :class:`~gnsq_lite.errors.HTTPStatusError` with status 404.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.fields import fill
from gnsq_lite.http.stats import NsqdInfo, NsqdStats
from gnsq_lite.option_fields import check_number
from gnsq_lite.options import DEFER
from gnsq_lite.wire.commands import check_bodies, check_body, multipublish_body
from gnsq_lite.wire.names import check_channel, check_topic


class NsqdClient(HTTPClient):
    """Client for the HTTP API of one nsqd; see :class:`~gnsq_lite.http.client.HTTPClient` for the arguments.

    The address is nsqd's ``--http-address`` (port 4151), or ``https://`` with nsqd's ``--https-address`` (port 4152).
    """

    default_port = 4151

    def info(self) -> NsqdInfo:
        """Return nsqd's version, addresses and limits."""
        reply = self.get("/info")
        return fill(reply.url, NsqdInfo, reply.json())

    def stats(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        include_clients: bool = True,
        include_mem: bool = True,
        partition: int | None = None,
        leader_only: bool | None = None,
    ) -> NsqdStats:
        """Return statistics of all topics, or of *topic* and *channel* only.  Unknown names have no entries."""
        if topic is not None:
            check_topic(topic)
        if channel is not None:
            check_channel(channel)
        params = {
            "format": "json",
            "topic": topic,
            "channel": channel,
            "include_clients": include_clients,
            "needClients": include_clients,  # the same parameter of Youzan's nsqd
            "include_mem": include_mem,
            "partition": partition,
            "leaderOnly": leader_only,
        }
        reply = self.get("/stats", params)
        return fill(reply.url, NsqdStats, reply.json())

    def publish(self, topic: str, body: bytes, *, defer: float = 0.0, partition: int | None = None) -> None:
        """Publish one message; return after nsqd has accepted the message.

        Args:
            defer: Seconds until nsqd delivers the message, rounded up to milliseconds.

        After HTTPConnectError, or an error status of nsqd, nsqd does not have the message.  After any other HTTPError
        nsqd may have the message.
        """
        check_topic(topic)
        check_body(body)
        check_number("defer", defer, *DEFER)
        defer_ms = math.ceil(defer * 1000) or None
        self.post("/pub", {"topic": topic, "partition": partition, "defer": defer_ms}, body)

    def multipublish(self, topic: str, bodies: Iterable[bytes], *, partition: int | None = None) -> None:
        """Publish several messages; nsqd accepts all or none.  Raises the same errors as :meth:`publish`."""
        check_topic(topic)
        params = {"topic": topic, "partition": partition, "binary": True}
        # The body of /mpub?binary=true is the body of the MPUB command without its size.
        self.post("/mpub", params, multipublish_body(check_bodies(bodies))[4:])

    def create_topic(self, topic: str) -> None:
        """Create the topic if it does not exist."""
        self._topic("create", topic)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic on this nsqd, with its channels and all messages."""
        self._topic("delete", topic)

    def empty_topic(self, topic: str) -> None:
        """Drop the messages in the topic's queue, but not the messages in its channels."""
        self._topic("empty", topic)

    def pause_topic(self, topic: str) -> None:
        """Stop passing messages from the topic to its channels."""
        self._topic("pause", topic)

    def unpause_topic(self, topic: str) -> None:
        """Resume passing messages from the topic to its channels."""
        self._topic("unpause", topic)

    def _topic(self, act: str, topic: str) -> None:
        check_topic(topic)
        self.post(f"/topic/{act}", {"topic": topic})

    def create_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Create the channel if it does not exist.  The topic must exist."""
        self._channel("create", topic, channel, partition)

    def delete_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Delete the channel and all its messages, and disconnect its consumers.

        nsqlookupd still lists the channel: delete it there too (:meth:`LookupdClient.delete_channel`).
        """
        self._channel("delete", topic, channel, partition)

    def empty_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Drop all messages of the channel, including messages in flight and deferred messages."""
        self._channel("empty", topic, channel, partition)

    def pause_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Stop sending the channel's messages to its consumers."""
        self._channel("pause", topic, channel, partition)

    def unpause_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Resume sending the channel's messages to its consumers."""
        self._channel("unpause", topic, channel, partition)

    def set_channel_order(self, topic: str, channel: str, *, ordered: bool, partition: int | None = None) -> None:
        """Let Youzan's nsqd send one message at a time to all consumers of the channel, or end that.

        Call it on the leader of each partition, and then start the consumers again: nsqd applies the change to
        consumers that subscribe later.  A Reader with ``ordered=True`` sets it, and nothing else ends it.
        """
        self._channel("setorder", topic, channel, partition, order="true" if ordered else "false")

    def _channel(self, act: str, topic: str, channel: str, partition: int | None, **more: str) -> None:
        check_topic(topic)
        check_channel(channel)
        self.post(f"/channel/{act}", {"topic": topic, "partition": partition, "channel": channel, **more})
