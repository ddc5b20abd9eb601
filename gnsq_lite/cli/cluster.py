"""Calls to nsqlookupds and nsqds for an action on a topic or channel, in a cluster of plain NSQ or Youzan's NSQ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from gnsq_lite.cli.lists import query_all
from gnsq_lite.errors import HTTPError, HTTPStatusError
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.options import HTTPOptions, format_address
from gnsq_lite.youzan.lookup import parse_lookupds


@dataclass(frozen=True)
class Step:
    """One call to one server."""

    server: str
    act: str
    call: Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """Result of a step: ``ok``, ``absent`` (the server replied 404) or ``failed``."""

    server: str
    act: str
    outcome: str
    error: str | None = None


def run(steps: list[Step]) -> list[Outcome]:
    """Run all steps, even if a step fails."""
    done = []
    for step in steps:
        outcome, error = "ok", None
        try:
            step.call()
        except HTTPError as failure:
            is_absent = isinstance(failure, HTTPStatusError) and failure.status == 404
            outcome, error = ("absent" if is_absent else "failed"), str(failure)
        done.append(Outcome(step.server, step.act, outcome, error))
    return done


class Cluster:
    """The nsqlookupds and nsqds given by flags, and the nsqds listed by the nsqlookupds.

    In a cluster of Youzan's NSQ, actions go to the leading nsqlookupd, and to the leader of each partition.
    """

    def __init__(self, lookupds: list[str], nsqds: list[str], http: HTTPOptions) -> None:
        self._lookupds, self._nsqds, self._http = lookupds, nsqds, http
        leader = self._leader()
        self.is_youzan = leader is not None
        self._acting = [leader] if leader is not None else lookupds

    def _leader(self) -> str | None:
        def find(client: LookupdClient) -> list[str]:
            try:
                found = parse_lookupds(client.get("/listlookup").json())
            except HTTPStatusError:  # not Youzan's nsqlookupd
                return []
            return [format_address(leader) for leader in found[:1]]

        return next(iter(self._query(find)), None)

    def _query(self, query: Callable[[LookupdClient], Any]) -> list[Any]:
        return query_all(tuple(self._lookupds), query, self._http) if self._lookupds else []

    def on_lookupds(self, act: str, call: Callable[[LookupdClient], None]) -> list[Step]:
        """Return a step with *call* for each nsqlookupd.  With Youzan's NSQ, return one step, for the leader."""
        return [Step(url, act, self._with(LookupdClient, url, call)) for url in self._acting]

    def _places(self, topic: str) -> list[tuple[str, int | None]]:
        places: dict[tuple[str, int | None], None] = {}
        for found in self._query(lambda client: [client.lookup(topic, access="r" if self.is_youzan else None)]):
            for number, node in found.partitions.items():
                places[format_address(node.http_address), number] = None
            for node in () if found.partitions else found.producers:
                places[format_address(node.http_address), None] = None
        places.update({(address, None): None for address in self._nsqds})
        return list(places)

    def check_known(self, topic: str) -> None:
        """Raise click.ClickException if no nsqlookupd knows the topic and no flag gives an nsqd."""
        if not self._nsqds and not any(self._query(lambda client: [client.lookup(topic).found])):
            raise click.ClickException(f"no nsqlookupd knows a topic {topic!r}")

    def has_nsqds(self, topic: str) -> bool:
        """Return whether an nsqlookupd lists an nsqd of the topic, or a flag gives an nsqd."""
        return bool(self._places(topic))

    def on_nsqds(self, topic: str, act: str, call: Callable[[NsqdClient, int | None], None]) -> list[Step]:
        """Return a step for each nsqd that has the topic (Youzan's NSQ: each partition), or that a flag gives.

        *call* receives a client, and a partition or None.  Raises click.ClickException if there is no such nsqd.
        """
        places = self._places(topic)
        if not places:
            raise click.ClickException(f"no nsqd has a topic {topic!r}")
        steps = []
        for address, partition in places:
            named = act if partition is None else f"{act}, partition {partition}"

            def one(client: NsqdClient, partition: int | None = partition) -> None:
                call(client, partition)

            steps.append(Step(address, named, self._with(NsqdClient, address, one)))
        return steps

    def on_nsqd(self, address: str, act: str, call: Callable[[NsqdClient], None]) -> Step:
        """Return a step with *call* for one nsqd."""
        return Step(address, act, self._with(NsqdClient, address, call))

    def on_given_nsqds(self, act: str, call: Callable[[NsqdClient], None]) -> list[Step]:
        """Return a step with *call* for each nsqd given by a flag."""
        return [self.on_nsqd(address, act, call) for address in self._nsqds]

    def needs_registration(self, topic: str) -> bool:
        """Return whether channels of the topic must be created at Youzan's nsqlookupd."""
        metas = self._query(lambda client: client.topics_meta()) if self.is_youzan else []
        return any(meta.topic_name == topic and meta.disable_channel_auto_create for meta in metas)

    def check_node(self, node: str) -> None:
        """Raise click.ClickException if no nsqlookupd knows the nsqd with the HTTP address *node*."""
        known = sorted({format_address(each.http_address) for each in self._query(LookupdClient.nodes)})
        if node not in known:
            raise click.ClickException(f"no nsqlookupd lists the node {node!r}; listed: {', '.join(known) or 'none'}")

    def _with(self, kind: type[Any], address: str, call: Callable[[Any], None]) -> Callable[[], None]:
        def run_step() -> None:
            with kind(address, self._http) as client:
                call(client)

        return run_step
