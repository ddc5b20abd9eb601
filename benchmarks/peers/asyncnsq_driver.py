"""Driver of asyncnsq, used as its documentation shows: asyncio, messages from an async generator."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import meter
from asyncnsq import create_reader, create_writer


async def _subscribed(job: dict[str, Any]) -> Any:
    reader = await create_reader(nsqd_tcp_addresses=job["addresses"], max_in_flight=job["max_in_flight"])
    await reader.subscribe(job["topic"], job["channel"])
    return reader


async def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Measure a loop that only counts and finishes messages."""
    done = asyncio.Event()
    count = meter.Meter(job, done.set)
    tick, marks, mark = count.tick, count.marks, count.mark
    reader = await _subscribed(job)
    async for message in reader.messages():
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
    reader = await _subscribed(job)
    async for message in reader.messages():
        ages.append(meter.stamp_age(message.body))
        await message.fin()
        if len(ages) == job["messages"]:
            break
    await asyncio.sleep(job["linger"])
    return meter.percentiles(ages)


async def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Measure ``callers`` tasks that publish and await the answer."""
    host, port = job["addresses"][0].rsplit(":", 1)
    writer = await create_writer(host=host, port=int(port))
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
    writer.close()
    return count.result


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    todo = meter.job()
    act = {"consume": consume, "publish": publish, "latency": latency}[todo["scenario"]]
    meter.report(asyncio.run(act(todo)))
