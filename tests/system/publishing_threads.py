"""Publish from many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from gnsq_lite import Writer, errors
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.system.clients import QUICK
from tests.youzan_broker import YouzanBroker


class Crowd:
    """Threads that publish, each its own bodies in order, until stop() is called."""

    def __init__(self, writer: Writer, topic: str, count: int) -> None:
        self._writer, self._topic = writer, topic
        self.ok: list[list[bytes]] = [[] for _ in range(count)]
        self.failed: list[tuple[bytes, errors.NSQError]] = []
        self._stopped = False
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _publish(self, number: int) -> None:
        count = 0
        while not self._stopped:
            count += 1
            body = b"%d-%d" % (number, count)
            self._settle(number, body, partial(self._writer.publish, self._topic, body))

    def _settle(self, number: int, body: bytes, publish: Callable[[], object]) -> None:
        """Note how the publish of *body* ends."""
        try:
            publish()
            self.ok[number].append(body)
        except errors.NSQError as error:
            self.failed.append((body, error))

    def published(self) -> int:
        """How many nsqd took."""
        return sum(map(len, self.ok))

    def publishes(self, count: int) -> None:
        """Wait until nsqd took so many more."""
        wanted = self.published() + count
        wait_for(lambda: self.published() >= wanted, timeout=60.0)

    def stop(self) -> None:
        """Have all end."""
        self._stopped = True
        for thread in self._threads:
            thread.join()


class Ways:
    """A cluster of two nodes, partition n of ``t`` led by node n, and a proxy before each node."""

    def __init__(self, broker: YouzanBroker) -> None:
        self.broker = broker
        broker.youzan.create_topic("t", partitions=2)
        nodes = sorted(set(broker.nsqd_tcp_addresses))
        self.proxies = {address: Proxy(address) for address in nodes}
        self.of_partition = [self.proxies[broker.nsqd_tcp_addresses[self.leader(n)]] for n in range(2)]

    def leader(self, partition: int) -> int:
        leader = self.broker.youzan.leader("t", partition)
        assert leader is not None
        return leader

    def writer(self, **options: Any) -> Writer:
        def through(host: str, port: int) -> tuple[str, int]:
            there, _, number = self.proxies[f"{host}:{port}"].address.rpartition(":")
            return there, int(number)

        options = {"dialect": "youzan", "address_map": through, **QUICK, **options}
        return Writer(lookupd_http_addresses=self.broker.lookupd_http_address, **options)
