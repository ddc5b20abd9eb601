"""Fixtures shared by contract and system tests: servers, clients, certificates."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import servers, youzan_servers
from tests.native import is_patched
from tests.rawclient import RawClient

MakeBroker = Callable[..., servers.ServerHandle]
MakeCluster = Callable[..., servers.Cluster]
Connect = Callable[..., RawClient]

#: Seconds for a test of Youzan's servers.  A real cluster looks once a minute whether it is stable: it may take 180
#: until it is there, and 120 more until it moves a leader.
YOUZAN_TIMEOUT = 600

# sentry-sdk imports an installed eventlet, which test_environments.py needs, and which otherwise warns in each process.
os.environ.setdefault("EVENTLET_TESTS", "1")

_missing: dict[str, int] = {}
_numbers = itertools.count(1)


def _absent(what: str, hint: str) -> None:
    """Fail where real servers are required; else skip, and note it for the summary."""
    if servers.real_servers_required():
        pytest.fail(f"GNSQ_REQUIRE_NSQD is set and there is no {what}: {hint}", pytrace=False)
    _missing[f"no {what}: {hint}"] = _missing.get(f"no {what}: {hint}", 0) + 1
    pytest.skip(f"no {what}: {hint}")


def _need_real(lookupd: bool = False) -> None:
    if servers.nsqd_program() is None:
        _absent("nsqd", "put it on PATH or name it in GNSQ_NSQD")
    if lookupd and servers.nsqlookupd_program() is None:
        _absent("nsqlookupd", "put it on PATH or name it in GNSQ_NSQLOOKUPD")


def pytest_configure() -> None:
    """Take SIGINT again where a shell started the run in the background and had it ignored: children inherit that.

    Children run alike everywhere too: what ends without a flush would pass only where this is set.
    """
    os.environ.pop("PYTHONUNBUFFERED", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say which implementation the run tests: the accelerator is easily missing where a compile has failed."""
    from gnsq_lite import _core

    return f"gnsq_lite: what is done per message in {'C' if _core.is_accelerated else 'Python'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests of Youzan's cluster the time that it needs, where they have less: it looks only once a minute.

    Tests of plain threads are deselected in a monkey-patched process.  A test whose name differs from process to
    process is refused: pytest-xdist's workers would not agree.
    """
    if is_patched() and (unpatched := [item for item in items if item.get_closest_marker("unpatched")]):
        config.hook.pytest_deselected(items=unpatched)
        items[:] = [item for item in items if item not in unpatched]
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"a test is named by an address: {item.nodeid}")
        own = item.get_closest_marker("timeout")
        if item.get_closest_marker("youzan") and (own is None or own.args[0] < YOUZAN_TIMEOUT):
            item.add_marker(pytest.mark.timeout(YOUZAN_TIMEOUT), append=False)


def pytest_collection_finish() -> None:
    """Leave what is there by now, 60,000 objects, out of the collector's sight: some tests collect garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly which tests had no real server to run against."""
    for why, count in sorted(_missing.items()):
        terminalreporter.section("NOT RUN AGAINST A REAL SERVER", sep="!", red=True, bold=True)
        terminalreporter.line(f"{count} tests were skipped, {why}.")


@pytest.fixture(params=["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)])
def server_kind(request: pytest.FixtureRequest) -> str:
    """Name of the server a test runs against; with this fixture the test runs once for each.

    Another kind, for tests that ask for it, is "like_nsqd": embedded, with that option.
    """
    kind: str = request.param
    return kind


@pytest.fixture
def make_broker(server_kind: str, tmp_path: Path) -> Iterator[MakeBroker]:
    """Start an nsqd: ``make_broker(msg_timeout=0.5, max_rdy_count=10, ...)``.

    Options are nsqd's flags with underscores, in seconds, the same for the embedded and the real one.
    """
    if server_kind == "nsqd":
        _need_real()
    with ExitStack() as stack:

        def make(**options: Any) -> servers.ServerHandle:
            if server_kind == "nsqd":
                return stack.enter_context(servers.real_nsqd(tmp_path, f"nsqd{next(_numbers)}", **options))
            return stack.enter_context(servers.embedded_nsqd(like_nsqd=server_kind == "like_nsqd", **options))

        yield make


@pytest.fixture
def broker(make_broker: MakeBroker) -> servers.ServerHandle:
    """Start an nsqd for this test alone, with default options."""
    return make_broker()


@pytest.fixture
def secured(make_broker: MakeBroker, certs: Any) -> servers.ServerHandle:
    """Start an nsqd with TLS for this test alone; :mod:`tests.tls_variants` has the options for clients."""
    return make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key)


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic_{next(_numbers)}"


@pytest.fixture
def make_cluster(server_kind: str, tmp_path: Path) -> Iterator[MakeCluster]:
    """Start an nsqlookupd with nsqds: ``make_cluster(nodes=2, tombstone_lifetime=1.0, ...)``."""
    if server_kind == "nsqd":
        _need_real(lookupd=True)
    with ExitStack() as stack:

        def make(nodes: int = 1, **options: Any) -> servers.Cluster:
            if server_kind != "nsqd":
                like_nsqd = server_kind == "like_nsqd"
                return stack.enter_context(servers.embedded_cluster(nodes, like_nsqd=like_nsqd, **options))
            folder = tmp_path / f"cluster{next(_numbers)}"
            folder.mkdir()
            return stack.enter_context(servers.real_cluster(folder, nodes, **options))

        yield make


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> servers.Cluster:
    """An nsqlookupd and one nsqd."""
    return make_cluster()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open raw connections, closed when the test ends: ``connect(broker)`` or ``connect("127.0.0.1:4150")``."""
    with ExitStack() as stack:

        def open_one(server: servers.ServerHandle | str, **options: Any) -> RawClient:
            address = server if isinstance(server, str) else server.tcp_address
            return stack.enter_context(RawClient(address, **options))

        yield open_one


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A CA and certificates for servers and clients; see :class:`tests.certs.Certificates`."""
    from tests import certs as made

    return made.make(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def youzan_lookupd(request: pytest.FixtureRequest) -> str:
    """HTTP address of the nsqlookupd of a Youzan cluster: of the one that runs, else of one started for this run."""
    address = os.environ.get("GNSQ_YOUZAN_LOOKUPD")
    if not address and youzan_servers.programs() is None:
        _absent(
            "Youzan cluster",
            "name its programs in GNSQ_YOUZAN_NSQD and GNSQ_YOUZAN_NSQLOOKUPD, and have etcd on PATH or in GNSQ_ETCD;"
            " or name the nsqlookupd of one that runs in GNSQ_YOUZAN_LOOKUPD",
        )
    return address or str(request.getfixturevalue("started_youzan_cluster"))


@pytest.fixture(scope="session")
def started_youzan_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HTTP address of the nsqlookupd of a Youzan cluster that was started for this run."""
    yield from (cluster.addresses[0] for cluster in _started(tmp_path_factory.mktemp("youzan")))


@pytest.fixture(scope="module")
def failing_youzan_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[youzan_servers.RealCluster]:
    """A Youzan cluster of three nsqds and two nsqlookupds, for tests that kill some of them."""
    yield from _started(tmp_path_factory.mktemp("failing"), nodes=3, lookupds=2)


def _started(folder: Path, **sizes: int) -> Iterator[youzan_servers.RealCluster]:
    if youzan_servers.programs() is None:
        _absent("Youzan cluster", "name its programs in GNSQ_YOUZAN_NSQD and GNSQ_YOUZAN_NSQLOOKUPD")
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(youzan_servers.youzan_cluster(folder, **sizes))
        except servers.MissingServer as error:
            _absent("Youzan cluster", f"it takes {error}")
        yield cluster
