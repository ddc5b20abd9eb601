"""Cases without a Spark session: recording, reading a recording, and a plain Reader for comparison."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gnsq_lite import Reader, Writer
from gnsq_lite.arrow import arrow_schema, to_batch
from gnsq_lite.recording.files import Files
from gnsq_lite.recording.frames import coalesced
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.recording.receiver import Receiver
from gnsq_lite.recording.recorder import Recorder
from gnsq_lite.recording.recording import Recording
from gnsq_lite.recording.sealer import Sealer, seal_free_logs


def prepare(server: Any, topic: str, messages: int, size: int) -> None:
    """Create *topic* with the channel "c", and publish messages."""
    server.http("POST", f"/topic/create?topic={topic}")
    server.http("POST", f"/channel/create?topic={topic}&channel=c")
    with Writer(server.tcp_address) as writer:
        for at in range(0, messages, 500):
            count = min(500, messages - at)
            writer.multipublish(topic, [b"%010d" % n + b"x" * (size - 10) for n in range(at, at + count)])


def options(server: Any, topic: str, directory: Path, **more: str) -> dict[str, str]:
    """Return a source's options."""
    base = {"topic": topic, "channel": "c", "recording": str(directory), "nsqdTCPAddresses": server.tcp_address}
    return {**base, "maxWaitingBytes": "100g", **more}


def receive(
    server: Any, topic: str, directory: Path, messages: int, size: int, *, parquet: bool = False
) -> dict[str, float]:
    """Measure a recorder: messages per second, and CPU time of this process per message.

    If *parquet* is true, the figures contain the Parquet files of all rows.
    """
    prepare(server, topic, messages, size)
    given = RecorderOptions(topic=topic, channel="c", client={"nsqd_tcp_addresses": [server.tcp_address]})
    recording = Recording(str(directory))
    recording.create(topic, "c")
    if parquet:
        recording.begin_sealing()
    writer = recording.take()
    recorder = Recorder(writer, recording.reader(writer.name), Receiver(given), given)
    sealer = Sealer(recording, recorder) if parquet else None
    begun, cpu = time.perf_counter(), time.process_time()
    recorder.start()
    if sealer is not None:
        sealer.start()
    while recorder.stored < messages:
        time.sleep(0.002)
    if sealer is not None:
        sealer.stop()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    recorder.stop()
    assert sum(recording.end().values()) == messages
    shutil.rmtree(directory)
    server.http("POST", f"/topic/delete?topic={topic}")
    return {"per_second": messages / seconds, "cpu_us": cpu / messages * 1e6}


def plain_reader(server: Any, topic: str, directory: Path, messages: int, size: int) -> dict[str, float]:
    """Measure a Reader without Spark, whose handler writes a list of messages to Parquet and then finishes them."""
    when = pa.timestamp("ns", tz="UTC")
    prepare(server, topic, messages, size)
    directory.mkdir(parents=True)
    done = threading.Event()
    total = 0

    def handle(batch: list[Any]) -> None:
        nonlocal total
        columns = {
            "topic": [message.topic for message in batch],
            "channel": [message.channel for message in batch],
            "nsqd": [message.nsqd_address for message in batch],
            "id": [message.id.decode() for message in batch],
            "timestamp": pa.array([message.timestamp_ns for message in batch], when),
            "attempts": [message.attempts for message in batch],
            "body": [message.body for message in batch],
        }
        with (directory / f"{total:012d}.parquet").open("wb") as file:
            pq.write_table(pa.table(columns), file)
            Files().sync(file.fileno())
        total += len(batch)
        if total >= messages:
            done.set()

    begun, cpu = time.perf_counter(), time.process_time()
    reader = Reader(
        topic,
        "c",
        handle,
        nsqd_tcp_addresses=server.tcp_address,
        max_in_flight=2500,
        batch_size=1250,  # two lists in flight
        batch_wait=1.0,
        concurrency=1,
        handler_pool="thread",
    )
    with reader:
        assert done.wait(600)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    shutil.rmtree(directory)
    return {"per_second": messages / seconds, "cpu_us": cpu / messages * 1e6}


class Row:
    """A message for :func:`read_segments` that no nsqd sent."""

    topic, channel, nsqd_address = "clicks", "c", "127.0.0.1:4150"
    partition = internal_id = trace_id = headers = None

    def __init__(self, number: int, body: bytes) -> None:
        self.id, self.timestamp_ns, self.attempts, self.body = b"%016x" % number, number * 1000, 1, body


def read_segments(
    directory: Path, rows: int, size: int, per_flush: int = 1000, *, sealed: bool = False
) -> dict[str, float]:
    """Measure how many rows per second one core reads from a recording, in the same way as a task."""
    recording = Recording(str(directory))
    recording.create("clicks", "c")
    writer = recording.take()
    for at in range(0, rows, per_flush):
        writer.append([(-1, to_batch([Row(n, b"x" * size) for n in range(at, at + per_flush)]))])
    writer.close()
    if sealed:
        recording.begin_sealing()
        list(seal_free_logs(recording))
    span = recording.reader(writer.name).span(0, rows)
    begun, cpu = time.perf_counter(), time.process_time()
    read = 0
    for batch in coalesced((batch for _, batch in recording.read(span)), arrow_schema()):
        with pa.ipc.new_stream(pa.BufferOutputStream(), batch.schema) as sink:  # as Spark's worker sends it
            sink.write_batch(batch)
        read += batch.num_rows
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    assert read == rows
    shutil.rmtree(directory)
    return {"per_second": rows / seconds, "cpu_us": cpu / rows * 1e6}
