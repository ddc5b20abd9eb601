"""The benchmarks work: every case at its smallest size, on the pump.  No figure is judged: a timing is no test."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.__main__ import chosen_cases, chosen_clients, main, parser
from benchmarks.cases import IMPLEMENTATIONS, all_cases
from benchmarks.environments import PEERS
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


@pytest.mark.timeout(300)  # half a minute, where nothing else runs
def test_the_quick_run_measures_every_case_of_ours_and_writes_tables_json_and_plots(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--frames", "1000", "--body", "100", "--out", str(tmp_path)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=280,
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


def test_every_peer_is_pinned() -> None:
    for client in IMPLEMENTATIONS:
        assert client.driver == "go" or (PEERS / client.driver).exists()
        if client.environment:
            lines = (PEERS / "requirements" / f"{client.environment}.txt").read_text().split()
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
            assert any(line.startswith(f"{client.environment}==") for line in lines)


def test_the_documented_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"python -m benchmarks(.*)", (HERE / "benchmarks" / "README.rst").read_text())
    assert commands
    for arguments in commands:
        parser().parse_args(arguments.partition("#")[0].split())
    assert main(["--list"]) == 0
    assert "gnsq_lite-greenlet" in capsys.readouterr().out


def test_gnsq_lite_names_every_way_of_using_it() -> None:
    clients = chosen_clients(parser().parse_args(["--impl", "gnsq_lite,go-nsq"]))
    assert [client.name for client in clients if client.ours] == [i.name for i in IMPLEMENTATIONS if i.ours]
    assert clients[-1].name == "go-nsq"
