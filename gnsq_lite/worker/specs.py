"""The specification of a handler, and checks of a Worker's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gnsq_lite.errors import OptionError
from gnsq_lite.keywords import is_async
from gnsq_lite.message import GiveUp, Message
from gnsq_lite.net.os_threads import WeakGroup
from gnsq_lite.net.settings import SharedOptions
from gnsq_lite.option_fields import check_number, per_second
from gnsq_lite.options import ConnectionOptions, LookupOptions, RetryOptions
from gnsq_lite.supervise.election import Election
from gnsq_lite.worker.dead import check_words
from gnsq_lite.worker.failures import Failures

if TYPE_CHECKING:
    from gnsq_lite.arguments import InBatches, OneByOne, WithValue

#: Reader options that a Writer also has.
_SHARED = (
    {"nsqd_tcp_addresses"}
    | {spec.name for kind in (SharedOptions, ConnectionOptions, LookupOptions) for spec in fields(kind)}
) - {"sample_rate", "msg_timeout"}


#: Options of a handler that are not keywords of a Reader.
OWN = ("give_up_on", "retry_delay", "decode")


@dataclass(frozen=True)
class ProcessSettings:
    """Values that the supervisor gives to the Worker of one process."""

    #: Number of processes that share a ``rate_limit``.
    processes: int
    #: Election of the process that publishes scheduled messages.
    election: Election
    #: Returns how many handler calls did not finish a message, and how many processes of the supervisor have ended.
    known_of: Callable[[Message], tuple[int, int]]
    #: Whether the Readers start paused.
    is_paused: bool


@dataclass(frozen=True)
class Handler:
    """A function, and the topic and channel of its messages.

    Attributes:
        options: Keywords of :class:`~gnsq_lite.Reader`, and options in :data:`OWN`, without the Worker's defaults.
    """

    topic: str
    channel: str
    function: OneByOne | InBatches | WithValue
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the function's full name, such as ``shop.tasks.charge``."""
        function = self.function
        qualified = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{getattr(function, '__module__', '?')}.{qualified}"

    def merged(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return *defaults* updated with the handler's options.  ``max_in_flight`` defaults to ``concurrency``."""
        merged = {**defaults, **self.options}
        concurrency = merged.get("concurrency")
        if concurrency is not None and "max_in_flight" not in merged:
            merged["max_in_flight"] = concurrency
        return merged


def split(merged: Mapping[str, Any]) -> tuple[dict[str, Any], Failures, Callable[[bytes], Any] | None]:
    """Split *merged* into Reader keywords, the Failures, and the decoder of bodies or None.  Raises OptionError."""
    decode = merged.get("decode")
    if decode is not None and not callable(decode):
        raise OptionError("decode", decode, "must be a function of bytes")
    if decode is not None and merged.get("batch_size") is not None:
        raise OptionError("decode", decode, "cannot be combined with batch_size: decode the bodies in the handler")
    reader = {name: value for name, value in merged.items() if name not in OWN}
    limit = merged.get("max_attempts", RetryOptions.max_attempts)
    jitter = merged.get("requeue_jitter", RetryOptions.requeue_jitter)
    return reader, Failures(merged.get("give_up_on"), merged.get("retry_delay"), limit, jitter), decode


def decoding(function: Any, decode: Callable[[bytes], Any]) -> Callable[[Message], Any]:
    """Return a function that decodes a message's body and calls *function* with (value, message).

    If *decode* raises, the message is given up at once, because a retry would fail in the same way.
    """

    def value_of(message: Message) -> Any:
        try:
            return decode(message.body)
        except Exception as error:
            raise GiveUp(f"cannot decode the body: {type(error).__name__}: {error}") from error

    if is_async(function):

        async def decoded_async(message: Message) -> Any:
            return await function(value_of(message), message)

        return decoded_async
    return lambda message: function(value_of(message), message)


@dataclass(frozen=True)
class Rules:
    """How a Worker calls a handler, and what it does with messages whose handler raises."""

    #: The handler in its middleware, with the decoder.  Called with a message, or with a list of messages.
    call: Callable[[Any], Any]
    failures: Failures
    retry: RetryOptions
    #: Whether *call* is called with a list of messages.
    is_batch: bool


#: The Workers of this process, and other objects with the same ``handlers`` and ``rules(handler)``, such as Django's
#: registry.  :func:`gnsq_lite.testing.deliver` finds the handler of a function here.
registries = WeakGroup()


def check_give_up(value: Any) -> None:
    """Raise OptionError or InvalidName unless *value* is None, callable, or names stores."""
    if isinstance(value, str):
        check_words(value)
    elif value is not None and not callable(value):
        raise OptionError("on_give_up", value, "must be callable, or a text such as 'directory:PATH' or 'topic:NAME'")


def check_timeouts(drain_timeout: Any, hang_timeout: Any) -> None:
    """Raise OptionError unless both timeouts are 0 to 1,000,000 seconds.  *hang_timeout* may also be None."""
    check_number("drain_timeout", drain_timeout, 0, 1_000_000)
    if hang_timeout is not None:
        check_number("hang_timeout", hang_timeout, 0, 1_000_000)


def shared_rate(rate_limit: str, processes: int) -> str:
    """Return one process's share of a ``rate_limit``."""
    rate = per_second("rate_limit", rate_limit)
    return rate_limit if processes == 1 or rate is None else f"{3600 * rate / processes!r}/h"


def retry_options(options: Mapping[str, Any]) -> RetryOptions:
    """Return the RetryOptions among the Reader *options*.  Raises OptionError."""
    return RetryOptions(**{spec.name: options[spec.name] for spec in fields(RetryOptions) if spec.name in options})


def writer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Reader *options* that a Writer also accepts."""
    return {name: value for name, value in options.items() if name in _SHARED}
