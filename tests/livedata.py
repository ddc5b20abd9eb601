"""Made-up documents of worker processes for tests of the live page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from gnsq_lite.stats import COMBINED
from gnsq_lite.supervise.history import EVERY, SAMPLES, History
from gnsq_lite.supervise.merged import empty, merge


def handler(topic: str, **values: Any) -> dict[str, Any]:
    named = {"topic": topic, "channel": "ch", "name": "app.handle", "state": "connected"}
    zeros = dict.fromkeys(COMBINED, 0)
    return {**zeros, **named, "paused": False, "oldest_handler": 0.0, "errors": [], "running": [], **values}


def process(number: int, **values: Any) -> dict[str, Any]:
    told = {"number": number, "pid": 100 + number, "state": "running", "why": "", "memory": 50 << 20, "runs_for": 5.0}
    return {**told, "restarts": 0, "finished": 0, "in_flight": 0, **values}


def nsqd(address: str, topic: str, depth: int | None = 0, **values: Any) -> dict[str, Any]:
    counts = {"connections": 1, "ready": 5, "share": 5, "in_flight": 0, "last_read_ago": 0.5, "depth": depth}
    return {"address": address, "topic": topic, "channel": "ch", **counts, **values}


def document(**parts: Any) -> dict[str, Any]:
    return merge("0.0", time.time(), [{**empty("0.0", 0.0), **parts}])


#: Seconds since 1970 at which the states below begin, and their nsqds.
BEGIN = 1_790_000_000.0
_NSQDS = tuple(f"10.0.0.{number}:4150" for number in range(11, 15))
_CHANNELS = {"mail": "send", "orders": "ship", "pictures": "shrink"}


def _total(rate: float, second: float, period: float = 150.0) -> int:
    """Return a count that grows by *rate* a second, now faster and now slower."""
    return int(rate * (second + 1000 + period / 8 * math.sin(second / period * 2 * math.pi)))


def _error(kind: str, text: str, second: float, count: int) -> dict[str, Any]:
    where = "0f3a5c7e9b1d2046 of 10.0.0.12:4150, attempt 3"
    return {"type": kind, "text": text, "at": BEGIN + second - 2, "count": count, "message": where, "process": 1}


def _call(topic: str, age: float, number: int, stack: str) -> dict[str, Any]:
    named = {"topic": topic, "channel": _CHANNELS[topic], "id": f"0f3a5c7e9b1d20{number:02d}", "attempt": 1}
    return {**named, "seconds": age, "process": number % 4, "thread": f"gnsq-{number}", "stack": stack}


def _shop(
    second: float,
    depths: dict[str, int] | None = None,
    gone: str = "",
    **changed: dict[str, Any],
) -> dict[str, Any]:
    """Return the document of a worker with three handlers in four processes; *changed* has values by topic."""
    open_nsqds = [each for each in _NSQDS if each != gone]

    def part(total: int, number: int) -> int:
        return total // len(open_nsqds) + (number < total % len(open_nsqds))

    calm: dict[str, dict[str, Any]] = {
        "orders": {
            "finished": _total(212, second),
            "in_flight": int(9 + 5 * math.sin(second / 9)),
            "max_in_flight": 64,
        },
        "pictures": {"finished": _total(4.4, second), "in_flight": 7, "max_in_flight": 16},
        "mail": {"finished": _total(38, second), "in_flight": 2, "max_in_flight": 4},
    }
    handlers, rows = [], []
    for topic, values in calm.items():
        channel, places = _CHANNELS[topic], values["max_in_flight"]
        common = {"connections": len(open_nsqds), "ready": places, "concurrency": places, "name": f"shop.jobs.{topic}"}
        handlers.append(now := handler(topic, channel=channel, **{**common, **values, **changed.get(topic, {})}))
        depth = (depths or {}).get(topic, 0)
        rows += [
            nsqd(
                address,
                topic,
                part(depth, number),
                channel=channel,
                **{name: part(now[name], number) for name in ("ready", "in_flight")},
            )
            for number, address in enumerate(open_nsqds)
        ]
    done = sum(each["finished"] for each in handlers)
    processes = [process(n, finished=done // 4, in_flight=4 + n, runs_for=7500 + second) for n in range(4)]
    why = "ConnectionRefusedError: [Errno 111] Connection refused"
    lost = [{"address": gone, "topic": topic, "channel": _CHANNELS[topic], "why": why} for topic in calm if gone]
    parts = {"handlers": handlers, "processes": processes, "nsqds": rows, "unavailable": lost}
    return merge("0.1.0", BEGIN + second, [{**empty("0.1.0", 0.0), **parts}])


def _backlog(second: float) -> dict[str, Any]:
    return _shop(second, {"orders": max(0, 10400 - int(40 * second)), "pictures": 590 + int(8 * second)})


def _failing(second: float) -> dict[str, Any]:
    refused = _error("SMTPServerDisconnected", "Connection unexpectedly closed", second, 214)
    backoff = {"state": "backoff", "backoff_level": 8, "backoff_for": 75.0, "ready": 0, "in_flight": 0}
    finished = _total(38, min(second, -240))
    failures = _total(6, min(max(second, -240), -60)) - _total(6, -240)
    return _shop(
        second,
        {"mail": 9800 + int(38 * second)},
        mail={**backoff, "finished": finished, "failures": failures, "requeued": failures, "errors": [refused]},
    )


def _hung(second: float) -> dict[str, Any]:
    stands = "shop/stock.py:41 in reserve: return requests.post(url, json=order)"
    orders = [_call("orders", 754.0 + second - number, number, stands) for number in range(5)]
    stuck = {"in_flight": 64, "handlers_running": 64, "oldest_handler": 754.0 + second, "running": orders}
    one = _call("pictures", 95.0 + second, 7, "shop/pictures.py:12 in shrink: image.load()")
    slow = {"handlers_running": 7, "oldest_handler": 95.0 + second, "running": [one]}
    finished = _total(212, min(second, -300))
    return _shop(second, {"orders": 320}, orders={**stuck, "finished": finished}, pictures=slow)


def _giving_up(second: float) -> dict[str, Any]:
    given_up = max(0, int(1.5 * (second + 120)))
    error = _error("KeyError", "'address': the order of customer 4711 has no address", second, given_up)
    lost = {"given_up": given_up, "failures": given_up, "kept_in": "topic:mail_dead,log", "errors": [error]}
    return _shop(second, mail=lost)


#: The states of a worker that the live page is tested with: documents by the second.
STATES: dict[str, Callable[[float], dict[str, Any]]] = {
    "calm": _shop,
    "backlog": _backlog,
    "failing": _failing,
    "hung": _hung,
    "giving-up": _giving_up,
    "nsqd-gone": lambda second: _shop(second, gone=_NSQDS[1]),
}


class StatePages:
    """Status pages of a worker in a state of *STATES*: each request of the document is a second later."""

    def __init__(self, name: str) -> None:
        self._state, self._second = STATES[name], 0

    def live(self, brief: bool) -> dict[str, Any]:
        self._second += 1
        return self._state(self._second)

    def history(self) -> dict[str, Any]:
        seconds = iter([EVERY * (number - SAMPLES) for number in range(SAMPLES)])
        history = History(lambda: self._state(next(seconds)))
        for _ in range(SAMPLES):
            history.sample()
        return history.document()
