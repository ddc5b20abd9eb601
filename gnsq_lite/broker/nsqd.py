"""One nsqd of the broker: listeners, sessions and topics, run by the loop of the broker's thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import gevent

from gnsq_lite.broker.auth import Authorizer
from gnsq_lite.broker.fault_script import Script
from gnsq_lite.broker.http import App, HTTPListener
from gnsq_lite.broker.listener import HeldPorts, TCPListener
from gnsq_lite.broker.lookupd import DirectPeer, Lookupd, own_peer
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.protocol import ProtocolV2
from gnsq_lite.broker.session import Session
from gnsq_lite.broker.tcp import AcceptedConnection, LoopTimer
from gnsq_lite.broker.tls import server_context
from gnsq_lite.broker.topics import Saved, Topics
from gnsq_lite.clock import Clock

_PING_INTERVAL = 15.0  # nsqd/lookup.go:81 @v1.3.0


class Nsqd:
    """One nsqd.  All methods belong to the broker's thread.

    Who makes it gives it ``app``, and ``https_app`` where that is another, before it starts.
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
        self.authorizer = Authorizer(options, clock) if options.auth_http_addresses else None
        self.script = Script()
        self.topics = Topics(options, clock)
        self._host = host
        self._lookupds = list(lookupds)
        self._peers: list[DirectPeer] = []
        self._saved: Saved = {}
        self._context = server_context(options)
        self._sessions: dict[AcceptedConnection, Session] = {}
        self._next_client = 0
        self._to_flush: list[Session] = []
        self._turn_scheduled = False
        self._tcp: TCPListener | None = None
        self._http: HTTPListener | None = None
        self._https: HTTPListener | None = None
        self.held = HeldPorts()
        self._timers: list[LoopTimer] = []
        self._loop: Any = None

    # -- lifecycle --------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._tcp is not None

    def start(self) -> None:
        """Listen, register, and take up the topics of an earlier run.  Raises OSError, and then nothing listens."""
        self._loop = gevent.get_hub().loop
        try:
            self._listen()
        except BaseException:
            self._close_listeners()
            raise
        self.started_at = self.clock.wall()
        self._introduce()
        self.topics = Topics(self.options, self.clock, observers=self._peers)
        self.topics.shared.on_dirty = self._schedule_turn
        self.topics.restore(self._saved)
        self._saved = {}
        self._timers = [
            self.every(self.options.queue_scan_interval, self.topics.scan),
            self.every(_PING_INTERVAL, self._ping),
        ]
        for listener in (self._tcp, self._https, self._http):  # a client before that would have had the old topics
            if listener is not None:
                listener.start()

    def _listen(self) -> None:
        self.held.free()
        self._tcp = TCPListener(self._host, self.tcp_port, self.options.max_connections, self._opened)
        self._tcp.context = self._context
        self._tcp.refuses = lambda: self.script.refuse_connections
        self.tcp_port = self._tcp.port
        if self._context is not None:
            self._https = HTTPListener(self._host, self.https_port, self.https_app, self._context)
            self.https_port = self._https.port
        self._http = HTTPListener(self._host, self.http_port, self.app)
        self.http_port = self._http.port

    def _introduce(self) -> None:
        self._unregister()
        peer = own_peer(self.number, self.options.broadcast_address, self.tcp_port, self.http_port)
        self._peers = [DirectPeer(lookupd.db, dataclasses.replace(peer)) for lookupd in self._lookupds]

    def stop(self, *, abrupt: bool = False, stay_registered: bool = False) -> None:
        """Stop listening and close every connection; *abrupt* resets them, as a killed process does.

        With *stay_registered* the lookupds still name it, as after a power cut.

        The topics' messages are kept for :meth:`start`: what was in flight or deferred is then ready again.
        """
        if self._tcp is None:
            return
        for timer in self._timers:
            timer.stop()
        self._timers = []
        self._tcp.stop_accepting()
        if abrupt:
            self._tcp.reset_all()
        self._saved = self.topics.close()
        for session in list(self._sessions.values()):
            session.close()
        self._close_listeners()
        self.held.hold(self._host, [self.tcp_port, self.http_port, *([self.https_port] if self._context else [])])
        if not stay_registered:
            self._unregister()

    def _unregister(self) -> None:
        for peer in self._peers:
            peer.leave()
        self._peers = []

    def _close_listeners(self) -> None:
        for listener in (self._tcp, self._http, self._https):
            if listener is not None:
                listener.close()
        self._tcp = self._http = self._https = None

    def drop_connections(self) -> None:
        """Reset every client connection."""
        if self._tcp is not None:
            self._tcp.reset_all()

    def sessions(self) -> list[Session]:
        """Return the clients."""
        return list(self._sessions.values())

    def send_to_all(self, data: bytes) -> None:
        """Send *data* to every client as it is."""
        for session in self.sessions():
            session.flush()
            session.link.send(data)

    def sockets(self) -> list[Any]:
        """Return every open socket, for a forked child to close."""
        listeners = (self._tcp, self._http, self._https)
        owners = [self.held, *[listener for listener in listeners if listener is not None]]
        return [sock for owner in owners for sock in owner.sockets()]

    def _ping(self) -> None:
        for peer in self._peers:
            peer.ping()

    # -- connections ------------------------------------------------------------------------------------------------

    def _opened(self, connection: AcceptedConnection) -> None:
        connection.start(_Greeter(self, connection))

    def greeted(self, connection: AcceptedConnection, rest: bytes) -> None:
        """A connection has sent the magic: it is a client now."""
        self._next_client += 1
        session = self._new_session(connection)
        self._sessions[connection] = session
        connection.receiver = session
        connection.write_timeout = session.profile.heartbeat_interval or 60.0
        if rest:
            session.receive(rest)

    def _new_session(self, connection: AcceptedConnection) -> Session:
        return ProtocolV2(self, connection, self._next_client, self.clock.wall())

    # -- what sessions need (session.Server) ------------------------------------------------------------------------

    def flush_soon(self, session: Session) -> None:
        """Flush *session* at the end of this turn of the loop."""
        self._to_flush.append(session)
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.run_callback(self._end_turn)

    def _end_turn(self) -> None:
        """Hand out messages and flush: once for all that was read in this turn of the loop."""
        self._turn_scheduled = False
        self._flush_all()  # first: in nsqd too an answer does not wait for messages, nor flush those that come after it
        self.topics.shared.pump(self.clock.now())
        self._flush_all()

    def _flush_all(self) -> None:
        sessions, self._to_flush = self._to_flush, []
        for session in sessions:
            session.flush()

    def after(self, seconds: float, callback: Callable[[], None]) -> LoopTimer:
        """Call *callback* once."""
        timer = LoopTimer(self._loop)
        timer.start(seconds, callback)
        return timer

    def every(self, seconds: float, callback: Callable[[], None]) -> LoopTimer:
        """Call *callback* again and again."""
        timer = LoopTimer(self._loop)
        timer.start(seconds, callback, repeat=True)
        return timer

    def spawn(self, work: Callable[[], None]) -> None:
        """Run *work*, which may wait, in a greenlet."""
        gevent.spawn(work)

    def has_tls(self) -> bool:
        """Whether there is a certificate."""
        return self._context is not None

    def ended(self, session: Session) -> None:
        """Forget a session that has closed."""
        self._sessions.pop(session.link, None)  # type: ignore[call-overload]  # an AcceptedConnection, which is the key


class _Greeter:
    """Reads the four magic bytes, then hands over to a session."""

    def __init__(self, nsqd: Nsqd, connection: AcceptedConnection) -> None:
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
            self._connection.refuse(len(self._got) - 4)

    def receive_end(self) -> None:
        self._timer.stop()
        self._connection.close()

    def sent(self) -> None:
        """Nothing waits for it."""

    def lost(self) -> None:
        self._timer.stop()
