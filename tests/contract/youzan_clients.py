"""Readers and Writers on a Youzan cluster, embedded or real."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.programs import wait_for
from tests.youzan_broker import YouzanBroker


class Cluster:
    """A cluster, embedded or real, that tests control through nsqlookupd's HTTP API."""

    def __init__(self, lookupd: str, broker: YouzanBroker | None) -> None:
        self.lookupd, self.broker = lookupd, broker

    def call(self, path: str, method: str = "GET") -> Any:
        accept = {"Accept": "application/vnd.nsq; version=1.0"}
        request = urllib.request.Request(f"http://{self.lookupd}{path}", method=method, headers=accept)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def topic(self, partitions: int, *, replicas: int = 1, **flags: str) -> str:
        """Create a topic, wait until all its partitions accept writes, and return its name."""
        name = f"yz{uuid.uuid4().hex[:12]}"
        more = "".join(f"&{flag}={value}" for flag, value in flags.items())
        path = f"/topic/create?topic={name}&partition_num={partitions}&replicator={replicas}{more}"
        deadline = time.monotonic() + 120.0
        while len(self.leaders(name)) != partitions:
            # A partition may stay without a leader until the server's next check; asking again starts one.
            assert time.monotonic() < deadline, f"{name} never took writes"
            self.try_post(path)
            self.wait(lambda: len(self.leaders(name)) == partitions, 3.0)
        return name

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            time.sleep(0.1)

    def try_post(self, path: str) -> bool:
        try:
            self.call(path, "POST")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True

    def leaders(self, topic: str) -> dict[int, str]:
        try:
            found = self.call(f"/lookup?topic={topic}&access=w&metainfo=true")["partitions"] or {}
        except urllib.error.HTTPError as error:
            error.close()
            return {}
        return {int(number): node["distributed_id"] for number, node in found.items()}

    def move(self, topic: str, partition: int, known: set[str]) -> None:
        """Move a leader to another node of *known*; a cluster that is not stable refuses for a while."""
        source = self.leaders(topic)[partition]
        target = next(iter(known - {source}))
        query = f"topic={topic}&partition={partition}&move_leader=true&move_from={source}&move_to={target}"
        wait_for(lambda: self.try_post(f"/topic/partition/move?{query}"), 300.0)
        wait_for(lambda: self.leaders(topic).get(partition) == target, 60.0)


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.youzan)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "real":
        yield Cluster(request.getfixturevalue("youzan_lookupd"), None)
        return
    with YouzanBroker(nsqds=2) as broker:
        yield Cluster(broker.lookupd_http_address, broker)


def a_reader(cluster: Cluster, topic: str, handler: Callable[[Any], Any], **keywords: Any) -> Reader:
    of_reader = ("max_in_flight", "requeue_delay", "max_attempts", "on_error", "on_give_up")
    options = {name: keywords.pop(name) for name in of_reader if name in keywords}
    return Reader(
        topic,
        "c",
        handler,
        lookupd_http_addresses=cluster.lookupd,
        dialect=YouzanDialect(**keywords),
        backoff=False,
        **{"max_in_flight": 8, "requeue_delay": 0.3, **options},  # type: ignore[arg-type]
    )


def a_writer(cluster: Cluster, *, retries: int = 0, **keywords: Any) -> Writer:
    return Writer(
        retries=retries,
        nsqd_tcp_addresses=(),
        lookupd_http_addresses=cluster.lookupd,
        dialect=YouzanDialect(**keywords),
        publish_timeout=30.0,
    )


def subscribed(reader: Reader, partitions: int) -> None:
    wait_for(lambda: len(reader.stats().connections) == partitions)
