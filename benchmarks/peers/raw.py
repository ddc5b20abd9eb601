"""Driver of bare loops on one socket.  If the job has ``gevent``, the socket is gevent's.

The loops show the practical limit of Python.  They parse messages and send FIN and RDY, or send PUB and read answers,
without handlers, error handling and reconnects.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import meter

_HEAD = struct.Struct(">iiqH16s")  # size, type, timestamp, attempts, id
SIZE = struct.Struct(">i")
_READ = 256 * 1024
_OK = b"\0\0\0\6\0\0\0\0OK"
_BEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"


class Wire:
    """A connected socket after IDENTIFY, with or without compression."""

    def __init__(self, job: dict[str, Any]) -> None:
        if job.get("gevent"):
            from gevent import socket
        else:
            import socket  # type: ignore[no-redef]
        host, port = job["addresses"][0].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.recv: Callable[[int], bytes] = self.socket.recv
        self.send: Callable[[bytes], Any] = self.socket.sendall
        codec = job["codec"]
        identify = {"feature_negotiation": True, "output_buffer_timeout": job["output_buffer_ms"], "user_agent": "raw"}
        if codec != "plain":
            identify[codec] = True
        text = json.dumps(identify).encode()
        self.send(b"  V2IDENTIFY\n" + SIZE.pack(len(text)) + text)
        self.frame()
        if codec != "plain":
            self._compress(codec)
            self.expect(_OK)

    def _compress(self, codec: str) -> None:
        recv, send = self.socket.recv, self.socket.sendall
        if codec == "deflate":
            inflate = zlib.decompressobj(-zlib.MAX_WBITS).decompress
            packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)

            def pack(data: bytes) -> bytes:
                return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
        else:
            import snappy

            inflate = snappy.StreamDecompressor().decompress
            pack = snappy.StreamCompressor().compress

        def recv_inflated(size: int) -> bytes:
            while not (data := inflate(recv(size))):
                pass
            return bytes(data)

        self.recv = recv_inflated
        self.send = lambda data: send(pack(data))

    def expect(self, wanted: bytes) -> None:
        """Read exactly *wanted* bytes."""
        data = b""
        while len(data) < len(wanted):
            data += self.recv(len(wanted) - len(data) if self.recv == self.socket.recv else _READ)
        assert data == wanted, data

    def frame(self) -> bytes:
        """Read exactly one uncompressed frame."""
        data = b""
        while len(data) < 4 or len(data) < 4 + SIZE.unpack_from(data)[0]:
            data += self.recv(1)
        return data[8:]

    def await_answers(self, count: int) -> None:
        """Read *count* OKs, and answer heartbeats."""
        missing, got = len(_OK) * count, b""
        while missing:
            got = self.recv(_READ)
            if _BEAT in got:
                got = got.replace(_BEAT, b"")
                self.send(b"NOP\n")
            missing -= len(got)
        if got[-2:] != b"OK":
            raise RuntimeError(f"unexpected answer {got!r}")


def parse(buffer: bytes, answers: list[bytes], bodies: list[bytes]) -> int:
    """Append the FINs and bodies of *buffer*'s complete frames, and return the offset of the first incomplete frame."""
    at, end, unpack = 0, len(buffer), _HEAD.unpack_from
    while end - at >= 34:
        size, kind, _timestamp, _attempts, ident = unpack(buffer, at)
        following = at + 4 + size
        if following > end:
            break
        if kind == 2:
            bodies.append(buffer[at + 34 : following])
            answers.append(b"FIN " + ident + b"\n")
        else:
            _control(buffer[at + 8 : following], answers)
        at = following
    while 8 <= end - at < 34 and SIZE.unpack_from(buffer, at)[0] + 4 <= end - at:  # a short frame at the end
        following = at + 4 + SIZE.unpack_from(buffer, at)[0]
        _control(buffer[at + 8 : following], answers)
        at = following
    return at


def _control(data: bytes, answers: list[bytes]) -> None:
    if data == b"_heartbeat_":
        answers.append(b"NOP\n")
    elif data != b"OK" and not data.startswith(b"E_FIN_FAILED"):  # Youzan's nsqd may send a message twice
        raise RuntimeError(f"unexpected frame {data!r}")


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Receive and finish messages.  Copies each body, and does not read it."""
    wire, count = Wire(job), meter.Meter(job)
    ready, left = b"RDY %d\n" % job["max_in_flight"], job["max_in_flight"]
    low, warm, total = left // 4, job["warmup"], job["warmup"] + job["messages"]
    wire.send(b"SUB %s %s\n" % (job["topic"].encode(), job["channel"].encode()) + ready)
    recv, send, rest, seen, started = wire.recv, wire.send, b"", 0, False
    while seen < total:
        data = recv(_READ)
        buffer = rest + data if rest else data
        answers: list[bytes] = []
        bodies: list[bytes] = []
        rest = buffer[parse(buffer, answers, bodies) :]
        left -= len(bodies)
        if left <= low:
            answers.append(ready)
            left = job["max_in_flight"]
        send(b"".join(answers))
        seen += len(bodies)
        if not started and seen >= warm:
            started, extra = True, seen - warm
            count.messages -= extra
            count.start()
        if seen >= total:
            count.stop()
    time.sleep(job["linger"])
    return count.result


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the age of each message after parsing."""
    wire, rest = Wire(job), b""
    ages: list[float] = []
    wire.send(b"SUB %s %s\nRDY %d\n" % (job["topic"].encode(), job["channel"].encode(), job["max_in_flight"]))
    while len(ages) < job["messages"]:
        buffer = rest + wire.recv(_READ)
        answers: list[bytes] = []
        bodies: list[bytes] = []
        rest = buffer[parse(buffer, answers, bodies) :]
        ages += [meter.stamp_age(body) for body in bodies]
        wire.send(b"".join(answers))
    time.sleep(job["linger"])
    return meter.percentiles(ages)


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Send ``callers`` publishes at once, as MPUBs of ``batch`` bodies or as PUBs, and wait for their answers."""
    wire, count = Wire(job), meter.Meter(job)
    topic: bytes = job["topic"].encode()
    callers, batch = job["callers"], job["batch"]
    body = meter.body_of(job)
    one = SIZE.pack(len(body)) + body

    def command() -> bytes:
        if batch == 1:
            return b"PUB " + topic + b"\n" + one
        bodies = b"".join([SIZE.pack(len(body)) + body for _ in range(batch)])
        return b"MPUB " + topic + b"\n" + SIZE.pack(4 + len(bodies)) + SIZE.pack(batch) + bodies

    def rounds(messages: int) -> None:
        for _ in range(messages // (callers * batch)):
            wire.send(command() if callers == 1 else b"".join([command() for _ in range(callers)]))
            wire.await_answers(callers)

    return count.around(rounds)


if __name__ == "__main__":
    todo = meter.job()
    act = {"consume": consume, "publish": publish, "latency": latency}[todo["scenario"]]
    meter.report(act(todo))
