"""The live page: one self-contained file, with headers that let no other script run in it."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

_FILE = Path(__file__).with_name("live.html")


@functools.cache
def live_page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers: a browser runs no script and no style but the page's own."""
    body = _FILE.read_bytes()
    hashes = {
        kind: base64.b64encode(hashlib.sha256(_inline(body, kind)).digest()).decode() for kind in ("script", "style")
    }
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return body, {"Content-Security-Policy": policy, **PRIVATE}


def _inline(body: bytes, kind: str) -> bytes:
    found = re.search(rb"<%b>(.*?)</%b>" % (kind.encode(), kind.encode()), body, re.S)
    return found[1] if found is not None else b""


#: Headers against caching, framing by other sites, and content sniffing.
PRIVATE = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
