"""Bare loops on Youzan's servers, as in raw.py: a connection to each leader, and what any client must do on it."""

from __future__ import annotations

import itertools
import json
import select
import time
import urllib.request
from typing import Any

import meter
import raw


def leaders(job: dict[str, Any]) -> list[tuple[int, str]]:
    """Return each partition of the job's topic and the address of its leader."""
    address = f"http://{job['lookupds'][0]}/lookup?topic={job['topic']}&access=w&metainfo=true"
    request = urllib.request.Request(address, headers={"Accept": "application/vnd.nsq; version=1.0"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = json.load(answer)["partitions"]
    return [(int(number), f"{at['broadcast_address']}:{at['tcp_port']}") for number, at in found.items()]


class _Partition:
    """A consumer's connection to one leader."""

    def __init__(self, job: dict[str, Any], number: int, address: str) -> None:
        self.wire = raw.Wire({**job, "addresses": [address]})
        self._rest = b""
        word = b"SUB_ORDERED" if job["ordered"] else b"SUB"
        names = (word, job["topic"].encode(), job["channel"].encode(), number, job["max_in_flight"] // 4)
        self.wire.send(b"%s %s %s %d\nRDY %d\n" % names)

    def take(self) -> int:
        """Receive and finish; return how many messages came."""
        buffer = self._rest + self.wire.recv(16 * 1024)
        answers: list[bytes] = []
        bodies: list[bytes] = []
        self._rest = buffer[raw.parse(buffer, answers, bodies) :]
        if answers:
            self.wire.send(b"".join(answers))
        return len(bodies)


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Receive and finish; every body is cut out, none is looked at."""
    count, poll = meter.Meter(job), select.epoll()
    partitions = {}
    for number, address in leaders(job):
        partition = _Partition(job, number, address)
        partitions[partition.wire.socket.fileno()] = partition
        poll.register(partition.wire.socket, select.EPOLLIN)
    seen, warm, started = 0, job["warmup"], False
    while seen < warm + job["messages"]:
        for place, _ in poll.poll():
            seen += partitions[place].take()
        if not started and seen >= warm:
            started = True
            count.messages -= seen - warm
            count.start()
    count.stop()
    time.sleep(job["linger"])
    return count.result


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Publish ``callers`` at once, to each partition in turn, and wait for that many answers."""
    listed, body = leaders(job), meter.body_of(job)
    wires = {address: raw.Wire({**job, "addresses": [address]}) for _, address in listed}
    turns = itertools.cycle(
        (wires[address], b"PUB %s %d\n" % (job["topic"].encode(), number) + raw.SIZE.pack(len(body)) + body)
        for number, address in listed
    )
    count = meter.Meter(job)

    def rounds(messages: int) -> None:
        for _ in range(messages // job["callers"]):
            commands: dict[raw.Wire, list[bytes]] = {}
            for wire, command in itertools.islice(turns, job["callers"]):
                commands.setdefault(wire, []).append(command)
            for wire, those in commands.items():
                wire.send(b"".join(those))
            for wire, those in commands.items():
                wire.await_answers(len(those))

    return count.around(rounds)


if __name__ == "__main__":
    todo = {"ordered": False, **meter.job()}
    meter.report({"consume": consume, "publish": publish}[todo["scenario"]](todo))
