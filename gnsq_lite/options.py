"""Declares each option once, with name, type, default, range and documentation.

Durations are seconds, as floats.  A value out of range or a contradiction raises :class:`~gnsq_lite.errors.OptionError`
at construction, before a connection is opened (CFG-1).  The documentation and the command line's flags are generated
from these fields.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import (
    check_at_most,
    check_choice,
    check_number,
    check_ranges,
    count,
    documented,
    duration,
    per_second,
    share,
    size,
)
from gnsq_lite.version import __version__

Compression = Literal["snappy", "deflate"]
HandlerPool = Literal["auto", "greenlet", "thread", "inline"]
DialectName = Literal["nsq", "youzan"]
Address = tuple[str, int]

#: Default of max_frame_size.  nsqd's default --max-msg-size is 1 MiB; an nsqd may have a higher limit.
DEFAULT_MAX_FRAME_SIZE = 64 * 1024 * 1024

#: The shortest and the longest time limit, in seconds.
TIMEOUT = (0.001, 86400.0)
#: The shortest and the longest delay of a deferred message, in seconds; nsqd's --max-req-timeout is 1 h by default.
DEFER = (0.0, 1e6)


@dataclass(frozen=True, kw_only=True)
class BackoffOptions:
    """Backoff of a Reader after handlers fail (BACK-1 to BACK-5).  Durations are seconds."""

    unit: float = duration(1.0, 0.001, 3600.0, "the pause at level n is unit * 2**(n-1)")
    longest: float = duration(120.0, 0.0, 86400.0, "longest pause; 0 turns backoff off")
    failure_ratio: float | None = share(
        None,
        "backoff starts when at least this share of the last 20 messages failed, and at least 10 messages were handled;"
        " 0: backoff starts at each failure; None: 0 in a Reader, 0.5 in a Worker",
    )
    strategy: Literal["exponential", "full-jitter"] = documented(
        "exponential", "'exponential', or 'full-jitter': a random part of the exponential pause"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        check_choice("strategy", self.strategy, "exponential", "full-jitter")
        if 0 < self.longest < self.unit:
            raise OptionError("longest", self.longest, f"must be 0 (off) or at least unit ({self.unit})")

    @property
    def enabled(self) -> bool:
        """Whether failures start backoff (BACK-5)."""
        return self.longest > 0


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """Retries of a failed message: their number and their delays (MSG-1, MSG-4, CFG-4)."""

    max_attempts: int = count(5, 0, 65535, "attempts", "a message with more attempts is given up; 0: no limit")
    requeue_delay: float = duration(90.0, 0.0, 86400.0, "delay of the requeue after a message's first failure")
    requeue_growth: float = count(1.0, 0.0, 100.0, "factor", "each next delay is requeue_growth * requeue_delay longer")
    max_requeue_delay: float = duration(900.0, 0.0, 86400.0, "longest requeue delay")
    requeue_jitter: float = share(0.0, "each delay is shortened by a random share of at most this value")

    def __post_init__(self) -> None:
        check_ranges(self)
        check_at_most(self, "requeue_delay", "max_requeue_delay")


@dataclass(frozen=True, kw_only=True)
class HandlerOptions:
    """Limits of a Reader's handler."""

    time_limit: float | None = duration(None, 0.1, 86400.0, "how long a handler may run until its message fails")
    touch: bool = documented(
        False,
        "send TOUCH at half of msg_timeout while a handler runs, until 5 s after time_limit, which is required;"
        " max_in_flight is then at most the number of places",
    )
    rate_limit: str | None = documented(
        None, "maximum average rate of received messages", unit="messages", span="such as '5/s', '5/m', '5/h'"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.touch and self.time_limit is None:
            raise OptionError("touch", True, "needs time_limit, or a handler that hangs would keep its message forever")
        per_second("rate_limit", self.rate_limit)

    @property
    def per_second(self) -> float | None:
        """The rate limit, in messages per second."""
        return per_second("rate_limit", self.rate_limit)


@dataclass(frozen=True, kw_only=True)
class ReconnectOptions:
    """Delays between attempts to connect to an nsqd given by address.  Each failure doubles the delay (CONN-3)."""

    reconnect_delay: float = duration(8.0, 0.01, 3600.0, "first delay; each failed attempt doubles the delay")
    max_reconnect_delay: float = duration(120.0, 0.01, 86400.0, "longest delay between two attempts")
    reconnect_jitter: float = share(0.3, "each delay is longer or shorter by a random share of at most this value")

    def __post_init__(self) -> None:
        check_ranges(self)
        check_at_most(self, "reconnect_delay", "max_reconnect_delay")


@dataclass(frozen=True, kw_only=True)
class WriterReconnectOptions(ReconnectOptions):
    """Delays between a Writer's attempts to connect to an nsqd.  The defaults are shorter than a Reader's (PUB-4)."""

    reconnect_delay: float = duration(0.1, 0.01, 3600.0, "first delay; each failed attempt doubles the delay")
    max_reconnect_delay: float = duration(5.0, 0.01, 86400.0, "longest delay between two attempts")


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """Polls of nsqlookupds (DISC-1 to DISC-6, CFG-3)."""

    lookupd_poll_interval: float = duration(60.0, 0.05, 86400.0, "time between two polls of the nsqlookupds")
    lookupd_poll_jitter: float = share(0.3, "each interval is lengthened by a random share of at most this value")
    lookupd_timeout: float = duration(5.0, 0.05, 600.0, "time limit of one request to an nsqlookupd")
    lookupd_max_body: int = size(16 * 1024 * 1024, 1024, 1024**3, "largest accepted reply")
    lookupd_tls: bool | TLSOptions | ssl.SSLContext | None = documented(
        None, "TLSOptions or an SSLContext for https addresses; None or True: verify with the system's CAs"
    )
    lookupd_token: str | None = field(
        default=None, repr=False, metadata={"doc": "sent as 'Authorization: Bearer ...'; never logged"}
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_https(("lookupd_tls", self.lookupd_tls), ("lookupd_token", self.lookupd_token))


@dataclass(frozen=True, kw_only=True)
class TLSOptions:
    """TLS 1.2 or newer (SEC-1).  By default one of the system's CAs must have certified the server's host name."""

    ca_file: str | None = documented(None, "PEM file of the CAs to trust instead of the system's")
    cert_file: str | None = documented(None, "PEM file of the client certificate (chain)")
    key_file: str | None = documented(None, "PEM file of the client certificate's key; None: the key is in cert_file")
    server_hostname: str | None = documented(None, "host name to verify and to send as SNI; None: the address's host")
    verify: bool = documented(True, "False accepts any certificate; for tests only")

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise OptionError("key_file", self.key_file, "needs cert_file")
        for name in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, name)
            if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
                raise OptionError(name, path, "must be the name of a file, or None")
        if not isinstance(self.verify, bool):  # None must not turn verification off
            raise OptionError("verify", self.verify, "must be True or False")
        if self.server_hostname is not None and not is_host_name(self.server_hostname):
            raise OptionError("server_hostname", self.server_hostname, "must be a host name or an IP address")

    def context(self) -> ssl.SSLContext:
        """Return a client-side SSLContext with these options.

        The context does not contain ``server_hostname``: pass the name to ``wrap_socket()``.  Raises OptionError if a
        file cannot be read or contains no certificate.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # includes ssl.SSLError
            raise OptionError("ca_file", self.ca_file, f"cannot be loaded: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                # Without a password callback OpenSSL would prompt on the terminal for an encrypted key's password.
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
            except (OSError, ValueError) as error:
                why = f"cannot be loaded with key_file={self.key_file!r}: {error}"
                raise OptionError("cert_file", self.cert_file, why) from error
        return context

    def file_versions(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return device, inode, time and size of each file that :meth:`context` reads; None if a file is missing.

        If the result has changed, make the context again.
        """
        ca_file = self.ca_file or ssl.get_default_verify_paths().cafile
        return tuple(_file_version(path) for path in (ca_file, self.cert_file, self.key_file))


def _file_version(path: str | None) -> tuple[int, ...] | None:
    try:
        stat = os.stat(path or "")
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def strict_verification_hint(reason: str) -> str:
    """Return how to make a certificate again that lacks extensions, or "" if OpenSSL's *reason* is another one.

    Python 3.13 and newer verify strictly (RFC 5280) by default.
    """
    if not any(each in reason.lower() for each in ("key identifier", "key usage", "basic constraints")):
        return ""
    return (
        "; Python 3.13 verifies strictly: make the certificates again, the CA's with basicConstraints=critical,CA:true,"
        " keyUsage=critical,keyCertSign and subjectKeyIdentifier=hash, the server's with authorityKeyIdentifier=keyid"
    )


def is_host_name(name: object) -> bool:
    """Return whether *name* is a valid host name.  For an invalid name, gevent's resolver would print a traceback."""
    try:
        return isinstance(name, str) and name.isprintable() and bool(name.encode("idna"))
    except UnicodeError:
        return False


def _no_password() -> str:
    raise ValueError("the key is encrypted; pass an SSLContext instead of TLSOptions")


@dataclass(frozen=True, kw_only=True)
class HTTPOptions:
    """Options of the HTTP clients of nsqd and nsqlookupd.  Durations are seconds."""

    http_timeout: float = duration(10.0, 0.05, 3600.0, "time limit of a call, including the connect")
    http_connect_timeout: float = duration(5.0, 0.01, 600.0, "time limit of the TCP connect, and of the TLS handshake")
    http_max_body: int = size(64 * 1024 * 1024, 1024, 1024**3, "largest accepted reply")
    http_pool_size: int = count(4, 1, 1000, "connections", "idle connections to keep")
    tls: bool | TLSOptions | ssl.SSLContext | None = documented(
        None, "TLSOptions or an SSLContext for https; None or True: verify with the system's CAs"
    )
    auth_token: str | None = field(
        default=None, repr=False, metadata={"doc": "sent as 'Authorization: Bearer ...'; never logged"}
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_https(("tls", self.tls), ("auth_token", self.auth_token))


def _is_context(value: object) -> bool:
    """Return whether *value* is an SSLContext, even of the class that ``monkey.patch_all()`` has replaced since."""
    return isinstance(value, ssl.SSLContext.__bases__)


def _check_https(tls: tuple[str, object], token: tuple[str, object]) -> None:
    """Check the options *tls* and *token* of an HTTP client; each argument is (name, value).  Raises OptionError."""
    if tls[1] is False:
        raise OptionError(*tls, "use TLSOptions(verify=False) to accept any certificate")
    if _is_context(tls[1]) and not isinstance(tls[1], ssl.SSLContext):
        why = "was made before monkey.patch_all(), so its connections would block all greenlets; make it after"
        raise OptionError(tls[0], "SSLContext", f"{why} monkey.patch_all(), or give TLSOptions")
    if tls[1] is not None and not isinstance(tls[1], (bool, TLSOptions, ssl.SSLContext)):
        raise OptionError(*tls, "must be None, True, TLSOptions or an ssl.SSLContext")
    text = token[1]
    if not (text is None or (isinstance(text, str) and text.isascii() and text.isprintable())):
        raise OptionError(token[0], "<hidden>", "must be printable ASCII")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Features and time limits of a connection to nsqd (NEG-1)."""

    tls: TLSOptions | ssl.SSLContext | None = documented(
        None, "True, TLSOptions or an SSLContext: require TLS; None: no TLS"
    )
    compression: Compression | None = documented(None, "'snappy' or 'deflate'; None: no compression")
    deflate_level: int = count(6, 1, 9, "level", "DEFLATE level; nsqd's --max-deflate-level limits it")
    auth_secret: str | bytes | None = field(
        default=None, repr=False, metadata={"doc": "secret for AUTH, sent if nsqd requires AUTH; never logged"}
    )
    heartbeat_interval: float = duration(30.0, 1.0, 3600.0, "time between two heartbeats of nsqd")
    output_buffer_size: int | None = size(
        None,
        -1,
        1 << 30,
        "size of nsqd's output buffer for this client; -1: no buffer; None: nsqd's default",
        span="-1 or 64 to 1 GiB",
    )
    output_buffer_timeout: float | None = documented(
        0.025,
        "how long nsqd may buffer messages; -1: until the buffer is full; None: nsqd's default (0.25)",
        unit="seconds",
        span="-1 or 0.001 to 3600",
    )
    sample_rate: int = count(
        0, 0, 99, "percent", "percentage of the messages that nsqd sends; nsqd adds one percentage point; 0: all"
    )
    msg_timeout: float | None = duration(
        None, 1.0, 86400.0, "time after which nsqd requeues an unanswered message; None: nsqd's default (60)"
    )
    client_id: str | None = documented(None, "client id in nsqd's stats; None: the host's short name")
    hostname: str | None = documented(None, "host name in nsqd's stats; None: the host's name")
    user_agent: str = documented(f"gnsq_lite/{__version__}", "client name and version in nsqd's stats")
    connect_timeout: float = duration(5.0, 0.01, 600.0, "time limit of the DNS lookup and the TCP connect together")
    handshake_timeout: float = duration(
        10.0, 0.01, 600.0, "time limit of IDENTIFY, TLS, compression, AUTH and SUB together"
    )
    write_timeout: float = duration(
        30.0, 0.01, 3600.0, "the connection is closed if nsqd accepts no bytes for this time"
    )
    max_frame_size: int = size(
        DEFAULT_MAX_FRAME_SIZE, 64, 2**31 - 1, "largest frame accepted; a larger frame closes the connection"
    )
    extra_identify: Mapping[str, object] = field(
        default_factory=dict, metadata={"doc": "additional keys of IDENTIFY, such as topology_zone and topology_region"}
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        check_choice("compression", self.compression, None, "snappy", "deflate")
        size, timeout = self.output_buffer_size, self.output_buffer_timeout
        if size is not None and size != -1:
            check_number("output_buffer_size", size, 64, 1 << 30, whole=True)
        if timeout is not None and timeout != -1:
            check_number("output_buffer_timeout", timeout, 0.001, 3600.0)
        if not (self.tls is None or isinstance(self.tls, TLSOptions) or _is_context(self.tls)):
            raise OptionError("tls", self.tls, "must be None, True, TLSOptions or an ssl.SSLContext")
        if self.auth_secret is not None and (not isinstance(self.auth_secret, (str, bytes)) or not self.auth_secret):
            raise OptionError("auth_secret", "<hidden>", "must be str or bytes and not empty; None: no AUTH")
        if isinstance(self.auth_secret, str) and any("\ud800" <= c <= "\udfff" for c in self.auth_secret):
            raise OptionError("auth_secret", "<hidden>", "cannot be encoded as UTF-8; give bytes")
        for name in ("client_id", "hostname", "user_agent"):
            text = getattr(self, name)
            if not isinstance(text, str) and (text is not None or name == "user_agent"):
                raise OptionError(name, text, "must be str")
        if not isinstance(self.extra_identify, Mapping) or not all(isinstance(key, str) for key in self.extra_identify):
            raise OptionError("extra_identify", self.extra_identify, "must be a dict with str keys")


def shown_address(address: object) -> object:
    """Return *address* for an error text, or "<hidden>" if it may contain a password or a token."""
    return "<hidden>" if any(c in repr(address) for c in "@?#") else address


def parse_address(text: str | Address, *, default_port: int, option: str) -> Address:
    """Parse ``"host"``, ``"host:port"``, ``"[v6]:port"`` or a pair into (host, port).  Raises OptionError."""
    if isinstance(text, tuple) and len(text) == 2:
        host, port = text
        why = "" if isinstance(host, str) and type(port) is int else "must be (host, port)"
    elif isinstance(text, str):
        host, port, why = _split(text, default_port)
    else:
        host, port, why = "", 0, "must be 'host:port' or (host, port)"
    if not why and "," in host:
        why = "contains several addresses; pass a list"
    if not why and (not host or any(c.isspace() or not c.isprintable() or c in "/@?#[]" for c in host)):
        why = "must name a host as 'host:port', without a scheme or spaces"
    if not why and not is_host_name(host):
        why = "the host name has an empty label, or a label of more than 63 characters"
    if not why and not 1 <= port <= 65535:
        why = "the port must be between 1 and 65535"
    if why:
        raise OptionError(option, shown_address(text), why)
    return host, port


def parse_url(text: str, *, option: str) -> tuple[SplitResult, Address]:
    """Parse the http or https URL of a server; return its parts and (host, port).  Raises OptionError.

    urlsplit() drops newlines, so *text* itself is checked for newlines.  If a password contains "/", "?" or "#",
    urlsplit() ends the host there, so an "@" in the path, the query or the fragment is refused.
    """
    shown = shown_address(text)
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise OptionError(option, shown, "is not a URL") from None
    if url.scheme not in ("http", "https"):
        raise OptionError(option, shown, "must be an http or https URL, or 'host:port'")
    if not url.hostname or url.query or url.fragment or "@" in url.path or not text.isprintable() or " " in text:
        why = "must be a URL with a host, and without a query, a fragment, spaces, or an '@' in the path"
        raise OptionError(option, shown, why)
    default = 443 if url.scheme == "https" else 80
    return url, parse_address((url.hostname, default if port is None else port), default_port=default, option=option)


def lookupd_address(address: str | Address) -> str | Address:
    """Remove a trailing "/lookup", with which pynsq and go-nsq write the address of an nsqlookupd."""
    if isinstance(address, str) and address.rstrip("/").endswith("/lookup"):
        return address.rstrip("/").removesuffix("/lookup")
    return address


def _split(text: str, default_port: int) -> tuple[str, int, str]:
    """Split *text*; return (host, port, error text).  The error text is "" if *text* is valid."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            return "", 0, "must be '[v6]:port'"
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""  # a bare IPv6 address
    else:
        host, _, port = text.partition(":")
    if port and (not port.isascii() or not port.isdigit() or len(port) > 5):
        return "", 0, "the port must be a number between 1 and 65535"
    return host, int(port or default_port), ""


def format_address(address: Address) -> str:
    """Format an address as ``host:port``, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
