"""``gnsq-lite node drain``: keep an nsqd out of lookups, and wait until it has no messages and can be stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from gnsq_lite.cli import flags
from gnsq_lite.cli.cluster import Cluster, run
from gnsq_lite.cli.output import errors, visible
from gnsq_lite.cli.params import Command, Duration, option
from gnsq_lite.http import NsqdClient
from gnsq_lite.http.stats import NsqdStats
from gnsq_lite.options import HTTPOptions

#: Seconds between two requests for nsqd's statistics, and between two tombstones of a topic.  A tombstone lasts 45 s.
_POLL_INTERVAL, _TOMBSTONE_INTERVAL = 0.5, 20.0


def waiting(stats: NsqdStats) -> dict[str, int]:
    """Return the number of unfinished messages of each topic, and of each channel that is not ephemeral."""
    found = {topic.topic_name: topic.depth for topic in stats.topics}
    for topic in stats.topics:
        for channel in topic.channels:
            if not channel.channel_name.endswith("#ephemeral"):
                left = channel.depth + channel.in_flight_count + channel.deferred_count
                found[f"{topic.topic_name}/{channel.channel_name}"] = left
    return {name: count for name, count in found.items() if count}


@click.command("drain", cls=Command, example="node drain nsqd1:4151 --timeout 5m")
@click.argument("node")
@option("--timeout", type=Duration(), default="5m", show_default=True, help="Give up after this time.")
@option("--idle", type=Duration(), default="10s", show_default=True, help="Exit after this time without a message.")
@flags.lookupds
@flags.http_timeout
def drain(node: str, timeout: float, idle: float, lookupds: tuple[str, ...], http_timeout: float) -> int:
    """Tombstone all topics of NODE (host:http_port).  Wait until NODE is empty and has got no message for --idle.

    Writers then find other nsqds.  Consumers stay connected and handle the messages.  Ephemeral channels are ignored.

    Exit codes: 0 no message is left; 1 messages are left after --timeout, or a server failed.
    """
    http = HTTPOptions(http_timeout=http_timeout)
    cluster = Cluster(flags.lookupd_urls(lookupds), [], http)
    if cluster.is_youzan:
        raise click.ClickException("drain is only for plain NSQ: Youzan's nsqlookupd moves partitions itself")
    cluster.check_node(node)
    with NsqdClient(node, http) as nsqd:
        left = _drained(lambda: nsqd.stats(include_clients=False, include_mem=False), cluster, node, timeout, idle)
    for name, count in sorted(left.items()):
        errors.print(f"gnsq-lite: {visible(name)}: {count} messages are left", markup=False)
    return 1 if left else 0


def _drained(look: Callable[[], NsqdStats], cluster: Cluster, node: str, timeout: float, idle: float) -> dict[str, int]:
    """Tombstone *node* until it is empty and idle for *idle* s, or for *timeout* s.  Return the remaining counts."""
    ends, again, last, since = time.monotonic() + timeout, 0.0, dict[str, int](), time.monotonic()
    while True:
        stats, now = look(), time.monotonic()
        counts, left = {topic.topic_name: topic.message_count for topic in stats.topics}, waiting(stats)
        if now >= again or counts.keys() - last.keys():
            again = now + _TOMBSTONE_INTERVAL
            for topic in counts:
                _hide(cluster, topic, node)
        if counts != last:
            last, since = counts, now
        if now >= ends or (not left and now - since >= idle):
            return left
        time.sleep(_POLL_INTERVAL)


def _hide(cluster: Cluster, topic: str, node: str) -> None:
    """Tombstone *topic* of *node* at each nsqlookupd.  Raises ClickException if an nsqlookupd fails."""
    for each in run(cluster.on_lookupds("tombstone topic", lambda client: client.tombstone_topic(topic, node))):
        if each.outcome == "failed":
            raise click.ClickException(f"{each.server}: {each.error}")
