"""The test servers themselves: how they are found, what happens where they are missing, how options become flags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers, youzan_servers

ROOT = Path(__file__).parent.parent
ONE_TEST = "tests/contract/test_subscribe.py::test_nop_is_not_answered"


def _run_one_test(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GNSQ_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ONE_TEST],
        cwd=ROOT,
        env={**kept, "PATH": str(tmp_path), **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_without_a_real_server_the_summary_says_loudly_what_was_not_run(tmp_path: Path) -> None:
    done = _run_one_test(tmp_path)
    assert "1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "NOT RUN AGAINST A REAL SERVER" in done.stdout
    assert "1 tests were skipped, no nsqd: put it on PATH or name it in GNSQ_NSQD." in done.stdout
    assert done.returncode == 0


def test_without_a_real_server_the_run_fails_where_one_is_required(tmp_path: Path) -> None:
    done = _run_one_test(tmp_path, GNSQ_REQUIRE_NSQD="1")
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "GNSQ_REQUIRE_NSQD is set and there is no nsqd" in done.stdout
    assert done.returncode == 1


def test_a_program_is_found_by_its_variable_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nsqd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GNSQ_NSQD", raising=False)
    assert servers.nsqd_program() == str(program)
    other = tmp_path / "other"
    program.rename(other)
    assert servers.nsqd_program() is None
    monkeypatch.setenv("GNSQ_NSQD", str(other))
    assert servers.nsqd_program() == str(other)
    monkeypatch.setenv("GNSQ_NSQD", str(tmp_path / "absent"))
    assert servers.nsqd_program() is None


def test_options_become_flags() -> None:
    assert servers.flags(
        {
            "msg_timeout": 0.5,
            "max_heartbeat_interval": 5,
            "tombstone_lifetime": 1.0,
            "max_rdy_count": 10,
            "snappy": False,
            "tls_required": "tcp-https",
            "auth_http_address": ("a:1", "b:2"),
        }
    ) == [
        "--msg-timeout=500ms",
        "--max-heartbeat-interval=5000ms",
        "--tombstone-lifetime=1000ms",
        "--max-rdy-count=10",
        "--snappy=false",
        "--tls-required=tcp-https",
        "--auth-http-address=a:1",
        "--auth-http-address=b:2",
    ]


def test_a_server_that_does_not_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    process = servers.Process("/bin/sh", ["-c", "echo the reason; exit 3"], tmp_path / "log")
    with pytest.raises(RuntimeError, match="the reason"):
        process.start()
    assert not process.is_running()
    process.stop()
    process.kill()


def test_stop_and_kill_end_the_process_and_only_it(tmp_path: Path) -> None:
    listening = "trap 'exit 0' TERM; echo 'TCP: listening on 127.0.0.1:1'; echo 'HTTP: listening on 127.0.0.1:2'; "
    for end in ("stop", "kill"):
        process = servers.Process("/bin/sh", ["-c", listening + "while :; do sleep 0.05; done"], tmp_path / end)
        process.start()
        assert process.is_running()
        assert (process.address("TCP"), process.address("HTTP")) == ("127.0.0.1:1", "127.0.0.1:2")
        getattr(process, end)()
        assert not process.is_running()


def test_a_cluster_of_youzans_needs_three_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: tmp_path / name for name in ("nsqd", "nsqlookupd", "etcd")}
    for program in made.values():
        program.write_text("#!/bin/sh\n")
        program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GNSQ_ETCD", raising=False)
    monkeypatch.delenv("GNSQ_YOUZAN_NSQLOOKUPD", raising=False)
    monkeypatch.setenv("GNSQ_YOUZAN_NSQD", str(made["nsqd"]))
    assert youzan_servers.programs() is None  # the nsqlookupd on PATH is plain NSQ's
    monkeypatch.setenv("GNSQ_YOUZAN_NSQLOOKUPD", str(made["nsqlookupd"]))
    assert youzan_servers.programs() == tuple(map(str, made.values()))
    monkeypatch.setenv("GNSQ_ETCD", str(tmp_path / "absent"))
    assert youzan_servers.programs() is None


def test_a_server_that_ends_at_once_says_why(tmp_path: Path) -> None:
    program = tmp_path / "nsqd"
    program.write_text("#!/bin/sh\necho file limit is too low\nexit 1\n")
    program.chmod(0o700)
    node = youzan_servers.Node(str(program), [], tmp_path / "log", "127.0.0.1:1", "/ping")
    with pytest.raises(servers.MissingServer, match=r"100000 descriptors for .*: the hard limit here is \d+"):
        node.start()
    program.write_text("#!/bin/sh\necho something else\nexit 1\n")
    with pytest.raises(RuntimeError, match="something else"):
        node.start()
