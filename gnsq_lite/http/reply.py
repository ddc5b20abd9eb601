"""Reads a server's response up to a size limit, and decodes the JSON.

For an invalid or too long response the functions raise one of the ``HTTP...`` errors.  No function decompresses a body.
An error's text contains at most 300 characters of the server's text, with escaped control characters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import urllib3

from gnsq_lite.errors import HTTPResponseError, HTTPStatusError
from gnsq_lite.text import cut, printable

_CHUNK = 65536
_SHOWN = 300  # maximum characters of a server's text in an error


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete HTTP response."""

    url: str
    status: int
    content_type: str
    body: bytes

    def text(self) -> str:
        """Decode the body as UTF-8; escape invalid bytes."""
        return self.body.decode("utf-8", "backslashreplace")

    def json(self) -> Any:
        """Decode the JSON body, and remove its ``{"status_code", "data"}`` wrapper (DISC-3).

        Raises HTTPResponseError for invalid JSON, and HTTPStatusError for an error inside a wrapper.
        """
        try:
            document = json.loads(self.body.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            kind = f" ({printable(self.content_type)[:80]})" if self.content_type else ""
            why = f"the response is not JSON{kind}: {printable(self.text()[:60])!r} {type(error).__name__}"
            raise HTTPResponseError(self.url, why) from None
        return unwrap(self.url, document)


def unwrap(url: str, document: Any) -> Any:
    """Remove the wrapper of older servers from *document*.  Raises HTTPStatusError for an error inside the wrapper."""
    if not isinstance(document, dict) or "status_code" not in document:
        return document
    status = document["status_code"]
    if isinstance(status, bool) or not isinstance(status, int):
        raise HTTPResponseError(url, "status_code is not a number")
    if not 200 <= status < 300:
        raise HTTPStatusError(url, status, shown(document.get("status_txt")))
    return document.get("data")


def shown(text: object) -> str:
    """Cut a server's text for errors and logs, and escape control characters."""
    return printable(cut(text, _SHOWN)) if isinstance(text, str) else ""


def read_up_to(response: urllib3.BaseHTTPResponse, url: str, limit: int, *, cut: bool = False) -> bytes:
    """Read the body, at most *limit* bytes.  If the body is longer, cut it if *cut*, else raise HTTPResponseError."""
    declared = response.headers.get("Content-Length", "")
    if not cut and declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise HTTPResponseError(url, f"the response has {int(declared[:20])} bytes; at most {limit} are accepted")
    parts: list[bytes] = []
    size = 0
    while size <= limit and (part := response.read(_CHUNK, decode_content=False)):
        parts.append(part)
        size += len(part)
    if size > limit and not cut:
        raise HTTPResponseError(url, f"the response has more than {limit} bytes")
    if size > limit:
        response.close()
    return b"".join(parts)


def explain(reply: Reply) -> str:
    """Return the server's error text (``message`` or ``status_txt`` in JSON, else the body), or one for a redirect."""
    if 300 <= reply.status < 400:
        return "a redirect is not followed"
    try:
        document = json.loads(reply.body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        for key in ("message", "status_txt"):
            if isinstance(document.get(key), str):
                return shown(document[key])
    return shown(reply.text().strip())
