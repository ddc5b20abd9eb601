"""Kills the query, its source process, a worker or everything, again and again, and counts what arrives.

A run publishes N numbered messages to a real nsqd and starts a streaming query that stores every micro-batch under its
batch id (a directory that is renamed into place: the idempotent sink).  The query is killed with SIGKILL, at random
moments or at named points, and started again from its checkpoint, until everything has arrived.  Then: nothing may be
lost, no batch may have had other rows when it ran again, and the sink may have no row twice.

    python -m tests.spark.kill_harness --kills 30 --messages 500000       # the long form
    python -m tests.spark.kill_harness --kills 4 --messages 20000         # the short one
    python -m tests.spark.kill_harness --recorders --kills 20 --messages 1000000  # without Spark
    python -m tests.spark.kill_harness --recorders --sigkill --kills 20 --messages 1000000  # SIGKILL for nsqd too

Points: before-fsync, after-fsync, after-fin (in the source process, through the spool's file calls), before-sink,
after-sink (in foreachBatch, the whole query dies); victims: jvm, source, worker, all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnsq_lite.recording.files import Files
from gnsq_lite.spark.source import NsqDataSource
from gnsq_lite.spark.stream import NsqStreamReader
from tests.ledger.wire import Witness
from tests.proxy import Proxy

ROOT = Path(__file__).parent.parent.parent
POINTS = ("before-fsync", "after-fsync", "after-fin", "before-sink", "after-sink")
VICTIMS = ("jvm", "source", "worker", "all")
TOPIC, CHANNEL = "kill", "spark"
PARTS = ("recorded", "replayed")
#: Seconds without a new row after which nothing more is expected; a busy machine starts slowly.
PATIENCE = 90.0


# -- the query under test, in a process group of its own ---------------------------------------------------------------


class KillingFiles(Files):
    """Real files; the process dies at the point and the count that the file ``point`` names."""

    def __init__(self) -> None:
        point = Path(os.environ["GNSQ_HARNESS"]) / "point"
        self.point, _, count = point.read_text().partition(" ") if point.exists() else ("", "", "")
        self.left = int(count or 0)
        self.path = point
        self.synced = 0

    def sync(self, fd: int) -> None:
        self.die("before-fsync")
        super().sync(fd)
        self.die("after-fsync")

    def append_all(self, fd: int, buffers: list[Any]) -> None:
        self.die("after-fin")  # the next write comes after the FINs of the last one were queued
        super().append_all(fd, buffers)

    def die(self, here: str) -> None:
        if here == self.point:
            self.left -= 1
            if self.left <= 0:
                self.path.unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)


class KillableReader(NsqStreamReader):
    files = KillingFiles


class KillableSource(NsqDataSource):
    def streamReader(self, schema: Any) -> Any:
        return KillableReader(self._checked(schema))


def store(base: Path, frame: Any, batch_id: int) -> None:
    """Write a batch's rows under its id, whole or not at all; compare with what an earlier run of it wrote."""
    target = base / "sink" / f"{batch_id:06d}.json"
    rows = sorted((row.id, bytes(row.body).decode()) for row in frame.select("id", "body").collect())
    seen = base / "seen" / f"{batch_id:06d}.{time.time_ns()}.json"
    seen.parent.mkdir(exist_ok=True)
    Files().replace_text(seen, json.dumps(rows))
    point = base / "point"
    wanted = point.read_text() if point.exists() else ""
    if wanted.startswith("before-sink"):
        point.unlink()
        os.killpg(0, signal.SIGKILL)
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        Files().replace_text(target, json.dumps(rows))
    if wanted.startswith("after-sink"):
        point.unlink()
        os.killpg(0, signal.SIGKILL)


def query(base: Path, address: str) -> None:
    """Run the streaming query until killed."""
    from gnsq_lite.spark.launch import session

    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "4",
        "spark.python.worker.faulthandler.enabled": "false",
    }
    place = json.loads(os.environ.get("GNSQ_HARNESS_PLACE", "{}"))
    spark = session("local[2,4]", "kill-harness", {**conf, **place.get("conf", {})})
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(KillableSource)
    frame = (
        spark.readStream.format("nsq")
        .options(topic=TOPIC, channel=CHANNEL, recording=str(base / "spool"), nsqdTCPAddresses=address)
        .options(maxOffsetsPerTrigger="4000", **{"nsq.msgTimeoutMs": "3000"})
        .options(**place.get("options", {}))
        .load()
    )
    writer = frame.writeStream.foreachBatch(lambda batch, number: store(base, batch, number))
    started = writer.option("checkpointLocation", place.get("checkpoint") or str(base / "checkpoint")).start()
    (base / "pids").write_text(f"{os.getpid()} {spark.sparkContext._gateway.proc.pid}")
    started.awaitTermination()


# -- the executioner ---------------------------------------------------------------------------------------------------


class Run:
    """One query process group, and how it is killed."""

    def __init__(self, base: Path, address: str) -> None:
        self.base = base
        machine = Path(tempfile.mkdtemp(prefix="machine-", dir=base))  # it starts with an empty disk
        environment = {**os.environ, "GNSQ_HARNESS": str(base), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"SPARK_LOCAL_DIRS": str(machine), "TMPDIR": str(machine)}
        (base / "pids").unlink(missing_ok=True)
        self.log = (base / "log").open("ab")
        command = [sys.executable, "-m", "tests.spark.kill_harness", "--query", str(base), address]
        self.process = subprocess.Popen(
            command, cwd=machine, env=environment, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def wait_started(self, timeout: float = 180.0) -> bool:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            if (self.base / "pids").exists():
                return True
            time.sleep(0.1)
        return False

    def members(self) -> dict[int, str]:
        """Return the group's processes: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if os.getpgid(int(entry.name)) == self.process.pid or os.getsid(int(entry.name)) == self.process.pid:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (ProcessLookupError, FileNotFoundError, PermissionError):
                continue
        return found

    def kill(self, victim: str) -> bool:
        """Kill one kind of process; return whether there was one."""
        marks = {"jvm": "org.apache.spark", "source": "python_streaming_source_runner", "worker": "pyspark.daemon"}
        members = self.members()
        chosen = [pid for pid, command in members.items() if victim == "all" or marks[victim] in command]
        for pid in chosen:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return bool(chosen)

    def end(self) -> None:
        """Leave nothing of it."""
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(30)
        self.log.close()


def publish(address: str, first: int, count: int) -> None:
    """Publish numbered messages."""
    from gnsq_lite import Writer

    with Writer(address) as writer:
        for at in range(first, first + count, 500):
            writer.multipublish(TOPIC, [b"%d" % n for n in range(at, min(at + 500, first + count))])
            time.sleep(0.05)  # so that a kill finds messages on their way


def arrived(base: Path) -> list[str]:
    """Return the bodies in the idempotent sink."""
    return [body for file in sorted((base / "sink").glob("*.json")) for _, body in json.loads(file.read_text())]


def verdict(base: Path, messages: int, kills: int, points: Counter[str]) -> dict[str, Any]:
    """Compare what arrived with what was published, and each replayed batch with its first run."""
    bodies = arrived(base)
    counts = Counter(bodies)
    replayed = different = 0
    for file in sorted((base / "sink").glob("*.json")):
        runs = list((base / "seen").glob(f"{file.stem}.*.json"))
        replayed += len(runs) - 1
        different += sum(json.loads(run.read_text()) != json.loads(file.read_text()) for run in runs)
    return {
        "messages": messages,
        "kills": kills,
        "points": dict(sorted(points.items())),
        "arrived": len(bodies),
        "lost": messages - len(counts),
        "duplicates": len(bodies) - len(counts),
        "batches": len(list((base / "sink").glob("*.json"))),
        "replayed_batches": replayed,
        "replays_that_differ": different,
    }


def harness(base: Path, server: Any, messages: int, kills: int, seed: int, quiet: bool) -> dict[str, Any]:
    """Run it all; *server* is a running nsqd of the tests."""
    rng = random.Random(seed)
    (base / "sink").mkdir(parents=True)
    server.http("POST", f"/topic/create?topic={TOPIC}")
    server.http("POST", f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
    done: Counter[str] = Counter()
    has_files = "GNSQ_HARNESS_PLACE" not in os.environ
    plan = [*POINTS, *VICTIMS] if has_files else [*POINTS[3:], *VICTIMS]
    schedule = [plan[n % len(plan)] for n in range(kills)]
    rng.shuffle(schedule)
    published = warm_up(base, server)
    share = (messages - published) // (kills + 1) + 1
    failures = 0
    while schedule:
        todo = schedule[-1]
        if todo in POINTS:
            (base / "point").write_text(f"{todo} {rng.randint(1, 12)}")
        run = Run(base, server.tcp_address)
        try:
            if not run.wait_started():
                raise RuntimeError(f"the query did not start; see {base}/log")
            count = min(share, messages - published)
            feeder = threading.Thread(target=publish, args=(server.tcp_address, published, count))
            published += count
            feeder.start()
            struck = execute(run, base, todo, rng)
            feeder.join()
        finally:
            run.end()
        failures = 0 if struck else failures + 1
        if failures > 3:
            raise RuntimeError(f"{todo} was not reached {failures} times; the query's log ends: {tail(base)}")
        if struck:
            schedule.pop()
            done[todo] += 1
        if not quiet:
            print(f"{sum(done.values())}/{kills} {todo}: {'killed' if struck else 'not reached'}", flush=True)
        (base / "point").unlink(missing_ok=True)
    publish(server.tcp_address, published, messages - published)
    finish(base, server, messages)
    return verdict(base, messages, kills, done)


def warm_up(base: Path, server: Any) -> int:
    """Run the query until its first batch is stored, and return how many messages that took.

    Spark refuses a checkpoint that was killed before its first batch (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
    """
    publish(server.tcp_address, 0, 500)
    run = Run(base, server.tcp_address)
    try:
        deadline = time.monotonic() + 4 * PATIENCE
        while len(arrived(base)) < 500:
            ended = run.process.poll() is not None
            if time.monotonic() > deadline or (ended and "failed to connect back" not in tail(base)):
                raise RuntimeError(f"the query stored nothing; its log ends: {tail(base)}")
            if ended:  # Spark's 10 s for a new process were over before it had done anything
                run.end()
                run = Run(base, server.tcp_address)
            time.sleep(0.2)
    finally:
        run.end()
    return 500


def tail(base: Path) -> str:
    """Return the end of the query's log."""
    return (base / "log").read_text(errors="replace")[-2000:]


def execute(run: Run, base: Path, todo: str, rng: random.Random) -> bool:
    """Kill as planned; several victims in one life of the query where it survives them (a worker)."""
    if todo in POINTS:
        deadline = time.monotonic() + 60
        while (base / "point").exists() and run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        return not (base / "point").exists()
    time.sleep(rng.uniform(0.0, 4.0))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if run.kill(todo):
            time.sleep(1.0 if todo == "worker" else 0.2)
            return True
        time.sleep(0.05)
    return False


def finish(base: Path, server: Any, messages: int) -> None:
    """Let one last query run until everything has arrived, or nothing more does."""
    run = Run(base, server.tcp_address)
    try:
        if not run.wait_started():
            raise RuntimeError(f"the query did not start; see {base}/log")
        last, since = -1, time.monotonic()
        while time.monotonic() - since < PATIENCE:
            count = len(set(arrived(base)))
            if count >= messages:
                return
            if count != last:
                last, since = count, time.monotonic()
            time.sleep(0.5)
    finally:
        run.end()


# -- recorders and replay ----------------------------------------------------------------------------------------------


def numbered(number: int) -> bytes:
    """Return a body of *number* and its checksum."""
    return b"%d %08x" % (number, zlib.crc32(b"%d" % number))


@contextmanager
def witnessed(server: Any) -> Iterator[tuple[str, Witness]]:
    """Run a proxy in front of nsqd; yield its address and the witness of its connections."""
    witness = Witness(0)
    witness.body = re.compile(rb"(\d+) [0-9a-f]{8}")
    with Proxy(server.tcp_address) as proxy:
        witness.listen(proxy, server.tcp_address)
        yield proxy.address, witness


def publish_numbered(address: str, topic: str, first: int, count: int) -> None:
    """Publish numbered bodies; an MPUB whose outcome is unknown is published again."""
    from gnsq_lite import Writer
    from gnsq_lite.errors import NSQError

    with Writer(address) as writer:
        for at in range(first, first + count, 500):
            bodies = [numbered(n) for n in range(at, min(at + 500, first + count))]
            while True:
                try:
                    writer.multipublish(topic, bodies)
                    break
                except NSQError:
                    time.sleep(0.2)


class Tool:
    """A process of a gnsq-lite command, which is restarted after a kill or a failure."""

    def __init__(self, base: Path, *command: str) -> None:
        self._base, self._command = base, command
        self.start()

    def start(self) -> None:
        with (self._base / "tools.log").open("ab") as log:
            command = [sys.executable, "-m", "gnsq_lite", *self._command]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self.start()

    def keep_running(self) -> None:
        if self.process.poll() is not None:
            self.start()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def record_and_replay(base: Path, server: Any, given: argparse.Namespace, url: str, store: Any) -> dict[str, Any]:
    """Record with two recorders and replay, with faults, and count the bodies in both recordings.

    Two thirds of the faults hit the recording: recorders are killed, nsqd is stopped and restarted, and the *store*, if
    given, is unreachable for a while.  The other faults hit the replay.  nsqd is stopped by SIGTERM, or by SIGKILL.
    """
    rng, done = random.Random(given.seed), Counter[str]()
    messages, faults = given.messages, given.kills
    base.mkdir(parents=True, exist_ok=True)
    storage = [] if store is None else [f"--storage={name}={text}" for name, text in store.storage().items()]
    url = url or str(base / "recording")
    server.prepare(TOPIC, CHANNEL)
    server.prepare(TOPIC + "-again", CHANNEL)

    def strike(victim: str, tools: list[Tool]) -> None:
        time.sleep(rng.uniform(0.5, 2.0))
        if victim == "nsqd":
            server.kill() if given.sigkill else server.stop()
            server.restart()
        elif victim == "store":
            store.kill()
            time.sleep(rng.uniform(0.5, 2.0))
            store.start()
        else:
            rng.choice(tools).kill()
        done[victim] += 1

    with witnessed(server) as (address, first_witness):
        where = ["--nsqd-tcp-address", address]
        record = ["record", TOPIC, CHANNEL, url, *where, *storage, "--msg-timeout", "5s"]
        tools = [Tool(base, *record) for _ in range(2)]
        plan = [
            ("recorder", "nsqd", "recorder", "store" if store else "recorder")[n % 4] for n in range(faults * 2 // 3)
        ]
        share = messages // (len(plan) + 1) + 1
        for number, victim in enumerate([*plan, ""]):
            begin = number * share
            arguments = (address, TOPIC, begin, min(share, messages - begin))
            feeder = threading.Thread(target=publish_numbered, args=arguments)
            feeder.start()
            if victim:
                strike(victim, tools)
            feeder.join()
            for tool in tools:
                tool.keep_running()
        until_idle(server, TOPIC)
        stopped = [tool.stop() for tool in tools]
    recorded = count_bodies(url, {} if store is None else store.storage())

    with witnessed(server) as (address, second_witness):
        where = ["--nsqd-tcp-address", address]
        paced = ["--rate", str(messages / 40), "--state", str(base / "state")]  # long enough for all faults
        replay = Tool(base, "replay", url, "--to", TOPIC + "-again", *paced, *where, *storage)
        left = faults - sum(done.values())
        while left or replay.process.poll() != 0:
            if replay.process.poll() not in (None, 0):  # nsqd was unreachable for longer than the replayer waits
                replay.start()
            if left and replay.process.poll() is None:
                strike("nsqd" if left % 3 == 0 else "replayer", [replay])
                left -= 1
            elif replay.process.poll() == 0 and left:
                raise RuntimeError(f"the replay ended before {left} faults: give it more messages")
            time.sleep(0.1)
        again = Tool(base, "record", TOPIC + "-again", CHANNEL, str(base / "again"), *where)
        until_idle(server, TOPIC + "-again")
        stopped.append(again.stop())
    replayed = count_bodies(str(base / "again"), {})
    published = {numbered(n) for n in range(messages)}
    return {
        "messages": messages,
        "faults": dict(sorted(done.items())),
        "exit_codes": stopped,
        "recorded": verdict_of(recorded, published, first_witness),
        "replayed": verdict_of(replayed, recorded.keys(), second_witness),
    }


def until_idle(server: Any, topic: str) -> None:
    """Wait until the channel has no message."""
    deadline = time.monotonic() + 600
    while any(server.stats(topic, CHANNEL)[name] for name in ("depth", "in_flight_count", "deferred_count")):
        assert time.monotonic() < deadline, server.stats(topic, CHANNEL)
        time.sleep(0.5)


def count_bodies(url: str, storage: dict[str, str]) -> Counter[bytes]:
    """Return how often a recording has each body."""
    from gnsq_lite.recording import Recording

    found: Counter[bytes] = Counter()
    for batch in Recording(url, storage).batches():
        found.update(batch.column("body").to_pylist())
    return found


def verdict_of(found: Counter[bytes], expected: Set[bytes], witness: Witness) -> dict[str, int]:
    """Count the lost messages, the copies, and the rows with another body.

    nsqd lost a message if the witness saw its OK to the publish and no FIN; the client lost any other missing message.
    """
    missing = {int(body.split()[0]) for body in expected - found.keys()}
    lost_by_nsqd = missing & witness.confirmed.keys() - witness.finished
    return {
        "lost": len(missing) - len(lost_by_nsqd),
        "lost_by_nsqd": len(lost_by_nsqd),
        "copies": found.total() - len(found),
        "others": len(found.keys() - expected),
    }


def main() -> int:
    """Run from the command line; 0 when nothing was lost, changed or doubled."""
    if sys.argv[1:2] == ["--query"]:
        query(Path(sys.argv[2]), sys.argv[3])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="a directory for spool, checkpoint, sink and log; kept")
    parser.add_argument("--recorders", action="store_true", help="recorders and replay instead of a query")
    parser.add_argument("--objects", action="store_true", help="with --recorders: on moto's S3 server")
    parser.add_argument("--sigkill", action="store_true", help="with --recorders: nsqd is killed instead of stopped")
    given = parser.parse_args()
    from tests import servers

    with tempfile.TemporaryDirectory() as temporary:
        base = Path(given.keep or temporary) / "harness"
        if given.recorders:
            from tests.spark.gateway import Gateway

            store = Gateway() if given.objects else None
            with servers.real_nsqd(Path(temporary)) as server:
                url = f"{store.url}/recording" if store else ""
                result = record_and_replay(base, server, given, url, store)
            print(json.dumps(result, indent=2))
            lost_by_nsqd = () if given.sigkill else ("lost_by_nsqd",)
            return int(any(result[part][name] for part in PARTS for name in ("lost", "others", *lost_by_nsqd)))
        with servers.real_nsqd(Path(temporary), "nsqd", mem_queue_size=2_000_000) as server:
            result = harness(base, server, given.messages, given.kills, given.seed, False)
    print(json.dumps(result, indent=2))
    return int(bool(result["lost"] or result["duplicates"] or result["replays_that_differ"]))


if __name__ == "__main__":
    sys.exit(main())
