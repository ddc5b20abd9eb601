"""Options that only a Writer has, and the complete settings of a Writer's core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import NotLeaderError, NotWritableError, OptionError
from gnsq_lite.net.settings import CoreSettings, SharedOptions
from gnsq_lite.option_fields import check_number, count, documented, duration, size
from gnsq_lite.options import DEFER, TIMEOUT
from gnsq_lite.publish.middleware import PublishMiddleware

#: Passed to :meth:`Dialect.encode` if any nsqd may get the publish.
ANY_ENDPOINT = Endpoint("", 0)
#: Refusals after which nsqd still reads and answers the later publishes of the connection (YZ-8).
REROUTED = (NotLeaderError, NotWritableError)


@dataclass(frozen=True, kw_only=True)
class WriterOptions(SharedOptions):
    """Options that only a Writer has."""

    publish_timeout: float = duration(15.0, *TIMEOUT, "time limit of a publish, from connecting to the answer")
    retries: int = count(
        0, 0, 1000, "times", "maximum repetitions of a publish with an unknown outcome; each may store a message twice"
    )
    max_msg_size: int = size(
        1024 * 1024, 1, 2**31 - 1, "nsqd's --max-msg-size; the Writer refuses a larger body before it sends anything"
    )
    max_body_size: int = size(
        5 * 1024 * 1024, 64, 2**31 - 1, "nsqd's --max-body-size; the Writer splits a larger batch into several MPUBs"
    )
    max_defer: float = duration(
        3600.0, *DEFER, "nsqd's --max-req-timeout; the Writer refuses a longer defer before it sends anything"
    )
    max_pending: int = size(
        64 * 1024 * 1024, 1, 2**40, "bytes of unanswered publish_nowait above which publish_nowait raises BacklogFull"
    )
    max_connections: int = count(
        4,
        1,
        1000,
        "connections",
        "blocking connections to each nsqd that plain threads share, and as many more for commands above 64 KiB",
    )

    coalesce: bool = documented(
        False, "send the publishes to a topic in one loop iteration as one MPUB; each publish has its own outcome"
    )
    trace: bool = documented(False, "each publish has a trace id and returns a PublishReceipt; only for Youzan's NSQ")
    middleware: Sequence[PublishMiddleware] = documented(
        (), "objects that run code before and after each publish; the first is the outermost"
    )


def check_defer(defer: float, longest: float) -> float:
    """Return *defer*, a number of seconds.  Raises OptionError for a delay that nsqd would refuse (WIRE-8)."""
    if check_number("defer", defer, *DEFER) > longest:
        why = f"must be at most max_defer, {longest:g} s (nsqd's --max-req-timeout); an outbox with at= has no limit"
        raise OptionError("defer", defer, why)
    return defer


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(CoreSettings, WriterOptions):
    """All options of a Writer, checked and complete."""
