"""``gnsq-lite replay``: publish the messages of a recording again."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from gnsq_lite import Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import topic_names
from gnsq_lite.cli.output import Progress, errors
from gnsq_lite.cli.params import command as tool
from gnsq_lite.cli.params import option
from gnsq_lite.cli.pub import Stopped, stoppable
from gnsq_lite.cli.recording import existing, storage
from gnsq_lite.clock import Pace
from gnsq_lite.recording.files import Files
from gnsq_lite.units import parse_time
from gnsq_lite.wire.names import check_topic

#: Maximum number of messages in one MPUB, and maximum bytes of their bodies.
MOST, MOST_BYTES = 1000, 1 << 20


class Moment(click.ParamType):  # type: ignore[type-arg]
    """Click type: a time, as an age or an ISO time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds since 1970.  Raises click.BadParameter."""
        try:
            return value if isinstance(value, float) else parse_time(value, time.time())
        except ValueError:
            self.fail(f"{value!r} is not a time: write 2h (ago) or 2026-11-21T04:00:00Z", param, ctx)


class State:
    """Position of a replay in a file.  The file is read at the start, and replaced after confirmed publishes."""

    def __init__(self, path: str | None, since: float | None, url: str, to: str) -> None:
        self._path = None if path is None else Path(path)
        self.position: dict[str, int] | None = None
        self.since = since
        self._of = {"recording": url, "to": to}
        if self._path is None or not self._path.exists():
            return
        try:
            found = json.loads(self._path.read_text())
            held = found["position"], found["since"]
        except (ValueError, TypeError, KeyError) as error:
            raise click.UsageError(f"--state {path} is damaged: remove the file to replay from the start") from error
        if {name: found.get(name) for name in self._of} != self._of:
            raise click.UsageError(
                f"--state {path} belongs to another replay: {found.get('recording')} to {found.get('to')}"
            )
        self.position, self.since = held

    def note(self, position: dict[str, int]) -> None:
        """Write *position* to the file, and sync the file."""
        self.position = position
        if self._path is not None:
            state = {**self._of, "since": self.since, "position": position}
            Files().replace_text(self._path, json.dumps(state))


@tool(
    "replay",
    example="replay /var/lib/clicks --to clicks-again --nsqd-tcp-address 127.0.0.1:4150 --since 2h --rate 5000",
)
@click.argument("url")
@option("--to", "topic", required=True, shell_complete=topic_names, help="Topic to publish to.")
@flags.addresses
@storage
@option("--since", type=Moment(), help="Only messages published after this time: 2h (ago), or an ISO time.")
@option("--until", type=Moment(), help="Only messages published before this time.")
@option("--rate", type=click.FloatRange(0), default=0.0, help="Maximum messages per second; 0 sets no limit.")
@option("--state", metavar="FILE", help="File that keeps position and --since for the next replay.")
@option("--force", is_flag=True, help="Allow publishing to the recorded topic, which then has the messages twice.")
@flags.publish_timeout
@flags.security
def command(
    url: str,
    topic: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    storage: tuple[str, ...],
    since: float | None,
    until: float | None,
    rate: float,
    state: str | None,
    force: bool,
    timeout: float,
    **options: Any,
) -> int:
    """Publish the bodies of the recording at URL unchanged, up to the last row stored at the start.

    Each log is published in order.  Headers, trace ids and keys of Youzan's NSQ are not published.
    """
    check_topic(topic)
    recording = existing(url, storage)
    if recording.meta().topic == topic and not force:
        raise click.UsageError(f"{recording.url} is a recording of {topic}: pass --force to publish to it")
    noted = State(state, since, recording.url, topic)
    limit, sent = Pace(rate), 0
    settings = {**flags.where(nsqds, lookupds), **flags.secured(options), "publish_timeout": timeout}
    with Writer(**settings) as writer, Progress("replayed") as progress:
        try:
            with stoppable():
                start, end = noted.position, recording.end()
                kept = None if until is None else recording.at(int(until * 1e6))
                rows = recording.rows(
                    since=noted.since, until=until, start=start, end=end, most=MOST, most_bytes=MOST_BYTES
                )
                for position, bodies in gather(rows):
                    if bodies:
                        limit.take(len(bodies))
                        writer.multipublish(topic, bodies)
                        sent += len(bodies)
                        progress.show(messages=sent)
                    noted.note(position if kept is None else up_to(position, kept, start or {}))
        except Stopped as stopped:
            errors.print(f"gnsq-lite replay: {signal.Signals(stopped.number).name}: {sent} messages", markup=False)
            writer.close(0.0)
            return 128 + stopped.number
    errors.print(f"{sent} messages replayed", markup=False)
    return 0


def gather(rows: Iterable[tuple[dict[str, int], Any]]) -> Iterator[tuple[dict[str, int], list[bytes]]]:
    """Join small batches of rows.  Yield the bodies of one MPUB, with the position in each log after the last row."""
    bodies: list[bytes] = []
    position: dict[str, int] = {}
    size = 0
    for after, batch in rows:
        more = batch.column("body").to_pylist()
        more_size = sum(map(len, more))
        if bodies and (len(bodies) + len(more) > MOST or size + more_size > MOST_BYTES):
            yield position, bodies
            bodies, size = [], 0
        position, size = after, size + more_size
        bodies += more
    if position:
        yield position, bodies


def up_to(position: dict[str, int], kept: dict[str, int], start: dict[str, int]) -> dict[str, int]:
    """Return *position*, but in no log after *kept*, and in no log before *start*.

    *kept* is before the first row that --until excludes.  A later replay without --until must read this row.
    """
    found = {log: max(start.get(log, 0), min(row, kept.get(log, 0))) for log, row in position.items()}
    return {log: row for log, row in found.items() if row}
