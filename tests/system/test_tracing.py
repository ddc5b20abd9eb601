"""OpenTelemetry, Sentry and statsd: each with its own SDK, and what it would send kept in memory."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_lite import Message, Requeue, Worker, Writer
from gnsq_lite.broker import Broker
from gnsq_lite.errors import BodyTypeError, NotSent, OptionError
from gnsq_lite.worker import Handler, Middleware
from tests.programs import wait_for

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("sentry_sdk")
pytest.importorskip("statsd")

import sentry_sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.transport import Transport
from statsd import StatsClient

from gnsq_lite.contrib.opentelemetry import Metrics, PublishMetrics, PublishTracing, Tracing
from gnsq_lite.contrib.sentry import SentryMiddleware
from gnsq_lite.contrib.statsd import StatsdMiddleware


class Spans:
    """A tracer provider, and what it has exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def traced(address: str, spans: Spans, timeout: float = 10.0, **options: Any) -> Writer:
    """Return a Writer whose publishes have spans."""
    return Writer(address, publish_timeout=timeout, middleware=[PublishTracing(spans.provider, **options)])


def worked(nsqd: Broker, middleware: list[Middleware], handle: Any, send: Any, done: Any, **options: Any) -> Worker:
    """Have a Worker handle topic "t" until *done*; return it."""
    settings: dict[str, Any] = {"requeue_delay": 0.0, "backoff": False, "max_in_flight": 8}
    worker = Worker(nsqd_tcp_addresses=nsqd.nsqd_tcp_address, middleware=middleware, **settings)
    worker.add(Handler("t", "ch", handle, options))
    worker.start()
    try:
        send()
        wait_for(done)
        wait_for(lambda: worker.stats()[0].in_flight == 0)
    finally:
        worker.close()
    return worker


def test_a_handlers_span_is_the_child_of_the_publishers_and_has_the_conventions_attributes(nsqd: Broker) -> None:
    spans, bodies = Spans(), []

    def handle(message: Message) -> None:
        name = json.loads(message.body)["name"]
        bodies.append(name)
        if name == "fails" and message.attempts == 1:
            raise ValueError("once")
        if name == "again" and message.attempts == 1:
            raise Requeue(0.0, backoff=False)

    with traced(nsqd.nsqd_tcp_address, spans, carry="json", json_field="t") as writer:

        def send() -> None:
            for name in ("fine", "fails", "again"):
                writer.publish("t", b'{"name":"%s"}' % name.encode())

        tracing = Tracing(spans.provider, json_field="t")
        worked(nsqd, [tracing], handle, send, lambda: len(spans.named("process t")) == 5)
    assert sorted(bodies) == ["again", "again", "fails", "fails", "fine"]
    published, handled = spans.named("publish t"), spans.named("process t")
    assert {span.kind.name for span in published} == {"PRODUCER"}
    assert {span.kind.name for span in handled} == {"CONSUMER"}
    assert dict(published[0].attributes) == {
        "messaging.system": "nsq",
        "messaging.destination.name": "t",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.body.size": len(b'{"name":"fine"}'),
    }
    parents = {span.context.span_id: span for span in published}
    for span in handled:
        assert span.parent.span_id in parents
        assert span.context.trace_id == parents[span.parent.span_id].context.trace_id
        assert span.attributes["messaging.operation.type"] == "process"
        assert span.attributes["messaging.consumer.group.name"] == "ch"
        assert len(span.attributes["messaging.message.id"]) == 16
        assert span.attributes["server.port"] == int(nsqd.nsqd_tcp_address.rpartition(":")[2])
    failed = [span for span in handled if span.status.status_code.name == "ERROR"]
    assert [(span.attributes["error.type"], len(span.events)) for span in failed] == [("ValueError", 1)]
    assert sum(span.attributes.get("messaging.nsq.requeued", False) for span in handled) == 1


def test_a_batch_is_one_span_linked_to_those_that_published_it(nsqd: Broker) -> None:
    spans, lists = Spans(), []

    def handle(messages: list[Message]) -> None:
        lists.append([message.body for message in messages])

    with traced(nsqd.nsqd_tcp_address, spans, carry="json") as writer:
        worked(
            nsqd,
            [Tracing(spans.provider, json_field="trace_context")],
            handle,
            lambda: writer.multipublish("t", [b'{"n":1}', b'{"n":2}', b'{"n":3}']),
            lambda: sum(map(len, lists)) == 3,
            batch_size=3,
            batch_wait=5.0,
        )
    (published,) = spans.named("publish t")
    assert published.attributes["messaging.batch.message_count"] == 3
    handled = spans.named("process t")
    assert sum(span.attributes["messaging.batch.message_count"] for span in handled) == 3
    assert {link.context.span_id for span in handled for link in span.links} == {published.context.span_id}
    assert sorted(json.loads(body)["n"] for each in lists for body in each) == [1, 2, 3]


@pytest.mark.parametrize("body", [b"text", b"[1]", b"\xff", b"[" * 100_000], ids=["text", "list", "bytes", "deep"])
def test_a_body_that_is_no_json_object_is_refused_by_the_writer_and_accepted_by_the_worker(
    nsqd: Broker, body: bytes
) -> None:
    spans, bodies = Spans(), []
    with traced(nsqd.nsqd_tcp_address, spans, carry="json") as writer:
        with pytest.raises(NotSent, match="JSON object"):
            writer.publish("t", body)
        with pytest.raises(NotSent, match="JSON object"):
            writer.multipublish("t", [b"{}", body])
    with Writer(nsqd.nsqd_tcp_address) as plain:
        tracing = Tracing(spans.provider, json_field="trace_context")
        worked(nsqd, [tracing], lambda m: bodies.append(m.body), lambda: plain.publish("t", body), lambda: bodies)
    assert bodies == [body]
    assert [span.parent for span in spans.named("process t")] == [None]


def test_without_carrying_the_body_is_as_it_was_and_the_trace_ends(nsqd: Broker) -> None:
    spans, bodies = Spans(), []
    with traced(nsqd.nsqd_tcp_address, spans) as writer:

        def send() -> None:
            writer.publish_nowait("t", b"plain")
            writer.flush()

        worked(nsqd, [Tracing(spans.provider)], lambda m: bodies.append(m.body), send, lambda: bodies)
    assert bodies == [b"plain"]
    assert [span.parent for span in spans.named("process t")] == [None]
    assert len(spans.named("publish t")) == 1


def test_a_publish_that_fails_is_an_error_in_its_span() -> None:
    spans = Spans()
    with traced("127.0.0.1:1", spans, timeout=0.1) as writer:
        with pytest.raises(NotSent):
            writer.publish("t", b"x")
        with pytest.raises(BodyTypeError):
            writer.publish("t", "text")  # type: ignore[arg-type]
    assert [span.attributes["error.type"] for span in spans.named("publish t")] == ["NotSent"]
    with pytest.raises(OptionError, match="carry"):
        PublishTracing(carry="pigeon")  # type: ignore[arg-type]


def test_headers_carry_the_context_where_there_are_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Youzan's NSQ: what the Writer gets on its way there, and what comes of it in a handler."""
    spans, sent = Spans(), []

    def publish(self: Writer, topic: str, body: bytes, **options: Any) -> None:
        sent.append((body, options))

    monkeypatch.setattr(Writer, "publish", publish)
    writer = traced("127.0.0.1:1", spans, carry="headers")
    writer.publish("t", b"x", headers={"mine": "1"})
    ((body, options),) = sent
    assert body == b"x"
    assert options["headers"]["mine"] == "1"

    class Came:
        id, attempts, nsqd_address, partition = b"0" * 16, 1, "[::1]:4150", 3
        body, headers = b"x", options["headers"]

    seen: list[bytes] = []
    Tracing(spans.provider).wrap(lambda message: seen.append(message.body), Handler("t", "ch", print))(Came())
    (published,), (handled,) = spans.named("publish t"), spans.named("process t")
    assert handled.parent.span_id == published.context.span_id
    assert handled.attributes["server.address"] == "::1"
    assert handled.attributes["messaging.destination.partition.id"] == "3"
    assert seen == [b"x"]


class Kept(Transport):
    """Keeps what Sentry would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.events += [item.payload.json for item in envelope.items if item.payload.json is not None]


@pytest.fixture
def kept() -> Iterator[Kept]:
    transport = Kept()
    quiet: dict[str, Any] = {"default_integrations": False, "enable_backpressure_handling": False}
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1",
        transport=transport,
        traces_sample_rate=1.0,
        auto_session_tracking=False,
        shutdown_timeout=0,
        **quiet,
    )
    yield transport
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init(**quiet)
    assert [thread.name for thread in threading.enumerate() if "sentry" in thread.name] == []  # left to other tests


def test_sentry_gets_each_error_once_with_its_message_and_nothing_of_another(nsqd: Broker, kept: Kept) -> None:
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.attempts == 1:
            sentry_sdk.set_tag(f"own.{message.body.decode()}", "yes")
            if message.body == b"again":
                raise Requeue(0.0, backoff=False)
            raise ValueError(f"no {message.body.decode()}")

    def send() -> None:
        worker_writer.multipublish("t", [b"a", b"b", b"again"])

    with Writer(nsqd.nsqd_tcp_address) as worker_writer:
        worked(nsqd, [SentryMiddleware()], handle, send, lambda: len(seen) == 6, concurrency=3)
    errors = [event for event in kept.events if "exception" in event]
    said = sorted(event["exception"]["values"][-1]["value"] for event in errors)
    assert said == ["no a", "no b"]
    for event in errors:
        body = event["exception"]["values"][-1]["value"][3:]
        assert [name for name in event["tags"] if name.startswith("own.")] == [f"own.{body}"]
        assert (event["tags"]["nsq.topic"], event["contexts"]["nsq"]["attempts"]) == ("t", 1)
    traces = [event for event in kept.events if event.get("type") == "transaction"]
    assert len(traces) == 6
    assert {trace["transaction"] for trace in traces} == {"t/ch"}
    statuses = sorted(trace["contexts"]["trace"]["status"] for trace in traces)
    assert statuses == ["aborted", "internal_error", "internal_error", "ok", "ok", "ok"]


def test_sentry_is_told_from_an_attempt_on(kept: Kept) -> None:
    class Came:
        id, nsqd_address, attempts = b"0" * 16, "h:1", 2

        class timestamp:
            isoformat = staticmethod(lambda: "now")

    def fail(message: Any) -> None:
        raise ValueError

    call = SentryMiddleware(first_attempt=3).wrap(fail, Handler("t", "ch", print))
    for Came.attempts in (2, 3):
        with pytest.raises(ValueError):
            call(Came())
    assert len([event for event in kept.events if "exception" in event]) == 1


def test_statsd_is_sent_counts_and_times_by_outcome(nsqd: Broker) -> None:
    came: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)

        def read() -> None:
            while (text := server.recv(2000).decode()) != "over":
                came.append(text)

        reader = threading.Thread(target=read)
        reader.start()
        client = StatsClient("127.0.0.1", server.getsockname()[1])
        seen: list[int] = []

        def handle(message: Message) -> None:
            seen.append(message.attempts)
            if message.attempts < 3:
                raise Requeue(0.0, backoff=False) if message.attempts == 2 else ValueError("first")

        with Writer(nsqd.nsqd_tcp_address) as writer:
            worked(nsqd, [StatsdMiddleware(client)], handle, lambda: writer.publish("t", b"x"), lambda: len(seen) == 3)
        wait_for(lambda: len(came) == 6)
        server_address = server.getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"over", server_address)
        reader.join(60)
        client.close()
    counts = [text for text in came if text.endswith("|c")]
    assert counts == ["nsq.t.ch.failed:1|c", "nsq.t.ch.requeued:1|c", "nsq.t.ch.ok:1|c"]
    assert sum(text.startswith("nsq.t.ch.time:") and text.endswith("|ms") for text in came) == 3


def test_statsd_names_have_no_dots_of_their_own() -> None:
    class Client:
        names: list[str] = []  # noqa: RUF012

        def incr(self, name: str, count: int) -> None:
            self.names.append(f"{name}:{count}")

        def timing(self, name: str, ms: float) -> None:
            self.names.append(name)

    StatsdMiddleware(Client()).wrap(len, Handler("a.b", "c#ephemeral", print))([1, 2])
    assert Client.names == ["nsq.a_b.c_ephemeral.ok:2", "nsq.a_b.c_ephemeral.time"]


def points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """Return (attributes, count) of each series, by the metric's name."""
    found: dict[str, list[tuple[dict[str, Any], float]]] = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for metric in resource.scope_metrics[0].metrics:
            for point in metric.data.data_points:
                count = point.count if hasattr(point, "count") else point.value
                found.setdefault(metric.name, []).append((dict(point.attributes), count))
    return found


def test_metrics_have_the_names_and_attributes_of_the_messaging_conventions(nsqd: Broker) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    try:

        def handle(message: Message) -> None:
            if message.body == b"bad" and message.attempts == 1:
                raise KeyError("bad")
            if message.body == b"again" and message.attempts == 1:
                raise Requeue(0.0)

        writer = Writer(nsqd.nsqd_tcp_address, middleware=[PublishMetrics(provider)])
        worked(
            nsqd,
            [Metrics(provider)],
            handle,
            lambda: (writer.publish("t", b"bad"), writer.multipublish("t", [b"again", b"c"])),
            lambda: points(reader).get("messaging.client.consumed.messages", [({}, 0)])[0][1] == 5,
        )
        writer.close()
        away = Writer("127.0.0.1:1", publish_timeout=0.1, middleware=[PublishMetrics(provider)])
        with pytest.raises(NotSent):
            away.publish("t", b"x")
        away.close()
        found = points(reader)
    finally:
        provider.shutdown()
    host, port = nsqd.nsqd_tcp_address.split(":")
    common = {"messaging.system": "nsq", "messaging.destination.name": "t"}
    process = {**common, "messaging.operation.name": "process", "messaging.consumer.group.name": "ch"}
    process |= {"server.address": host, "server.port": int(port)}
    publish = {**common, "messaging.operation.name": "publish", "messaging.operation.type": "send"}
    assert found["messaging.client.consumed.messages"] == [(process, 5)]
    assert (process, 4) in found["messaging.process.duration"]
    assert ({**process, "error.type": "KeyError"}, 1) in found["messaging.process.duration"]
    assert found["messaging.client.sent.messages"] == [(publish, 3)]
    assert (publish, 2) in found["messaging.client.operation.duration"]
    failed = [attributes["error.type"] for attributes, _ in found["messaging.client.operation.duration"][1:]]
    assert len(failed) == 1
