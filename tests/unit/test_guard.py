"""No unit test opens a socket or sleeps: what would is stopped."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import gevent
import gevent.socket
import pytest


@pytest.mark.parametrize("open_one", [socket.socket, gevent.socket.socket, lambda: socket.create_server(("", 0))])
def test_a_socket_is_refused(open_one: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match="opened a socket"):
        open_one()


@pytest.mark.parametrize("module", [time, gevent])
def test_a_sleep_is_refused_and_a_turn_is_not(module: Any) -> None:
    with pytest.raises(AssertionError, match="slept"):
        module.sleep(0.001)
    module.sleep(0)
