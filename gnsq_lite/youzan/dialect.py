"""Implements :class:`gnsq_lite.dialect.Dialect` for Youzan's NSQ.

The dialect keeps nsqlookupd's last answer with metainfo about each topic.  Only the metainfo shows whether the topic is
ordered and whether its messages have headers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import (
    Dialect,
    Endpoint,
    Lookup,
    MessageFactory,
    PublishRequest,
    Role,
    RouterHost,
)
from gnsq_lite.errors import NSQError, OptionError
from gnsq_lite.wire.commands import check_body
from gnsq_lite.youzan import commands
from gnsq_lite.youzan.constants import HEADER_EXTRA, TRACE_ID_LENGTH
from gnsq_lite.youzan.headers import check_trace_id, encode_headers
from gnsq_lite.youzan.lookup import EMPTY, TopicLayout, lookup_path, parse_layout, parse_lookupds
from gnsq_lite.youzan.messages import message_factory, parse_trace_reply
from gnsq_lite.youzan.options import YouzanOptions
from gnsq_lite.youzan.partitions import MOVED, partition_of, should_reroute
from gnsq_lite.youzan.router import LeaderRouter

log = logging.getLogger("gnsq_lite.reader")


class YouzanDialect(Dialect):
    """The dialect of Youzan's servers.  Each Reader or Writer needs its own object.

    Args:
        keywords: The fields of :class:`YouzanOptions`.
    """

    name = "youzan"
    lookupds_path = "/listlookup"
    is_routed = True

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, **keywords: Any) -> None:
        try:
            self.options = YouzanOptions(**keywords)
        except TypeError as error:
            raise OptionError("dialect", self.name, str(error)) from None
        self._clock = clock
        self._layouts: dict[str, TopicLayout] = {}
        #: Topics for which _log_absent() has logged a warning.
        self._logged: set[str] = set()
        # The trace ids of a Writer are numbered from its start time in nanoseconds, so the ids of two Writers differ.
        self._trace_ids = itertools.count(int(clock.wall() * 1_000_000_000))

    # -- discovery

    lookup_path = staticmethod(lookup_path)
    parse_lookupds = staticmethod(parse_lookupds)

    def parse_lookup(self, topic: str, role: Role, data: Any) -> Lookup:
        """Parse nsqlookupd's answer, and return an endpoint for each partition to read or to write to (YZ-3)."""
        left_out: dict[str, None] = {}
        layout = self._steady(topic, parse_layout(data, left_out))
        if layout.has_meta or topic not in self._layouts:
            self._layouts[topic] = layout
        endpoints = layout.endpoints()
        chosen = self.options.partitions
        if role == "read" and chosen is not None:
            endpoints = tuple(self._chosen(layout, chosen))
            self._log_absent(topic, layout.partition_num, chosen)
        return Lookup(endpoints, layout, tuple(left_out))

    def _steady(self, topic: str, layout: TopicLayout) -> TopicLayout:
        """Return *layout* with at least the known number of partitions, so that no key moves to another partition.

        An outdated nsqlookupd may return fewer partitions.  A topic loses partitions only if it is created again.
        """
        known = self.layout_of(topic).partition_num
        return replace(layout, partition_num=known) if layout.has_meta and layout.partition_num < known else layout

    def _chosen(self, layout: TopicLayout, chosen: Any) -> list[Endpoint]:
        if layout.has_partitions:
            return [layout.partitions[number] for number in sorted(set(chosen)) if number in layout.partitions]
        return self.named_endpoints(layout.producers)

    def _log_absent(self, topic: str, count: int, chosen: Any) -> None:
        """Log once which chosen partitions the topic does not have yet.  The Reader waits for them (YZ-3)."""
        absent = sorted({number for number in chosen if number >= count})
        if count and absent and topic not in self._logged:
            self._logged.add(topic)
            log.warning("%s has %d partitions: the Reader waits for partitions %s (partitions=)", topic, count, absent)

    def named_endpoints(self, nsqds: Iterable[Endpoint]) -> list[Endpoint]:
        """Return *nsqds*, or, with the option ``partitions``, an endpoint for each chosen partition on each nsqd."""
        chosen = self.options.partitions
        if chosen is None:
            return list(nsqds)
        return [Endpoint(e.host, e.port, number) for e in nsqds for number in sorted(set(chosen))]

    def layout_of(self, topic: str) -> TopicLayout:
        """Return the kept answer about *topic*, or an empty layout if nsqlookupd has not answered."""
        return self._layouts.get(topic, EMPTY)

    # -- consuming

    def check_server(self, version: str, address: str) -> None:
        """Accept every version of nsqd."""

    def identify_extra(self, topic: str, endpoint: Endpoint) -> Mapping[str, Any]:
        """Return the IDENTIFY fields extend_support (YZ-15), desired_tag and ext_filter (YZ-16) for *topic*."""
        options = self.options
        extra: dict[str, Any] = {}
        if topic and self._has_headers(topic):
            extra["extend_support"] = True
        if topic and options.desired_tag is not None:
            extra["desired_tag"] = options.desired_tag
        if topic and options.ext_filter is not None:
            extra["ext_filter"] = options.ext_filter.identify()
        return extra

    def _has_headers(self, topic: str) -> bool:
        wanted = self.options.extend_support
        return self.layout_of(topic).extend_support if wanted is None else wanted

    def is_ordered(self, topic: str) -> bool:
        """Return whether *topic* is consumed in order (YZ-6)."""
        wanted = self.options.ordered
        return self.layout_of(topic).ordered if wanted is None else wanted

    def subscribe(self, topic: str, channel: str, endpoint: Endpoint) -> bytes:
        """Encode SUB_ORDERED (YZ-6), SUB_ADVANCED (YZ-17) or SUB (YZ-3), as the options require.

        Raises OptionError for a start offset if the nsqd leads several partitions of the topic, because nsqd could
        apply the offset to any of these partitions (protocol_v2.go:1034).  Raises it for ``ordered=True`` if the topic
        is not ordered, because SUB_ORDERED makes the channel serial for all its consumers, for good.
        """
        partition, start, layout = endpoint.partition, self.options.start_offset, self.layout_of(topic)
        if self.options.ordered and layout.has_meta and not layout.ordered:
            why = f"{topic} is not ordered: omit the option, or create the topic with orderedmulti=true"
            raise OptionError("ordered", True, why)
        if self.is_ordered(topic):
            return commands.subscribe(topic, channel, partition, b"SUB_ORDERED")
        if start is not None:
            led = layout.led_by(endpoint.address)
            if len(led) > 1:
                why = f"{endpoint} leads {len(led)} partitions of {topic}; set the offset with this nsqd's HTTP API"
                raise OptionError("start_offset", start, why)
        if start is not None or self.options.positions:
            return commands.subscribe_advanced(topic, channel, partition, start)
        return commands.subscribe(topic, channel, partition)

    def message_factory(self, topic: str, endpoint: Endpoint, negotiated: Any) -> MessageFactory:
        """Return a message factory for the message format of the topic and the SUB command (YZ-10, YZ-15)."""
        tail = self.is_ordered(topic) or self.options.positions or self.options.start_offset is not None
        most = self.options.max_decompressed_size if self.options.decompress else None
        return message_factory(endpoint.partition, most, ext=self._has_headers(topic), tail=tail)

    def calls_for_lookup(self, error: NSQError) -> bool:
        """Return whether *error* may mean a new leader, or may pass.

        A former leader may close without an error frame.  An auth server may be away, and a channel may be unknown yet.
        """
        return not error.is_permanent or isinstance(error, MOVED)

    # -- publishing

    @property
    def batch_extra(self) -> int:
        """Bytes of the trace id of each message, or 0 without the option ``trace``."""
        return TRACE_ID_LENGTH if self.options.trace else 0

    def router(self, host: RouterHost, nsqds: Sequence[Endpoint]) -> LeaderRouter:
        """Make the router that sends each publish to the leader of its partition."""
        return LeaderRouter(host, self, self._clock, nsqds, self.options)

    def check_place(self, key: bytes | None, partition: int | None) -> None:
        """Raise OptionError for an invalid partition, a key that cannot be hashed, or a key with a partition."""
        if partition is not None:
            commands.check_partition(partition)
            if key is not None:
                raise OptionError("partition", partition, "cannot be given together with a key")
        elif key is not None and self.options.key_mapping == "java":  # "go" takes any bytes
            partition_of(key, 1, "java")

    def check(self, request: PublishRequest, most: int) -> PublishRequest:
        """Check *request*, and return it with encoded headers.  Raises OptionError, MessageTooLarge.

        nsqd counts headers and trace ids as parts of a message.  nsqdserver/protocol_v2.go:1578
        """
        if request.defer:
            raise OptionError("defer", request.defer, "Youzan's NSQ cannot defer a publish (it has no DPUB)")
        ids: Iterable[int | None] = [check_trace_id(each) for each in request.trace_ids or ()]
        if request.trace_ids is None:
            ids = itertools.repeat(None if request.trace_id is None else check_trace_id(request.trace_id))
        if request.headers is not None:
            headers = request.headers if request.batch else [request.headers]
            encoded = [self._encoded(header, trace_id) for header, trace_id in zip(headers, ids, strict=False)]
            request = replace(request, encoded_headers=encoded, trace_ids=None)
        traced = self.options.trace or request.trace_id is not None or request.trace_ids is not None
        beside: Iterable[int] = itertools.repeat(TRACE_ID_LENGTH if traced else 0)
        if request.encoded_headers is not None:
            beside = (HEADER_EXTRA + len(header) for header in request.encoded_headers)
        for body, extra in zip(request.bodies, beside, strict=False):
            check_body(body, most - extra)
        return request

    def _encoded(self, headers: Mapping[str, Any] | None, trace_id: int | None) -> bytes:
        if trace_id is None and self.options.trace:
            trace_id = next(self._trace_ids)
        if headers is None:
            return b"" if trace_id is None else encode_headers({}, trace_id)
        return encode_headers(headers, trace_id)

    def encode(self, request: PublishRequest, endpoint: Endpoint, route: Lookup | None) -> bytes:
        """Encode PUB, PUB_TRACE, PUB_EXT or their batch form (YZ-4, YZ-9, YZ-15).  Raises OptionError.

        A new trace id is kept in *request*.  Then all attempts have the same id, and consumers recognize duplicates.
        """
        topic, partition, headers = request.topic, endpoint.partition, request.encoded_headers
        trace_id, trace_ids = self._trace_id(request), request.trace_ids
        request.trace_id = trace_id
        if not request.batch:
            header = None if headers is None else headers[0]
            return commands.publish(topic, request.bodies[0], partition, trace_id=trace_id, header=header)
        if headers is not None:
            self._check_takes_headers(request, route)
        if trace_id is not None:
            trace_ids = [trace_id] * len(request.bodies)
        return commands.multipublish(topic, request.bodies, partition, trace_ids=trace_ids, headers=headers)

    def _check_takes_headers(self, request: PublishRequest, route: Lookup | None) -> None:
        """Raise OptionError if the topic is no ext topic.  nsqd would refuse the MPUB_EXT and leave its rest unread."""
        layout = route.meta if route is not None else None
        if isinstance(layout, TopicLayout) and layout.has_meta and not layout.extend_support:
            raise OptionError("headers", request.encoded_headers, f"{request.topic} is not an ext topic: omit them")

    def _trace_id(self, request: PublishRequest) -> int | None:
        if request.trace_id is not None or request.encoded_headers is not None or request.trace_ids is not None:
            return request.trace_id
        return next(self._trace_ids) if self.options.trace else None

    receipt = staticmethod(parse_trace_reply)
    should_reroute = staticmethod(should_reroute)
