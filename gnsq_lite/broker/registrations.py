"""nsqlookupd's database of the topics and channels of each nsqd (nsqlookupd/registration_db.go @v1.3.0)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gnsq_lite.clock import Clock


class Registration(NamedTuple):
    """Key of the database: ("client", "", ""), ("topic", T, "") or ("channel", T, C)."""

    category: str
    key: str = ""
    subkey: str = ""


@dataclass
class Peer:
    """An nsqd that is known to nsqlookupd."""

    id: str
    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    last_update: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the peer's entry in /lookup."""
        return {
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
        }


@dataclass
class Registrant:
    """A peer of one registration.  ``tombstoned_at`` is the time of the peer's tombstone for this registration."""

    peer: Peer
    tombstoned_at: float | None = None

    def is_tombstoned(self, now: float, lifetime: float) -> bool:
        """Whether lookups omit the peer because of the tombstone."""
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime


@dataclass
class RegistrationDB:
    """Registrations and their producers, in order of registration."""

    clock: Clock
    inactive_producer_timeout: float = 300.0
    tombstone_lifetime: float = 45.0
    _map: dict[Registration, dict[str, Registrant]] = field(default_factory=dict)

    def add(self, key: Registration) -> None:
        """Add the registration *key* if it is missing."""
        self._map.setdefault(key, {})

    def add_producer(self, key: Registration, peer: Peer) -> None:
        """Register *peer* under *key*.  A peer that is registered already keeps its tombstone."""
        self._map.setdefault(key, {}).setdefault(peer.id, Registrant(peer))

    def remove_producer(self, key: Registration, peer_id: str) -> int:
        """Remove a peer from *key*, and return the number of remaining peers.  *key* stays even without peers."""
        producers = self._map.get(key, {})
        producers.pop(peer_id, None)
        return len(producers)

    def remove(self, key: Registration) -> None:
        """Remove *key* and all its producers."""
        self._map.pop(key, None)

    def find(self, category: str, key: str, subkey: str = "") -> list[Registration]:
        """Return the matching registrations.  "*" matches anything."""
        if "*" not in (key, subkey):
            exact = Registration(category, key, subkey)
            return [exact] if exact in self._map else []
        return [r for r in self._map if r.category == category and key in ("*", r.key) and subkey in ("*", r.subkey)]

    def producers(self, category: str, key: str = "", subkey: str = "") -> list[Registrant]:
        """Return the producers under one exact key."""
        return list(self._map.get(Registration(category, key, subkey), {}).values())

    def of_peer(self, peer_id: str) -> list[Registration]:
        """Return the registrations of a peer."""
        return [key for key, producers in self._map.items() if peer_id in producers]

    def active(self, producers: list[Registrant], *, tombstones: bool = True) -> list[Registrant]:
        """Return producers that are not inactive.  If *tombstones* is true, omit tombstoned producers too."""
        now = self.clock.now()
        lifetime = self.tombstone_lifetime if tombstones else 0.0
        return [
            p
            for p in producers
            if now - p.peer.last_update <= self.inactive_producer_timeout and not p.is_tombstoned(now, lifetime)
        ]

    def items(self) -> Iterator[tuple[Registration, list[Registrant]]]:
        """Yield all registrations with their producers, for /debug."""
        for key, producers in self._map.items():
            yield key, list(producers.values())

    # -- commands of nsqds ------------------------------------------------------------------------------------------

    def add_peer(self, peer: Peer) -> None:
        """Add a new peer, as IDENTIFY does."""
        peer.last_update = self.clock.now()
        self.add_producer(Registration("client"), peer)

    def register(self, peer: Peer, topic: str, channel: str | None = None) -> None:
        """Register a topic or a channel of a peer."""
        if channel:
            self.add_producer(Registration("channel", topic, channel), peer)
        self.add_producer(Registration("topic", topic), peer)

    def unregister(self, peer: Peer, topic: str, channel: str | None = None) -> None:
        """Unregister a topic or a channel of a peer.  Remove an ephemeral topic or channel without producers."""
        if channel:
            keys, name = [Registration("channel", topic, channel)], channel
        else:
            for key in self.find("channel", topic, "*"):
                self.remove_producer(key, peer.id)
            keys, name = [Registration("topic", topic)], topic
        for key in keys:
            if self.remove_producer(key, peer.id) == 0 and name.endswith("#ephemeral"):
                self.remove(key)

    def remove_peer(self, peer: Peer) -> None:
        """Remove a peer and its registrations."""
        for key in self.of_peer(peer.id):
            self.remove_producer(key, peer.id)
