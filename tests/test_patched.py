"""The patched run of the suite is patched, from before the first import; the other one is not."""

from __future__ import annotations

import os
import sys
import threading

from gevent import monkey

EXPECTED = os.environ.get("GNSQ_TESTS_PATCHED", "")


def test_the_process_is_patched_where_it_should_be_and_only_there() -> None:
    if EXPECTED:
        assert ("1" if monkey.is_module_patched("socket") else "0") == EXPECTED
    patched = [monkey.is_module_patched(name) for name in ("socket", "ssl", "threading", "time", "select")]
    assert patched == [patched[0]] * 5


def test_nothing_took_hold_of_the_unpatched_modules_before() -> None:
    if monkey.is_module_patched("socket"):
        import urllib3.util.connection as early

        assert early.socket.socket.__module__.startswith("gevent.")
        assert type(threading.current_thread()).__module__ in ("threading", "gevent.threading")
        assert "gevent.monkey" in sys.modules
    else:
        import socket

        assert socket.socket.__module__ == "socket"
