"""One nsqd of the broker: listeners, sessions and topics, run by the loop of the broker's thread."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterable
from typing import Any

import gevent

from gnsq_lite.broker.http import HTTPListener
from gnsq_lite.broker.lookupd import DirectPeer, Lookupd, own_peer
from gnsq_lite.broker.nsqd_http import nsqd_app
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.session import Session
from gnsq_lite.broker.tcp import Connection, accept, listen
from gnsq_lite.broker.tls import server_context
from gnsq_lite.broker.topics import Saved, Topics
from gnsq_lite.clock import Clock

_READ = 1
_PING_INTERVAL = 15.0  # nsqd/lookup.go:81 @v1.3.0
_ACCEPTS_PER_TURN = 64


class Nsqd:
    """One nsqd.  All methods belong to the broker's thread."""

    session_class = Session

    def __init__(
        self,
        number: int,
        options: BrokerOptions,
        clock: Clock,
        host: str,
        ports: tuple[int, int],
        lookupds: Iterable[Lookupd],
    ) -> None:
        self.number, self.options, self.clock = number, options, clock
        self.tcp_port, self.http_port = ports
        self.started_at = 0.0
        self.authorizer = None
        self.settings: dict[str, Any] = _settings(options)
        self.topics = Topics(options, clock)
        self._host = host
        self._lookupds = list(lookupds)
        self._peers: list[DirectPeer] = []
        self._saved: Saved = {}
        self._context = server_context(options)
        self._sessions: dict[Connection, Session] = {}
        self._connections: dict[Connection, None] = {}
        self._next_client = 0
        self._to_flush: list[Session] = []
        self._turn_scheduled = False
        self._listener: socket.socket | None = None
        self._http: HTTPListener | None = None
        self._watchers: list[Any] = []
        self._loop: Any = None

    # -- lifecycle --------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._listener is not None

    def start(self) -> None:
        """Listen, register, and take up the topics of an earlier run.  Raises OSError."""
        self._loop = gevent.get_hub().loop
        self._listener = listen(self._host, self.tcp_port)
        self.tcp_port = self._listener.getsockname()[1]
        try:
            self._http = HTTPListener(self._host, self.http_port, nsqd_app(self))
        except BaseException:
            self._listener.close()
            self._listener = None
            raise
        self.http_port = self._http.port
        self.started_at = self.clock.wall()
        peer = own_peer(self.number, self.options.broadcast_address, self.tcp_port, self.http_port)
        self._peers = [DirectPeer(lookupd.db, dataclasses.replace(peer)) for lookupd in self._lookupds]
        self.topics = Topics(self.options, self.clock, observers=self._peers)
        self.topics.shared.on_dirty = self._schedule_turn
        self.topics.restore(self._saved)
        self._saved = {}
        accepts = self._loop.io(self._listener.fileno(), _READ)
        accepts.start(self._accept)
        self._watchers = [
            accepts,
            self.every(self.options.queue_scan_interval, self.topics.scan),
            self.every(_PING_INTERVAL, self._ping),
        ]

    def stop(self, *, abrupt: bool = False) -> None:
        """Stop listening and close every connection; *abrupt* resets them, as a killed process does.

        The topics' messages are kept for :meth:`start`: what was in flight or deferred is then ready again.
        """
        if self._listener is None:
            return
        for watcher in self._watchers:
            watcher.stop()
        self._watchers = []
        self._listener.close()
        self._listener = None
        if abrupt:
            self.drop_connections()
        self._saved = self.topics.close()
        for session in list(self._sessions.values()):
            session.close()
        for connection in list(self._connections):
            connection.drop()
        if self._http is not None:
            self._http.close()
            self._http = None
        for peer in self._peers:
            peer.leave()

    def drop_connections(self) -> None:
        """Reset every client connection."""
        for connection in list(self._connections):
            connection.reset()

    def sessions(self) -> list[Session]:
        """Return the clients."""
        return list(self._sessions.values())

    def sockets(self) -> list[socket.socket]:
        """Return every open TCP socket, for a forked child to close."""
        own = [self._listener] if self._listener is not None else []
        return own + [connection.socket for connection in self._connections]

    def _ping(self) -> None:
        for peer in self._peers:
            peer.ping()

    # -- connections ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._listener is None:
                return
            try:
                taken = accept(self._listener)
            except OSError:
                return  # out of file descriptors: the peer waits in the backlog
            if taken is None:
                return
            sock, address = taken
            if len(self._connections) >= self.options.max_connections:
                sock.close()
                continue
            connection = Connection(sock, address, self._loop, self._context, self._connection_closed)
            self._connections[connection] = None
            connection.start(_Greeter(self, connection))

    def greeted(self, connection: Connection, rest: bytes) -> None:
        """A connection has sent the magic: it is a client now."""
        self._next_client += 1
        session = self.session_class(self, connection, self._next_client, self.clock.wall())
        self._sessions[connection] = session
        connection.receiver = session
        connection.write_timeout = session.profile.heartbeat_interval or 60.0
        if rest:
            session.receive(rest)

    def _connection_closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    # -- what sessions need (session.Server) ------------------------------------------------------------------------

    def flush_soon(self, session: Session) -> None:
        self._to_flush.append(session)
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.run_callback(self._end_turn)

    def _end_turn(self) -> None:
        """Hand out messages and flush: once for all that was read in this turn of the loop."""
        self._turn_scheduled = False
        self.topics.shared.pump(self.clock.now())
        sessions, self._to_flush = self._to_flush, []
        for session in sessions:
            session.flush()

    def after(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = self._loop.timer(max(seconds, 0.0))
        timer.start(callback)
        return timer

    def every(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = self._loop.timer(seconds, seconds)
        timer.start(callback)
        return timer

    def spawn(self, work: Callable[[], None]) -> None:
        gevent.spawn(work)

    def has_tls(self) -> bool:
        return self._context is not None

    def ended(self, session: Session) -> None:
        self._sessions.pop(session.link, None)  # type: ignore[call-overload]  # a Connection, which is the key


class _Greeter:
    """Reads the four magic bytes, then hands over to a session."""

    def __init__(self, nsqd: Nsqd, connection: Connection) -> None:
        self._nsqd, self._connection = nsqd, connection
        self._got = b""
        self._timer = nsqd.after(nsqd.options.client_timeout, connection.drop)

    def receive(self, data: bytes) -> None:
        self._got += data
        if len(self._got) < 4:
            return
        self._timer.stop()
        if self._got[:4] == b"  V2":
            self._nsqd.greeted(self._connection, self._got[4:])
        else:
            self._connection.send(b"\0\0\0\x12\0\0\0\1E_BAD_PROTOCOL")
            self._connection.close()

    def receive_end(self) -> None:
        self._timer.stop()
        self._connection.close()

    def sent(self) -> None:
        """Nothing waits for it."""

    def lost(self) -> None:
        self._timer.stop()


def _settings(options: BrokerOptions) -> dict[str, Any]:
    """Return what /config shows: durations in nanoseconds, as Go's JSON has them."""
    settings: dict[str, Any] = {}
    for spec in dataclasses.fields(options):
        value = getattr(options, spec.name)
        if isinstance(spec.default, float):
            value = round(value * 1e9)
        settings[spec.name] = list(value) if isinstance(value, tuple) else value
    settings["nsqlookupd_tcp_addresses"] = settings.pop("lookupd_tcp_addresses")
    settings["log_level"] = 2
    return settings
