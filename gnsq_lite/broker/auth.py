"""AUTH: asking an auth server and holding clients to its answer (internal/auth/authorizations.go @v1.3.0).

Asking waits, so a session whose nsqd has auth servers carries out its commands in a greenlet.  The secret is in no log
and in no error.
"""

from __future__ import annotations

import http.client
import json
import random
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import gevent
import gevent.socket
import gevent.ssl

from gnsq_lite.broker.commands import CommandError, quoted
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.clock import Clock

_LONGEST_ANSWER = 1 << 20


class AuthServerError(Exception):
    """No auth server gave a valid answer."""


@dataclass(frozen=True)
class Authorization:
    """One line of a grant: permissions, and Python's regular expressions, which are searched for as in nsqd."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: tuple[str, ...]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether it allows publishing to *topic* (no channel) or subscribing."""
        if ("subscribe" if channel else "publish") not in self.permissions or not self.topic.search(topic):
            return False
        return any(pattern.search(channel) for pattern in self.channels)


@dataclass(frozen=True)
class Grant:
    """What an auth server allowed one client, until ``expires_at`` of the monotonic clock."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_at: float

    @property
    def permission_count(self) -> int:
        """What nsqd calls the number of authorizations."""
        return len(self.authorizations)

    def allows(self, topic: str, channel: str) -> bool:
        """Whether any authorization allows it."""
        return any(line.allows(topic, channel) for line in self.authorizations)


@dataclass(frozen=True)
class Claim:
    """What an auth server is told of a client."""

    secret: str
    remote_ip: str
    tls: bool
    common_name: str


def parse_grant(body: bytes, now: float) -> Grant:
    """Return the grant in an auth server's answer.  Raises AuthServerError."""
    try:
        data = json.loads(body)
        ttl = data.get("ttl", 0)
        if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl <= 0:
            raise AuthServerError(f"invalid TTL {ttl!r} (must be >0)")
        lines = tuple(_authorization(entry) for entry in data.get("authorizations") or ())
        identity, url = data.get("identity") or "", data.get("identity_url") or ""
        if not isinstance(identity, str) or not isinstance(url, str):
            raise AuthServerError("identity is not a string")
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise AuthServerError(f"invalid answer: {error}") from None
    return Grant(identity, url, lines, now + ttl)


def _authorization(entry: Any) -> Authorization:
    permissions = tuple(entry.get("permissions") or ())
    for permission in permissions:
        if permission not in ("subscribe", "publish"):
            raise AuthServerError(f"unknown permission {permission}")
    try:
        topic = re.compile(entry.get("topic") or "")
        channels = tuple(re.compile(channel) for channel in entry.get("channels") or ())
    except re.error as error:
        raise AuthServerError(f"unable to compile a pattern: {error}") from None
    return Authorization(topic, channels, permissions)


class _Connection(http.client.HTTPConnection):
    """An HTTP connection whose socket waits without blocking the broker's hub."""

    context: Any = None
    connect_timeout = 2.0

    def connect(self) -> None:
        self.sock = gevent.socket.create_connection((self.host, self.port), self.connect_timeout)
        self.sock.settimeout(self.timeout)
        if self.context is not None:
            self.sock = self.context.wrap_socket(self.sock, server_hostname=self.host)


@dataclass
class Authorizer:
    """Asks the auth servers of one nsqd."""

    options: BrokerOptions
    clock: Clock
    rng: random.Random = field(default_factory=random.Random)

    def ask(self, claim: Claim) -> Grant:
        """Return what the auth servers grant.  Raises CommandError (E_AUTH_FAILED)."""
        query = urlencode(
            {
                "common_name": claim.common_name,
                "remote_ip": claim.remote_ip,
                "secret": claim.secret,
                "tls": "true" if claim.tls else "false",
            },
            errors="surrogateescape",
        )
        addresses = self.options.auth_http_addresses
        start = self.rng.randrange(len(addresses))
        for address in addresses[start:] + addresses[:start]:
            try:
                return parse_grant(self._get(address, query), self.clock.now())
            except (AuthServerError, OSError, http.client.HTTPException, ValueError):
                continue  # the client is not told why (nsqd/protocol_v2.go:531 @v1.3.0)
        raise CommandError("E_AUTH_FAILED", "AUTH failed")

    def _get(self, address: str, query: str) -> bytes:
        url = urlsplit(address if "://" in address else f"http://{address}/auth")
        if url.hostname is None or url.scheme not in ("http", "https"):
            raise AuthServerError(f"{address} is not an HTTP address")
        port = url.port or (443 if url.scheme == "https" else 80)
        connection = _Connection(url.hostname, port, timeout=self.options.http_client_request_timeout)
        connection.connect_timeout = self.options.http_client_connect_timeout
        if url.scheme == "https":
            cafile = self.options.tls_root_ca_file or None
            connection.context = gevent.ssl.create_default_context(cafile=cafile)
        with gevent.Timeout(self.options.http_client_request_timeout, OSError("no answer in time")):
            try:
                accept = {"Accept": "application/vnd.nsq; version=1.0"}
                connection.request("GET", f"{url.path or '/'}?{query}", headers=accept)
                answer = connection.getresponse()
                body = answer.read(_LONGEST_ANSWER + 1)
            finally:
                connection.close()
        if answer.status != 200 or len(body) > _LONGEST_ANSWER:
            raise AuthServerError(f"got response {answer.status}")
        return body

    def check(self, grant: Grant | None, claim: Claim, verb: str, topic: str, channel: str) -> Grant:
        """Return *grant*, asked for again if it has expired, where it allows *verb*.  Raises CommandError."""
        if grant is None or not grant.permission_count:
            raise CommandError("E_AUTH_FIRST", f"AUTH required before {verb}")
        if grant.expires_at < self.clock.now():
            grant = self.ask(claim)
        if not grant.allows(topic, channel):
            names = f"{quoted(topic.encode())} {quoted(channel.encode())}"
            raise CommandError("E_UNAUTHORIZED", f"AUTH failed for {verb} on {names}")
        return grant
