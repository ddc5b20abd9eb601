"""All nsqlookupds of a Reader or Writer, asked side by side: none waits for another, no greenlet for any (DISC-1).

Each question runs in a greenlet of its own, with a time limit for the whole answer; an nsqlookupd that has not answered
the last question yet is not asked again.

Where the dialect has a policy of its own (:class:`~gnsq_lite.dialect.Members`), nsqlookupds name each other, and those
that fail rest for a while (YZ-1).  One that was named is asked in plain HTTP and gets no token; so where a configured
address is https, none is asked for.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gnsq_lite.dialect import Members, Verdict
from gnsq_lite.errors import HTTPResponseError, HTTPStatusError, NSQError, printable
from gnsq_lite.net.addresses import without_credentials
from gnsq_lite.net.loop import Task, current_greenlet
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import LookupOptions, TLSOptions

if TYPE_CHECKING:
    from gnsq_lite.http import LookupdClient

log = logging.getLogger("gnsq_lite.discovery")

#: Asks one nsqlookupd: (address, path and query) -> decoded JSON without its wrapper.  Raises HTTPError.
Fetch = Callable[[str, str], Any]
#: Is told what came of a question: (address, what the parser made of the answer, or None and the error).
Done = Callable[[str, Any, NSQError | None], None]

#: No answer may list more nsqds, partitions or channels.
MAX_LISTED = 10_000
#: No more nsqlookupds are asked, whatever they say of each other.
MAX_LOOKUPDS = 100


class Lookupds:
    """Asks; keeps no answers.  Used in one thread; none of its methods waits.  Raises OptionError for a bad address."""

    def __init__(
        self,
        addresses: Iterable[str],
        options: LookupOptions,
        fetch: Fetch | None = None,
        members: Members | None = None,
    ) -> None:
        self._options, self._members = options, members
        given = {without_credentials(address): address for address in addresses}
        self._busy: dict[str, Any] = dict.fromkeys(given)
        self._same = {_server(address): address for address in self._busy}
        self.may_grow = members is not None and not any(a.startswith("https://") for a in self._busy)
        self._own_fetch = fetch
        # Made now, not when they are needed: a CA file that cannot be read is an error at once.
        self._clients = {} if fetch else {name: open_client(address, options) for name, address in given.items()}
        self._unknown: set[str] = set()
        self._closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nsqlookupds that are known, the configured ones first, without their credentials."""
        return tuple(self._busy)

    def knows(self, address: str) -> bool:
        """Whether it is one of them, however its address is written."""
        return self._same.get(_server(address), address) in self._busy

    def add(self, addresses: Iterable[str]) -> bool:
        """Take what an nsqlookupd says of which there are; return whether there are new ones to ask (YZ-1)."""
        if self._members is None or not self.may_grow:
            return False
        named = dict.fromkeys(self._same.get(_server(address), address) for address in addresses)
        new = [address for address in named if address not in self._busy]
        for address in new[max(0, MAX_LOOKUPDS - len(self._busy)) :]:  # not even remembered
            del named[address]
        found = self._members.found(named)
        for address in found:
            log_safely(log, logging.INFO, "nsqlookupd %s was found", address)
            self._busy.setdefault(address, None)
        return bool(found)

    def ask(self, path: str, parse: Callable[[Any], Any], done: Done) -> list[str]:
        """Ask every nsqlookupd that owes no answer, and does not rest; return which.

        *done* is called for each of them, in a greenlet, as the answers come.  A topic that is not known is
        ``parse({"channels": [], "producers": []})`` (DISC-5).
        """
        due = self._busy if self._members is None else self._members.due()
        asked = [address for address in due if address in self._busy and not self._owes(address)]
        for address in asked:
            self.ask_one(address, path, parse, done)
        return asked

    def _owes(self, address: str) -> bool:
        """Whether it is being asked."""
        return self._busy[address] is not None

    def ask_one(self, address: str, path: str, parse: Callable[[Any], Any], done: Done, *, counts: bool = True) -> None:
        """Ask one nsqlookupd that owes no answer.  An answer that does not count tells nothing about its health."""
        greenlet = Task(self._ask, address, path, parse, done, counts)
        greenlet.name = f"gnsq_lite-lookupd {address}"
        self._busy[address] = greenlet
        greenlet.start()

    def _ask(self, address: str, path: str, parse: Callable[[Any], Any], done: Done, counts: bool) -> None:
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
        if counts and self._follow(address, failure) is Verdict.RETRY:
            self.ask_one(address, path, parse, done)
            return
        try:
            done(address, parsed, failure)
        except Exception as error:
            log_safely(
                log, logging.ERROR, "the answer of nsqlookupd %s could not be acted upon", address, exc_info=error
            )

    def _follow(self, address: str, failure: NSQError | None) -> Verdict | None:
        """Tell the policy what came; return its verdict on a failure."""
        if self._members is None:
            return None
        if failure is None:
            self._members.succeeded(address)
            return None
        verdict = self._members.failed(address)
        if verdict is Verdict.FORGOTTEN:
            log_safely(log, logging.INFO, "nsqlookupd %s is forgotten: %s", address, failure)
            del self._busy[address]
            client = self._clients.pop(address, None)
            if client is not None:
                client.close()
        return verdict

    def _answer(self, address: str, path: str) -> Any:
        try:
            data = self._fetch(address, path)
        except HTTPStatusError as error:
            from gnsq_lite.http.lookupd import is_unknown_topic

            if not is_unknown_topic(error):
                raise
            if address not in self._unknown:
                self._unknown.add(address)
                log_safely(log, logging.INFO, "nsqlookupd %s does not know %s yet: %s", address, path, error.text)
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
        return client.get(path).json()

    def close(self) -> None:
        """Ask no more.  Calls under way end by their own time limit, and their answers are dropped.

        A greenlet killed while urllib3 connects would leave its socket to the garbage collector.
        """
        self._closed = True
        for client in self._clients.values():
            client.close()

    def abandon(self) -> None:
        """In a forked child: ask no more, and leave the clients alone: their locks may be held."""
        self._closed = True
        here = current_greenlet()
        for greenlet in self._busy.values():
            if greenlet is not None and greenlet is not here:
                greenlet.kill(block=False)


def open_client(address: str, options: LookupOptions, *, found: bool = False) -> LookupdClient:
    """Return the client for *address*, ``host:port`` or a URL, whose scheme alone says whether it is TLS.

    One that was *found*, and not configured, gets no token: whoever answers for an nsqlookupd must not collect it.
    """
    from gnsq_lite.http import LookupdClient  # late: importing it takes a third of importing a Reader

    tls: bool | TLSOptions | ssl.SSLContext | None = options.lookupd_tls if address.startswith("https://") else None
    return LookupdClient(
        address,
        http_timeout=options.lookupd_timeout,
        http_connect_timeout=min(5.0, options.lookupd_timeout),
        http_max_body=options.lookupd_max_body,
        http_pool_size=1,
        tls=tls,
        auth_token=None if found else options.lookupd_token,
    )


def _server(address: str) -> str:
    """Return what tells nsqlookupds apart, however they are written."""
    return urlsplit(address if "://" in address else f"//{address}").netloc.rpartition("@")[2].lower()
