"""Every exception of the library; :class:`NSQError` is the root.

The class says what is safe to do: whether anything was sent, whether a retry may duplicate a message, whether the
connection is lost.  Each error keeps its arguments in ``args`` and so survives pickling (Spark moves errors between
processes).  :func:`error_for` maps an error frame of nsqd to its class and is total: an unknown code still gives an
:class:`NsqdError`.
"""

from __future__ import annotations

import re

# -- text of peers and users: cut, escaped, and without credentials --------------------------------------------------

#: Bytes of a server's text, or characters of any text, that errors, log lines and statistics keep (ERR-2).
MAX_TEXT = 4096
#: A value with a longer text is cut, to these many characters: with the mark it is shorter, and not cut again.
_MAX_VALUE, _CUT_VALUE = 200, 150


def printable(text: str) -> str:
    """Return the first MAX_TEXT characters of *text*, marked if cut, with control characters escaped.

    Text from the network can then neither fill a log nor forge lines in it.
    """
    return escape(text[:MAX_TEXT]) + mark(len(text), MAX_TEXT)


def cut(text: str, most: int = MAX_TEXT) -> str:
    """Return the first *most* characters of *text*, marked if cut."""
    return text[:most] + mark(len(text), most)


def mark(size: int, most: int) -> str:
    """Return what follows *most* of *size* bytes or characters: nothing where that is all."""
    return f" [cut: {most} of {size}]" if size > most else ""


def escape(text: str) -> str:
    """Return *text* with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def brief(value: object) -> object:
    """Return *value*, or text to show in its place where it is long or holds a URL's user, password or query."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # an int that is too long, for example
        return f"<{type(value).__name__}>"
    # Only then, so that "?" in a regular expression is shown.
    safe = re.sub(r"[?#]\S*", "?...", re.sub(r"://\S*@", "://", text)) if "://" in text else text
    safe = cut(safe, _CUT_VALUE) if len(safe) > _MAX_VALUE else safe
    return value if safe == text else safe


# -- errors that the client raises ------------------------------------------------------------------------------------


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
    """No TCP connection: refused, unreachable, not in time, or the host does not resolve.  Nothing was sent."""


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


class WrongDialectError(NSQConnectionError):
    """nsqd's reply to IDENTIFY names Youzan's NSQ, and ``dialect`` is ``"nsq"``.  Nothing but IDENTIFY was sent."""


class ProtocolError(NSQError):
    """The peer broke the protocol; the connection is closed.

    It sent what is no frame, no reply to IDENTIFY, no snappy or DEFLATE stream, or nothing that was due (WIRE-4).
    """

    address: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.address}: {text}" if self.address else text


class WrongPortError(ProtocolError):
    """The address is not nsqd's TCP port (4150), but its HTTP port (4151), for example."""


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
    """The partition of a publish had no leader that took it in time.  No nsqd has the message (YZ-5)."""

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


# -- nsqd's error frames (ERR-1 to ERR-3) ---------------------------------------------------------------------------


#: The class of each code; each class below registers its own.  A code that is not here gives an NsqdError.
ERROR_CODES: dict[str, type[NsqdError]] = {}

#: What to do about a code; the end of the error's text.
_HINTS = {
    "E_SUB_ORDER_IS_MUST": " (pass ordered=True to the Reader)",
    "E_SUB_EXTEND_NEED": " (give lookupd_http_addresses, or extend_support=True to YouzanDialect)",
    "E_SUB_EXTEND_FORBIDDON": " (leave extend_support out: nsqlookupd says whether the topic has headers)",
}


class NsqdError(NSQError):
    """nsqd answered with an error frame.

    ``code`` is nsqd's word (``"E_INVALID"``), ``text`` the rest of the frame, ``address`` the nsqd.
    ``closes_connection`` tells whether nsqd (or this client, ERR-2) closes the connection after it.
    """

    closes_connection = True

    def __init_subclass__(cls, codes: str = "") -> None:
        ERROR_CODES.update(dict.fromkeys(codes.split(), cls))
        if codes:
            cls.__doc__ = f"{codes.replace(' ', ', ')}: {cls.__doc__}"

    def __init__(self, code: str, text: str = "", address: str | None = None) -> None:
        super().__init__(code, text, address)
        self.code, self.text, self.address = code, text, address

    def __str__(self) -> str:
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.code} {self.text}".rstrip() + self._batch() + self._hint()

    def _hint(self) -> str:
        return _HINTS.get(self.code, "")


class InvalidError(NsqdError, codes="E_INVALID"):
    """A command that nsqd does not know, or not in this state."""


class TLSRequiredError(InvalidError):
    """E_INVALID: this nsqd requires TLS (``--tls-required``)."""

    def _hint(self) -> str:
        return "; set tls= to True or to TLSOptions(ca_file=...)"


class BadProtocolError(NsqdError, codes="E_BAD_PROTOCOL"):
    """The magic bytes were not understood."""


class BadBodyError(NsqdError, codes="E_BAD_BODY"):
    """IDENTIFY, AUTH or MPUB with a body that nsqd refuses."""


class BadTopicError(NsqdError, codes="E_BAD_TOPIC"):
    """nsqd refuses the topic name."""


class BadChannelError(NsqdError, codes="E_BAD_CHANNEL"):
    """nsqd refuses the channel name."""


class BadMessageError(NsqdError, codes="E_BAD_MESSAGE"):
    """An empty or oversized message."""


class PubFailedError(NsqdError, codes="E_PUB_FAILED E_PUB_TOO_MUCH_WAITING"):
    """nsqd could not take the message: it is exiting, its disk is full, or too many publishes wait (Youzan)."""


class MpubFailedError(NsqdError, codes="E_MPUB_FAILED"):
    """nsqd could not take the batch (it is exiting, or its disk is full)."""


class DpubFailedError(NsqdError, codes="E_DPUB_FAILED"):
    """nsqd could not take the deferred message."""


class SubFailedError(
    NsqdError, codes="E_SUB_FAILED E_SUB_EXTEND_NEED E_SUB_EXTEND_FORBIDDON E_SUB_CHANNEL_NOT_REGISTERED"
):
    """nsqd refuses the subscription; the channel has too many consumers, for example.

    Youzan: the topic has headers and extend_support was not sent, or the reverse; or SUB does not create the channel.
    """


class IdentifyFailedError(NsqdError, codes="E_IDENTIFY_FAILED"):
    """nsqd could not answer IDENTIFY."""


class AuthFirstError(NsqdError, codes="E_AUTH_FIRST"):
    """nsqd requires AUTH before this command."""


class AuthFailedError(NsqdError, codes="E_AUTH_FAILED"):
    """nsqd could not ask its auth server, or this connection was authorised already."""


class AuthErrorError(NsqdError, codes="E_AUTH_ERROR"):
    """nsqd failed while it handled AUTH."""


class AuthDisabledError(NsqdError, codes="E_AUTH_DISABLED"):
    """AUTH was sent to an nsqd that has no auth server."""


class UnauthorizedError(NsqdError, codes="E_UNAUTHORIZED"):
    """The secret gives no permission for this."""


class NonFatalError(NsqdError, codes="E_CREATE_TOPIC_FAILED"):
    """An error frame that leaves the connection open (ERR-1): a late FIN, REQ or TOUCH, for example."""

    closes_connection = False


class FinFailedError(NonFatalError, codes="E_FIN_FAILED"):
    """The message was no longer in flight here; nsqd sends, or has sent, it again."""


class ReqFailedError(NonFatalError, codes="E_REQ_FAILED"):
    """The message was no longer in flight here."""


class TouchFailedError(NonFatalError, codes="E_TOUCH_FAILED"):
    """The message was no longer in flight here."""


class NotLeaderError(NsqdError, codes="E_FAILED_ON_NOT_LEADER"):
    """Youzan: the partition's leader is elsewhere; look it up again (YZ-8)."""


class NotWritableError(NsqdError, codes="E_FAILED_ON_NOT_WRITABLE"):
    """Youzan: the partition takes no writes now (YZ-8)."""


class TopicNotExistError(NsqdError, codes="E_TOPIC_NOT_EXIST"):
    """Youzan: the topic or partition is not on this nsqd (YZ-8)."""


class SubOrderIsMustError(NsqdError, codes="E_SUB_ORDER_IS_MUST"):
    """Youzan: an ordered topic was subscribed without ``ordered=True`` (YZ-7)."""


class ExtNotSupportedError(NonFatalError, codes="E_EXT_NOT_SUPPORT E_INVALID_JSON_HEADER INVALID_TRACE_ID"):
    """Youzan: headers on a topic that has none, or bad headers or trace ids; the message was not taken."""


def error_for(body: bytes, address: str | None = None) -> NsqdError:
    """Return the exception for an error frame's body.  Total: any bytes give one (ERR-3).

    The text is the server's, up to MAX_TEXT bytes.  Bytes that are not UTF-8 and control characters are escaped, so
    that the text can be logged.
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
