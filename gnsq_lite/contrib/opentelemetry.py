"""OpenTelemetry spans and metrics of publishes and handled messages.  Needs the extra ``opentelemetry``.

::

    from gnsq_lite.contrib.opentelemetry import Metrics, PublishMetrics, PublishTracing, Tracing

    worker = Worker(middleware=[Tracing(), Metrics()])
    writer = Writer("127.0.0.1:4150", middleware=[PublishTracing(), PublishMetrics()])

Names and attributes follow the semantic conventions for messaging.  A handler's span is the child of the publisher's
span only if the message carries the W3C trace context: in the headers of Youzan's NSQ (``carry="headers"``), or in a
field of a JSON body (``carry="json"``).  Messages of plain NSQ have no headers, so by default the handler's span starts
a new trace.
"""

from __future__ import annotations

import json
import time
from typing import Any, Literal

from gnsq_lite.errors import InvalidBody, MissingExtra, NotSent
from gnsq_lite.message import Requeue
from gnsq_lite.option_fields import check_choice
from gnsq_lite.publish.middleware import PublishCall, PublishMiddleware
from gnsq_lite.worker import Handler, Middleware

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.opentelemetry", "opentelemetry", "opentelemetry-api") from missing

__all__ = ["Metrics", "PublishMetrics", "PublishTracing", "Tracing"]

#: Default field of a JSON body for the trace context.
FIELD = "trace_context"


class Tracing(Middleware):
    """Makes a span "process TOPIC" for each handler call.  The span includes the inner middleware.

    If a message carries the trace context, the span's parent is the publish's span; a batch's span has links instead.

    Args:
        tracer_provider: The default is the global provider.
        json_field: Field of a JSON body that contains the trace context.  If None, only the headers are read.
    """

    def __init__(self, tracer_provider: Any = None, *, json_field: str | None = None) -> None:
        self._json_field = json_field
        self._tracer = trace.get_tracer("gnsq_lite", tracer_provider=tracer_provider)

    def wrap(self, call: Any, handler: Handler) -> Any:
        """Wrap *call* in a span."""
        tracer, name = self._tracer, f"process {handler.topic}"
        fixed = {
            **_attributes(handler.topic, "process", "process"),
            "messaging.consumer.group.name": handler.channel,
            "code.function.name": handler.name,
        }

        def traced(given: Any) -> Any:
            batch = given if isinstance(given, list) else [given]
            contexts = [_context_of(message, self._json_field) for message in batch]
            if given is batch:
                links = [Link(one) for one in map(_span_context, contexts) if one.is_valid]
                more: dict[str, Any] = {"context": None, "links": links}
                own: dict[str, Any] = {"messaging.batch.message_count": len(batch)}
            else:
                more, own = {"context": propagate.extract(contexts[0])}, _of_message(given)
            more |= {
                "record_exception": False,
                "set_status_on_exception": False,
            }  # _failed() records errors, but not Requeue
            with tracer.start_as_current_span(
                name, kind=SpanKind.CONSUMER, attributes={**fixed, **own}, **more
            ) as span:
                try:
                    return call(given)
                except BaseException as error:
                    _failed(span, error)
                    raise

        return traced


class PublishTracing(PublishMiddleware):
    """Makes a span "publish TOPIC" for each publish of a message or a batch.  The span ends with the outcome.

    Args:
        tracer_provider: The default is the global provider.
        carry: Place of the trace context.  ``"headers"``: the headers of Youzan's NSQ; batches then carry no context.
            With ``"json"`` it is in a field of the JSON body.  All consumers see this field, and the publish of a body
            that is no JSON object raises NotSent.  With None, messages carry no context.
        json_field: Name of the field for ``"json"``.
    """

    def __init__(
        self,
        tracer_provider: Any = None,
        *,
        carry: Literal["headers", "json"] | None = None,
        json_field: str = FIELD,
    ) -> None:
        check_choice("carry", carry, "headers", "json", None)
        self._carry, self._json_field = carry, json_field
        self._tracer = trace.get_tracer("gnsq_lite", tracer_provider=tracer_provider)

    def before(self, call: PublishCall) -> None:
        """Start the span, and add the trace context to the message."""
        attributes = _attributes(call.topic, "publish", "send")
        if call.method == "multipublish":
            attributes["messaging.batch.message_count"] = len(call.bodies)
        else:
            attributes["messaging.message.body.size"] = len(call.bodies[0])
        span = self._tracer.start_span(f"publish {call.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        context: dict[str, str] = {}
        propagate.inject(context, trace.set_span_in_context(span))
        try:
            if self._carry == "json":
                call.bodies = [_with_context(body, self._json_field, context) for body in call.bodies]
            elif self._carry == "headers" and call.method != "multipublish":
                call.options["headers"] = {**context, **(call.options.get("headers") or {})}
        except InvalidBody as error:
            _failed(span, error)
            span.end()
            raise
        call.kept[self] = span

    def after(self, call: PublishCall, error: BaseException | None) -> None:
        """End the span."""
        span = call.kept[self]
        if error is not None:
            _failed(span, error)
        span.end()


class Metrics(Middleware):
    """Records ``messaging.process.duration`` and ``messaging.client.consumed.messages`` of handlers.

    Args:
        meter_provider: The default is the global provider.
    """

    def __init__(self, meter_provider: Any = None) -> None:
        meter = metrics.get_meter("gnsq_lite", meter_provider=meter_provider)
        self._duration = meter.create_histogram("messaging.process.duration", "s", "Duration of a handler call.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that handlers received."
        )

    def wrap(self, call: Any, handler: Handler) -> Any:
        """Wrap *call* to measure it."""
        fixed = _measured(handler.topic, "process", "messaging.consumer.group.name", handler.channel)

        def measured(given: Any) -> Any:
            first, count = (given[0], len(given)) if isinstance(given, list) else (given, 1)
            attributes, began = {**fixed, **_server(first)}, time.perf_counter()
            self._consumed.add(count, attributes)
            try:
                returned = call(given)
            except BaseException as error:
                more = {} if isinstance(error, Requeue) else {"error.type": type(error).__qualname__}
                self._duration.record(time.perf_counter() - began, {**attributes, **more})
                raise
            self._duration.record(time.perf_counter() - began, attributes)
            return returned

        return measured


class PublishMetrics(PublishMiddleware):
    """Records ``messaging.client.operation.duration`` and ``messaging.client.sent.messages`` of a Writer.

    Args:
        meter_provider: The default is the global provider.
    """

    def __init__(self, meter_provider: Any = None) -> None:
        meter = metrics.get_meter("gnsq_lite", meter_provider=meter_provider)
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of a publish, up to its outcome."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages of all publishes that did not end with NotSent."
        )

    def before(self, call: PublishCall) -> None:
        """Record the start time."""
        call.kept[self] = time.perf_counter()

    def after(self, call: PublishCall, error: BaseException | None) -> None:
        """Record the duration, and count the messages unless *error* is NotSent."""
        attributes = _measured(call.topic, "publish", "messaging.operation.type", "send")
        if error is not None:
            attributes["error.type"] = type(error).__qualname__
        self._duration.record(time.perf_counter() - call.kept[self], attributes)
        if not isinstance(error, NotSent):
            self._sent.add(len(call.bodies), attributes)


def _measured(topic: str, operation: str, name: str, value: str) -> dict[str, Any]:
    """Return the attributes of metrics: fewer than of spans, because each combination of values makes a time series."""
    found = {"messaging.system": "nsq", "messaging.destination.name": topic, "messaging.operation.name": operation}
    return {**found, name: value}


def _server(message: Any) -> dict[str, Any]:
    host, _, port = message.nsqd_address.rpartition(":")
    return {"server.address": host.strip("[]"), "server.port": int(port) if port.isdigit() else 0}


def _attributes(topic: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "nsq",
        "messaging.destination.name": topic,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _of_message(message: Any) -> dict[str, Any]:
    found = {
        **_server(message),
        "messaging.message.id": message.id.decode("ascii", "replace"),
        "messaging.message.body.size": len(message.body),
        "messaging.nsq.message.attempts": message.attempts,
    }
    if message.partition is not None:
        found["messaging.destination.partition.id"] = str(message.partition)
    return found


def _with_context(body: bytes, field: str, context: dict[str, str]) -> bytes:
    """Add *context* as *field* to a body that is a JSON object.  Raises InvalidBody for other bodies."""
    document = _json_object(body)
    if document is None:
        raise InvalidBody('carry="json" needs a body that is a JSON object')
    return json.dumps({**document, field: context}, separators=(",", ":")).encode()


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _context_of(message: Any, field: str | None) -> dict[str, str]:
    """Return the trace context from the headers of *message*, and from *field* of the body."""
    context = dict(message.headers or {})
    carried = (_json_object(message.body) or {}).get(field) if field is not None else None
    if isinstance(carried, dict):
        context |= carried
    return {str(name): str(value) for name, value in context.items()}


def _span_context(context: dict[str, str]) -> Any:
    return trace.get_current_span(propagate.extract(context)).get_span_context()


def _failed(span: Any, error: BaseException) -> None:
    """Record an error on the span.  ``Requeue`` is not an error."""
    if isinstance(error, Requeue):
        span.set_attribute("messaging.nsq.requeued", True)
        return
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
