"""Driver of ansq, used as its documentation shows: asyncio, messages from an async generator.

ansq's Reader always has RDY 1, so the driver uses ansq's connection class with max_in_flight.  ansq has no compression.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ansq
import meter


async def _subscribed(job: dict[str, Any], address: str) -> Any:
    host, port = address.rsplit(":", 1)
    connection = await ansq.open_connection(host, int(port))
    share = max(1, job["max_in_flight"] // len(job["addresses"]))
    await connection.subscribe(job["topic"], job["channel"], share)
    return connection


async def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Measure a loop that only counts and finishes messages."""
    done = asyncio.Event()
    count = meter.Meter(job, done.set)
    tick, marks, mark = count.tick, count.marks, count.mark
    connection = await _subscribed(job, job["addresses"][0])
    async for message in connection.messages():
        if tick() in marks:
            mark()
        await message.fin()
        if done.is_set():
            break
    await asyncio.sleep(job["linger"])
    return count.result


async def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the age of each message when the loop receives it."""
    ages: list[float] = []
    connection = await _subscribed(job, job["addresses"][0])
    async for message in connection.messages():
        ages.append(meter.stamp_age(message.body))
        await message.fin()
        if len(ages) == job["messages"]:
            break
    await asyncio.sleep(job["linger"])
    return meter.percentiles(ages)


async def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Measure ``callers`` tasks that publish and await the answer."""
    writer = await ansq.create_writer(nsqd_tcp_addresses=job["addresses"])
    count, topic, body, batch = meter.Meter(job), job["topic"], meter.body_of(job), job["batch"]
    bodies = [body] * batch

    async def caller(times: int) -> None:
        for _ in range(times):
            if batch == 1:
                await writer.pub(topic, body)
            else:
                await writer.mpub(topic, *bodies)

    async def all_callers(messages: int) -> None:
        times = messages // (job["callers"] * batch)
        await asyncio.gather(*[caller(times) for _ in range(job["callers"])])

    await all_callers(job["warmup"])
    count.start()
    await all_callers(job["messages"])
    count.stop()
    return count.result


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    todo = meter.job()
    act = {"consume": consume, "publish": publish, "latency": latency}[todo["scenario"]]
    meter.report(asyncio.run(act(todo)))
