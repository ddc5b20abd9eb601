"""What systemd is told: sd_notify(3) by its datagrams, without its library."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, MutableMapping

from gnsq_lite.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger("gnsq_lite.supervise")

_NEVER = float("inf")


def _send(text: bytes, address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(1.0)
        datagrams.sendto(text, address)


class Notifier:
    """Tells the service manager how the service is; nothing where none asks.

    The variables are taken from *environ*: they are for the service's main process and for none that it starts.
    """

    def __init__(
        self,
        environ: MutableMapping[str, str] = os.environ,
        clock: Clock = SYSTEM_CLOCK,
        send: Callable[[bytes, str], None] = _send,
    ) -> None:
        path = environ.pop("NOTIFY_SOCKET", "")
        seconds, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._clock, self._send_to, self._status = clock, send, ""
        is_watched = bool(path) and seconds.isdigit() and int(seconds) > 0 and pid in ("", str(os.getpid()))
        #: Seconds between two signs of life: half of what the manager waits.
        self._every = int(seconds) / 2e6 if is_watched else _NEVER
        #: When the next sign of life is due.
        self.due = clock.now() if is_watched else _NEVER

    def ready(self) -> None:
        """The service has started, or has taken up its changes."""
        self._send("READY=1")

    def reloading(self) -> None:
        """It takes up changes; :meth:`ready` ends that."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(self._clock.now() * 1e6)}")

    def stopping(self) -> None:
        """It ends."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Show *text*, one line, in ``systemctl status``."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Give a sign of life if one is due."""
        now = self._clock.now()
        if now >= self.due:
            self.due = now + self._every
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            self._send_to(text.encode(), self._address)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("the service manager was not told %s: %s", text.partition("\n")[0], error)
