"""The Reader: consumes one topic and channel from any number of nsqds."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from gnsq_lite import stacks
from gnsq_lite.consume.calls import RunningCall
from gnsq_lite.consume.closing import CLOSE_TIMEOUT
from gnsq_lite.consume.consumer import Consumer, close_all
from gnsq_lite.consume.pool_kinds import pool_kind
from gnsq_lite.consume.settings import ConsumerSettings, ReaderOptions, message_fields
from gnsq_lite.consume.snapshot import reader_stats
from gnsq_lite.consume.time_limits import SHORTEST
from gnsq_lite.dialect import Endpoint
from gnsq_lite.dialects import make_dialect
from gnsq_lite.errors import ClosedError, OptionError
from gnsq_lite.keywords import DEFAULT_TCP_PORT, address_list, check_runs, split, url_list, with_environment
from gnsq_lite.message import Message
from gnsq_lite.net.io_thread import forget_on_fork, io_loop, reset_after_fork
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import is_patched
from gnsq_lite.net.settings import Hooks, check_connection
from gnsq_lite.net.signals import until_signal
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import run_in_loop, run_or_leave
from gnsq_lite.option_fields import check_number
from gnsq_lite.options import (
    BackoffOptions,
    ConnectionOptions,
    HandlerOptions,
    LookupOptions,
    ReconnectOptions,
    RetryOptions,
)
from gnsq_lite.stats import ReaderStats
from gnsq_lite.wire.names import check_channel, check_topic

if TYPE_CHECKING:
    from typing_extensions import Unpack

from gnsq_lite.arguments import InBatches, InColumns, OneByOne, ReaderArguments

log = logging.getLogger("gnsq_lite.reader")


def log_give_up(message: Message) -> None:
    """Log, as an error, the metadata of a message that the Reader gives up.  The default of ``on_give_up`` (MSG-4)."""
    said, error = "giving up message %r of %s/%s after %d attempts (%d bytes)%s", sys.exc_info()[1]
    named = (message.id, message.topic, message.channel, message.attempts, len(message.raw_body))
    why = "" if error is None else f": {stacks.text_of(error)}"
    log_safely(log, logging.ERROR, said, *named, why, extra=message_fields(message))


class Reader:
    """Consumes one channel of a topic, and calls a handler for each message.

    If the handler returns, the Reader finishes the message (FIN).  If the handler raises, the Reader backs off, and
    requeues the message (REQ), or gives it up after ``max_attempts``.  Delivery is at least once: a handler may receive
    a message twice.  A Reader has one topic and one channel (CFG-6); a process may have many Readers.

    Args:
        topic, channel: Names that nsqd accepts.
        handler: Called with a :class:`~gnsq_lite.Message`, or with a list of messages if *batch_size* is set,
            or with a ``pyarrow.RecordBatch`` if *batch_format* is ``"pyarrow"``.
        options: Keyword arguments.  The page Options of the documentation lists their defaults, units and ranges.
            Durations are seconds.

    Raises:
        InvalidName, OptionError: An argument is invalid.  No connection was opened.
    """

    #: Whether the handler gets the messages of each read as one object (:mod:`gnsq_lite.consume.rows`).
    _takes_rows = False

    @overload
    def __init__(
        self,
        topic: str,
        channel: str,
        handler: OneByOne,
        *,
        batch_size: None = None,
        **options: Unpack[ReaderArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        topic: str,
        channel: str,
        handler: InBatches,
        *,
        batch_size: int,
        batch_format: Literal["list"] = "list",
        batch_wait: float | None = None,
        **options: Unpack[ReaderArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        topic: str,
        channel: str,
        handler: InColumns,
        *,
        batch_size: int,
        batch_format: Literal["pyarrow"],
        batch_wait: float | None = None,
        **options: Unpack[ReaderArguments],
    ) -> None: ...
    def __init__(self, topic: str, channel: str, handler: OneByOne | InBatches | InColumns, **options: Any) -> None:
        check_topic(topic)
        check_channel(channel)
        if not callable(handler):
            raise OptionError("handler", handler, "must be callable with one argument, the message")
        check_runs("handler", handler, awaits=True)
        if getattr(handler, "nsq_takes_one", False) and options.get("batch_size") is not None:
            raise OptionError("batch_size", options["batch_size"], "once handles single messages")
        own, hooks, connection, limits, retry, reconnect, lookup = split(
            options,
            Reader,
            ReaderOptions,
            Hooks,
            ConnectionOptions,
            HandlerOptions,
            RetryOptions,
            ReconnectOptions,
            LookupOptions,
        )
        check_connection(connection, lookup)
        nsqds, lookupds = with_environment(own.nsqd_tcp_addresses, own.lookupd_http_addresses)
        endpoints = address_list(nsqds, option="nsqd_tcp_addresses", default_port=DEFAULT_TCP_PORT)
        self.topic, self.channel = topic, channel
        chosen = make_dialect(own.dialect, **_given(partitions=own.partitions, ordered=own.ordered or None))
        replaced = {
            "dialect": chosen,
            "backoff": _backoff(own.backoff),
            "on_give_up": own.on_give_up or log_give_up,
        }
        is_columns = own.batch_format == "pyarrow"
        self._settings = ConsumerSettings(
            **{**vars(own), **replaced},
            topic=topic,
            channel=channel,
            handler=with_columns(handler) if is_columns else handler,
            takes_rows=is_columns or self._takes_rows,
            endpoints=chosen.named_endpoints([Endpoint(host, port) for host, port in endpoints]),
            lookupds=url_list(lookupds),
            pool=pool_kind(own.handler_pool, handler),
            connection=connection,
            limits=limits,
            retry=retry,
            reconnect=reconnect,
            lookup=lookup,
            hooks=hooks,
        )
        if own.lifespan is not None and self._settings.pool != "async":
            raise OptionError("lifespan", own.lifespan, "needs a handler that is an async def")
        if limits.touch and self._settings.pool == "inline":
            raise OptionError(
                "touch", True, "needs handler_pool='thread' or 'greenlet': inline handlers block the loop"
            )
        if limits.touch and connection.msg_timeout is not None and connection.msg_timeout < SHORTEST:
            raise OptionError("touch", True, f"needs msg_timeout of at least {SHORTEST:g} s: it acts once a second")
        self._warn()
        self._core: Consumer | None = None
        self._loop: Loop | None = None
        self._is_paused = False
        self._claims: dict[str, tuple[Any, Loop | None]] = {}

    def _warn(self) -> None:
        settings = self._settings
        if settings.concurrency is not None and 0 < settings.max_in_flight < settings.concurrency:
            warnings.warn(
                f"concurrency={settings.concurrency} is greater than"
                f" max_in_flight={settings.max_in_flight}, so not all handlers run at once: raise max_in_flight",
                RuntimeWarning,
                stacklevel=3,
            )
        if settings.pool == "thread" and is_patched():
            warnings.warn(
                "handler_pool='thread' in a monkey-patched process: handlers run in native threads, in which patched"
                " locks of logging, queue and threading can hang, and subprocess runs a command and then raises"
                " TypeError (see the page Handlers of the documentation)",
                RuntimeWarning,
                stacklevel=3,
            )

    # -- start and close

    def start(self, block: bool = True) -> None:
        """Connect and consume.

        With ``block=True``, return when :meth:`close` or a signal has closed the Reader.  In the main thread, Ctrl-C
        and (with ``handle_signals``) SIGTERM close this Reader and all others with ``handle_signals`` gracefully,
        unless the program handles the signal.  A second signal closes these Readers at once (CLOSE-1).

        Raises:
            ClosedError: The Reader was already started or closed.
            NSQError: The system could not start the I/O thread, and the program may call start() again.  With
                ``block=True``, also the error, such as :class:`~gnsq_lite.errors.TLSNotGranted`, that ended the Reader
                before its first subscription, and a KeyboardInterrupt or SystemExit of a handler.
        """
        reset_after_fork()
        loop = core = None
        if self._core is None:
            loop = io_loop()
            core = run_in_loop(loop, Consumer, loop, self._settings)  # opens no connection
        if loop is None or core is None or self._claim(core, loop) is not core:
            raise ClosedError("a Reader can be started only once; create a new Reader")
        forget_on_fork(core)
        run_in_loop(loop, core.flow.set_paused, self._is_paused)
        begin = partial(run_in_loop, loop, core.start)
        if block:
            numbers = [signal.SIGINT, signal.SIGTERM] if self._settings.handle_signals else [signal.SIGINT]
            until_signal(core.ended, partial(close_all, core), begin, numbers=numbers)
            core.ended.result(0)
        else:
            begin()

    def close(self, timeout: float = CLOSE_TIMEOUT, *, wait: bool = True) -> None:
        """Stop receiving, wait for running handlers, requeue messages that no handler has begun, and disconnect.

        Running handlers and messages kept open by ``enable_async()`` have *timeout* seconds.  Then all unanswered
        messages are requeued.  A second call can shorten this time.  After close() the Reader cannot be started.

        With ``wait=False``, which signal handlers must use, return at once and close in the background.  :meth:`join`
        and ``start(block=True)`` then return after the Reader has closed.  A call in a handler or hook of this Reader,
        or in gevent's hub, always returns at once.
        """
        reset_after_fork()
        core, loop = self._claim(_NEVER, None), self._loop
        if loop is not None and core is not None and not (core.ended.done() or loop.stopped):
            core.close_from_anywhere(timeout, wait=wait)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the Reader has ended, at most *timeout* seconds (None: no limit); return whether it has ended.

        If the main thread waits and the program does not handle SIGTERM, SIGTERM closes every Reader that has
        ``handle_signals`` gracefully.  join() then returns when these Readers have ended, even if *timeout* has passed.

        Raises:
            ClosedError: The Reader was not started.
            NSQError, KeyboardInterrupt, SystemExit: The error that ended the Reader.
        """
        core = self._started()
        if not (
            until_signal(core.ended, partial(close_all, core), numbers=[signal.SIGTERM], timeout=timeout)
            if self._settings.handle_signals
            else core.ended.wait(timeout)
        ):
            return False
        core.ended.result()
        return True

    def __enter__(self) -> Reader:
        """Start the Reader, unless it is started already.  Raises ClosedError if the Reader was closed."""
        core = self._core
        if core is None:
            self.start(block=False)
        elif core is _NEVER or core.closing:
            raise ClosedError("the Reader was closed, and a Reader can be started only once; create a new Reader")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- at run time

    def pause(self) -> None:
        """Stop receiving messages (RDY 0).  Connections stay open, and handlers still get the received messages.

        If pause() is called before start(), the Reader starts paused.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Receive messages again after :meth:`pause`."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self._is_paused = paused  # before _core is read: start() in another thread sees the flag
        if self._core is not None:
            core = self._started()
            run_or_leave(core.loop, core.flow.set_paused, paused)

    def set_max_in_flight(self, count: int) -> None:
        """Set ``max_in_flight`` and the default of ``concurrency`` to *count*.  0 stops the delivery (RDY-8).

        Raises OptionError for an invalid *count*, and ClosedError if the Reader was not started.
        """
        core = self._started()
        run_or_leave(core.loop, core.set_max_in_flight, check_number("max_in_flight", count, 0, 2**31 - 1, whole=True))

    def is_starved(self) -> bool:
        """Return whether a connection has at least 85 % of its share of ``max_in_flight`` in flight (RDY-7).

        nsqd then sends few further messages, so a handler that collects messages should process its batch.  Raises
        ClosedError if the Reader was not started.
        """
        return self._started().flow.allocator.is_starved()

    def stats(self, timeout: float | None = None) -> ReaderStats:
        """Return counts and the state of each connection.

        Raises:
            TimeoutError: The I/O loop did not respond within *timeout* seconds.  In a monkey-patched process a greenlet
                may block the loop.
            ClosedError: The Reader was not started, or was started in the parent process.
        """
        core = self._started()
        stats: ReaderStats = run_in_loop(core.loop, reader_stats, core, timeout=timeout)
        return stats

    def running(self, at_least: float = 0.0) -> list[RunningCall]:
        """Return the handler calls that have run for *at_least* seconds, oldest first, without waiting for the loop.

        Raises ClosedError if the Reader was not started.
        """
        return self._started().limits.running(at_least)

    def _claim(self, core: Any, loop: Loop | None) -> Any:
        """Set the Reader's core to *core* if the Reader has no core; return its core.  setdefault() is atomic."""
        self._core, self._loop = self._claims.setdefault("first", (core, loop))
        return self._core

    def _started(self) -> Consumer:
        reset_after_fork()
        if not isinstance(self._core, Consumer):
            raise ClosedError("the Reader was not started")
        return self._core

    def __repr__(self) -> str:
        return f"<Reader {self.topic}/{self.channel} pid={os.getpid()}>"


def with_columns(handler: Any) -> Any:
    """Return a function that calls *handler* with messages or Rows as a RecordBatch.  Raises OptionError."""
    try:
        from gnsq_lite.arrow import to_batch
    except ImportError as error:
        why = "needs pyarrow, which is not installed: pip install 'gnsq_lite[recording]'"
        raise OptionError("batch_format", "pyarrow", why) from error
    return lambda messages: handler(to_batch(messages))


_NEVER: Any = object()  # the core of a Reader that was closed before start()


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _backoff(value: BackoffOptions | bool | None) -> BackoffOptions:
    if value is False:
        return BackoffOptions(longest=0.0)
    return value if isinstance(value, BackoffOptions) else BackoffOptions()
