"""Our utilities beside nsq's own, with the same flags, on a real nsqd: the same files, bytes, exit codes, signals.

They run where nsq's are found: on PATH, named by ``GNSQ_NSQ_TO_FILE`` and so on, or beside ``GNSQ_NSQD``.
"""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.cli.originals import NAMES, Side, pair, program, until
from tests.servers import RealNsqd, ServerHandle, nsqd_program, real_cluster, real_nsqd

pytestmark = pytest.mark.nsqd


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[ServerHandle]:
    if nsqd_program() is None:
        pytest.skip("no nsqd")
    with real_nsqd(tmp_path, "beside", mem_queue_size=10_000) as server:
        yield server


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Callable[[str], tuple[Side, Side]]]:
    sides: list[Side] = []

    def make(name: str) -> tuple[Side, Side]:
        made = pair(name, tmp_path)
        sides.extend(made)
        return made

    yield make
    for side in sides:
        side.close()


def is_done(nsqd: ServerHandle, topic: str, side: Side, count: int) -> bool:
    stats = nsqd.stats(topic, side.channel)
    return stats["message_count"] >= count and not (
        stats["depth"] or stats["in_flight_count"] or stats["deferred_count"]
    )


def when_done(nsqd: ServerHandle, topic: str, sides: tuple[Side, Side], count: int) -> None:
    for side in sides:
        until(lambda side=side: is_done(nsqd, topic, side, count), f"{side.name}: the last answer", 90.0)  # type: ignore[misc]


def is_reading(nsqd: ServerHandle, topic: str, side: Side) -> bool:
    return bool(nsqd.stats(topic, side.channel)["clients"])


def files_of(side: Side) -> dict[str, bytes]:
    found = {}
    for path in sorted(side.folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found[str(path.relative_to(side.folder))] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


# -- flags


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_of_the_original_is_taken_by_its_name(name: str) -> None:
    text = subprocess.run([program(name), "-h"], capture_output=True, timeout=20, check=False).stderr.decode()
    theirs = set(re.findall(r"^  -([a-z0-9-]+)", text, re.M))
    ours = subprocess.run(
        [sys.executable, "-m", "gnsq_lite", NAMES[name], "--help"], capture_output=True, timeout=30, check=True
    ).stdout.decode()
    assert theirs - set(re.findall(r"(?<!\S)--?([a-z0-9-]+)", ours)) == set()


@pytest.mark.parametrize("name", NAMES)
def test_both_say_their_version_with_one_dash(name: str, both: Any) -> None:
    if name == "to_nsq":  # it has no such flag
        return
    for side in both(name):
        code, out, _ = side.output(["-version"])
        assert code == 0
        assert re.search(rb"v\d+\.\d+\.\d+", out)


# -- to-file

WAYS = {
    "plain": (),
    "size": ("-rotate-size=40",),
    "gzip": ("-gzip", "-gzip-level=9"),
    "gzip and size": ("-gzip=true", "-rotate-size", "40"),
    "interval": ("-rotate-interval", "1h30m"),
    "work": ("-work-dir={here}/work", "-skip-empty-files"),
    "dates": ("-datetime-format=%Y/%m", "-filename-format=<TOPIC>/<DATETIME>/<HOST>-x.log"),
    "host": ("-host-identifier", "a-<SHORT_HOST>-<HOSTNAME>", "-rotate-size=1000000"),
    "empty": ("-rotate-interval=1h", "-skip-empty-files=false"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_to_file_leaves_the_same_files(way: str, number: int, nsqd: ServerHandle, topic: str, both: Any) -> None:
    if number == signal.SIGINT and way != "plain":
        return  # one is enough
    sides = both("nsq_to_file")
    nsqd.prepare(topic, "theirs", "ours")
    sent = 0
    for starts in (1, 2):  # a restart goes on where the first one ended
        for side in sides:
            flags = ("-topic", topic, f"-nsqd-tcp-address={nsqd.tcp_address}", "--channel", side.channel)
            side.start(*flags, "-output-dir", "{here}/out", "-sync-interval=200ms", *WAYS[way])
            until(lambda side=side: is_reading(nsqd, topic, side), f"{side.name}: a connection")  # type: ignore[misc]
        bodies = [b"line %d" % n for n in range(sent, sent + 20)]
        if way != "empty":
            nsqd.publish(topic, *bodies)
            sent += len(bodies)
            when_done(nsqd, topic, sides, sent)
        else:
            until(lambda n=starts: all(len([*s.folder.rglob("*.log*")]) == n for s in sides), "an empty file more")  # type: ignore[misc]
        assert [side.stop(number) for side in sides] == [0, 0]
    theirs, ours = map(files_of, sides)
    assert ours == theirs


@pytest.mark.parametrize("way", ["plain", "size", "gzip", "interval"])
def test_sighup_has_files_closed_and_opened_anew(way: str, nsqd: ServerHandle, topic: str, both: Any) -> None:
    sides = both("nsq_to_file")
    nsqd.prepare(topic, "theirs", "ours")
    for side in sides:
        flags = ("-topic", topic, f"-nsqd-tcp-address={nsqd.tcp_address}", "--channel", side.channel)
        quick = ("-sync-interval=100ms", "-skip-empty-files")
        side.start(*flags, "-output-dir", "{here}", *quick, *WAYS[way])
        until(lambda side=side: is_reading(nsqd, topic, side), f"{side.name}: a connection")  # type: ignore[misc]
    nsqd.publish(topic, b"one")
    when_done(nsqd, topic, sides, 1)
    if way == "plain":  # as logrotate does
        for side in sides:
            (path,) = side.folder.glob("*.log")
            path.rename(path.with_name("old"))
    for side in sides:
        assert side.process is not None
        side.process.send_signal(signal.SIGHUP)
        name = "old" if way == "plain" else topic
        until(lambda side=side, name=name: not opens(side, name), f"{side.name}: the closing")  # type: ignore[misc]
    nsqd.publish(topic, b"two")
    when_done(nsqd, topic, sides, 2)
    assert [side.stop(signal.SIGTERM) for side in sides] == [0, 0]
    theirs, ours = map(files_of, sides)
    assert ours == theirs
    assert sorted(ours.values()) == [b"one\n", b"two\n"]


def opens(side: Side, name: str) -> bool:
    assert side.process is not None
    links = Path(f"/proc/{side.process.pid}/fd")
    return any(name in Path(str(link.readlink())).name for link in links.iterdir() if link.is_symlink())


def test_to_file_finds_topics_by_their_pattern(tmp_path: Path, both: Any) -> None:
    sides = both("nsq_to_file")
    with real_cluster(tmp_path) as cluster:
        (nsqd,) = cluster.nodes
        for topic in ("wanted_1", "other"):
            nsqd.prepare(topic, "theirs", "ours")
        for topic in ("wanted_1", "other"):
            nsqd.publish(topic, b"x")
        cluster.wait_registered("wanted_1")
        for side in sides:
            where = (f"-lookupd-http-address={cluster.lookupd_http_address}", "-channel", side.channel)
            how = ("-topic-pattern", "^wanted", "-topic-refresh=200ms", "-sync-interval=200ms", "-skip-empty-files")
            side.start("-output-dir", "{here}", "-consumer-opt=lookupd_poll_interval,200ms", *where, *how)
        when_done(nsqd, "wanted_1", sides, 1)
        nsqd.prepare("wanted_2", "theirs", "ours")
        nsqd.publish("wanted_2", b"y")
        when_done(nsqd, "wanted_2", sides, 1)
        assert [side.stop(signal.SIGTERM) for side in sides] == [0, 0]
        assert files_of(sides[1]) == files_of(sides[0])
        assert sorted(files_of(sides[1]).values()) == [b"x\n", b"y\n"]


def test_to_file_survives_a_restart_of_nsqd(tmp_path: Path, topic: str, both: Any) -> None:
    sides = both("nsq_to_file")
    program("nsq_to_file")
    with real_nsqd(tmp_path, "restarted") as server:
        assert isinstance(server, RealNsqd)
        server.prepare(topic, "theirs", "ours")
        for side in sides:
            flags = ("-topic", topic, f"-nsqd-tcp-address={server.tcp_address}", "--channel", side.channel)
            side.start(
                *flags, "-output-dir={here}", "-sync-interval=200ms", "-consumer-opt=lookupd_poll_interval,200ms"
            )
            until(lambda side=side: is_reading(server, topic, side), f"{side.name}: a connection")  # type: ignore[misc]
        server.publish(topic, b"before")
        when_done(server, topic, sides, 1)
        server.stop()
        server.restart()
        for side in sides:
            until(lambda side=side: is_reading(server, topic, side), f"{side.name}: a connection")  # type: ignore[misc]
        server.publish(topic, b"after")
        when_done(server, topic, sides, 1)
        assert [side.stop(signal.SIGTERM) for side in sides] == [0, 0]
    assert files_of(sides[1]) == files_of(sides[0])


def test_a_full_disk_is_one_line_with_the_path_and_loses_nothing(nsqd: ServerHandle, topic: str, both: Any) -> None:
    _, ours = both("nsq_to_file")
    nsqd.prepare(topic, "ours")
    limited = "import resource, signal, sys, os\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\nos.execv(sys.argv[1], sys.argv[1:])\n"
    ours.argv = [sys.executable, "-c", limited, *ours.argv]
    flags = ("-topic", topic, f"-nsqd-tcp-address={nsqd.tcp_address}", "-channel=ours", "-sync-interval=100ms")
    again = (
        "-consumer-opt=default_requeue_delay,50ms",
        "-consumer-opt=max_backoff_duration,100ms",
        "-max-in-flight=10",
    )
    ours.start(*flags, *again, "-consumer-opt=backoff_multiplier,50ms", "-output-dir={here}")
    nsqd.publish(topic, *(b"x" * 99 for _ in range(30)))
    until(lambda: nsqd.stats(topic, "ours")["requeue_count"] >= 60, "the failures")
    assert ours.stop(signal.SIGTERM) == 0
    lines = [line for line in ours.log().splitlines() if "File too large" in line]
    (path,) = ours.folder.glob("*.log")
    assert len(lines) == 2, lines  # the first, and at the end how often it came
    assert str(path) in lines[0]
    assert "more like it" in lines[1]
    written, stats = path.read_bytes(), nsqd.stats(topic, "ours")
    assert written == (b"x" * 99 + b"\n") * (len(written) // 100)
    assert len(written) // 100 + stats["depth"] + stats["deferred_count"] >= 30


# -- tail


def test_tail_prints_the_same_bytes(nsqd: ServerHandle, topic: str, both: Any) -> None:
    sides = both("nsq_tail")
    nsqd.prepare(topic, "theirs", "ours")
    nsqd.publish(topic, b"plain", b"\xff\x00 \x1b[31m binary", b"two\nlines")
    found = []
    for side in sides:
        flags = ["-topic", topic, "-channel", side.channel, f"-nsqd-tcp-address={nsqd.tcp_address}", "-print-topic"]
        code, out, _ = side.output([*flags, "-n=3", "-max-in-flight", "1"])
        found.append((code, out))
    assert found[0] == found[1]
    assert found[1][0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_tail_ends_on_a_signal_with_the_same_code(number: int, nsqd: ServerHandle, topic: str, both: Any) -> None:
    sides = both("nsq_tail")
    nsqd.prepare(topic, "theirs", "ours")
    for side in sides:
        side.start("-topic", topic, "-channel", side.channel, f"-nsqd-tcp-address={nsqd.tcp_address}")
        until(lambda side=side: is_reading(nsqd, topic, side), f"{side.name}: a connection")  # type: ignore[misc]
    assert [side.stop(number) for side in sides] == [0, 0]


# -- to-http


@contextmanager
def endpoint(failures: int = 0) -> Iterator[tuple[str, list[tuple[str, str, str | None, bytes]]]]:
    """Serve HTTP that fails so often; yield its URL and what it was sent."""
    got: list[tuple[str, str, str | None, bytes]] = []
    left = [failures]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if left[0] > 0:
                left[0] -= 1
                self.send_response(503)
            else:
                got.append((self.command, self.path, self.headers["Content-Type"], body))
                self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", got
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "flags",
    [("-get={url}/in?a=%%20b&q=%s",), ("-post={url}/in", "-content-type=text/plain"), ("-post", "{url}/in")],
    ids=["get", "post with type", "post"],
)
def test_to_http_makes_the_same_calls_and_tries_again(
    flags: tuple[str, ...], nsqd: ServerHandle, topic: str, both: Any
) -> None:
    sides = both("nsq_to_http")
    nsqd.prepare(topic, "theirs", "ours")
    bodies = [b"a b&c=d/e~f", b"\xff\x01", "\u00e9%".encode()]
    nsqd.publish(topic, *bodies)
    calls = []
    for side in sides:
        with endpoint(failures=1) as (url, got):
            where = ("-topic", topic, "-channel", side.channel, f"-nsqd-tcp-address={nsqd.tcp_address}")
            again = ("-consumer-opt", "default_requeue_delay,100ms", "-consumer-opt=max_backoff_duration,200ms")
            also = ("-consumer-opt=backoff_multiplier,100ms", "-status-every=0", "-n", "2")
            side.start(*where, *again, *also, *(flag.replace("{url}", url) for flag in flags))
            until(lambda got=got: len(got) >= 3, f"{side.name}: three calls")  # type: ignore[misc]
            until(lambda side=side: is_done(nsqd, topic, side, 3), f"{side.name}: the last answer")  # type: ignore[misc]
            assert side.stop(signal.SIGTERM) == 0
            calls.append(sorted(got, key=repr))
    assert calls[1] == calls[0]


def test_to_http_tells_of_times_as_often(nsqd: ServerHandle, topic: str, both: Any) -> None:
    sides = both("nsq_to_http")
    nsqd.prepare(topic, "theirs", "ours")
    nsqd.publish(topic, *(b"%d" % n for n in range(25)))
    with endpoint() as (url, _):
        for side in sides:
            where = ("-topic", topic, "-channel", side.channel, f"-nsqd-tcp-address={nsqd.tcp_address}")
            side.start(*where, f"-post={url}/", "-status-every=10")
            until(lambda side=side: is_done(nsqd, topic, side, 25), f"{side.name}: the last answer")  # type: ignore[misc]
            assert side.stop(signal.SIGTERM) == 0
            said = re.findall(
                r"\[aggregate\]: finished 10 - 99th: [\d.]+ms - 95th: [\d.]+ms - avg: [\d.]+ms", side.log()
            )
            assert len(said) == 2


# -- relay


def test_relay_publishes_the_same_bytes(nsqd: ServerHandle, tmp_path: Path, topic: str, both: Any) -> None:
    sides = both("nsq_to_nsq")
    nsqd.prepare(topic, "theirs", "ours")
    for side in sides:
        nsqd.prepare(f"{topic}_{side.name}", "check")
    records: list[Any] = [
        {"kind": "a", "n": 1, "text": "<b>&\u00e9", "z": {"y": 1.0, "x": [1, 2.5, None]}},
        {"kind": "b", "n": 2},
        {"kind": 7, "n": 3},
        {"kind": "7", "n": 4.0},
        {"kind": True, "n": 5},
        {"kind": 7.0, "more": 1, "n": -1e21},
    ]
    bodies = [json.dumps(record).encode() for record in records] + [b"no json", b"[1]"]
    nsqd.publish(topic, *bodies)
    found = []
    for side in sides:
        target = f"{topic}_{side.name}"
        where = ("-topic", topic, "-channel", side.channel, f"-nsqd-tcp-address={nsqd.tcp_address}")
        there = (f"-destination-nsqd-tcp-address={nsqd.tcp_address}", f"-destination-topic={target}")
        keep = ("-whitelist-json-field=n", "-whitelist-json-field=z", "-whitelist-json-field", "text")
        side.start(*where, *there, *keep, "-require-json-field=kind", "-require-json-value=7")
        until(lambda side=side: is_done(nsqd, topic, side, len(bodies)), f"{side.name}: the last answer")  # type: ignore[misc]
        assert side.stop(signal.SIGTERM) == 0
        found.append(bodies_of(nsqd, target))
    assert found[1] == found[0]
    assert len(found[1]) == 3


def bodies_of(nsqd: ServerHandle, topic: str) -> list[bytes]:
    count = nsqd.stats(topic, "check")["depth"]
    done = subprocess.run(
        [
            program("nsq_tail"),
            "-topic",
            topic,
            "-channel=check",
            "-n",
            str(count),
            "-nsqd-tcp-address",
            nsqd.tcp_address,
        ],
        capture_output=True,
        timeout=30,
        check=True,
    )
    return sorted(done.stdout.splitlines())


# -- pub


def test_pub_publishes_the_same_to_each_nsqd(tmp_path: Path, topic: str, both: Any) -> None:
    sides = both("to_nsq")
    with real_nsqd(tmp_path, "a") as one, real_nsqd(tmp_path, "b") as two:
        for side in sides:
            target = f"{topic}_{side.name}"
            for server in (one, two):
                server.prepare(target, "check")
            where = [f"-nsqd-tcp-address={server.tcp_address}" for server in (one, two)]
            code, _, _ = side.output(["-topic", target, *where, "-delimiter", ";", "-rate=1000"], b"a;b;;c d;\x00\xff;")
            assert code == 0
        for server in (one, two):
            published = [bodies_of(server, f"{topic}_{side.name}") for side in sides]
            assert published[1] == published[0] == [b"\x00\xff", b"a", b"b", b"c d"]


# -- stat


def test_stat_off_a_terminal_prints_the_same_lines(nsqd: ServerHandle, topic: str, both: Any) -> None:
    nsqd.prepare(topic, "c")
    nsqd.publish(topic, b"1", b"2", b"3")
    flags = ["-topic", topic, "-channel", "c", "-interval=200ms", "-count", "2"]
    found = [side.output([*flags, f"-nsqd-http-address={nsqd.http_address}"])[:2] for side in both("nsq_stat")]
    assert found[1] == found[0]
    found = [
        side.output([*flags[:3], "nope", f"-nsqd-http-address={nsqd.http_address}"])[:2] for side in both("nsq_stat")
    ]
    assert found[1] == found[0] == (1, b"")
