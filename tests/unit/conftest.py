"""A unit test that opens a socket or sleeps fails: time is an argument here, and so are the other side's bytes."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import gevent
import gevent.socket
import pytest

HERE = Path(__file__).parent
SOCKETS = tuple({socket.socket, gevent.socket.socket})
_turn = gevent.sleep


def _refuse_socket(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a unit test opened a socket: give it a fake, or move it to tests/system")


def _refuse_sleep(seconds: float = 0, ref: bool = True) -> None:
    if seconds > 0:
        raise AssertionError("a unit test slept: give it a clock, wait for an event, or move it to tests/system")
    _turn(0, ref)  # others have their turn


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Refuse sockets and sleeps during the test and its fixtures, in whatever thread."""
    if HERE not in item.path.parents:  # this hook is called for every test of the run
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for kind in SOCKETS:
            patch.setattr(kind, "__init__", _refuse_socket)
        patch.setattr(time, "sleep", _refuse_sleep)
        patch.setattr(gevent, "sleep", _refuse_sleep)
        return (yield)
