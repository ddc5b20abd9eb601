"""Defines the errors of the library, which all derive from :class:`NSQError`.

The class of an error shows whether a command was sent, whether a retry may duplicate a message, and whether the
connection is lost.  Each error keeps its arguments in ``args``, so that Spark can pickle errors to move them between
processes.  :func:`error_for` makes the exception for an error frame of nsqd.  A frame with an unknown code becomes an
:class:`NsqdError`.
"""

from __future__ import annotations

from gnsq_lite.text import MAX_TEXT, brief, cut, escape, mark, printable

# -- errors that the client raises ------------------------------------------------------------------------------------


class NSQError(Exception):
    """Base class of all errors of this library.

    After a failed ``multipublish`` of a split batch, ``total`` is the number of messages in the batch, and ``taken`` is
    the number of these messages that nsqd confirmed.  In other errors ``taken`` and ``total`` are None.
    """

    #: Whether no retry can help, only other options or another configuration of nsqd (flow_control.rst lists these).
    is_permanent = False
    taken: int | None = None
    total: int | None = None

    def __str__(self) -> str:
        return super().__str__() + self._batch()

    def _batch(self) -> str:
        return "" if self.total is None else f" (nsqd confirmed {self.taken} of the batch's {self.total} messages)"


# -- the caller's input; nothing was sent ---------------------------------------------------------------------------


class OptionError(NSQError, ValueError):
    """An option or argument is invalid, or contradicts another option.  Nothing was sent.

    ``value`` is the option's value.  A long value is cut, a URL has no password or query, a secret is ``<hidden>``.
    """

    is_permanent = True

    def __init__(self, name: str, value: object, why: str) -> None:
        value = brief(value)
        super().__init__(name, value, why)
        self.name, self.value, self.why = name, value, why

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}: {self.why}"


class InvalidName(NSQError, ValueError):
    """nsqd would refuse the topic or channel name (WIRE-6).  Nothing was sent."""

    def __init__(self, kind: str, name: object, why: str) -> None:
        name = brief(name)
        super().__init__(kind, name, why)
        self.kind, self.name, self.why = kind, name, why

    def __str__(self) -> str:
        return f"{self.kind} name {self.name!r} is not valid: {self.why}"


class InvalidBody(NSQError, ValueError):
    """The body or batch is empty, or the batch is no sequence of bodies (WIRE-8).  Nothing was sent."""


class BodyTypeError(NSQError, TypeError):
    """The body is not bytes.  Nothing was sent."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    def __str__(self) -> str:
        hint = "; call .encode() on it" if self.kind == "str" else ""
        return f"a message body must be bytes, not {self.kind}{hint}"


class MessageTooLarge(NSQError, ValueError):
    """The body is larger than nsqd accepts.  Nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return f"message body is {self.size} bytes; nsqd accepts at most {self.limit} (nsqd's --max-msg-size)"


class AlreadyAnswered(NSQError):
    """The message was already finished or requeued.  Nothing was sent."""


class ClosedError(NSQError):
    """The Reader, Writer or Worker is closed, is not started, or belongs to the parent process.  Nothing was sent."""


class MissingExtra(NSQError, ImportError):
    """A module of the library needs an optional dependency that is not installed."""

    def __init__(self, part: str, extra: str, missing: str) -> None:
        super().__init__(part, extra, missing)
        self.part, self.extra, self.missing = part, extra, missing

    def __str__(self) -> str:
        return f'{self.part} needs {self.missing}: pip install ".[{self.extra}]" in a checkout of gnsq_lite'


class FreeThreadingError(NSQError, ImportError):
    """The GIL is disabled, and this version of Python or greenlet is too old to run the library without the GIL."""


# -- the connection -------------------------------------------------------------------------------------------------


class NSQConnectionError(NSQError, OSError):
    """A connection to ``address`` could not be opened, or was lost."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address, self.why = address, why

    def __str__(self) -> str:
        return f"{self.address}: {self.why}{self._batch()}"


class ConnectError(NSQConnectionError):
    """The connection was refused or timed out, or the host is unreachable or unknown.  Nothing was sent."""


class HandshakeTimeout(NSQConnectionError):
    """The peer accepted the connection but did not complete the handshake in time (CONN-5)."""


class ConnectionLost(NSQConnectionError):
    """An open connection was reset, nsqd closed it, or the client closed it for the reason in ``why``."""


class HeartbeatTimeout(ConnectionLost):
    """nsqd sent no byte for two heartbeat intervals, and the client closed the connection (HB-2)."""


class TLSError(NSQConnectionError):
    """The TLS handshake failed.  Only IDENTIFY was sent."""


class TLSNotGranted(TLSError):
    """The options require TLS, but nsqd does not offer TLS (NEG-4).  Only IDENTIFY was sent."""

    is_permanent = True


class CertificateError(TLSError):
    """nsqd's certificate has an invalid chain, host name or date."""

    is_permanent = True


class ClientCertificateError(TLSError):
    """nsqd refuses this client's certificate, or requires a certificate that the client did not send."""

    is_permanent = True


class WrongDialectError(NSQConnectionError):
    """The server is Youzan's nsqd, but ``dialect`` is ``"nsq"``.  Only IDENTIFY was sent."""

    is_permanent = True


class ProtocolError(NSQError):
    """The peer violated the protocol (WIRE-4), and the client closed the connection.

    For example, the peer sent an unexpected frame, an invalid IDENTIFY reply, or an invalid snappy or DEFLATE stream.
    """

    address: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.address}: {text}" if self.address else text


class CompressedBodyError(NSQError):
    """A compressed body (Youzan's NSQ) is corrupt, or exceeds ``max_decompressed_size`` when decompressed."""


# -- publishing -----------------------------------------------------------------------------------------------------


class PublishError(NSQError):
    """A publish was not accepted (:class:`NotSent`), or its outcome is unknown (:class:`OutcomeUnknown`)."""


class NotSent(PublishError):
    """No nsqd has the message, for example because none was reachable.  A retry cannot duplicate the message."""


class BacklogFull(NotSent):
    """The bodies of unanswered ``publish_nowait`` calls would exceed ``max_pending`` bytes.  Nothing was sent."""


class OutcomeUnknown(PublishError):
    """The message was sent, at least in part, but no reply arrived.  A retry may duplicate the message (PUB-2)."""


class PublishTimeout(OutcomeUnknown):
    """The message was sent, at least in part, but no reply arrived in time.  A retry may duplicate the message."""


# -- discovery and HTTP ---------------------------------------------------------------------------------------------


class HTTPError(NSQError):
    """An HTTP request to nsqd or nsqlookupd failed.  ``url`` contains no secrets."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, why)
        self.url, self.why = url, why

    def __str__(self) -> str:
        return f"{self.url}: {self.why}"


class HTTPConnectError(HTTPError):
    """The HTTP connection could not be opened, or its TLS handshake failed.  The request was not sent."""


class HTTPConnectionLost(HTTPError):
    """The connection ended before the end of the response; the server may have processed the request."""


class HTTPTimeout(HTTPError):
    """The response was not complete in time; the server may have processed the request."""


class HTTPResponseError(HTTPError):
    """The response is not valid HTTP or JSON, lacks a key, has a value of a wrong type, or is too large."""


class HTTPStatusError(HTTPError):
    """The server responded with a status other than 2xx, in the HTTP response or in a JSON wrapper."""

    def __init__(self, url: str, status: int, text: str) -> None:
        NSQError.__init__(self, url, status, text)
        self.url, self.status, self.text = url, status, text
        self.why = f"HTTP {status}: {text}"


# -- Youzan ---------------------------------------------------------------------------------------------------------


class PartitionUnavailable(NotSent):
    """No leader of the partition accepted the publish in time.  No nsqd has the message (YZ-5)."""

    def __init__(self, topic: str, partition: int, why: str) -> None:
        super().__init__(topic, partition, why)
        self.topic, self.partition, self.why = topic, partition, why

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.topic}: {self.why}{self._batch()}"


# -- nsqd's error frames (ERR-1 to ERR-3) ---------------------------------------------------------------------------


#: Maps each error code to its class.  The classes below register themselves; other codes become an NsqdError.
ERROR_CODES: dict[str, type[NsqdError]] = {}

#: Hint for a code, appended to the error's text.
_HINTS = {
    "E_SUB_ORDER_IS_MUST": " (pass ordered=True to the Reader)",
    "E_SUB_EXTEND_NEED": " (pass lookupd_http_addresses, or YouzanDialect(extend_support=True))",
    "E_SUB_EXTEND_FORBIDDON": " (omit extend_support: the client learns from nsqlookupd whether the topic has headers)",
}


class NsqdError(NSQError):
    """nsqd sent an error frame.

    ``code`` is nsqd's error code (such as ``"E_INVALID"``), ``text`` is the rest of the frame, and ``address`` is
    nsqd's address.  ``closes_connection`` is True if nsqd or this client closes the connection after the error (ERR-2).
    """

    closes_connection = True
    #: Whether nsqd refused a publish because it can store none now.  Another nsqd may store it.
    is_nsqds_fault = False

    def __init_subclass__(cls, codes: str = "") -> None:
        ERROR_CODES.update(dict.fromkeys(codes.split(), cls))
        if codes:
            cls.__doc__ = f"{codes.replace(' ', ', ')}: {cls.__doc__}"

    def __init__(self, code: str, text: str = "", address: str | None = None) -> None:
        super().__init__(code, text, address)
        self.code, self.text, self.address = code, text, address

    @property
    def is_exiting(self) -> bool:
        """Whether nsqd refused a publish because it is shutting down."""
        return self.is_nsqds_fault and self.text.endswith("exiting")

    def __str__(self) -> str:
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.code} {self.text}".rstrip() + self._batch() + self._hint()

    def _hint(self) -> str:
        return _HINTS.get(self.code, "")


class InvalidError(NsqdError, codes="E_INVALID"):
    """nsqd does not know the command, does not allow it in this state, or refuses a number in it."""


class TLSRequiredError(InvalidError):
    """E_INVALID: nsqd requires TLS (``--tls-required``)."""

    is_permanent = True

    def _hint(self) -> str:
        return "; set tls= to True or to TLSOptions(ca_file=...)"


class BadProtocolError(NsqdError, codes="E_BAD_PROTOCOL"):
    """nsqd does not support the protocol version that the client sent in its first four bytes."""


class BadBodyError(NsqdError, codes="E_BAD_BODY"):
    """nsqd refuses the body of IDENTIFY, AUTH or MPUB."""


class BadTopicError(NsqdError, codes="E_BAD_TOPIC"):
    """nsqd refuses the topic name."""

    is_permanent = True


class BadChannelError(NsqdError, codes="E_BAD_CHANNEL"):
    """nsqd refuses the channel name."""

    is_permanent = True


class BadMessageError(NsqdError, codes="E_BAD_MESSAGE"):
    """The message is empty or too large."""


class PubFailedError(NsqdError, codes="E_PUB_FAILED E_PUB_TOO_MUCH_WAITING"):
    """nsqd could not store the message: nsqd is exiting, its disk is full, or (Youzan) its queue is full."""

    is_nsqds_fault = True


class MpubFailedError(NsqdError, codes="E_MPUB_FAILED"):
    """nsqd could not store the batch: nsqd is exiting, or its disk is full."""

    is_nsqds_fault = True


class DpubFailedError(NsqdError, codes="E_DPUB_FAILED"):
    """nsqd could not store the deferred message."""

    is_nsqds_fault = True


class SubFailedError(
    NsqdError, codes="E_SUB_FAILED E_SUB_EXTEND_NEED E_SUB_EXTEND_FORBIDDON E_SUB_CHANNEL_NOT_REGISTERED"
):
    """nsqd refuses the subscription, for example because the channel has too many consumers.

    Youzan's nsqd also refuses an unknown channel, and a value of ``extend_support`` that does not fit the topic.
    """


class IdentifyFailedError(NsqdError, codes="E_IDENTIFY_FAILED"):
    """nsqd could not process IDENTIFY."""


class AuthFirstError(NsqdError, codes="E_AUTH_FIRST"):
    """nsqd requires AUTH before this command."""

    is_permanent = True


class AuthFailedError(NsqdError, codes="E_AUTH_FAILED"):
    """nsqd could not query its auth server, or the auth server refused the secret."""


class AuthErrorError(NsqdError, codes="E_AUTH_ERROR"):
    """nsqd failed to process AUTH."""


class AuthDisabledError(NsqdError, codes="E_AUTH_DISABLED"):
    """AUTH was sent to an nsqd without an auth server."""


class UnauthorizedError(NsqdError, codes="E_UNAUTHORIZED"):
    """The secret does not permit the command on this topic and channel."""

    is_permanent = True


class NonFatalError(NsqdError, codes="E_CREATE_TOPIC_FAILED"):
    """nsqd keeps the connection open after this error, for example after a late FIN, REQ or TOUCH (ERR-1)."""

    closes_connection = False


class FinFailedError(NonFatalError, codes="E_FIN_FAILED"):
    """FIN was late: the message had timed out, so nsqd delivers the message again."""


class ReqFailedError(NonFatalError, codes="E_REQ_FAILED"):
    """REQ was late: the message had timed out."""


class TouchFailedError(NonFatalError, codes="E_TOUCH_FAILED"):
    """TOUCH was late: the message had timed out."""


class NotLeaderError(NsqdError, codes="E_FAILED_ON_NOT_LEADER"):
    """Youzan: another nsqd leads the partition; nsqlookupd returns the new leader (YZ-8)."""


class NotWritableError(NsqdError, codes="E_FAILED_ON_NOT_WRITABLE"):
    """Youzan: the partition accepts no writes at present (YZ-8)."""


class TopicNotExistError(NsqdError, codes="E_TOPIC_NOT_EXIST"):
    """Youzan: the topic or partition is not on this nsqd (YZ-8)."""


class SubOrderIsMustError(NsqdError, codes="E_SUB_ORDER_IS_MUST"):
    """Youzan: a Reader without ``ordered=True`` subscribed to an ordered topic (YZ-7)."""

    is_permanent = True


class ExtNotSupportedError(NonFatalError, codes="E_EXT_NOT_SUPPORT E_INVALID_JSON_HEADER INVALID_TRACE_ID"):
    """Youzan: the topic is not an ext topic, or the headers or the trace id are invalid.  nsqd refused the message."""


def error_for(body: bytes, address: str | None = None) -> NsqdError:
    """Return the exception for an error frame with *body*, which may be any bytes (ERR-3).

    The error keeps up to MAX_TEXT bytes of the server's text.  Control characters and invalid UTF-8 are escaped.
    """
    text = escape(body[:MAX_TEXT].decode("utf-8", "backslashreplace")) + mark(len(body), MAX_TEXT)
    code, _, rest = text.partition(" ")
    kind = ERROR_CODES.get(code, NsqdError)
    if kind is InvalidError and "TLS required" in rest:
        kind = TLSRequiredError
    return kind(code, rest.strip(), address)


__all__ = ["ERROR_CODES", "cut", "error_for", "printable"]
__all__.extend(
    name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, NSQError)
)
