"""Turns what urllib3 raises into errors of ours; nothing else does."""

from __future__ import annotations

from http.client import HTTPException, IncompleteRead

import urllib3
from urllib3.exceptions import HTTPError as TransportError

from gnsq_lite.errors import (
    HTTPCertificateError,
    HTTPConnectError,
    HTTPConnectionLost,
    HTTPError,
    HTTPResponseError,
    HTTPTimeout,
)
from gnsq_lite.http.reply import shown

#: What urllib3 raised, or the innermost cause of it, and what that means for the caller.  The first fit counts.
_TABLE: tuple[tuple[type[BaseException], type[HTTPError], str], ...] = (
    (urllib3.exceptions.NameResolutionError, HTTPConnectError, "the host name does not resolve"),
    (urllib3.exceptions.NewConnectionError, HTTPConnectError, "no connection"),  # a kind of ConnectTimeoutError
    (urllib3.exceptions.ConnectTimeoutError, HTTPConnectError, "no connection in time"),
    (urllib3.exceptions.ProxyError, HTTPConnectError, "the proxy gives no connection"),
    (urllib3.exceptions.LocationParseError, HTTPConnectError, "the address cannot be used"),
    (urllib3.exceptions.ReadTimeoutError, HTTPTimeout, "no whole answer in time"),
    (TimeoutError, HTTPTimeout, "no whole answer in time"),
    (urllib3.exceptions.SSLError, HTTPConnectError, "TLS failed"),
    (IncompleteRead, HTTPConnectionLost, "the answer ended early"),
    (ConnectionError, HTTPConnectionLost, "the connection ended before the answer"),  # RemoteDisconnected is one
    (HTTPException, HTTPResponseError, "the answer is not HTTP"),
    (OSError, HTTPConnectionLost, "the connection ended before the answer"),
    (TransportError, HTTPResponseError, "the answer is not understood"),
)


def translated(url: str, error: BaseException) -> HTTPError:
    """Return the error of ours for what a call to *url* raised.  Total."""
    cause = _innermost(error)
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        return HTTPCertificateError(url, f"the certificate does not verify: {_reason(cause)}{_remedy(cause)}")
    for theirs, ours, why in _TABLE:
        if isinstance(error, theirs) or isinstance(cause, theirs):
            return ours(url, f"{why}: {_reason(cause)}")
    return HTTPError(url, _reason(cause))


def _innermost(error: BaseException) -> BaseException:
    """Return what started *error*.  ``__context__`` is not followed: it may be something the caller was handling."""
    for _ in range(10):
        arguments = [argument for argument in error.args if isinstance(argument, BaseException)]
        inner = getattr(error, "original_error", None) or error.__cause__ or (arguments[0] if arguments else None)
        if inner is None:
            break
        error = inner
    return error


def _remedy(cause: BaseException) -> str:
    said = str(cause)
    if "ostname mismatch" in said or "IP address mismatch" in said:
        return "; set TLSOptions(server_hostname=...) to the name it is for"
    if "expired" in said or "not yet valid" in said:
        return ""
    return "; name its CA in TLSOptions(ca_file=...)"


def _reason(cause: BaseException) -> str:
    """Return *cause* in words; urllib3's own texts are left out, for they hold URLs and reprs of objects."""
    text = getattr(cause, "verify_message", None) or getattr(cause, "strerror", None)
    if not text:
        text = type(cause).__name__ if isinstance(cause, TransportError) else str(cause) or type(cause).__name__
    return shown(text)
