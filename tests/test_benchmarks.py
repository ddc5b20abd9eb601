"""The benchmarks work: every case at its smallest size, on the pump.  No figure is judged: a timing is no test."""

from __future__ import annotations

import importlib
import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import delivery, measure, report
from benchmarks.__main__ import announce, chosen_cases, chosen_clients, main, parser
from benchmarks.cases import IMPLEMENTATIONS, Case, Implementation, all_cases
from benchmarks.environments import PEERS
from benchmarks.server import youzan
from benchmarks.server.processes import Pump

HERE = Path(__file__).parent.parent


def a_result(**rows: list[float]) -> report.Result:
    """Return a consume case with *rows*."""
    return {
        "title": "consume, a case",
        "group": "consume",
        "unit": "messages per CPU-second",
        "server": "pump",
        "chart": True,
        "rounds": 3,
        "rows": {
            name.replace("_", "-"): {"values": values, "per_second": values, "raw": []} for name, values in rows.items()
        },
        "failed": {},
    }


@pytest.mark.slow
@pytest.mark.program
@pytest.mark.timeout(600)  # less than half a minute, where nothing else runs
def test_the_quick_run_measures_every_case_of_ours_and_writes_tables_json_and_plots(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--frames", "1000", "--body", "100", "--out", str(tmp_path)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads((tmp_path / "results.json").read_text())
    titles = {case.title for case in chosen_cases(parser().parse_args(["--quick", "--body", "100"]))}
    assert {result["title"] for result in run["results"]} == titles
    for result in run["results"]:
        assert result["failed"] == {}
        assert any(name.startswith("gnsq_lite") for name in result["rows"]), result["title"]
    for name in ("benchmarks-consume.svg", "benchmarks-publish.svg"):
        assert (tmp_path / name).read_text().startswith("<svg ")
    assert "gnsq_lite-greenlet" in (tmp_path / "results.txt").read_text()
    assert {"when", "machine", "versions"} <= set(run["about"])


def test_the_rules_are_judged_under_load_on_the_pump() -> None:
    rules = [case for case in all_cases() if case.group == "rules"]
    assert {case.job["codec"] for case in rules} == {"plain", "snappy", "deflate"}
    assert all(case.server == "pump" and case.job["audit"] for case in rules)
    pools = [client.job["pool"] for client in IMPLEMENTATIONS if rules[0].takes(client)]
    assert sorted(pools) == ["greenlet", "inline", "thread"]


def test_youzans_cases_are_there_where_its_servers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parser().parse_args(["--only", "youzan"])
    monkeypatch.setattr(youzan, "is_there", lambda: True)
    cases = chosen_cases(asked)
    assert {(case.kind, case.job.get("keyed"), case.job.get("ordered")) for case in cases} == {
        ("publish", None, None),
        ("publish", True, None),
        ("consume", None, None),
        ("consume", None, True),
    }
    clients = {client.name for case in cases for client in IMPLEMENTATIONS if case.takes(client)}
    assert clients == {"raw-youzan", "gnsq_lite-greenlet", "gnsq_lite-thread", "youzan-go-nsq"}
    monkeypatch.setattr(youzan, "is_there", lambda: False)
    assert chosen_cases(asked) == []
    assert not any(
        case.takes(client)
        for client in IMPLEMENTATIONS
        if "youzan" in client.driver
        for case in all_cases()
        if case.group != "youzan"
    )


def talk(pump: Pump, said: bytes, wanted: int, then: bytes = b"NOP\n") -> bytes:
    """Say *said* to the pump, read until *wanted* bytes are there, say *then*, and hear no more."""
    heard = b""
    host, port = pump.addresses[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(said)
        while len(heard) < wanted:
            more = sock.recv(65536)
            assert more
            heard += more
        sock.sendall(then)
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    return heard


def a_pump(**config: Any) -> Pump:
    """Return a pump with ten messages of five bytes."""
    given = {"messages": 10, "body": 5, "text": "hello", "codec": "plain", "max_in_flight": 4, "listeners": 1}
    return Pump(**{**given, "beat_every_messages": 0, "rate": 0, **config})


SUB = b"  V2SUB bench bench\n"


def test_the_pump_sends_no_more_than_ready_allows() -> None:
    with a_pump() as pump:
        heard = talk(pump, SUB + b"RDY 4\n", 10 + 4 * 39)
        assert heard.count(b"hello") == 4
        assert pump.stop()["sent"] == 4


@pytest.mark.parametrize(
    ("said", "violation"),
    [
        (b"RDY 5\n", "RDY 5 is above 4"),
        (b"FIN 0000000000000000\nFIN 0000000000000000\n", "message 0 finished twice"),
        (b"FIN 0000000000000009\n", "message 9 finished before it was sent"),
        (b"PUB x\n", "command not expected after SUB"),
    ],
)
def test_the_pump_finds_what_breaks_a_rule(said: bytes, violation: str) -> None:
    with a_pump(messages=1) as pump:
        talk(pump, SUB + b"RDY 1\n", 10 + 39, said)
        found = pump.stop()["violations"]
    assert any(violation in text for text in found), found


def test_the_pump_counts_published_messages_however_they_come() -> None:
    one = b"PUB t\n\0\0\0\x02ab"
    other = b"PUB t\n\0\0\0\x03abc"
    batch = b"MPUB t\n\0\0\0\x10\0\0\0\x02\0\0\0\x02ab\0\0\0\x02cd"
    with a_pump() as pump:
        assert talk(pump, b"  V2" + one * 5 + other + batch + one * 3, 100) == b"\0\0\0\6\0\0\0\0OK" * 10
        assert pump.stop()["published"] == 11


class FakeTime:
    """What the pump takes from the module ``time``; it stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return 0

    def process_time(self) -> float:
        return 0.0


class InnerPump:
    """The pump in this process, on a clock that stands, with *count* subscribed clients: what it judges by time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        monkeypatch.syspath_prepend(str(HERE / "benchmarks" / "server"))  # it is a program of its own
        module = importlib.import_module("pump")
        self.time = FakeTime()
        monkeypatch.setattr(module, "time", self.time)
        config = {"messages": 10, "body": 5, "text": "hello", "codec": "plain", "max_in_flight": 4, "rate": 0}
        self.pump = module.Pump(config)
        self.clients, self.peers = [], []
        for _ in range(count):
            mine, theirs = socket.socketpair()
            client = module.Client(theirs)
            self.pump.clients.append(client)
            self.pump.selector.register(theirs, 1, client)
            self.clients.append(client)
            self.peers.append(mine)
            self.pump._read(client, SUB)

    def says(self, number: int, said: bytes) -> None:
        self.pump._read(self.clients[number], said)

    def after(self, seconds: float) -> list[str]:
        """Let time pass; return what broke a rule so far."""
        self.time.now += seconds
        self.pump._judge_sum(self.time.now)
        found: list[str] = self.pump.violations
        return found

    def close(self) -> list[str]:
        """Return all that broke a rule, once every connection is gone."""
        found: list[str] = self.pump.account()["violations"]
        self.pump.selector.close()
        for peer in self.peers:
            peer.close()
        return found


def test_the_pump_finds_a_sum_of_ready_that_stays_above_max_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = InnerPump(monkeypatch, 2)
    inner.says(0, b"RDY 2\n")
    inner.says(1, b"RDY 2\n")
    assert inner.after(1000) == []
    inner.says(1, b"RDY 3\n")
    assert inner.after(0.09) == []
    assert inner.after(0.02) == ["RDY of all connections is 5 > 4"]
    inner.says(0, b"RDY 4\n")
    assert len(inner.after(10)) == 1  # told once
    assert len(inner.close()) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_the_pump_lets_commands_of_two_connections_cross(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    inner = InnerPump(monkeypatch, 2)
    inner.says(0, b"RDY 4\n")
    inner.says(1, b"RDY 4\n")
    assert inner.after(0.09) == []
    if lost:
        inner.pump._lose(inner.clients[0])
    else:
        inner.says(0, b"RDY 0\n")
    assert inner.after(1000) == []
    assert inner.close() == []


@pytest.mark.parametrize(
    ("beats", "nops", "waited", "found"),
    [
        (1, 1, 9.0, []),
        (1, 0, 0.9, []),  # its answer may be on the way
        (1, 0, 1.1, ["1 heartbeats, 0 answers"]),
        (3, 2, 1.1, ["3 heartbeats, 2 answers"]),
        (3, 3, 1.1, []),
    ],
)
def test_the_pump_finds_a_heartbeat_without_answer(
    monkeypatch: pytest.MonkeyPatch, beats: int, nops: int, waited: float, found: list[str]
) -> None:
    inner = InnerPump(monkeypatch, 2)
    for _ in range(beats):
        inner.pump._send_beat(inner.clients[0])
    inner.says(0, b"NOP\n" * nops)
    assert inner.peers[0].recv(1000).count(b"_heartbeat_") == beats
    inner.after(waited)
    assert inner.close() == found
    assert inner.pump.beats == beats


def test_a_broken_rule_fails_the_measurement_of_ours_only() -> None:
    ours, other = (next(i for i in IMPLEMENTATIONS if i.name == name) for name in ("gnsq_lite-inline", "gnsq"))
    case = next(case for case in all_cases() if case.group == "rules")
    account = {"violations": [], "sent": 10, "distinct": 10, "requeued": 0, "subscribers": 1, "heartbeats": 1}
    job = {"audit": True, "max_in_flight": 4}
    measure._check_pump(account, case, ours, 10, job)
    for change, said in (
        ({"violations": ["RDY of all"]}, "RDY of all"),
        ({"distinct": 9}, "1 messages without an answer"),
        ({"heartbeats": 0}, "no heartbeat was due"),
        ({"subscribers": 0}, "0 of 1 connections"),
    ):
        with pytest.raises(measure.Failed, match=said):
            measure._check_pump({**account, **change}, case, ours, 10, job)
    measure._check_pump({**account, "violations": ["RDY of all"], "distinct": 9}, case, other, 10, job)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    result = a_result(gnsq_lite=[10.0, 40.0, 30.0], go_nsq=[10.0, 10.0, 10.0])
    assert report.ratio(result, "gnsq-lite", "go-nsq") == 3.0
    assert report.ratio(result, "gnsq-lite", "gnsq") is None


def test_merging_keeps_cases_whole_and_replaces_those_measured_again() -> None:
    old = {"about": "then", "results": [a_result(a=[1.0]), {**a_result(a=[2.0]), "title": "other"}]}
    new = {"about": "now", "results": [a_result(b=[3.0]), {**a_result(b=[4.0]), "title": "third"}]}
    merged = report.merge(old, new)
    assert merged["about"] == "now"
    assert [(result["title"], list(result["rows"])) for result in merged["results"]] == [
        ("consume, a case", ["b"]),
        ("other", ["a"]),
        ("third", ["b"]),
    ]


def test_the_readme_gets_the_tables_between_its_marks(tmp_path: Path) -> None:
    readme = tmp_path / "README.rst"
    readme.write_text(f"before\n{report._BEGIN}\nold\n{report._END}\nafter\n")
    about = {"when": "today", "machine": dict.fromkeys(("cpu", "cores", "kernel", "load"), "x"), "versions": {"a": "1"}}
    report.update_readme({"about": about, "results": [a_result(raw=[1.0, 2.0, 3.0])]}, readme, tmp_path / "images")
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "consume, a case" in text
    assert (tmp_path / "images" / "benchmarks-consume.svg").exists()


def test_every_case_that_the_readme_promises_is_there() -> None:
    cases = list(all_cases())
    for codec in ("plain", "snappy", "deflate"):
        for body in (100, 1000):
            found = [case.job for case in cases if (case.job.get("codec"), case.job.get("body")) == (codec, body)]
            for in_flight in (1, 200, 2500):
                assert any(job.get("max_in_flight") == in_flight and "audit" not in job for job in found)
            for callers, batch in ((1, 1), (100, 1), (1, 100)):
                assert any((job.get("callers"), job.get("batch")) == (callers, batch) for job in found)
    assert {case.job["connections"] for case in cases if "connections" in case.job} >= {1, 10, 100}
    assert {case.job["concurrency"] for case in cases if "concurrency" in case.job} == {1, 10, 100, 1000}
    assert len({case.title for case in cases}) == len(cases)
    for case in cases:
        assert any(client.ours and case.takes(client) for client in IMPLEMENTATIONS), case.title


def test_no_measurement_is_made_to_take_long() -> None:
    bench = measure.Bench(measure.Settings(server="pump"))
    for case in all_cases():
        for client in IMPLEMENTATIONS:
            assert not case.takes(client) or bench.expected(client, case) < 8, (case.title, client.name)
    said = announce(bench, list(all_cases()), list(IMPLEMENTATIONS), 5)
    found = re.search(r"(\d+) cases, (\d+) measurements: about (\d+) minutes", said)
    assert found is not None
    assert int(found[1]) == len(list(all_cases()))
    assert int(found[3]) <= 70


class FakeBench(measure.Bench):
    """Measures nothing: some peers fail, and at the third case somebody presses Ctrl-C."""

    seen: ClassVar[list[str]] = []

    def server_name(self, case: Case) -> str:
        return "none"

    def _measure(self, implementation: Implementation, case: Case) -> dict[str, Any]:
        if case.title not in self.seen:
            self.seen.append(case.title)
        if len(self.seen) == 3:
            raise KeyboardInterrupt
        if implementation.name == "gnsq":
            raise measure.Failed("gnsq: it crashed")
        if implementation.name == "raw":
            raise ConnectionResetError("the server is gone")
        return {"value": 2.0, "rss_start": 0, "rss_end": 0}


def test_a_peer_that_fails_is_told_of_and_what_was_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.__main__.Bench", FakeBench)
    (tmp_path / "results.json").write_text(json.dumps({"about": {}, "results": [a_result(a=[1.0])]}))
    argv = ["--only", "publish", "--impl", "raw,gnsq,ansq", "--rounds", "2", "--server", "pump", "--merge"]
    with pytest.raises(KeyboardInterrupt):
        main([*argv, "--out", str(tmp_path)])
    earlier, *results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert earlier["title"] == "consume, a case"
    assert [result["title"] for result in results] == FakeBench.seen[:2]
    for result in results:
        assert result["rows"]["ansq"]["values"] == [2.0, 2.0]
        assert result["failed"] == {
            "gnsq": "gnsq: it crashed",
            "raw": "raw: ConnectionResetError: the server is gone",
        }
    assert "gnsq: it crashed" in capsys.readouterr().err


def test_the_last_message_may_come_while_another_thread_still_notes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    meter = importlib.import_module("meter")
    noting, last_came, ended = threading.Event(), threading.Event(), threading.Event()
    count = meter.Meter({"messages": 10, "warmup": 1}, ended.set)

    def slow_rss() -> int:
        noting.set()
        last_came.wait(0.2)
        return 1

    monkeypatch.setattr(meter, "rss", slow_rss)
    first = threading.Thread(target=count.mark)
    first.start()
    assert noting.wait(10)
    last = threading.Thread(target=lambda: (count.mark(), last_came.set()))
    last.start()
    first.join()
    last.join()
    assert ended.is_set()
    assert count.result["messages"] == 10


def test_every_peer_is_pinned() -> None:
    for client in IMPLEMENTATIONS:
        assert client.driver == "go" or (PEERS / client.driver).exists()
        if client.environment:
            lines = (PEERS / "requirements" / f"{client.environment}.txt").read_text().split()
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
            assert any(line.startswith(f"{client.environment}==") for line in lines)


def test_the_documented_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (HERE / "benchmarks" / "README.rst").read_text()
    commands = re.findall(r"python -m benchmarks(?!\.)([^`\n]*)", readme)
    assert commands
    for arguments in commands:
        parser().parse_args(arguments.partition("#")[0].split())
    comparisons = re.findall(r"python -m benchmarks\.delivery([^`\n]*)", readme)
    assert comparisons
    for arguments in comparisons:
        delivery.parser().parse_args(arguments.split())
    assert main(["--list"]) == 0
    assert "gnsq_lite-greenlet" in capsys.readouterr().out


def test_gnsq_lite_names_every_way_of_using_it() -> None:
    clients = chosen_clients(parser().parse_args(["--impl", "gnsq_lite,go-nsq"]))
    assert [client.name for client in clients if client.ours] == [i.name for i in IMPLEMENTATIONS if i.ours]
    assert clients[-1].name == "go-nsq"


def test_every_group_of_cases_has_its_part_of_the_report() -> None:
    raw = {"rss_start": 0, "rss_end": 0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "max": 1.0, "cpu": 1.0, "wall": 1.0}
    row = {"values": [2.0], "per_second": [2.0], "raw": [raw]}
    run: dict[str, Any] = {
        "about": {"when": "", "machine": {"cpu": "", "cores": "", "kernel": "", "load": ""}, "versions": {}},
        "results": [
            {"title": case.title, "group": case.group, "unit": "", "server": "", "rounds": 1, "failed": {}}
            | {"rows": {"gnsq_lite-greenlet": row, "youzan-go-nsq": row}}
            for case in all_cases()
        ],
    }
    text = report.rst(run)
    assert all(case.title in text for case in all_cases())
    assert "/ youzan-go-nsq" in text
