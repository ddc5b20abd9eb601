"""Calls a URL for each message's body; what ``gnsq-lite to-http`` does."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Protocol
from urllib.parse import quote_plus

import urllib3

from gnsq_lite.errors import HTTPError, OptionError
from gnsq_lite.http.transport import deadline, open_pool
from gnsq_lite.options import HTTPOptions

#: Bytes of an answer that are read so that its connection serves the next call; after a longer one it is closed.
_ANSWER = 64 * 1024


class HookFailed(HTTPError):
    """A destination did not answer with 2xx: the message is requeued."""


class Chooser(Protocol):
    """Says which destination, by its number, a body goes to, and is told how that went."""

    def choose(self) -> int: ...

    def mark(self, number: int, *, ok: bool, seconds: float) -> None: ...


class Caller:
    """Sends bodies to one destination each, or to all.  Safe to share between threads.

    Args:
        posts, gets: URLs; the numbers that *chooser* gives count the former, then the latter.
        chooser: Which destination is next; None: each body goes to all.
        headers: Sent with each call; Content-Type with POST alone.
        request_timeout: Seconds a call may take, the whole of its answer included.
        on_call: Called with a URL and the seconds that a call to it took; with "" and those of a body as a whole.

    Raises:
        OptionError: a URL is none of http or https, or a header cannot be sent.
    """

    def __init__(
        self,
        posts: tuple[str, ...],
        gets: tuple[str, ...],
        *,
        chooser: Chooser | None,
        sample: float,
        headers: dict[str, str],
        connect_timeout: float,
        request_timeout: float,
        concurrency: int,
        on_call: Callable[[str, float], None] = lambda url, seconds: None,
    ) -> None:
        _check_headers(headers)
        pooled = HTTPOptions(http_pool_size=concurrency, environment_proxies=False)
        self._calls = [
            (method, url, open_pool(*_checked(url), pooled, {}))
            for method, urls in (("POST", posts), ("GET", gets))
            for url in urls
        ]
        self._chooser, self._sample, self._on_call = chooser, sample, on_call
        self._headers = {
            "POST": headers,
            "GET": {name: value for name, value in headers.items() if name.lower() != "content-type"},
        }
        self._timeout = urllib3.Timeout(connect=connect_timeout, read=request_timeout, total=request_timeout)
        self._seconds = request_timeout
        self.sent = self.skipped = 0

    def send(self, body: bytes) -> None:
        """Send it; raise where a destination did not take it."""
        if self._sample < 1.0 and random.random() >= self._sample:
            self.skipped += 1
            return
        began = time.monotonic()
        if self._chooser is None:
            for number in range(len(self._calls)):
                self._timed(number, body)
        else:
            self._timed(self._chooser.choose(), body)
        self.sent += 1
        self._on_call("", time.monotonic() - began)

    def _timed(self, number: int, body: bytes) -> None:
        began, ok = time.monotonic(), False
        try:
            self._call(*self._calls[number], body)
            ok = True
        finally:
            seconds = time.monotonic() - began
            if self._chooser is not None:
                self._chooser.mark(number, ok=ok, seconds=seconds)
        self._on_call(self._calls[number][1], seconds)

    def _call(self, method: str, url: str, pool: urllib3.PoolManager, body: bytes) -> None:
        target, sent = (url, body) if method == "POST" else (filled(url, body), None)
        try:
            with deadline(self._seconds):
                answer = pool.request(
                    method,
                    target,
                    body=sent,
                    headers=self._headers[method],
                    preload_content=False,
                    retries=False,
                    timeout=self._timeout,
                )
                is_good = 200 <= answer.status < 300
                is_whole = False
                try:
                    is_whole = is_good and _read(answer)
                finally:
                    if not is_whole:
                        answer.close()
                    answer.release_conn()
        except (urllib3.exceptions.HTTPError, HTTPException, OSError) as error:
            raise HookFailed(url, f"{method}: {error}") from error
        if not is_good:
            raise HookFailed(url, f"{method}: HTTP {answer.status}")


def filled(url: str, body: bytes) -> str:
    """Return *url* with the body for ``%s``, quoted as a form's field is, and ``%`` for ``%%``."""
    return re.sub("%[s%]", lambda found: quote_plus(body) if found[0] == "%s" else "%", url)


def _read(answer: urllib3.BaseHTTPResponse) -> bool:
    """Read the body; return whether that was all of it."""
    left = _ANSWER
    while left > 0:
        data = answer.read(left, decode_content=False)
        if not data:
            return True
        left -= len(data)
    return False


def _checked(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of *url*.  Raises OptionError."""
    try:
        parts = urllib3.util.parse_url(filled(url, b"x"))
    except urllib3.exceptions.LocationParseError:
        parts = urllib3.util.Url()
    if parts.scheme not in ("http", "https") or not parts.host:
        raise OptionError("url", url, "must be http://host[:port]/... or https://host[:port]/...")
    return parts.scheme, parts.host, parts.port or (443 if parts.scheme == "https" else 80)


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raise OptionError for what http.client would refuse at each call."""
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise OptionError("header", name, "is not a valid header name")
        if any(letter > "\xff" or letter in "\r\n\0" for letter in value):
            raise OptionError("header", name, "its value must be one line of latin-1 text")
