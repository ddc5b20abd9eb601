"""Driver of gnsq, used as its documentation shows: gevent, and a signal's handler for messages."""

from __future__ import annotations

from typing import Any

import gevent
import gnsq
import meter
from gevent.event import Event


def _connection(job: dict[str, Any]) -> dict[str, Any]:
    return {"output_buffer_timeout": job["output_buffer_ms"]} if job["output_buffer_ms"] else {}


def _consumer(job: dict[str, Any], handler: Any) -> Any:
    codec = {} if job["codec"] == "plain" else {job["codec"]: True}
    consumer = gnsq.Consumer(
        job["topic"],
        job["channel"],
        job["addresses"],
        max_in_flight=job["max_in_flight"],
        **codec,
        **_connection(job),
    )
    consumer.on_message.connect(handler, weak=False)
    consumer.start(block=False)
    return consumer


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Measure a handler that only counts messages."""
    done = Event()
    count = meter.Meter(job, done.set)
    tick, marks, mark = count.tick, count.marks, count.mark

    def handler(consumer: Any, message: Any) -> None:
        if tick() in marks:
            mark()

    consumer = _consumer(job, handler)
    done.wait()
    gevent.sleep(job["linger"])
    del consumer
    return count.result


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the age of each message when its handler runs."""
    ages: list[float] = []
    done = Event()

    def handler(consumer: Any, message: Any) -> None:
        ages.append(meter.stamp_age(message.body))
        if len(ages) == job["messages"]:
            done.set()

    consumer = _consumer(job, handler)
    done.wait()
    gevent.sleep(job["linger"])
    del consumer
    return meter.percentiles(ages)


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Measure ``callers`` greenlets that publish and wait for the answer."""
    producer = gnsq.Producer(job["addresses"], **_connection(job))
    producer.start()
    count, topic, body, batch = meter.Meter(job), job["topic"], meter.body_of(job), job["batch"]
    bodies = [body] * batch

    def caller(times: int) -> None:
        for _ in range(times):
            if batch == 1:
                producer.publish(topic, body)
            else:
                producer.multipublish(topic, bodies)

    def all_callers(messages: int) -> None:
        times = messages // (job["callers"] * batch)
        if job["callers"] == 1:
            caller(times)
        else:
            gevent.joinall([gevent.spawn(caller, times) for _ in range(job["callers"])], raise_error=True)

    return count.around(all_callers)


if __name__ == "__main__":
    todo = meter.job()
    meter.report({"consume": consume, "publish": publish, "latency": latency}[todo["scenario"]](todo))
