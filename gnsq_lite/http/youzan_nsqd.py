"""What Youzan's nsqd adds to nsqd's HTTP API; a plain nsqd answers these with HTTPStatusError 404.

Cited to youzan/nsq, nsqdserver/http.go.  Without ``partition`` the one that this nsqd leads is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gnsq_lite.errors import OptionError
from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.fields import fill, raw
from gnsq_lite.http.message_bodies import check_body
from gnsq_lite.option_fields import check_choice, check_number
from gnsq_lite.wire.names import check_channel, check_topic

#: Bytes of an ext header at the most, for nsqd's sake: nsqd/message.go:436
_MAX_HEADER_BYTES = 65535 - 29

_OFFSET = re.compile(r"(virtual_queue|timestamp|msgcount):[0-9]{1,19}|special:-1")


#: What Go's JSON escapes and Python's does not, or in fewer bytes: how many more there are.
_LONGER = {"<": 5, ">": 5, "&": 5, "\u2028": 3, "\u2029": 3, "\\b": 4, "\\f": 4}
_MARKED = re.compile(r"\\.|[<>&\u2028\u2029]")
#: As long as a number may become where Go writes it.
_NUMBER = "x" * 24


def _bytes_at_nsqd(ext: str) -> int:
    """Return how many bytes, at the most, nsqd makes of the JSON *ext*, which it reads and writes anew."""
    read = json.loads(ext, parse_float=lambda _: _NUMBER, parse_int=lambda n: int(n) if len(n) < 22 else _NUMBER)
    text = json.dumps(read, ensure_ascii=False, separators=(",", ":"))
    longer = sum(_LONGER.get(found, 0) for found in _MARKED.findall(text))
    return len(text.encode("utf-8", "surrogatepass")) + longer


@dataclass(frozen=True, kw_only=True)
class PublishTrace:
    """Where a traced message is: answer of ``publish_trace``."""

    id: int  # internal id
    trace_id: int
    queue_offset: int  # bytes into the partition's queue
    rawsize: int  # bytes on disk
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class StoredMessage:
    """A message in a partition's queue.  ``body`` and ``ext`` are text: Youzan's nsqd sends them in JSON."""

    id: int
    trace_id: int = 0
    body: str = ""
    timestamp: int = 0  # nanoseconds since 1970
    attempts: int = 0
    offset: int = 0
    queue_cnt_index: int = 0
    ext: str = ""
    raw: Mapping[str, Any] = raw()


class YouzanNsqdEndpoints(HTTPClient):
    """The calls that only Youzan's nsqd knows."""

    def publish_trace(self, topic: str, body: bytes, *, trace_id: int, partition: int | None = None) -> PublishTrace:
        """Publish one message with a trace id and return where nsqd keeps it."""
        check_topic(topic)
        check_body(body)
        check_number("trace_id", trace_id, 0, 2**64 - 1, whole=True)
        reply = self.post("/pubtrace", {"topic": topic, "partition": partition, "trace_id": trace_id}, body)
        return fill(reply.url, PublishTrace, reply.json())

    def publish_ext(
        self, topic: str, body: bytes, *, headers: Mapping[str, Any], partition: int | None = None
    ) -> PublishTrace | None:
        """Publish one message with JSON *headers* to an ext topic.

        Returns where nsqd keeps it if *headers* hold a ``##trace_id`` (a decimal string), else None.

        Raises OptionError for more than 65506 bytes of JSON, as nsqd writes it: nsqd would die of them.
        """
        check_topic(topic)
        check_body(body)
        ext = json.dumps(dict(headers), ensure_ascii=True, separators=(",", ":"))
        size = _bytes_at_nsqd(ext)
        if size > _MAX_HEADER_BYTES:
            raise OptionError("headers", f"<{size} bytes of JSON>", f"must be at most {_MAX_HEADER_BYTES} bytes")
        # nsqd unquotes this parameter twice: nsqdserver/http.go internalPUB
        quoted = ext.replace("%", "%25").replace("+", "%2B")
        reply = self.post("/pub_ext", {"topic": topic, "partition": partition, "ext": quoted}, body)
        return fill(reply.url, PublishTrace, reply.json()) if reply.body.startswith(b"{") else None

    def get_message(
        self,
        topic: str,
        position: int,
        *,
        search: Literal["id", "count", "virtual_offset"] = "id",
        partition: int | None = None,
    ) -> StoredMessage:
        """Return a message out of a partition's queue, by its id, its number or its offset in bytes."""
        check_topic(topic)
        params = {"topic": topic, "partition": partition, "search_mode": search, "search_pos": position}
        reply = self.get("/message/get", {**params, "needext": True})
        return fill(reply.url, StoredMessage, reply.json())

    def finish_message(self, topic: str, channel: str, message_id: int, *, partition: int | None = None) -> None:
        """Finish a message of the channel by its internal id."""
        self._channel("finish", topic, channel, partition, base="message", msgid=message_id)

    def message_stats(self, topic: str, channel: str, *, partition: int | None = None) -> str:
        """Return what nsqd says of the channel's messages in flight, as text."""
        self._check(topic, channel)
        return self.get("/message/stats", {"topic": topic, "partition": partition, "channel": channel}).text()

    def message_history(self, topic: str, *, partition: int) -> Any:
        """Return how many bytes were published in each of the last hours (JSON)."""
        check_topic(topic)
        return self.get_json("/message/historystats", {"topic": topic, "partition": partition})

    def trace_messages(self, topic: str, channel: str | None = None, *, enable: bool = True) -> None:
        """Log the way of the topic's or channel's messages, or stop that."""
        check_topic(topic)
        if channel is not None:
            check_channel(channel)
        act = "enable" if enable else "disable"
        self.post(f"/message/trace/{act}", {"topic": topic, "channel": channel})

    def set_channel_offset(self, topic: str, channel: str, offset: str, *, partition: int | None = None) -> None:
        """Move the channel to another place in the partition.

        Args:
            offset: ``virtual_queue:<bytes>``, ``timestamp:<unix seconds>``, ``msgcount:<n>`` or ``special:-1`` (end).
        """
        if not isinstance(offset, str) or not _OFFSET.fullmatch(offset):
            raise OptionError("offset", offset, "must be virtual_queue:N, timestamp:N, msgcount:N or special:-1")
        self._channel("setoffset", topic, channel, partition, body=offset.encode())

    def set_channel_order(self, topic: str, channel: str, ordered: bool, *, partition: int | None = None) -> None:
        """Have the channel deliver in order, or no longer; in full effect for later SUBs."""
        self._channel("setorder", topic, channel, partition, order=ordered)

    def skip_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Have the channel drop its messages undelivered until :meth:`unskip_channel`."""
        self._channel("skip", topic, channel, partition)

    def unskip_channel(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """End :meth:`skip_channel`."""
        self._channel("unskip", topic, channel, partition)

    def limit_channel_clients(
        self, topic: str, channel: str, *, ready: int, client_prefix: str, partition: int | None = None
    ) -> None:
        """Cap the RDY of the channel's consumers whose address starts with *client_prefix*."""
        self._channel("setclientlimit", topic, channel, partition, ready=ready, client_prefix=client_prefix)

    def limit_channel_rate(self, topic: str, channel: str, kilobytes: int, *, partition: int | None = None) -> None:
        """Deliver at most *kilobytes* a second on the channel."""
        self._channel("ratelimit", topic, channel, partition, ratekilobytes=kilobytes)

    def fix_channel_confirmed(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Have nsqd look again for the channel's confirmed position."""
        self._channel("fixconfirmed", topic, channel, partition)

    def finish_memory_delayed(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Finish the channel's delayed messages that are in memory."""
        self._channel("finishmemdelayed", topic, channel, partition)

    def empty_delayed(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Drop the channel's delayed messages."""
        self._channel("emptydelayed", topic, channel, partition)

    def requeue_delayed(self, topic: str, channel: str, *, partition: int | None = None) -> None:
        """Deliver the channel's delayed messages now."""
        self._channel("requeuedelayed", topic, channel, partition)

    def skip_zan_test(self, topic: str, channel: str, *, skip: bool = True, partition: int | None = None) -> None:
        """Have the channel of an ext topic drop messages with the header ``zan_test``, or deliver them again."""
        self._channel("skipZanTest" if skip else "unskipZanTest", topic, channel, partition)

    def clean_old_data(self, topic: str, *, partition: int | None = None) -> None:
        """Delete what all channels of the topic have consumed."""
        check_topic(topic)
        self.post("/topic/greedyclean", {"topic": topic, "partition": partition})

    def clean_unused(self, topic: str | None = None, *, partition: int | None = None, dry_run: bool = True) -> None:
        """Delete files of partitions that nsqd no longer has, of all topics or one; a dry run only logs them."""
        if topic is not None:
            check_topic(topic)
        params = {"topic": topic, "partition": partition, "checkall": topic is None, "dryrun": dry_run}
        self.post("/topic/cleanunused", params)

    def fix_topic_data(self, topic: str, *, partition: int | None = None, check_corrupt: bool = False) -> None:
        """Have nsqd repair the topic's data."""
        check_topic(topic)
        self.post("/topic/fixdata", {"topic": topic, "partition": partition, "checkcorrupt": check_corrupt})

    def disable_write(self, kind: Literal["all", "ordered", ""] = "all") -> None:
        """Refuse publishes to all or to ordered topics; ``""`` allows them again."""
        check_choice("kind", kind, "all", "ordered", "")
        self.post("/disable/write", {"type": kind})

    def set_log_level(self, level: int) -> None:
        """Set the log level; a higher number says more."""
        self.post("/loglevel/set", {"loglevel": level})

    def enable_delayed_queue(self) -> None:
        """Turn the delayed queue on; nsqd has no way to turn it off."""
        self.call("PUT", "/delayqueue/enable", {"enable": True})

    def enable_file_meta_writer(self, enable: bool = True) -> None:
        """Turn the writer of queue metadata on or off."""
        self.call("PUT", "/filemeta_writer/enable", {"state": enable})

    def backup_delayed_queue(self, topic: str, *, partition: int) -> bytes:
        """Return a backup of the partition's delayed queue, at most ``http_max_body`` bytes."""
        check_topic(topic)
        return self.get("/delayqueue/backupto", {"topic": topic, "partition": partition}).body

    def coordinator_stats(self, topic: str | None = None, *, partition: int | None = None) -> Any:
        """Return the cluster coordinator's statistics (JSON)."""
        return self.get_json("/coordinator/stats", {"topic": topic, "partition": partition})

    def server_stats(self) -> Any:
        """Return version, health, start time and the number of failed publishes (JSON)."""
        return self.get_json("/serverstats")

    def metrics(self) -> str:
        """Return nsqd's metrics in Prometheus' text format."""
        return self.get("/metric").text()

    def _check(self, topic: str, channel: str) -> None:
        check_topic(topic)
        check_channel(channel)

    def _channel(
        self,
        act: str,
        topic: str,
        channel: str,
        partition: int | None,
        *,
        base: str = "channel",
        body: bytes = b"",
        **params: Any,
    ) -> None:
        self._check(topic, channel)
        self.post(f"/{base}/{act}", {"topic": topic, "partition": partition, "channel": channel, **params}, body)
