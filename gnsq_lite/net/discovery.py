"""Polls the nsqlookupds for a topic, and says which nsqds to connect to (DISC-1 to DISC-6).

A round asks every nsqlookupd at once.  Each answer is acted upon when it comes, so a slow one delays no other;
:class:`~gnsq_lite.policy.wanted_nodes.WantedNodes` decides what an answer changes.  What fails leaves all as it was and
is logged when an nsqlookupd begins to fail, not each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Dialect, Endpoint, Lookup, Members, Role
from gnsq_lite.errors import NSQError
from gnsq_lite.net.addresses import mapped, without_credentials
from gnsq_lite.net.ask_lookupds import Fetch, Lookupds
from gnsq_lite.net.settings import AddressMap
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Event, wait_or_set
from gnsq_lite.options import Address, LookupOptions, format_address
from gnsq_lite.policy.polls import PollTimes
from gnsq_lite.policy.rng import Rng
from gnsq_lite.policy.wanted_nodes import Connect, Forget, Health, WantedNodes

log = logging.getLogger("gnsq_lite.discovery")

#: Seconds between two looks whether a publish waits.
_LOOK_EVERY = 1.0
#: Most refused or unusable entries that are logged, each once.
_MOST_TOLD = 1_000


class LookupSettings(Protocol):
    """The settings of a Reader's or a Writer's core that say where and how to look up."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def endpoints(self) -> Sequence[Endpoint]: ...

    @property
    def lookupds(self) -> Sequence[str]: ...

    @property
    def lookup(self) -> LookupOptions: ...

    @property
    def address_map(self) -> AddressMap | None: ...

    @property
    def allowed_addresses(self) -> Callable[[str, int], bool] | None: ...


class Discovery:
    """Discovery of one topic.  Made and used in one thread; ``run()`` is for a greenlet of its own.

    Args:
        lookupds: Addresses, ``host:port`` or http(s) URLs.
        path: Path and query to ask for.
        parse: Makes a :class:`~gnsq_lite.dialect.Lookup` of an answer.  Raises HTTPResponseError.
        direct: Endpoints that are connected to anyway: never found.
        on_found: Called with endpoints to connect to; :meth:`connected` and :meth:`disconnected` say what came of it.
        on_lookup: Called with (nsqlookupd, Lookup) for each good answer, before *on_found*.
        on_forget: Called with endpoints that are disconnected and no longer listed.
        on_round: Called when each nsqlookupd that was asked has answered or failed.
        publish_waits: Says whether a publish waits for an nsqd: polls are urgent then.
        allowed: Says of (broadcast_address, tcp_port) whether it may be connected to, and of an nsqlookupd that was
            named by another (YZ-1); what it refuses is in no Lookup, and a refusal is logged once.
        address_map: Where to connect to, as the Reader's; one that leads to a *direct* endpoint is not found either.
        dialect: Asked for what else it knows of nsqlookupds: Youzan's name each other (YZ-1).
        fetch: Asks one nsqlookupd; None: over HTTP.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        *,
        path: str,
        parse: Callable[[Any], Lookup],
        options: LookupOptions,
        clock: Clock,
        rng: Rng,
        direct: Iterable[Endpoint] = (),
        on_found: Callable[[tuple[Endpoint, ...]], Any] | None = None,
        on_lookup: Callable[[str, Lookup], Any] | None = None,
        on_forget: Callable[[tuple[Endpoint, ...]], Any] | None = None,
        on_round: Callable[[], Any] | None = None,
        publish_waits: Callable[[], bool] | None = None,
        allowed: Callable[[str, int], bool] | None = None,
        address_map: AddressMap | None = None,
        dialect: Dialect | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        seeds = tuple(dict.fromkeys(lookupds))
        members: Members | None = None
        if dialect is not None:
            members = dialect.lookupd_members(tuple(without_credentials(seed) for seed in seeds), clock)
        self._lookupds = Lookupds(seeds, options, fetch, members)
        self._clock, self._interval, self._dialect = clock, options.lookupd_poll_interval, dialect
        self._next_listing = 0.0
        self._direct = frozenset(direct)
        self._wanted: WantedNodes[Endpoint] = WantedNodes(self._lookupds.addresses, clock=clock)
        self._polls, self._publish_waits = PollTimes(options, clock, rng), publish_waits
        self._has_found = False  # an nsqlookupd has ever listed an nsqd
        self._path, self._parse = path, parse
        self._on_found, self._on_lookup, self._on_forget = on_found, on_lookup, on_forget
        self._on_round = on_round
        self._allowed, self._address_map = allowed, address_map
        self._lookups: dict[str, Lookup] = {}
        self._told: set[str] = set()
        self._due: set[str] = set()  # those of this round that have not answered
        self._heard = False  # one of this round has
        self._wake = Event()
        self._stopped = False

    @classmethod
    def of(
        cls, settings: LookupSettings, topic: str, role: Role, rng: Rng, clock: Clock, **called: Callable[..., Any]
    ) -> Discovery:
        """Return the discovery of a Reader's topic, of one to publish to, or of all nsqds ("" to "write").

        *called* are the ``on_...`` arguments.  Raises OptionError.
        """
        dialect = settings.dialect
        return cls(
            settings.lookupds,
            path=dialect.lookup_path(topic, role),
            parse=lambda data: dialect.parse_lookup(topic, role, data),
            options=settings.lookup,
            clock=clock,
            rng=rng,
            direct=settings.endpoints,
            allowed=settings.allowed_addresses,
            address_map=settings.address_map,
            dialect=dialect,
            **called,
        )

    # -- the loop

    def run(self) -> None:
        """Ask at the start, then periodically with jitter (DISC-4), and whenever :meth:`poke` says, until stopped.

        While no nsqd was ever found, or a publish waits for one, ask often: :mod:`gnsq_lite.policy.polls`.
        """
        while not self._stopped:
            self._wake.clear()
            urgent = not self._has_found or (self._publish_waits is not None and self._publish_waits())
            left = self._polls.left(urgent)
            if left > 0.0:
                wait_or_set(self._wake, left if self._publish_waits is None else min(left, _LOOK_EVERY))
                continue
            self._polls.begin(urgent)
            self.ask()

    def ask(self) -> None:
        """Ask every nsqlookupd that owes no answer; returns at once."""
        if self._due and self._heard:  # who is still silent must not keep the others' round from ending
            self._finish()
        self._due.update(self._lookupds.ask(self._path, self._parse, self._answered))

    def poke(self) -> None:
        """Poll now instead of at the next turn, as after a partition's leader moved (YZ-8)."""
        self._polls.hasten()
        self._wake.set()

    def stop(self) -> None:
        """End the loop and the questions under way."""
        self._stopped = True
        self._wake.set()
        self._lookupds.close()

    def abandon(self) -> None:
        """In a forked child: the questions under way are the parent's; the caller ends :meth:`run`."""
        self._stopped = True
        self._lookupds.abandon()

    # -- answers

    def _answered(self, address: str, lookup: Lookup | None, error: NSQError | None) -> None:
        if self._stopped:
            return
        if lookup is None and not self._lookupds.knows(address):
            self._wanted.dropped(address)
            self._lookups.pop(address, None)
        elif lookup is None:
            self._wanted.failed(address, error)
            self._log_changes()
        else:
            lookup = self._lookups[address] = self._narrowed(lookup)
            self._has_found = self._has_found or bool(lookup.endpoints)
            decisions = self._wanted.answered(address, self._not_direct(lookup.endpoints))
            self._log_changes()
            self._call(self._on_lookup, address, lookup)
            self._act(decisions)
        if address in self._due:
            self._heard = True
            self._due.discard(address)
            if not self._due:
                self._finish()
        dialect = self._dialect
        if lookup is None or dialect is None or not self._lookupds.may_grow or self._clock.now() < self._next_listing:
            return
        self._next_listing = self._clock.now() + self._interval
        self._lookupds.ask_one(address, dialect.lookupds_path(), dialect.parse_lookupds, self._listed, counts=False)

    def _listed(self, address: str, lookupds: tuple[Address, ...] | None, error: NSQError | None) -> None:
        if lookupds is None:
            log_safely(log, logging.DEBUG, "nsqlookupd %s names no others: %s", address, error)
        elif self._lookupds.add([format_address(named) for named in lookupds if self._may_ask(named)]):
            self.poke()

    def _may_ask(self, named: Address) -> bool:
        """Whether the nsqlookupd at *named* is known, or may be connected to."""
        name = format_address(named)
        return self._lookupds.knows(name) or self._may(named, f"an nsqlookupd names the nsqlookupd {name}")

    def _finish(self) -> None:
        self._due.clear()
        self._heard = False
        self._act(self._wanted.finish_round())
        self._call(self._on_round)

    def _act(self, decisions: Iterable[Connect[Endpoint] | Forget[Endpoint]]) -> None:
        found: list[Endpoint] = []
        forgotten: list[Endpoint] = []
        for decision in decisions:
            if isinstance(decision, Connect):
                log_safely(log, logging.DEBUG, "nsqlookupd %s lists %s", decision.source, decision.key)
                found.append(decision.key)
            else:
                forgotten.append(decision.key)
        if forgotten:
            self._call(self._on_forget, tuple(forgotten))
        if found:
            self._call(self._on_found, tuple(found))

    def _call(self, hook: Callable[..., Any] | None, *args: Any) -> None:
        if hook is None:
            return
        try:
            hook(*args)
        except Exception as error:  # the decisions that are left must still be carried out
            log_safely(log, logging.ERROR, "what discovery found could not be acted upon", exc_info=error)

    def _narrowed(self, lookup: Lookup) -> Lookup:
        """Return the answer without what may not be connected to; log that, and unusable entries."""
        for reason in lookup.left_out:
            self._tell("an nsqlookupd lists %s; it is left out", reason)
        if self._allowed is None:
            return lookup
        verdicts: dict[Address, bool] = {}

        def may(endpoint: Endpoint) -> bool:
            verdict = verdicts.get(endpoint.address)
            if verdict is None:
                verdict = self._may(endpoint.address, f"an nsqlookupd lists {format_address(endpoint.address)}")
                verdicts[endpoint.address] = verdict
            return verdict

        return lookup.only(may)

    def _may(self, address: Address, who: str) -> bool:
        try:
            allowed = self._allowed is None or bool(self._allowed(*address))
        except Exception:
            self._tell("allowed_addresses failed on %s, which is ignored", format_address(address), failed=True)
            return False
        if not allowed:
            self._tell("%s, which allowed_addresses refuses", who)
        return allowed

    def _not_direct(self, endpoints: Iterable[Endpoint]) -> Iterable[Endpoint]:
        """Yield those that are not connected to anyway, as the address map has it."""
        for endpoint in endpoints:
            try:
                target = mapped(self._address_map, endpoint)
            except Exception:
                self._tell("address_map failed on %s, which is ignored", str(endpoint), failed=True)
                continue
            connected_to = endpoint if target is None else Endpoint(*target, endpoint.partition)
            if endpoint not in self._direct and connected_to not in self._direct:
                yield endpoint

    def _tell(self, form: str, what: str, *, failed: bool = False) -> None:
        """Log it once; the answers of an nsqlookupd that makes up ever new ones fill neither the log nor the memory."""
        if what in self._told or len(self._told) > _MOST_TOLD:
            return
        self._told.add(what)
        if len(self._told) > _MOST_TOLD:
            log_safely(
                log,
                logging.WARNING,
                "nsqlookupds list more entries that are refused or unusable; further ones are not logged",
            )
        else:
            log.log(logging.ERROR if failed else logging.WARNING, form, what, exc_info=failed)

    def _log_changes(self) -> None:
        for change in self._wanted.take_changes():
            if not change.ok:
                log_safely(
                    log,
                    logging.WARNING,
                    "nsqlookupd %s fails; what it said before counts on: %s",
                    change.lookupd,
                    change.error,
                )
            elif change.after:
                log_safely(
                    log, logging.INFO, "nsqlookupd %s answers again, after %d failures", change.lookupd, change.after
                )
            else:
                log_safely(log, logging.INFO, "nsqlookupd %s answers", change.lookupd)

    # -- connections

    def connected(self, endpoint: Endpoint) -> None:
        """*endpoint* is connected: not to be found again."""
        self._wanted.connected(endpoint)

    def disconnected(self, endpoint: Endpoint) -> None:
        """*endpoint* is not connected, or could not be: found again by a later poll that lists it (CONN-4)."""
        forgotten = self._wanted.disconnected(endpoint)
        if not self._stopped:
            self._act(forgotten)

    # -- state

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The union of the last good answers (DISC-2)."""
        return self._wanted.listed

    @property
    def said(self) -> Mapping[str, Lookup]:
        """The last good answer of each nsqlookupd, by its address, though it may fail now."""
        return self._lookups

    def health(self) -> dict[str, Health[Endpoint]]:
        """Return the state of each nsqlookupd by its address."""
        return self._wanted.health()
