"""What is measured: the cases, and the clients that can take part in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CODECS = ("plain", "snappy", "deflate")


@dataclass(frozen=True)
class Implementation:
    """One client, in one way of using it."""

    name: str
    driver: str
    """File under ``peers/``; ``go`` and ``youzan`` are Go programs."""
    environment: str = ""
    """Name of its own virtual environment; empty: that of the benchmark."""
    kinds: frozenset[str] = frozenset({"consume", "publish", "latency", "idle"})
    codecs: frozenset[str] = frozenset(CODECS)
    pace: int = 100_000
    """Messages per second to expect where nsqd can keep up, roughly: it sets how many are measured."""
    job: dict[str, Any] = field(default_factory=dict)
    callers: str = "any"
    """``many``: only where several callers publish at once."""

    @property
    def ours(self) -> bool:
        """Whether it is gnsq_lite itself."""
        return self.driver == "gnsq_lite_driver.py"


def _ours(name: str, kinds: str, pace: int, callers: str = "any", **job: Any) -> Implementation:
    return Implementation(
        f"gnsq_lite-{name}",
        "gnsq_lite_driver.py",
        kinds=frozenset(kinds.split()),
        pace=pace,
        callers=callers,
        job=job,
    )


_PLAIN = frozenset({"plain"})
_BARE = frozenset({"consume", "publish", "latency", "codec"})

IMPLEMENTATIONS = (
    Implementation("raw", "raw.py", kinds=_BARE, pace=1_000_000),
    Implementation("raw-gevent", "raw.py", kinds=_BARE - {"codec"}, pace=1_000_000, job={"gevent": True}),
    Implementation("raw-youzan", "raw_youzan.py", kinds=frozenset({"youzan"}), pace=1_000_000),
    _ours("greenlet", "consume publish latency idle scale rules work youzan", 1_000_000, pool="greenlet", patched=True),
    _ours("thread", "consume publish latency idle scale rules work youzan", 500_000, pool="thread"),
    _ours("inline", "consume latency rules codec", 1_000_000, pool="inline", patched=True),
    _ours("bulk", "latency work", 1_000_000, pool="greenlet", patched=True, delivery="bulk"),
    _ours("coalesce", "publish", 1_000_000, callers="many", pool="greenlet", patched=True, coalesce=True),
    Implementation("go-nsq", "go", pace=50_000),
    Implementation("youzan-go-nsq", "youzan", kinds=frozenset({"youzan"}), pace=50_000),
    Implementation("nsq-py", "nsq_py_driver.py", "nsq-py", codecs=_PLAIN, pace=150_000),
    Implementation("ansq", "ansq_driver.py", "ansq", codecs=_PLAIN, pace=30_000),
    Implementation("pynsq", "pynsq_driver.py", "pynsq", pace=20_000),
    Implementation("gnsq", "gnsq_driver.py", "gnsq", pace=20_000),
)


@dataclass(frozen=True)
class Case:
    """One row of a table: everything but the client."""

    group: str
    """What ``--only`` names."""
    kind: str
    """The driver's function."""
    title: str
    job: dict[str, Any] = field(default_factory=dict)
    unit: str = "messages per CPU-second"
    slow: float = 1.0
    """Share of the client's pace to expect here."""
    rate: int = 400_000
    """Messages per second that the server can do here, roughly, whatever the client can."""
    rounds: int = 100
    """Most rounds: cases that take long and vary little have fewer."""
    server: str = "any"
    """``pump``: only the pump can serve it; ``youzan``: only a cluster of Youzan's."""
    chart: bool = False
    """Whether the plots show it."""
    quick: bool = False
    """Whether the small run that shows that all works includes it."""

    def takes(self, implementation: Implementation) -> bool:
        """Whether *implementation* can do this at all."""
        kind = self.group if self.group in ("scale", "rules", "codec", "work", "youzan") else self.kind
        return (
            kind in implementation.kinds
            and self.job.get("codec", "plain") in implementation.codecs
            and not (implementation.callers == "many" and self.job.get("callers", 1) == 1)
            and not (self.job.get("batch", 1) > 1 and implementation.callers == "many")
            and not (self.kind == "publish" and self.job["codec"] != "plain" and implementation.name in _PLAIN_WRITERS)
        )


#: Clients whose publisher cannot compress, or breaks when it does.
_PLAIN_WRITERS = frozenset({"gnsq", "pynsq", "ansq", "nsq-py"})

#: What compression and larger bodies leave of nsqd's own rate, roughly.
_SHARES = {
    ("plain", 100): 1.0,
    ("snappy", 100): 0.8,
    ("deflate", 100): 0.4,
    ("plain", 1000): 0.4,
    ("snappy", 1000): 0.3,
    ("deflate", 1000): 0.15,
}

#: Name, callers, bodies of each, share of the client's pace, nsqd's rate.
_PUBLISH = (
    ("publish one at a time", 1, 1, 0.2, 8_000),
    ("publish from 100 callers", 100, 1, 1.0, 80_000),
    ("MPUB of 100", 1, 100, 12.0, 500_000),
)

#: In between, where threads that share a connection may get in each other's way.
_CROWDS = (
    ("publish from 10 callers", 10, 1, 0.8, 60_000),
    ("publish from 50 callers", 50, 1, 1.0, 80_000),
)


def _consume(in_flight: int, body: int, codec: str) -> Case:
    title = f"consume, max_in_flight {in_flight}, {body} bytes" + ("" if codec == "plain" else f", {codec}")
    slow, rate = (0.2, 6_000) if in_flight == 1 else (1.0, int(250_000 * _SHARES[codec, body]))
    quick = (in_flight, body, codec) in ((1, 100, "plain"), (200, 100, "snappy"), (200, 100, "deflate"))
    job = {"max_in_flight": in_flight, "body": body, "codec": codec}
    chart = body == 100 and (codec == "plain" or in_flight == 200)
    return Case("consume", "consume", title, job, slow=slow, rate=rate, quick=quick, chart=chart)


def _publish(which: tuple[str, int, int, float, int], body: int, codec: str) -> Case:
    name, callers, batch, slow, rate = which
    if callers * batch > 1:
        rate = int(rate * _SHARES[codec, body])
    title = f"{name}, {body} bytes" + ("" if codec == "plain" else f", {codec}")
    job = {"callers": callers, "batch": batch, "body": body, "codec": codec}
    quick = codec == ("snappy" if callers > 1 else "plain") and body == 100
    return Case(
        "publish", "publish", title, job, slow=slow, rate=rate, quick=quick, chart=body == 100 and codec == "plain"
    )


def latency(rate: int, in_flight: int, burst: int = 1) -> Case:
    """Messages published at a steady *rate*, or *burst* at once."""
    job = {"max_in_flight": in_flight, "body": 100, "codec": "plain", "rate": rate, "burst": burst}
    title = f"latency at {rate} messages/s, max_in_flight {in_flight}" + (f", {burst} at once" if burst > 1 else "")
    quick = (rate, in_flight, burst) == (500, 200, 1)
    return Case(
        "latency", "latency", title, job, "seconds, p50", quick=quick, rounds=2 if rate == 500 and burst == 1 else 1
    )


def _work(handle: float, workers: int) -> Case:
    """A backlog for handlers that sleep *handle* seconds: the rate shows whether they ever wait for messages."""
    job = {"max_in_flight": 200, "body": 100, "codec": "plain", "handle": handle, "concurrency": workers}
    title = f"handlers of {1000 * handle:g} ms, concurrency {workers}"
    quick = (handle, workers) == (0.001, 10)
    return Case("work", "consume", title, job, rate=int(workers / handle), rounds=3, quick=quick)


def all_cases() -> Iterator[Case]:
    """Yield every case, the ones the README leads with first."""
    for codec in CODECS:
        for body in (100, 1000):
            for in_flight in (1, 200, 2500):
                yield _consume(in_flight, body, codec)
    for codec in CODECS:
        for body in (100, 1000):
            for which in _PUBLISH:
                yield _publish(which, body, codec)
    for which in _CROWDS:
        yield _publish(which, 100, "plain")
    for rate, in_flight in ((50, 200), (500, 200), (2_000, 200), (10_000, 200), (500, 1)):
        yield latency(rate, in_flight)
    for burst in (10, 500):
        yield latency(1_000, 200, burst=burst)
    for handle in (0.001, 0.02, 0.2):
        for workers in (1, 10, 100):
            yield _work(handle, workers)
    for connections in (1, 100):
        job = {"connections": connections, "codec": "plain", "max_in_flight": 200, "body": 100}
        title = f"{connections} idle connection" + ("s" if connections > 1 else "")
        yield Case("idle", "idle", title, job, "CPU seconds per minute", server="pump", quick=connections > 1, rounds=3)
    yield from _youzan()
    yield from _scale()
    for size in (100, 1000):
        for direction in ("decode", "encode"):
            job = {"direction": direction, "body": size, "codec": "plain"}
            yield Case(
                "codec",
                "codec",
                f"{direction} alone, {size} bytes",
                job,
                server="none",
                rate=1_000_000,
                quick=size == 100,
            )
    for codec in CODECS:
        job = {"max_in_flight": 2500, "body": 100, "codec": codec, "audit": True}
        yield Case(
            "rules", "consume", f"rules under load, {codec}", job, server="pump", rate=200_000, quick=codec == "plain"
        )
    job = {"max_in_flight": 1000, "body": 100, "codec": "plain", "audit": True, "connections": 20}
    yield Case(
        "rules", "consume", "rules under load, 20 connections", job, server="pump", rate=100_000, quick=True, rounds=3
    )


def _youzan() -> Iterator[Case]:
    for name, kind, more, rate in (
        ("publish from 8 callers", "publish", {"callers": 8}, 20_000),
        ("publish with keys from 8 callers", "publish", {"callers": 8, "keyed": True}, 20_000),
        ("consume", "consume", {}, 60_000),
        ("consume in order", "consume", {"ordered": True}, 15_000),
    ):
        job = {"body": 100, "codec": "plain", "max_in_flight": 200, **more}
        yield Case("youzan", kind, f"Youzan's: {name}", job, server="youzan", rate=rate)


def _scale() -> Iterator[Case]:
    base = {"max_in_flight": 2500, "body": 100, "codec": "plain"}
    for connections in (1, 10, 100):
        job = {**base, "connections": connections, "max_in_flight": 25 * connections}
        title = f"consume, 25 in flight on each of {connections} connections"
        yield Case("scale", "consume", title, job, server="pump", rate=200_000, rounds=3)
    for workers in (1, 10, 100, 1000):
        job = {**base, "concurrency": workers}
        yield Case("scale", "consume", f"consume with concurrency {workers}", job, server="pump", rounds=3)
    for extra in ("stats", "lookupd", "msg_timeout"):
        job = {**base, "extra": extra}
        yield Case(
            "scale", "consume", f"consume, {_EXTRAS[extra]}", job, server="pump", quick=extra == "lookupd", rounds=3
        )


_EXTRAS = {
    "stats": "stats() read 20 times a second",
    "lookupd": "one nsqlookupd polled every 0.2 s",
    "msg_timeout": "message deadlines of 1 s set",
}
