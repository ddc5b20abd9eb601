"""Stand-ins: messages without an nsqd, a receiver without a network, a file system that crashes or is full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnsq_lite.errors import AlreadyAnswered
from gnsq_lite.recording.files import Files


class FakeMessage:
    """A message that notes how it was answered."""

    _rows = 1

    def __init__(
        self,
        number: int,
        body: bytes = b"body",
        *,
        attempts: int = 1,
        nsqd: str = "127.0.0.1:4150",
        partition: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        self.id = b"%016x" % number
        self.body = body
        self.attempts = attempts
        self.timestamp_ns = 1_700_000_000_000_000_123 + number * 1000 if timestamp_ns is None else timestamp_ns
        self.topic, self.channel, self.nsqd_address = "t", "c", nsqd
        self.partition = partition
        self.internal_id: int | None = None
        self.trace_id: int | None = None
        self.headers: dict[str, Any] | None = None
        self.answer: str | None = None
        self.on_finish: Callable[[], None] | None = None

    def finish(self) -> None:
        if self.answer is not None:
            raise AlreadyAnswered("finish")
        if self.on_finish is not None:
            self.on_finish()
        self.answer = "FIN"

    def requeue(self, delay: float | None = None, backoff: bool = True) -> None:
        if self.answer is not None:
            raise AlreadyAnswered("requeue")
        self.answer = "REQ"


class FakeReceiver:
    """Delivers what it is told to."""

    def __init__(self) -> None:
        self.take: Any = None
        self.paused = False
        self.calls: list[str] = []
        self.connected = True
        self.away: list[str] = []
        self.error: BaseException | None = None
        self.lost = 0

    def start(self, on_message: Any) -> None:
        self.take = on_message

    def pause(self) -> None:
        self.paused = True
        self.calls.append("pause")

    def resume(self) -> None:
        self.paused = False
        self.calls.append("resume")

    def is_connected(self) -> bool:
        return self.connected

    def missing(self) -> list[str]:
        return self.away

    def trouble(self) -> str:
        return ""

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self, timeout: float) -> None:
        self.calls.append("stop")


class Crash(BaseException):
    """The process died here."""


class CrashingFiles(Files):
    """Dies at the n-th call that changes something: before it, or (a torn append) in the middle of it."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.counting = True

    def _step(self) -> None:
        if not self.counting:
            return
        if self.left == 0:
            raise Crash
        self.left -= 1

    def create(self, path: Path, mode: int = 0o640) -> int:
        self._step()
        return super().create(path, mode)

    def append_all(self, fd: int, buffers: list[Any]) -> None:
        self.append(fd, b"".join(buffers))

    def append(self, fd: int, data: bytes) -> None:
        if self.counting and self.left == 0:
            super().append(fd, data[: len(data) // 2])
        self._step()
        super().append(fd, data)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)


class FullDisk(Files):
    """Takes bytes until it is full; ``room`` may be raised."""

    def __init__(self, room: int) -> None:
        self.room = room

    def append_all(self, fd: int, buffers: list[Any]) -> None:
        self.append(fd, b"".join(buffers))

    def append(self, fd: int, data: bytes) -> None:
        taken = min(self.room, len(data))
        super().append(fd, data[:taken])
        self.room -= taken
        if taken < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)


class FailingSync(Files):
    """Fails the n-th sync."""

    def __init__(self, failures: set[int]) -> None:
        self.failures, self.count = failures, 0

    def sync(self, fd: int) -> None:
        self.count += 1
        if self.count in self.failures:
            raise OSError(errno.EIO, "Input/output error")
        super().sync(fd)
