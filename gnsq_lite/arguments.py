"""Types of handlers, and of the keyword arguments of Reader, Writer and Worker, for type checkers and editors.

Programs do not import this module.  ``python -m tests.keyword_types`` generates the classes below the line from the
options in :mod:`gnsq_lite.options` and the settings modules, and a test checks that the classes are current.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, TypedDict, TypeVar

from gnsq_lite.consume.settings import DeliveryMode
from gnsq_lite.dialect import Dialect
from gnsq_lite.errors import NSQError
from gnsq_lite.keywords import Addresses
from gnsq_lite.message import Message
from gnsq_lite.net.settings import AddressMap
from gnsq_lite.options import BackoffOptions, Compression, DialectName, HandlerPool, TLSOptions
from gnsq_lite.publish.middleware import PublishMiddleware

#: Types of handlers.  A handler must return None, or be an ``async def`` that does: only an exception makes a message
#: fail.
Returned = Coroutine[Any, Any, None] | None
OneByOne = Callable[[Message], Returned]
InBatches = Callable[[list[Message]], Returned]
InColumns = Callable[[Any], Returned]  # pyarrow has no types
WithValue = Callable[[Any, Message], Returned]

#: Exception classes that give up a message at once, or a mapping from each class to the attempt that gives it up.
GiveUpOn = Collection[type[BaseException]] | Mapping[type[BaseException], int]
#: Seconds until nsqd sends a failed message again, or a function of (error, attempts) that returns the seconds.
Delay = float | Callable[[Any, int], float]
#: One delay for all exceptions, or a delay for each exception class.
RetryDelay = Delay | Mapping[type[BaseException], Delay]

#: Type of the value that a handler with ``decode=`` gets besides the message.
Value = TypeVar("Value")
One = TypeVar("One", bound=OneByOne)
Batch = TypeVar("Batch", bound=InBatches)
Columns = TypeVar("Columns", bound=InColumns)

# -- written by python -m tests.keyword_types --------------------------------------------------------------------------


class _Shared(TypedDict, total=False):
    """Keywords of Readers and Writers."""

    lookupd_http_addresses: Addresses | None
    dialect: DialectName | Dialect
    address_map: AddressMap | None
    allowed_addresses: Callable[[str, int], bool] | None
    tls: TLSOptions | ssl.SSLContext | bool | None
    compression: Compression | None
    deflate_level: int
    auth_secret: str | bytes | None
    heartbeat_interval: float
    output_buffer_size: int | None
    output_buffer_timeout: float | None
    sample_rate: int
    msg_timeout: float | None
    client_id: str | None
    hostname: str | None
    user_agent: str
    connect_timeout: float
    handshake_timeout: float
    write_timeout: float
    max_frame_size: int
    extra_identify: Mapping[str, object]
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_timeout: float
    lookupd_max_body: int
    lookupd_tls: bool | TLSOptions | ssl.SSLContext | None
    lookupd_token: str | None
    reconnect_delay: float
    max_reconnect_delay: float
    reconnect_jitter: float


class WriterArguments(_Shared, total=False):
    """Keywords of a Writer."""

    publish_timeout: float
    retries: int
    max_msg_size: int
    max_body_size: int
    max_defer: float
    max_pending: int
    max_connections: int
    coalesce: bool
    trace: bool
    middleware: Sequence[PublishMiddleware]


class _Reader(_Shared, total=False):
    """Keywords that Readers and ``@worker.handler`` share."""

    nsqd_tcp_addresses: Addresses | None
    max_in_flight: int
    concurrency: int | None
    handler_pool: HandlerPool
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    delivery: DeliveryMode
    backoff: BackoffOptions | bool | None
    not_before: Callable[[Message], datetime | float | None] | None
    partitions: Collection[int] | None
    ordered: bool
    rdy_idle_timeout: float
    rdy_low_timeout: float
    handle_signals: bool
    on_connected: Callable[[str], None] | None
    on_disconnected: Callable[[str, NSQError], None] | None
    on_error: Callable[[NSQError], None] | None
    on_failure: Callable[[Message, BaseException], None] | None
    on_backoff: Callable[[float], None] | None
    time_limit: float | None
    touch: bool
    rate_limit: str | None
    max_attempts: int
    requeue_delay: float
    requeue_growth: float
    max_requeue_delay: float
    requeue_jitter: float


class ReaderArguments(_Reader, total=False):
    """Keywords of a Reader, except *batch_size*, *batch_wait* and *batch_format*."""

    on_give_up: Callable[[Message], None] | None


class HandlerArguments(_Reader, total=False):
    """Keywords of ``@worker.handler`` and of a Worker's defaults."""

    on_give_up: str | Callable[[Message], None] | None
    give_up_on: GiveUpOn | None
    retry_delay: RetryDelay | None
