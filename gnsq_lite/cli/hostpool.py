"""Chooses the destination of a call (``--mode``), and times calls (``--status-every``)."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MODES = ("round-robin", "hostpool", "epsilon-greedy")

#: Seconds a failed destination rests, at first and at most; each further failure doubles it.
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 900.0

#: Response times count for five minutes, the older the less; chance decides less and less often, see Pool.
_BUCKETS, _REMEMBERED = 120, 300.0
_EPSILON, _EPSILON_DECAY, _EPSILON_LEAST = 0.3, 0.90, 0.01


@dataclass
class _Host:
    failed: bool = False
    pause: float = FIRST_PAUSE
    retry_at: float = 0.0
    #: Bucket number -> (calls, seconds); a bucket is a part of the remembered time.
    times: dict[int, tuple[int, float]] = field(default_factory=dict)


class Pool:
    """Chooses among *count* destinations; safe to share between threads.  Clock and chance are arguments.

    ``round-robin`` takes each in turn.  ``hostpool`` leaves those alone that failed, for half a minute at first, and
    turns to all again where none is left.  ``epsilon-greedy`` does so too and prefers those that answer fast.
    """

    def __init__(
        self,
        count: int,
        mode: str,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._hosts = [_Host() for _ in range(count)]
        self._mode, self._now, self._chance = mode, now, chance
        self._next = 0
        self._epsilon = _EPSILON
        self._lock = threading.Lock()

    def choose(self) -> int:
        """Return the number of the destination to call."""
        with self._lock:
            if self._mode == "round-robin":
                return self._take(self._next % len(self._hosts))
            now = self._now()
            chosen = self._fast(now) if self._mode == "epsilon-greedy" else None
            return self._in_turn(now) if chosen is None else chosen

    def _take(self, number: int) -> int:
        self._next = number + 1
        return number

    def _is_open(self, number: int, now: float) -> bool:
        host = self._hosts[number]
        return not host.failed or host.retry_at < now

    def _try(self, number: int, now: float) -> int:
        host = self._hosts[number]
        if host.failed:
            host.pause = min(host.pause * 2, LONGEST_PAUSE)
            host.retry_at = now + host.pause
        return number

    def _in_turn(self, now: float) -> int:
        for step in range(len(self._hosts)):
            number = (self._next + step) % len(self._hosts)
            if self._is_open(number, now):
                return self._take(self._try(number, now))
        for host in self._hosts:  # all have failed: any is as good as another
            host.failed = False
        return self._take(0)

    def _fast(self, now: float) -> int | None:
        """Return a random one, faster ones more often; None: take the next in turn, to measure it."""
        if self._chance() < self._epsilon:
            self._epsilon = max(self._epsilon * _EPSILON_DECAY, _EPSILON_LEAST)
            return None
        known = {
            number: 1.0 / mean
            for number, host in enumerate(self._hosts)
            if self._is_open(number, now) and (mean := _mean(host, self._bucket(now))) > 0
        }
        left = self._chance() * sum(known.values())
        for number, value in known.items():
            left -= value
            if left <= 0:
                return self._try(number, now)
        return None

    def _bucket(self, now: float) -> int:
        return int(now / (_REMEMBERED / _BUCKETS))

    def mark(self, number: int, *, ok: bool, seconds: float) -> None:
        """Note the outcome and the duration of a call."""
        with self._lock:
            host, now = self._hosts[number], self._now()
            if ok:
                host.failed = False
                bucket = self._bucket(now)
                calls, spent = host.times.get(bucket, (0, 0.0))
                host.times[bucket] = (calls + 1, spent + seconds)
                for old in [each for each in host.times if each <= bucket - _BUCKETS]:
                    del host.times[old]
            elif not host.failed:
                host.failed, host.pause = True, FIRST_PAUSE
                host.retry_at = now + host.pause


def _mean(host: _Host, bucket: int) -> float:
    """Return the average duration of calls, recent ones weighted more; 0 where unknown."""
    weight = total = 0.0
    for number, (calls, spent) in host.times.items():
        share = 1.0 - (bucket - number) / _BUCKETS
        if share > 0:
            weight += share
            total += share * spent / calls
    return total / weight if weight else 0.0


class Timings:
    """Says after every *every* calls how long they took, to *say*; 0: never.  Safe to share between threads."""

    def __init__(self, every: int, name: str, say: Callable[[str], None]) -> None:
        self._every, self._name, self._say = every, name, say
        self._seconds: list[float] = []
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Count one call."""
        if not self._every:
            return
        with self._lock:
            self._seconds.append(seconds)
            if len(self._seconds) < self._every:
                return
            taken, self._seconds = sorted(self._seconds), []
        p99, p95, mean = (1000 * each for each in (_part(taken, 0.99), _part(taken, 0.95), sum(taken) / len(taken)))
        self._say(f"[{self._name}]: finished {len(taken)} - 99th: {p99:.2f}ms - 95th: {p95:.2f}ms - avg: {mean:.2f}ms")


def _part(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered) + 0.5))]
