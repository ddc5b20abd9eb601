"""All nsqlookupds of a Reader or Writer, asked side by side: none waits for another, no greenlet for any (DISC-1).

Each question runs in a greenlet of its own, with a time limit for the whole answer; a nsqlookupd that has not answered
the last question yet is not asked again.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gevent

from gnsq_lite.errors import HTTPResponseError, HTTPStatusError, NSQError, printable
from gnsq_lite.http import LookupdClient
from gnsq_lite.http.lookupd import is_unknown_topic
from gnsq_lite.net.offload import call_cooperatively
from gnsq_lite.options import LookupOptions, TLSOptions

log = logging.getLogger("gnsq_lite.discovery")

#: Asks one nsqlookupd: (address, path and query) -> decoded JSON without its wrapper.  Raises HTTPError.
Fetch = Callable[[str, str], Any]
#: Is told what came of a question: (address, what the parser made of the answer, or None and the error).
Done = Callable[[str, Any, NSQError | None], None]

#: No answer may list more nsqds, partitions or channels; there may be no more nsqlookupds.
MAX_LISTED = 10_000


class Lookupds:
    """Asks; keeps no answers.  Used in one thread; none of its methods waits.  Raises OptionError for a bad address."""

    def __init__(self, addresses: Iterable[str], options: LookupOptions, fetch: Fetch | None = None) -> None:
        self._options = options
        self._busy: dict[str, Any] = dict.fromkeys(addresses)
        self._own_fetch = fetch
        # Made now, not when they are needed: a CA file that cannot be read is an error at once.
        self._clients = {} if fetch else {address: open_client(address, options) for address in self._busy}
        self._unknown: set[str] = set()
        self._closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nsqlookupds that are asked, the configured ones first."""
        return tuple(self._busy)

    def add(self, addresses: Iterable[str]) -> None:
        """Ask these too, which another nsqlookupd named (YZ-1)."""
        for address in addresses:
            if address not in self._busy and len(self._busy) < MAX_LISTED:
                log.info("nsqlookupd %s was found", address)
                self._busy[address] = None

    def ask(self, path: str, parse: Callable[[Any], Any], done: Done) -> list[str]:
        """Ask every nsqlookupd that owes no answer; return which.

        *done* is called for each of them, in a greenlet, as the answers come.  A topic that is not known is
        ``parse({"channels": [], "producers": []})`` (DISC-5).
        """
        asked = [address for address, busy in self._busy.items() if busy is None]
        for address in asked:
            greenlet = gevent.Greenlet(self._ask, address, path, parse, done)
            greenlet.name = f"gnsq_lite-lookupd {address}"
            self._busy[address] = greenlet
            greenlet.start()
        return asked

    def _ask(self, address: str, path: str, parse: Callable[[Any], Any], done: Done) -> None:
        parsed: Any = None
        failure: NSQError | None = None
        try:
            parsed = parse(self._answer(address, path))
        except NSQError as error:
            failure = error
        except Exception as error:  # a parser that meets what it did not foresee must not end discovery
            failure = HTTPResponseError(address, f"{type(error).__name__}: {printable(str(error))[:200]}")
        finally:
            self._busy[address] = None
        if self._closed:
            return
        try:
            done(address, parsed, failure)
        except Exception:
            log.exception("the answer of nsqlookupd %s could not be acted upon", address)

    def _answer(self, address: str, path: str) -> Any:
        try:
            data = self._fetch(address, path)
        except HTTPStatusError as error:
            if not is_unknown_topic(error):
                raise
            if address not in self._unknown:
                self._unknown.add(address)
                log.info("nsqlookupd %s does not know %s yet: %s", address, path, error.text)
            return {"channels": [], "producers": []}
        self._unknown.discard(address)
        if isinstance(data, Mapping):
            for key, value in data.items():
                if isinstance(value, (list, Mapping)) and len(value) > MAX_LISTED:
                    why = f"{printable(str(key))[:40]} lists {len(value)}; at most {MAX_LISTED} are accepted"
                    raise HTTPResponseError(address, why)
        return data

    def _fetch(self, address: str, path: str) -> Any:
        if self._own_fetch is not None:
            return self._own_fetch(address, path)
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = open_client(address, self._options, found=True)
        return client.get_json(path)

    def close(self) -> None:
        """Ask no more; answers that still come are dropped."""
        self._closed = True
        here = gevent.getcurrent()
        for greenlet in self._busy.values():
            if greenlet is not None and greenlet is not here:
                greenlet.kill(block=False)
        for client in self._clients.values():
            client.close()


def open_client(address: str, options: LookupOptions, *, found: bool = False) -> LookupdClient:
    """Return the client for *address*, ``host:port`` or a URL, whose scheme alone says whether it is TLS.

    One that was *found*, and not configured, gets no token: whoever answers for a nsqlookupd must not collect it.
    """
    tls: bool | TLSOptions | ssl.SSLContext | None = options.lookupd_tls if address.startswith("https://") else None
    return LookupdClient(
        address,
        runner=call_cooperatively,
        http_timeout=options.lookupd_timeout,
        http_connect_timeout=min(5.0, options.lookupd_timeout),
        http_max_body=options.lookupd_max_body,
        http_pool_size=1,
        tls=tls,
        auth_token=None if found else options.lookupd_token,
    )
