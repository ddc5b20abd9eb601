"""Calls a URL for each message's body; what ``gnsq-lite to-http`` does."""

from __future__ import annotations

import itertools
import random
from urllib.parse import quote

import urllib3

from gnsq_lite.errors import HTTPError


class HookFailed(HTTPError):
    """A destination did not answer with 2xx: the message is requeued."""


class Caller:
    """Sends bodies to one destination each, in turn, or to all.  Safe to share between threads."""

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
        self._calls = [("POST", url) for url in posts] + [("GET", url) for url in gets]
        self._turn = itertools.count()
        self._all, self._sample, self._headers = mode == "multicast", sample, headers
        self._pool = urllib3.PoolManager(
            maxsize=concurrency,
            timeout=urllib3.Timeout(connect=connect_timeout, read=request_timeout, total=request_timeout),
            retries=False,
        )
        self.sent = self.skipped = 0

    def send(self, body: bytes) -> None:
        """Send it; raise where a destination did not take it."""
        if self._sample < 1.0 and random.random() >= self._sample:
            self.skipped += 1
            return
        if self._all:
            for method, url in self._calls:
                self._call(method, url, body)
        else:
            method, url = self._calls[next(self._turn) % len(self._calls)]
            self._call(method, url, body)
        self.sent += 1

    def _call(self, method: str, url: str, body: bytes) -> None:
        try:
            if method == "POST":
                answer = self._pool.request("POST", url, body=body, headers=self._headers, preload_content=False)
            else:
                target = url.replace("%s", quote(body, safe=""))
                answer = self._pool.request("GET", target, headers=self._headers, preload_content=False)
        except urllib3.exceptions.HTTPError as error:
            raise HookFailed(url, f"{method}: {error}") from error
        try:
            answer.read(64 * 1024)
            if not 200 <= answer.status < 300:
                raise HookFailed(url, f"{method}: HTTP {answer.status}")
        finally:
            answer.drain_conn() if answer.status < 300 else answer.close()
            answer.release_conn()
