"""Calls a URL for each message's body; what ``gnsq-lite to-http`` does."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from http.client import HTTPException
from urllib.parse import quote

import urllib3

from gnsq_lite.errors import HTTPError, OptionError
from gnsq_lite.http.transport import deadline, open_pool
from gnsq_lite.options import HTTPOptions

#: Bytes of an answer that are read so that its connection serves the next call; after a longer one it is closed.
_ANSWER = 64 * 1024


class HookFailed(HTTPError):
    """A destination did not answer with 2xx: the message is requeued."""


class Caller:
    """Sends bodies to one destination each, in turn, or to all.  Safe to share between threads.

    Args:
        request_timeout: Seconds a call may take, the whole of its answer included.

    Raises:
        OptionError: a URL is none of http or https, or a header cannot be sent.
    """

    def __init__(
        self,
        posts: tuple[str, ...],
        gets: tuple[str, ...],
        *,
        mode: str,
        sample: float,
        headers: dict[str, str],
        connect_timeout: float,
        request_timeout: float,
        concurrency: int,
    ) -> None:
        _check_headers(headers)
        pooled = HTTPOptions(http_pool_size=concurrency, environment_proxies=False)
        self._calls = [
            (method, url, open_pool(*_checked(url), pooled, {}))
            for method, urls in (("POST", posts), ("GET", gets))
            for url in urls
        ]
        self._turn = itertools.count()
        self._all, self._sample, self._headers = mode == "multicast", sample, headers
        self._timeout = urllib3.Timeout(connect=connect_timeout, read=request_timeout, total=request_timeout)
        self._seconds = request_timeout
        self.sent = self.skipped = 0

    def send(self, body: bytes) -> None:
        """Send it; raise where a destination did not take it."""
        if self._sample < 1.0 and random.random() >= self._sample:
            self.skipped += 1
            return
        if self._all:
            for call in self._calls:
                self._call(*call, body)
        else:
            self._call(*self._calls[next(self._turn) % len(self._calls)], body)
        self.sent += 1

    def _call(self, method: str, url: str, pool: urllib3.PoolManager, body: bytes) -> None:
        target, sent = (url, body) if method == "POST" else (url.replace("%s", quote(body, safe="")), None)
        try:
            with deadline(self._seconds):
                answer = pool.request(
                    method,
                    target,
                    body=sent,
                    headers=self._headers,
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
        parts = urllib3.util.parse_url(url.replace("%s", "x"))
    except urllib3.exceptions.LocationParseError:
        parts = urllib3.util.Url()
    if parts.scheme not in ("http", "https") or not parts.host:
        raise OptionError("url", url, "must be http://host[:port]/... or https://host[:port]/...")
    return parts.scheme, parts.host, parts.port or (443 if parts.scheme == "https" else 80)


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raise OptionError for what http.client would refuse at each call."""
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise OptionError("header", name, "is no name of a header")
        if any(letter > "\xff" or letter in "\r\n\0" for letter in value):
            raise OptionError("header", name, "its value must be one line of latin-1 text")
