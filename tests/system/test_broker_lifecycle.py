"""The embedded broker as a guest in a process: threads, forks, blocked callers, restarts, leaks."""

from __future__ import annotations

import errno
import gc
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import gevent
import pytest
from gevent import pywsgi

from gnsq_lite.broker import Broker
from gnsq_lite.errors import ClosedError, OptionError
from tests.programs import wait_for
from tests.rawclient import RawClient, mpub, pub

ROOT = Path(__file__).parents[2]


def run(code: str, *arguments: str) -> str:
    """Run *code* in a new Python; return its output.  Fails on a non-zero exit code and on a traceback."""
    head = "from gnsq_lite.broker import Broker\nfrom tests.rawclient import RawClient, pub, mpub\n"
    source = head + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, *arguments, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


def open_tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- start and stop -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts in /proc")
def test_stopping_leaves_no_thread_and_no_socket() -> None:
    with Broker() as broker, RawClient(broker.nsqd_tcp_address):
        pass  # patched, the first connection starts the main hub's own resolver
    gc.collect()
    tasks, files = open_tasks(), open_files()
    for _ in range(5):
        with Broker(nsqds=2, lookupds=2) as broker:
            clients = [RawClient(node.nsqd_tcp_address) for node in broker.nodes]
            for client in clients:
                assert client.ask(pub("t", b"x")) == b"OK"
                client.close()
    gc.collect()
    # No more than before: the first broker's thread may have been about to end when it was counted.
    wait_for(lambda: open_files() <= files, 10.0)
    wait_for(lambda: open_tasks() <= tasks, 10.0)


def test_a_stopped_broker_refuses_calls_and_stops_again_without_effect() -> None:
    broker = Broker()
    with pytest.raises(ClosedError):
        broker.node.stats()
    broker.stop()
    with broker, pytest.raises(ClosedError):
        broker.start()
    broker.stop()
    with pytest.raises(ClosedError):
        broker.node.drop_connections()


def test_a_broker_can_be_started_again() -> None:
    broker = Broker()
    for _ in range(2):
        with broker, RawClient(broker.nsqd_tcp_address) as client:
            assert client.ask(pub("t", b"x")) == b"OK"


def test_a_taken_port_is_an_error_that_leaves_nothing_behind() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = Broker(http_port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            broker.start()
        assert not broker.alive
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(broker.tcp_address, timeout=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("nsqds", 65), ("nsqds", -1), ("lookupds", 65), ("no_such", 1), ("msg_timeout", float("nan"))],
        *[("max_msg_size", 0), ("max_rdy_count", 1.5), ("max_rdy_count", True), ("tls_client_auth_policy", "maybe")],
        *[("tls_required", "yes"), ("tls_required", True), ("tls_min_version", "ssl3.0"), ("tls_cert", "/nonexistent")],
        *[("auth", 7), ("auth", "127.0.0.1"), ("auth", "ftp://127.0.0.1/auth")],
    ],
)
def test_a_wrong_option_is_named(name: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        Broker(**{name: value})
    assert caught.value.name == name


def test_several_threads_may_control_it_at_once() -> None:
    with Broker() as broker:
        problems: list[BaseException] = []

        def control() -> None:
            try:
                for _ in range(20):
                    broker.node.stats()
                    broker.node.drop_connections()
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=control) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []


# -- beside other work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("-m", "gevent.monkey")], ids=["plain", "patched"])
def test_a_blocked_main_thread_does_not_hold_it_up(arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            sys.path.insert(0, ROOT)
            from gevent.monkey import get_original
            from gnsq_lite.broker import Broker
            from tests.rawclient import Closed, RawClient, HEARTBEAT
            with Broker() as broker:
                client = RawClient(broker.nsqd_tcp_address)
                client.answers_heartbeats = False
                client.identify(heartbeat_interval=1000)
                get_original("time", "sleep")(2.5)
                try:
                    while True:
                        assert client.frame(timeout=5.0) == HEARTBEAT
                except Closed:
                    print("closed by the broker")
                client.close()
            """
        ).replace("ROOT", repr(str(ROOT)))
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("closed by the broker", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_disturbs_it_nor_keeps_its_ports_open() -> None:
    code = """
    import os, socket, time
    broker = Broker().start()
    client = RawClient(broker.nsqd_tcp_address)
    client.subscribe("t", "c", ready=5)
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        client.socket.detach()
        assert not broker.alive
        broker.stop()
        with Broker() as own, RawClient(own.nsqd_tcp_address) as other:
            assert other.ask(pub("u", b"x")) == b"OK"
        os.close(go)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    time.sleep(0.2)
    with RawClient(broker.nsqd_tcp_address) as producer:
        assert producer.ask(pub("t", b"after the fork")) == b"OK"
    print(client.message().body.decode())
    address = broker.tcp_address
    broker.stop()
    assert client.is_closed()
    client.close()
    try:
        socket.create_connection(address, timeout=5)
    except ConnectionRefusedError:
        print("refused")
    os.close(go)
    print(os.waitpid(child, 0)[1])
    """
    assert run(code).split("\n") == ["after the fork", "refused", "0"]


def test_a_process_that_forgets_to_stop_it_ends_all_the_same() -> None:
    assert run("broker = Broker().start(); print('up')") == "up"


# -- nodes ----------------------------------------------------------------------------------------------------------


def taken(address: str) -> bool:
    """Whether another process that wants the port of *address* for itself is refused it."""
    host, _, port = address.rpartition(":")
    with socket.socket() as rival:
        return rival.connect_ex((host, int(port))) == errno.ECONNREFUSED and bind_fails(host, int(port))


def bind_fails(host: str, port: int) -> bool:
    with socket.socket() as rival:
        try:
            rival.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def test_nobody_takes_the_ports_of_a_server_that_is_down_until_the_broker_stops() -> None:
    with Broker() as broker:
        (lookupd,) = broker.lookupds
        addresses = [broker.nsqd_tcp_address, broker.http_address, lookupd.http_address]
        for _ in range(2):
            broker.node.kill()
            lookupd.stop()
            assert [address for address in addresses if not taken(address)] == []
            lookupd.restart()
            broker.node.restart()
            RawClient(broker.nsqd_tcp_address).close()
        broker.node.kill()
        lookupd.stop()
    assert broker.sockets() == []


def test_a_killed_node_resets_its_connections_and_a_stopped_one_closes_them() -> None:
    with Broker(nsqds=2) as broker:
        for node, expected in zip(broker.nodes, ("reset", "closed"), strict=True):
            with RawClient(node.nsqd_tcp_address) as client:
                client.sync()
                (node.kill if expected == "reset" else node.stop)()
                try:
                    found = "closed" if client.socket.recv(1) == b"" else "data"
                except ConnectionResetError:
                    found = "reset"
            assert found == expected


def test_dropped_connections_are_reset_and_new_ones_welcome() -> None:
    with Broker() as broker:
        with RawClient(broker.nsqd_tcp_address) as client:
            client.sync()
            broker.node.drop_connections()
            with pytest.raises(ConnectionResetError):
                client.socket.recv(1)
        with RawClient(broker.nsqd_tcp_address) as client:
            client.sync()


def test_connections_beyond_the_limit_are_refused() -> None:
    with Broker(max_connections=2) as broker:
        clients = [RawClient(broker.nsqd_tcp_address) for _ in range(2)]
        for client in clients:
            client.sync()
        try:
            with RawClient(broker.nsqd_tcp_address, magic=b"") as third:
                assert third.is_closed()
        except ConnectionResetError:
            pass  # within connect() already
        clients.pop().close()
        wait_for(lambda: len(broker.call(broker._nsqds[0].sessions)) == 1, 10.0)
        with RawClient(broker.nsqd_tcp_address) as third:
            third.sync()
        clients.pop().close()


def test_publishing_beyond_the_memory_limit_fails_and_the_rest_still_flows() -> None:
    with Broker(max_memory=100_000) as broker:
        with RawClient(broker.nsqd_tcp_address) as client:
            client.ask(pub("t", b"x" * 60_000))
            client.send(pub("t", b"x" * 60_000))
            assert client.error() == "E_PUB_FAILED PUB failed memory limit of 100000 bytes reached"
        with RawClient(broker.nsqd_tcp_address) as client:
            client.subscribe("t", "c", ready=1)
            client.finish(client.message())
            assert client.ask(pub("t", b"x" * 60_000)) == b"OK"


def test_a_client_that_never_reads_is_cut_off_and_does_not_take_the_memory() -> None:
    with Broker() as broker:
        with RawClient(broker.nsqd_tcp_address) as producer:
            for _ in range(40):
                producer.ask(mpub("t", *[b"x" * 500_000] * 8))
        with RawClient(broker.nsqd_tcp_address) as stuck:
            stuck.identify(heartbeat_interval=1000, msg_timeout=60000)
            stuck.subscribe("t", "c", ready=2500)
            time.sleep(0.5)
            (entry,) = broker.node.stats()["topics"][0]["channels"][0]["clients"]
            assert entry["in_flight_count"] < 100
            wait_for(lambda: len(broker.node.stats()["topics"][0]["channels"][0]["clients"]) == 0, 10.0)


def test_noise_on_every_port_leaves_it_alive_silent_and_without_leaks() -> None:
    code = """
    import gc, os, random, socket, struct, time
    from gnsq_lite.broker.session import Session
    from gnsq_lite.broker.tcp import Connection
    rng = random.Random(5)
    heads = [b"", b"  V1", b"  V2", b"  V2PUB t\\n", b"  V2SUB t c\\nRDY 5\\n", b"GET /stats HTTP/1.1\\r\\n"]
    with Broker(msg_timeout=0.5) as broker:  # a message in flight keeps its client until it times out
        others = (broker.http_address, broker.lookupd_http_address)
        ports = [broker.tcp_address[1]] * 3 + [int(address.split(":")[1]) for address in others]
        for _ in range(600):
            with socket.create_connection(("127.0.0.1", rng.choice(ports)), timeout=10) as sock:
                try:
                    sock.sendall(rng.choice(heads) + rng.randbytes(rng.randrange(40)))
                    if rng.random() < 0.3:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                except OSError:
                    pass
        with RawClient(broker.nsqd_tcp_address) as client:
            assert client.ask(pub("t", b"x")) == b"OK"
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            gc.collect()
            left = sum(isinstance(each, (Session, Connection)) for each in gc.get_objects())
            if not left:
                break
            time.sleep(0.1)
        print("left", left)
    """
    assert run(code) == "left 0"


def test_who_connects_while_an_nsqd_starts_again_has_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(name: str) -> str:  # gevent's HTTP server calls it, and other greenlets run meanwhile
        gevent.sleep(0.5)
        return name

    monkeypatch.setattr(pywsgi.socket, "getfqdn", slow)
    with Broker(lookupd=False) as broker, RawClient(broker.nsqd_tcp_address) as before:
        assert before.ask(pub("t", b"kept")) == b"OK"
        broker.node.stop()
        starting = threading.Thread(target=broker.node.restart)
        starting.start()
        deadline = time.monotonic() + 20.0
        while True:
            try:
                client = RawClient(broker.nsqd_tcp_address)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
        with client:
            client.subscribe("t", "c", ready=1)
            assert client.message().body == b"kept"
        starting.join()
