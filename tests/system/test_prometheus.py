"""The metrics, and the dashboard that names them."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import gnsq_lite
from gnsq_lite import Message, Reader, Worker, Writer, errors
from gnsq_lite.broker import Broker
from tests.docblocks import DOCS, loaded
from tests.programs import running, wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import get, pages_at, worker

prometheus_client = pytest.importorskip("prometheus_client")

from gnsq_lite.contrib.outbox import Outbox  # noqa: E402
from gnsq_lite.contrib.prometheus import AGES, Collector, HandlerSeconds, PublishSeconds, page, show  # noqa: E402
from gnsq_lite.contrib.prometheus_merge import merge  # noqa: E402
from gnsq_lite.contrib.relay import RelayInWorker  # noqa: E402

CONTRIB = Path(gnsq_lite.__file__).parent / "contrib"


def value(registry: Any, name: str, **labels: str) -> Any:
    return registry.get_sample_value(name, labels)


def test_a_reader_that_was_not_started_breaks_no_scrape() -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector(Reader("t", "ch", print)))
    assert value(registry, "gnsq_loop_up", topic="t", channel="ch") == 0


def test_counts_of_readers_and_writers_are_those_of_stats(nsqd: Broker) -> None:
    registry = prometheus_client.CollectorRegistry()

    def handle(message: Message) -> None:
        if message.attempts == 1 and message.body == b"1":
            raise ValueError("once")

    with (
        Writer(nsqd.nsqd_tcp_address) as writer,
        Writer("127.0.0.1:1") as idle,
        Reader("t", "ch", handle, nsqd_tcp_addresses=nsqd.nsqd_tcp_address, requeue_delay=0.0, backoff=False) as reader,
    ):
        registry.register(Collector(reader, idle, main=writer))
        writer.multipublish("t", [b"%d" % n for n in range(5)])
        wait_for(lambda: reader.stats().finished == 5)
        on = {"topic": "t", "channel": "ch"}
        assert value(registry, "gnsq_messages_received_total", **on) == 6
        assert value(registry, "gnsq_messages_total", outcome="finished", **on) == 5
        assert value(registry, "gnsq_messages_total", outcome="requeued", **on) == 1
        assert value(registry, "gnsq_handler_failures_total", **on) == 1
        assert value(registry, "gnsq_connections", **on) == 1
        assert value(registry, "gnsq_ready", nsqd=nsqd.nsqd_tcp_address, **on) == 1
        assert value(registry, "gnsq_in_flight", nsqd=nsqd.nsqd_tcp_address, **on) == 0
        assert value(registry, "gnsq_loop_up", **on) == 1
        published = writer.stats().published
        assert published >= 1
        assert value(registry, "gnsq_publishes_total", writer="main", outcome="published") == published
        assert idle.is_idle  # being scraped does not make it connect


def test_a_worker_stands_for_its_readers_and_writers(nsqd: Broker) -> None:
    registry = prometheus_client.CollectorRegistry()
    timing = HandlerSeconds(registry)
    worker = Worker(nsqd_tcp_addresses=nsqd.nsqd_tcp_address, middleware=[timing], requeue_delay=0.0, backoff=False)
    collector = Collector(worker)
    registry.register(collector)
    seen: list[Any] = []

    @worker.handler("t", "ch")
    def handle(message: Message) -> None:
        worker.writer().publish("other", b"x")
        if message.attempts == 1:
            raise ValueError("once")
        seen.append(value(registry, "gnsq_handlers_running", topic="t", channel="ch"))
        worker.stop()

    with Writer(nsqd.nsqd_tcp_address, middleware=[PublishSeconds(registry)]) as writer:
        writer.publish("t", b"x")
        with pytest.raises(errors.InvalidName):
            writer.publish("no good", b"x")
    assert worker.run() == 0
    assert seen == [1]
    for outcome in ("ok", "failed"):
        assert value(registry, "gnsq_handler_seconds_count", topic="t", channel="ch", outcome=outcome) == 1
    assert value(registry, "gnsq_publish_seconds_count", topic="t", outcome="ok") == 1
    assert value(registry, "gnsq_publishes_total", writer="0", outcome="published") == 2
    kind, body = page(registry)
    assert kind.startswith("text/plain")
    assert b"# TYPE gnsq_messages_total counter" in body


def test_a_worker_shows_its_schedules_outboxes_depths_and_the_ages_of_messages(nsqd: Broker, tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    outbox = Outbox(lambda: sqlite3.connect(tmp_path / "shop.sqlite3", timeout=60))
    outbox.create_tables()
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as connection:
        outbox.publish_many(connection, "refused", [b"1", b"2"])
        connection.execute("UPDATE nsq_outbox SET publish_at = publish_at - 60, topic = 'no good'")
        connection.commit()
    relaying = RelayInWorker(outbox)
    timing = HandlerSeconds(registry)
    worker = Worker(nsqd_tcp_addresses=nsqd.nsqd_tcp_address, middleware=[relaying, timing])
    worker.handler("t", "ch")(lambda message: None)
    worker.every(1.0, "clocked", b"tick")
    with Writer(nsqd.nsqd_tcp_address) as writer:
        writer.publish("t", b"x")
    began = time.time()
    time.sleep(0.3)
    collector = show(worker, registry)
    seen: list[Any] = []

    def depths(stats: Any) -> dict[tuple[str, str, str], int]:
        seen.append([each.topic for each in stats])
        return {("nsqd:4150", "t", "ch"): 7}

    collector.depths.append(depths)
    name = "gnsq_schedule_last_run_timestamp_seconds"
    on = {"schedule": "Every(seconds=1.0)", "topic": "clocked"}
    worker.start()
    try:
        wait_for(lambda: value(registry, name, **on))
        assert began - 1 < value(registry, name, **on) <= time.time()
        wait_for(lambda: value(registry, "gnsq_outbox_messages", outbox="nsq_outbox") == 2)
        assert 59 < value(registry, "gnsq_outbox_age_seconds", outbox="nsq_outbox") < 120
        wait_for(lambda: value(registry, "gnsq_message_age_seconds_count", topic="t", channel="ch") == 1)
        assert 0.3 <= value(registry, "gnsq_message_age_seconds_sum", topic="t", channel="ch") < 60
        assert value(registry, "gnsq_channel_depth", nsqd="nsqd:4150", topic="t", channel="ch") == 7
        assert seen[-1] == ["t"]
    finally:
        worker.close()
        worker.stop()


def test_pages_of_several_processes_keep_apart_by_label_and_types_are_said_once() -> None:
    pages = {}
    for process in ("0", "1"):
        registry = prometheus_client.CollectorRegistry()
        prometheus_client.Counter("c", "Count.", ["topic"], registry=registry).labels('a"b\\c').inc(1 + int(process))
        prometheus_client.Histogram("h", "Seconds.", registry=registry, buckets=(1.0,)).observe(0.5)
        pages[process] = prometheus_client.generate_latest(registry)
    text = merge(pages)[1].decode()
    assert text.count("# TYPE c_total counter") == 1
    assert text.count("# TYPE h histogram") == 1
    assert 'c_total{process="0",topic="a\\"b\\\\c"} 1.0' in text
    assert 'c_total{process="1",topic="a\\"b\\\\c"} 2.0' in text
    assert 'h_bucket{le="1.0",process="1"} 1.0' in text
    assert merge({})[1] == b""


_NAME = re.compile(r"\bgnsq_[a-z_]+")


def names_in_use() -> set[str]:
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector())
    HandlerSeconds(registry)
    PublishSeconds(registry)
    found = set()
    for family in registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return {name for name in found if name.startswith("gnsq_")}


def test_the_dashboard_names_only_metrics_that_exist() -> None:
    of_supervisor = {"gnsq_worker_hung_processes_total", "gnsq_worker_process_starts_total"}
    dashboard = json.loads((CONTRIB / "grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    shown = {name for expression in expressions for name in _NAME.findall(expression)}
    assert len(shown) > 15
    assert shown - names_in_use() - of_supervisor == set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_metric_is_in_the_docs() -> None:
    pages = (DOCS / "metrics.rst").read_text(encoding="utf-8") + loaded(DOCS / "generate.py").measured_page()
    bare = {re.sub("_(bucket|sum|count)$", "", name) for name in names_in_use()}
    assert bare - set(_NAME.findall(pages)) == set()


WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
from gnsq_lite.contrib.prometheus_merge import worker_page
from gnsq_lite import Worker
try:
    worker_page(Worker())()
except ImportError as error:
    print(error)
"""


def test_without_the_extra_the_page_says_what_to_install(tmp_path: Path) -> None:
    with running(["-c", WITHOUT], tmp_path) as program:
        assert program.ends() == 0, program.output
        assert 'pip install ".[prometheus]"' in program.output


def test_a_registry_that_has_a_collector_shows_a_worker_through_it_and_once(nsqd: Broker) -> None:
    worker = Worker(nsqd_tcp_addresses=nsqd.nsqd_tcp_address)
    worker.add(gnsq_lite.worker.Handler("t", "ch", print))
    with Writer(nsqd.nsqd_tcp_address) as writer:
        writer.publish("t", b"1")
        own, empty = (prometheus_client.CollectorRegistry() for _ in range(2))
        own.register(Collector(main=writer))
        worker.start()
        try:
            for registry in (own, own, empty):
                show(worker, registry)
            for registry in (own, empty):
                assert page(registry)[1].count(b"\ngnsq_queued{") == 1
            assert value(own, "gnsq_publishes_total", writer="main", outcome="published") == 1.0
            assert value(empty, "gnsq_publishes_total", writer="main", outcome="published") is None
        finally:
            worker.close(1.0)


APP = """
import sqlite3
from gnsq_lite import Worker
from gnsq_lite.contrib.prometheus import PublishSeconds
from gnsq_lite.contrib.outbox import Outbox
from gnsq_lite.contrib.relay import RelayInWorker
from prometheus_client import Counter

outbox = Outbox(lambda: sqlite3.connect("outbox.db", timeout=60))
outbox.create_tables()
own = Counter("app_messages", "Messages with a \\\\ and a line\\nend.", ["kind"])
worker = Worker(middleware=[RelayInWorker(outbox)])
worker.every(1, "t", b"tick")

@worker.handler("t", "ch")
def handle(message):
    own.labels('a "quote"').inc()
"""


@pytest.mark.program
@pytest.mark.parametrize("flag", ["--no-supervise", "--processes=2"])
def test_the_pages_of_workers_are_valid(broker: ServerHandle, tmp_path: Path, flag: str) -> None:
    with worker(tmp_path, broker.tcp_address, flag, "--metrics-depth", "--metrics-port", "0", app=APP) as program:
        address = pages_at(program)
        wait_for(lambda: re.search(r"(?m)^gnsq_handler_seconds_count.* [1-9]", get(address, "/metrics")[1]))
        text = get(address, "/metrics")[1]
    check_page(text)
    assert ("gnsq_worker_hung_processes_total" in text) == (flag != "--no-supervise")


QUERIED = (
    APP
    + """
from gnsq_lite import Writer
timed = []

@worker.handler("u", "ch")
def publish(message):
    timed.append(timed[0] if timed else Writer(message.nsqd_address, middleware=[PublishSeconds()]))
    timed[0].publish("t", b"x")
worker.every(1, "u", b"tick")
"""
)


def queries() -> dict[str, list[str]]:
    """Return the queries of each panel of the dashboard and of each alert rule."""
    dashboard = json.loads((CONTRIB / "grafana-dashboard.json").read_text(encoding="utf-8"))
    found = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in dashboard["panels"]}
    rules = (CONTRIB / "prometheus-alerts.yaml").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)\n +expr: (.*)\n", rules)
    assert len(alerts) == rules.count("alert:") == rules.count("summary:") == 6
    return {**found, **{name: [expression] for name, expression in alerts}}


@pytest.mark.program
def test_a_running_worker_has_what_each_panel_and_each_alert_queries(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(QUERIED, encoding="utf-8")
    with (
        Broker() as nsqd,
        running(
            [
                *("-m", "gnsq_lite", "worker", "app", "--metrics-depth", "--metrics-port", "0"),
                *("--lookupd-http-address", nsqd.lookupd_http_address),
            ],
            tmp_path,
        ) as program,
    ):
        address = pages_at(program)

        def missing() -> dict[str, set[str]]:
            samples = {line.partition("{")[0].partition(" ")[0] for line in get(address, "/metrics")[1].splitlines()}
            wanted = {
                title: {name for each in found for name in _NAME.findall(each)} for title, found in queries().items()
            }
            return {title: names - samples for title, names in wanted.items() if names - samples}

        wait_for(lambda: not missing(), timeout=60)
        assert re.search(r'gnsq_publishes_total{.*outcome="published".*} [1-9]', get(address, "/metrics")[1])


def test_the_ages_of_messages_reach_from_a_second_to_a_week() -> None:
    assert len(AGES) == 16
    assert (AGES[0], AGES[-1], list(AGES)) == (1, 7 * 86400, sorted(AGES))


def test_the_page_of_a_reader_is_valid(nsqd: Broker) -> None:
    registry = prometheus_client.CollectorRegistry()
    with Reader("t", "ch", print, nsqd_tcp_addresses=nsqd.nsqd_tcp_address) as reader:
        registry.register(Collector(reader))
        check_page(prometheus_client.generate_latest(registry).decode())


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (\S+)')
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def check_page(text: str) -> None:
    """Parse a page strictly: one declaration before all samples of a family, and each sample once.  Ask promtool."""
    families, samples, name, kind = set[str](), set[str](), "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in families, f"{name} is declared twice"
            families.add(name)
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == name, line
            kind = line.split(" ")[3]
            assert name.endswith("_total") == (kind == "counter"), line
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] in [name + suffix for suffix in SUFFIXES.get(kind, ("",))], f"{line} below {name} {kind}"
            assert match[1] + (match[2] or "") not in samples, f"{line} is there twice"
            samples.add(match[1] + (match[2] or ""))
            float(match[3])
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "metrics"], input=text.encode(), check=True)
