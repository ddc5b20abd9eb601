"""nsqd's error frames as exceptions: one class for each code (ERR-1 to ERR-3)."""

from __future__ import annotations

from gnsq_lite.errors.client import NSQError
from gnsq_lite.errors.text import MAX_TEXT, escape, mark


class NsqdError(NSQError):
    """nsqd answered with an error frame.

    ``code`` is nsqd's word (``"E_INVALID"``), ``text`` the rest of the frame, ``address`` the nsqd.
    ``closes_connection`` tells whether nsqd (or this client, ERR-2) closes the connection after it.
    """

    closes_connection = True

    def __init__(self, code: str, text: str = "", address: str | None = None) -> None:
        super().__init__(code, text, address)
        self.code, self.text, self.address = code, text, address

    def __str__(self) -> str:
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.code} {self.text}".rstrip() + self._batch()


class InvalidError(NsqdError):
    """E_INVALID: a command that nsqd does not know, or not in this state."""


class TLSRequiredError(InvalidError):
    """E_INVALID: this nsqd requires TLS (``--tls-required``)."""

    def __str__(self) -> str:
        return super().__str__() + "; set tls= to True or to TLSOptions(ca_file=...)"


class BadProtocolError(NsqdError):
    """E_BAD_PROTOCOL: the magic bytes were not understood."""


class BadBodyError(NsqdError):
    """E_BAD_BODY: IDENTIFY, AUTH or MPUB with a body that nsqd refuses."""


class BadTopicError(NsqdError):
    """E_BAD_TOPIC: nsqd refuses the topic name."""


class BadChannelError(NsqdError):
    """E_BAD_CHANNEL: nsqd refuses the channel name."""


class BadMessageError(NsqdError):
    """E_BAD_MESSAGE: an empty or oversized message."""


class PubFailedError(NsqdError):
    """E_PUB_FAILED: nsqd could not take the message (it is exiting, or its disk is full)."""


class MpubFailedError(NsqdError):
    """E_MPUB_FAILED: nsqd could not take the batch (it is exiting, or its disk is full)."""


class DpubFailedError(NsqdError):
    """E_DPUB_FAILED: nsqd could not take the deferred message."""


class SubFailedError(NsqdError):
    """E_SUB_FAILED: nsqd refuses the subscription; the channel has too many consumers, for example."""


class IdentifyFailedError(NsqdError):
    """E_IDENTIFY_FAILED: nsqd could not answer IDENTIFY."""


class AuthFirstError(NsqdError):
    """E_AUTH_FIRST: nsqd requires AUTH before this command."""


class AuthFailedError(NsqdError):
    """E_AUTH_FAILED: nsqd could not ask its auth server, or this connection was authorised already."""


class AuthErrorError(NsqdError):
    """E_AUTH_ERROR: nsqd failed while it handled AUTH."""


class AuthDisabledError(NsqdError):
    """E_AUTH_DISABLED: AUTH was sent to an nsqd that has no auth server."""


class UnauthorizedError(NsqdError):
    """E_UNAUTHORIZED: the secret gives no permission for this."""


class NonFatalError(NsqdError):
    """An error frame that leaves the connection open (ERR-1): a late FIN, REQ or TOUCH."""

    closes_connection = False


class FinFailedError(NonFatalError):
    """E_FIN_FAILED: the message was no longer in flight here; nsqd sends, or has sent, it again."""


class ReqFailedError(NonFatalError):
    """E_REQ_FAILED: the message was no longer in flight here."""


class TouchFailedError(NonFatalError):
    """E_TOUCH_FAILED: the message was no longer in flight here."""


class NotLeaderError(NsqdError):
    """E_FAILED_ON_NOT_LEADER (Youzan): the partition's leader is elsewhere; look it up again (YZ-8)."""


class NotWritableError(NsqdError):
    """E_FAILED_ON_NOT_WRITABLE (Youzan): the partition takes no writes now (YZ-8)."""


class TopicNotExistError(NsqdError):
    """E_TOPIC_NOT_EXIST (Youzan): the topic or partition is not on this nsqd (YZ-8)."""


class SubOrderIsMustError(NsqdError):
    """E_SUB_ORDER_IS_MUST (Youzan): an ordered topic was subscribed without ``ordered=True`` (YZ-7)."""

    def __str__(self) -> str:
        return super().__str__() + " (pass ordered=True to the Reader)"


class SubExtendNeedError(NsqdError):
    """E_SUB_EXTEND_NEED (Youzan): an ext topic was subscribed without extend_support."""

    def __str__(self) -> str:
        return (
            super().__str__()
            + " (give lookupd_http_addresses, which settles it, or extend_support=True to YouzanDialect)"
        )


class SubExtendForbiddenError(NsqdError):
    """E_SUB_EXTEND_FORBIDDON (Youzan, spelt so): a plain topic was subscribed with extend_support."""

    def __str__(self) -> str:
        return super().__str__() + " (leave extend_support out: nsqlookupd says whether the topic has headers)"


class SubChannelNotRegisteredError(NsqdError):
    """E_SUB_CHANNEL_NOT_REGISTERED (Youzan): the channel does not exist and is not created by SUB."""


class BadPartitionError(NsqdError):
    """E_BAD_PARTITION (Youzan): the partition number is not valid."""


class BadExtError(NsqdError):
    """E_BAD_EXT (Youzan): the ext header is not valid; the message was not taken."""


class ExtNotSupportedError(NonFatalError):
    """E_EXT_NOT_SUPPORT (Youzan): ext headers on a topic that has none; the message was not taken."""


class InvalidJsonHeaderError(NonFatalError):
    """E_INVALID_JSON_HEADER (Youzan): the ext header is not a JSON object; the message was not taken."""


class InvalidTraceIdError(NonFatalError):
    """INVALID_TRACE_ID (Youzan): the message was not taken."""


class PubTooMuchWaitingError(NsqdError):
    """E_PUB_TOO_MUCH_WAITING (Youzan): nsqd's queue of publishes is full; the message was not taken."""


class CreateTopicFailedError(NonFatalError):
    """E_CREATE_TOPIC_FAILED (Youzan): the topic could not be created."""


ERROR_CODES: dict[str, type[NsqdError]] = {
    "E_INVALID": InvalidError,
    "E_BAD_PROTOCOL": BadProtocolError,
    "E_BAD_BODY": BadBodyError,
    "E_BAD_TOPIC": BadTopicError,
    "E_BAD_CHANNEL": BadChannelError,
    "E_BAD_MESSAGE": BadMessageError,
    "E_PUB_FAILED": PubFailedError,
    "E_MPUB_FAILED": MpubFailedError,
    "E_DPUB_FAILED": DpubFailedError,
    "E_SUB_FAILED": SubFailedError,
    "E_IDENTIFY_FAILED": IdentifyFailedError,
    "E_AUTH_FIRST": AuthFirstError,
    "E_AUTH_FAILED": AuthFailedError,
    "E_AUTH_ERROR": AuthErrorError,
    "E_AUTH_DISABLED": AuthDisabledError,
    "E_UNAUTHORIZED": UnauthorizedError,
    "E_FIN_FAILED": FinFailedError,
    "E_REQ_FAILED": ReqFailedError,
    "E_TOUCH_FAILED": TouchFailedError,
    "E_FAILED_ON_NOT_LEADER": NotLeaderError,
    "E_FAILED_ON_NOT_WRITABLE": NotWritableError,
    "E_TOPIC_NOT_EXIST": TopicNotExistError,
    "E_SUB_ORDER_IS_MUST": SubOrderIsMustError,
    "E_SUB_EXTEND_NEED": SubExtendNeedError,
    "E_SUB_EXTEND_FORBIDDON": SubExtendForbiddenError,
    "E_SUB_CHANNEL_NOT_REGISTERED": SubChannelNotRegisteredError,
    "E_BAD_PARTITION": BadPartitionError,
    "E_BAD_EXT": BadExtError,
    "E_EXT_NOT_SUPPORT": ExtNotSupportedError,
    "E_INVALID_JSON_HEADER": InvalidJsonHeaderError,
    "INVALID_TRACE_ID": InvalidTraceIdError,
    "E_PUB_TOO_MUCH_WAITING": PubTooMuchWaitingError,
    "E_CREATE_TOPIC_FAILED": CreateTopicFailedError,
}


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
