"""Every system test ends with the greenlets of the library with which it began, and none failed unnoticed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import ref

import gevent
import pytest
from gevent import Greenlet

from gnsq_lite.broker import Broker
from gnsq_lite.net.discovery import Discovery
from tests.django.postgres import Postgres, is_there, postgres
from tests.system.lookupd_stubs import Found

#: Seconds for greenlets to end after a test closed what it opened.
GRACE = 5.0


#: Each greenlet that was started in this process, in whatever thread.
_started: list[ref[Greenlet[..., Any]]] = []
Greenlet.add_spawn_callback(lambda greenlet: _started.append(ref(greenlet)))


def living() -> list[str]:
    """Return the names of the library's greenlets that have not ended, in whatever thread."""
    seen = len(_started)  # other threads may append meanwhile
    kept = [each for each in _started[:seen] if (greenlet := each()) is not None and not greenlet.ready()]
    _started[:seen] = kept
    names = [greenlet.name for each in kept if (greenlet := each()) is not None]
    return sorted(name for name in names if name.startswith("gnsq_lite-"))


@pytest.fixture(autouse=True)
def no_greenlet_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves a greenlet of the library running."""
    before = living()
    yield
    limit = time.monotonic() + GRACE
    while len(after := living()) > len(before):
        if time.monotonic() > limit:
            left = after.copy()
            for name in before:
                if name in left:
                    left.remove(name)
            pytest.fail(f"greenlets were left running: {left}")
        gevent.sleep(0.02)  # this thread's own hub must turn too


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Return a function that connects to a database without the tables of the inbox and the outbox."""
    if request.param == "sqlite":
        return lambda: sqlite3.connect(tmp_path / "shop.sqlite3", timeout=60, check_same_thread=False)
    if not is_there():
        pytest.skip("no PostgreSQL")
    psycopg: Any = pytest.importorskip("psycopg")
    server: Postgres = request.getfixturevalue("postgres_server")

    def connect() -> Any:
        return psycopg.connect(host=str(server.folder), user="shop", dbname="shop")

    with connect() as connection:
        connection.execute("drop schema public cascade; create schema public")
    return connect


@pytest.fixture
def found() -> Found:
    return Found()


@pytest.fixture
def running() -> Iterator[Callable[[Discovery], Discovery]]:
    """Run a Discovery in a greenlet until the end of the test."""
    with ExitStack() as stack:

        def run(discovery: Discovery) -> Discovery:
            task = gevent.spawn(discovery.run)
            stack.callback(task.join, 10)
            stack.callback(discovery.stop)
            return discovery

        yield run


@pytest.fixture
def embedded() -> Iterator[Broker]:
    with Broker(lookupd=False) as broker:
        yield broker


@pytest.fixture
def nsqd(embedded: Broker) -> Broker:
    return embedded
