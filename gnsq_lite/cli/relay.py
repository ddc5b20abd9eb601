"""``gnsq-lite relay``: read topics here, publish them there, as nsq_to_nsq does."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from gnsq_lite import Message, Reader, Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.output import errors
from gnsq_lite.cli.serving import serve
from gnsq_lite.wire.names import check_topic


def weighted(addresses: Sequence[str]) -> tuple[list[str], list[float]]:
    """Return addresses and their weights out of ``HOST:PORT`` or ``HOST:PORT*WEIGHT``."""
    names, weights = [], []
    for address in addresses:
        name, star, weight = address.partition("*")
        try:
            value = float(weight) if star else 1.0
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise click.UsageError(f"{address!r}: a weight is a number above 0")
        names.append(name)
        weights.append(value)
    return names, weights


class Filter:
    """Passes messages whose JSON object has a field, or a field of a value; and may keep only some fields."""

    def __init__(self, field: str | None, value: str | None, keep: tuple[str, ...]) -> None:
        self._field, self._value, self._keep = field, value, keep

    def apply(self, body: bytes) -> bytes | None:
        """Return what is to be published; None: nothing.  A body that is no JSON object passes only unfiltered."""
        if self._field is None and not self._keep:
            return body
        try:
            return self._of_json(body)
        except (ValueError, RecursionError):  # no JSON, or nested beyond what is read here
            return None

    def _of_json(self, body: bytes) -> bytes | None:
        record = json.loads(body)
        if not isinstance(record, dict):
            return None
        if self._field is not None:
            if self._field not in record:
                return None
            if self._value is not None and str(record[self._field]) != self._value:
                return None
        if self._keep:
            return json.dumps({name: record[name] for name in self._keep if name in record}).encode()
        return body


class Relay:
    """The handler: publishes a batch to one destination, chosen by weight; returns when it said OK."""

    def __init__(self, writers: list[Writer], weights: list[float], topic: str | None, chosen: Filter) -> None:
        self._writers, self._weights, self._topic, self._filter = writers, weights, topic, chosen
        self.relayed = self.filtered = 0

    def __call__(self, batch: list[Message]) -> None:
        """Relay a batch of one topic."""
        bodies = [body for body in (self._filter.apply(message.body) for message in batch) if body]
        if bodies:
            (writer,) = random.choices(self._writers, self._weights)
            writer.multipublish(self._topic or batch[0].topic, bodies)
        self.relayed += len(bodies)
        self.filtered += len(batch) - len(bodies)


@click.command("relay")
@flags.addresses
@click.option("--topic", "topics", multiple=True, required=True, help="Topic to read; may be repeated.")
@click.option("--channel", default="nsq_to_nsq", show_default=True)
@click.option(
    "--destination-nsqd-tcp-address",
    "destinations",
    multiple=True,
    required=True,
    metavar="HOST:PORT[*WEIGHT]",
    help="Where to publish; may be repeated, with weights.",
)
@click.option("--destination-topic", help="Topic there; default: the same.")
@click.option("--require-json-field", "field", help="Relay only JSON objects that have this field ...")
@click.option("--require-json-value", "value", help="... with this value.")
@click.option("--whitelist-json-field", "keep", multiple=True, help="Keep only this field; may be repeated.")
@click.option("--max-in-flight", type=click.IntRange(1), default=200, show_default=True)
@click.option(
    "--batch", type=click.IntRange(1), default=100, show_default=True, help="Messages of one MPUB at the most."
)
@flags.security
def command(
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    topics: tuple[str, ...],
    channel: str,
    destinations: tuple[str, ...],
    destination_topic: str | None,
    field: str | None,
    value: str | None,
    keep: tuple[str, ...],
    max_in_flight: int,
    batch: int,
    **options: Any,
) -> int:
    """Read topics and publish them elsewhere; a message is finished after the destination said OK."""
    if value is not None and field is None:
        raise click.UsageError("--require-json-value needs --require-json-field")
    if destination_topic is not None:
        check_topic(destination_topic)
    names, weights = weighted(destinations)
    security = flags.secured(options)
    with ExitStack() as stack:
        writers = [stack.enter_context(Writer(name, **security)) for name in names]
        relay = Relay(writers, weights, destination_topic, Filter(field, value, keep))
        keywords: dict[str, Any] = {**flags.where(nsqds, lookupds), **security}
        readers = [
            Reader(
                topic,
                channel,
                relay,
                batch_size=min(batch, max_in_flight),
                batch_wait=0.05,
                max_in_flight=max_in_flight,
                max_attempts=0,
                requeue_delay=1.0,
                **keywords,
            )
            for topic in topics
        ]
        try:
            serve(readers, drain=20.0)
        finally:
            errors.print(f"{relay.relayed} messages relayed, {relay.filtered} filtered out", markup=False)
    return 0
