"""Gets a client's permissions for AUTH from a function or an auth server (internal/auth/authorizations.go @v1.3.0).

A request to an auth server blocks only the client's greenlet.  Error texts never contain the secret.
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

#: Reply of an auth server, or value of the function.  True grants everything.  None or False makes AUTH fail.
AuthAnswer = Mapping[str, Any] | bool | None


@dataclass(frozen=True)
class AuthRequest:
    """A client that sent AUTH."""

    secret: str
    remote_ip: str
    tls: bool
    common_name: str


class AuthServerError(Exception):
    """The auth server gave no valid reply."""


@dataclass(frozen=True)
class Authorization:
    """One entry of a grant.  As in nsqd, the regular expressions match anywhere in a name."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: tuple[str, ...]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to *channel* of *topic*, or publish to *topic* if *channel* is ""."""
        if ("subscribe" if channel else "publish") not in self.permissions or not self.topic.search(topic):
            return False
        return any(pattern.search(channel) for pattern in self.channels)


@dataclass(frozen=True)
class Grant:
    """Permissions of one client until ``expires_at``, a time of the monotonic clock."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_at: float

    @property
    def permission_count(self) -> int:
        """Number of authorizations, which nsqd reports in the reply to AUTH."""
        return len(self.authorizations)

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to *channel* of *topic*, or publish to *topic* if *channel* is ""."""
        return any(entry.allows(topic, channel) for entry in self.authorizations)


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
        entries = tuple(_authorization(entry) for entry in answer.get("authorizations") or ())
        identity, url = answer.get("identity") or "", answer.get("identity_url") or ""
        if not isinstance(identity, str) or not isinstance(url, str):
            raise AuthServerError("identity is not a string")
    except (AttributeError, TypeError, re.error) as error:
        raise AuthServerError(f"invalid answer: {error}") from None
    return Grant(identity, url, entries, now + ttl)


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
    """Gets grants from *auth*, which is a function or the URL of an auth server.

    For an https URL, the PEM file *ca_file* lists the trusted CAs.  If *ca_file* is "", the system's CAs are trusted.
    """

    def __init__(self, auth: str | Callable[[AuthRequest], AuthAnswer], clock: Clock, ca_file: str = "") -> None:
        self._auth, self._clock, self._ca_file = auth, clock, ca_file

    def request_grant(self, request: AuthRequest) -> Grant:
        """Request the client's grant.  Raises CommandError (E_AUTH_FAILED)."""
        try:
            answer = self._get(self._auth, request) if isinstance(self._auth, str) else self._auth(request)
            return parse_grant(_EVERYTHING if answer is True else answer, self._clock.now())
        except (AuthServerError, OSError, http.client.HTTPException, ValueError, RecursionError):
            # as in nsqd, the error frame gives no reason (nsqd/protocol_v2.go:531 @v1.3.0)
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
        """Check that *grant* allows *verb* on the topic and channel, and return the grant.  Raises CommandError.

        If *grant* has expired, request a new grant, and check and return the new grant instead.
        """
        if grant is None or not grant.permission_count:
            raise CommandError("E_AUTH_FIRST", f"AUTH required before {verb}")
        if grant.expires_at < self._clock.now():
            grant = self.request_grant(request)
        if not grant.allows(topic, channel):
            names = f"{quoted(topic.encode())} {quoted(channel.encode())}"
            raise CommandError("E_UNAUTHORIZED", f"AUTH failed for {verb} on {names}")
        return grant
