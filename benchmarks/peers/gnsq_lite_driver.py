"""gnsq_lite by its public API.  ``patched`` in the job: in a monkey-patched process; otherwise in a plain one."""

from __future__ import annotations

from typing import Any

import meter

JOB = meter.job()
if JOB.get("patched"):
    from gevent import monkey

    monkey.patch_all()

import threading  # noqa: E402 - after the patching
import time  # noqa: E402

import sampler  # noqa: E402

from gnsq_lite import Reader, Writer  # noqa: E402
from gnsq_lite.wire import commands  # noqa: E402
from gnsq_lite.youzan.dialect import YouzanDialect  # noqa: E402

READIES: list[int] = []
"""The RDY that were sent."""


def _count_readies() -> None:
    ready = commands.ready

    def counted(count: int) -> bytes:
        READIES.append(count)
        return ready(count)

    commands.ready = counted


def _where(job: dict[str, Any]) -> dict[str, Any]:
    """Return the options that say where nsqd is, and of which kind."""
    if "lookupds" not in job:
        return {"nsqd_tcp_addresses": job["addresses"]}
    dialect = YouzanDialect(ordered=True) if job.get("ordered") else "youzan"
    return {"lookupd_http_addresses": job["lookupds"], "dialect": dialect}


def _reader(job: dict[str, Any], handler: Any, **more: Any) -> Any:
    options: dict[str, Any] = {
        **_where(job),
        "max_in_flight": job["max_in_flight"],
        "handler_pool": job["pool"],
        **more,
    }
    if job["codec"] != "plain":
        options["compression"] = job["codec"]
    if job.get("concurrency"):
        options["concurrency"] = job["concurrency"]
    if job.get("delivery"):
        options["delivery"] = job["delivery"]
    if job["output_buffer_ms"]:
        options["output_buffer_timeout"] = -1 if job["output_buffer_ms"] == -1 else job["output_buffer_ms"] / 1000
    if job.get("extra") == "msg_timeout":
        options["msg_timeout"] = 1.0
    if job.get("lookupd"):
        options.update(lookupd_http_addresses=[job["lookupd"]], lookupd_poll_interval=0.2)
    reader = Reader(job["topic"], job["channel"], handler, **options)
    reader.start(block=False)
    return reader


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """A handler that only counts, or sleeps for ``handle`` seconds before."""
    done = threading.Event()
    count = meter.Meter(job, done.set)
    tick, marks, mark, handle = count.tick, count.marks, count.mark, job.get("handle", 0.0)

    def handler(message: Any) -> None:
        if tick() in marks:
            mark()

    def sleeper(message: Any) -> None:
        time.sleep(handle)
        handler(message)

    with sampler.sampling():
        reader = _reader(job, sleeper if handle else handler)
        if job.get("extra") == "stats":
            while not done.wait(0.05):
                reader.stats()
        while not done.wait(sampler.WAIT):
            pass
    stats = reader.stats()
    time.sleep(job["linger"])
    reader.close(timeout=10)
    count.result["reported"] = {"received": stats.received, "max_in_flight": stats.max_in_flight}
    count.result["readies"] = len(READIES)
    return count.result


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """How old each message is when its handler runs."""
    ages: list[float] = []
    last: dict[bytes, float] = {}
    done = threading.Event()
    handle, is_burst = job.get("handle", 0.0), job["burst"] > 1

    def handler(message: Any) -> None:
        age = meter.stamp_age(message.body)
        ages.append(age)
        if is_burst:
            last[message.body[:20]] = age
        if handle:
            time.sleep(handle)
        if len(ages) == job["messages"]:
            done.set()

    reader = _reader(job, handler)
    done.wait()
    time.sleep(job["linger"])
    reader.close(timeout=10)
    found = {**meter.percentiles(ages), "readies": len(READIES)}
    if is_burst:
        found["last"] = meter.percentiles(list(last.values()))["p50"]
    return found


def idle(job: dict[str, Any]) -> dict[str, Any]:
    """Connected, without messages."""
    readers = [_reader(job, lambda message: None) for _ in range(job["connections"] // len(job["addresses"]))]
    result = meter.idle(job, time.sleep)
    for reader in readers:
        reader.close(timeout=10)
    return result


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """``callers`` threads, or greenlets where patched, share a Writer; each waits for its answer."""
    options: dict[str, Any] = {"coalesce": True} if job.get("coalesce") else {}
    if job["codec"] != "plain":
        options["compression"] = job["codec"]
    writer = Writer(**_where(job), **options)
    count, topic, body, batch = meter.Meter(job), job["topic"], meter.body_of(job), job["batch"]
    bodies = [body] * batch
    failed: list[BaseException] = []

    def caller(times: int, number: int = 0) -> None:
        try:
            for turn in range(times):
                if job.get("keyed"):
                    writer.publish(topic, body, key=f"{number}-{turn % 64}")
                elif batch == 1:
                    writer.publish(topic, body)
                else:
                    writer.multipublish(topic, bodies)
        except BaseException as error:
            failed.append(error)
            raise

    def all_callers(messages: int) -> None:
        times = messages // (job["callers"] * batch)
        if job["callers"] == 1:
            caller(times)
        else:
            threads = [threading.Thread(target=caller, args=(times, each)) for each in range(job["callers"])]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(sampler.WAIT)
        if failed:
            raise failed[0]

    all_callers(job["warmup"])
    with sampler.sampling():
        count.start()
        all_callers(job["messages"])
        count.stop()
    writer.close(timeout=10)
    return count.result


def codec(job: dict[str, Any]) -> dict[str, Any]:
    """The wire layer alone, in memory: frames to messages and FINs, or bodies to PUBs."""
    from gnsq_lite.wire import commands
    from gnsq_lite.wire.frames import FrameDecoder

    count, body = meter.Meter(job), meter.body_of(job)
    with sampler.sampling():
        if job["direction"] == "encode":
            count.start()
            for _ in range(job["messages"]):
                commands.publish("bench", body)
            count.stop()
            return count.result
        pieces = meter.frames(body, job["messages"])
        decoder: Any = FrameDecoder(1 << 20, lambda owner, at, attempts, ident, body: (ident, body))
        seen = 0
        count.start()
        for piece in pieces:
            messages, _others = decoder.feed(piece)
            seen += len(b"".join([commands.finish(ident) for ident, _body in messages])) // 21
        count.stop()
    assert seen == job["messages"], seen
    return count.result


if __name__ == "__main__":
    _count_readies()
    act = {"consume": consume, "publish": publish, "latency": latency, "idle": idle, "codec": codec}
    meter.report(act[JOB["scenario"]](JOB))
