"""All nsqlookupds of a topic, asked side by side: none waits for another, and no greenlet waits for any (DISC-1).

Each question runs in a greenlet of its own, with a time limit for the whole answer; a nsqlookupd that has not answered
the last question yet is not asked again.  Bad answers are counted, kept for ``health()`` and logged when the state of
a nsqlookupd changes, not each time (DISC-6).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent

from gnsq_lite.clock import Clock
from gnsq_lite.errors import HTTPResponseError, HTTPStatusError, NSQError, printable
from gnsq_lite.http import LookupdClient
from gnsq_lite.http.lookupd import is_unknown_topic
from gnsq_lite.net.offload import call_cooperatively
from gnsq_lite.options import LookupOptions, TLSOptions

log = logging.getLogger("gnsq_lite.discovery")

#: Asks one nsqlookupd: (address, path and query) -> decoded JSON without its wrapper.  Raises HTTPError.
Fetch = Callable[[str, str], Any]

#: No answer may list more nsqds, partitions or channels.
MAX_LISTED = 10_000

#: Failures in a row after which a nsqlookupd that another one named, and nobody configured, is forgotten.
_FORGET_AFTER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdHealth:
    """How a nsqlookupd does.  Counts are since the start."""

    #: "unknown" before the first answer, then "up" or "down".
    state: str
    #: Why it is down; None otherwise.
    error: str | None
    #: Good answers, bad ones, and the bad ones since the last good one.
    answers: int
    failures: int
    failures_in_a_row: int
    #: Seconds since the last good answer; None: there was none.
    last_answer_ago: float | None
    #: False: found by asking another nsqlookupd (YZ-1).
    configured: bool


class _Lookupd:
    __slots__ = ("answered_at", "answers", "busy", "configured", "error", "failures", "in_a_row", "state")

    def __init__(self, configured: bool) -> None:
        self.configured = configured
        self.state = "unknown"
        self.error: str | None = None
        self.answers = self.failures = self.in_a_row = 0
        self.answered_at: float | None = None
        self.busy: Any = None


class Lookupds:
    """The nsqlookupds of one Reader or Writer.  Used in one thread; none of its methods waits."""

    def __init__(
        self,
        addresses: Iterable[str],
        options: LookupOptions,
        clock: Clock,
        fetch: Fetch | None = None,
    ) -> None:
        self._options, self._clock = options, clock
        self._known = {address: _Lookupd(configured=True) for address in addresses}
        self._fetch = fetch or self._get
        # Made now, not when they are needed: a CA file that cannot be read is an error at once.
        self._clients = {} if fetch else {address: open_client(address, options) for address in self._known}
        self._closed = False

    # -- asking

    def ask(
        self,
        path: str,
        parse: Callable[[Any], Any],
        done: Callable[[str, Any, NSQError | None], None],
    ) -> Sequence[str]:
        """Ask every nsqlookupd that owes no answer; return which.

        ``done(address, parsed, error)`` is called for each of them, in a greenlet, as the answers come; a topic that
        is not known is ``parse({"producers": []})`` (DISC-5).
        """
        asked = [address for address, lookupd in self._known.items() if lookupd.busy is None]
        for address in asked:
            lookupd = self._known[address]
            lookupd.busy = gevent.Greenlet(self._ask, address, lookupd, path, parse, done)
            lookupd.busy.name = f"gnsq_lite-lookupd {address}"
            lookupd.busy.start()
        return asked

    def _ask(
        self,
        address: str,
        lookupd: _Lookupd,
        path: str,
        parse: Callable[[Any], Any],
        done: Callable[[str, Any, NSQError | None], None],
    ) -> None:
        parsed: Any = None
        failure: NSQError | None = None
        try:
            parsed = parse(self._answer(address, path))
        except NSQError as error:
            failure = error
        except Exception as error:  # a parser that meets what it did not foresee must not end discovery
            failure = HTTPResponseError(address, f"{type(error).__name__}: {printable(str(error))[:200]}")
        finally:
            lookupd.busy = None
        if self._closed:
            return
        if failure is None:
            self._succeeded(address, lookupd)
        else:
            self._failed(address, lookupd, failure)
        try:
            done(address, parsed, failure)
        except Exception:
            log.exception("an answer of nsqlookupd %s could not be acted upon", address)

    def _answer(self, address: str, path: str) -> Any:
        try:
            data = self._fetch(address, path)
        except HTTPStatusError as error:
            if is_unknown_topic(error):
                return {"channels": [], "producers": []}
            raise
        if isinstance(data, Mapping):
            for key, value in data.items():
                if isinstance(value, (list, Mapping)) and len(value) > MAX_LISTED:
                    why = f"{printable(str(key))[:40]} lists {len(value)}; at most {MAX_LISTED} are accepted"
                    raise HTTPResponseError(address, why)
        return data

    def _get(self, address: str, path: str) -> Any:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = open_client(address, self._options)
        return client.get_json(path)

    # -- their state

    def _succeeded(self, address: str, lookupd: _Lookupd) -> None:
        if lookupd.state != "up":
            log.info("nsqlookupd %s answers%s", address, " again" if lookupd.state == "down" else "")
        lookupd.state, lookupd.error = "up", None
        lookupd.answers += 1
        lookupd.in_a_row = 0
        lookupd.answered_at = self._clock.now()

    def _failed(self, address: str, lookupd: _Lookupd, error: NSQError) -> None:
        level = logging.DEBUG if lookupd.state == "down" else logging.WARNING
        log.log(level, "nsqlookupd %s fails, what it said before still counts: %s", address, error)
        lookupd.state, lookupd.error = "down", str(error)
        lookupd.failures += 1
        lookupd.in_a_row += 1
        if not lookupd.configured and lookupd.in_a_row >= _FORGET_AFTER:
            self._forget(address)

    def health(self) -> dict[str, LookupdHealth]:
        """Return the state of each nsqlookupd by its address."""
        now = self._clock.now()
        return {
            address: LookupdHealth(
                state=known.state,
                error=known.error,
                answers=known.answers,
                failures=known.failures,
                failures_in_a_row=known.in_a_row,
                last_answer_ago=None if known.answered_at is None else now - known.answered_at,
                configured=known.configured,
            )
            for address, known in self._known.items()
        }

    # -- who they are

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nsqlookupds that are asked, the configured ones first."""
        return tuple(self._known)

    def add_found(self, addresses: Iterable[str]) -> None:
        """Ask these too, until they fail several times in a row (YZ-1)."""
        for address in addresses:
            if address not in self._known and len(self._known) < MAX_LISTED:
                log.info("nsqlookupd %s was found", address)
                self._known[address] = _Lookupd(configured=False)

    def _forget(self, address: str) -> None:
        log.info("nsqlookupd %s is forgotten: it fails and was not configured", address)
        del self._known[address]
        client = self._clients.pop(address, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        """Ask no more; answers that still come are dropped."""
        self._closed = True
        here = gevent.getcurrent()
        for lookupd in self._known.values():
            if lookupd.busy is not None and lookupd.busy is not here:
                lookupd.busy.kill(block=False)
        for client in self._clients.values():
            client.close()


def open_client(address: str, options: LookupOptions) -> LookupdClient:
    """Return the client for *address*, ``host:port`` or a URL.  TLS and no more than the scheme says: https."""
    tls: bool | TLSOptions | ssl.SSLContext | None = options.lookupd_tls if address.startswith("https://") else None
    return LookupdClient(
        address,
        runner=call_cooperatively,
        http_timeout=options.lookupd_timeout,
        http_connect_timeout=min(5.0, options.lookupd_timeout),
        http_max_body=options.lookupd_max_body,
        http_pool_size=1,
        tls=tls,
        auth_token=options.lookupd_token,
    )
