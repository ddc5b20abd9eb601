"""User and password of a URL, as HTTP's Basic scheme sends them."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote_to_bytes


def basic(userinfo: str) -> str:
    """Return the value of an Authorization header for a URL's ``user:password``, percent-encoded as it is there.

    Text goes out as UTF-8 (RFC 7617); ``%FC`` is that byte, for a server that expects another encoding.
    """
    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(unquote_to_bytes(f"{user}:{password}")).decode("ascii")
