"""What a session sends, on its way to the link: as it is, or as the faults on command leave it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gnsq_lite.broker.fault_script import Manner, Script
from gnsq_lite.broker.ports import Timer, Transport


class Output:
    """Sends to one link.  *now* and *after* are the clock's; *cut* is called where a fault ends the connection."""

    def __init__(
        self,
        link: Transport,
        script: Script,
        now: Callable[[], float],
        after: Callable[[float, Callable[[], None]], Timer],
        cut: Callable[[Manner], None],
    ) -> None:
        self._link, self._script, self._now, self._after, self._cut = link, script, now, after, cut
        self._sent = 0
        self._late: deque[tuple[float, bytes]] = deque()
        self._ending = False

    def send(self, data: bytes) -> None:
        """Send *data*, or what the faults leave of it."""
        script = self._script
        if not script.active:
            self._sent += len(data)
            self._link.send(data)
            return
        if script.black_hole:
            return
        left = script.cut_at(self._sent, len(data))
        self._sent += len(data)
        if left is not None:
            self._link.send(data[:left])
            self._cut(script.cut_manner)
        elif script.latency or script.piece or self._late:
            idle = not self._late
            self._late.extend(script.pieces(data, self._now()))
            if idle:
                self._send_late()
        else:
            self._link.send(data)

    def _send_late(self) -> None:
        now = self._now()
        while self._late and self._late[0][0] <= now:
            self._link.send(self._late.popleft()[1])
            if self._script.piece:
                break
        if self._late:
            self._after(max(self._late[0][0] - now, 0.0), self._send_late)
        elif self._ending:
            self._link.close()

    def drop(self) -> None:
        """Forget what a fault holds back."""
        self._late.clear()

    def close(self, unread: int = 0) -> None:
        """Close the link, once all is sent; with a reset where *unread* bytes of the peer's would be left."""
        if self._late:
            self._ending = True
        elif unread:
            self._link.refuse(unread)
        else:
            self._link.close()
