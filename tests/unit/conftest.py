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
_opens = {kind: kind.__init__ for kind in SOCKETS}
_sleeps, _turn = time.sleep, gevent.sleep


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
        _set(patch, dict.fromkeys(SOCKETS, _refuse_socket), _refuse_sleep, _refuse_sleep)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """Allow them as the last test of a run ends: the servers that other tests share are stopped in it."""
    if nextitem is not None:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        _set(patch, _opens, _sleeps, _turn)
        return (yield)


def _set(patch: pytest.MonkeyPatch, opens: dict[Any, Any], sleep: Any, turn: Any) -> None:
    for kind, init in opens.items():
        patch.setattr(kind, "__init__", init)
    patch.setattr(time, "sleep", sleep)
    patch.setattr(gevent, "sleep", turn)
