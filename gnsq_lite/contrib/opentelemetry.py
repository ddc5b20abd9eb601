"""OpenTelemetry: a span for each publish and each handled message; needs the extra ``opentelemetry``.

::

    from gnsq_lite.contrib.opentelemetry import TracedWriter, Tracing

    worker = Worker(middleware=[Tracing()])
    writer = TracedWriter("127.0.0.1:4150", carry="envelope")

Names and attributes are those of the semantic conventions for messaging.  NSQ's messages have no headers, so the trace
ends at the publish unless it is carried: ``carry="headers"`` puts the context into the headers that Youzan's NSQ has,
``carry="envelope"`` in front of the body.  An envelope is for consumers that have :class:`Tracing`, which takes it off;
to all others it is part of the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from gnsq_lite.errors import MissingExtra
from gnsq_lite.message import Requeue
from gnsq_lite.option_fields import check_choice
from gnsq_lite.wire.commands import check_bodies, check_body
from gnsq_lite.worker import Handler, Middleware
from gnsq_lite.writer import Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gnsq_lite.arguments import PerhapsTraced
    from gnsq_lite.keywords import Addresses

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.opentelemetry", "opentelemetry", "opentelemetry-api") from missing

__all__ = ["TracedWriter", "Tracing", "opened", "sealed"]

#: First bytes of an envelope, impossible in UTF-8 and in msgpack; two bytes of length, JSON and the body follow.
_MAGIC = b"\xc1nsq"
_HEAD = len(_MAGIC) + 2
_MOST = 0xFFFF


def sealed(body: bytes, context: Mapping[str, str]) -> bytes:
    """Return *body* in an envelope with *context*, or alone where the context is empty or too long."""
    head = json.dumps(dict(context), separators=(",", ":")).encode()
    if not context or len(head) > _MOST:
        return body
    return _MAGIC + len(head).to_bytes(2, "big") + head + body


def opened(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return body and context of an envelope; anything else comes back unchanged, without context."""
    if not body.startswith(_MAGIC) or len(body) < _HEAD:
        return body, {}
    end = _HEAD + int.from_bytes(body[len(_MAGIC) : _HEAD], "big")
    try:
        context = json.loads(body[_HEAD:end])
    except ValueError:
        return body, {}
    if len(body) < end or not isinstance(context, dict):
        return body, {}
    return body[end:], {str(name): str(value) for name, value in context.items()}


class Tracing(Middleware):
    """A span "process TOPIC" around each handler; put it first in a Worker's list to include other middleware.

    The span that published the message is its parent; of a batch, each is linked.  *tracer_provider*: None is the
    global one.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
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
            bodies = [message.body for message in batch]
            contexts = [_take_off(message) for message in batch]
            if given is batch:
                links = [Link(one) for one in map(_span_context, contexts) if one.is_valid]
                more: dict[str, Any] = {"context": None, "links": links}
                own: dict[str, Any] = {"messaging.batch.message_count": len(batch)}
            else:
                more, own = {"context": propagate.extract(contexts[0])}, _of_message(given)
            more |= {"record_exception": False, "set_status_on_exception": False}  # done below, but for Requeue
            with tracer.start_as_current_span(
                name, kind=SpanKind.CONSUMER, attributes={**fixed, **own}, **more
            ) as span:
                try:
                    return call(given)
                except BaseException as error:
                    for message, body in zip(batch, bodies, strict=True):
                        message.body = body  # as it came, should it be given up to another topic
                    _failed(span, error)
                    raise

        return traced


class TracedWriter(Writer[Any]):
    """A Writer with a span "publish TOPIC" for each publish, the batch being one.

    Args:
        carry: ``"headers"`` (Youzan's NSQ; a batch has none), ``"envelope"``, or None: the trace ends here.
        tracer_provider: None: the global one.
        options: Those of a Writer.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses | None = None,
        *,
        carry: Literal["headers", "envelope"] | None = None,
        tracer_provider: Any = None,
        **options: Unpack[PerhapsTraced],
    ) -> None:
        check_choice("carry", carry, "headers", "envelope", None)
        super().__init__(nsqd_tcp_addresses, **options)
        self._carry = carry
        self._tracer = trace.get_tracer("gnsq_lite", tracer_provider=tracer_provider)

    if not TYPE_CHECKING:  # they are called as a Writer's, overloads included

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
                if self._carry == "envelope":
                    context = _injected()
                    batch = [sealed(body, context) for body in batch]
                return super().multipublish(topic, batch, **options)

    def _one(self, publish: Any, topic: str, body: bytes, options: dict[str, Any]) -> Any:
        check_body(body)
        with self._span(topic, {"messaging.message.body.size": len(body)}):
            body, options = self._carried(body, options)
            return publish(topic, body, **options)

    def _carried(self, body: bytes, options: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        if self._carry == "envelope":
            return sealed(body, _injected()), options
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


def _take_off(message: Any) -> dict[str, str]:
    """Take the context out of the body of *message* and return it."""
    message.body, context = opened(message.body)
    return {**{str(k): str(v) for k, v in (message.headers or {}).items()}, **context}


def _span_context(context: dict[str, str]) -> Any:
    return trace.get_current_span(propagate.extract(context)).get_span_context()


def _failed(span: Any, error: BaseException) -> None:
    """Record an error on the span; ``Requeue`` is none."""
    if isinstance(error, Requeue):
        span.set_attribute("messaging.nsq.requeued", True)
        return
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
