"""Finds the nsqds of a topic with nsqlookupd, and decides to which of them to connect (DISC-1 to DISC-6).

Each nsqlookupd is queried in its own greenlet and with a time limit, so a slow nsqlookupd does not delay another.
An nsqlookupd is queried again only after it has answered or failed.

=====================  ==============================  ==========================================================
nsqd                   when it disconnects             when no nsqlookupd lists it any more
=====================  ==============================  ==========================================================
given directly         its owner reconnects            its owner keeps it
found, and connected   it is reconnected when a later  it stays connected, because the connection proves that it
                       poll lists it (CONN-4)          runs
found, disconnected    --                              it is forgotten
=====================  ==============================  ==========================================================

If an nsqlookupd fails, its last good answer stays valid (DISC-6), but causes no new connections.  While *all* fail,
each failed query reconnects the nsqds in the last answer of that nsqlookupd.  Otherwise an nsqd that restarts during an
outage of all nsqlookupds would have no consumers until the end of the outage.

If the dialect has a ``lookupds_path``, each nsqlookupd lists all nsqlookupds of its cluster (YZ-1).  Discovery queries
the listed nsqlookupds by plain HTTP and without a token.  If any given address is https, discovery asks for no list.
"""

from __future__ import annotations

import logging
import random
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, Lookup, Role
from gnsq_lite.errors import HTTPResponseError, HTTPStatusError, NSQError
from gnsq_lite.net.loop import NoPublishTask, current_greenlet
from gnsq_lite.net.settings import CoreSettings, mapped, without_credentials
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Event
from gnsq_lite.options import Address, LookupOptions, TLSOptions, format_address
from gnsq_lite.policy.reconnect import PollTimes
from gnsq_lite.stats import Health
from gnsq_lite.text import printable

if TYPE_CHECKING:
    from gnsq_lite.http import LookupdClient

log = logging.getLogger("gnsq_lite.discovery")

#: Type of a function of (address of an nsqlookupd, path) that returns decoded JSON or raises HTTPError.
Fetch = Callable[[str, str], Any]

#: Maximum seconds between two checks whether polls are urgent.
_LOOK_EVERY = 1.0
#: Maximum number of refused or unusable entries that are logged.
_MOST_LOGGED = 1_000
#: Maximum number of nsqds, partitions or channels in one answer.
MAX_LISTED = 10_000
#: Maximum number of nsqlookupds that are queried.
MAX_LOOKUPDS = 100


def _ignore(*_: Any) -> None:
    pass


@dataclass(slots=True, eq=False)
class _Lookupd:
    """One nsqlookupd: its client, the running query, and its last answers."""

    client: LookupdClient | None = None
    task: NoPublishTask | None = None
    ok: bool | None = None
    error: str | None = None
    since: float | None = None
    #: Number of successive answers, or of successive failures.  The first was at the time *since*.
    count: int = 0
    #: Endpoints of the last good answer, in its order, without the given nsqds.
    endpoints: dict[Endpoint, None] = field(default_factory=dict)
    lookup: Lookup | None = None
    topic_is_unknown: bool = False


class Discovery:
    """Finds the nsqds of one topic.  Call all methods in one thread, and ``run()`` in a separate greenlet.

    Args:
        settings: The nsqlookupds and the options of queries.  Discovery does not report the given ``endpoints``, nor
            nsqds that ``address_map`` maps to them, because the owner connects to them anyway.  Nsqds that
            ``allowed_addresses`` refuses are in no Lookup, and refused nsqlookupds are not queried.
        topic: The topic to read or to publish to.  "" with *role* "write" finds all nsqds.
        on_found: Called with endpoints to connect to.  The owner later calls :meth:`connected` or :meth:`disconnected`.
        on_lookup: Called with (address of the nsqlookupd, Lookup) for each good answer, before *on_found*.
        on_forget: Called with endpoints that are not connected and no longer listed.
        on_outage: Called for each failed query, unless the last query of another nsqlookupd succeeded.
        publish_waits: Returns whether polls are urgent: a publish waits for an nsqd, or a Reader waits for a leader.
        fetch: Queries an nsqlookupd.  The default queries by HTTP.
    Raises:
        OptionError: The address of an nsqlookupd is invalid, or a CA file cannot be read.
    """

    def __init__(
        self,
        settings: CoreSettings,
        topic: str,
        role: Role,
        rng: random.Random,
        clock: Clock,
        *,
        on_found: Callable[[tuple[Endpoint, ...]], Any] = _ignore,
        on_lookup: Callable[[str, Lookup], Any] = _ignore,
        on_forget: Callable[[tuple[Endpoint, ...]], Any] = _ignore,
        on_outage: Callable[[], Any] = _ignore,
        publish_waits: Callable[[], bool] = lambda: False,
        fetch: Fetch | None = None,
    ) -> None:
        options, dialect = settings.lookup, settings.dialect
        given = {without_credentials(address): address for address in dict.fromkeys(settings.lookupds)}
        self._options, self._clock, self._dialect = options, clock, dialect
        self._get_json = fetch or self._get_over_http
        self._path = dialect.lookup_path(topic, role)
        self._parse: Callable[[Any], Lookup] = partial(dialect.parse_lookup, topic, role)
        self._on_found, self._on_lookup, self._on_forget, self._on_outage = on_found, on_lookup, on_forget, on_outage
        self._allowed, self._address_map = settings.allowed_addresses, settings.address_map
        self._direct = frozenset(settings.endpoints)
        self._lookupds = {
            name: _Lookupd(None if fetch else _open_client(address, options)) for name, address in given.items()
        }
        self._configured = {_server(address) for address in self._lookupds}
        self._finds_lookupds = bool(dialect.lookupds_path) and not any(each.startswith("https://") for each in given)
        self._polls, self._publish_waits = PollTimes(options, clock, rng), publish_waits
        self._next_listing = 0.0
        self._has_found = False  # whether any nsqlookupd has ever listed an nsqd
        #: Maps each found endpoint to whether it is connected or being connected.
        self._known: dict[Endpoint, bool] = {}
        self._logged: set[str] = set()
        self._wake = Event()
        self._stopped = False

    # -- the loop

    def run(self) -> None:
        """Poll now, at intervals with jitter (DISC-4), and after each :meth:`poke`, until a call of :meth:`stop`.

        Polls are more frequent until an nsqd is found, and while *publish_waits* returns True (:class:`PollTimes`).
        """
        while not self._stopped:
            self._wake.clear()
            urgent = not self._has_found or self._publish_waits()
            left = self._polls.left(urgent)
            if left > 0.0:
                self._wake.wait(min(left, _LOOK_EVERY))
            else:
                self._polls.begin(urgent)
                self.poll()

    def poll(self) -> None:
        """Start a query of each nsqlookupd, except those whose last query still runs."""
        for address, lookupd in list(self._lookupds.items()):
            if lookupd.task is None:
                lookupd.task = NoPublishTask(self._query, address, lookupd)
                lookupd.task.name = f"gnsq_lite-lookupd {address}"
                lookupd.task.start()

    def poke(self) -> None:
        """Make :meth:`run` poll now, for example because a partition may have a new leader (YZ-8)."""
        self._polls.hasten()
        self._wake.set()

    def stop(self) -> None:
        """Stop :meth:`run`.  Running queries end with an answer or at their time limit, and the answers are dropped.

        Queries are not killed, because a kill while urllib3 connects would leave the socket to the garbage collector.
        """
        self._stopped = True
        self._wake.set()
        for lookupd in self._lookupds.values():
            if lookupd.client is not None:
                lookupd.client.close()

    def abandon(self) -> None:
        """In a forked child, kill the parent's queries, but do not close HTTP clients, because their locks may be held.

        The caller kills the greenlet of :meth:`run`.
        """
        self._stopped = True
        here = current_greenlet()
        for lookupd in self._lookupds.values():
            if lookupd.task is not None and lookupd.task is not here:
                lookupd.task.kill(block=False)

    # -- one query

    def _query(self, address: str, lookupd: _Lookupd) -> None:
        """Look the topic up.  After a success, also query the list of nsqlookupds, once per poll interval."""
        try:
            self._look_up(address, lookupd)
            if self._finds_lookupds and lookupd.ok and not self._stopped and self._clock.now() >= self._next_listing:
                self._next_listing = self._clock.now() + self._options.lookupd_poll_interval
                self._list_others(address, lookupd)
        finally:
            lookupd.task = None
            if lookupd.client is not None:
                lookupd.client.close()  # the next poll resolves the host name again, and balancers see a new connection

    def _look_up(self, address: str, lookupd: _Lookupd) -> None:
        """Look the topic up, and handle the answer or the failure."""
        try:
            lookup = self._fetch(address, lookupd, self._path, self._parse)
        except NSQError as error:
            if not self._stopped:
                self._failed(address, lookupd, error)
            return
        if not self._stopped:
            self._answered(address, lookupd, lookup)

    def _list_others(self, address: str, lookupd: _Lookupd) -> None:
        """Add the nsqlookupds that *lookupd* lists (YZ-1).  A failure does not change the health of *lookupd*."""
        dialect = self._dialect
        try:
            named = self._fetch(address, lookupd, dialect.lookupds_path, dialect.parse_lookupds)
        except NSQError as error:
            log_safely(log, logging.DEBUG, "nsqlookupd %s cannot list other nsqlookupds: %s", address, error)
            return
        known = len(self._lookupds)
        for each in () if self._stopped else named:
            self._add(each)
        if len(self._lookupds) > known:
            self.poke()

    def _fetch(self, address: str, lookupd: _Lookupd, path: str, parse: Callable[[Any], Any]) -> Any:
        """Query *path*, and return the parsed answer.  An unknown topic has no nsqds (DISC-5).  Raises NSQError."""
        try:
            try:
                data = self._get_json(address, path)
            except HTTPStatusError as error:
                from gnsq_lite.http.lookupd import is_unknown_topic

                if not is_unknown_topic(error):
                    raise
                if not lookupd.topic_is_unknown:
                    log_safely(log, logging.INFO, "nsqlookupd %s: unknown topic in %s: %s", address, path, error.text)
                lookupd.topic_is_unknown, data = True, {"channels": [], "producers": []}
            else:
                lookupd.topic_is_unknown = False
                _check_size(address, data)
            return parse(data)
        except NSQError:
            raise
        except Exception as error:  # no error in a parser may end discovery
            why = f"{type(error).__name__}: {printable(str(error))[:200]}"
            raise HTTPResponseError(address, why) from error

    def _get_over_http(self, address: str, path: str) -> Any:
        lookupd = self._lookupds[address]
        if lookupd.client is None:
            lookupd.client = _open_client(address, self._options, found=True)
        return lookupd.client.get(path).json()

    def _add(self, address: Address) -> None:
        """Add a listed nsqlookupd, if it is new and ``allowed_addresses`` allows its address (YZ-1)."""
        name = format_address(address)
        if _server(name) in self._configured or name in self._lookupds or len(self._lookupds) >= MAX_LOOKUPDS:
            return
        if self._is_allowed(address, "an nsqlookupd names the nsqlookupd"):
            log_safely(log, logging.INFO, "nsqlookupd %s was found", name)
            self._lookupds[name] = _Lookupd()

    # -- answers

    def _answered(self, address: str, lookupd: _Lookupd, lookup: Lookup) -> None:
        lookup = lookupd.lookup = self._filtered(lookup)
        self._has_found = self._has_found or bool(lookup.endpoints)
        lookupd.endpoints = dict.fromkeys(self._without_direct(lookup.endpoints))
        self._set_health(address, lookupd, None)
        self._on_lookup(address, lookup)
        self._connect_to(address, lookupd)
        listed = set(self.endpoints)
        self._forget([key for key, is_up in self._known.items() if not is_up and key not in listed])

    def _failed(self, address: str, lookupd: _Lookupd, error: NSQError) -> None:
        self._set_health(address, lookupd, str(error))
        if not any(each.ok for each in self._lookupds.values()):
            self._connect_to(address, lookupd)
            self._on_outage()

    def _connect_to(self, address: str, lookupd: _Lookupd) -> None:
        """Report the nsqds in the last answer of *lookupd* that are not connected."""
        found = [key for key in lookupd.endpoints if not self._known.get(key)]
        for key in found:
            log_safely(log, logging.DEBUG, "nsqlookupd %s lists %s", address, key)
        self._known.update(dict.fromkeys(found, True))
        if found:
            self._on_found(tuple(found))

    def _forget(self, endpoints: Iterable[Endpoint]) -> None:
        forgotten = tuple(endpoints)
        for key in forgotten:
            del self._known[key]
        if forgotten:
            self._on_forget(forgotten)

    def _set_health(self, address: str, lookupd: _Lookupd, error: str | None) -> None:
        """Record a good answer, or the *error* of a failed query.  Log the first result and each change (DISC-6)."""
        ok, after = error is None, lookupd.count
        lookupd.error = error
        lookupd.count += 1
        if lookupd.ok is ok:
            return
        lookupd.ok, lookupd.since, lookupd.count = ok, self._clock.wall(), 1
        if not ok:
            said = "nsqlookupd %s fails: %s; its last good answer, if any, stays valid"
            log_safely(log, logging.WARNING, said, address, error)
        elif after:
            log_safely(log, logging.INFO, "nsqlookupd %s answers again, after %d failures", address, after)
        else:
            log_safely(log, logging.INFO, "nsqlookupd %s answers", address)

    def _filtered(self, lookup: Lookup) -> Lookup:
        """Return *lookup* without refused endpoints.  Log refused endpoints, and unusable entries of the answer."""
        for reason in lookup.left_out:
            self._log_once("an nsqlookupd lists %s, which is ignored", reason)
        allowed = tuple(each for each in lookup.endpoints if self._is_allowed(each.address, "an nsqlookupd lists"))
        return replace(lookup, endpoints=allowed)

    def _is_allowed(self, address: Address, found: str) -> bool:
        """Return whether ``allowed_addresses`` allows *address*.  If not, log the address after the text *found*."""
        try:
            allowed = self._allowed is None or bool(self._allowed(*address))
        except Exception as error:
            self._log_once("allowed_addresses failed for %s, which is ignored", format_address(address), error)
            return False
        if not allowed:
            self._log_once("%s, which allowed_addresses refuses", f"{found} {format_address(address)}")
        return allowed

    def _without_direct(self, endpoints: Iterable[Endpoint]) -> Iterable[Endpoint]:
        """Yield *endpoints*, except given nsqds, nsqds mapped to given nsqds, and nsqds for which the map fails."""
        for endpoint in endpoints:
            try:
                target = mapped(self._address_map, endpoint)
            except NSQError as error:
                self._log_once("%s; this nsqd is ignored", str(error))
                continue
            connected_to = endpoint if target is None else Endpoint(*target, endpoint.partition)
            if endpoint not in self._direct and connected_to not in self._direct:
                yield endpoint

    def _log_once(self, form: str, text: str, error: Exception | None = None) -> None:
        """Log *text* once, but at most _MOST_LOGGED texts, because an nsqlookupd may invent addresses."""
        if text not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(text)
            log_safely(log, logging.WARNING if error is None else logging.ERROR, form, text, exc_info=error)

    # -- connections

    def connected(self, endpoint: Endpoint) -> None:
        """Mark *endpoint* as connected.  Polls do not report connected endpoints."""
        if endpoint in self._known:
            self._known[endpoint] = True

    def disconnected(self, endpoint: Endpoint) -> None:
        """Mark *endpoint* as not connected, or forget it if no answer lists it.  Later polls may report it (CONN-4)."""
        if endpoint in self._known:
            self._known[endpoint] = False
            if not (self._stopped or any(endpoint in lookupd.endpoints for lookupd in self._lookupds.values())):
                self._forget([endpoint])

    # -- state

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints in the last good answers, without the given nsqds, each once (DISC-2)."""
        return tuple(dict.fromkeys(key for lookupd in self._lookupds.values() for key in lookupd.endpoints))

    def answers(self) -> list[Lookup]:
        """Return the last answer of each nsqlookupd whose last query succeeded."""
        return [each.lookup for each in self._lookupds.values() if each.ok and each.lookup is not None]

    def health(self) -> dict[str, Health]:
        """Return a dict from the address of each nsqlookupd to its state.  Thread-safe."""
        return {
            name: Health(each.ok, each.error, each.since, 0 if each.ok else each.count, tuple(each.endpoints))
            for name, each in list(self._lookupds.items())
        }


def _open_client(address: str, options: LookupOptions, *, found: bool = False) -> LookupdClient:
    """Return an HTTP client of *address*, ``host:port`` or a URL.  Only the scheme https enables TLS.

    If the address was *found* in the answer of another nsqlookupd, the client sends no token.
    """
    from gnsq_lite.http import LookupdClient  # here, because it takes a third of the import time of a Reader

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


def _check_size(address: str, data: Any) -> None:
    """Raise HTTPResponseError if an answer lists more than MAX_LISTED nsqds, partitions or channels."""
    for key, value in data.items() if isinstance(data, Mapping) else ():
        if isinstance(value, (list, Mapping)) and len(value) > MAX_LISTED:
            name = printable(str(key))[:40]
            why = f"the answer has {len(value)} entries in {name!r}; at most {MAX_LISTED} are accepted"
            raise HTTPResponseError(address, why)


def _server(address: str) -> str:
    """Return ``host:port`` of an nsqlookupd whose *address* is ``host:port`` or a URL."""
    return urlsplit(address if "://" in address else f"//{address}").netloc.rpartition("@")[2].lower()
