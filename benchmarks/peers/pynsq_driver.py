"""Driver of pynsq, used as its documentation shows: Tornado callbacks.

pynsq's reading of compressed data fails with current Tornado, because pynsq raises an OSError without errno if Tornado
expects a BlockingIOError.  The driver repairs this for the cases with compression.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import meter
import nsq


def _repair() -> None:
    import nsq.deflate_socket
    import nsq.snappy_socket

    def _recv(self: Any, size: int, method: Any) -> bytes:
        if self._bootstrapped:
            data, self._bootstrapped = self._bootstrapped, None
            return data  # type: ignore[no-any-return]
        chunk = method(size)
        if not chunk:
            return chunk  # type: ignore[no-any-return]
        data = self._decompressor.decompress(chunk)
        if not data:
            raise BlockingIOError
        return bytes(data)

    nsq.snappy_socket.SnappySocket._recv = _recv
    nsq.deflate_socket.DeflateSocket._recv = _recv


def _reader(job: dict[str, Any], handler: Any) -> Any:
    options: dict[str, Any] = {} if job["codec"] == "plain" else {job["codec"]: True}
    if job["output_buffer_ms"]:
        options["output_buffer_timeout"] = job["output_buffer_ms"]
    if options.get("snappy") or options.get("deflate"):
        _repair()
    return nsq.Reader(
        topic=job["topic"],
        channel=job["channel"],
        message_handler=handler,
        nsqd_tcp_addresses=job["addresses"],
        max_in_flight=job["max_in_flight"],
        **options,
    )


async def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Measure a handler that only counts messages."""
    done = asyncio.Event()
    count = meter.Meter(job, done.set)
    tick, marks, mark = count.tick, count.marks, count.mark

    def handler(message: Any) -> bool:
        if tick() in marks:
            mark()
        return True

    reader = _reader(job, handler)
    await done.wait()
    await asyncio.sleep(job["linger"])
    del reader
    return count.result


async def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the age of each message when its handler runs."""
    ages: list[float] = []
    done = asyncio.Event()

    def handler(message: Any) -> bool:
        ages.append(meter.stamp_age(message.body))
        if len(ages) == job["messages"]:
            done.set()
        return True

    reader = _reader(job, handler)
    await done.wait()
    await asyncio.sleep(job["linger"])
    del reader
    return meter.percentiles(ages)


async def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Measure ``callers`` chains of callbacks.  A callback publishes again after the answer."""
    writer = nsq.Writer(job["addresses"])
    while not any(conn.connected() and conn.last_recv_timestamp for conn in writer.conns.values()):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)  # pynsq reports a connection before nsqd has answered IDENTIFY
    count, topic, body, batch = meter.Meter(job), job["topic"], meter.body_of(job), job["batch"]
    bodies = [body] * batch

    async def all_callers(messages: int) -> None:
        done = asyncio.Event()
        left = {"send": messages // batch, "answers": messages // batch}

        def answered(conn: Any, data: Any) -> None:
            if data != b"OK":
                raise RuntimeError(f"unexpected answer {data!r}")
            left["answers"] -= 1
            if left["answers"] == 0:
                done.set()
            else:
                send()

        def send() -> None:
            if left["send"]:
                left["send"] -= 1
                if batch == 1:
                    writer.pub(topic, body, callback=answered)
                else:
                    writer.mpub(topic, bodies, callback=answered)

        for _ in range(job["callers"]):
            send()
        await done.wait()

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
