"""Errors that the client itself raises; :class:`NSQError` is the root of all."""

from __future__ import annotations

from gnsq_lite.errors.text import brief


class NSQError(Exception):
    """Root of all errors raised by this library.

    If a batch was published in parts, nsqd confirmed ``taken`` of its ``total`` messages; otherwise both are None.
    """

    taken: int | None = None
    total: int | None = None

    def __str__(self) -> str:
        return super().__str__() + self._batch()

    def _batch(self) -> str:
        return "" if self.total is None else f" (nsqd said OK to {self.taken} of the batch's {self.total} messages)"


# -- the caller's input; nothing was sent ---------------------------------------------------------------------------


class OptionError(NSQError, ValueError):
    """An option is out of range or contradicts another.  Raised at construction.

    ``value`` is the option's value; its text, cut, where it is long or holds a URL's user, password or query.
    """

    def __init__(self, name: str, value: object, why: str) -> None:
        value = brief(value)
        super().__init__(name, value, why)
        self.name, self.value, self.why = name, value, why

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}: {self.why}"


class InvalidName(NSQError, ValueError):
    """A topic or channel name that nsqd would refuse (WIRE-6).  Nothing was sent."""

    def __init__(self, kind: str, name: object, why: str) -> None:
        name = brief(name)
        super().__init__(kind, name, why)
        self.kind, self.name, self.why = kind, name, why

    def __str__(self) -> str:
        return f"{self.kind} name {self.name!r} is not valid: {self.why}"


class InvalidBody(NSQError, ValueError):
    """An empty body or batch, which nsqd would refuse (WIRE-8).  Nothing was sent."""


class BodyTypeError(NSQError, TypeError):
    """A body that is not bytes.  Nothing was sent."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    def __str__(self) -> str:
        hint = "; call .encode() on it" if self.kind == "str" else ""
        return f"a message body is bytes, not {self.kind}{hint}"


class MessageTooLarge(NSQError, ValueError):
    """A body is larger than nsqd accepts.  Nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return f"message body is {self.size} bytes; nsqd accepts at most {self.limit} (nsqd's --max-msg-size)"


class AlreadyAnswered(NSQError):
    """A message was answered (finish, requeue) a second time, or touched after its answer.  Nothing was sent."""


class StateError(NSQError):
    """A call that the state of a connection does not allow.  Nothing was sent."""

    def __init__(self, call: str, state: str) -> None:
        super().__init__(call, state)
        self.call, self.state = call, state

    def __str__(self) -> str:
        return f"{self.call}: not while the connection is {self.state}"


class ClosedError(NSQError):
    """The Reader, Writer or Worker was closed by its owner, or was not started.  Nothing was sent."""


class MissingExtra(NSQError, ImportError):
    """A part of the library needs an optional dependency that is not installed."""

    def __init__(self, part: str, extra: str, missing: str) -> None:
        super().__init__(part, extra, missing)
        self.part, self.extra, self.missing = part, extra, missing

    def __str__(self) -> str:
        return f'{self.part} needs {self.missing}: pip install ".[{self.extra}]" in a checkout of gnsq_lite'


# -- the connection -------------------------------------------------------------------------------------------------


class NSQConnectionError(NSQError, OSError):
    """A connection to ``address`` could not be made or was lost."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address, self.why = address, why

    def __str__(self) -> str:
        return f"{self.address}: {self.why}{self._batch()}"


class ConnectError(NSQConnectionError):
    """No TCP connection: refused, unreachable, or the host name does not resolve.  Nothing was sent."""


class ConnectTimeout(ConnectError):
    """No TCP connection in time.  Nothing was sent."""


class HandshakeTimeout(NSQConnectionError):
    """The peer accepted the connection but did not complete the handshake in time (CONN-5)."""


class ConnectionLost(NSQConnectionError):
    """An established connection ended: reset, or end of stream."""


class HeartbeatTimeout(ConnectionLost):
    """No byte from nsqd for two heartbeat intervals (HB-2)."""


class TLSError(NSQConnectionError):
    """TLS could not be set up.  Nothing but IDENTIFY was sent."""


class TLSNotGranted(TLSError):
    """TLS was asked for and nsqd does not offer it (NEG-4).  Nothing but IDENTIFY was sent."""


class CertificateError(TLSError):
    """nsqd's certificate does not verify: its chain, its host name or its dates."""


class ClientCertificateError(TLSError):
    """nsqd refuses this client's certificate, or the lack of one."""


class ProtocolError(NSQError):
    """The peer broke the protocol; the connection is closed."""

    address: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.address}: {text}" if self.address else text


class FrameError(ProtocolError):
    """Received bytes that are not a frame (WIRE-4)."""


class WrongPortError(FrameError):
    """The address is not nsqd's TCP port (4150), but its HTTP port (4151), for example."""


class DecompressionError(ProtocolError):
    """Received bytes that are not a valid snappy or DEFLATE stream, or fail their checksum."""


class IdentifyError(ProtocolError):
    """The reply to IDENTIFY is neither OK nor a JSON object of the expected form."""


class UnexpectedFrame(ProtocolError):
    """A frame that is not allowed in the connection's state."""


class CompressedBodyError(NSQError):
    """A body that Youzan's Go client compressed cannot be unpacked, or is longer than allowed; its message fails."""


# -- publishing -----------------------------------------------------------------------------------------------------


class PublishError(NSQError):
    """A publish did not end with nsqd's OK."""


class NotSent(PublishError):
    """No nsqd could be reached in time.  Nothing was sent: publishing again cannot duplicate the message."""


class BacklogFull(NotSent):
    """``publish_nowait``: too many bytes are waiting for an answer (``max_pending``).  Nothing was sent."""


class OutcomeUnknown(PublishError):
    """The message was sent, but no answer came: publishing again may duplicate it (PUB-2)."""


class PublishTimeout(OutcomeUnknown):
    """The message was sent, but no answer came in time."""


# -- discovery and HTTP ---------------------------------------------------------------------------------------------


class HTTPError(NSQError):
    """An HTTP call to nsqd or nsqlookupd failed.  ``url`` contains no secrets."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, why)
        self.url, self.why = url, why

    def __str__(self) -> str:
        return f"{self.url}: {self.why}"


class HTTPConnectError(HTTPError):
    """No HTTP connection; the request was not sent."""


class HTTPCertificateError(HTTPConnectError):
    """The server's certificate does not verify: its chain, its host name or its dates.  Nothing was sent."""


class HTTPConnectionLost(HTTPError):
    """The connection ended before the whole answer; the server may have carried out the request."""


class HTTPTimeout(HTTPError):
    """No whole answer in time; the server may have carried out the request."""


class HTTPResponseError(HTTPError):
    """The answer is not as documented: not JSON, incomplete, or too large."""


class HTTPStatusError(HTTPError):
    """The server answered with an error status."""

    def __init__(self, url: str, status: int, text: str) -> None:
        NSQError.__init__(self, url, status, text)
        self.url, self.status, self.text = url, status, text
        self.why = f"HTTP {status}: {text}"


# -- Youzan ---------------------------------------------------------------------------------------------------------


class PartitionUnavailable(NotSent):
    """The partition a key maps to cannot be reached; nothing was sent, never to another partition (YZ-5)."""

    def __init__(self, topic: str, partition: int, why: str) -> None:
        super().__init__(topic, partition, why)
        self.topic, self.partition, self.why = topic, partition, why

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.topic}: {self.why}{self._batch()}"


class PartitionStopped(NSQError):
    """An ordered partition is read no further: a message had more than max_attempts (YZ-13).

    It stays unanswered, so nsqd keeps it and all behind it.
    """

    def __init__(self, topic: str, partition: int | None, attempts: int) -> None:
        super().__init__(topic, partition, attempts)
        self.topic, self.partition, self.attempts = topic, partition, attempts

    def __str__(self) -> str:
        which = f"partition {self.partition} of {self.topic}"
        return f"{which} is stopped: a message failed {self.attempts - 1} times and later ones must not pass it"
