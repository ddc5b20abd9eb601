"""Handles AUTH: gets permissions from a function or an auth server (internal/auth/authorizations.go @v1.3.0).

A request to an auth server blocks the client's greenlet.  Error texts never contain the secret.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import gevent
import gevent.socket
import gevent.ssl

from gnsq_lite.broker.commands import CommandError, quoted
from gnsq_lite.clock import Clock

_LONGEST_ANSWER = 1 << 20
#: Time limit of a request to an auth server, in seconds (nsqd's default).
_TIMEOUT = 5.0

#: Decoded reply of an auth server.  True grants every permission.  None or False makes AUTH fail.
AuthAnswer = Mapping[str, Any] | bool | None


@dataclass(frozen=True)
class AuthRequest:
    """Properties of a client that sends AUTH."""

    secret: str
    remote_ip: str
    tls: bool
    common_name: str


class AuthServerError(Exception):
    """The auth server gave no valid reply."""


@dataclass(frozen=True)
class Authorization:
    """One entry of a grant.  Its regular expressions may match anywhere in a name, as in nsqd."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: tuple[str, ...]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the entry allows subscribing to *channel* of *topic*; if *channel* is "", publishing to *topic*."""
        if ("subscribe" if channel else "publish") not in self.permissions or not self.topic.search(topic):
            return False
        return any(pattern.search(channel) for pattern in self.channels)


@dataclass(frozen=True)
class Grant:
    """Permissions of one client.  They expire at ``expires_at``, in seconds of the monotonic clock."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_at: float

    @property
    def permission_count(self) -> int:
        """Number of authorizations, as in nsqd's reply."""
        return len(self.authorizations)

    def allows(self, topic: str, channel: str) -> bool:
        """Whether any entry allows subscribing to *channel* of *topic*; if *channel* is "", publishing to *topic*."""
        return any(line.allows(topic, channel) for line in self.authorizations)


_EVERYTHING = {
    "ttl": 3600,
    "authorizations": [{"topic": "", "channels": [""], "permissions": ["publish", "subscribe"]}],
}


def parse_grant(answer: Any, now: float) -> Grant:
    """Parse the decoded reply of an auth server.  Raises AuthServerError."""
    try:
        ttl = answer.get("ttl", 0)
        if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl <= 0:
            raise AuthServerError(f"invalid TTL {ttl!r} (must be >0)")
        lines = tuple(_authorization(entry) for entry in answer.get("authorizations") or ())
        identity, url = answer.get("identity") or "", answer.get("identity_url") or ""
        if not isinstance(identity, str) or not isinstance(url, str):
            raise AuthServerError("identity is not a string")
    except (AttributeError, TypeError, re.error) as error:
        raise AuthServerError(f"invalid answer: {error}") from None
    return Grant(identity, url, lines, now + ttl)


def _authorization(entry: Any) -> Authorization:
    permissions = tuple(entry.get("permissions") or ())
    for permission in permissions:
        if permission not in ("subscribe", "publish"):
            raise AuthServerError(f"unknown permission {permission}")
    channels = tuple(re.compile(channel) for channel in entry.get("channels") or ())
    return Authorization(re.compile(entry.get("topic") or ""), channels, permissions)


class _Connection(http.client.HTTPConnection):
    """HTTP connection on a gevent socket, so that a slow auth server does not block the broker's hub."""

    context: Any = None

    def connect(self) -> None:
        self.sock = gevent.socket.create_connection((self.host, self.port))
        if self.context is not None:
            self.sock = self.context.wrap_socket(self.sock, server_hostname=self.host)


class Authorizer:
    """Gets grants from *auth*: a function, or the URL of an auth server.

    *ca_file* is a PEM file of the CAs that verify the server of an https URL; "" uses the system's CAs.
    """

    def __init__(self, auth: str | Callable[[AuthRequest], AuthAnswer], clock: Clock, ca_file: str = "") -> None:
        self._auth, self._clock, self._ca_file = auth, clock, ca_file

    def ask(self, request: AuthRequest) -> Grant:
        """Request the client's grant.  Raises CommandError (E_AUTH_FAILED)."""
        try:
            answer = self._get(self._auth, request) if isinstance(self._auth, str) else self._auth(request)
            return parse_grant(_EVERYTHING if answer is True else answer, self._clock.now())
        except (AuthServerError, OSError, http.client.HTTPException, ValueError, RecursionError):
            # the error frame gives no reason (nsqd/protocol_v2.go:531 @v1.3.0)
            raise CommandError("E_AUTH_FAILED", "AUTH failed") from None

    def _get(self, address: str, request: AuthRequest) -> Any:
        url = urlsplit(address if "://" in address else f"http://{address}/auth")
        connection = _Connection(url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
        if url.scheme == "https":
            connection.context = gevent.ssl.create_default_context(cafile=self._ca_file or None)
        query = urlencode({**vars(request), "tls": "true" if request.tls else "false"}, errors="surrogateescape")
        with gevent.Timeout(_TIMEOUT, OSError("no answer in time")):
            try:
                accept = {"Accept": "application/vnd.nsq; version=1.0"}
                connection.request("GET", f"{url.path or '/'}?{query}", headers=accept)
                answer = connection.getresponse()
                body = answer.read(_LONGEST_ANSWER + 1)
            finally:
                connection.close()
        if answer.status != 200 or len(body) > _LONGEST_ANSWER:
            raise AuthServerError(f"got response {answer.status}")
        return json.loads(body)

    def check(self, grant: Grant | None, request: AuthRequest, verb: str, topic: str, channel: str) -> Grant:
        """Check that *grant* allows *verb*; request a new grant first if *grant* has expired.

        Returns the checked grant.  Raises CommandError.
        """
        if grant is None or not grant.permission_count:
            raise CommandError("E_AUTH_FIRST", f"AUTH required before {verb}")
        if grant.expires_at < self._clock.now():
            grant = self.ask(request)
        if not grant.allows(topic, channel):
            names = f"{quoted(topic.encode())} {quoted(channel.encode())}"
            raise CommandError("E_UNAUTHORIZED", f"AUTH failed for {verb} on {names}")
        return grant
