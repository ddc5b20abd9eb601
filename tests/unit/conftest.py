"""A unit test that opens a socket or sleeps fails: time is an argument here, and so are the other side's bytes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import gevent
import gevent.socket
import pytest

from tests import profiles

profiles.load()

HERE = str(Path(__file__).parent) + os.sep
_turn = gevent.sleep


def _refuse_socket(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a unit test opened a socket: give it a fake, or move it to tests/system")


def _refuse_sleep(seconds: float = 0, ref: bool = True) -> None:
    if seconds > 0:
        raise AssertionError("a unit test slept: give it a clock, wait for an event, or move it to tests/system")
    _turn(0, ref)  # others have their turn


#: What is refused: where it is, its name there, and what takes its place.  Set by hand: this is done for each test.
_REFUSED: dict[tuple[Any, str], Any] = {
    **{(kind, "__init__"): _refuse_socket for kind in (socket.socket, gevent.socket.socket)},
    (time, "sleep"): _refuse_sleep,
    (gevent, "sleep"): _refuse_sleep,
}
_ALLOWED = {(where, name): getattr(where, name) for where, name in _REFUSED}


def _set(attributes: dict[tuple[Any, str], Any]) -> None:
    for (where, name), value in attributes.items():
        setattr(where, name, value)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Refuse sockets and sleeps during the test and its fixtures, in whatever thread."""
    if not str(item.path).startswith(HERE):  # this hook is called for every test of the run
        return (yield)
    _set(_REFUSED)
    try:
        return (yield)
    finally:
        _set(_ALLOWED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """Allow them as the last test of a run ends: the servers that other tests share are stopped in it."""
    if nextitem is None:
        _set(_ALLOWED)
    return (yield)
