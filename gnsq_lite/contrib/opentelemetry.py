"""OpenTelemetry: a span for each publish and each handled message; needs the extra ``opentelemetry``.

::

    from gnsq_lite.contrib.opentelemetry import TracedWriter, Tracing

    worker = Worker(middleware=[Tracing()])
    writer = TracedWriter("127.0.0.1:4150")

Names and attributes are those of the semantic conventions for messaging.  A handler's span is the child of
the publisher's only if the message carries the W3C trace context: in the headers of Youzan's NSQ
(``carry="headers"``), or in a field of a JSON body (``carry="json"``).  Messages of plain NSQ have no headers, so by
default the handler's span begins a new trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from gnsq_lite.errors import InvalidBody, MissingExtra
from gnsq_lite.message import Requeue
from gnsq_lite.option_fields import check_choice
from gnsq_lite.wire.commands import check_bodies, check_body
from gnsq_lite.worker import Handler, Middleware
from gnsq_lite.writer import Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gnsq_lite.arguments import WriterArguments
    from gnsq_lite.keywords import Addresses

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.opentelemetry", "opentelemetry", "opentelemetry-api") from missing

__all__ = ["TracedWriter", "Tracing"]

#: Field of a JSON body that carries the trace context, unless the user names another.
FIELD = "trace_context"


class Tracing(Middleware):
    """A span "process TOPIC" around each handler; put it first in a Worker's list to include other middleware.

    The span that published the message is its parent; the span of a batch is linked to the span of each publish.

    Args:
        tracer_provider: None: the global one.
        json_field: Field of a JSON body to read the context from; None: only the message's headers are read.
    """

    def __init__(self, tracer_provider: Any = None, *, json_field: str | None = None) -> None:
        self._json_field = json_field
        self._tracer = trace.get_tracer("gnsq_lite", tracer_provider=tracer_provider)

    def wrap(self, call: Any, handler: Handler) -> Any:
        """Return *call* within a span."""
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
            }  # _failed() does both, except for Requeue
            with tracer.start_as_current_span(
                name, kind=SpanKind.CONSUMER, attributes={**fixed, **own}, **more
            ) as span:
                try:
                    return call(given)
                except BaseException as error:
                    _failed(span, error)
                    raise

        return traced


class TracedWriter(Writer):
    """A Writer with a span "publish TOPIC" for each publish, the batch being one.

    Args:
        carry: ``"headers"``: in the headers of Youzan's NSQ; a batch has no headers.  ``"json"``: in a field of the
            body, which must be a JSON object; other consumers see that field.  None: messages carry no context.
        json_field: Name of that field.
        tracer_provider: None: the global one.
        options: Those of a Writer.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses | None = None,
        *,
        carry: Literal["headers", "json"] | None = None,
        json_field: str = FIELD,
        tracer_provider: Any = None,
        **options: Unpack[WriterArguments],
    ) -> None:
        check_choice("carry", carry, "headers", "json", None)
        super().__init__(nsqd_tcp_addresses, **options)
        self._carry, self._json_field = carry, json_field
        self._tracer = trace.get_tracer("gnsq_lite", tracer_provider=tracer_provider)

    if not TYPE_CHECKING:  # they are called as a Writer's

        def publish(self, topic: str, body: bytes, **options: Any) -> Any:
            """As :meth:`gnsq_lite.Writer.publish`."""
            return self._one(super().publish, topic, body, options)

        def publish_nowait(self, topic: str, body: bytes, **options: Any) -> Any:
            """As :meth:`gnsq_lite.Writer.publish_nowait`; the span ends when it is queued."""
            return self._one(super().publish_nowait, topic, body, options)

        def multipublish(self, topic: str, bodies: Iterable[bytes], **options: Any) -> Any:
            """As :meth:`gnsq_lite.Writer.multipublish`."""
            batch = list(check_bodies(bodies))
            with self._span(topic, {"messaging.batch.message_count": len(batch)}):
                if self._carry == "json":
                    batch = [_with_context(body, self._json_field) for body in batch]
                return super().multipublish(topic, batch, **options)

    def _one(self, publish: Any, topic: str, body: bytes, options: dict[str, Any]) -> Any:
        check_body(body)
        with self._span(topic, {"messaging.message.body.size": len(body)}):
            body, options = self._carried(body, options)
            return publish(topic, body, **options)

    def _carried(self, body: bytes, options: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        if self._carry == "json":
            return _with_context(body, self._json_field), options
        if self._carry == "headers":
            return body, {**options, "headers": {**_injected(), **(options.get("headers") or {})}}
        return body, options

    @contextmanager
    def _span(self, topic: str, own: dict[str, Any]) -> Iterator[None]:
        attributes = {**_attributes(topic, "publish", "send"), **own}
        options: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}
        with self._tracer.start_as_current_span(
            f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes, **options
        ) as span:
            try:
                yield
            except BaseException as error:
                _failed(span, error)
                raise


def _attributes(topic: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "nsq",
        "messaging.destination.name": topic,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _of_message(message: Any) -> dict[str, Any]:
    host, _, port = message.nsqd_address.rpartition(":")
    found = {
        "messaging.message.id": message.id.decode("ascii", "replace"),
        "messaging.message.body.size": len(message.body),
        "messaging.nsq.message.attempts": message.attempts,
        "server.address": host.strip("[]"),
        "server.port": int(port) if port.isdigit() else 0,
    }
    if message.partition is not None:
        found["messaging.destination.partition.id"] = str(message.partition)
    return found


def _injected() -> dict[str, str]:
    context: dict[str, str] = {}
    propagate.inject(context)
    return context


def _with_context(body: bytes, field: str) -> bytes:
    """Return a JSON object with the current context in *field*.  Raises InvalidBody for any other body."""
    document = _json_object(body)
    if document is None:
        raise InvalidBody('carry="json" needs a body that is a JSON object')
    return json.dumps({**document, field: _injected()}, separators=(",", ":")).encode()


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _context_of(message: Any, field: str | None) -> dict[str, str]:
    """Return the context that *message* carries in its headers or in *field* of its body."""
    context = dict(message.headers or {})
    carried = (_json_object(message.body) or {}).get(field) if field is not None else None
    if isinstance(carried, dict):
        context |= carried
    return {str(name): str(value) for name, value in context.items()}


def _span_context(context: dict[str, str]) -> Any:
    return trace.get_current_span(propagate.extract(context)).get_span_context()


def _failed(span: Any, error: BaseException) -> None:
    """Record an error on the span; ``Requeue`` is not an error."""
    if isinstance(error, Requeue):
        span.set_attribute("messaging.nsq.requeued", True)
        return
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
