"""Options of a Writer that :mod:`gnsq_lite.options` does not declare, and the complete settings of its core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import AuthFirstError, CertificateError, NSQError, OptionError, TLSNotGranted, WrongDialectError
from gnsq_lite.net.settings import CoreSettings, SharedOptions
from gnsq_lite.option_fields import check_number, count, documented, duration, size
from gnsq_lite.options import DEFER, TIMEOUT
from gnsq_lite.publish.middleware import PublishMiddleware

#: Endpoint of a publish that may go to any nsqd.
NOWHERE = Endpoint("", 0)
#: Errors that no retry can fix.  Publishes fail with such an error at once if no nsqd was ever reached.
_MISCONFIGURED = (CertificateError, TLSNotGranted, AuthFirstError, WrongDialectError)


def hopeless(errors: Sequence[NSQError | None]) -> NSQError | None:
    """Return one of *errors*, the last errors of all nsqds, if no retry can help.  Return None if a retry may help.

    A retry cannot help if each nsqd is misconfigured, or one has another dialect (then its whole cluster has).
    """
    wrong = [error for error in errors if isinstance(error, WrongDialectError)]
    if wrong or all(isinstance(error, _MISCONFIGURED) for error in errors):
        return next(iter(wrong or errors), None)
    return None


@dataclass(frozen=True, kw_only=True)
class WriterOptions(SharedOptions):
    """Options of a Writer alone (PUB-1 to PUB-4)."""

    publish_timeout: float = duration(15.0, *TIMEOUT, "time limit of a publish, from connecting to the answer")
    retries: int = count(
        0, 0, 1000, "times", "retries of a publish with an unknown outcome; nsqd may then have the message twice"
    )
    max_msg_size: int = size(
        1024 * 1024,
        1,
        2**31 - 1,
        "largest body, as nsqd's --max-msg-size; a larger body is refused before anything is sent",
    )
    max_body_size: int = size(
        5 * 1024 * 1024, 64, 2**31 - 1, "largest MPUB, as nsqd's --max-body-size; larger batches are split"
    )
    max_defer: float = duration(
        3600.0, *DEFER, "longest defer, as nsqd's --max-req-timeout; a longer defer is refused before anything is sent"
    )
    max_pending: int = size(
        64 * 1024 * 1024, 1, 2**40, "most unanswered bytes of publish_nowait, which raises BacklogFull above that"
    )
    max_connections: int = count(
        100, 1, 10_000, "connections", "most connections of publishing threads to one nsqd; each one sends AUTH"
    )

    coalesce: bool = documented(
        False, "send the publishes to a topic in one loop iteration as one MPUB; each publish has its own outcome"
    )
    trace: bool = documented(False, "publishes return a PublishReceipt; Youzan's NSQ")
    middleware: Sequence[PublishMiddleware] = documented(
        (), "run code before and after each publish; the outermost first"
    )


def check_defer(defer: float, longest: float) -> float:
    """Return *defer*, in seconds.  Raises OptionError for a delay that nsqd would refuse (WIRE-8)."""
    if check_number("defer", defer, *DEFER) > longest:
        why = (
            f"must be at most max_defer, {longest:g} s (nsqd's --max-req-timeout); an outbox publishes later, with at="
        )
        raise OptionError("defer", defer, why)
    return defer


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(CoreSettings, WriterOptions):
    """All options of a Writer, checked and complete."""
