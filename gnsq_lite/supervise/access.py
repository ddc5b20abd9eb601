"""Access to the live page: who may read it, and who may act through it.  Pure."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

#: The longest body of a request to act, bytes.
LONGEST = 4096

#: What a client may ask for.
ACTIONS = ("pause", "resume", "drain")


class Refused(Exception):
    """A request that is refused, with the HTTP status and the reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


@dataclass(frozen=True)
class Access:
    """The host names that the page answers to, and the token to act with; with None nobody may act."""

    hosts: frozenset[str] = frozenset()
    token: str | None = None

    def check_host(self, header: str | None) -> None:
        """Raise Refused unless the host is an address, localhost, or one of the names.

        Otherwise a foreign site whose name resolves to this host (DNS rebinding) could make a browser read the page.
        """
        name = _host(header or "")
        if name is not None and (name == "localhost" or name in self.hosts):
            return
        try:
            ipaddress.ip_address(name or "")
        except ValueError:
            hint = "use an address, or start the worker with --allow-host NAME"
            raise Refused(HTTPStatus.FORBIDDEN, f"this host name is not allowed: {hint}") from None

    def check_act(self, given_headers: Mapping[str, str]) -> None:
        """Raise Refused where the client may not act; header names may be in any case.

        The token comes in a header that no foreign page can make a browser send; cookies and forms do not count.
        """
        if self.token is None:
            raise Refused(HTTPStatus.FORBIDDEN, "read-only: start the worker with --allow-control")
        headers = {name.lower(): value for name, value in given_headers.items()}
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise Refused(
                HTTPStatus.UNAUTHORIZED, "the token is wrong or missing: send it as Authorization: Bearer TOKEN"
            )
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json")


def access(host: str, names: Iterable[str], token: str | None) -> Access:
    """Return the access rules of a page served at *host*, which answers to *names* too."""
    return Access(frozenset(name.lower().rstrip(".") for name in (host, *names) if name), token)


def body_length(header: str | None) -> int:
    """Return the length of the body to read.  Raises Refused."""
    if header is None or not header.isascii() or not header.isdigit():
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
    if len(header) > 9 or int(header) > LONGEST:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have at most {LONGEST} bytes")
    return int(header)


def asked(data: Any) -> tuple[str, str, str]:
    """Return (action, topic, channel) of a request's JSON; a drain has neither topic nor channel.  Raises Refused."""
    if not isinstance(data, dict) or data.get("action") not in ACTIONS:
        raise Refused(HTTPStatus.BAD_REQUEST, f"action must be one of {', '.join(ACTIONS)}")
    action, topic, channel = data["action"], data.get("topic"), data.get("channel")
    if action == "drain":
        return action, "", ""
    if not isinstance(topic, str) or not isinstance(channel, str):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{action} needs a topic and a channel")
    return action, topic, channel


def _host(header: str) -> str | None:
    """Return the name or address of a Host header without its port, in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".") or None
