"""The HTTP APIs of Youzan's nsqlookupd and nsqd, as far as clients and tests use them.

Source: nsqlookupd/http.go, nsqdserver/http.go @0.3.7-HA.1.13.0.  An answer is bare where the request accepts
"application/vnd.nsq; version=1.0", else in the older wrapper, in which every error is HTTP 500.
"""

from __future__ import annotations

from typing import Any

from gnsq_lite.broker import gojson
from gnsq_lite.broker.http import App, HTTPFailure, Request
from gnsq_lite.broker.topics import is_valid_name
from tests.youzan_broker.cluster import Cluster, ClusterRefused, Seat
from tests.youzan_broker.log import PartitionChannel
from tests.youzan_broker.nsqd import Directory, YouzanNsqd
from tests.youzan_broker.session import YOUZAN_VERSION

_JSON = "application/json; charset=utf-8"
_V1 = "vnd.nsq; version=1.0"


class YouzanApp(App):
    """Answers in two forms; routes of :meth:`always_bare` in one."""

    def __init__(self, server_name: str) -> None:
        super().__init__(server_name)
        self._bare: set[str] = set()

    def always_bare(self, *paths: str) -> None:
        """Never wrap the answers of *paths*."""
        self._bare.update(paths)

    def _answer(self, request: Request) -> tuple[int, bytes, list[tuple[str, str]]]:
        methods = self._routes.get(request.path)
        handler = None if methods is None else methods.get(request.method)
        wrapped = _V1 not in request.accept and request.path not in self._bare
        if handler is None or handler in self._plain or not wrapped:
            return super()._answer(request)
        try:
            body: dict[str, Any] = {"status_code": 200, "status_txt": "OK", "data": handler(request)}
        except HTTPFailure as failure:
            body = {"status_code": 500, "status_txt": failure.text, "data": None}
        return body["status_code"], gojson.encode(body), [("Content-Type", _JSON)]


def lookupd_app(cluster: Cluster, directory: Directory) -> YouzanApp:
    """Return the application of an nsqlookupd."""
    api = _LookupdApi(cluster, directory)
    app = YouzanApp("gnsq_lite broker (in memory)")
    app.add("GET", "/ping", lambda request: "OK", plain=True)
    app.add("GET", "/info", lambda request: {"version": YOUZAN_VERSION, "ha_support": True})
    app.add("GET", "/lookup", api.lookup)
    app.add("GET", "/listlookup", api.listlookup)
    app.add("GET", "/topics", api.topics)
    app.add("GET", "/channels", api.channels)
    app.add("GET", "/nodes", api.nodes)
    app.add("POST", "/topic/create", api.create_topic)
    app.add("POST", "/topic/delete", api.delete_topic)
    app.add("POST", "/topic/partition/move", api.move)
    app.add("POST", "/topic/meta/update", api.update_meta)
    app.add("POST", "/channel/create", api.create_channel)
    app.always_bare("/topic/create", "/topic/delete", "/topic/partition/move", "/topic/meta/update", "/channel/create")
    return app


class _LookupdApi:
    def __init__(self, cluster: Cluster, directory: Directory) -> None:
        self._cluster, self._directory = cluster, directory

    def lookup(self, request: Request) -> object:
        name = request.get("topic", "MISSING_ARG_TOPIC")
        access = request.get("access") or "r"
        if access not in ("r", "w"):
            raise HTTPFailure(400, "INVALID_ACCESS_MODE")
        topic = self._cluster.topics.get(name)
        meta = request.get("metainfo") == "true"
        if topic is None:
            if access == "w":
                raise HTTPFailure(404, "Key not found")
            empty: dict[str, Any] = {"channels": [], "partitions": {}, "producers": []}
            return {**empty, "meta": _no_meta()} if meta else empty
        only = request.get("partition")
        partitions = {}
        for number, seat in enumerate(topic.seats):
            shown = seat.leader is not None and (access == "r" or seat.writable)
            if shown and only in ("", str(number)):
                partitions[str(number)] = self._directory.introduce(seat.leader)
        nodes = {peer["distributed_id"]: peer for peer in partitions.values()}
        answer: dict[str, Any] = {"channels": topic.channels()}
        if meta:
            answer["meta"] = topic.meta()
        return {**answer, "partitions": partitions, "producers": list(nodes.values())}

    def listlookup(self, request: Request) -> object:
        nodes = self._directory.lookupds()
        return {"lookupdleader": nodes[0], "lookupdnodes": nodes}

    def topics(self, request: Request) -> object:
        names = list(self._cluster.topics)
        if request.get("metaInfo") != "true":
            return {"topics": names}
        infos = []
        for topic in self._cluster.topics.values():
            info = {key: value for key, value in topic.meta().items() if key not in ("partition_num", "replica")}
            infos.append({"topic_name": topic.name, **info, "registered_channels": topic.channels()})
        return {"topics": names, "meta_info": infos}

    def channels(self, request: Request) -> object:
        topic = self._cluster.topics.get(request.get("topic", "MISSING_ARG_TOPIC"))
        return {"channels": [] if topic is None else topic.channels()}

    def nodes(self, request: Request) -> object:
        listed = []
        for node in sorted(self._cluster.up):
            led = {name: [str(n) for n in self._cluster.led_by(name, node)] for name in self._cluster.topics}
            led = {name: numbers for name, numbers in led.items() if numbers}
            more = {"tombstones": [False] * len(led), "topics": list(led), "partitions": led}
            listed.append({**self._directory.introduce(node), **more})
        return {"producers": listed}

    def create_topic(self, request: Request) -> None:
        name = request.get("topic", "MISSING_ARG_TOPIC")
        if not is_valid_name(name):
            raise HTTPFailure(400, "INVALID_ARG_TOPIC")
        partitions = _number(request, "partition_num", "INVALID_ARG_TOPIC_PARTITION_NUM")
        replica = _number(request, "replicator", "INVALID_ARG_TOPIC_REPLICATOR")
        flags = {"ext": "extend", "ordered": "orderedmulti", "disable_channel_auto_create": ""}
        kinds = {kind: request.get(flag or kind) == "true" for kind, flag in flags.items()}
        try:
            self._cluster.create(name, partitions, replica, **kinds)
        except ClusterRefused as error:
            raise HTTPFailure(400, str(error)) from None

    def delete_topic(self, request: Request) -> None:
        try:
            self._cluster.delete(request.get("topic", "MISSING_ARG_TOPIC"))
        except ClusterRefused as error:
            raise HTTPFailure(404, str(error)) from None

    def move(self, request: Request) -> None:
        name = request.get("topic", "MISSING_ARG_TOPIC")
        number = _number(request, "partition", "INVALID_ARG_TOPIC_PARTITION")
        node = self._directory.number_of(request.get("move_to", "MISSING_ARG_MOVE_TO"))
        try:
            self._cluster.move(name, number, -1 if node is None else node)
        except ClusterRefused as error:
            raise HTTPFailure(400, str(error)) from None

    def update_meta(self, request: Request) -> None:
        if request.get("upgradeext") == "true":
            self._directory.upgrade(request.get("topic", "MISSING_ARG_TOPIC"))

    def create_channel(self, request: Request) -> None:
        topic = self._cluster.topics.get(request.get("topic", "MISSING_ARG_TOPIC"))
        channel = request.get("channel", "MISSING_ARG_CHANNEL")
        if topic is None:
            raise HTTPFailure(404, "Key not found")
        if not topic.disable_channel_auto_create:
            raise HTTPFailure(400, f"channel auto create NOT disabled in topic {topic.name}")
        for seat in topic.seats:
            seat.partition.channel(channel)


def nsqd_app(nsqd: YouzanNsqd) -> YouzanApp:
    """Return the application of an nsqd."""
    api = _NsqdApi(nsqd)
    app = YouzanApp("gnsq_lite broker (in memory)")
    app.add("GET", "/ping", lambda request: "OK", plain=True)
    app.add("GET", "/info", lambda request: {"version": YOUZAN_VERSION, "ha_support": True, **nsqd.ports()})
    app.add("GET", "/stats", api.stats)
    app.add("GET", "/message/get", api.get_message)
    app.add("POST", "/pub", api.publish)
    app.add("POST", "/channel/create", api.create_channel)
    app.add("POST", "/channel/delete", api.delete_channel)
    app.add("POST", "/channel/setoffset", api.set_offset)
    app.add("POST", "/channel/setorder", api.set_order)
    return app


class _NsqdApi:
    def __init__(self, nsqd: YouzanNsqd) -> None:
        self._nsqd = nsqd

    def _seat(self, request: Request) -> Seat:
        name, cluster, node = request.get("topic", "MISSING_ARG_TOPIC"), self._nsqd.cluster, self._nsqd.number
        text = request.get("partition") or str(next(iter(cluster.led_by(name, node)), -1))
        seat = cluster.seat(name, int(text)) if text.isdigit() else None
        if seat is None or node not in seat.replicas:
            raise HTTPFailure(404, "E_TOPIC_NOT_EXIST")
        if seat.leader != node:
            raise HTTPFailure(400, "E_FAILED_ON_NOT_LEADER")
        return seat

    def publish(self, request: Request) -> object:
        seat = self._seat(request)
        body = request.read(self._nsqd.options.max_msg_size + 1)
        if not body:
            raise HTTPFailure(406, "MSG_EMPTY")
        if len(body) > self._nsqd.options.max_msg_size:
            raise HTTPFailure(413, "MSG_TOO_BIG")
        seat.partition.put([self._nsqd.cluster.message(body)], [0])
        return "OK"

    def create_channel(self, request: Request) -> None:
        self._seat(request).partition.channel(request.get("channel", "MISSING_ARG_CHANNEL"))

    def delete_channel(self, request: Request) -> None:
        self._seat(request).partition.delete_channel(request.get("channel", "MISSING_ARG_CHANNEL"))

    def _channel(self, request: Request) -> PartitionChannel:
        channel = self._seat(request).partition.channels.get(request.get("channel", "MISSING_ARG_CHANNEL"))
        if channel is None:
            raise HTTPFailure(404, "CHANNEL_NOT_FOUND")
        return channel

    def set_order(self, request: Request) -> None:
        self._channel(request).ordered = request.get("order") == "true"

    def set_offset(self, request: Request) -> None:
        seat, channel = self._seat(request), self._channel(request)
        text = request.read(1000).decode("utf-8", "replace")
        kind, _, value = text.partition(":")
        if not value.lstrip("-").isdigit():
            raise HTTPFailure(400, f"invalid consume offset:{text}")
        try:
            channel.start_from(seat.partition.messages_from(kind, int(value)))
        except ValueError as error:
            raise HTTPFailure(400, str(error)) from None

    def get_message(self, request: Request) -> object:
        kind, position = request.get("search_mode"), request.get("search_pos")
        if kind not in ("count", "virtual_offset"):
            raise HTTPFailure(400, "search mode should be one of id/count/virtual_offset")
        if not position.isdigit():
            raise HTTPFailure(400, f"strconv.ParseInt: parsing {gojson.encode(position).decode()}: invalid syntax")
        found = self._seat(request).partition.numbered(kind, int(position))
        if found is None:
            raise HTTPFailure(500, "INTERNAL_ERROR")
        number, message = found
        return {
            "id": int.from_bytes(message.id[:8], "big"),
            "trace_id": int.from_bytes(message.id[8:], "big"),
            "body": message.body.decode("utf-8", "replace"),
            "timestamp": message.timestamp_ns,
            "attempts": 0,
            "offset": message.offset,
            "queue_cnt_index": number,
            "ext": (message.header or b"").decode("utf-8", "replace"),
        }

    def stats(self, request: Request) -> object:
        wanted, cluster = request.get("topic"), self._nsqd.cluster
        shown = []
        for topic in cluster.topics.values():
            for number, seat in enumerate(topic.seats):
                if self._nsqd.number in seat.replicas and wanted in ("", topic.name):
                    shown.append(_topic_stats(topic.name, number, seat, seat.leader == self._nsqd.number))
        return {"version": YOUZAN_VERSION, "health": "OK", "topics": shown}


def _topic_stats(name: str, number: int, seat: Seat, leads: bool) -> dict[str, Any]:
    partition = seat.partition
    channels = [
        {
            "channel_name": channel.name,
            "depth": channel.depth,
            "in_flight_count": len(channel.in_flight),
            "deferred_count": len(channel.deferred),
            "message_count": channel.message_count,
            "requeue_count": channel.requeue_count,
            "timeout_count": channel.timeout_count,
            "client_num": len(channel.clients),
        }
        for channel in partition.channels.values()
    ]
    kinds = {"is_leader": leads, "is_multi_ordered": partition.ordered, "is_ext": partition.ext}
    places = {"backend_start": partition.begin, "backend_depth": partition.end}
    counts = {"message_count": partition.removed + len(partition.log), "channels": channels}
    return {"topic_name": name, "topic_partition": str(number), **kinds, **places, **counts}


def _no_meta() -> dict[str, Any]:
    flags = dict.fromkeys(("extend_support", "ordered", "multi_part", "disable_channel_auto_create"), False)
    return {"partition_num": 0, "replica": 0, **flags}


def _number(request: Request, name: str, wrong: str) -> int:
    text = request.get(name, wrong)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise HTTPFailure(400, wrong)
    return int(text)
