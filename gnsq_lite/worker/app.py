"""The Worker: handlers by decorator, one Reader for each, code around each message, one orderly end for all."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from gnsq_lite.consume.closing import CLOSE_TIMEOUT
from gnsq_lite.consume.run_handler import refuse_unrun
from gnsq_lite.errors import ClosedError, OptionError
from gnsq_lite.giveup import by_name
from gnsq_lite.message import Message
from gnsq_lite.net.signals import Stages
from gnsq_lite.policy.schedule import Schedule
from gnsq_lite.reader import Reader
from gnsq_lite.stats import ReaderStats
from gnsq_lite.supervise.election import Election
from gnsq_lite.worker import running, schedules, sharing
from gnsq_lite.worker.specs import Handler, check_drain_timeout, check_give_up, shared_rate, writer_options
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.worker")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault
    from typing_extensions import Unpack

    from gnsq_lite.arguments import Batch, HandlerArguments, One

    #: What a handler gets, and so its middleware: a message, where nothing is said.
    Given = WithDefault("Given", bound="Message | list[Message]", default=Message)
else:
    Given = TypeVar("Given")


class Worker:
    """Feeds decorated functions from their topics until it is told to stop::

        worker = Worker(lookupd_http_addresses=["127.0.0.1:4161"])

        @worker.handler("orders", "billing", concurrency=8, max_attempts=10, on_give_up="topic:orders.dead")
        def bill(message): ...

        sys.exit(worker.run())

    The functions stay plain functions, to be called and tested as such.  Each handler has a Reader of its own, so one
    that fails slows down nobody else.

    Args:
        middleware: Objects with hooks around each message, the outermost first.
        drain_timeout: Seconds that running handlers have to finish when the worker is told to stop.
        defaults: Every keyword of :class:`~gnsq_lite.Reader`, for all handlers; a handler's own wins.  A *batch_size*
            belongs to the handler that takes lists: type checkers take it only there.

    Raises:
        OptionError: before anything is opened.
    """

    def __init__(
        self,
        *,
        middleware: Iterable[Middleware[Any]] = (),
        drain_timeout: float = CLOSE_TIMEOUT,
        **defaults: Unpack[HandlerArguments],
    ) -> None:
        self.middleware: list[Middleware[Any]] = list(middleware)
        self.drain_timeout = drain_timeout
        #: How many processes share its ``rate_limit``; the supervisor's are told.
        self.processes = 1
        #: What :meth:`every` has registered, and which process of them publishes it; None: this one is alone.
        self.schedules: list[schedules.Entry] = []
        self.election: Election | None = None
        #: The (topic, channel) of handlers that start paused: they were paused through the live page.
        self.paused: frozenset[tuple[str, str]] = frozenset()
        self._sharing: sharing.Sharing | None = None
        self.defaults: dict[str, Any] = {}
        self._handlers: list[Handler] = []
        self._readers: list[Reader] | None = None
        self._writers: list[tuple[dict[str, Any], Writer]] = []
        self._stages = Stages()
        check_drain_timeout(drain_timeout)
        for each in self.middleware:
            if not isinstance(each, Middleware):
                raise OptionError("middleware", each, "must be instances of gnsq_lite.worker.Middleware")
        self.configure(**defaults)

    # -- before it runs

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """What was registered, in its order."""
        return tuple(self._handlers)

    @property
    def stages(self) -> Stages:
        """Whether it was told to stop, and how urgently."""
        return self._stages

    def configure(self, **defaults: Unpack[HandlerArguments]) -> None:
        """Change defaults; a command line does it.  Raises OptionError, ClosedError when it has started."""
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
        batch_wait: float | None = None,
        **options: Unpack[HandlerArguments],
    ) -> Callable[[Batch], Batch]: ...
    def handler(self, topic: str, channel: str, **options: Any) -> Callable[[Batch], Batch] | Callable[[One], One]:
        """Feed the decorated function from a topic's channel.

        Args:
            options: Keywords of :class:`~gnsq_lite.Reader`.  ``on_give_up`` may be a word too: ``"log"``,
                ``"directory:PATH"`` or ``"topic:NAME"``.  ``max_in_flight`` is ``concurrency`` where it is not given.
        Raises:
            OptionError, InvalidName: at once, so the traceback shows the decorator's line.
        """

        def register(function: Any) -> Any:
            self.add(Handler(topic, channel, function, options))
            return function

        return register

    def add(self, handler: Handler) -> None:
        """Register a handler; :meth:`handler` is the usual way.  Raises OptionError, InvalidName, ClosedError."""
        self._not_started()
        check_give_up(handler.options.get("on_give_up"))
        _checked(handler.topic, handler.channel, handler.function, handler.merged(self.defaults))
        for other in self._handlers:
            if (other.topic, other.channel) == (handler.topic, handler.channel):
                raise OptionError(
                    "channel",
                    f"{handler.topic}/{handler.channel}",
                    f"{other.name} handles it already, and nsqd would share its messages out between the two",
                )
        self._handlers.append(handler)

    def share_concurrency(self, total: int, weights: Mapping[str, float] | None = None) -> None:
        """Run *total* handlers at once in each process, whichever they are, and where more want to, by weight.

        A handler's ``concurrency`` is then the most of its own that run at once, *total* where it has none.  Places are
        shared out twenty times a second; none stays empty while a message waits.

        Args:
            weights: By ``"topic/channel"``; 1.0 for those that are not named.
        Raises:
            OptionError, ClosedError
        """
        self._not_started()
        self._sharing = sharing.make(total, weights)

    def every(self, when: str | float | Schedule, topic: str, body: schedules.Body) -> None:
        """Publish a message by the clock, as long as it runs; of the processes of one supervisor one does.

        Args:
            when: ``"30s"``, ``"5m"``, ``"2h"``, ``"1d"`` or seconds, each at its multiples since 1970, UTC; or a
                :class:`gnsq_lite.contrib.cron.Cron`; or whatever has a ``next_after(wall)``.
            body: What is published, or a function of the time that was due, in seconds since 1970, which makes it.
        Raises:
            OptionError, InvalidName, BodyTypeError, InvalidBody, ClosedError
        """
        self._not_started()
        self.schedules.append(schedules.checked(when, topic, body))

    def select(self, topics: Iterable[str]) -> None:
        """Keep only the handlers of *topics*.  Raises OptionError for one that has none."""
        wanted = set(topics)
        known = {handler.topic for handler in self._handlers}
        for topic in sorted(wanted - known):
            raise OptionError("topic", topic, f"no handler has it; there are {', '.join(sorted(known)) or 'none'}")
        self._handlers = [handler for handler in self._handlers if handler.topic in wanted]

    def check(self) -> None:
        """Raise what :meth:`start` would: OptionError, where there is no handler or options do not go together."""
        if not self._handlers:
            raise OptionError("handlers", [], "nothing is decorated with @worker.handler(topic, channel)")
        if self._sharing is not None:
            self._sharing.check(self._handlers, [handler.merged(self.defaults) for handler in self._handlers])
        check_drain_timeout(self.drain_timeout)
        for handler in self._handlers:
            _checked(handler.topic, handler.channel, handler.function, handler.merged(self.defaults))

    # -- running

    def run(self, *, drain_timeout: float | None = None) -> int:
        """Consume until SIGTERM, SIGINT or :meth:`stop`; drain; return the exit code.

        The first signal drains: no new messages, running handlers have *drain_timeout* seconds.  The second one ends
        it at once.  What was not finished goes back to nsqd.  Signals are handled only in the main thread.

        Returns:
            0: everything was drained; 3: it was not, because of a second signal or the time limit.
        Raises:
            OptionError: there is no handler, or the time limit is not one.
            NSQError: what ended a Reader and no retry can mend; the others were drained.
        """
        check_drain_timeout(self.drain_timeout if drain_timeout is None else drain_timeout)
        return running.run(self, self.drain_timeout if drain_timeout is None else drain_timeout)

    def start(self) -> None:
        """Start the Readers and return; :meth:`run` does it by itself.  Raises OptionError, ClosedError."""
        self._not_started()
        self.check()
        readers = [self._reader(handler) for handler in self._handlers]
        self._readers = []
        for each in self.middleware:
            each.started(self)
        for handler, reader in zip(self._handlers, readers, strict=True):
            if (handler.topic, handler.channel) in self.paused:
                reader.pause()
            reader.start(block=False)
            self._readers.append(reader)
            log.info(
                "%s handles %s/%s",
                handler.name,
                handler.topic,
                handler.channel,
                extra={"topic": handler.topic, "channel": handler.channel, "handler": handler.name},
            )

        if self._sharing is not None:
            self._sharing.begin(self._handlers, self._readers)
        if self.schedules:
            schedules.start(self.schedules, self.writer().publish, self.election, self._stages.drain)

    def stop(self) -> None:
        """Have :meth:`run` drain and return, from any thread or handler; a second call ends it at once."""
        self._stages.ask()

    def close(self, timeout: float | None = None) -> bool:
        """Drain what :meth:`start` has started, and wait; return whether every handler finished in time."""
        seconds = self.drain_timeout if timeout is None else timeout
        drained = running.drain(self.readers, self.writers, self._stages, seconds)
        for each in reversed(self.middleware):
            try:
                each.stopped(self)
            except Exception:
                log.exception("middleware failed when the worker stopped")
        return drained

    # -- while it runs

    @property
    def readers(self) -> Sequence[Reader]:
        """The Readers that have started."""
        return tuple(self._readers or ())

    @property
    def writers(self) -> Sequence[Writer]:
        """The Writers it has made."""
        return tuple(writer for _, writer in self._writers)

    def writer(self) -> Writer:
        """Return a Writer to the Worker's own nsqds, for handlers that publish; closed when the Worker has drained."""
        return self._writer_for(self.defaults)

    def stats(self, timeout: float | None = None) -> tuple[ReaderStats, ...]:
        """Return the state of each Reader.  Raises TimeoutError as :meth:`gnsq_lite.Reader.stats`."""
        return tuple(reader.stats(timeout) for reader in self.readers)

    def __repr__(self) -> str:
        return f"<Worker {len(self._handlers)} handlers pid={os.getpid()}>"

    # -- inside

    def _reader(self, handler: Handler) -> Reader:
        options = handler.merged(self.defaults)
        if self._sharing is not None:
            options = self._sharing.options(options)
        if options.get("rate_limit") is not None:
            options["rate_limit"] = shared_rate(options["rate_limit"], self.processes)
        on_give_up = options.get("on_give_up")
        if isinstance(on_give_up, str):
            options["on_give_up"] = by_name(on_give_up, lambda: self._writer_for(options))
        return Reader(handler.topic, handler.channel, wrapped(handler, self.middleware), **options)

    def _writer_for(self, options: dict[str, Any]) -> Writer:
        wanted = writer_options(options)
        for had, writer in self._writers:
            if had == wanted:
                return writer
        writer = Writer(**wanted)
        self._writers.append((wanted, writer))
        return writer

    def _not_started(self) -> None:
        if self._readers is not None:
            raise ClosedError("the Worker has started; make a new one")


def _checked(topic: str, channel: str, function: Any, options: dict[str, Any]) -> None:
    """Raise what a Reader would, when it is made; nothing is opened."""
    if isinstance(options.get("on_give_up"), str):
        options["on_give_up"] = print
    Reader(topic, channel, function, **options)


class Middleware(Generic[Given]):
    """Base class: override the hooks you need; those you leave cost nothing.

    *message* is what the handler gets: a :class:`~gnsq_lite.Message`, or a list of them where it has a *batch_size*; a
    type checker is told of that by ``Middleware[list[Message]]``.
    The hooks run where the handler runs, and several at once where handlers do.  Middleware given first is outermost:
    its ``before`` runs first and its ``after`` or ``failed`` last.
    """

    def before(self, message: Given) -> None:
        """Runs before the handler.  What it raises is the message's failure; the handler is not called."""

    def after(self, message: Given) -> None:
        """Runs when the handler has returned.  What it raises is the message's failure."""

    def failed(self, message: Given, error: BaseException) -> None:
        """Runs when the handler, or middleware further in, raised; ``Requeue`` too.  *error* is raised on after it."""

    def started(self, worker: Worker) -> None:
        """Runs once, before the first message, in each process."""

    def stopped(self, worker: Worker) -> None:
        """Runs once, after the last message, in each process."""

    def wrap(self, call: Callable[[Given], object], handler: Handler) -> Callable[[Given], object]:
        """Return what is called in place of *call*; override it to keep something from before to after."""
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
                    _tell(failed, message, error)
                raise
            if after is not None:
                after(message)

        return wrapped

    def _overridden(self, name: str) -> Callable[..., Any] | None:
        return None if getattr(type(self), name) is getattr(Middleware, name) else getattr(self, name)


def _tell(failed: Callable[..., Any], message: Any, error: BaseException) -> None:
    try:
        failed(message, error)
    except Exception:
        log.exception("middleware raised in its failed() hook")


def wrapped(handler: Handler, middleware: Iterable[Middleware[Any]]) -> Callable[[Any], Any]:
    """Return the handler's function within all *middleware*, the first one outermost."""
    call: Callable[[Any], Any] = handler.function
    for each in reversed(list(middleware)):
        call = each.wrap(call, handler)
    return call
