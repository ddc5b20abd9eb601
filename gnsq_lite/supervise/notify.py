"""Reports the service's state to systemd, with the datagrams of sd_notify(3) but without libsystemd."""

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
    """Reports the state of the service to the service manager, if there is one.

    The constructor removes systemd's variables from *environ*, because they do not apply to child processes.
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
        #: Seconds between two watchdog messages, half of the service manager's limit.
        self._every = int(seconds) / 2e6 if is_watched else _NEVER
        #: Time at which the next watchdog message is due.
        self.due = clock.now() if is_watched else _NEVER

    def ready(self) -> None:
        """Report that the service has started or has reloaded."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report that the service reloads.  Call :meth:`ready` at the end of the reload."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(self._clock.now() * 1e6)}")

    def stopping(self) -> None:
        """Report that the service stops."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Show the line *text* in ``systemctl status``."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Send the watchdog message if it is due."""
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
            log.warning("cannot report %s to the service manager: %s", text.partition("\n")[0], error)
