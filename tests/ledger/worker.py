"""A Reader whose handler notes each message and then returns, raises, hangs or exits, as the seed decides."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import sys
import time
import warnings
from typing import Any

from gnsq_lite import BackoffOptions, Message, Reader, TLSOptions
from tests.ledger.book import Log

#: As short as they may be: faults should be noticed in seconds.
QUICK: dict[str, Any] = {
    "reconnect_delay": 0.05,
    "max_reconnect_delay": 0.3,
    "handshake_timeout": 1.0,
    "heartbeat_interval": 1.0,
    "connect_timeout": 1.0,
}
_LATE = re.compile(r"E_(?:FIN|REQ|TOUCH)_FAILED \w+ (\w{16})")
LONGEST_DELAY = 0.5


class Fates:
    """The handler."""

    def __init__(self, log: Log, rng: random.Random, hang: float, can_exit: bool, lie: str = "") -> None:
        self._log, self._rng, self._hang, self._can_exit = log, rng, hang, can_exit
        self._lie = lie

    def __call__(self, message: Message) -> None:
        """Handle it, unless this one is to show that the witness sees a client that lies."""
        lying = int(message.body.split(b":")[1]) % 16 == 0
        if lying and self._lie == "fin":
            return
        if lying and self._lie == "twice":
            self._handle(message)
        self._handle(message)

    def _handle(self, message: Message) -> None:
        draw = self._rng.random()
        fate = "ok"
        if draw < 0.02:
            fate = "raise"
        elif draw < 0.022:
            fate = "hang"
        elif draw < 0.023 and self._can_exit:
            fate = "exit"
        number = int(message.body.split(b":")[1])
        self._log.handled(number, message.id.decode(), message.nsqd_address, time.monotonic(), fate)
        if fate == "raise":
            raise RuntimeError("as the seed says")
        if fate == "hang":
            time.sleep(self._hang)
        elif fate == "exit":
            self._log.event("killed", self._log.worker, time.monotonic())  # and what others had answered is not sent
            os._exit(7)


def tls_options(ca: str) -> dict[str, Any]:
    """Return options of a client that trusts *ca*; of one without TLS for ""."""
    return {"tls": TLSOptions(ca_file=ca)} if ca else {}


def make_reader(
    topic: str, log: Log, seed: int, msg_timeout: float, can_exit: bool, lie: str = "", **options: Any
) -> Reader:
    """Return a Reader of *topic* whose notes go to *log*."""
    rng = random.Random(f"{seed}-{log.worker}-{os.getpid() if can_exit else 0}")

    def disconnected(address: str, reason: Any) -> None:
        log.event("cut", address, time.monotonic())

    def failed(error: Any) -> None:
        late = _LATE.search(str(error))
        if late:
            log.event("late", late[1], time.monotonic())

    with warnings.catch_warnings():
        # What it warns of, handlers that take patched locks, these do not.
        warnings.filterwarnings("ignore", "handler_pool='thread' in a monkey-patched process", RuntimeWarning)
        return Reader(
            topic,
            "ch",
            Fates(log, rng, msg_timeout + 0.5, can_exit, lie),
            client_id=log.worker,
            max_in_flight=rng.choice([2, 10, 50]),
            max_attempts=0,
            requeue_delay=0.05,
            max_requeue_delay=LONGEST_DELAY,
            backoff=rng.choice([BackoffOptions(unit=0.05, longest=0.2), False]),
            on_disconnected=disconnected,
            on_error=failed,
            handle_signals=False,
            **QUICK,
            **options,
        )


def main(arguments: list[str]) -> None:
    """Run until killed: TOPIC NOTES NAME SEED MSG_TIMEOUT OPTIONS, the last as JSON."""
    topic, path, name, seed, msg_timeout, options = arguments
    told: dict[str, Any] = json.loads(options)
    # Log records are written, to nowhere: the locks of logging are among what may stop a process.
    logging.basicConfig(filename=os.devnull, level=logging.DEBUG)
    log = Log(path, name)
    reader = make_reader(topic, log, int(seed), float(msg_timeout), True, **tls_options(told.pop("ca")), **told)
    try:
        reader.start()
    except BaseException as error:
        log.event("ended", repr(error), time.monotonic())
        raise
    log.event("ended", "without an error", time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1:])
