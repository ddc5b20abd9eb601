"""Runs Readers until Ctrl-C or SIGTERM, and drains them."""

from __future__ import annotations

from collections.abc import Sequence

from gnsq_lite import Reader
from gnsq_lite.net.runtime import Completion
from gnsq_lite.net.signals import until_signal


def serve(readers: Sequence[Reader], *, drain: float, ended: Completion | None = None) -> None:
    """Start *readers*, wait for a signal or for *ended*, and close them within *drain* seconds each.

    Raises what *ended* was settled with.
    """
    done = ended if ended is not None else Completion()
    try:
        for reader in readers:
            reader.start(block=False)
        until_signal(done, lambda timeout=0.0: done.settle())
    except KeyboardInterrupt:
        pass
    finally:
        for reader in readers:
            reader.close(drain)
