"""One nsqd of the broker, with its listeners, sessions and topics.  All run in the hub of the broker's thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.server import StreamServer

from gnsq_lite.broker.auth import Authorizer
from gnsq_lite.broker.faults import FaultState
from gnsq_lite.broker.http import App, HTTPListener
from gnsq_lite.broker.listener import ReservedPorts, listen
from gnsq_lite.broker.lookupd import DirectPeer, Lookupd, peer_entry
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.protocol import ProtocolV2
from gnsq_lite.broker.session import Session
from gnsq_lite.broker.tcp import CodecError, Connection
from gnsq_lite.broker.tls import server_context
from gnsq_lite.broker.topics import Saved, Topics
from gnsq_lite.clock import Clock

_PING_INTERVAL = 15.0  # nsqd/lookup.go:81 @v1.3.0
_REFRESH_INTERVAL = 5.0  # QueueScanRefreshInterval
#: How many seconds a stopping nsqd waits for its connections to send their last bytes.
_STOP_TIMEOUT = 1.0


class LoopTimer:
    """A timer of the loop.  stop() frees the libev watcher, and a one-shot timer calls stop() when it fires."""

    __slots__ = ("_callback", "_once", "_watcher")

    def __init__(self, loop: Any, seconds: float, callback: Callable[[], None], *, repeat: bool = False) -> None:
        self._callback, self._once = callback, not repeat
        self._watcher = loop.timer(max(seconds, 0.0), seconds if repeat else 0.0)
        self._watcher.start(self._fire)

    def _fire(self) -> None:
        if self._once:
            self.stop()
        self._callback()

    def stop(self) -> None:
        """Stop the timer.  A second call has no effect."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()


class Nsqd:
    """One nsqd.  Call all methods in the broker's thread.

    The broker sets ``app`` and ``https_app`` before start().
    """

    app: App
    https_app: App

    def __init__(
        self,
        number: int,
        options: BrokerOptions,
        clock: Clock,
        host: str,
        ports: tuple[int, int, int],
        lookupds: Iterable[Lookupd],
    ) -> None:
        self.number, self.options, self.clock = number, options, clock
        self.tcp_port, self.http_port, self.https_port = ports
        self.started_at = 0.0
        self.authorizer = Authorizer(options.auth, clock, options.tls_root_ca_file) if options.auth else None
        self.faults = FaultState()
        self.topics = Topics(options, clock)
        self._host = host
        self._lookupds = list(lookupds)
        self._peers: list[DirectPeer] = []
        self._saved: Saved = {}
        self.tls_context = server_context(options)
        self._connections: set[Connection] = set()
        self._sessions: dict[Connection, Session] = {}
        self._next_client = 0
        self._to_flush: list[Session] = []
        self._delivery_scheduled = False
        self._tcp: StreamServer | None = None
        self._http: HTTPListener | None = None
        self._https: HTTPListener | None = None
        self.reserved = ReservedPorts()
        self._timers: list[LoopTimer] = []
        self._loop: Any = None

    # -- lifecycle --------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the nsqd listens."""
        return self._tcp is not None

    def start(self) -> None:
        """Listen, register, and restore the topics that stop() saved.  If this raises OSError, no port is open."""
        self._loop = gevent.get_hub().loop
        try:
            self._listen()
        except BaseException:
            self._close_listeners()
            raise
        self.started_at = self.clock.wall()
        self._introduce()
        self.topics = Topics(self.options, self.clock, observers=self._peers)
        self.topics.shared.on_dirty = self._schedule_delivery
        self.topics.restore(self._saved)
        self._saved = {}
        self._timers = [
            self.every(self.options.queue_scan_interval, self.topics.scan),
            self.every(_PING_INTERVAL, self._ping),
            self.every(_REFRESH_INTERVAL, self.topics.learn_channels),
        ]
        for listener in (self._tcp, self._https, self._http):  # last: clients must use the new Topics
            if listener is not None:
                listener.start()

    def _listen(self) -> None:
        self.reserved.release()
        listening = listen(self._host, self.tcp_port)
        self._tcp = StreamServer(listening, self._serve, spawn=Pool())
        self.tcp_port = listening.getsockname()[1]
        if self.tls_context is not None:
            self._https = HTTPListener(self._host, self.https_port, self.https_app, self.tls_context)
            self.https_port = self._https.port
        self._http = HTTPListener(self._host, self.http_port, self.app)
        self.http_port = self._http.port

    def _introduce(self) -> None:
        self._unregister()
        peer = peer_entry(self.number, self.options.broadcast_address, self.tcp_port, self.http_port)
        self._peers = [DirectPeer(lookupd.db, dataclasses.replace(peer)) for lookupd in self._lookupds]

    def stop(self, *, abrupt: bool = False, stay_registered: bool = False) -> None:
        """Stop listening, close every connection, and keep the unfinished messages for :meth:`start`.

        If *abrupt* is true, connections are reset, as in a crash.  If *stay_registered* is true, the lookupds
        continue to list the nsqd, as after a power cut, until its last ping is too old.  :meth:`start` queues all kept
        messages again, also messages that were deferred.
        """
        if self._tcp is None:
            return
        for timer in self._timers:
            timer.stop()
        self._timers = []
        self._tcp.close()
        if abrupt:
            self.drop_connections()
        self._saved = self.topics.close()
        for session in self.sessions():
            session.close()
        for connection in self._connections:
            connection.close()
        self._close_listeners()
        https_ports = [self.https_port] if self.tls_context else []
        self.reserved.reserve(self._host, [self.tcp_port, self.http_port, *https_ports])
        if not stay_registered:
            self._unregister()

    def _unregister(self) -> None:
        for peer in self._peers:
            peer.leave()
        self._peers = []

    def _close_listeners(self) -> None:
        if self._tcp is not None:
            self._tcp.stop(timeout=_STOP_TIMEOUT)
        for listener in (self._http, self._https):
            if listener is not None:
                listener.close()
        self._tcp = self._http = self._https = None

    def drop_connections(self) -> None:
        """Reset every client connection."""
        for connection in list(self._connections):
            connection.reset()

    def sessions(self) -> list[Session]:
        """Return the sessions of all clients."""
        return list(self._sessions.values())

    def send_to_all(self, data: bytes) -> None:
        """Send *data* unchanged to every client."""
        for session in self.sessions():
            session.flush()
            session.link.send(data)

    def sockets(self) -> list[Any]:
        """Return every open socket.  A forked child closes its copies."""
        found: list[Any] = self.reserved.sockets()
        for listener in (self._http, self._https):
            if listener is not None:
                found += listener.sockets()
        found += [connection.socket for connection in self._connections]
        return found if self._tcp is None else [*found, self._tcp.socket]

    def _ping(self) -> None:
        for peer in self._peers:
            peer.ping()

    # -- connections ------------------------------------------------------------------------------------------------

    def _serve(self, sock: Any, address: tuple[Any, ...]) -> None:
        """Serve one client, in a greenlet of gevent's server."""
        connection = Connection(sock, address)
        is_stopped = self._tcp is None or self._tcp.closed  # true if the nsqd stopped just after accept()
        if is_stopped or self.faults.refuse_connections or len(self._connections) >= self.options.max_connections:
            connection.reset()
            return
        self._connections.add(connection)
        try:
            self._serve_protocol(connection)
            connection.close()
            connection.wait_until_closed()
        except (OSError, CodecError):
            pass  # the client has disconnected, or sent invalid compressed bytes
        finally:
            connection.drop()
            self._connections.discard(connection)

    def _serve_protocol(self, connection: Connection) -> None:
        magic = b""
        with gevent.Timeout(self.options.client_timeout, OSError("no magic bytes in time")):
            while len(magic) < 4 and (data := connection.read(4 - len(magic))):
                magic += data
        if magic == b"  V2":
            self._run_session(connection)
        elif len(magic) == 4:
            connection.send(b"\0\0\0\x12\0\0\0\1E_BAD_PROTOCOL")

    def _run_session(self, connection: Connection) -> None:
        self._next_client += 1
        session = self._new_session(connection)
        self._sessions[connection] = session
        connection.on_closed, connection.on_drained = session.lost, session.sent
        connection.write_timeout = session.profile.heartbeat_interval or 60.0
        for data in connection.chunks():
            session.receive(data)
        session.receive_end()

    def _new_session(self, connection: Connection) -> Session:
        return ProtocolV2(self, connection, self._next_client, self.clock.wall())

    # -- interface for sessions (session.Server) --------------------------------------------------------------------

    def flush_soon(self, session: Session) -> None:
        """Flush *session* at the end of this loop iteration."""
        self._to_flush.append(session)
        self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        if not self._delivery_scheduled:
            self._delivery_scheduled = True
            self._loop.run_callback(self._deliver_and_flush)

    def _deliver_and_flush(self) -> None:
        """Deliver messages and flush output.  This runs once for all commands that were read in the loop iteration."""
        self._delivery_scheduled = False
        self._flush_all()  # as in nsqd, replies are sent before new messages, and do not flush those messages
        self.topics.shared.pump(self.clock.now())
        self._flush_all()

    def _flush_all(self) -> None:
        sessions, self._to_flush = self._to_flush, []
        for session in sessions:
            session.flush()

    def after(self, seconds: float, callback: Callable[[], None]) -> LoopTimer:
        """Call *callback* once, *seconds* from now."""
        return LoopTimer(self._loop, seconds, callback)

    def every(self, seconds: float, callback: Callable[[], None]) -> LoopTimer:
        """Call *callback* every *seconds* seconds."""
        return LoopTimer(self._loop, seconds, callback, repeat=True)

    def sleep(self, seconds: float) -> None:
        """Block the calling session's greenlet for *seconds*."""
        gevent.sleep(seconds)

    def remove_session(self, session: Session) -> None:
        """Remove a closed session."""
        self._sessions.pop(session.link, None)
