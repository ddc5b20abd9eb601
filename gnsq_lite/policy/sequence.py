"""What a policy decides that keeps the messages of one connection in order (YZ-6)."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Handle:
    """Give the message to the handler."""

    message: Any


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the message for *seconds*, then ask :meth:`Sequence.release`."""

    message: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class SendBack:
    """Send REQ 0 for the message."""

    message: Any


@dataclass(frozen=True, slots=True)
class CountOut:
    """The message is in flight no more: what was sent for another delivery of it has answered this one."""

    message: Any


Decision = Handle | Hold | SendBack | CountOut


class Sequence(Protocol):
    """The policy of one connection.  Each method takes what happened and returns what to do now, in order."""

    def arrived(self, message: Any) -> List[Decision]: ...

    def finished(self, message: Any) -> List[Decision]: ...

    def answered_late(self, message: Any, *, finished: bool) -> List[Decision]: ...

    def failed(self, message: Any, delay: float) -> List[Decision]: ...

    def release(self, message: Any) -> List[Decision]: ...

    def handler_returned(self, message: Any) -> List[Decision]: ...

    def expired(self, message: Any) -> List[Decision]: ...

    def close(self) -> List[Decision]: ...
