"""nsqd's HTTP API (nsqd/http.go @v1.3.0)."""

from __future__ import annotations

import socket
from collections.abc import Callable

from gnsq_lite.broker import stats
from gnsq_lite.broker.commands import CommandError, CommandReader
from gnsq_lite.broker.http import App, HTTPFailure, Request, topic_and_channel
from gnsq_lite.broker.nsqd import Nsqd
from gnsq_lite.broker.options import NSQD_VERSION
from gnsq_lite.broker.topics import PutRefused, Topic, Topics, is_valid_name

_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def nsqd_app(nsqd: Nsqd, *, encrypted: bool = True) -> App:
    """Return the WSGI application that serves *nsqd*.

    If *encrypted* is false and ``tls_required`` is True, the application refuses all requests.
    """
    app = App("gnsq_lite broker (in memory)")
    api = _Api(nsqd)
    if not encrypted and nsqd.options.tls_required is True:
        app.before = lambda request: (403, "application/json; charset=utf-8", _tls_required(nsqd.https_port))
    app.add("GET", "/ping", lambda request: "OK", plain=True)
    app.add("GET", "/info", api.info)
    app.add("GET", "/stats", api.stats)
    app.add("POST", "/pub", api.pub)
    app.add("POST", "/mpub", api.mpub)
    app.add("POST", "/topic/create", api.create_topic)
    app.add("POST", "/topic/delete", api.delete_topic)
    app.add("POST", "/topic/empty", api.empty_topic)
    app.add("POST", "/topic/pause", api.pause_topic(True))
    app.add("POST", "/topic/unpause", api.pause_topic(False))
    app.add("POST", "/channel/create", api.create_channel)
    app.add("POST", "/channel/delete", api.delete_channel)
    app.add("POST", "/channel/empty", api.empty_channel)
    app.add("POST", "/channel/pause", api.pause_channel(True))
    app.add("POST", "/channel/unpause", api.pause_channel(False))
    return app


def _tls_required(https_port: int) -> bytes:
    return f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'.encode()


class _Api:
    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd, self._options = nsqd, nsqd.options

    @property
    def _topics(self) -> Topics:
        return self._nsqd.topics

    def info(self, request: Request) -> object:
        options = self._options
        return {
            "version": NSQD_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self._nsqd.http_port,
            "tcp_port": self._nsqd.tcp_port,
            "start_time": int(self._nsqd.started_at),
            "max_heartbeat_interval": round(options.max_heartbeat_interval * 1e9),
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": round(options.max_output_buffer_timeout * 1e9),
            "max_deflate_level": options.max_deflate_level,
        }

    def stats(self, request: Request) -> object:
        clients = _BOOLS.get(request.get("include_clients"), True)
        memory = _BOOLS.get(request.get("include_mem"), True)
        return stats.collect(self._nsqd, request.get("topic"), request.get("channel"), clients=clients, memory=memory)

    # -- publishing -------------------------------------------------------------------------------------------------

    def _topic_to_publish(self, request: Request) -> Topic:
        name = request.get("topic", "MISSING_ARG_TOPIC")
        if not is_valid_name(name):
            raise HTTPFailure(400, "INVALID_TOPIC")
        return self._topics.get(name)

    def pub(self, request: Request) -> str:
        limit = self._options.max_msg_size
        if request.content_length > limit:
            raise HTTPFailure(413, "MSG_TOO_BIG")
        body = request.read(limit + 1)
        if len(body) > limit:
            raise HTTPFailure(413, "MSG_TOO_BIG")
        if not body:
            raise HTTPFailure(400, "MSG_EMPTY")
        topic = self._topic_to_publish(request)
        return self._put(topic, [body], self._defer(request))

    def _defer(self, request: Request) -> float:
        if "defer" not in request.params:
            return 0.0
        text = request.get("defer")
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise HTTPFailure(400, "INVALID_DEFER")
        seconds = int(text) / 1000
        if not 0 <= seconds <= self._options.max_req_timeout:
            raise HTTPFailure(400, "INVALID_DEFER")
        return seconds

    def mpub(self, request: Request) -> str:
        limit = self._options.max_body_size
        if request.content_length > limit:
            raise HTTPFailure(413, "BODY_TOO_BIG")
        topic = self._topic_to_publish(request)
        binary = "binary" in request.params and _BOOLS.get(request.get("binary"), True)
        body = request.read(limit + 1)
        bodies = self._binary_bodies(body) if binary else self._line_bodies(body)
        return self._put(topic, bodies)

    def _binary_bodies(self, body: bytes) -> list[bytes]:
        """Parse the body of a binary /mpub, which has MPUB's format.  Raises HTTPFailure with nsqd's error text."""
        reader = CommandReader(self._options.max_msg_size, self._options.max_body_size)
        reader.feed(b"MPUB t\n" + (1).to_bytes(4, "big") + body)
        try:
            command = reader.next()
            if command is None:
                reader.at_end()
        except CommandError as error:
            raise HTTPFailure(413, error.code[2:]) from None
        return (command.bodies or []) if command is not None else []

    def _line_bodies(self, body: bytes) -> list[bytes]:
        if len(body) > self._options.max_body_size:
            raise HTTPFailure(413, "BODY_TOO_BIG")
        bodies = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._options.max_msg_size for line in bodies):
            raise HTTPFailure(413, "MSG_TOO_BIG")
        return bodies

    def _put(self, topic: Topic, bodies: list[bytes], defer: float = 0.0) -> str:
        try:
            self._topics.publish(topic, bodies, defer)
        except PutRefused:
            raise HTTPFailure(503, "EXITING") from None
        return "OK"

    # -- topics -----------------------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> None:
        self._topic_to_publish(request)

    def delete_topic(self, request: Request) -> None:
        if not self._topics.delete_topic(request.get("topic", "MISSING_ARG_TOPIC")):
            raise HTTPFailure(404, "TOPIC_NOT_FOUND")

    def _topic(self, name: str) -> Topic:
        topic = self._topics.by_name.get(name)
        if topic is None:
            raise HTTPFailure(404, "TOPIC_NOT_FOUND")
        return topic

    def empty_topic(self, request: Request) -> None:
        name = request.get("topic", "MISSING_ARG_TOPIC")
        if not is_valid_name(name):
            raise HTTPFailure(400, "INVALID_TOPIC")
        self._topic(name).empty()

    def pause_topic(self, paused: bool) -> Callable[[Request], None]:
        def handle(request: Request) -> None:
            topic = self._topic(request.get("topic", "MISSING_ARG_TOPIC"))
            self._topics.set_topic_paused(topic, paused)

        return handle

    # -- channels ---------------------------------------------------------------------------------------------------

    def create_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(request)
        self._topics.get_channel(self._topic(topic), channel)

    def delete_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(request)
        if not self._topics.delete_channel(self._topic(topic), channel):
            raise HTTPFailure(404, "CHANNEL_NOT_FOUND")

    def empty_channel(self, request: Request) -> None:
        topic, name = topic_and_channel(request)
        channel = self._topic(topic).channels.get(name)
        if channel is None:
            raise HTTPFailure(404, "CHANNEL_NOT_FOUND")
        channel.empty()

    def pause_channel(self, paused: bool) -> Callable[[Request], None]:
        def handle(request: Request) -> None:
            topic, name = topic_and_channel(request)
            channel = self._topic(topic).channels.get(name)
            if channel is None:
                raise HTTPFailure(404, "CHANNEL_NOT_FOUND")
            if paused:
                channel.pause()
            else:
                channel.unpause()

        return handle
