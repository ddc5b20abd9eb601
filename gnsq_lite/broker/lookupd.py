"""The embedded nsqlookupd.  It serves the HTTP API; the broker's nsqds register by method calls instead of TCP."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

from gnsq_lite.broker.http import App, HTTPFailure, HTTPListener, Request, topic_and_channel
from gnsq_lite.broker.listener import ReservedPorts
from gnsq_lite.broker.options import NSQD_VERSION, BrokerOptions
from gnsq_lite.broker.registrations import Peer, Registration, RegistrationDB
from gnsq_lite.broker.topics import is_valid_name
from gnsq_lite.clock import Clock


class Lookupd:
    """One nsqlookupd.  Call all methods in the broker's thread."""

    def __init__(self, options: BrokerOptions, clock: Clock, host: str, http_port: int) -> None:
        self.http_port = http_port
        self.db = RegistrationDB(clock, options.inactive_producer_timeout, options.tombstone_lifetime)
        self._host = host
        self._http: HTTPListener | None = None
        self.reserved = ReservedPorts()
        self.app = lookupd_app(self.db)

    @property
    def running(self) -> bool:
        """Whether the nsqlookupd listens."""
        return self._http is not None

    def start(self) -> None:
        """Listen.  If this raises OSError, no port is open."""
        self.reserved.release()
        self._http = HTTPListener(self._host, self.http_port, self.app)
        self.http_port = self._http.port
        self._http.start()

    def stop(self) -> None:
        """Stop listening, but keep the registrations, because a real nsqd would register again after the restart."""
        if self._http is None:
            return
        self._http.close()
        self._http = None
        self.reserved.reserve(self._host, [self.http_port])

    def sockets(self) -> list[Any]:
        """Return every open socket.  A forked child closes its copies."""
        return [*self.reserved.sockets(), *(self._http.sockets() if self._http is not None else ())]


class DirectPeer:
    """Registers an nsqd with an nsqlookupd of the same broker by method calls, without a connection."""

    def __init__(self, db: RegistrationDB, peer: Peer) -> None:
        self._db, self._peer = db, peer
        db.add_peer(peer)

    def registered(self, topic: str, channel: str | None) -> None:
        """Register a new topic or channel."""
        self._db.register(self._peer, topic, channel)

    def unregistered(self, topic: str, channel: str | None) -> None:
        """Unregister a deleted topic or channel."""
        self._db.unregister(self._peer, topic, channel)

    def channels_of(self, topic: str) -> Iterable[str]:
        """Return the channels that are registered for *topic*."""
        return [key.subkey for key in self._db.find("channel", topic, "*")]

    def ping(self) -> None:
        """Record that the nsqd is alive."""
        self._peer.last_update = self._db.clock.now()

    def leave(self) -> None:
        """Remove all registrations of the nsqd, because it stops."""
        self._db.remove_peer(self._peer)


def peer_entry(number: int, address: str, tcp_port: int, http_port: int) -> Peer:
    """Return nsqlookupd's entry for the broker's nsqd *number*."""
    remote = f"127.0.0.1:{tcp_port}"
    return Peer(f"{number}:{remote}", remote, socket.gethostname(), address, tcp_port, http_port, NSQD_VERSION)


def lookupd_app(db: RegistrationDB) -> App:
    """Return the WSGI application that serves *db* (nsqlookupd/http.go @v1.3.0)."""
    api = _Api(db)
    app = App("gnsq_lite broker (in memory)")
    app.add("GET", "/ping", lambda request: "OK", plain=True)
    app.add("GET", "/info", lambda request: {"version": NSQD_VERSION})
    app.add("GET", "/debug", api.debug)
    app.add("GET", "/lookup", api.lookup)
    app.add("GET", "/topics", api.topics)
    app.add("GET", "/channels", api.channels)
    app.add("GET", "/nodes", api.nodes)
    app.add("POST", "/topic/create", api.create_topic)
    app.add("POST", "/topic/delete", api.delete_topic)
    app.add("POST", "/channel/create", api.create_channel)
    app.add("POST", "/channel/delete", api.delete_channel)
    app.add("POST", "/topic/tombstone", api.tombstone)
    return app


class _Api:
    def __init__(self, db: RegistrationDB) -> None:
        self._db = db

    def lookup(self, request: Request) -> object:
        topic = request.get("topic", "MISSING_ARG_TOPIC")
        if not self._db.find("topic", topic):
            raise HTTPFailure(404, "TOPIC_NOT_FOUND")
        return {
            "channels": [key.subkey for key in self._db.find("channel", topic, "*")],
            "producers": [p.peer.as_json() for p in self._db.active(self._db.producers("topic", topic))],
        }

    def topics(self, request: Request) -> object:
        return {"topics": [key.key for key in self._db.find("topic", "*")]}

    def channels(self, request: Request) -> object:
        topic = request.get("topic", "MISSING_ARG_TOPIC")
        return {"channels": [key.subkey for key in self._db.find("channel", topic, "*")]}

    def nodes(self, request: Request) -> object:
        now, lifetime = self._db.clock.now(), self._db.tombstone_lifetime
        nodes: list[dict[str, Any]] = []
        for producer in self._db.active(self._db.producers("client"), tombstones=False):
            peer = producer.peer
            topics = [key.key for key in self._db.of_peer(peer.id) if key.category == "topic"]
            tombstones = [
                any(p.peer is peer and p.is_tombstoned(now, lifetime) for p in self._db.producers("topic", topic))
                for topic in topics
            ]
            nodes.append({**peer.as_json(), "tombstones": tombstones, "topics": topics})
        return {"producers": nodes}

    def create_topic(self, request: Request) -> None:
        topic = request.get("topic", "MISSING_ARG_TOPIC")
        if not is_valid_name(topic):
            raise HTTPFailure(400, "INVALID_ARG_TOPIC")
        self._db.add(Registration("topic", topic))

    def delete_topic(self, request: Request) -> None:
        topic = request.get("topic", "MISSING_ARG_TOPIC")
        for key in [*self._db.find("channel", topic, "*"), *self._db.find("topic", topic)]:
            self._db.remove(key)

    def create_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(request)
        self._db.add(Registration("channel", topic, channel))
        self._db.add(Registration("topic", topic))

    def delete_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(request)
        keys = self._db.find("channel", topic, channel)
        if not keys:
            raise HTTPFailure(404, "CHANNEL_NOT_FOUND")
        for key in keys:
            self._db.remove(key)

    def tombstone(self, request: Request) -> None:
        topic = request.get("topic", "MISSING_ARG_TOPIC")
        node = request.get("node", "MISSING_ARG_NODE")
        for producer in self._db.producers("topic", topic):
            if f"{producer.peer.broadcast_address}:{producer.peer.http_port}" == node:
                producer.tombstoned_at = self._db.clock.now()

    def debug(self, request: Request) -> object:
        data: dict[str, list[dict[str, Any]]] = {}
        for key, producers in self._db.items():
            for producer in producers:
                entry = {"id": producer.peer.id, **producer.peer.as_json()}
                del entry["remote_address"]
                entry["last_update"] = int(producer.peer.last_update * 1e9)
                entry["tombstoned"] = producer.tombstoned_at is not None
                entry["tombstoned_at"] = int((producer.tombstoned_at or 0.0) * 1e9)
                data.setdefault(":".join(key), []).append(entry)
        return data
