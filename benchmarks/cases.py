"""The measured cases, and the clients that can take part in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CODECS = ("plain", "snappy", "deflate")


@dataclass(frozen=True)
class Implementation:
    """A client with one configuration."""

    name: str
    driver: str
    """File under ``peers/``.  ``go`` is a Go program."""
    environment: str = ""
    """Name of the client's virtual environment.  Empty means the environment of the benchmark."""
    kinds: frozenset[str] = frozenset({"consume", "publish", "latency"})
    codecs: frozenset[str] = frozenset(CODECS)
    pace: int = 100_000
    """Expected messages per second if nsqd is not the limit.  Determines the number of messages to measure."""
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether the client is gnsq_lite."""
        return self.driver == "gnsq_lite_driver.py"


def _ours(name: str, kinds: str, pace: int, **job: Any) -> Implementation:
    return Implementation(
        f"gnsq_lite-{name}", "gnsq_lite_driver.py", kinds=frozenset(kinds.split()), pace=pace, job=job
    )


_PLAIN = frozenset({"plain"})
_BARE = frozenset({"consume", "publish", "latency"})

IMPLEMENTATIONS = (
    Implementation("raw", "raw.py", kinds=_BARE, pace=1_000_000),
    Implementation("raw-gevent", "raw.py", kinds=_BARE, pace=1_000_000, job={"gevent": True}),
    _ours("greenlet", "consume publish latency", 1_000_000, pool="greenlet", patched=True),
    _ours("thread", "consume publish latency", 500_000, pool="thread"),
    _ours("inline", "consume latency", 1_000_000, pool="inline", patched=True),
    _ours("coalesce", "publish", 1_000_000, pool="greenlet", patched=True, coalesce=True),
    Implementation("go-nsq", "go", pace=50_000),
    Implementation("nsq-py", "nsq_py_driver.py", "nsq-py", codecs=_PLAIN, pace=150_000),
    Implementation("ansq", "ansq_driver.py", "ansq", codecs=_PLAIN, pace=30_000),
    Implementation("asyncnsq", "asyncnsq_driver.py", "asyncnsq", codecs=_PLAIN, pace=30_000),
    Implementation("pynsq", "pynsq_driver.py", "pynsq", pace=20_000),
    Implementation("gnsq", "gnsq_driver.py", "gnsq", pace=20_000),
)


@dataclass(frozen=True)
class Case:
    """One column of a table: a job that all clients do."""

    kind: str
    """Name of the driver's function, and argument of ``--only``."""
    title: str
    job: dict[str, Any] = field(default_factory=dict)
    slow: float = 1.0
    """Expected share of the client's pace in this case."""
    rate: int = 400_000
    """Approximate messages per second at which the server is the limit."""
    delayed: bool = False
    """Whether a proxy adds a round trip of two milliseconds."""
    quick: bool = False
    """Whether ``--quick`` includes the case."""

    def takes(self, implementation: Implementation) -> bool:
        """Return whether *implementation* can do this case."""
        crowded = self.job.get("callers", 1) > 1 or not implementation.job.get("coalesce")
        return self.kind in implementation.kinds and self.job.get("codec", "plain") in implementation.codecs and crowded


def all_cases() -> Iterator[Case]:
    """Yield every case, ordered by kind."""
    for in_flight in (1, 200, 2500):
        slow, rate = (0.2, 6_000) if in_flight == 1 else (1.0, 250_000)
        yield _case("consume", f"{in_flight:,}", max_in_flight=in_flight, slow=slow, rate=rate, quick=in_flight == 200)
    yield _case("consume", "200, 1 kB", max_in_flight=200, body=1000, rate=100_000)
    yield _case("consume", "200, snappy", max_in_flight=200, codec="snappy", rate=200_000, quick=True)
    yield _case("consume", "200, deflate", max_in_flight=200, codec="deflate", rate=100_000, quick=True)
    yield _case("consume", "200, 2 ms", max_in_flight=200, rate=40_000, delayed=True, quick=True)
    yield _case("publish", "1 caller", slow=0.2, rate=8_000, quick=True)
    yield _case("publish", "10 callers", callers=10, slow=0.8, rate=60_000)
    yield _case("publish", "100 callers", callers=100, rate=80_000, quick=True)
    yield _case("publish", "MPUB of 100", batch=100, slow=12.0, rate=500_000)
    yield _case("publish", "1 caller, 2 ms", rate=400, delayed=True)
    yield _case("publish", "100 callers, 2 ms", callers=100, rate=10_000, delayed=True, quick=True)
    for rate in (50, 500, 2_000, 10_000):
        yield _case("latency", f"{rate:,}/s", per_second=rate, max_in_flight=200, quick=rate == 500)
    yield _case("latency", "500/s, 1 in flight", per_second=500, max_in_flight=1)


def _case(
    kind: str,
    title: str,
    *,
    slow: float = 1.0,
    rate: int = 400_000,
    delayed: bool = False,
    quick: bool = False,
    **job: Any,
) -> Case:
    return Case(kind, title, {"body": 100, "codec": "plain", **job}, slow, rate, delayed, quick)
