"""The Writer: publishes messages, and waits for nsqd's answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.dialect import Endpoint, PublishRequest
from gnsq_lite.dialects import make_dialect
from gnsq_lite.errors import ClosedError, NotSent, NSQError, OptionError
from gnsq_lite.keywords import DEFAULT_TCP_PORT, Addresses, address_list, key_bytes, split, url_list, with_environment
from gnsq_lite.net.io_thread import forget_on_fork, io_loop, own_process, reset_after_fork
from gnsq_lite.net.loop import NoPublishTask, current_greenlet
from gnsq_lite.net.os_threads import in_event_loop, is_plain_thread
from gnsq_lite.net.settings import check_connection, without_credentials
from gnsq_lite.net.waiting import in_hub, run_in_loop, run_or_leave
from gnsq_lite.option_fields import check_number
from gnsq_lite.options import TIMEOUT, ConnectionOptions, LookupOptions, WriterReconnectOptions
from gnsq_lite.publish.batches import check_one_each, split_batch
from gnsq_lite.publish.middleware import PublishMiddleware, wrap_method
from gnsq_lite.publish.nsqds import Nsqds
from gnsq_lite.publish.publication import GRACE, Counts, Publication, Publish
from gnsq_lite.publish.publisher import WriterCore
from gnsq_lite.publish.settings import ANY_ENDPOINT, ProducerSettings, WriterOptions, check_defer
from gnsq_lite.publish.shared import SharedConnections
from gnsq_lite.stats import WriterStats
from gnsq_lite.wire import commands
from gnsq_lite.wire.names import check_topic

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gnsq_lite.arguments import WriterArguments
    from gnsq_lite.dialect import PublishReceipt


class Writer:
    """Publishes to one or several nsqds.  A publish returns when nsqd has answered OK, or raises an error.

    Threads and greenlets may share a Writer, also in a monkey-patched process.  In a forked child the Writer opens new
    connections.  A Writer connects at its first publish and stays connected.  It skips an nsqd whose connection is
    lost, and reconnects to this nsqd (PUB-4).

    Args:
        nsqd_tcp_addresses: nsqds to publish to: ``"host:port"``, a list, or a comma-separated string.  Without nsqds
            and nsqlookupds the Writer uses the environment variable ``NSQ_LOOKUPD_HTTP_ADDRESSES``, else
            ``NSQD_TCP_ADDRESSES``, else 127.0.0.1:4150.
        options: Keyword arguments.  The page Options of the documentation lists their defaults, units and ranges.
            Durations are seconds.

    Raises:
        OptionError: An argument is invalid.  No connection was opened.
    """

    def __init__(self, nsqd_tcp_addresses: Addresses | None = None, **options: Unpack[WriterArguments]) -> None:
        own, connection, lookup, reconnect = split(
            options, Writer, WriterOptions, ConnectionOptions, LookupOptions, WriterReconnectOptions
        )
        check_connection(connection, lookup)
        nsqds, lookupds = with_environment(nsqd_tcp_addresses, own.lookupd_http_addresses)
        endpoints = address_list(nsqds, option="nsqd_tcp_addresses", default_port=DEFAULT_TCP_PORT)
        self._dialect = make_dialect(own.dialect, **({"trace": True} if own.trace else {}))
        self._settings = ProducerSettings(
            **{**vars(own), "dialect": self._dialect},
            endpoints=[Endpoint(host, port) for host, port in endpoints],
            lookupds=url_list(lookupds),
            connection=connection,
            reconnect=reconnect,
            lookup=lookup,
        )
        #: Maximum bytes of a body: nsqd also counts the bytes that the dialect adds.
        self._max_size = own.max_msg_size - self._dialect.batch_extra
        self._counts = Counts()
        #: The core in the loop; None until a publish needs the loop.
        self._core: WriterCore | None = None
        self._made: list[WriterCore] = []
        self._set_up_threads()
        self._closed = False
        forget_on_fork(self)
        given = own.middleware
        if not (isinstance(given, Sequence) and all(isinstance(each, PublishMiddleware) for each in given)):
            raise OptionError("middleware", given, "must be a list of gnsq_lite.PublishMiddleware instances")
        if given:  # without middleware the methods stay unwrapped, and fast
            for method in (self.publish, self.publish_nowait, self.multipublish):
                setattr(self, method.__name__, wrap_method(given, method, own.max_msg_size))

    # -- publishing

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        defer: float = 0.0,
        timeout: float | None = None,
        key: str | bytes | None = None,
        partition: int | None = None,
        trace_id: int | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> PublishReceipt | None:
        """Publish one message, and return when nsqd has accepted the message.

        Args:
            defer: Seconds until nsqd delivers the message; sent as whole milliseconds, rounded up.
            timeout: Seconds for connecting, writing and the answer together.  None means ``publish_timeout``.
            key, partition, trace_id, headers: Only for Youzan's NSQ.
        Returns:
            The :class:`~gnsq_lite.PublishReceipt` if the publish is traced (Youzan's NSQ); otherwise None.
        Raises:
            InvalidName, InvalidBody, BodyTypeError, MessageTooLarge, OptionError, ClosedError: Nothing was sent.
            NotSent: No nsqd could be reached in time.  Nothing was sent.
            CertificateError, TLSNotGranted, AuthFirstError, WrongDialectError: Wrong options.  Nothing was sent.
            OutcomeUnknown, PublishTimeout: nsqd did not answer, and may have the message.  A retry may duplicate it.
            NsqdError: nsqd refused the message.
        """
        if not own_process[0]:
            reset_after_fork()
        core = self._core
        is_routed, is_bound = self._is_routed, key is not None or partition is not None
        asks = trace_id is not None or headers is not None or defer or timeout is not None
        if not (asks or self._closed or (is_bound and not is_routed)):  # A short path for the most common calls.
            if type(topic) is not str:
                check_topic(topic)
            if type(body) is not bytes or not 0 < len(body) <= self._max_size:
                body = self._checked(body)
            if not is_routed and core is not None and not core.closing:
                greenlet, hub = current_greenlet(), core.hub
                # Is the caller a greenlet of the loop's thread: a child of the hub, or the thread's main greenlet?
                if (greenlet.parent is hub or greenlet is hub.parent) and type(greenlet) is not NoPublishTask:
                    return core.publish(topic, body, self._settings.publish_timeout)  # type: ignore[no-any-return]
            if self._uses_threads(core):
                settings = self._settings
                seconds = settings.publish_timeout
                publish = Publish(topic, (body,), seconds, SYSTEM_CLOCK.now() + seconds, settings.retries)
                if is_routed and core is not None:
                    if is_bound:
                        publish.key, publish.partition = self._place(key, partition)
                    is_settled = core.publish_to_leader(publish, self._threads)
                else:
                    publish.data = b"".join((commands.PUBLISH_HEADS[topic], len(body).to_bytes(4, "big"), body))
                    is_settled = self._threads.publish(publish)
                if not is_settled:
                    return self._leave_to_loop(publish)  # type: ignore[no-any-return]
                if publish._error is not None:
                    raise publish._error
                return publish._value  # type: ignore[no-any-return]
        publish = self._checked_publish(topic, body, timeout, defer, key, partition, trace_id, headers)
        return self._carry_and_wait(publish)  # type: ignore[no-any-return]

    def publish_nowait(
        self,
        topic: str,
        body: bytes,
        *,
        defer: float = 0.0,
        timeout: float | None = None,
        key: str | bytes | None = None,
        partition: int | None = None,
        trace_id: int | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> Publication:
        """Queue one message and return its :class:`Publication` at once.  Arguments are as for :meth:`publish`.

        Raises:
            InvalidName, InvalidBody, BodyTypeError, MessageTooLarge, OptionError, ClosedError: Nothing was queued.
            BacklogFull: More than ``max_pending`` bytes would be unanswered.  Nothing was queued.
        """
        if not own_process[0]:
            reset_after_fork()
        publish = self._checked_publish(topic, body, timeout, defer, key, partition, trace_id, headers)
        return self._running_core(publish.timeout, wait=False).carry_nowait(publish)

    def multipublish(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        timeout: float | None = None,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: Sequence[Mapping[str, object] | None] | None = None,
        trace_ids: Sequence[int] | None = None,
    ) -> PublishReceipt | None:
        """Publish a batch, and return when nsqd has accepted all messages.

        nsqd accepts or refuses an MPUB as a whole (WIRE-8).  The Writer splits a batch of more than ``max_body_size``
        bytes into several MPUBs, each with its own outcome.  The call ends when every MPUB has its outcome.

        Args:
            timeout: Seconds for all MPUBs together.  None means ``publish_timeout``.
            headers, trace_ids: One item for each body (Youzan's NSQ).  A batch with headers has no receipt.
        Raises:
            NSQError: The same errors as :meth:`publish`.  If the batch was split, the error of the first failed MPUB is
                raised.  Its ``total`` is the number of messages in the batch.  Its ``taken`` is the number of messages
                that nsqd confirmed; these need not be the first messages of the batch.
        """
        head, listed = commands.multipublish_head(topic), commands.listed(bodies)
        whole = b""
        asks = not (key is None and partition is None and headers is None and trace_ids is None)
        batch = PublishRequest(topic=topic, bodies=listed, batch=True)
        place = self._place(key, partition)
        if asks or self._is_routed:
            batch.headers, batch.trace_ids = headers, trace_ids
            check_one_each(batch)
            commands.check_bodies(batch.bodies, self._max_size)
            batch = self._dialect.check(batch, self._settings.max_msg_size)
        else:
            whole = commands.multipublish_packed(head, listed, self._max_size)  # one pass checks and packs
        reset_after_fork()
        seconds = self._settings.publish_timeout if timeout is None else check_number("timeout", timeout, *TIMEOUT)
        deadline = SYSTEM_CLOCK.now() + seconds
        most = self._settings.max_body_size
        fits = bool(whole) and len(whole) - len(head) - 4 <= most
        receipts: list[Any] = []
        taken, failed = 0, None
        for part in (parts := [batch] if fits else list(split_batch(batch, most))):
            publish = Publish(topic, part.bodies, seconds, deadline, self._settings.retries, batch=True)
            publish.key, publish.partition = place
            if asks:
                self._ask(publish, part)
            elif fits:
                publish.data = whole
            try:
                receipts.append(self._carry_and_wait(publish))
                taken += publish.count
            except NSQError as error:
                if len(parts) == 1:
                    raise
                failed = failed or error
        if failed is not None:
            raised = copy(failed)  # other publishes may be raising the same error
            raised.taken, raised.total = taken, len(listed)
            raise raised from failed.__cause__
        first = receipts[0]
        return None if first is None else replace(first, rest=tuple(receipts[1:]))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every publish has its outcome.

        Raises TimeoutError after *timeout* seconds (None: publish_timeout + 1).
        """
        reset_after_fork()
        seconds = self._settings.publish_timeout + 1.0 if timeout is None else timeout
        ends = SYSTEM_CLOCK.now() + seconds
        drained = self._threads.drain(seconds)
        if drained and (core := self._core) is not None:
            left = max(0.0, ends - SYSTEM_CLOCK.now())
            drained = run_in_loop(core.loop, core.outcomes.drain, left, timeout=left + GRACE)
        if not drained:
            raise TimeoutError(f"some publishes have no outcome after {seconds:g} s")

    def close(self, timeout: float = 30.0, *, wait: bool = True) -> None:
        """Refuse new publishes, wait at most *timeout* seconds for unfinished publishes, and disconnect.

        With ``wait=False``, which signal handlers must use, return at once and close in the background.  A call in
        gevent's hub always does so.
        """
        reset_after_fork()
        self._closed = True  # before the read of _core: _start() sets _core and then reads _closed
        ends = SYSTEM_CLOCK.now() + timeout
        wait = wait and not in_hub()
        self._threads.close(timeout, wait=wait)
        if (core := self._core) is not None and not (core.ended or core.loop.stopped):
            run_or_leave(core.loop, core.close, max(0.0, ends - SYSTEM_CLOCK.now()), wait=wait)

    @property
    def is_idle(self) -> bool:
        """Whether the Writer has published nothing yet, and has opened no connection."""
        return self._core is None and not self._threads.is_used

    def stats(self, timeout: float | None = None) -> WriterStats:
        """Return counts and the state of each connection.  Before the first publish, the Writer's state is "idle".

        Raises TimeoutError if the I/O loop does not respond within *timeout* seconds.  In a monkey-patched process a
        greenlet may block the loop.
        """
        reset_after_fork()
        core, threads = self._core, self._threads
        loop = WriterStats() if core is None else run_in_loop(core.loop, core.stats, timeout=timeout)
        connections = (*loop.connections, *threads.stats())
        published, failed, unknown, reconnects = self._counts.totals()
        is_closed = self._closed and (core is None or core.ended)
        return replace(
            loop,
            state="closed" if is_closed else "idle" if self.is_idle else "connected" if connections else "connecting",
            connections=connections,
            pending=loop.pending + threads.pending(),
            published=published,
            failed=failed,
            unknown=unknown,
            reconnects=loop.reconnects + reconnects,
            max_connections=self._settings.max_connections,
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- inside

    def _set_up_threads(self) -> None:
        settings = self._settings
        #: Whether the dialect's router chooses the endpoint of each publish.
        self._is_routed = settings.dialect.is_routed
        self._coalesces = settings.coalesce and not self._is_routed
        #: Whether discovery, routing or coalescing requires that the loop publishes.
        self._needs_loop = bool(settings.coalesce or settings.lookupds or self._is_routed)
        self._nsqds = Nsqds(settings.max_connections, takes_turns=not self._is_routed)
        if not self._needs_loop:
            self._nsqds.add(settings.endpoints)
        self._threads = SharedConnections(settings, self._nsqds, self._counts)

    def _uses_threads(self, core: WriterCore | None) -> bool:
        """Return whether the calling thread may publish through a connection that threads share.

        While a ``publish_nowait`` is unanswered, the loop does all publishes, to keep their order.
        """
        if not is_plain_thread():
            return False
        if core is None:
            return not self._needs_loop
        return not (self._coalesces or core.outcomes.backlog)

    def _carry_and_wait(self, publish: Publish) -> Any:
        """Do a checked publish; return its receipt or raise its error."""
        if in_event_loop():
            raise NotSent("a publish would block the event loop of async handlers: await writer.publish_nowait(...)")
        core = self._core
        if core is None and not (self._uses_threads(None) and not self._closed):
            core = self._running_core(publish.timeout)
        is_settled = False
        if self._uses_threads(core):
            if core is not None and self._is_routed:
                is_settled = core.publish_to_leader(publish, self._threads)
            else:
                publish.data = publish.command()
                is_settled = self._threads.publish(publish)
        return publish.outcome() if is_settled else self._leave_to_loop(publish)

    def _leave_to_loop(self, publish: Publish) -> Any:
        return self._running_core(publish.deadline - SYSTEM_CLOCK.now()).carry_and_wait(publish)

    def _running_core(self, seconds: float, *, wait: bool = True) -> WriterCore:
        core = self._core
        return self._start(seconds, wait=wait) if core is None or core.closing else core

    def _start(self, seconds: float, *, wait: bool = True) -> WriterCore:
        try:
            if not (self._closed or self._made):
                # If two threads create a core at the same time, the first core is used.  The other opens nothing.
                self._made.append(WriterCore(io_loop(), self._settings, self._nsqds, self._counts))
            core = self._core = self._made[0] if self._made else None
            if core is not None and not self._closed:
                wait = wait or core.loop.is_here()
                run_or_leave(core.loop, core.start, timeout=seconds + GRACE, wait=wait)
                return core
        except TimeoutError as error:
            raise NotSent(f"the I/O loop did nothing within {seconds:g} s: something blocks it") from error
        except ClosedError:
            raise
        except NSQError as error:  # the I/O thread could not be started
            raise NotSent(str(error)) from error
        if core is not None:
            core.closing = True
        raise ClosedError("the Writer was closed")

    def _checked_publish(
        self,
        topic: str,
        body: bytes,
        timeout: float | None,
        defer: float,
        key: str | bytes | None,
        partition: int | None,
        trace_id: int | None,
        headers: Mapping[str, object] | None,
    ) -> Publish:
        """Check the arguments and return the publish of one message.  Raises as :meth:`publish`."""
        if type(topic) is not str:
            check_topic(topic)
        commands.PUBLISH_HEADS[topic]  # raises InvalidName before a connection is opened
        if type(body) is not bytes or not 0 < len(body) <= self._max_size:
            body = self._checked(body)
        seconds = self._settings.publish_timeout if timeout is None else check_number("timeout", timeout, *TIMEOUT)
        publish = Publish(topic, (body,), seconds, SYSTEM_CLOCK.now() + seconds, self._settings.retries)
        if key is not None or partition is not None:
            publish.key, publish.partition = self._place(key, partition)
        if defer or trace_id is not None or headers is not None:
            request = PublishRequest(topic=topic, bodies=(body,), trace_id=trace_id, headers=headers)
            request.defer = check_defer(defer, self._settings.max_defer) if defer else 0.0
            self._ask(publish, self._dialect.check(request, self._settings.max_msg_size))
        return publish

    def _place(self, key: str | bytes | None, partition: int | None) -> tuple[bytes | None, int | None]:
        """Return the key as bytes, and the partition.  Raises OptionError."""
        key = key if type(key) is bytes else key_bytes(key)
        self._dialect.check_place(key, partition)
        return key, partition

    def _ask(self, publish: Publish, request: PublishRequest) -> None:
        """Store *request*, which the dialect has checked, in *publish*.  Encode it if any nsqd may get it."""
        publish.request = request
        if not self._is_routed:
            publish.data = self._dialect.encode(request, ANY_ENDPOINT, None)

    def _checked(self, body: Any) -> bytes:
        """Check a body, and convert a subclass of bytes (such as numpy.bytes_) to bytes.  Raises as :meth:`publish`."""
        commands.check_body(body, self._max_size)
        return bytes(memoryview(body))

    def after_fork(self) -> None:
        """Drop the parent's connections, and start with fresh state.  The library calls this in a forked child."""
        core, self._core = self._core, None
        self._threads.abandon()
        self._made, self._counts = [], Counts()
        self._set_up_threads()
        if core is not None:
            core.abandon()

    def __repr__(self) -> str:
        shown = [str(e) for e in self._settings.endpoints] or map(without_credentials, self._settings.lookupds)
        return f"<Writer {', '.join(shown)}>"
