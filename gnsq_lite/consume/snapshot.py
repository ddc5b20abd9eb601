"""Returns a Reader's state for ``stats()``."""

from __future__ import annotations

from gnsq_lite.consume.consumer import COUNTED, Consumer
from gnsq_lite.net.connection import connection_stats
from gnsq_lite.stats import ReaderStats


def reader_stats(core: Consumer) -> ReaderStats:
    """Return the state of a Reader.  Call it in the loop's thread."""
    now = core.clock.now()
    connections = list(core.connections.values())
    return ReaderStats(
        topic=core.settings.topic,
        channel=core.settings.channel,
        state=_state(core),
        connections=tuple(
            connection_stats(
                c,
                now,
                ready=c.ready,
                share=core.flow.allocator.ready(c),
                in_flight=c.in_flight,
                received=c.received,
                finished=c.finished,
                requeued=c.requeued,
                expired=c.expired,
                answers_lost=c.answers_lost,
            )
            for c in connections
        ),
        max_in_flight=core.flow.max_in_flight,
        in_flight=sum(c.in_flight for c in connections),
        ready=sum(c.ready for c in connections),
        share=core.flow.allocator.total_ready,
        **{name: core.before[name] + sum(getattr(c, name) for c in connections) for name in COUNTED},
        failures=core.outcomes.failures.value(),
        given_up=core.outcomes.given_up.value(),
        late_answers=core.late_answers,
        answers_lost=core.answers_lost,
        reconnects=core.reconnects,
        queued=core.queue.queued(),
        handlers_running=core.pool.busy(),
        concurrency=core.concurrency,
        handlers_abandoned=core.end.abandoned,
        backoff_level=max(each.level for each in core.flow.backoffs.values()),
        backoff_for=max(each.left() for each in core.flow.backoffs.values()),
        starved=core.flow.allocator.is_starved(),
        lookupds=core.discovery.health(),
        dropped=core.dropped,
        oldest_handler=core.limits.oldest(),
        handlers_overdue=core.limits.overdue,
        unavailable={str(endpoint): str(reason) for endpoint, reason in core.losses.reasons().items()},
        error=None if core.error is None else str(core.error) or type(core.error).__name__,
    )


def _state(core: Consumer) -> str:
    """Return the state as one word.  The supervisor and its live page compare this word."""
    if core.ended.done():
        return "closed"
    if core.closing:
        return "closing"
    if core.flow.paused:
        return "paused"
    if any(each.level for each in core.flow.backoffs.values()):
        return "backoff"
    return "connected" if core.connections else "connecting"
