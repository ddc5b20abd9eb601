"""A cluster of Youzan's servers, as the tests start it: two nsqds, each of which leads half of a topic's partitions."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.server.processes import SERVER_CORES, multipublish, on_cores
from tests.youzan_servers import programs, youzan_cluster

#: Seconds that a topic may take until its partitions take writes.
_PATIENCE = 60.0


def is_there() -> bool:
    """Whether its programs are found (``GNSQ_YOUZAN_NSQD``, ``GNSQ_YOUZAN_NSQLOOKUPD``, etcd)."""
    return programs() is not None


class Youzan:
    """The cluster, for all measurements of a run.  Raises tests.servers.MissingServer."""

    def __init__(self, pin: bool) -> None:
        self._stack = ExitStack()
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="gnsq-bench-", ignore_cleanup_errors=True)
        )
        with on_cores(SERVER_CORES if pin else None):
            self._cluster = self._stack.enter_context(youzan_cluster(Path(folder)))
        self.lookupds = self._cluster.addresses

    def close(self) -> None:
        """Stop it."""
        self._stack.close()

    def version(self) -> str:
        """Return its nsqd's own version."""
        return str(_call(self._cluster.nsqds[0].http_address, "/info")["version"])

    def new_topic(self, *, ordered: bool) -> str:
        """Make a topic of four partitions where it is ordered, else of two, with the channel "bench"."""
        topic, count = f"bench{os.getpid()}_{uuid.uuid4().hex[:8]}", 4 if ordered else 2
        kind = "&orderedmulti=true" if ordered else ""
        path = f"/topic/create?topic={topic}&partition_num={count}&replicator=1{kind}"

        def is_made() -> bool:
            try:
                _call(self._cluster.leading().http_address, path, "POST")
            except urllib.error.HTTPError:
                pass  # it may be there, or its partitions have no leaders yet
            return len(list(self._leaders(topic))) == count

        _wait(is_made, f"{topic} takes no writes")
        for number, leader in self._leaders(topic):
            _call(_http(leader), f"/channel/create?topic={topic}&partition={number}&channel=bench", "POST")
        return topic

    def fill(self, topic: str, messages: int, body: bytes) -> None:
        """Put *messages* into the topic's partitions, as many into each."""
        leaders = list(self._leaders(topic))
        for place, (number, leader) in enumerate(leaders):
            count = messages // len(leaders) + (place < messages % len(leaders))
            with socket.create_connection((leader["broadcast_address"], leader["tcp_port"])) as sock:
                multipublish(sock, b"%s %d" % (topic.encode(), number), count, body)

    def published(self, topic: str) -> int:
        """How many messages the topic's partitions took."""
        return sum(int(stats["message_count"]) for stats in self._stats(topic))

    def unfinished(self, topic: str) -> int:
        """How many messages the channel has that nobody finished."""
        return sum(int(each["depth"]) for stats in self._stats(topic) for each in stats["channels"])

    def delete(self, topic: str) -> None:
        """Forget the topic."""
        try:
            _call(self._cluster.leading().http_address, f"/topic/delete?topic={topic}&partition=**", "POST")
        except OSError:
            pass  # it ends with the cluster

    def _leaders(self, topic: str) -> Iterator[tuple[int, Any]]:
        try:
            found = _call(self.lookupds[0], f"/lookup?topic={topic}&access=w&metainfo=true")["partitions"] or {}
        except urllib.error.HTTPError:
            return
        for number in sorted(found, key=int):
            yield int(number), found[number]

    def _stats(self, topic: str) -> Iterator[Any]:
        for number, leader in self._leaders(topic):
            for stats in _call(_http(leader), f"/stats?format=json&topic={topic}&partition={number}")["topics"]:
                if int(stats["topic_partition"]) == number:
                    yield stats


def _http(node: Any) -> str:
    return f"{node['broadcast_address']}:{node['http_port']}"


def _call(address: str, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(
        f"http://{address}{path}", method=method, headers={"Accept": "application/vnd.nsq; version=1.0"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text.startswith(b"{") else text


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(what)
        time.sleep(0.5)
