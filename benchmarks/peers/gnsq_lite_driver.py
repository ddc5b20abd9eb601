"""Driver of gnsq_lite's public API.  If the job has ``patched``, the process is monkey-patched."""

from __future__ import annotations

from typing import Any

import meter

JOB = meter.job()
if JOB.get("patched"):
    from gevent import monkey

    monkey.patch_all()

import threading  # noqa: E402 - after the patching
import time  # noqa: E402

from gnsq_lite import Reader, Writer  # noqa: E402


def _reader(job: dict[str, Any], handler: Any, **more: Any) -> Any:
    options: dict[str, Any] = {
        "nsqd_tcp_addresses": job["addresses"],
        "max_in_flight": job["max_in_flight"],
        "handler_pool": job["pool"],
        **more,
    }
    if job["codec"] != "plain":
        options["compression"] = job["codec"]
    if job["output_buffer_ms"]:
        options["output_buffer_timeout"] = -1 if job["output_buffer_ms"] == -1 else job["output_buffer_ms"] / 1000
    reader = Reader(job["topic"], job["channel"], handler, **options)
    reader.start(block=False)
    return reader


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Measure a handler that only counts messages."""
    done = threading.Event()
    count = meter.Meter(job, done.set)
    tick, marks, mark = count.tick, count.marks, count.mark

    def handler(message: Any) -> None:
        if tick() in marks:
            mark()

    reader = _reader(job, handler)
    done.wait()
    time.sleep(job["linger"])
    reader.close(timeout=10)
    return count.result


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the age of each message when its handler runs."""
    ages: list[float] = []
    done = threading.Event()

    def handler(message: Any) -> None:
        ages.append(meter.stamp_age(message.body))
        if len(ages) == job["messages"]:
            done.set()

    reader = _reader(job, handler)
    done.wait()
    time.sleep(job["linger"])
    reader.close(timeout=10)
    return meter.percentiles(ages)


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Measure ``callers`` threads, or greenlets if patched, that share a Writer and wait for each answer."""
    options: dict[str, Any] = {"coalesce": True} if job.get("coalesce") else {}
    if job["codec"] != "plain":
        options["compression"] = job["codec"]
    writer = Writer(job["addresses"], **options)
    count, topic, body, batch = meter.Meter(job), job["topic"], meter.body_of(job), job["batch"]
    bodies = [body] * batch
    failed: list[BaseException] = []

    def caller(times: int) -> None:
        try:
            for _ in range(times):
                if batch == 1:
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
            threads = [threading.Thread(target=caller, args=(times,)) for _ in range(job["callers"])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failed:
            raise failed[0]

    all_callers(job["warmup"])
    count.start()
    all_callers(job["messages"])
    count.stop()
    writer.close(timeout=10)
    return count.result


if __name__ == "__main__":
    act = {"consume": consume, "publish": publish, "latency": latency}
    meter.report(act[JOB["scenario"]](JOB))
