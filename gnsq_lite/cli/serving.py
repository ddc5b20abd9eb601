"""Runs Readers until Ctrl-C or SIGTERM, and drains them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gnsq_lite import Reader
from gnsq_lite.net.runtime import Completion
from gnsq_lite.net.signals import until_signal
from gnsq_lite.supervise import logs


def serve(readers: Sequence[Reader], *, drain: float, ended: Completion | None = None) -> None:
    """Start *readers*, wait for a signal, for *ended*, or for one that ends; close them within *drain* seconds each.

    Warnings go to standard error, a line each, without a traceback where a destination or the disk is to blame.
    Raises what *ended* was settled with, or what ended a Reader and no retry can mend: TLS that nsqd does not offer.
    """
    logs.configure("brief", "warning", "main")
    done = ended if ended is not None else Completion()
    try:
        for reader in readers:
            reader.start(block=False)
            threading.Thread(target=_tell_of_its_end, args=(reader, done), daemon=True).start()
        until_signal(done, lambda timeout=0.0: done.settle())
    except KeyboardInterrupt:
        pass
    finally:
        for reader in readers:
            reader.close(drain)


def _tell_of_its_end(reader: Reader, done: Completion) -> None:
    try:
        reader.join()
    except BaseException as error:
        done.settle(error=error)
    else:
        done.settle()
