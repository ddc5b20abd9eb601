"""Where publishes go in a dialect that gives each topic leaders (YZ-4, YZ-5, YZ-8, YZ-12).

Publishes to one partition keep their order, and never go to another.  Those of a partition without a leader, or whose
leader is lost or says that it is none, are held until an nsqlookupd was asked, and those of the others go on.  While
nothing is known of a topic all wait in one queue.

A caller's thread chooses the leader itself unless something of its partition waits.  Everything else happens in the
loop.  For plain publishes :class:`~gnsq_lite.policy.leaders.Leaders` does what the dialect would.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, Lookup, PublishRequest
from gnsq_lite.errors import NotSent, NSQError
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.net.loop import Loop
from gnsq_lite.policy.leaders import Leader, Leaders
from gnsq_lite.policy.rng import Rng
from gnsq_lite.policy.shunned import Shunned
from gnsq_lite.publish.node import Node
from gnsq_lite.publish.publication import Publish
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.publish.topic_route import Topic, insert

#: Seconds between two lookups of a topic while publishes wait for its leaders.
_LOOK_AGAIN = 0.25

#: The pauses between which a publish follows its leader, each twice the one before: first and longest, in seconds.  Its
#: deadline alone says for how long: a cluster takes a minute or more to choose another leader.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class PartitionLeaders:
    """The routes of a Writer's topics.  In the loop's thread, but for :meth:`in_thread`.

    Args:
        shunned: Endpoints that are left out where another will do.
        nodes: Returns all nodes.
        load: Returns how many publishes an endpoint has not answered; from any thread.
        avoids: Returns whether the pool has found an endpoint silent, or cannot reach it; from any thread.
        send_to: Sends a publish to an endpoint, and to no other.
        fail: Settles a publish with an error.
        keep: Takes each greenlet that is to be killed at the end.
    """

    def __init__(
        self,
        loop: Loop,
        settings: ProducerSettings,
        clock: Clock,
        rng: Rng,
        *,
        shunned: Shunned[Endpoint],
        nodes: Callable[[], list[Node]],
        load: Callable[[Endpoint], int],
        avoids: Callable[[Endpoint], bool],
        send_to: Callable[[Endpoint, Publish], None],
        fail: Callable[[Publish, NSQError], None],
        keep: Callable[[Any], None],
    ) -> None:
        self._loop, self._settings, self._clock, self._rng = loop, settings, clock, rng
        self._shunned, self._nodes = shunned, nodes
        self._load, self._avoids = load, avoids
        self._send_to, self._fail, self._keep = send_to, fail, keep
        self._dialect = settings.dialect
        self._topics: dict[str, Topic] = {}
        #: Publishes that wait do so in this order.
        self._numbers = itertools.count(1)
        self._ended = False

    def in_thread(self, publish: Publish) -> Endpoint | None:
        """Make its command and return its leader; in the caller's thread.

        None: the loop has to send it, because something waits that was published before, for example.
        """
        topic = self._topics.get(publish.topic)
        if topic is None:
            return None
        leaders = topic.leaders
        leader = self._leader(leaders, publish)
        if leader is None:
            return self._ask_in_thread(topic, publish)
        # As below: these leaders are taken away before something is put back.
        return leader.endpoint if topic.leaders is leaders else None

    def _leader(self, leaders: Leaders | None, publish: Publish) -> Leader | None:
        """Make its command and return its leader; None where that takes the dialect."""
        if leaders is None or publish.request is not None or publish.batch or publish.leader is not None:
            return None  # who has a leader already has had its turn
        key, partition = publish.key, publish.partition
        is_free = key is None and partition is None
        if is_free and self._shunned:
            return None
        leader = leaders.of(key, partition)
        if leader is None or (is_free and self._avoids(leader.endpoint)):
            return None
        publish.number = next(self._numbers)
        publish.leader = leader.endpoint
        publish.data = publish.command_behind(leader.head)
        return leader

    def _ask_in_thread(self, topic: Topic, publish: Publish) -> Endpoint | None:
        if topic.waiting or not topic.fresh:
            return None
        returns, lookup = topic.returns, topic.lookup
        publish.request = request = self._dialect.prepare(publish.asked())
        publish.number = next(self._numbers)
        try:
            publish.leader = endpoint = self._choose(lookup, request, publish.leader)
            publish.data = self._dialect.encode(request, endpoint, lookup)
        except NSQError:
            return None
        return None if topic.waiting or not topic.fresh or topic.returns != returns else endpoint

    def send(self, publish: Publish) -> None:
        """Send it to its leader; wait for the route where it is not known or is looked up again."""
        topic = self._topic(publish.topic)
        leader = self._leader(topic.leaders, publish)
        if leader is not None:
            self._send_to(leader.endpoint, publish)
            return
        publish.number = next(self._numbers)
        publish.request = self._dialect.prepare(publish.asked())
        if topic.waiting or not topic.fresh:
            topic.waiting.append(publish)
        else:
            self._place(topic, publish)

    def _request(self, publish: Publish) -> PublishRequest:
        """Return how it was asked for, also where it was sent without asking the dialect."""
        if publish.request is None:
            publish.request = self._dialect.prepare(publish.asked())
        return publish.request

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name)
            self._open(name, topic)
        return topic

    def _open(self, name: str, topic: Topic) -> None:
        settings = self._settings
        if not settings.lookupds:  # no nsqlookupd: the nsqds that were given lead all there is
            topic.lookup, topic.fresh = None, True
            return

        def learn(address: str, lookup: Lookup) -> None:
            self._learned(topic, lookup)

        def end_round() -> None:
            self._round_over(topic)

        topic.discovery = Discovery.of(
            settings, name, "write", self._rng, self._clock, on_lookup=learn, on_round=end_round
        )
        self._keep(self._loop.spawn(f"route {name}", topic.discovery.run))

    def _learned(self, topic: Topic, lookup: Lookup) -> None:
        agreed = self._agreed(topic, lookup)
        if agreed is None:
            return
        lookup = agreed
        if not lookup.endpoints:
            for publish in (*topic.waiting, *topic.held):
                publish.last_error = publish.last_error or NotSent(
                    f"{publish.topic}: no nsqlookupd lists a partition of it that takes writes and may be connected"
                    " to; does it exist?"
                )
            if topic.has_leaders():  # who lists nothing may know nothing; a leader tells at once
                if not topic.fresh:
                    self._place_waiting(topic)
                return
        topic.fresh, topic.leaders = False, None  # and no thread chooses by it before what waits has its place
        if lookup.endpoints or topic.lookup is None:
            topic.lookup, topic.listed = self._without_owed(topic, lookup), lookup
        if lookup.endpoints:
            self._place_waiting(topic)
        else:
            self._look_again(topic, _LOOK_AGAIN)

    def _without_owed(self, topic: Topic, lookup: Lookup) -> Lookup:
        """Return *lookup* without new leaders of partitions that have unanswered publishes: they may be refused (YZ-5).

        A silent nsqd, which may refuse them in an hour, is disconnected, so that they have their outcome.
        """
        led, owed = topic.lookup.endpoints if topic.lookup else (), set()
        takers = {each.partition for each in lookup.endpoints if each.partition is not None and each not in led}
        for node in self._nodes() if takers else ():
            partition = node.endpoint.partition
            if partition in takers and any(each.topic == topic.name and not each.done() for each in node.owes()):
                owed.add(partition)
                node.disconnect_if_silent()
        if not owed:
            return lookup
        self._look_again(topic, _FIRST_PAUSE)
        return lookup.only(lambda each: each in led or each.partition not in owed)

    def _round_over(self, topic: Topic) -> None:
        """Where all nsqlookupds fail, what they listed last is the best there is: nsqd refuses what is not its own."""
        discovery, listed = topic.discovery, topic.listed
        if discovery is None or listed is None or not listed.endpoints:
            return
        wanted = topic.waiting or topic.held or topic.lookup is not listed
        if wanted and not any(each.ok for each in discovery.health().values()):
            topic.lookup, topic.leaders = self._without_owed(topic, listed), None
            self._place_waiting(topic)

    def _agreed(self, topic: Topic, lookup: Lookup) -> Lookup | None:
        """Return what counts of an answer, given the last ones of the other nsqlookupds; None: nothing."""
        if topic.discovery is None:
            return lookup
        failed = {address for address, each in topic.discovery.health().items() if each.ok is False}
        said = [each for address, each in topic.discovery.said.items() if address not in failed]
        if not lookup.endpoints:
            # Who lists nothing may have just started: it counts once no other that works lists anything.
            listing = next((each for each in said if each.endpoints), None)
            if listing is not None:
                return None if listing is topic.listed else listing
        return topic.weigh(lookup, said)

    def _place_waiting(self, topic: Topic) -> None:
        # From here on a partition's publishes are all sent, or all held again: which, the lookup alone decides.
        waiting = deque(sorted((*topic.held, *topic.waiting), key=lambda publish: publish.number))
        topic.held, topic.waiting, topic.fresh = deque(), waiting, True
        while waiting and topic.fresh:
            if not waiting[0].done():
                self._place(topic, waiting[0])
            waiting.popleft()  # once it has its place: until then no thread may overtake it
        if topic.fresh:
            topic.leaders = self._dialect.leaders(topic.name, topic.lookup)

    def _place(self, topic: Topic, publish: Publish) -> None:
        """Choose the leader and queue the command there."""
        request = self._request(publish)
        try:
            endpoint = self._choose(topic.lookup, request, publish.leader)
            publish.leader = None
            publish.data = self._dialect.encode(request, endpoint, topic.lookup)
        except NotSent as error:  # no leader now: look again, within the publish's own limits
            if self._may_retry(topic, publish, error):
                insert(topic.held, publish)
                self._look_again(topic, publish.again_at - self._clock.now())
        except NSQError as error:
            self._fail(publish, error)
        else:
            self._send_to(endpoint, publish)

    # -- leaders that moved

    def retry(self, publish: Publish, error: NSQError, leader: Endpoint) -> None:
        """*leader* refused it: look the topic up again at once and send it to the new one, until its deadline."""
        topic = self._topic(publish.topic)
        publish.leader = None
        if self._may_retry(topic, publish, error):
            publish.sent = publish.in_doubt
            self._set_aside(topic, publish, leader)
            self._look_again(topic, publish.again_at - self._clock.now())

    def _may_retry(self, topic: Topic, publish: Publish, error: NSQError) -> bool:
        """Whether to follow the leader once more; if not, the publish is settled."""
        now = self._clock.now()
        if now >= publish.again_at:
            moves = publish.moves = publish.moves + 1
            pause = min(_FIRST_PAUSE * 2.0 ** min(moves - 1, 16), _LONGEST_PAUSE)
            publish.again_at = now + (pause if moves > 1 else 0.0)
        if topic.discovery is None:
            self._fail(publish, error)
            return False
        publish.last_error = error
        return True

    def put_back(self, publishes: Iterable[Publish], leader: Endpoint | None) -> None:
        """Hold what was not sent to *leader*, in order, and look the topics up again; None: what a silent one had.

        What another leader can take goes there at once, without waiting for a lookup that may bring nothing new.
        """
        for publish in publishes:
            topic = self._topic(publish.topic)
            publish.leader = None
            if topic.discovery is None:
                self._place(topic, publish)
            else:
                self._set_aside(topic, publish, leader)
            self._look_again(topic, _FIRST_PAUSE)

    def _set_aside(self, topic: Topic, publish: Publish, leader: Endpoint | None) -> None:
        """Hold it, as all of its partition, until nsqlookupds were asked; or send it to who else may take it."""
        if topic.fresh and leader is not None and topic.doubt(leader):
            topic.leaders = self._dialect.leaders(topic.name, topic.lookup)
        is_bound = _is_bound(self._request(publish))
        if not is_bound and self.goes_elsewhere(publish, None):
            self._place(topic, publish)
        elif leader is None or not topic.fresh:
            topic.put_back(publish)
        elif is_bound and topic.is_led(leader.partition):  # it has moved, and those that came later go there
            self._place(topic, publish)
        else:
            insert(topic.held, publish)

    def goes_elsewhere(self, publish: Publish, endpoint: Endpoint | None) -> bool:
        """Whether it now has a leader that is not silent and not at *endpoint*."""
        topic = self._topic(publish.topic)
        if not (topic.lookup or topic.discovery is None):
            return False
        try:
            chosen = self._choose(topic.lookup, self._request(publish))
        except NSQError:
            return False
        return chosen != endpoint and not self._shunned.has(chosen)

    def refresh(self, endpoint: Endpoint) -> None:
        """Look up again the topics with a leader at *endpoint*, which is silent: the leader may have moved (YZ-18)."""
        for topic in self._topics.values():
            if topic.lookup is not None and endpoint in topic.lookup.endpoints:
                self._look_again(topic, 0.0)

    def _choose(self, lookup: Lookup | None, request: PublishRequest, before: Endpoint | None = None) -> Endpoint:
        """Return the leader; if any will do, one that is not shunned, if possible (PUB-4, YZ-5).

        The one that a thread chose *before* comes first: if each publish took two turns, one of two partitions would
        never get any.
        """
        endpoints = self._settings.endpoints if lookup is None else lookup.endpoints
        if not _is_bound(request):
            endpoints = self._shunned.best(endpoints)
            endpoints = [each for each in endpoints if not self._avoids(each)] or endpoints
            if before is not None and before in endpoints:
                return before
            if self._dialect.balances_load:
                endpoints = lightest(endpoints, self._load)
        return self._dialect.choose(request, tuple(endpoints), lookup)

    def _look_again(self, topic: Topic, pause: float) -> None:
        if topic.timer is not None or topic.discovery is None:
            return
        topic.timer = self._loop.timer(min(pause, _LOOK_AGAIN), lambda: self._ask(topic))

    def _ask(self, topic: Topic) -> None:
        topic.timer.close()
        topic.timer = None
        if topic.discovery is None or self._ended:
            return
        topic.discovery.poke()
        if topic.waiting or topic.held:
            self._look_again(topic, _LOOK_AGAIN)

    # -- what waits, and the end

    def waiting(self) -> Iterable[Publish]:
        """Every publish that waits for a route."""
        return [publish for topic in self._topics.values() for publish in (*topic.held, *topic.waiting)]

    def discoveries(self) -> list[Discovery | None]:
        """Return what looks the topics up; from any thread."""
        return [topic.discovery for topic in list(self._topics.values())]

    def forget(self, is_done: Callable[[Publish], bool]) -> None:
        """Drop what has an outcome."""
        for topic in self._topics.values():
            if topic.waiting:
                topic.waiting = deque(p for p in topic.waiting if not is_done(p))
            if topic.held:
                topic.held = deque(p for p in topic.held if not is_done(p))

    def abandon(self) -> None:
        """In a forked child: look nothing up."""
        self._ended = True
        for topic in self._topics.values():
            if topic.discovery is not None:
                topic.discovery.abandon()

    def close(self) -> None:
        """Stop looking up."""
        self._ended = True
        for topic in self._topics.values():
            if topic.discovery is not None:
                topic.discovery.stop()
            if topic.timer is not None:
                topic.timer.close()


def lightest(endpoints: Iterable[Endpoint], load: Callable[[Endpoint], int]) -> Sequence[Endpoint]:
    """Return those of the least *load*."""
    loads = [(load(endpoint), endpoint) for endpoint in endpoints]
    least = min((each for each, _ in loads), default=0)
    return [endpoint for each, endpoint in loads if each == least]


def _is_bound(request: PublishRequest) -> bool:
    """Whether it must go to one particular partition."""
    return request.key is not None or request.partition is not None
