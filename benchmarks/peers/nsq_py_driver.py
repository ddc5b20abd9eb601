"""Driver of nsq-py, used as its documentation shows: a loop in the caller's thread, without handlers and compression.

nsq-py's publisher waits for one answer at a time.  For many callers the driver sends on nsq-py's connection, and reads.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import meter
from nsq.client import Client
from nsq.reader import Reader
from nsq.response import Error


def _reader(job: dict[str, Any]) -> Any:
    options = {"output_buffer_timeout": job["output_buffer_ms"]} if job["output_buffer_ms"] else {}
    return Reader(
        job["topic"].encode(),
        job["channel"].encode(),
        nsqd_tcp_addresses=job["addresses"],
        max_in_flight=job["max_in_flight"],
        **options,
    )


def _flush(reader: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reader.read()


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Measure a loop that only counts and finishes messages."""
    done: list[bool] = []
    count = meter.Meter(job, lambda: done.append(True))
    tick, marks, mark = count.tick, count.marks, count.mark
    reader = _reader(job)
    for message in reader:
        if tick() in marks:
            mark()
        message.fin()
        if done:
            break
    _flush(reader, job["linger"])
    return count.result


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the age of each message when the loop receives it."""
    ages: list[float] = []
    reader = _reader(job)
    for message in reader:
        ages.append(meter.stamp_age(message.body))
        message.fin()
        if len(ages) == job["messages"]:
            break
    _flush(reader, job["linger"])
    return meter.percentiles(ages)


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Measure publishes: one at a time through the client, or many at once through its connection."""
    client = Client(nsqd_tcp_addresses=job["addresses"])
    connection = client.connections()[0]
    count, topic, body = meter.Meter(job), job["topic"].encode(), meter.body_of(job)
    batch, callers = job["batch"], job["callers"]
    bodies = [body] * batch

    def check(responses: list[Any]) -> int:
        for response in responses:
            if isinstance(response, Error) or response.data != b"OK":
                raise RuntimeError(f"unexpected answer {response.data!r}")
        return len(responses)

    def rounds(messages: int) -> None:
        for _ in range(messages // (callers * batch)):
            if callers > 1:
                for _ in range(callers):
                    connection.pub(topic, body)
                missing = callers
                while missing:
                    missing -= check(client.read())
            elif batch == 1:
                check(client.pub(topic, body))
            else:
                check(client.mpub(topic, *bodies))

    return count.around(rounds)


if __name__ == "__main__":
    logging.getLogger("nsq").setLevel(logging.WARNING)
    todo = meter.job()
    meter.report({"consume": consume, "publish": publish, "latency": latency}[todo["scenario"]](todo))
