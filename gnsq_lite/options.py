"""Options: one declaration gives name, default, range, type and documentation.

Durations are seconds, floats.  A value out of range or a contradiction raises :class:`~gnsq_lite.errors.OptionError`
at construction, before anything is opened (CFG-1).  The docs and the command line are generated from these fields, so
no default is written twice.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import between, check_ranges, documented
from gnsq_lite.version import __version__

Compression = Literal["snappy", "deflate"]
HandlerPool = Literal["auto", "greenlet", "thread", "inline"]
DialectName = Literal["auto", "nsq", "youzan"]
Address = tuple[str, int]

#: nsqd's own ceiling on one frame a client accepts; a message of 5 MB and its head fit.
DEFAULT_MAX_FRAME_SIZE = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class BackoffOptions:
    """When failing handlers slow a Reader down (BACK-1 to BACK-5).  Durations are seconds."""

    unit: float = between(1.0, low=0.001, high=3600.0, doc="the pause at level n is unit * 2**(n-1)")
    longest: float = between(120.0, low=0.0, high=86400.0, doc="no pause is longer; 0 turns backoff off")
    strategy: Literal["exponential", "full-jitter"] | Callable[[int], float] = documented(
        "exponential",
        "'exponential', 'full-jitter' (a random part of the exponential pause), or a function of the level that"
        " returns seconds",
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.strategy not in ("exponential", "full-jitter") and not callable(self.strategy):
            raise OptionError("strategy", self.strategy, "must be 'exponential', 'full-jitter' or a function")
        if 0 < self.longest < self.unit:
            raise OptionError("longest", self.longest, f"must be 0 (off) or at least unit ({self.unit})")

    @property
    def enabled(self) -> bool:
        """Whether failures start backoff at all (BACK-5)."""
        return self.longest > 0


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """When and how often a failed message is sent again (MSG-1, MSG-4, CFG-4)."""

    max_attempts: int = between(
        5, low=0, high=65535, doc="a message with more attempts than this is given up; 0 = no limit"
    )
    requeue_delay: float = between(
        90.0, low=0.0, high=86400.0, doc="seconds nsqd holds a message back after its first failure"
    )
    requeue_growth: float = between(1.0, low=0.0, high=100.0, doc="each further attempt adds growth * requeue_delay")
    max_requeue_delay: float = between(900.0, low=0.0, high=86400.0, doc="no requeue delay is longer")
    requeue_jitter: float = between(
        0.0, low=0.0, high=1.0, doc="each delay is shortened by a random part, up to this share"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.requeue_delay > self.max_requeue_delay:
            raise OptionError(
                "requeue_delay", self.requeue_delay, f"is above max_requeue_delay ({self.max_requeue_delay})"
            )


@dataclass(frozen=True, kw_only=True)
class ReconnectOptions:
    """How a lost direct nsqd is tried again (CONN-3): first, 2 * first, 4 * first ... up to a cap."""

    reconnect_delay: float = between(8.0, low=0.01, high=3600.0, doc="seconds before the first new attempt")
    max_reconnect_delay: float = between(120.0, low=0.01, high=86400.0, doc="no delay is longer")
    reconnect_jitter: float = between(
        0.3, low=0.0, high=1.0, doc="each delay is changed at random by up to this share, either way"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.reconnect_delay > self.max_reconnect_delay:
            raise OptionError(
                "reconnect_delay", self.reconnect_delay, f"is above max_reconnect_delay ({self.max_reconnect_delay})"
            )


@dataclass(frozen=True, kw_only=True)
class WriterReconnectOptions:
    """How a Writer tries a lost nsqd again: first, 2 * first, 4 * first ... up to a cap (PUB-4)."""

    reconnect_delay: float = between(0.1, low=0.01, high=3600.0, doc="seconds before the first new attempt")
    max_reconnect_delay: float = between(5.0, low=0.01, high=86400.0, doc="no delay is longer")
    reconnect_jitter: float = between(
        0.3, low=0.0, high=1.0, doc="each delay is changed at random by up to this share, either way"
    )

    def __post_init__(self) -> None:
        self.as_reconnect()

    def as_reconnect(self) -> ReconnectOptions:
        """Return the same as ReconnectOptions.  Raises OptionError."""
        return ReconnectOptions(
            reconnect_delay=self.reconnect_delay,
            max_reconnect_delay=self.max_reconnect_delay,
            reconnect_jitter=self.reconnect_jitter,
        )


@dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """How a Writer publishes (PUB-1 to PUB-4)."""

    publish_timeout: float = between(
        15.0, low=0.001, high=86400.0, doc="seconds a publish may take: connecting, writing and the answer together"
    )
    retries: int = between(
        0, low=0, high=1000, doc="how often a publish whose outcome is unknown is sent again (it may then be double)"
    )
    max_msg_size: int = between(
        1024 * 1024, low=1, high=2**31 - 1, doc="bytes of one body; as nsqd's --max-msg-size; larger ones are refused"
    )
    max_body_size: int = between(
        5 * 1024 * 1024, low=64, high=2**31 - 1, doc="bytes of one MPUB; as nsqd's --max-body-size; batches are split"
    )
    max_pending: int = between(
        64 * 1024 * 1024, low=1, high=2**40, doc="bytes that publish_nowait may have on their way"
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """How nsqlookupds are asked (DISC-1 to DISC-6, CFG-3)."""

    lookupd_poll_interval: float = between(60.0, low=0.05, high=86400.0, doc="seconds between two polls")
    lookupd_poll_jitter: float = between(
        0.3, low=0.0, high=1.0, doc="each interval is lengthened at random by up to this share"
    )
    lookupd_timeout: float = between(5.0, low=0.05, high=600.0, doc="seconds one nsqlookupd may take to answer")
    lookupd_max_body: int = between(
        16 * 1024 * 1024, low=1024, high=1024**3, doc="bytes an answer may have at the most"
    )
    lookupd_tls: bool | TLSOptions | ssl.SSLContext | None = documented(
        None, "for https addresses: None or True verifies with the system's CAs; TLSOptions or an SSLContext says how"
    )
    lookupd_token: str | None = field(
        default=None, repr=False, metadata={"doc": "sent as 'Authorization: Bearer ...'; never logged"}
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TLSOptions:
    """TLS towards nsqd (SEC-1).  By default the chain and the host name are verified with the system's CAs."""

    ca_file: str | None = documented(None, "PEM file of the CAs to trust instead of the system's")
    cert_file: str | None = documented(None, "PEM file of the client certificate (chain)")
    key_file: str | None = documented(None, "PEM file of its key; None: the key is in cert_file")
    server_hostname: str | None = documented(None, "name to verify and to send as SNI; None: the host connected to")
    minimum_version: Literal["TLSv1.2", "TLSv1.3"] = documented("TLSv1.2", "lowest protocol version accepted")
    verify: bool = documented(True, "False accepts any certificate: only for tests")

    def __post_init__(self) -> None:
        if self.minimum_version not in ("TLSv1.2", "TLSv1.3"):
            raise OptionError("minimum_version", self.minimum_version, "must be 'TLSv1.2' or 'TLSv1.3'")
        if self.key_file is not None and self.cert_file is None:
            raise OptionError("key_file", self.key_file, "needs cert_file")
        for name in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, name)
            if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
                raise OptionError(name, path, "must be the name of a file, or None")
        if not isinstance(self.verify, bool):  # None must not turn it off
            raise OptionError("verify", self.verify, "must be True or False")
        if self.server_hostname is not None and not _is_host_name(self.server_hostname):
            raise OptionError("server_hostname", self.server_hostname, "must be a host name or an IP address")

    def context(self) -> ssl.SSLContext:
        """Return a new client-side context made of these options.

        ``server_hostname`` is not part of a context: pass it where the socket is wrapped.  Raises OptionError for a
        file that cannot be read or holds no certificate.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise OptionError("ca_file", self.ca_file, f"cannot be loaded: {error}") from error
        context.minimum_version = (
            ssl.TLSVersion.TLSv1_3 if self.minimum_version == "TLSv1.3" else ssl.TLSVersion.TLSv1_2
        )
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                # Without a password callback OpenSSL would ask on the terminal for that of an encrypted key.
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
            except (OSError, ValueError) as error:
                raise self._unloaded(error) from error
        return context

    def _unloaded(self, error: Exception) -> OptionError:
        """Return the error for a client certificate that cannot be loaded; it names the file that is at fault."""
        why = f"cannot be loaded: {error}"
        if self.key_file is None:
            hint = "; without key_file it must hold the key too" if isinstance(error, ssl.SSLError) else ""
            return OptionError("cert_file", self.cert_file, why + hint)
        if isinstance(error, ssl.SSLError):
            return OptionError("cert_file", self.cert_file, f"{why}; key_file={self.key_file!r} must hold its key")
        missing = isinstance(error, OSError) and not os.access(self.cert_file or "", os.R_OK)
        name = "cert_file" if missing else "key_file"
        return OptionError(name, getattr(self, name), why)


def _is_host_name(name: object) -> bool:
    if not isinstance(name, str) or not name or not name.isprintable():
        return False
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def _no_password() -> str:
    raise ValueError("the key is encrypted; give an SSLContext of your own")


@dataclass(frozen=True, kw_only=True)
class HTTPOptions:
    """How an HTTP client calls nsqd or nsqlookupd.  Durations are seconds."""

    http_timeout: float = between(
        10.0, low=0.05, high=3600.0, doc="seconds one call may take, from connecting to the last byte, retries included"
    )
    http_connect_timeout: float = between(5.0, low=0.01, high=600.0, doc="seconds for TCP and for TLS, each")
    http_retries: int = between(
        1, low=0, high=100, doc="further tries of a GET that found no server or lost its connection; never of others"
    )
    http_max_body: int = between(64 * 1024 * 1024, low=1024, high=1024**3, doc="bytes an answer may have at the most")
    http_pool_size: int = between(4, low=1, high=1000, doc="idle connections kept for the next call")
    tls: bool | TLSOptions | ssl.SSLContext | None = documented(
        None, "for https: None or True verifies with the system's CAs; TLSOptions or an SSLContext says how"
    )
    auth_token: str | None = field(
        default=None, repr=False, metadata={"doc": "sent as 'Authorization: Bearer ...'; never logged"}
    )
    environment_proxies: bool = documented(
        True, "whether HTTP_PROXY, HTTPS_PROXY and NO_PROXY count; loopback addresses are never proxied"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.tls is False:
            raise OptionError("tls", self.tls, "use TLSOptions(verify=False) to accept any certificate")
        if self.tls is not None and not isinstance(self.tls, (bool, TLSOptions, ssl.SSLContext)):
            raise OptionError("tls", self.tls, "must be None, True, TLSOptions or an ssl.SSLContext")
        token = self.auth_token
        if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
            raise OptionError("auth_token", "<hidden>", "must be printable ASCII")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What one connection asks of nsqd (NEG-1) and how long it waits."""

    tls: TLSOptions | ssl.SSLContext | None = documented(
        None, "True or TLSOptions or an SSLContext: TLS, or fail; None: plain"
    )
    compression: Compression | None = documented(None, "'snappy' or 'deflate'; None: none")
    deflate_level: int = between(6, low=1, high=9, doc="DEFLATE level; nsqd caps it with its --max-deflate-level")
    auth_secret: str | bytes | None = field(
        default=None, repr=False, metadata={"doc": "secret sent with AUTH where nsqd requires it; never logged"}
    )
    heartbeat_interval: float = between(30.0, low=1.0, high=3600.0, doc="seconds between nsqd's heartbeats")
    output_buffer_size: int | None = between(
        None, low=-1, high=1 << 30, doc="bytes nsqd buffers for this client; -1: none; None: nsqd's default"
    )
    output_buffer_timeout: float | None = documented(
        0.025, "seconds nsqd may hold buffered messages; -1: until the buffer is full; None: nsqd's default (0.25)"
    )
    sample_rate: int = between(
        0, low=0, high=99, doc="percent of the messages to receive (nsqd sends one percent more); 0: all (SEC-5)"
    )
    msg_timeout: float | None = between(
        None, low=1.0, high=86400.0, doc="seconds nsqd waits for an answer to a message; None: nsqd's default (60)"
    )
    client_id: str | None = documented(None, "name of this client in nsqd's stats; None: the host's short name")
    hostname: str | None = documented(None, "host name in nsqd's stats; None: this host's")
    user_agent: str = documented(f"gnsq_lite/{__version__}", "as in HTTP")
    topology_region: str | None = documented(None, "region of this client, for topology-aware consumption")
    topology_zone: str | None = documented(None, "zone of this client, for topology-aware consumption")
    connect_timeout: float = between(5.0, low=0.01, high=600.0, doc="seconds for DNS and TCP")
    handshake_timeout: float = between(
        10.0, low=0.01, high=600.0, doc="seconds for IDENTIFY, TLS, compression, AUTH and SUB together (CONN-5)"
    )
    write_timeout: float = between(30.0, low=0.01, high=3600.0, doc="seconds nsqd may refuse to take bytes")
    max_frame_size: int = between(
        DEFAULT_MAX_FRAME_SIZE, low=64, high=2**31 - 1, doc="bytes; a larger frame closes the connection (WIRE-4)"
    )
    extra_identify: Mapping[str, object] = field(
        default_factory=dict, metadata={"doc": "further keys for IDENTIFY, such as Youzan's extend_support"}
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.compression not in (None, "snappy", "deflate"):
            raise OptionError("compression", self.compression, "must be None, 'snappy' or 'deflate'")
        size, timeout = self.output_buffer_size, self.output_buffer_timeout
        if size is not None and (not isinstance(size, int) or -1 < size < 64):
            raise OptionError("output_buffer_size", size, "must be -1 or a whole number of at least 64")
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and (not is_number or (timeout != -1 and not 0.001 <= timeout <= 3600.0)):
            raise OptionError("output_buffer_timeout", timeout, "must be -1 or between 0.001 and 3600.0")
        if self.tls is not None and not isinstance(self.tls, (TLSOptions, ssl.SSLContext)):
            raise OptionError("tls", self.tls, "must be None, True, TLSOptions or an ssl.SSLContext")
        if self.auth_secret is not None and (not isinstance(self.auth_secret, (str, bytes)) or not self.auth_secret):
            raise OptionError("auth_secret", "<hidden>", "must be str or bytes and not empty; None: no AUTH")
        if isinstance(self.auth_secret, str) and any("\ud800" <= c <= "\udfff" for c in self.auth_secret):
            raise OptionError("auth_secret", "<hidden>", "is no text that UTF-8 can hold; give bytes")
        for name in ("client_id", "hostname", "user_agent", "topology_region", "topology_zone"):
            text = getattr(self, name)
            if not isinstance(text, str) and (text is not None or name == "user_agent"):
                raise OptionError(name, text, "must be str")
        if not isinstance(self.extra_identify, Mapping) or not all(isinstance(key, str) for key in self.extra_identify):
            raise OptionError("extra_identify", self.extra_identify, "must be a dict with keys of str")


def shown_address(address: object) -> object:
    """Return *address*, of whatever type, for an error: what may hold a password is hidden."""
    return "<hidden>" if "@" in repr(address) else address


def parse_address(text: str | Address, *, default_port: int, option: str) -> Address:
    """Return (host, port) of ``"host"``, ``"host:port"``, ``"[v6]:port"`` or a pair.  Raises OptionError."""
    if isinstance(text, tuple) and len(text) == 2:
        host, port = text
        if not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int):
            raise OptionError(option, shown_address(text), "must be (host, port)")
    elif isinstance(text, str):
        host, port = _split(text, default_port, option)
    else:
        raise OptionError(option, shown_address(text), "must be 'host:port' or (host, port)")
    if "," in host:
        raise OptionError(option, shown_address(text), "is several addresses in one text; give a list")
    if not host or any(c.isspace() or not c.isprintable() or c in "/@?#[]" for c in host):
        raise OptionError(option, shown_address(text), "must name a host as 'host:port', without a scheme or spaces")
    if not 1 <= port <= 65535:
        raise OptionError(option, shown_address(text), "the port must be between 1 and 65535")
    return host, port


def _split(text: str, default_port: int, option: str) -> Address:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise OptionError(option, shown_address(text), "must be '[v6]:port'")
        port_text = rest[1:]
    elif text.count(":") > 1:
        host, port_text = text, ""  # a bare IPv6 address
    else:
        host, _, port_text = text.partition(":")
    if not port_text:
        return host, default_port
    if not port_text.isascii() or not port_text.isdigit() or len(port_text) > 5:
        raise OptionError(option, shown_address(text), "the port must be a number between 1 and 65535")
    return host, int(port_text)


def format_address(address: Address) -> str:
    """Return ``host:port``, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
