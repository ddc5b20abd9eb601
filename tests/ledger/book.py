"""The notes of publishers and handlers, and their audit."""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tests.ledger.wire import Passed, Witness

#: Seconds around an event within which a machine under load may see it.
SLACK = 1.5
#: Ways in which a handler ends so that the message is finished.
FINISHING = ("ok", "hang")


class Handled(NamedTuple):
    """A handler was called; noted before it does anything else."""

    worker: str
    number: int
    id: str
    nsqd: str
    at: float
    fate: str


class Event(NamedTuple):
    """Something that explains a redelivery: ``cut`` (a connection to *what* was lost), ``late`` (message *what* was
    answered too late), ``down`` (nsqd *what* was killed), ``killed`` (worker *what*), ``frozen`` and ``thawed``
    (nsqd or worker *what*, by SIGSTOP and SIGCONT).  Or what nothing explains: ``ended`` (a worker, by itself)."""

    worker: str
    kind: str
    what: str
    at: float


class Log:
    """Notes of one process: appended to a file, a line each, so that SIGKILL loses none that was written."""

    def __init__(self, path: str, worker: str) -> None:
        self.worker = worker
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def handled(self, number: int, id: str, nsqd: str, at: float, fate: str) -> None:
        """Note a call of the handler."""
        self._write(Handled(self.worker, number, id, nsqd, at, fate))

    def event(self, kind: str, what: str, at: float, worker: str | None = None) -> None:
        """Note what may explain a redelivery."""
        self._write(Event(self.worker if worker is None else worker, kind, what, at))

    def _write(self, note: Handled | Event) -> None:
        os.write(self._file, json.dumps([type(note).__name__[0], *note]).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_notes(path: str) -> tuple[list[Handled], list[Event]]:
    """Return all notes in order of time."""
    handled: list[Handled] = []
    events: list[Event] = []
    with open(path, "rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # another process is writing it
            kind, *fields = json.loads(line)
            if kind == "H":
                handled.append(Handled(*fields))
            else:
                events.append(Event(*fields))
    return sorted(handled, key=lambda h: h.at), sorted(events, key=lambda e: e.at)


@dataclass
class Sent:
    """What became of the publishes of one number."""

    ok: int = 0
    not_sent: int = 0
    unknown: int = 0
    #: How often the Writer itself sent it again after a lost connection (its ``retries``).
    resent: int = 0
    #: Begin and end of each publish that returned without an error, in seconds of ``time.monotonic()``.
    claims: list[tuple[float, float]] = field(default_factory=list)

    def most_copies(self) -> int:
        """How many copies nsqd can have."""
        return self.ok + self.unknown + self.resent


@dataclass
class Audit:
    """The result of one run."""

    seed: int
    server: str
    messages: int = 0
    faults: int = 0
    lost: list[int] = field(default_factory=list)
    #: Confirmed messages that a real nsqd had in memory when it was killed: its loss, not the client's.
    lost_by_nsqd: list[int] = field(default_factory=list)
    #: Those of them that it had sent to a client.
    lost_in_flight: int = 0
    left: int = 0
    copies: int = 0
    redelivered: dict[str, int] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing was lost, nothing is left, and every duplicate has its fault."""
        return not self.lost and not self.left and not self.unexplained


class Auditor:
    """Explains every handling after a message's first."""

    def __init__(self, events: Sequence[Event], aliases: dict[str, str], msg_timeout: float) -> None:
        self._aliases = aliases
        self._events: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._msg_timeout = msg_timeout
        for event in events:
            self._events[event.kind, event.worker, self._real(event.what)].append(event.at)
        self._ended = [event for event in events if event.kind == "ended"]

    def _real(self, address: str) -> str:
        return self._aliases.get(address, address)

    def _happened(self, kind: str, worker: str, what: str, after: float, before: float) -> bool:
        return any(after <= at <= before for at in self._events.get((kind, worker, what), ()))

    def why(self, first: Handled, again: Handled) -> str | None:
        """Return the fault for which nsqd sent the message of *first* again; None: there is none."""
        nsqd = self._real(first.nsqd)
        since, until = first.at - self._msg_timeout - SLACK, again.at + SLACK
        if first.fate in ("raise", "hang", "exit"):
            return f"handler {first.fate}"
        if self._happened("killed", first.worker, first.worker, since, until):
            return "worker killed"
        if self._happened("cut", first.worker, nsqd, since, until):
            return "connection lost"
        if self._happened("down", "", nsqd, since, until):
            return "nsqd killed"
        for who in (nsqd, first.worker, again.worker):
            if self._happened("frozen", "", who, since, until) or self._happened("thawed", "", who, since, until):
                return "stopped for a while"
        for note in (first, again):  # again: what waited on the way there came to another first
            if self._happened("late", note.worker, note.id, note.at, until + self._msg_timeout):
                return "late answer"
        return None

    def audit(self, result: Audit, handled: list[Handled], sent: dict[int, Sent]) -> None:
        """Fill in *result*."""
        result.unexplained += [f"{event.worker} ended by itself: {event.what}" for event in self._ended]
        by_number: dict[int, list[Handled]] = defaultdict(list)
        for note in handled:
            by_number[note.number].append(note)
        reasons: dict[str, int] = defaultdict(int)
        for number, notes in by_number.items():
            by_copy: dict[tuple[str, str], list[Handled]] = defaultdict(list)
            for note in notes:
                by_copy[self._real(note.nsqd), note.id].append(note)
            result.copies += len(by_copy) - 1
            most = sent[number].most_copies() if number in sent else 0
            if len(by_copy) > most:
                result.unexplained.append(f"{number}: {len(by_copy)} copies in nsqd, at most {most} were sent")
            for copies in by_copy.values():
                for first, again in itertools.pairwise(copies):
                    reason = self.why(first, again)
                    if reason is None:
                        result.unexplained.append(f"{number}: {first} and again {again}")
                    else:
                        reasons[reason] += 1
        result.redelivered = dict(sorted(reasons.items()))
        for number, outcome in sent.items():
            if outcome.ok and number not in by_number:
                result.lost.append(number)

    def hear(self, result: Audit, handled: list[Handled], sent: dict[int, Sent], witness: Witness) -> None:
        """Compare what the clients say with what was on the wire, and move what a killed real nsqd lost to its account.

        That nsqd said OK to it, was killed after that, and never got a FIN: what a client did cannot have lost it.
        """
        result.unexplained += witness.lies
        result.unexplained += _invented(sent, witness)
        result.unexplained += self._more_handlings_than_deliveries(handled, witness)
        result.unexplained += self._more_fins_than_handlings(handled, witness)
        if result.server == "embedded":
            return  # it loses nothing when it is killed
        finished = witness.finished
        theirs = [
            number
            for number in result.lost
            if number not in finished
            and any(self._happened("down", "", nsqd, at, inf) for nsqd, at in witness.confirmed.get(number, ()))
        ]
        result.lost = [number for number in result.lost if number not in theirs]
        result.lost_by_nsqd = theirs
        result.lost_in_flight = len(witness.given.intersection(theirs))

    def _more_handlings_than_deliveries(self, handled: list[Handled], witness: Witness) -> Iterable[str]:
        """The nth handling of a copy by a worker comes after its nth delivery there."""
        delivered = self._times(witness.deliveries)
        for note, before in zip(handled, self._counted(handled), strict=True):
            there = sum(at <= note.at for at in delivered[self._copy(note)])
            if before > there:
                yield f"{note.number}: {before} handlings by {note.worker} for {there} deliveries of {note.id}: {note}"

    def _more_fins_than_handlings(self, handled: list[Handled], witness: Witness) -> Iterable[str]:
        """The nth FIN of a copy by a worker comes after its nth handling there that does not fail."""
        succeeded = self._times([note for note in handled if note.fate in FINISHING])
        for fin, before in zip(witness.fins, self._counted(witness.fins), strict=True):
            there = sum(at <= fin.at for at in succeeded[self._copy(fin)])
            if before > there:
                yield f"{fin.number}: FIN {before} by {fin.worker} of {fin.id}, which {there} handlers had done: {fin}"

    def _copy(self, note: Handled | Passed) -> tuple[str, str, str]:
        return note.worker, self._real(note.nsqd), note.id

    def _times(self, notes: Iterable[Handled | Passed]) -> dict[tuple[str, str, str], list[float]]:
        found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for note in notes:
            found[self._copy(note)].append(note.at)
        return found

    def _counted(self, notes: Iterable[Handled | Passed]) -> Iterable[int]:
        """Yield for each of *notes*, in order of time, the how-manieth of its copy and worker it is."""
        count: dict[tuple[str, str, str], int] = defaultdict(int)
        for note in notes:
            count[self._copy(note)] += 1
            yield count[self._copy(note)]


def _invented(sent: dict[int, Sent], witness: Witness) -> Iterable[str]:
    """Check that an nsqd sent each OK that a Writer reported, between the call of publish() and its return."""
    for number, outcome in sent.items():
        for began, ended in outcome.claims:
            if not any(began <= at <= ended for _, at in witness.confirmed.get(number, ())):
                yield f"{number}: the Writer says OK, no nsqd did"


def table(audits: Iterable[Audit]) -> Iterable[str]:
    """Yield the lines of a table of *audits*."""
    heads = ("seed", "server", "messages", "faults", "lost", "left", "copies", "again", "unexplained", "by nsqd", "s")
    yield " ".join(f"{head:>{len(head) + 2}}" for head in heads)
    for each in audits:
        values = (
            each.seed,
            each.server,
            each.messages,
            each.faults,
            len(each.lost),
            each.left,
            each.copies,
            sum(each.redelivered.values()),
            len(each.unexplained),
            len(each.lost_by_nsqd),
            round(each.seconds, 1),
        )
        yield " ".join(f"{value:>{len(head) + 2}}" for head, value in zip(heads, values, strict=True))
