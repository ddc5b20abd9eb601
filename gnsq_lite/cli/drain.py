"""``gnsq-lite node drain``: wait until an nsqd is empty, before it is stopped."""

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

#: Seconds between two requests for statistics; seconds between two tombstones of a topic (which last 45 s by default).
_LOOK, _AGAIN = 0.5, 20.0


def waiting(stats: NsqdStats) -> dict[str, int]:
    """Return the numbers of unfinished messages by topic and by topic/channel, without ephemeral channels."""
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
@option("--idle", type=Duration(), default="10s", show_default=True, help="Time without a new message before the end.")
@flags.lookupds
@flags.http_timeout
def drain(node: str, timeout: float, idle: float, lookupds: tuple[str, ...], http_timeout: float) -> int:
    """Hide NODE (host:http_port) from lookups of all its topics, and wait until all its channels are empty.

    Writers that use nsqlookupds then publish to other nsqds.  Consumers stay connected and handle the messages of NODE.

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
    """Hide *node* at most *timeout* seconds until it has no message.  Return the numbers of remaining messages."""
    ends, again, last, since = time.monotonic() + timeout, 0.0, dict[str, int](), time.monotonic()
    while True:
        stats, now = look(), time.monotonic()
        counts, left = {topic.topic_name: topic.message_count for topic in stats.topics}, waiting(stats)
        if now >= again or counts.keys() - last.keys():
            again = now + _AGAIN
            for topic in counts:
                _hide(cluster, topic, node)
        if counts != last:
            last, since = counts, now
        if now >= ends or (not left and now - since >= idle):
            return left
        time.sleep(_LOOK)


def _hide(cluster: Cluster, topic: str, node: str) -> None:
    """Tombstone *topic* of *node* at each nsqlookupd.  Raises ClickException if an nsqlookupd fails."""
    for each in run(cluster.on_lookupds("tombstone topic", lambda client: client.tombstone_topic(topic, node))):
        if each.outcome == "failed":
            raise click.ClickException(f"{each.server}: {each.error}")
