"""``gnsq-lite demo --youzan``: keyed records, 4 partitions, a leader that moves; order per key and loss are checked."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack

from gnsq_lite import Message, Reader, Writer
from gnsq_lite.broker import Broker
from gnsq_lite.cli.output import Progress, console

PARTITIONS = 4
KEYS = 96
PUBLISHERS = 8
TOPIC = "demo"


class OrderCheck:
    """The handler: each key's records must come in the order in which they were published."""

    def __init__(self) -> None:
        self.last: dict[bytes, int] = defaultdict(lambda: -1)
        self.handled = self.again = self.out_of_order = 0
        self.by_partition: dict[int | None, int] = defaultdict(int)
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        """Check one record: ``key \\t number of the key's record \\t line``."""
        key, number, _ = message.body.split(b"\t", 2)
        with self._lock:
            last = self.last[key]
            if int(number) <= last:
                self.again += 1  # sent again: nsqd had not had our answer when the leader moved
                return
            self.out_of_order += int(number) != last + 1
            self.last[key] = int(number)
            self.handled += 1
            self.by_partition[message.partition] += 1


class Published:
    """Counts what was published, by all publishers."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """One more."""
        with self._lock:
            self.count += 1


def publish(writer: Writer, lines: list[bytes], mine: int, done: Published) -> None:
    """Publish the records of every key that is this publisher's, in order."""
    numbers: dict[int, int] = defaultdict(int)
    for at, line in enumerate(lines):
        key = at % KEYS
        if key % PUBLISHERS != mine:
            continue
        name = f"key-{key}"
        writer.publish(TOPIC, b"%b\t%d\t%b" % (name.encode(), numbers[key], line), key=name)
        numbers[key] += 1
        done.add()


def run(source: Iterable[bytes], limit: int) -> int:
    """Run it; return the exit code."""
    lines = [line for line, _ in zip(source, range(limit), strict=False)]
    if not lines:
        return 1
    check, done = OrderCheck(), Published()
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(youzan=True, nsqds=2))
        broker.youzan.create_topic(TOPIC, partitions=PARTITIONS, ordered=True)
        broker.youzan.create_channel(TOPIC, "demo")
        console.print(f"embedded nsqds at {', '.join(broker.nsqd_tcp_addresses)}; all in memory", markup=False)
        lookupd = broker.lookupd_http_address
        writer = stack.enter_context(Writer(lookupd_http_addresses=lookupd, dialect="youzan", retries=5))
        reader = Reader(
            TOPIC,
            "demo",
            check,
            lookupd_http_addresses=lookupd,
            dialect="youzan",
            ordered=True,
            max_in_flight=PARTITIONS,
            lookupd_poll_interval=1.0,
            max_attempts=0,
            msg_timeout=2.0,
        )
        stack.enter_context(reader)
        progress = stack.enter_context(Progress("demo"))
        began = time.monotonic()
        publishers = [threading.Thread(target=publish, args=(writer, lines, n, done)) for n in range(PUBLISHERS)]
        for publisher in publishers:
            publisher.start()
        moved = False
        while time.monotonic() - began < 120.0 and check.handled < len(lines):
            progress.show(published=done.count, handled=check.handled)
            if not moved and done.count >= len(lines) // 2:
                leader = broker.youzan.leader(TOPIC, 0)
                broker.youzan.move_leader(TOPIC, 0, 1 - leader if leader is not None else 0)
                moved = True
            time.sleep(0.05)
        for publisher in publishers:
            publisher.join(30.0)
        seconds = time.monotonic() - began
    return summary(len(lines), done.count, check, moved, seconds)


def summary(wanted: int, published: int, check: OrderCheck, moved: bool, seconds: float) -> int:
    """Print what happened; return 0 when nothing was lost and every key kept its order."""
    whole = wanted == published == check.handled and not check.out_of_order and moved
    spread = ", ".join(f"{number}: {count:,}" for number, count in sorted(check.by_partition.items(), key=str))
    for name, value in (
        ("lines published", f"{published:,} of {wanted:,}"),
        ("lines handled", f"{check.handled:,}"),
        ("throughput", f"{check.handled / max(seconds, 1e-9):,.0f} lines/s, one at a time in each partition"),
        ("partitions", spread),
        ("leader moved", "yes, of partition 0, half way" if moved else "NO"),
        ("seen twice", str(check.again)),
        ("out of order", str(check.out_of_order)),
        ("result", "every key kept its order and nothing was lost" if whole else "FAILED"),
    ):
        console.print(f"{name + ':':17}{value}", markup=False)
    return 0 if whole else 1
