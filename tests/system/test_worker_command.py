"""``gnsq-lite worker``: starts, restarts, drains and reloads of processes, errors, logs and status pages."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from gnsq_lite import Worker
from gnsq_lite.broker import Broker
from gnsq_lite.worker.loading import LoadError, load
from tests.cli.programs import exit_code
from tests.programs import running, wait_for
from tests.servers import ServerHandle, http_call
from tests.system.worker_programs import APP, channel, get, is_alive, pages_at, pids, publish, worker

pytestmark = pytest.mark.program


# -- life and death


def test_several_processes_share_the_messages_and_drain_together(broker: ServerHandle, tmp_path: Path) -> None:
    broker.prepare("t", "ch")
    with worker(tmp_path, broker.tcp_address, "--processes", "2") as program:
        program.says("connected", times=2)
        wait_for(lambda: [client["ready_count"] > 0 for client in broker.stats("t", "ch")["clients"]] == [True, True])
        broker.publish("t", b"slow", b"slow")
        program.says("handled slow", times=2)
        assert len(set(pids(program))) == 2
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert program.output.count("finished slow") == 2
    stats = broker.stats("t", "ch")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (0, 0, 0, 0)


def test_a_process_that_dies_is_started_again(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        publish(nsqd, b"die")
        program.says("connected", times=2)
        assert "process 0 ended (7); starting it again in 0.5 s" in program.output
        publish(nsqd, b"exit")  # the handler raises SystemExit
        program.says("process 0 ended (5)")
        program.says("process 0 started", times=3)
        assert len(set(pids(program))) == 2


@pytest.mark.rule("CLOSE-1")
def test_the_second_signal_stops_all_processes_at_once_and_requeues_messages(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2") as program:
        program.says("connected", times=2)
        publish(nsqd, b"stuck", b"stuck")
        program.says("handled stuck", times=2)
        program.signal(signal.SIGINT)
        program.says("worker drains", times=2)
        time.sleep(0.3)
        assert program.process.poll() is None
        began = time.monotonic()
        program.signal(signal.SIGINT)
        assert program.ends() == 3
        assert time.monotonic() - began < 25.0  # the first signal alone waits for 30 s
        wait_for(lambda: channel(nsqd)["depth"] == 2)
        assert channel(nsqd)["requeue_count"] == 2  # by REQ 0, not because connections broke
        assert not any(is_alive(pid) for pid in pids(program))


def test_the_drain_limit_ends_the_worker_with_exit_code_3(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--drain-timeout", "0.5") as program:
        program.says("connected")
        publish(nsqd, b"stuck")
        program.says("handled stuck")
        program.signal(signal.SIGTERM)
        assert program.ends() == 3
    assert channel(nsqd)["depth"] == 1


STUBBORN = """
import sys
from gnsq_lite.supervise import children
from gnsq_lite.supervise.processes import Supervisor
children._DRAIN_TIMEOUT = 0.2
script = "import signal, time\\nfor n in (signal.SIGTERM, signal.SIGQUIT): signal.signal(n, signal.SIG_IGN)\\n"
script += "print('up', flush=True)\\nwhile True: time.sleep(0.1)"
sys.exit(Supervisor([sys.executable, "-c", script], 1, grace=0.5).run())
"""


def test_a_process_that_does_not_end_is_killed_with_exit_code_3(tmp_path: Path) -> None:
    with running(["-c", STUBBORN], tmp_path) as program:
        program.says("up")
        program.signal(signal.SIGTERM)
        assert program.ends(15) == 3
        assert "process 0 does not end in time; killing it" in program.output


def test_the_supervisor_waits_for_the_drain_timeout_of_the_worker(nsqd: Broker, tmp_path: Path) -> None:
    # the supervisor kills after its grace; the worker needs longer and requests more time
    app = APP.replace("Worker(", "Worker(drain_timeout=60.0, ")
    source = "from gnsq_lite.supervise import children, processes\nchildren._DRAIN_TIMEOUT = processes.GRACE = 0.1\n"
    source += "processes.Supervisor.__init__.__defaults__ = tuple(\n"
    source += "    0.1 if d == 10.0 else d for d in processes.Supervisor.__init__.__defaults__)\n"
    (tmp_path / "sitecustomize.py").write_text(source, encoding="utf-8")
    with worker(tmp_path, nsqd.nsqd_tcp_address, app=app) as program:
        program.says("connected")
        publish(nsqd, b"slow")
        program.says("handled slow")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "finished slow" in program.output


def test_a_process_drains_after_several_sigterms(nsqd: Broker, tmp_path: Path) -> None:
    # systemd's KillMode=control-group sends SIGTERM to every process, and the supervisor sends it once more
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        publish(nsqd, b"slow")
        program.says("handled slow")
        os.kill(pids(program)[0], signal.SIGTERM)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "finished slow" in program.output


def test_processes_end_when_their_supervisor_was_killed(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        publish(nsqd, b"x")
        program.says("handled x")
        program.signal(signal.SIGKILL)
        assert program.ends() == -signal.SIGKILL
        wait_for(lambda: not is_alive(pids(program)[0]))
        program.says("worker ends, drained")


def test_a_process_whose_supervisor_is_killed_while_it_imports_exits_and_starts_nothing(
    nsqd: Broker, tmp_path: Path
) -> None:
    source = "import os, time\nif 'GNSQ_LITE_SUPERVISED' in os.environ:\n"
    source += "    os.write(1, b'imports %d\\n' % os.getpid())\n    time.sleep(1.0)\n"
    (tmp_path / "sitecustomize.py").write_text(source, encoding="utf-8")
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--processes", "2") as program:
        program.says("imports")
        program.signal(signal.SIGKILL)
        assert program.ends() == -signal.SIGKILL
        (child,) = pids(program, "imports")
        wait_for(lambda: not is_alive(child))
        assert "is not the parent of this process" in program.output
        assert program.output.count("started") == 1


ORPHAN = """
import os, sys, time
from gnsq_lite.supervise.processes import Supervisor
script = '''
import os, sys, time
from gnsq_lite.supervise.slots import take_slot
slot = take_slot()
open(slot.socket, "w").close()
if os.fork() == 0:
    os._exit(3) if os.fork() else time.sleep(0.3)
    os._exit(4)
print("up", flush=True)
import signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    time.sleep(0.1)
'''
import ctypes
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans come here, as to PID 1
sys.exit(Supervisor([sys.executable, "-c", script], 1).run())
"""


def test_the_supervisor_reaps_orphans_as_pid_1_must(tmp_path: Path) -> None:
    with running(["-c", ORPHAN], tmp_path) as program:
        program.says("up")
        time.sleep(1.0)
        children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
        if children.exists():
            states = [
                Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] for pid in children.read_text().split()
            ]
            assert "Z" not in states
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


# -- what is wrong is shown plainly


@pytest.mark.parametrize(
    ("app", "shown"),
    [
        ("import gnsq_lite\nimport no_such_thing\n", ["No module named 'no_such_thing'", 'app.py", line 2']),
        ("from gnsq_lite import Worker\njobs = Worker()\n", ["'app' has no 'worker'; there is app:jobs"]),
        ("from gnsq_lite import Worker\nworker = Worker()\n", ["the worker has no handlers: decorate"]),
    ],
    ids=["import", "another name", "no handler"],
)
def test_an_error_in_the_module_is_printed_once_without_a_restart(tmp_path: Path, app: str, shown: list[str]) -> None:
    with worker(tmp_path, "127.0.0.1:1", "--processes", "4", app=app) as program:
        assert program.ends() == 2
        for text in shown:
            assert program.output.count(text) == 1, program.output
        assert "importlib" not in program.output
        assert program.output.count("started") == 1


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("def broken(:\n", ["SyntaxError", '.py", line 1']),
        ("x = 1 / 0\n", ["ZeroDivisionError", "x = 1 / 0"]),
        ("worker = 5\n", ["worker has the class int, not Worker"]),
    ],
    ids=["syntax", "error", "no Worker"],
)
def test_a_module_that_does_not_load_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, source: str, shown: list[str]
) -> None:
    name = "app_" + request.node.callspec.id.replace(" ", "_")
    (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError) as caught:
        load(name, Worker, "worker")
    assert [text for text in shown if str(caught.value).count(text) != 1] == []
    assert "importlib" not in str(caught.value)


def test_a_target_that_is_no_module_is_explained() -> None:
    for target, shown in (("missing.module", "there is no module 'missing'"), ("app.py", "names no module")):
        with pytest.raises(LoadError, match=shown):
            load(target, Worker, "worker")


def test_a_wrong_flag_and_an_unknown_topic_are_usage_errors(
    nsqd: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (
        ["--processes", "0"],
        ["--drain-timeout", "nan"],
        ["--reload", "--no-supervise"],
        ["--max-messages", "1", "--no-supervise"],
        ["--metrics-depth"],
    ):
        assert exit_code(["worker", "app", "--nsqd-tcp-address", nsqd.nsqd_tcp_address, *flags]) == 2
        assert flags[0] in capsys.readouterr().err
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--topic", "nope") as program:
        assert program.ends() == 2
        assert "has no handler; topics with a handler: t" in program.output


# -- reload, patch, no-supervise


def test_reload_loads_changed_sources_and_waits_while_they_are_broken(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--reload", app=APP + "print('version one', flush=True)\n") as program:
        program.says("connected")
        (tmp_path / "app.py").write_text("def broken(:\n", encoding="utf-8")
        program.says("waiting for a source to change")
        assert "SyntaxError" in program.output
        (tmp_path / "app.py").write_text(APP + "print('version number three', flush=True)\n", encoding="utf-8")
        program.says("version number three")
        program.says("connected", times=2)
        publish(nsqd, b"x")
        program.says("handled x")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0


PATCHED = """
from gevent import monkey
print("patched before me:", monkey.is_module_patched("socket"), flush=True)
"""


@pytest.mark.parametrize("flags", [["--patch"], ["--patch", "--no-supervise"]], ids=" ".join)
def test_patch_runs_before_the_users_module_is_imported(nsqd: Broker, tmp_path: Path, flags: list[str]) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, *flags, app=PATCHED + APP) as program:
        program.says("patched before me: True")
        program.says("connected")
        publish(nsqd, b"slow")
        program.says("handled slow")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "finished slow" in program.output
        assert "Warning" not in program.output


def test_what_no_retry_can_fix_is_printed_with_exit_code_1(nsqd: Broker, tmp_path: Path) -> None:
    app = APP.replace("Worker(", "Worker(tls=True, ", 1)
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--no-supervise", app=app) as program:
        assert program.ends() == 1
        assert "TLS was requested, but this nsqd runs without --tls-cert" in program.output


def test_no_supervise_runs_in_the_process_itself(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--no-supervise", "--metrics-port", "0") as program:
        program.says("connected")
        assert 'gnsq_loop_up{channel="ch",topic="t"} 1.0' in get(pages_at(program), "/metrics")[1]
        publish(nsqd, b"x")
        program.says("handled x")
        assert pids(program) == [program.process.pid]
        program.signal(signal.SIGINT)
        assert program.ends() == 0


# -- logs and pages


def test_json_logs_are_one_object_a_line_with_the_key_fields(nsqd: Broker, tmp_path: Path) -> None:
    app = APP + "\n@worker.handler('bad', 'ch')\ndef bad(message):\n    raise ValueError('two\\nlines')\n"
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--log-format", "json", app=app) as program:
        program.says("connected", times=2)
        assert http_call(nsqd.http_address, "POST", "/pub?topic=bad", b"x").status == 200
        program.says("handler failed")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert all(line.startswith("{") for line in program.output.splitlines()), program.output
        lines = [json.loads(line) for line in program.output.splitlines()]
    assert all({"time", "level", "logger", "message", "process"} <= set(line) for line in lines)
    assert {line["process"] for line in lines} == {"main", "0"}
    handles = [line for line in lines if "handles" in line["message"]]
    assert {(line["topic"], line["handler"]) for line in handles} == {("t", "app.handle"), ("bad", "app.bad")}
    failed = next(line for line in lines if "handler failed" in line["message"])
    assert (failed["topic"], failed["channel"], failed["nsqd"]) == ("bad", "ch", nsqd.nsqd_tcp_address)
    assert "ValueError: two\nlines" in failed["exception"]
    connected = [line for line in lines if "connected" in line["message"]]
    assert {(line["topic"], line["channel"], line["nsqd"]) for line in connected} == {
        ("t", "ch", nsqd.nsqd_tcp_address),
        ("bad", "ch", nsqd.nsqd_tcp_address),
    }


NO_TMP = """
import runpy, sys, tempfile
tempfile._candidate_tempdir_list = lambda: ["/nonexistent"]
sys.argv[0] = "gnsq-lite"
runpy.run_module("gnsq_lite", run_name="__main__")
"""


@pytest.mark.parametrize("flags", [[], ["--metrics-port", "0"]], ids=["plain", "with pages"])
def test_without_a_writable_temporary_directory_one_line_names_the_remedy(tmp_path: Path, flags: list[str]) -> None:
    with running(["-c", NO_TMP, "worker", "jobs:worker", *flags], tmp_path) as program:
        assert program.ends() == 2
    assert "TMPDIR" in program.output
    assert "emptyDir" in program.output
    assert "live page" not in program.output
    assert len(program.output.splitlines()) == 1


@pytest.mark.parametrize("flags", [[], ["--patch"]], ids=["plain", "patched"])
def test_status_pages_answer_while_a_handler_blocks(nsqd: Broker, tmp_path: Path, flags: list[str]) -> None:
    blocks = "import gevent.monkey as m; m.get_original('time', 'sleep')(60)" if flags else "while True: len('x')"
    app = APP.replace("while True:\n            time.sleep(0.1)", blocks)
    with worker(
        tmp_path, nsqd.nsqd_tcp_address, "--metrics-port", "0", "--drain-timeout", "1", *flags, app=app
    ) as program:
        address = pages_at(program)
        program.says("connected")
        wait_for(lambda: get(address, "/readyz")[0] == 200)
        assert get(address, "/healthz")[0] == 200
        assert get(address, "/nothing")[0] == 404
        publish(nsqd, b"stuck")
        program.says("handled stuck")
        began = time.monotonic()
        assert get(address, "/healthz")[0] == 200
        status, body = get(address, "/metrics")
        assert status == 200
        assert time.monotonic() - began < 15
        if flags:  # the handler holds up the I/O loop itself; the pages say so
            assert 'gnsq_loop_up{channel="ch",process="0",topic="t"} 0.0' in body
            status, body = get(address, "/readyz")
            assert status == 503
            assert "does not answer" in body
            program.signal(signal.SIGTERM)
            os.kill(pids(program)[0], signal.SIGKILL)  # it could not drain; the supervisor would do so in 11 s
            assert program.ends() == 3
        else:
            assert 'gnsq_loop_up{channel="ch",process="0",topic="t"} 1.0' in body
            assert 'gnsq_handlers_running{channel="ch",process="0",topic="t"} 1.0' in body
            assert get(address, "/readyz")[0] == 200


def test_readiness_and_metrics_of_several_processes(nsqd: Broker, tmp_path: Path) -> None:
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--metrics-port", "0", "--processes", "2") as program:
        address = pages_at(program)
        program.says("connected", times=2)
        publish(nsqd, *[b"%d" % n for n in range(20)])
        program.says("handled", times=20)
        wait_for(lambda: _total(get(address, "/metrics")[1], "gnsq_messages_total", 'outcome="finished"') == 20)
        status, body = get(address, "/readyz")
        assert status == 200
        assert set(json.loads(body)["processes"]) == {"0", "1"}
        metrics = get(address, "/metrics")[1]
        assert _total(metrics, "gnsq_handler_seconds_count") == 20
        assert 'process="0"' in metrics
        assert 'process="1"' in metrics
        assert metrics.count("# TYPE gnsq_messages_total counter") == 1
        nsqd.node.stop()
        wait_for(lambda: get(address, "/readyz")[0] == 503)
        assert get(address, "/healthz")[0] == 200
        nsqd.node.restart()
        wait_for(lambda: get(address, "/readyz")[0] == 200)


def test_metrics_have_depths_only_with_metrics_depth(tmp_path: Path) -> None:
    with Broker() as broker:
        where = ("--lookupd-http-address", broker.lookupd_http_address, "--metrics-port", "0")
        publish(broker, b"x")
        for flags, depth in (((), 0), (("--metrics-depth",), 3)):
            with worker(tmp_path, broker.nsqd_tcp_address, *where, *flags) as program:
                address = pages_at(program)
                program.says("connected")
                program.says("handled x")
                assert http_call(broker.http_address, "POST", "/channel/pause?topic=t&channel=ch").status == 200
                publish(broker, *[b"y"] * depth)
                get(address, "/metrics")  # which begins a poll
                time.sleep(0.5)
                wait_for(partial(_has_depth, address, float(depth)))
            assert http_call(broker.http_address, "POST", "/channel/unpause?topic=t&channel=ch").status == 200
            publish(broker, b"x")


def _has_depth(address: str, depth: float) -> bool:
    metrics = get(address, "/metrics")[1]
    return ("gnsq_channel_depth{" in metrics) == (depth > 0) and _total(metrics, "gnsq_channel_depth") == depth


def _total(metrics: str, name: str, label: str = "") -> float:
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name + "{") and label in line
    )


def test_a_port_in_use_is_reported_at_once(nsqd: Broker, tmp_path: Path) -> None:
    port = nsqd.http_address.rpartition(":")[2]
    with worker(tmp_path, nsqd.nsqd_tcp_address, "--metrics-port", port) as program:
        assert program.ends() == 1
        assert f"127.0.0.1:{port}: cannot serve the status pages: Address already in use" in program.output


def test_a_module_that_exits_is_not_restarted_and_its_text_is_printed(tmp_path: Path) -> None:
    app = "import sys\nsys.exit('configuration missing: ' + 'DB_URL')\n"
    with worker(tmp_path, "127.0.0.1:1", app=app) as program:
        assert program.ends() == 2
        assert program.output.count("configuration missing: DB_URL") == 1
        assert program.output.count("started") == 1


def test_a_supervisor_starts_with_a_long_path_of_the_temporary_directory(
    nsqd: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))  # too long for the address of a Unix socket
    with worker(tmp_path, nsqd.nsqd_tcp_address) as program:
        program.says("connected")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert program.output.count("process 0 started") == 1
