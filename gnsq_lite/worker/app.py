"""The Worker runs a Reader for each decorated handler, wraps handlers in middleware, and stops all Readers together."""

from __future__ import annotations

import copy
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from gnsq_lite.consume.closing import CLOSE_TIMEOUT
from gnsq_lite.consume.run_handler import refuse_unrun
from gnsq_lite.errors import ClosedError, OptionError
from gnsq_lite.keywords import is_async
from gnsq_lite.message import Message
from gnsq_lite.net.signals import Stages, in_main_thread, run_in_thread
from gnsq_lite.net.waiting import Completion, wait_any
from gnsq_lite.options import BackoffOptions
from gnsq_lite.reader import Reader, with_columns
from gnsq_lite.stats import ReaderStats
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.worker import schedules
from gnsq_lite.worker.dead import by_words
from gnsq_lite.worker.intervals import Schedule
from gnsq_lite.worker.specs import (
    Handler,
    ProcessSettings,
    Rules,
    check_give_up,
    check_timeouts,
    decoding,
    registries,
    retry_options,
    shared_rate,
    split,
    writer_options,
)
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.worker")

#: Seconds between two checks for an ended Reader, an ended supervisor and changed sources.
_CHECK_EVERY = 0.5

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault
    from typing_extensions import Unpack

    from gnsq_lite.arguments import Batch, Columns, HandlerArguments, InBatches, One, OneByOne, Value, WithValue
    from gnsq_lite.testing import Outcome

    #: Type of the argument of a handler and its middleware.  The default is Message.
    Given = WithDefault("Given", bound="Message | list[Message]", default=Message)
else:
    Given = TypeVar("Given")


class Worker:
    """Calls decorated functions with the messages of their channels until the Worker is stopped::

        worker = Worker(lookupd_http_addresses=["127.0.0.1:4161"])

        @worker.handler("orders", "billing", concurrency=8, max_attempts=10, on_give_up="topic:orders.dead")
        def bill(message): ...

        sys.exit(worker.run())

    The decorator returns the function unchanged, so tests can call it.  Each handler has its own Reader, so the
    backoff of one handler does not slow down other handlers.

    Args:
        middleware: Objects with hooks around each message, the outermost first.
        drain_timeout: Seconds that running handlers have to finish when the worker stops.
        hang_timeout: Seconds after which a supervisor kills a process whose I/O loop does not run, for example because
            a handler holds the GIL.  0 disables this.  The default is 30 s plus the longest time_limit or two heartbeat
            intervals, whichever is longer.
        defaults: Keywords of :class:`~gnsq_lite.Reader` for all handlers.  A handler's own value overrides a default.
            Pass *batch_size* to :meth:`handler` instead, because type checkers accept it only there.

    Raises:
        OptionError: an option is invalid.  No connection was opened.
    """

    def __init__(
        self,
        *,
        middleware: Iterable[Middleware[Any]] = (),
        drain_timeout: float = CLOSE_TIMEOUT,
        hang_timeout: float | None = None,
        **defaults: Unpack[HandlerArguments],
    ) -> None:
        self.middleware: list[Middleware[Any]] = list(middleware)
        self.drain_timeout = drain_timeout
        self.hang_timeout = hang_timeout
        #: Schedules that :meth:`every` has registered.
        self.schedules: list[schedules.Entry] = []
        #: Whether this process runs neither these schedules nor those of an outbox that it relays.
        self.no_schedules = False
        self.defaults: dict[str, Any] = {}
        self._handlers: list[Handler] = []
        self._begin()
        check_timeouts(drain_timeout, hang_timeout)
        for each in self.middleware:
            if not isinstance(each, Middleware):
                raise OptionError("middleware", each, "must be instances of gnsq_lite.worker.Middleware")
        self.configure(**defaults)

    def _begin(self) -> None:
        """Set the state of a Worker that has not started."""
        self._process: ProcessSettings | None = None
        self._publishing: schedules.Publishing | None = None
        self._readers: list[Reader] | None = None
        self._writers: list[tuple[dict[str, Any], Writer]] = []
        self._stages = Stages()
        registries.add(self)

    # -- before it runs

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The registered handlers, in order of registration."""
        return tuple(self._handlers)

    @property
    def stages(self) -> Stages:
        """The shutdown: ``drain`` is set when it begins, ``at_once`` when it must end at once.  See :meth:`run`."""
        return self._stages

    def configure(self, **defaults: Unpack[HandlerArguments]) -> None:
        """Change defaults of all handlers.  Raises OptionError, or ClosedError if the Worker has started."""
        self._not_started()
        check_give_up(defaults.get("on_give_up"))
        changed = {**self.defaults, **defaults}
        _checked("topic", "channel", print, Handler("topic", "channel", print).merged(changed))
        self.defaults = changed

    @overload
    def handler(
        self, topic: str, channel: str, *, batch_size: None = None, **options: Unpack[HandlerArguments]
    ) -> Callable[[One], One]: ...
    @overload
    def handler(
        self,
        topic: str,
        channel: str,
        *,
        batch_size: int,
        batch_format: Literal["list"] = "list",
        batch_wait: float | None = None,
        **options: Unpack[HandlerArguments],
    ) -> Callable[[Batch], Batch]: ...
    @overload
    def handler(
        self,
        topic: str,
        channel: str,
        *,
        batch_size: int,
        batch_format: Literal["pyarrow"],
        batch_wait: float | None = None,
        **options: Unpack[HandlerArguments],
    ) -> Callable[[Columns], Columns]: ...
    @overload
    def handler(
        self,
        topic: str,
        channel: str,
        *,
        decode: Callable[[bytes], Value],
        batch_size: None = None,
        **options: Unpack[HandlerArguments],
    ) -> Callable[[Callable[[Value, Message], None]], Callable[[Value, Message], None]]: ...
    def handler(self, topic: str, channel: str, **options: Any) -> Callable[..., Any]:
        """Register the decorated function as the handler of a topic's channel.

        Args:
            decode: Function that decodes the body's bytes.  The Worker then calls the handler with (value, message).
                If *decode* raises, the message is given up at once.
            options: Keywords of :class:`~gnsq_lite.Reader`.  ``on_give_up`` may also be ``"log"``, or a comma-separated
                list of stores: ``"directory:PATH"``, ``"topic:NAME"``, ``"bodies:NAME"``, ``"django"``.  The first
                store that works gets the message.  ``max_in_flight`` defaults to ``concurrency``.
                ``give_up_on`` is a tuple of exception classes after which a message is given up at once, or a dict from
                exception class to number of attempts.  ``retry_delay`` is the delay of a failed message in seconds, a
                function of (error, attempts) that returns seconds, or a dict from exception class to such values.
        Raises:
            OptionError, InvalidName, ClosedError: from the decorator, so the traceback shows the decorator's line.
        """

        def register(function: Any) -> Any:
            self.add(Handler(topic, channel, function, options))
            return function

        return register

    def add(self, handler: Handler) -> None:
        """Register a handler, as the decorator :meth:`handler` does.  Raises OptionError, InvalidName, ClosedError."""
        self._not_started()
        check_give_up(handler.options.get("on_give_up"))
        self._check(handler)
        for other in self._handlers:
            if (other.topic, other.channel) == (handler.topic, handler.channel):
                raise OptionError(
                    "channel",
                    f"{handler.topic}/{handler.channel}",
                    f"{other.name} already handles this channel; nsqd would send each message to only one of these",
                )
        self._handlers.append(handler)

    def every(self, when: str | float | Schedule, topic: str, body: schedules.Body) -> None:
        """Publish a message on a schedule while the worker runs.  Only one process of a supervisor publishes.

        Args:
            when: An interval such as ``"30s"`` or ``"5m"``, or a number of seconds (due at each multiple since 1970
                UTC), a :class:`gnsq_lite.contrib.cron.Cron`, or an object with a method ``next_after(wall)``.
            body: The body, or a function that returns the body for a due time in seconds since 1970.
        Raises:
            OptionError, InvalidName, BodyTypeError, InvalidBody, ClosedError
        """
        self._not_started()
        self.schedules.append(schedules.checked(when, topic, body))

    def select(self, topics: Iterable[str]) -> None:
        """Keep only the handlers of *topics*.  Raises OptionError for a topic without a handler."""
        wanted = set(topics)
        known = {handler.topic for handler in self._handlers}
        for topic in sorted(wanted - known):
            others = ", ".join(sorted(known)) or "none"
            raise OptionError("topic", topic, f"has no handler; topics with a handler: {others}")
        self._handlers = [handler for handler in self._handlers if handler.topic in wanted]

    def copy(self, **options: Unpack[HandlerArguments]) -> Worker:
        """Return a Worker that has not started, with the same handlers, middleware and schedules.

        *options* override the defaults and the handlers' own options.  Raises OptionError.
        """
        made = copy.copy(self)
        made._begin()
        made.middleware, made.schedules = self.middleware.copy(), self.schedules.copy()
        made._handlers = [replace(each, options={**each.options, **options}) for each in self._handlers]
        made.configure(**options)
        return made

    def rules(self, handler: Handler) -> Rules:
        """Return how the Worker calls *handler* and treats its errors, without jitter.  Raises OptionError."""
        options, failures, decode = split(handler.merged(self.defaults))
        call = wrapped(handler, self.middleware, decode)
        failures.jitter = 0.0  # a test gets the whole delay
        if options.get("batch_format") == "pyarrow":
            call = with_columns(call)
        return Rules(call, failures, retry_options(options), options.get("batch_size") is not None)

    @overload
    def deliver(
        self,
        handler: Handler | OneByOne | InBatches | WithValue,
        body: bytes,
        attempts: int = 1,
        *,
        id: bytes | None = None,
        raises: bool = True,
    ) -> Outcome: ...
    @overload
    def deliver(
        self,
        handler: Handler | OneByOne | InBatches | WithValue,
        body: list[bytes],
        attempts: int = 1,
        *,
        raises: bool = True,
    ) -> list[Outcome]: ...
    def deliver(
        self, handler: Any, body: Any, attempts: int = 1, *, id: bytes | None = None, raises: bool = True
    ) -> Any:
        """Call a handler in a test, without nsqd, as the Worker calls it, and return what the Worker then does.

        This applies ``decode``, ``give_up_on``, ``retry_delay``, ``max_attempts``, all middleware, and decorators such
        as ``once``.  ``on_give_up`` is not called, and ``time_limit`` does not apply.

        Args:
            handler: The decorated function, or one of :attr:`handlers`.
            body: The message's body.  With ``batch_size``, a list of bodies; then the return value is a list.
            attempts, id: As for :func:`gnsq_lite.testing.make_message`.
            raises: Whether to raise an exception of the handler that is not GiveUp or Requeue and whose class is not in
                ``give_up_on`` or in a dict ``retry_delay``.  Such an exception usually means an error in the handler.
        Raises:
            OptionError: *handler* is not a handler of this Worker, or handles several channels.
            BodyTypeError: *body* has the wrong type.
        """
        from gnsq_lite import testing

        return testing.deliver_for(self, self._handler_of(handler), body, attempts, id, raises)

    def _handler_of(self, function: Any) -> Handler:
        found = [each for each in self._handlers if each is function or each.function == function]
        if len(found) == 1:
            return found[0]
        name = getattr(function, "__qualname__", repr(function))
        why = "handles several channels: pass one of worker.handlers" if found else "is not a handler of this Worker"
        raise OptionError("handler", name, why)

    def check(self) -> None:
        """Raise OptionError if there is no handler or if an option is invalid, as :meth:`start` would."""
        if not self._handlers:
            raise OptionError(
                "handlers", [], "the worker has no handlers: decorate a function with @worker.handler(topic, channel)"
            )
        check_timeouts(self.drain_timeout, self.hang_timeout)
        for handler in self._handlers:
            self._check(handler)
        self._check_schedules()

    def _check(self, handler: Handler) -> None:
        """Raise OptionError if a Reader cannot have the handler's options, or a middleware cannot have its batches."""
        options = handler.merged(self.defaults)
        _checked(handler.topic, handler.channel, handler.function, options)
        if options.get("batch_format") == "pyarrow":
            for each in self.middleware:
                if not each.takes_columns:
                    why = f"cannot be combined with the middleware {type(each).__name__}, which handles messages"
                    raise OptionError("batch_format", "pyarrow", why)

    def _check_schedules(self) -> None:
        """Raise OptionError if only the handlers name nsqds: the schedules would publish to an nsqd on this host."""
        names = {"nsqd_tcp_addresses", "lookupd_http_addresses"}
        is_set = names & self.defaults.keys() or any(
            map(os.environ.get, ("NSQD_TCP_ADDRESSES", "NSQ_LOOKUPD_HTTP_ADDRESSES"))
        )
        if self.schedules and not is_set and any(names & each.options.keys() for each in self._handlers):
            why = "publishes to the Worker's nsqds, and only handlers name nsqds: pass nsqd_tcp_addresses to the Worker"
            raise OptionError("every", self.schedules[0].topic, why)

    # -- running

    def run(self, *, process: ProcessSettings | None = None, checks: Sequence[Callable[[], object]] = ()) -> int:
        """Consume until SIGTERM, SIGINT, :meth:`stop` or the end of a Reader.  Then drain, and return the exit code.

        The drain requeues messages that no handler has begun.  Running handlers get ``drain_timeout`` seconds, or until
        a second signal.  Then their messages are requeued too.  Signals have no effect outside the main thread.

        Args:
            process: Values from this process's supervisor, or None.  In a supervised process SIGTERM and SIGINT
                only begin the drain, because the service manager and the supervisor may both send the signal.  SIGQUIT
                or a second :meth:`stop` ends the drain at once.
            checks: Functions that the Worker calls twice a second.  The Worker drains if a function returns true.
        Returns:
            0 if every handler finished, or 3 if handlers still ran at the end of the drain.
        Raises:
            OptionError: no handler is registered, or an option is invalid.
            NSQError: a Reader ended with an error that no retry can fix.  The other Readers were drained.
        """
        stages, handlers = self._stages, list[tuple[int, Callable[[int, Any], None]]]()
        if in_main_thread():
            first = stages.begin_drain if process is not None else stages.advance
            handlers = [(signal.SIGTERM, first), (signal.SIGINT, first)]
            handlers += [(signal.SIGQUIT, stages.end_at_once)] if process is not None else []
        pid, limit = os.getpid(), self.drain_timeout
        with stages.installed(handlers):
            self.start(process)
            log.info("worker runs", extra={"pid": pid, "handlers": len(self.readers)})
            error = self._wait_for_the_end(checks)
            log.info("worker drains, for at most %g s", limit, extra={"pid": pid, "limit": limit})
            drained = self.close()
        log.info("worker ends, %s", "drained" if drained else "not drained", extra={"pid": pid, "drained": drained})
        if error is not None:
            raise error
        return ExitCode.OK if drained else ExitCode.NOT_DRAINED

    def start(self, process: ProcessSettings | None = None) -> None:
        """Start the Readers and return.  :meth:`run` calls this method.

        Args:
            process: Values from this process's supervisor, or None.
        Raises:
            OptionError, ClosedError
        """
        self._not_started()
        self.check()
        self._process = process
        self._readers = [self._reader(handler) for handler in self._handlers]
        for each in self.middleware:
            each.started(self)
        for handler, reader in zip(self._handlers, self._readers, strict=True):
            if process is not None and process.is_paused:
                reader.pause()
            reader.start(block=False)
            extra = {"topic": handler.topic, "channel": handler.channel, "handler": handler.name}
            log.info("%s handles %s/%s", handler.name, handler.topic, handler.channel, extra=extra)

        if self.schedules and not self.no_schedules:
            election = None if process is None else process.election
            self._publishing = schedules.start(self.schedules, self.writer().publish, election, self._stages.drain)

    def stop(self) -> None:
        """Make :meth:`run` drain and return.  A call during the drain ends it at once.  Thread-safe."""
        self._stages.advance()

    def close(self, timeout: float | None = None) -> bool:
        """Drain the Readers for *timeout* or ``drain_timeout`` seconds.  Return whether every handler finished."""
        drained = self._drain(self.drain_timeout if timeout is None else timeout)
        for each in reversed(self.middleware):
            try:
                each.stopped(self)
            except Exception:
                log.exception("middleware raised in its stopped() hook")
        return drained

    # -- while it runs

    @property
    def readers(self) -> Sequence[Reader]:
        """Return the started Readers."""
        # Also a Reader whose start() has not returned, because its handlers may run.
        return tuple(reader for reader in self._readers or () if reader._core is not None)

    @property
    def writers(self) -> Sequence[Writer]:
        """Return the Writers that the Worker has created."""
        return tuple(writer for _, writer in self._writers)

    def writer(self) -> Writer:
        """Return a Writer for the Worker's nsqds, for handlers that publish.  The Worker closes the Writer."""
        return self._writer_for(self.defaults)

    def stats(self, timeout: float | None = None) -> tuple[ReaderStats, ...]:
        """Return the state of each Reader.  Raises TimeoutError as :meth:`gnsq_lite.Reader.stats` does."""
        return tuple(reader.stats(timeout) for reader in self.readers)

    def last_runs(self) -> dict[tuple[str, str], float]:
        """Return the due time of the last publish by (schedule, topic), or {} if another process publishes."""
        return {} if self._publishing is None else self._publishing.last_runs()

    def __repr__(self) -> str:
        return f"<Worker {len(self._handlers)} handlers pid={os.getpid()}>"

    # -- inside

    def _wait_for_the_end(self, checks: Sequence[Callable[[], object]]) -> BaseException | None:
        """Wait until the Worker must drain.  Return the error of a Reader or a check, or None."""
        while not self._stages.drain.done():
            try:
                for reader in self.readers:
                    if reader.join(0):
                        log.error("the Reader of %s/%s was closed", reader.topic, reader.channel)
                        return None
                if any(check() for check in checks):
                    return None
                wait_any([self._stages.drain], _CHECK_EVERY)
            except BaseException as error:  # also KeyboardInterrupt, if run() is not in the main thread
                return error
        return None

    def _drain(self, timeout: float) -> bool:
        """Close all Readers in parallel, then the Writers.  Return whether every handler finished in time."""
        readers, at_once, deadline = self.readers, self._stages.at_once, time.monotonic() + timeout
        closed = [Completion() for _ in readers]
        for reader, done in zip(readers, closed, strict=True):
            run_in_thread(partial(_close_one, reader, timeout, done))
        for done in closed:
            while not done.done() and not at_once.done():
                wait_any([done, at_once], _CHECK_EVERY)
        if at_once.done():
            log.warning("stopping at once")
            for reader in readers:
                reader.close(0.0)
            deadline = time.monotonic()
        drained = not any(reader.stats().handlers_abandoned for reader in readers)
        for writer in self.writers:
            writer.close(max(1.0, deadline - time.monotonic()))
        return drained

    def _reader(self, handler: Handler) -> Reader:
        options, failures, decode = split(handler.merged(self.defaults))
        process = self._process
        if options.get("rate_limit") is not None and process is not None:
            options["rate_limit"] = shared_rate(options["rate_limit"], process.processes)
        options["backoff"] = _backoff(options.get("backoff"))
        on_give_up = options.get("on_give_up")
        if isinstance(on_give_up, str):
            options["on_give_up"] = by_words(on_give_up, lambda: self._writer_for(options))
        reader = Reader(handler.topic, handler.channel, wrapped(handler, self.middleware, decode), **options)
        known_of = reader._settings.known_of if process is None else process.known_of
        reader._settings = replace(reader._settings, judge=failures.judge, known_of=known_of)
        return reader

    def _writer_for(self, options: dict[str, Any]) -> Writer:
        wanted = writer_options(options)
        for known, writer in self._writers:
            if known == wanted:
                return writer
        writer = Writer(**wanted)
        self._writers.append((wanted, writer))
        return writer

    def _not_started(self) -> None:
        if self._readers is not None:
            raise ClosedError("the Worker has started; create a new Worker")


def _close_one(reader: Reader, timeout: float, done: Completion) -> None:
    try:
        reader.close(timeout)
    finally:
        done.settle()


def _backoff(given: BackoffOptions | bool | None) -> BackoffOptions | bool:
    """Return *given*, with the Worker's default ``failure_ratio`` of 0.5 unless *given* sets a value."""
    options = BackoffOptions() if given is None or given is True else given
    if isinstance(options, BackoffOptions) and options.failure_ratio is None:
        return replace(options, failure_ratio=0.5)
    return options


def _checked(topic: str, channel: str, function: Any, options: dict[str, Any]) -> None:
    """Check the options as the Reader does, without opening stores or connections."""
    options, _, _ = split(options)
    if isinstance(options.get("on_give_up"), str):
        options["on_give_up"] = print
    Reader(topic, channel, function, **options)


class Middleware(Generic[Given]):
    """Base class of middleware.  Hooks that a subclass does not override cost no time.

    *message* is the handler's argument: a :class:`~gnsq_lite.Message`, or with *batch_size* a list of messages.
    ``Middleware[list[Message]]`` declares lists to a type checker.
    ``before``, ``after`` and ``failed`` run in the handler's thread or greenlet, so several may run at once.  The first
    middleware is the outermost: its ``before`` runs first, and its ``after`` or ``failed`` last.
    """

    #: Whether the hooks also accept a ``pyarrow.RecordBatch`` (the option ``batch_format``).
    takes_columns = False

    def before(self, message: Given) -> None:
        """Run before the handler.  If this hook raises, the message fails and the handler is not called."""

    def after(self, message: Given) -> None:
        """Run after the handler has returned.  If this hook raises, the message fails."""

    def failed(self, message: Given, error: BaseException) -> None:
        """Run after the handler or an inner middleware has raised *error*, perhaps a ``Requeue``."""

    def started(self, worker: Worker) -> None:
        """Run once in each process, before the first message."""

    def stopped(self, worker: Worker) -> None:
        """Run once in each process, after the Readers and Writers have closed."""

    def wrap(self, call: Callable[[Given], object], handler: Handler) -> Callable[[Given], object]:
        """Return a function that replaces *call*.  Override this method to share values between before and after."""
        before, after, failed = (self._overridden(name) for name in ("before", "after", "failed"))
        if before is after is failed is None:
            return call

        def wrapped(message: Given) -> None:
            if before is not None:
                before(message)
            try:
                returned = call(message)
                if returned is not None:
                    refuse_unrun(returned)
            except BaseException as error:
                if failed is not None:
                    try:
                        failed(message, error)
                    except Exception:
                        log.exception("middleware raised in its failed() hook")
                raise
            if after is not None:
                after(message)

        return wrapped

    def _replaces_wrap(self) -> bool:
        """Return whether the subclass has its own :meth:`wrap`."""
        return type(self).wrap is not Middleware.wrap

    def _overridden(self, name: str) -> Callable[..., Any] | None:
        """Return the subclass's hook, or None if the subclass does not override it."""
        return None if getattr(type(self), name) is getattr(Middleware, name) else getattr(self, name)


def wrapped(
    handler: Handler, middleware: Iterable[Middleware[Any]], decode: Callable[[bytes], Any] | None = None
) -> Callable[[Any], Any]:
    """Wrap the handler's function in all *middleware*.  The first middleware is the outermost."""
    function: Any = handler.function
    if is_async(function):
        from gnsq_lite.worker.async_handlers import wrapped_async  # here, because asyncio takes long to import

        return wrapped_async(handler, middleware, decode)
    call: Callable[[Any], Any] = function if decode is None else decoding(function, decode)
    for each in reversed(list(middleware)):
        call = each.wrap(call, handler)
    return call
