"""The embedded broker runs nsqd and nsqlookupd in this process, for tests, demos and benchmarks.

All messages are in memory.  They are lost when the broker stops.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from gnsq_lite.broker import stats
from gnsq_lite.broker.faults import Faults
from gnsq_lite.broker.http import HTTPFaults
from gnsq_lite.broker.lookupd import Lookupd
from gnsq_lite.broker.nsqd import Nsqd
from gnsq_lite.broker.nsqd_http import nsqd_app
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.thread import LoopThread
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ClosedError, OptionError

_T = TypeVar("_T")
_log = logging.getLogger("gnsq_lite.broker")
_running: weakref.WeakSet[Broker] = weakref.WeakSet()
_abandoned: list[Broker] = []


class Node:
    """Controls one nsqd of a broker.  Thread-safe."""

    def __init__(self, broker: Broker, nsqd: Nsqd) -> None:
        self._broker, self._nsqd = broker, nsqd
        self.faults = Faults(broker.call, nsqd.faults, nsqd.send_to_all)
        self.http_faults = HTTPFaults(broker.call, lambda: nsqd.app)

    @property
    def tcp_address(self) -> tuple[str, int]:
        """Host and port for clients."""
        return self._broker.host, self._nsqd.tcp_port

    @property
    def nsqd_tcp_address(self) -> str:
        """``host:port`` for clients."""
        return _joined(self._broker.host, self._nsqd.tcp_port)

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP API."""
        return _joined(self._broker.host, self._nsqd.http_port)

    @property
    def https_address(self) -> str:
        """``host:port`` of the HTTPS API, if the nsqd has a certificate."""
        return _joined(self._broker.host, self._nsqd.https_port)

    @property
    def running(self) -> bool:
        """Whether the nsqd listens."""
        return self._broker.alive and self._nsqd.running

    def stop(self) -> None:
        """Stop the nsqd as SIGTERM does.  :meth:`restart` restores its unfinished messages."""
        self._broker.call(self._nsqd.stop)

    def kill(self, *, stay_registered: bool = False) -> None:
        """Stop the nsqd and reset every connection, as in a crash.  :meth:`restart` restores its unfinished messages.

        If *stay_registered* is true, lookups list it until ``inactive_producer_timeout`` seconds after its last ping.
        """
        self._broker.call(lambda: self._nsqd.stop(abrupt=True, stay_registered=stay_registered))

    def restart(self) -> None:
        """Restart the nsqd on the same ports, with its topics, channels and unfinished messages."""

        def restart() -> None:
            self._nsqd.stop()
            self._nsqd.start()

        self._broker.call(restart)

    def stats(self) -> dict[str, Any]:
        """Return the document of ``/stats?format=json``."""
        return self._broker.call(lambda: stats.collect(self._nsqd))

    def drop_connections(self) -> None:
        """Reset every client connection, as after a network failure."""
        self._broker.call(self._nsqd.drop_connections)


class LookupdNode:
    """Controls one nsqlookupd of a broker.  Thread-safe."""

    def __init__(self, broker: Broker, lookupd: Lookupd) -> None:
        self._broker, self._lookupd = broker, lookupd
        self.http_faults = HTTPFaults(broker.call, lambda: lookupd.app)

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP API."""
        return _joined(self._broker.host, self._lookupd.http_port)

    @property
    def running(self) -> bool:
        """Whether the nsqlookupd listens."""
        return self._broker.alive and self._lookupd.running

    def stop(self) -> None:
        """Stop the nsqlookupd.  After :meth:`restart` it has the same registrations."""
        self._broker.call(self._lookupd.stop)

    def restart(self) -> None:
        """Restart the nsqlookupd on the same port."""

        def restart() -> None:
            self._lookupd.stop()
            self._lookupd.start()

        self._broker.call(restart)


class Broker:
    """Embedded nsqds and nsqlookupds, in memory.

    ``with Broker() as broker:`` starts and stops the broker.  The broker has its own native thread, even in a
    monkey-patched process, so the caller's code cannot block the broker.  Port 0 picks a free port.  Any other port is
    the first node's port, and each further node uses the next port.  The other keywords are the fields of
    :class:`~gnsq_lite.broker.options.BrokerOptions`.

    Raises:
        OptionError: from the constructor, for an invalid option.  No port is open then.
        OSError: from :meth:`start`, if a port is in use.
    """

    #: Class of the nsqds.  Tests override this attribute to embed other servers.
    nsqd_type: ClassVar[type[Nsqd]] = Nsqd

    def __init__(
        self,
        *,
        tcp_port: int = 0,
        http_port: int = 0,
        https_port: int = 0,
        lookupd_http_port: int = 0,
        host: str = "127.0.0.1",
        nsqds: int = 1,
        lookupd: bool = True,
        lookupds: int = 1,
        **options: Any,
    ) -> None:
        for name, value in (("nsqds", nsqds), ("lookupds", lookupds)):
            if not 0 <= value <= 64:
                raise OptionError(name, value, "must be between 0 and 64")
        known = {spec.name for spec in dataclasses.fields(BrokerOptions)}
        for name in options:
            if name not in known:
                raise OptionError(name, options[name], "is not an option of the broker")
        self.host = host
        self.options = BrokerOptions(**options)
        count = lookupds if lookupd else 0
        self._lookupds = [Lookupd(self.options, SYSTEM_CLOCK, host, _port(lookupd_http_port, n)) for n in range(count)]
        self._nsqds: list[Nsqd] = [
            self.nsqd_type(
                n,
                dataclasses.replace(self.options, node_id=self._node_id(n)),
                SYSTEM_CLOCK,
                host,
                (_port(tcp_port, n), _port(http_port, n), _port(https_port, n)),
                self._lookupds,
            )
            for n in range(nsqds)
        ]
        for nsqd in self._nsqds:
            nsqd.app, nsqd.https_app = nsqd_app(nsqd, encrypted=False), nsqd_app(nsqd)
        self.nodes = [Node(self, nsqd) for nsqd in self._nsqds]
        self.lookupds = [LookupdNode(self, lookupd) for lookupd in self._lookupds]
        self._thread = LoopThread()
        self._pid = 0

    def _node_id(self, number: int) -> int:
        """Return the node id of an nsqd.  nsqd's default is a hash of the host name, so nsqds of one host share it."""
        return self.options.node_id if self.options.like_nsqd else (self.options.node_id + number) % 1024

    # -- lifecycle --------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the broker runs in this process.  This is False in a forked child of the broker's process."""
        return self._thread.alive and self._pid == os.getpid()

    def start(self) -> Broker:
        """Start the broker, and return when every port is open.  If this raises OSError, no port is open."""
        if self.alive:
            raise ClosedError("the broker is already running")
        self._thread = LoopThread()
        self._pid = os.getpid()
        self._thread.start()
        try:
            self.call(self._start)
        except BaseException:
            self.stop()
            raise
        _running.add(self)
        _log.info("broker listens on %s; all data is in memory only", [n.nsqd_tcp_address for n in self.nodes])
        return self

    def _start(self) -> None:
        for lookupd in self._lookupds:
            lookupd.start()
        for nsqd in self._nsqds:
            nsqd.start()

    def stop(self) -> None:
        """Stop the broker, close its connections and drop its messages.  A second call has no effect."""
        if not self.alive:
            return
        _running.discard(self)
        self.call(self._stop)
        self._thread.stop()

    def _stop(self) -> None:
        for nsqd in self._nsqds:
            nsqd.stop()
        for lookupd in self._lookupds:
            lookupd.stop()
        for reserved in [nsqd.reserved for nsqd in self._nsqds] + [lookupd.reserved for lookupd in self._lookupds]:
            reserved.release()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def call(self, function: Callable[[], _T]) -> _T:
        """Run *function* in the broker's thread and return the result.  Raises ClosedError if the broker is stopped."""
        if not self.alive:
            raise ClosedError("the broker is not running")
        return self._thread.call(function)

    def sockets(self) -> list[Any]:
        """Return every open socket of the broker."""
        parts: list[Lookupd | Nsqd] = [*self._lookupds, *self._nsqds]
        return [sock for part in parts for sock in part.sockets()]

    # -- addresses --------------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The first nsqd."""
        return self.nodes[0]

    @property
    def faults(self) -> Faults:
        """Faults of the first nsqd."""
        return self.node.faults

    @property
    def tcp_address(self) -> tuple[str, int]:
        """Host and port of the first nsqd."""
        return self.node.tcp_address

    @property
    def nsqd_tcp_address(self) -> str:
        """``host:port`` of the first nsqd."""
        return self.node.nsqd_tcp_address

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        """``host:port`` of every nsqd."""
        return [node.nsqd_tcp_address for node in self.nodes]

    @property
    def http_address(self) -> str:
        """``host:port`` of the first nsqd's HTTP API."""
        return self.node.http_address

    @property
    def lookupd_http_address(self) -> str:
        """``host:port`` of the first nsqlookupd's HTTP API.  Raises IndexError if there is none."""
        return self.lookupds[0].http_address

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """``host:port`` of every nsqlookupd's HTTP API."""
        return [lookupd.http_address for lookupd in self.lookupds]


def _port(first: int, number: int) -> int:
    return first + number if first else 0


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _stop_all() -> None:
    for broker in list(_running):
        broker.stop()


def _abandon() -> None:
    """Close the broker's sockets in a forked child.  Otherwise the child would keep the parent's connections open.

    ``_abandoned`` keeps the brokers, because their destructors would use the hub of a thread that the child lacks.
    """
    for broker in list(_running):
        for sock in broker.sockets():
            native = getattr(sock, "_sock", sock)  # detach() of the gevent socket would use the hub
            os.close(native.detach())
        _abandoned.append(broker)
    _running.clear()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)
