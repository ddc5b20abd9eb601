"""Options that only Readers have, and the complete settings of a Reader's core."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import OptionError
from gnsq_lite.keywords import Addresses, check_callables
from gnsq_lite.message import Message
from gnsq_lite.net.settings import CoreSettings, Hooks, SharedOptions
from gnsq_lite.option_fields import check_choice, count, documented, duration
from gnsq_lite.options import TIMEOUT, BackoffOptions, HandlerOptions, HandlerPool, RetryOptions

#: Values of the option ``delivery``.
DeliveryMode = Literal["auto", "prompt", "bulk"]
#: Values of the option ``batch_format``.
BatchFormat = Literal["list", "pyarrow"]
_MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ReaderOptions(SharedOptions):
    """Options that only Readers have."""

    nsqd_tcp_addresses: Addresses | None = documented(
        None,
        "nsqds to connect to: 'host:port', a list, or a comma-separated string.  If no nsqd and no nsqlookupd"
        " is given, the variable NSQ_LOOKUPD_HTTP_ADDRESSES is used, else NSQD_TCP_ADDRESSES, else 127.0.0.1:4150",
    )
    max_in_flight: int = count(
        1, 0, _MOST, "messages", "maximum unanswered messages, summed over all nsqds; 0: receive no messages"
    )
    concurrency: int | None = count(
        None, 1, _MOST, "handlers", "maximum running handlers; None: max_in_flight, at most 100 greenlets or 8 threads"
    )
    handler_pool: HandlerPool = documented(
        "auto",
        "'greenlet', 'thread' or 'inline' (in the greenlet that reads; fast, but a slow handler delays heartbeats);"
        " 'auto': greenlets in a monkey-patched process, else threads",
    )
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = documented(
        None,
        "function that returns an async context manager, which is open while the async handlers of this process run,"
        " for example with a pool of connections",
    )
    delivery: DeliveryMode = documented(
        "auto",
        "'prompt': RDY is slightly more than the messages in flight, so nsqd sends each message at once, and RDY rises"
        " with the message rate; 'bulk': RDY is the whole share; 'auto': 'bulk' for batches, else 'prompt'",
    )
    backoff: BackoffOptions | bool | None = documented(
        None, "BackoffOptions; None or True: the default BackoffOptions; False: failures do not slow the Reader down"
    )
    on_give_up: Callable[[Message], None] | None = documented(
        None,
        "function that is called with each message that is given up; if it returns, the message is finished; if it"
        " raises, the message is requeued; None: log the message",
    )
    not_before: Callable[[Message], datetime | float | None] | None = documented(
        None,
        "function that returns the time before which a message must not be handled: an aware datetime, seconds since"
        " 1970, or None for no such time; a message that comes early is requeued for the rest, unless the function"
        " has answered it",
    )
    batch_size: int | None = count(
        None, 1, _MOST, "messages", "maximum messages in a handler's list; None: the handler gets single messages"
    )
    batch_format: BatchFormat = documented(
        "list",
        "'list': the handler gets a list of messages; 'pyarrow': the handler gets a pyarrow.RecordBatch, which costs"
        " half the CPU of a list that becomes a table; needs batch_size and the extra recording",
    )
    batch_wait: float | None = duration(
        None, *TIMEOUT, "longest wait for a full list, at most half of msg_timeout; None: 1"
    )
    partitions: Collection[int] | None = documented(None, "partitions to read; Youzan's NSQ")
    ordered: bool = documented(False, "read each partition in order; Youzan's NSQ")
    rdy_idle_timeout: float = duration(
        10.0,
        *TIMEOUT,
        "how long a connection without messages keeps its RDY if there are more connections than max_in_flight",
    )
    rdy_low_timeout: float = duration(30.0, *TIMEOUT, "how long any connection keeps its RDY if others wait for RDY")
    handle_signals: bool = documented(
        True,
        "whether SIGTERM closes the Reader while the main thread waits in start(block=True) or join() of any Reader;"
        " no effect if the program handles SIGTERM",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_callables(on_give_up=self.on_give_up, not_before=self.not_before)
        check_choice("handler_pool", self.handler_pool, "auto", "greenlet", "thread", "inline")
        if self.lifespan is not None and not callable(self.lifespan):
            raise OptionError("lifespan", self.lifespan, "must be a function that returns an async context manager")
        check_choice("delivery", self.delivery, "auto", "prompt", "bulk")
        if self.backoff is not None and not isinstance(self.backoff, (bool, BackoffOptions)):
            raise OptionError("backoff", self.backoff, "must be BackoffOptions, None, True or False")
        check_choice("batch_format", self.batch_format, "list", "pyarrow")
        for name, value in {"batch_wait": self.batch_wait, "batch_format": self.batch_format}.items():
            if value not in (None, "list") and self.batch_size is None:
                raise OptionError(name, value, "needs batch_size")
        if self.handler_pool == "inline" and self.concurrency is not None and self.concurrency > 1:
            raise OptionError("concurrency", self.concurrency, "handler_pool='inline' runs one handler at a time")

    @property
    def is_prompt(self) -> bool:
        """Whether RDY is little more than the messages in flight, so that nsqd does not buffer messages."""
        return self.delivery == "prompt" or (self.delivery == "auto" and self.batch_size is None)


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(CoreSettings, ReaderOptions):
    """All options of a Reader, checked, with all defaults filled in."""

    topic: str
    channel: str
    handler: Callable[[Any], Any]
    pool: Literal["greenlet", "thread", "inline", "async"]
    #: Whether the handler gets Rows, or lists of Rows (:mod:`gnsq_lite.consume.rows`).
    takes_rows: bool = False
    limits: HandlerOptions
    retry: RetryOptions
    backoff: BackoffOptions
    hooks: Hooks = field(default_factory=Hooks)
    on_give_up: Callable[[Message], Any]
    #: Returns what other processes recorded for a message: the arguments *begun* and *unseen* of ``Tries.gives_up()``.
    known_of: Callable[[Message], tuple[int, int]] = lambda message: (0, 0)
    #: Called with a message and the error of its handler.  Returns the error, or a GiveUp or Requeue to use instead.
    judge: Callable[[Message, BaseException], BaseException] = lambda message, error: error

    def log_fields(self, endpoint: Endpoint | None = None) -> dict[str, Any]:
        """Return the argument ``extra`` of a log call about *endpoint*, or about the Reader."""
        found = {"topic": self.topic, "channel": self.channel}
        return found if endpoint is None else {**found, "nsqd": str(endpoint)}


def message_fields(message: Message) -> dict[str, Any]:
    """Return the argument ``extra`` of a log call about *message*."""
    id = message.id[:16].decode("ascii", "replace")
    named = {"topic": message.topic, "channel": message.channel, "nsqd": message.nsqd_address}
    return {**named, "message_id": id, "attempt": message.attempts}
