"""``gnsq-lite topic | channel | node``: administer topics, channels and nodes of a cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from gnsq_lite.cli import flags
from gnsq_lite.cli.cluster import Cluster, Step, run
from gnsq_lite.cli.completion import channel_names, topic_names
from gnsq_lite.cli.drain import drain
from gnsq_lite.cli.output import echo, visible
from gnsq_lite.cli.params import command as tool
from gnsq_lite.cli.params import option
from gnsq_lite.options import HTTPOptions
from gnsq_lite.wire.names import check_channel, check_topic

_TOPIC = click.argument("topic", shell_complete=topic_names)
_CHANNEL = click.argument("channel", shell_complete=channel_names)


def _admin(name: str, example: str, *arguments: Callable[[Any], Any], text: str) -> Callable[[Any], click.Command]:
    """Return a decorator for a function that returns steps.  The command asks first, except "create", and runs them."""

    def decorate(steps: Callable[..., list[Step]]) -> click.Command:
        def command(
            nsqd_http: tuple[str, ...],
            lookupds: tuple[str, ...],
            http_timeout: float,
            yes: bool,
            as_json: bool,
            **given: Any,
        ) -> int:
            _check(given)
            has_lookupds = lookupds or os.environ.get("NSQ_LOOKUPD_HTTP_ADDRESSES") or not nsqd_http
            cluster = Cluster(
                flags.lookupd_urls(lookupds) if has_lookupds else [],
                list(nsqd_http),
                HTTPOptions(http_timeout=http_timeout),
            )
            planned = steps(cluster, **given)
            if not yes and name != "create":
                _confirm(planned, as_json)
            return _run_and_print(planned, as_json)

        made: Any = command
        made.__doc__ = text
        yes = option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
        for each in reversed((*arguments, flags.lookupds, flags.nsqd_http, flags.http_timeout, yes, flags.as_json)):
            made = each(made)
        result: click.Command = tool(name, example=example)(made)
        return result

    return decorate


def _check(given: dict[str, Any]) -> None:
    check_topic(given["topic"])
    if "channel" in given:
        check_channel(given["channel"])


def _confirm(steps: list[Step], as_json: bool) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("cannot ask for confirmation without a terminal: give --yes")
    for step in steps:
        click.echo(f"{visible(step.server)}  {step.act}", err=True)
    click.confirm("Run these steps?", abort=True, err=True)


def _run_and_print(steps: list[Step], as_json: bool) -> int:
    """Run the steps and print their results.  Return 1 if a step failed, or if no server had the topic or channel."""
    outcomes = run(steps)
    if as_json:
        echo(json.dumps([asdict(each) for each in outcomes]))
    for each in () if as_json else outcomes:
        echo(f"{each.outcome}\t{visible(each.server)}\t{each.act}" + (f"\t{visible(each.error)}" if each.error else ""))
    return 0 if any(o.outcome == "ok" for o in outcomes) and all(o.outcome != "failed" for o in outcomes) else 1


@click.group("topic")
def topic() -> None:
    """Create, delete, empty, pause and unpause a topic on all nodes."""


@click.group("channel")
def channel() -> None:
    """Create, delete, empty, pause and unpause a channel on all nodes."""


@click.group("node")
def node() -> None:
    """Tombstone an nsqd for a topic, or drain an nsqd."""


@topic.add_command
@_admin(
    "create",
    "topic create clicks",
    _TOPIC,
    option("--partition-num", type=click.IntRange(1), help="Number of partitions; only for Youzan's NSQ."),
    option("--replicator", type=click.IntRange(1), help="Number of replicas of each partition; only for Youzan's NSQ."),
    text="Create TOPIC on every nsqlookupd, and on each --nsqd-http-address.",
)
def topic_create(cluster: Cluster, topic: str, partition_num: int | None, replicator: int | None) -> list[Step]:
    if cluster.is_youzan and not (partition_num and replicator):
        raise click.UsageError("this is a cluster of Youzan's NSQ: give --partition-num and --replicator")
    number, replicas = (partition_num, replicator) if cluster.is_youzan else (None, None)
    steps = cluster.on_lookupds(
        "create topic", lambda client: client.create_topic(topic, partition_num=number, replicator=replicas)
    )
    return steps + cluster.on_given_nsqds("create topic", lambda client: client.create_topic(topic))


@topic.add_command
@_admin("delete", "topic delete clicks --yes", _TOPIC, text="Delete TOPIC with its channels and messages on all nodes.")
def topic_delete(cluster: Cluster, topic: str) -> list[Step]:
    cluster.check_known(topic)
    steps = cluster.on_lookupds("delete topic", lambda client: client.delete_topic(topic))
    if cluster.is_youzan or not cluster.has_nsqds(topic):  # Youzan's nsqlookupd deletes the topic on all nsqds
        return steps
    # Look up the nsqds now.  After the first steps, the nsqlookupds do not list the nsqds of the topic.
    return steps + cluster.on_nsqds(topic, "delete topic", lambda client, partition: client.delete_topic(topic))


def _add_topic(name: str, text: str) -> None:
    def steps(cluster: Cluster, topic: str) -> list[Step]:
        if cluster.is_youzan:
            raise click.ClickException(f"Youzan's nsqd cannot {name} a topic: {name} its channels")
        return cluster.on_nsqds(topic, f"{name} topic", lambda client, _: getattr(client, f"{name}_topic")(topic))

    topic.add_command(_admin(name, f"topic {name} clicks", _TOPIC, text=text)(steps))


_add_topic("empty", "Drop the messages of TOPIC that are not in a channel yet, on all nodes.")
_add_topic("pause", "Stop the flow of messages from TOPIC to its channels, on all nodes.")
_add_topic("unpause", "Resume a paused TOPIC, on all nodes.")


@channel.add_command
@_admin("create", "channel create clicks archive", _TOPIC, _CHANNEL, text="Create CHANNEL of TOPIC on all nodes.")
def channel_create(cluster: Cluster, topic: str, channel: str) -> list[Step]:
    act = "create channel"

    def make(client: Any, partition: int | None) -> None:
        client.create_channel(topic, channel, partition=partition)

    if cluster.is_youzan:
        if cluster.needs_registration(topic):
            return cluster.on_lookupds(act, lambda client: client.create_channel(topic, channel))
        return cluster.on_nsqds(topic, act, make)
    steps = cluster.on_lookupds(act, lambda client: client.create_channel(topic, channel))
    return steps + (cluster.on_nsqds(topic, act, make) if cluster.has_nsqds(topic) else [])


@channel.add_command
@_admin(
    "delete", "channel delete clicks archive", _TOPIC, _CHANNEL, text="Delete CHANNEL and its messages, on all nodes."
)
def channel_delete(cluster: Cluster, topic: str, channel: str) -> list[Step]:
    act = "delete channel"

    def remove(client: Any, partition: int | None) -> None:
        client.delete_channel(topic, channel, partition=partition)

    if cluster.needs_registration(topic):
        return cluster.on_lookupds(act, lambda client: client.delete_channel(topic, channel))
    nsqds = cluster.on_nsqds(topic, act, remove)
    if cluster.is_youzan:
        return nsqds
    return cluster.on_lookupds(act, lambda client: client.delete_channel(topic, channel)) + nsqds


def _add_channel(name: str, text: str) -> None:
    def steps(cluster: Cluster, topic: str, channel: str) -> list[Step]:
        def act(client: Any, partition: int | None) -> None:
            getattr(client, f"{name}_channel")(topic, channel, partition=partition)

        return cluster.on_nsqds(topic, f"{name} channel", act)

    channel.add_command(_admin(name, f"channel {name} clicks archive", _TOPIC, _CHANNEL, text=text)(steps))


_add_channel("empty", "Drop all messages of CHANNEL on all nodes, including messages in flight and deferred messages.")
_add_channel("pause", "Stop sending messages of CHANNEL to its consumers, on all nodes.")
_add_channel("unpause", "Resume a paused CHANNEL, on all nodes.")


node.add_command(drain)


@node.add_command
@_admin(
    "tombstone",
    "node tombstone nsqd1:4151 clicks",
    click.argument("node"),
    _TOPIC,
    text="Tombstone NODE (host:http_port) for TOPIC (45 s by default).  On plain NSQ also delete TOPIC on NODE.",
)
def node_tombstone(cluster: Cluster, node: str, topic: str) -> list[Step]:
    cluster.check_node(node)  # nsqlookupd accepts any node
    steps = cluster.on_lookupds("tombstone topic", lambda client: client.tombstone_topic(topic, node))
    if cluster.is_youzan:  # the cluster itself moves the partitions
        return steps
    return [*steps, cluster.on_nsqd(node, "delete topic", lambda client: client.delete_topic(topic))]
