"""nsqd's HTTP API: every endpoint of nsqd 1.3.0, and those that Youzan's nsqd adds.

A name that nsqd would refuse raises InvalidName before anything is sent.  ``partition`` is for Youzan's nsqd; a plain
one ignores it.  What else a call can raise is said in :class:`~gnsq_lite.http.client.HTTPClient`; a topic or channel
that does not exist is an :class:`~gnsq_lite.errors.HTTPStatusError` of status 404.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from gnsq_lite.errors import HTTPStatusError, OptionError
from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.fields import fill
from gnsq_lite.http.message_bodies import check_body, join_bodies, pack_bodies
from gnsq_lite.http.pprof import get_profile
from gnsq_lite.http.stats import NsqdInfo, NsqdStats, parse_stats
from gnsq_lite.http.youzan_nsqd import YouzanNsqdEndpoints
from gnsq_lite.option_fields import check_number
from gnsq_lite.options import DEFER
from gnsq_lite.wire.names import check_channel, check_topic

_OPTION = re.compile(r"[a-z0-9_]+")


class NsqdClient(YouzanNsqdEndpoints, HTTPClient):
    """The HTTP API of one nsqd; see :class:`~gnsq_lite.http.client.HTTPClient` for the arguments.

    The address is that of nsqd's ``--http-address`` (port 4151), or ``https://`` and its ``--https-address`` (4152).
    """

    default_port = 4151

    # -- state --------------------------------------------------------------------------------------------------

    def ping(self) -> str:
        """Return ``OK``.  Raises HTTPStatusError with nsqd's words when nsqd is not healthy."""
        return self.get("/ping").text()

    def info(self) -> NsqdInfo:
        """Return version, addresses and limits."""
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
        """Return the statistics of all topics, or of one *topic* and *channel*; an unknown one is an empty result."""
        params = self._stats_params(topic, channel, include_clients, include_mem)
        reply = self.get("/stats", {**params, "format": "json", "partition": partition, "leaderOnly": leader_only})
        return parse_stats(reply.url, reply.json())

    def stats_text(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        include_clients: bool = True,
        include_mem: bool = True,
    ) -> str:
        """Return the statistics as the text that nsqd makes for people."""
        return self.get("/stats", self._stats_params(topic, channel, include_clients, include_mem)).text()

    def _stats_params(
        self, topic: str | None, channel: str | None, include_clients: bool, include_mem: bool
    ) -> dict[str, Any]:
        if topic is not None:
            check_topic(topic)
        if channel is not None:
            check_channel(channel)
        return {
            "topic": topic,
            "channel": channel,
            "include_clients": include_clients,
            "needClients": include_clients,  # the same, on Youzan's nsqd
            "include_mem": include_mem,
        }

    # -- publishing ---------------------------------------------------------------------------------------------

    def publish(self, topic: str, body: bytes, *, defer: float = 0.0, partition: int | None = None) -> None:
        """Publish one message; it is on nsqd when this returns.

        Args:
            defer: Seconds nsqd holds the message back; sent as whole milliseconds, rounded up.

        Raises HTTPTimeout or HTTPConnectionLost where nsqd may have the message; nothing was published for the others.
        """
        check_topic(topic)
        check_body(body)
        check_number("defer", defer, *DEFER)
        defer_ms = math.ceil(defer * 1000) or None
        self.post("/pub", {"topic": topic, "partition": partition, "defer": defer_ms}, body)

    def multipublish(
        self, topic: str, bodies: Iterable[bytes], *, binary: bool = True, partition: int | None = None
    ) -> None:
        """Publish several messages, all or none of them.

        Args:
            binary: Whether lengths divide the messages; otherwise newlines do, and no message may hold one.

        Raises as :meth:`publish`.
        """
        check_topic(topic)
        body = pack_bodies(bodies) if binary else join_bodies(bodies)
        self.post("/mpub", {"topic": topic, "partition": partition, "binary": True if binary else None}, body)

    # -- topics -------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str) -> None:
        """Create the topic; one that exists stays as it is."""
        self._topic("create", topic)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic, its channels and all their messages, on this nsqd."""
        self._topic("delete", topic)

    def empty_topic(self, topic: str) -> None:
        """Drop the messages that no channel has taken yet; those of the channels stay."""
        self._topic("empty", topic)

    def pause_topic(self, topic: str) -> None:
        """Stop the flow of messages from the topic to its channels."""
        self._topic("pause", topic)

    def unpause_topic(self, topic: str) -> None:
        """Resume what :meth:`pause_topic` stopped."""
        self._topic("unpause", topic)

    def _topic(self, act: str, topic: str) -> None:
        check_topic(topic)
        self.post(f"/topic/{act}", {"topic": topic})

    # -- channels -----------------------------------------------------------------------------------------------

    def create_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Create the channel of a topic that exists; one that exists stays as it is."""
        self._channel("create", topic, channel, partition)

    def delete_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Delete the channel and all its messages, and disconnect its consumers."""
        self._channel("delete", topic, channel, partition)

    def empty_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Drop all messages of the channel, those in flight and deferred included."""
        self._channel("empty", topic, channel, partition)

    def pause_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Stop sending the channel's messages to its consumers."""
        self._channel("pause", topic, channel, partition)

    def unpause_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Resume what :meth:`pause_channel` stopped."""
        self._channel("unpause", topic, channel, partition)

    # -- configuration and debugging ------------------------------------------------------------------------------

    def get_config(self, option: str) -> Any:
        """Return the value of an option of nsqd, named as in its configuration file; durations are nanoseconds."""
        return _config_value(self.get(_config_path(option)).body)

    def set_config(self, option: str, value: object) -> Any:
        """Change an option at run time and return its new value.

        nsqd 1.3.0 takes ``nsqlookupd_tcp_addresses`` (a sequence) and ``log_level`` (a word).
        """
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        return _config_value(self.call("PUT", _config_path(option), body=body).body)

    def free_memory(self) -> None:
        """Have nsqd give memory back to the operating system."""
        self._unanswered("POST", "/debug/freememory")

    def set_block_rate(self, rate: int) -> None:
        """Set how many nanoseconds of blocking make one sample of the ``block`` profile; 0 turns it off."""
        self._unanswered("PUT", "/debug/setblockrate", {"rate": rate})

    def _unanswered(self, method: str, path: str, params: dict[str, Any] | None = None) -> None:
        try:
            self.call(method, path, params)
        except HTTPStatusError as error:
            # nsqd 1.3.0 does the work, then panics over the empty answer: nsqd/http.go freeMemory, PlainText
            if (error.status, error.text) != (500, "INTERNAL_ERROR"):
                raise

    def profile(self, name: str = "", *, seconds: float | None = None, debug: int | None = None) -> bytes:
        """Return one of Go's profiles (see :mod:`gnsq_lite.http.pprof`); with ``debug=1`` or 2 as text.

        Args:
            seconds: How long the profile ``profile`` collects (Go's default: 30); less than ``http_timeout``.
        """
        return get_profile(self, name, seconds, debug)


def _config_path(option: str) -> str:
    if not isinstance(option, str) or not _OPTION.fullmatch(option):
        raise OptionError("option", option, "must be the name of an option, as in nsqd's configuration file")
    return f"/config/{option}"


def _config_value(body: bytes) -> Any:
    text = body.decode("utf-8", "backslashreplace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # nsqd sends strings bare
