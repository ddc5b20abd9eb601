"""``gnsq-lite relay``: read topics here, publish them there, as nsq_to_nsq does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import click

from gnsq_lite import Message, Reader, Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.goflags import CONNECTION, go_command, option
from gnsq_lite.cli.hostpool import MODES, Pool, Timings
from gnsq_lite.cli.jsonfilter import Filter
from gnsq_lite.cli.output import errors
from gnsq_lite.cli.serving import serve
from gnsq_lite.wire.names import check_topic


class Chooser(Protocol):
    """Chooses the next destination, by number, and takes note of the outcome."""

    def choose(self) -> int: ...

    def mark(self, number: int, *, ok: bool, seconds: float) -> None: ...


class Weighted:
    """Chooses at random, by weight."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights

    def choose(self) -> int:
        """Return the number of the destination to publish to."""
        return random.choices(range(len(self._weights)), self._weights)[0]

    def mark(self, number: int, *, ok: bool, seconds: float) -> None:
        """Do nothing: weights are fixed."""


def weighted(addresses: Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Return addresses and weights of ``HOST:PORT`` or ``HOST:PORT*WEIGHT``; None where no weight is given."""
    names, weights = [], []
    for address in addresses:
        name, star, weight = address.partition("*")
        try:
            value = float(weight) if star else 1.0
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise click.UsageError(f"{address!r}: the weight must be a number above 0")
        names.append(name)
        weights.append(value)
    return names, weights if any("*" in address for address in addresses) else None


class Relay:
    """The handler: publishes a batch to one destination; returns when it said OK."""

    def __init__(
        self,
        writers: list[Writer],
        chooser: Chooser,
        topic: str | None,
        chosen: Filter,
        on_call: Callable[[int, float, int], None] = lambda number, seconds, count: None,
    ) -> None:
        self._writers, self._chooser, self._topic, self._filter = writers, chooser, topic, chosen
        self._on_call = on_call
        self.relayed = self.filtered = 0

    def __call__(self, batch: list[Message]) -> None:
        """Relay a batch of one topic."""
        bodies = [body for body in (self._filter.apply(message.body) for message in batch) if body]
        if bodies:
            self._publish(self._topic or batch[0].topic, bodies)
        self.relayed += len(bodies)
        self.filtered += len(batch) - len(bodies)

    def _publish(self, topic: str, bodies: list[bytes]) -> None:
        number, began, ok = self._chooser.choose(), time.monotonic(), False
        try:
            self._writers[number].multipublish(topic, bodies)
            ok = True
        finally:
            seconds = time.monotonic() - began
            self._chooser.mark(number, ok=ok, seconds=seconds)
        self._on_call(number, seconds, len(bodies))


@go_command(
    "relay",
    versioned=True,
    example="relay --topic clicks --nsqd-tcp-address here:4150 --destination-nsqd-tcp-address there:4150",
)
@flags.addresses
@flags.topics
@flags.channel("nsq_to_nsq")
@option(
    "--destination-nsqd-tcp-address",
    "destinations",
    multiple=True,
    required=True,
    metavar="HOST:PORT[*WEIGHT]",
    section=CONNECTION,
    help="Where to publish; may be repeated, with weights.",
)
@option("--destination-topic", help="Topic there; default: the same.")
@option(
    "--mode",
    type=click.Choice(MODES),
    default="hostpool",
    show_default=True,
    help="In turn; in turn without those that failed; the fast ones more often.  Weights win.",
)
@option("--require-json-field", "field", help="Relay only JSON objects that have this field ...")
@option("--require-json-value", "value", help="... with this value.")
@option("--whitelist-json-field", "keep", multiple=True, help="Keep only this field; may be repeated.")
@flags.max_in_flight
@option("--batch", type=click.IntRange(1), default=100, show_default=True, help="Most messages in one MPUB.")
@flags.status_every("messages")
@flags.consumer_opts
@flags.producer_opts
@flags.security
def command(
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    topics: tuple[str, ...],
    channel: str,
    destinations: tuple[str, ...],
    destination_topic: str | None,
    mode: str,
    max_in_flight: int,
    batch: int,
    status_every: int,
    **options: Any,
) -> int:
    """Read topics and publish them elsewhere; a message is finished after the destination said OK."""
    chosen = Filter(options.pop("field"), options.pop("value"), options.pop("keep"))
    if destination_topic is not None:
        check_topic(destination_topic)
    names, weights = weighted(destinations)
    writing = flags.of_writer(dict(options))
    reading = flags.of_reader(options, max_attempts=0, requeue_delay=1.0)
    limits: dict[str, Any] = {
        "batch_size": min(batch, max_in_flight),
        "batch_wait": 0.05,
        "max_in_flight": max_in_flight,
    }
    where = flags.where(nsqds, lookupds)
    with ExitStack() as stack:
        writers = [stack.enter_context(Writer(name, **writing)) for name in names]
        chooser = Weighted(weights) if weights else Pool(len(names), mode)
        relay = Relay(writers, chooser, destination_topic, chosen, _telling(names, status_every))
        readers = [Reader(topic, channel, relay, **limits, **where, **reading) for topic in dict.fromkeys(topics)]
        try:
            serve(readers, drain=20.0)
        finally:
            errors.print(f"{relay.relayed} messages relayed, {relay.filtered} filtered out", markup=False)
    return 0


def _telling(names: list[str], every: int) -> Callable[[int, float, int], None]:
    """Return what counts messages and says how long their publishes took."""

    def say(line: str) -> None:
        errors.print(line, markup=False)

    whole = Timings(every, "aggregate", say)
    parts = [Timings(every, name, say) for name in names] if len(names) > 1 else None

    def told(number: int, seconds: float, count: int) -> None:
        for _ in range(count):
            whole.add(seconds)
            if parts is not None:
                parts[number].add(seconds)

    return told
