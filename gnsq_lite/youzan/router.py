"""Sends each publish to the leader of a partition (YZ-4, YZ-5, YZ-8, YZ-12).  The router's host does the I/O.

Publishes to one partition keep their order and never go to another partition.  The router holds the publishes that it
cannot send, in one ordered heap per partition.  It sends them when the partition gets a leader, or when the leader
accepts publishes again.  Held publishes do not delay publishes to other partitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Dialect, Endpoint, Lookup, Lookups, RoutedPublish, RouterHost
from gnsq_lite.errors import NotSent, NSQError, PartitionUnavailable
from gnsq_lite.youzan.commands import command_line
from gnsq_lite.youzan.lookup import EMPTY, TopicLayout
from gnsq_lite.youzan.options import YouzanOptions
from gnsq_lite.youzan.partitions import partition_for

#: Minimum seconds between two lookups of a topic; seconds between two lookups while publishes wait for a leader.
_PAUSE = 0.05
_LOOK_AGAIN = 0.25

#: Values instead of a partition number.  _ANY: any partition is allowed.  _UNKNOWN: the partition is unknown until
#: nsqlookupd reports the number of partitions.
_ANY, _UNKNOWN = -1, -2

_NO_LEADER = "no leader is known that accepts writes, that allowed_addresses permits and that was not just lost"


class _Topic:
    """The leaders of one topic, and the publishes that wait for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lookups: Lookups | None = None
        #: The last answer that lists endpoints.  Before the first such answer, this is the last answer.
        self.lookup: Lookup | None = None
        #: Leader of each partition, by the partition's number.  Publishes to the partition go to this leader.
        self.leaders: dict[int, Endpoint] = {}
        #: The nsqds, if nsqlookupd lists no partitions; all endpoints for publishes without a key.
        self.nodes: tuple[Endpoint, ...] = ()
        self.endpoints: tuple[Endpoint, ...] = ()
        #: Leaders that refused a publish or were lost, and that are not in use again.
        self.doubted: set[Endpoint] = set()
        #: For each partition with publishes that wait, a heap of (number, publish).
        self.held: dict[int, list[tuple[int, RoutedPublish]]] = {}
        #: Counter of the publishes without a key and partition, which chooses their endpoints in turn.  Thread-safe.
        self.turns = itertools.count()
        self.timer: Any = None
        self.asked_at = 0.0

    @property
    def layout(self) -> TopicLayout:
        """The partitions of the topic in the last answer of nsqlookupd."""
        meta = self.lookup.meta if self.lookup is not None else None
        return meta if isinstance(meta, TopicLayout) else EMPTY

    def use(self, leaders: dict[int, Endpoint], nodes: Iterable[Endpoint] = ()) -> None:
        """Set the endpoints for all later publishes."""
        self.leaders, self.nodes = leaders, () if leaders else tuple(dict.fromkeys(nodes))
        self.endpoints = tuple(leaders[number] for number in sorted(leaders)) or self.nodes

    def doubt(self, leader: Endpoint) -> None:
        """Send nothing to *leader* until a lookup selects it again."""
        self.doubted.add(leader)
        if leader.partition is not None and self.leaders.get(leader.partition) == leader:
            self.use({number: each for number, each in self.leaders.items() if each != leader})

    def hold(self, partition: int, publish: RoutedPublish) -> None:
        """Hold a publish until its partition can accept it."""
        held = self.held.setdefault(partition, [])
        if len(held) >= 1024 and len(held) & (len(held) - 1) == 0:  # at each power of two: drop settled publishes
            held[:] = [each for each in held if not each[1].done()]
            heapify(held)
        heappush(held, (publish.number, publish))


class LeaderRouter:
    """Routes the publishes of a Writer.  Call it in the loop's thread; only :meth:`leader` is thread-safe."""

    def __init__(
        self,
        host: RouterHost,
        dialect: Dialect,
        clock: Clock,
        nsqds: Sequence[Endpoint],
        options: YouzanOptions,
    ) -> None:
        self._host, self._dialect, self._clock, self._nsqds = host, dialect, clock, nsqds
        self._mapping, self._traces = options.key_mapping, options.trace
        self._topics: dict[str, _Topic] = {}
        self._numbers: Iterator[int] = itertools.count(1)
        self._closed = False

    # -- publishes

    def leader(self, publish: RoutedPublish) -> Endpoint | None:
        """Encode the publish and return its leader.  Thread-safe.

        Return None if the loop must send the publish, for example because an earlier publish to its partition waits.
        """
        topic = self._topics.get(publish.topic)
        if topic is None:
            return None
        try:
            partition = self._partition(topic, publish)
            if topic.held.get(partition):
                return None
            for endpoint in self._candidates(topic, publish, partition):
                publish.data = self._command(topic, publish, endpoint)
                return endpoint
        except NSQError:  # the loop raises the error again
            pass
        return None

    def send(self, publish: RoutedPublish) -> None:
        """Send a publish to its leader, or hold it."""
        topic = self._topic(publish.topic)
        publish.number = next(self._numbers)
        self._place(topic, publish)

    def _place(self, topic: _Topic, publish: RoutedPublish) -> None:
        try:
            partition = self._partition(topic, publish)
        except NSQError as error:
            self._refuse(topic, publish, error)
            return
        if topic.held.get(partition) or not self._try(topic, publish, partition):
            topic.hold(partition, publish)
            self._look_again(topic)

    def _partition(self, topic: _Topic, publish: RoutedPublish) -> int:
        """Return the number of the publish's partition, or _ANY, or _UNKNOWN.  Raises OptionError, NotSent."""
        request = publish.request
        if request is None or (request.key is None and request.partition is None):
            return _ANY
        try:
            return partition_for(topic.name, topic.layout, request.key, request.partition, self._mapping)
        except NotSent:
            if topic.lookups is None:
                raise
            return _UNKNOWN

    def _candidates(self, topic: _Topic, publish: RoutedPublish, partition: int) -> Iterator[Endpoint]:
        """Yield the endpoints that can accept a publish, the best first."""
        if partition >= 0:
            leader = topic.leaders.get(partition)
            if leader is None and len(topic.nodes) == 1:  # a single nsqd without listed partitions
                leader = Endpoint(*topic.nodes[0].address, partition)
            if leader is not None:
                yield leader
        elif partition == _ANY and topic.endpoints:
            endpoints, avoids = topic.endpoints, self._host.avoids
            first = publish.leader
            if first is None or first not in endpoints:  # keep the choice of a thread or of an earlier attempt
                first = publish.leader = endpoints[next(topic.turns) % len(endpoints)]
            if not avoids(first):
                yield first
            at = endpoints.index(first)
            yield from [each for each in (*endpoints[at:], *endpoints[:at]) if not avoids(each)] or endpoints

    def _command(self, topic: _Topic, publish: RoutedPublish, endpoint: Endpoint) -> bytes:
        number = endpoint.partition
        if publish.request is None and not (publish.batch or self._traces or number is None):
            return publish.command_behind(command_line(b"PUB", topic.name, number))
        publish.request = request = publish.asked()  # kept for a retry, because encode() adds the trace id
        return self._dialect.encode(request, endpoint, topic.lookup)

    def _try(self, topic: _Topic, publish: RoutedPublish, partition: int) -> bool:
        """Send or settle a publish; return False if it must wait."""
        is_led = False
        for endpoint in self._candidates(topic, publish, partition):
            try:
                publish.data = self._command(topic, publish, endpoint)
            except NSQError as error:
                self._refuse(topic, publish, error)
                return True
            is_led = True
            if self._host.send_to(endpoint, publish):
                return True
        if topic.lookups is None and not is_led:  # without nsqlookupds no leader will be found later
            self._host.fail(publish, self.not_sent(publish, NotSent(_NO_LEADER)))
            return True
        return False

    def _refuse(self, topic: _Topic, publish: RoutedPublish, error: NSQError) -> None:
        """Fail a publish that the topic cannot accept.  Look the topic up again, because the topic may have changed."""
        self._host.fail(publish, error)
        self._look_again(topic)

    def _flush(self, topic: _Topic, partition: int) -> None:
        """Send the held publishes of a partition in order."""
        held = topic.held.get(partition)
        while held:
            publish = held[0][1]
            if not publish.done() and not self._try(topic, publish, partition):
                return
            heappop(held)  # only after the send: no thread may overtake the publish
        topic.held.pop(partition, None)

    # -- lookups

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
            learned, outage = self._learned, self._on_outage
            topic.lookups = self._host.look_up(name, lambda found: learned(topic, found), lambda: outage(topic))
            if topic.lookups is None:  # no nsqlookupd: the given nsqds lead all partitions
                topic.use({}, self._nsqds)
        return topic

    def _learned(self, topic: _Topic, answer: Lookup) -> None:
        """Update the leaders from an nsqlookupd's *answer*, and send the publishes that wait for them.

        If nsqlookupds disagree, the router cannot know the newer answer.  So a leader in use stays in use while an
        nsqlookupd lists it, until it refuses a publish or is lost.  Then the router prefers another listed leader.  If
        no nsqlookupd lists a leader, the known leaders stay in use, because the nsqlookupds may have just started.
        """
        before = topic.layout.partition_num
        if answer.endpoints or topic.lookup is None:
            topic.lookup = answer
        answers = topic.lookups.answers() if topic.lookups is not None else []
        listed = list(dict.fromkeys(each for lookup in (*answers, answer) for each in lookup.endpoints))
        if listed:
            numbers = {each.partition for each in listed if each.partition is not None}
            leaders = {number: self._choose(topic, number, listed, answer) for number in sorted(numbers)}
            nodes = () if numbers else answer.endpoints
            topic.use({number: each for number, each in leaders.items() if each is not None}, nodes)
            topic.doubted.difference_update(topic.endpoints)
        if topic.layout.partition_num != before:
            held, topic.held = topic.held, {}
            for _, publish in sorted(each for heap in held.values() for each in heap):
                self._place(topic, publish)
        for partition in list(topic.held):
            self._flush(topic, partition)

    def _choose(self, topic: _Topic, number: int, listed: list[Endpoint], answer: Lookup) -> Endpoint | None:
        """Choose the leader of a partition among the listed endpoints.

        Return None while a publish to a former leader is unanswered, because it precedes the held publishes (YZ-5).
        """
        leaders = [each for each in listed if each.partition == number]
        current = topic.leaders.get(number)
        if current in leaders:
            return current
        leader = next((each for each in leaders if each not in topic.doubted), None)
        if leader is None:  # all listed leaders are doubted: use the newest answer
            leader = next((each for each in answer.endpoints if each.partition == number), None)
        if leader is not None and self._host.owes(topic.name, number):
            self._look_again(topic)
            return None
        return leader

    def _on_outage(self, topic: _Topic) -> None:
        """Use doubted leaders again while all nsqlookupds fail.  An nsqd that is not the leader refuses the publish."""
        if topic.lookup is not None and topic.doubted:
            topic.doubted.clear()
            self._learned(topic, topic.lookup)

    def _look_again(self, topic: _Topic) -> None:
        """Query the nsqlookupds at once, or up to 50 ms later if the router has just queried them."""
        if topic.timer is None and topic.lookups is not None and not self._closed:
            pause = max(0.0, topic.asked_at + _PAUSE - self._clock.now())
            topic.timer = self._host.call_later(pause, partial(self._ask, topic, topic.lookups))

    def _ask(self, topic: _Topic, lookups: Lookups) -> None:
        topic.asked_at, topic.timer = self._clock.now(), None
        lookups.poke()
        if topic.held:
            topic.timer = self._host.call_later(_LOOK_AGAIN, partial(self._ask, topic, lookups))

    # -- lost nodes

    def put_back(self, publishes: Iterable[RoutedPublish], lost: Endpoint) -> None:
        """Send *publishes* of the node *lost* again, in order."""
        self.look_again(lost, doubt=True)
        changed: dict[_Topic, set[int]] = {}
        for publish in publishes:
            topic = self._topic(publish.topic)
            partition = self._partition(topic, publish)
            topic.hold(partition, publish)
            changed.setdefault(topic, set()).add(partition)
        for topic, partitions in changed.items():
            for partition in partitions:
                self._flush(topic, partition)
            if topic.held:
                self._look_again(topic)

    def look_again(self, endpoint: Endpoint, *, doubt: bool = False) -> None:
        """Look up the topics that *endpoint* leads, because it is silent or lost (YZ-18)."""
        for topic in self._topics.values():
            if topic.lookups is not None and endpoint in topic.endpoints:
                if doubt:
                    topic.doubt(endpoint)
                self._look_again(topic)

    def on_room(self, endpoint: Endpoint) -> None:
        """Send the held publishes that *endpoint*, which has room again, can accept."""
        for topic in self._topics.values():
            for partition in list(topic.held):
                if partition < 0 or endpoint.partition in (None, partition):
                    self._flush(topic, partition)

    # -- waiting publishes, and the end

    def waiting(self) -> list[RoutedPublish]:
        """Return all held publishes."""
        topics = self._topics.values()
        return [publish for topic in topics for held in topic.held.values() for _, publish in held]

    def forget_done(self) -> None:
        """Drop settled publishes from the head of each partition's heap."""
        for topic in self._topics.values():
            for partition, held in list(topic.held.items()):
                while held and held[0][1].done():
                    heappop(held)
                if not held:
                    del topic.held[partition]

    def unavailable(self, publish: RoutedPublish) -> NSQError | None:
        """Return why a held publish has no leader; None if it has a leader, or if no nsqlookupd has answered."""
        topic = self._topic(publish.topic)
        if topic.lookup is None and topic.lookups is not None:
            return None
        if next(self._candidates(topic, publish, self._partition(topic, publish)), None) is not None:
            return None
        if topic.lookup is not None and not topic.lookup.endpoints:
            why = "no nsqlookupd lists a writable partition that allowed_addresses permits; does the topic exist?"
            return NotSent(f"{topic.name}: {why}")
        return NotSent(_NO_LEADER)

    def not_sent(self, publish: RoutedPublish, error: NotSent) -> NotSent:
        """Convert the *error* of an unsent publish to PartitionUnavailable, if the partition is known."""
        partition = self._partition(self._topic(publish.topic), publish)
        if partition < 0:
            return error
        unavailable = PartitionUnavailable(publish.topic, partition, str(error))
        unavailable.__cause__ = error.__cause__
        return unavailable

    def close(self) -> None:
        """Stop all lookups."""
        self._closed = True
        for topic in self._topics.values():
            if topic.timer is not None:
                topic.timer.close()
