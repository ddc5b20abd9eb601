"""Where publishes go in a dialect that gives each topic leaders (YZ-4, YZ-5, YZ-8, YZ-12).

Publishes to one topic keep their order: while its route is looked up again they wait in one queue, those that a lost
leader refused in front.  Those of a partition that has no leader are held apart, and the others go on.  None goes to
another partition than its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gnsq_lite.dialect import Endpoint, Lookup, PublishRequest
from gnsq_lite.errors import NotSent, NSQError
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.net.publication import Publication

if TYPE_CHECKING:
    from gnsq_lite.net.producer import Producer

log = logging.getLogger("gnsq_lite.writer")

#: Seconds between two lookups of a topic while publishes wait for its leaders.
_LOOK_AGAIN = 0.25

#: How many pauses, each twice the one before, one publish follows a leader for, and the longest of them, seconds.
#: Tries are not counted: there is one for every answer of a nsqlookupd, and there may be several of those.
_MOST_MOVES = 8
_LONGEST_PAUSE = 2.0


class Topic:
    """One topic's route."""

    def __init__(self) -> None:
        self.lookup: Lookup | None = None
        #: Those that wait for a fresh lookup, and those whose partition has no leader in the last one; in their order.
        self.waiting: deque[Publication] = deque()
        self.held: deque[Publication] = deque()
        self.discovery: Discovery | None = None
        #: Nothing is placed before this moment: a fresh lookup is under way.
        self.fresh = False
        self.timer: Any = None


class Routes:
    """The routes of a Writer's topics.  In the loop's thread."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._dialect = producer.settings.dialect
        self._topics: dict[str, Topic] = {}

    def send(self, publication: Publication) -> None:
        """Send it to its leader; wait for the route where it is not known or is looked up again."""
        if publication.request is None:  # it was made before anybody knew that topics have leaders
            publication.request = plain_request(publication.topic, publication.data)
        topic = self._topic(publication.topic)
        if topic.waiting or not topic.fresh:
            topic.waiting.append(publication)
        else:
            self._place(topic, publication)

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic()
            self._open(name, topic)
        return topic

    def _open(self, name: str, topic: Topic) -> None:
        producer, settings = self._producer, self._producer.settings
        if not settings.lookupds:  # no nsqlookupd: the nsqds that were given lead all there is
            topic.lookup, topic.fresh = None, True
            return
        topic.discovery = Discovery(
            settings.lookupds,
            path=self._dialect.lookup_path(name, "write"),
            parse=lambda data: self._dialect.parse_lookup(name, "write", data),
            options=settings.lookup,
            clock=producer.clock,
            rng=producer.rng,
            on_lookup=lambda address, lookup: self._learned(topic, lookup),
            allowed=settings.allowed_addresses,
            address_map=settings.address_map,
            dialect=self._dialect,
        )
        producer.keep(producer.loop.spawn(f"route {name}", topic.discovery.run))

    def _learned(self, topic: Topic, lookup: Lookup) -> None:
        if lookup.endpoints or topic.lookup is None:
            topic.lookup = lookup
        topic.fresh = bool(lookup.endpoints)
        if topic.fresh:
            self._place_waiting(topic)
        else:
            for publication in topic.waiting:
                publication.last_error = publication.last_error or NotSent(
                    f"{publication.topic}: no nsqlookupd lists a partition of it that takes writes and may be connected"
                    " to; does it exist?"
                )
            self._look_again(topic, _LOOK_AGAIN)

    def _place_waiting(self, topic: Topic) -> None:
        # From here on a partition's publishes are all sent, or all held again: which, the lookup alone decides.
        waiting = deque(sorted((*topic.held, *topic.waiting), key=lambda publication: publication.number))
        topic.held, topic.waiting = deque(), deque()
        while waiting and topic.fresh:
            publication = waiting.popleft()
            if not publication.done():
                self._place(topic, publication)
        topic.waiting.extend(waiting)

    def _place(self, topic: Topic, publication: Publication) -> None:
        """Choose the leader and queue the command there."""
        request, producer = publication.request, self._producer
        if request is None:
            raise ValueError("a routed publish has a request")
        if topic.lookup is not None:
            endpoints: Iterable[Endpoint] = topic.lookup.endpoints
        else:
            endpoints = producer.settings.endpoints
        try:
            endpoint = self._dialect.choose(request, tuple(endpoints), topic.lookup)
            publication.data = self._dialect.encode(request, endpoint, topic.lookup)
        except NotSent as error:  # no leader now: look again, within the publish's own limits
            if self._may_retry(topic, publication, error):
                _insert(topic.held, publication)
                self._look_again(topic, publication.again_at - producer.clock.now())
        except NSQError as error:
            producer.settle(publication, error=error)
        else:
            producer.send_to(endpoint, publication)

    # -- leaders that moved

    def retry(self, publication: Publication, error: NSQError) -> None:
        """nsqd refused it: look the topic up again at once and send it to the new leader, for a bounded time."""
        topic = self._topic(publication.topic)
        if self._may_retry(topic, publication, error):
            self._put_back(topic, publication)
            self._look_again(topic, publication.again_at - self._producer.clock.now())

    def _may_retry(self, topic: Topic, publication: Publication, error: NSQError) -> bool:
        """Whether to follow the leader once more; where not, the publish is settled."""
        now = self._producer.clock.now()
        if now >= publication.again_at:
            moves = publication.moves = publication.moves + 1
            publication.again_at = now + (min(0.05 * 2.0 ** (moves - 1), _LONGEST_PAUSE) if moves > 1 else 0.0)
        if publication.moves > _MOST_MOVES or topic.discovery is None:
            self._producer.settle(publication, error=error)
            return False
        publication.last_error = error
        return True

    def put_back(self, publications: Iterable[Publication]) -> None:
        """Queue what a lost connection had not taken, in its order, in front; look the topics up again."""
        for publication in reversed(list(publications)):
            topic = self._topic(publication.topic)
            self._put_back(topic, publication)
            self._look_again(topic, 0.05)

    def _put_back(self, topic: Topic, publication: Publication) -> None:
        publication.sent = False
        topic.fresh = topic.discovery is None
        _insert(topic.waiting, publication)

    def _look_again(self, topic: Topic, pause: float) -> None:
        if topic.timer is not None or topic.discovery is None:
            return
        topic.timer = self._producer.loop.hub.loop.timer(min(max(0.0, pause), _LOOK_AGAIN))
        topic.timer.start(lambda: self._ask(topic))

    def _ask(self, topic: Topic) -> None:
        topic.timer.close()
        topic.timer = None
        if topic.discovery is None or self._producer.ended:
            return
        topic.discovery.poke()
        if topic.waiting or topic.held:
            self._look_again(topic, _LOOK_AGAIN)

    # -- the producer's view

    def waiting(self) -> Iterable[Publication]:
        """Every publish that waits for a route."""
        return [publication for topic in self._topics.values() for publication in (*topic.held, *topic.waiting)]

    def forget(self, is_done: Callable[[Publication], bool]) -> None:
        """Drop what has an outcome."""
        for topic in self._topics.values():
            if topic.waiting:
                topic.waiting = deque(p for p in topic.waiting if not is_done(p))
            if topic.held:
                topic.held = deque(p for p in topic.held if not is_done(p))

    def abandon(self) -> None:
        """In a forked child: look nothing up."""
        for topic in self._topics.values():
            if topic.discovery is not None:
                topic.discovery.abandon()

    def close(self) -> None:
        """Stop looking up."""
        for topic in self._topics.values():
            if topic.discovery is not None:
                topic.discovery.stop()
            if topic.timer is not None:
                topic.timer.close()


def _insert(queue: deque[Publication], publication: Publication) -> None:
    """Put it behind all that was published before it, and in front of all that was published after."""
    at = len(queue)
    while at and queue[at - 1].number > publication.number:
        at -= 1
    queue.insert(at, publication)


def plain_request(topic: str, data: bytes) -> PublishRequest:
    """Return what the bytes of a PUB or MPUB ask for, to be asked in another dialect."""
    line, _, rest = data.partition(b"\n")
    if line.startswith(b"PUB "):
        return PublishRequest(topic=topic, bodies=(rest[4:],))
    bodies, at = [], 8
    while at < len(rest):
        end = at + 4 + int.from_bytes(rest[at : at + 4], "big")
        bodies.append(rest[at + 4 : end])
        at = end
    return PublishRequest(topic=topic, bodies=bodies, batch=True)
