"""Keyword arguments of Reader, Writer and Worker as type checkers and editors see them.

Where several signatures share them: overloads, a Worker's defaults, a handler's options.  Nothing here runs, and a
test holds each name and its type to the signatures and options that do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from gnsq_lite.dialect import Dialect
from gnsq_lite.errors import NSQError
from gnsq_lite.keywords import Addresses, Delivery, ReaderKeywords, WriterKeywords
from gnsq_lite.message import Message
from gnsq_lite.net.settings import AddressMap
from gnsq_lite.options import BackoffOptions, DialectName, HandlerPool

#: What a handler is.  One that returns something is refused: only an exception says that a message failed, and what an
#: ``async def`` returns nobody awaits.
OneByOne = Callable[[Message], None]
InBatches = Callable[[list[Message]], None]

One = TypeVar("One", bound=OneByOne)
Batch = TypeVar("Batch", bound=InBatches)


class SharedArguments(ReaderKeywords, total=False):
    """Every keyword of a Reader but *batch_size*, *batch_wait* and *on_give_up*."""

    nsqd_tcp_addresses: Addresses | None
    lookupd_http_addresses: Addresses | None
    max_in_flight: int
    concurrency: int | None
    handler_pool: HandlerPool
    delivery: Delivery
    backoff: BackoffOptions | bool | None
    dialect: DialectName | Dialect
    partitions: Collection[int] | None
    ordered: bool
    address_map: AddressMap | None
    allowed_addresses: Callable[[str, int], bool] | None
    rdy_idle_timeout: float
    rdy_low_timeout: float
    handle_signals: bool
    on_connected: Callable[[str], None] | None
    on_disconnected: Callable[[str, NSQError], None] | None
    on_error: Callable[[NSQError], None] | None
    on_failure: Callable[[Message, BaseException], None] | None
    on_backoff: Callable[[float], None] | None
    on_slow: Callable[[Message, float], None] | None


class ReaderArguments(SharedArguments, total=False):
    """Every keyword of a Reader but *batch_size* and *batch_wait*, which say what its handler gets."""

    on_give_up: Callable[[Message], None] | None


class HandlerArguments(SharedArguments, total=False):
    """The same for ``@worker.handler`` and a Worker's defaults."""

    on_give_up: str | Callable[[Message], None] | None


class WriterArguments(WriterKeywords, total=False):
    """Every keyword of a Writer."""

    lookupd_http_addresses: Addresses | None
    coalesce: bool
    dialect: DialectName | Dialect
    trace: bool
    address_map: AddressMap | None
    allowed_addresses: Callable[[str, int], bool] | None
