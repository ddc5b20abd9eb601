"""Chooses the leader for each publish (YZ-4, YZ-5, YZ-8, YZ-12).  The Writer's core, the *host*, does the I/O.

A publish to a partition never goes to another partition.  If the leader of a partition is unknown or accepts no
publishes, the router holds the publishes to the partition.  It sends them when the partition has a leader that accepts
publishes: first one alone, because a new leader may refuse publishes, and the rest after nsqd has accepted that one.
Held publishes do not delay publishes to other partitions.

A leader may refuse one of several unanswered publishes, and accept a later one.  Therefore the router sends the
``publish_nowait`` of one key, or of one partition without a key, one after the other: each after the outcome of the
one before.  Publishes with other keys do not wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Dialect, Endpoint, Lookup, Lookups, RoutedPublish, RouterHost
from gnsq_lite.errors import NotSent, NSQError, OptionError, PartitionUnavailable
from gnsq_lite.youzan.commands import PublishHeads
from gnsq_lite.youzan.lookup import EMPTY, TopicLayout
from gnsq_lite.youzan.options import YouzanOptions
from gnsq_lite.youzan.partitions import HASHES

#: Minimum seconds between two lookups of a topic.
_MIN_PAUSE = 0.05
#: Seconds between two lookups of a topic with held publishes.
_POLL_EVERY = 0.25

#: Used instead of the number of a partition.  _ANY: the publish may go to any partition.  _UNKNOWN: the partition of
#: the key is unknown until nsqlookupd reports the number of partitions.
_ANY, _UNKNOWN = -1, -2

#: Publishes as a heap of (number, publish).
_Heap: TypeAlias = list[tuple[int, RoutedPublish]]
#: The key of publishes, their partition if they have no key, or None if they may go to any partition.
_Name: TypeAlias = bytes | int | None

_NO_LEADER = "no leader is known that accepts writes, that allowed_addresses permits, and that was not just lost"


class _Topic:
    """The leaders of one topic, and the held publishes to the topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heads = PublishHeads(name)
        self.lookups: Lookups | None = None
        #: nsqlookupd's last answer that lists endpoints.  If there is none, nsqlookupd's first answer.
        self.lookup: Lookup | None = None
        #: The partitions in :attr:`lookup`.
        self.layout = EMPTY
        #: The leader of each partition, by the number of the partition.
        self.leaders: dict[int, Endpoint] = {}
        #: The nsqds of a topic without partitions.
        self.nodes: tuple[Endpoint, ...] = ()
        #: All leaders, or, without partitions, all nsqds.
        self.endpoints: tuple[Endpoint, ...] = ()
        #: Leaders that refused a publish or were lost, until the router chooses them again.
        self.failed: set[Endpoint] = set()
        #: For each partition whose leader has accepted nothing yet, the unanswered publish, or None before it is sent.
        self.first: dict[int, RoutedPublish | None] = {}
        #: The held publishes to each partition.
        self.held: dict[int, _Heap] = {}
        #: For each key, or partition without a key, the ``publish_nowait`` without an outcome.  The router has sent or
        #: held the first one only.
        self.queues: dict[_Name, _Heap] = {}
        #: Counts the publishes that may go to any partition, to choose their endpoints in turn.  Thread-safe.
        self.turns = itertools.count()
        self.timer: Any = None
        self.polled_at = 0.0

    def use(self, leaders: dict[int, Endpoint], nodes: Iterable[Endpoint] = ()) -> None:
        """Set the leaders, or, if there are none, the nsqds."""
        self.first.update(dict.fromkeys(number for number, each in leaders.items() if self.leaders.get(number) != each))
        self.leaders, self.nodes = leaders, () if leaders else tuple(dict.fromkeys(nodes))
        self.endpoints = tuple(leaders[number] for number in sorted(leaders)) or self.nodes

    def mark_failed(self, leader: Endpoint) -> None:
        """Stop sending publishes to *leader* until :meth:`LeaderRouter._learned` chooses it again."""
        self.failed.add(leader)
        if leader.partition is not None and self.leaders.get(leader.partition) == leader:
            self.use({number: each for number, each in self.leaders.items() if each != leader})

    def awaits_first(self, partition: int) -> bool:
        """Return whether the first publish to the leader of *partition* is unanswered."""
        first = self.first.get(partition)
        return first is not None and not first.done()

    def hold(self, partition: int, publish: RoutedPublish) -> None:
        """Hold a publish to *partition*."""
        _add(self.held.setdefault(partition, []), publish)


def _queue_name(publish: RoutedPublish) -> _Name:
    return publish.partition if publish.key is None else publish.key


def _add(heap: _Heap, publish: RoutedPublish) -> None:
    if len(heap) >= 1024 and len(heap) & (len(heap) - 1) == 0:  # drop settled publishes at each power of two
        heap[:] = [each for each in heap if not each[1].done()]
        heapify(heap)
    heappush(heap, (publish.number, publish))


def _drop_done(heap: _Heap) -> bool:
    """Drop settled publishes up to the first one without an outcome.  Return whether there is one."""
    while heap and heap[0][1].done():
        heappop(heap)
    return bool(heap)


class LeaderRouter:
    """A Writer's router.  Only :meth:`leader` is thread-safe.  Call all other methods in the loop's thread."""

    def __init__(
        self,
        host: RouterHost,
        dialect: Dialect,
        clock: Clock,
        nsqds: Sequence[Endpoint],
        options: YouzanOptions,
    ) -> None:
        self._host, self._dialect, self._clock, self._nsqds = host, dialect, clock, nsqds
        self._hash, self._traces = HASHES[options.key_mapping], options.trace
        self._topics: dict[str, _Topic] = {}
        self._numbers: Iterator[int] = itertools.count(1)
        #: The queues whose first publish has got its outcome, so that the next one is due.
        self._due: list[tuple[_Topic, _Name]] = []
        self._closed = False

    # -- publishes

    def leader(self, publish: RoutedPublish) -> Endpoint | None:
        """Encode the publish, and return the leader of its partition.  Thread-safe.

        Return None if the loop must do the publish, for example because publishes to its partition are held.
        """
        topic = self._topics.get(publish.topic)
        if topic is None:
            return None
        try:
            partition = self._partition(topic, publish)
            if topic.held.get(partition):
                return None
            if partition == _ANY:
                endpoint = self._in_turn(topic, topic.endpoints, publish)
            else:
                endpoint = topic.leaders.get(partition)
            if endpoint is None:
                endpoint = next(self._candidates(topic, publish, partition), None)
            if endpoint is not None:
                publish.data = self._command(topic, publish, endpoint)
            return endpoint
        except NSQError:  # the loop finds the same error, and fails the publish
            return None

    def send(self, publish: RoutedPublish) -> None:
        """Send a publish to its leader, or keep it until it can be sent in its order.

        A blocking publish waits for the earlier ``publish_nowait`` of its key, and never for other blocking publishes.
        """
        topic = self._topic(publish.topic)
        publish.number = next(self._numbers)
        name = _queue_name(publish)
        if name in topic.queues:
            _add(topic.queues[name], publish)
        elif name is not None and publish.cost:
            topic.queues[name] = [(publish.number, publish)]
            self._start(topic, name)
        else:
            self._place(topic, publish)

    def _start(self, topic: _Topic, name: _Name) -> None:
        """Send or hold the first publish of a queue."""
        publish = topic.queues[name][0][1]
        publish.on_outcome(partial(self._on_queue_outcome, topic, name))
        self._place(topic, publish)

    def _on_queue_outcome(self, topic: _Topic, name: _Name) -> None:
        """Start the next publish of a queue, whose first publish has its outcome, in the next turn of the loop."""
        if not self._due:  # not in this turn, which handles answers
            self._host.call_later(0.0, self._start_due)
        self._due.append((topic, name))

    def _start_due(self) -> None:
        """Start the next publish of each due queue, and drop the queues without one."""
        due, self._due = self._due, []
        for topic, name in () if self._closed else due:
            if _drop_done(topic.queues[name]):
                self._start(topic, name)
            else:
                del topic.queues[name]

    def _place(self, topic: _Topic, publish: RoutedPublish) -> None:
        try:
            partition = self._partition(topic, publish)
        except NSQError as error:
            self._refuse(topic, publish, error)
            return
        if topic.held.get(partition) or not self._try(topic, publish, partition):
            topic.hold(partition, publish)
            if not topic.awaits_first(partition):
                self._look_again(topic)

    def _partition(self, topic: _Topic, publish: RoutedPublish) -> int:
        """Return the partition of a publish, _ANY or _UNKNOWN.

        Raises OptionError if the topic does not have the partition.  Raises NotSent if the partition of a key is
        unknown, and no nsqlookupd can report it later.
        """
        partition, key, count = publish.partition, publish.key, topic.layout.partition_num
        if partition is not None:
            if count and partition >= count:
                raise OptionError("partition", partition, f"{topic.name} has {count} partitions, numbered from 0")
            return partition
        if key is None:
            return _ANY
        if count:
            return self._hash(key) % count  # check_place() has refused a key that cannot be hashed
        if topic.lookups is None:
            raise NotSent(f"{topic.name}: nsqlookupd does not report the number of partitions, which a key needs")
        return _UNKNOWN

    def _in_turn(self, topic: _Topic, endpoints: tuple[Endpoint, ...], publish: RoutedPublish) -> Endpoint | None:
        """Choose one of *endpoints* for a publish to any partition.  Return None if it is silent or has failed."""
        if not endpoints:
            return None
        chosen = publish.leader
        if chosen is None or chosen not in endpoints:  # a thread or an earlier attempt may have chosen
            chosen = publish.leader = endpoints[next(topic.turns) % len(endpoints)]
        return None if self._host.avoids(chosen) else chosen

    def _candidates(self, topic: _Topic, publish: RoutedPublish, partition: int) -> Iterator[Endpoint]:
        """Yield the endpoints to try for a publish to *partition*, in order."""
        if partition >= 0:
            leader = topic.leaders.get(partition)
            if leader is None and len(topic.nodes) == 1:  # a single nsqd, which leads all partitions
                leader = Endpoint(*topic.nodes[0].address, partition)
            if leader is not None:
                yield leader
        elif partition == _ANY and topic.endpoints:
            endpoints, avoids = topic.endpoints, self._host.avoids
            first = self._in_turn(topic, endpoints, publish)
            if first is not None:
                yield first
            at = endpoints.index(publish.leader)
            yield from [each for each in (*endpoints[at:], *endpoints[:at]) if not avoids(each)] or endpoints

    def _command(self, topic: _Topic, publish: RoutedPublish, endpoint: Endpoint) -> bytes:
        number = endpoint.partition
        if publish.request is None and not (publish.batch or self._traces or number is None):
            return publish.command_behind(topic.heads[number])  # the most common case
        publish.request = request = publish.as_request()  # encode() adds a trace id, which a retry must send again
        return self._dialect.encode(request, endpoint, topic.lookup)

    def _try(self, topic: _Topic, publish: RoutedPublish, partition: int) -> bool:
        """Send or fail a publish, or return False if the publish must be held."""
        if topic.awaits_first(partition):
            return False
        is_led = False
        for endpoint in self._candidates(topic, publish, partition):
            try:
                publish.data = self._command(topic, publish, endpoint)
            except NSQError as error:
                self._refuse(topic, publish, error)
                return True
            is_led = True
            if self._host.send_to(endpoint, publish):
                if partition in topic.first:
                    topic.first[partition] = publish
                    publish.on_outcome(partial(self._on_first, topic, partition, publish))
                return True
        if topic.lookups is None and not is_led:  # without nsqlookupds no leader will be found later
            self._host.fail(publish, self.not_sent(publish, NotSent(_NO_LEADER)))
            return True
        return False

    def _on_first(self, topic: _Topic, partition: int, publish: RoutedPublish) -> None:
        """Send the held publishes after the outcome of the first one: all if nsqd has accepted it, otherwise one."""
        if topic.first.get(partition) is publish:
            if publish.is_accepted():
                del topic.first[partition]
            if topic.held.get(partition):  # in the next turn of the loop, because this one handles answers
                self._host.call_later(0.0, partial(self._flush, topic, partition))

    def _refuse(self, topic: _Topic, publish: RoutedPublish, error: NSQError) -> None:
        """Fail a publish that the topic cannot accept, and look the topic up, because the topic may have changed."""
        self._host.fail(publish, error)
        self._look_again(topic)

    def _flush(self, topic: _Topic, partition: int) -> None:
        """Send the held publishes to a partition in order, until the leader accepts no more."""
        held = topic.held.get(partition)
        while held:
            publish = held[0][1]
            if not publish.done() and not self._try(topic, publish, partition):
                return
            heappop(held)  # after the send, because leader() must see the publish as held until then
        topic.held.pop(partition, None)

    # -- lookups

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
            learned, outage = self._learned, self._on_outage
            topic.lookups = self._host.look_up(name, lambda found: learned(topic, found), lambda: outage(topic))
            if topic.lookups is None:  # without nsqlookupds the given nsqds lead all partitions
                topic.use({}, self._nsqds)
        return topic

    def _learned(self, topic: _Topic, answer: Lookup) -> None:
        """Update the leaders from an nsqlookupd's *answer*, and send held publishes.

        If the answers of nsqlookupds differ, the router cannot know which answer is newer.  So the router keeps a
        leader that any nsqlookupd lists, until the leader refuses a publish or is lost.  Then the router prefers
        another listed leader.  If no nsqlookupd lists any leader, the router keeps the known leaders, because the
        nsqlookupds may have just started.
        """
        before = topic.layout.partition_num
        if answer.endpoints or topic.lookup is None:
            topic.lookup = answer
            topic.layout = answer.meta if isinstance(answer.meta, TopicLayout) else EMPTY
        answers = topic.lookups.answers() if topic.lookups is not None else []
        listed = list(dict.fromkeys(each for lookup in (*answers, answer) for each in lookup.endpoints))
        if listed:
            numbers = {each.partition for each in listed if each.partition is not None}
            leaders = {number: self._choose(topic, number, listed, answer) for number in sorted(numbers)}
            nodes = () if numbers else answer.endpoints
            topic.use({number: each for number, each in leaders.items() if each is not None}, nodes)
            topic.failed.difference_update(topic.endpoints)
        if topic.layout.partition_num != before:
            held, topic.held = topic.held, {}
            for _, publish in sorted(each for heap in held.values() for each in heap):
                self._place(topic, publish)
        for partition in list(topic.held):
            self._flush(topic, partition)

    def _choose(self, topic: _Topic, number: int, listed: list[Endpoint], answer: Lookup) -> Endpoint | None:
        """Choose the leader of partition *number* among the *listed* endpoints.

        Return None while publishes to a former leader are unanswered, because they precede the held publishes (YZ-5).
        """
        leaders = [each for each in listed if each.partition == number]
        current = topic.leaders.get(number)
        if current in leaders:
            return current
        leader = next((each for each in leaders if each not in topic.failed), None)
        if leader is None:  # all listed leaders have failed: use the newest answer
            leader = next((each for each in answer.endpoints if each.partition == number), None)
        if leader is not None and self._host.owes(topic.name, number):
            self._look_again(topic)
            return None
        return leader

    def _on_outage(self, topic: _Topic) -> None:
        """Use failed leaders again, because all nsqlookupds fail.  A leader that was replaced refuses the publish."""
        if topic.lookup is not None and topic.failed:
            topic.failed.clear()
            self._learned(topic, topic.lookup)

    def _look_again(self, topic: _Topic) -> None:
        """Query the nsqlookupds, at least _MIN_PAUSE s after the last query.  Repeat this while publishes are held."""
        if topic.timer is None and topic.lookups is not None and not self._closed:
            pause = max(0.0, topic.polled_at + _MIN_PAUSE - self._clock.now())
            topic.timer = self._host.call_later(pause, partial(self._poll, topic, topic.lookups))

    def _poll(self, topic: _Topic, lookups: Lookups) -> None:
        topic.polled_at, topic.timer = self._clock.now(), None
        lookups.poke()
        if topic.held:
            topic.timer = self._host.call_later(_POLL_EVERY, partial(self._poll, topic, lookups))

    # -- lost nodes

    def put_back(self, publishes: Iterable[RoutedPublish], lost: Endpoint) -> None:
        """Send *publishes*, which *lost* refused or has not confirmed, to the leaders again, in order."""
        self.look_again(lost, failed=True)
        changed: dict[_Topic, set[int]] = {}
        for publish in publishes:
            topic = self._topic(publish.topic)
            partition = self._partition(topic, publish)
            topic.hold(partition, publish)
            if partition >= 0:
                topic.first[partition] = None
            changed.setdefault(topic, set()).add(partition)
        for topic, partitions in changed.items():
            for partition in partitions:
                self._flush(topic, partition)
            if topic.held:
                self._look_again(topic)

    def look_again(self, endpoint: Endpoint, *, failed: bool = False) -> None:
        """Look up the topics of *endpoint*, which is silent, lost or refuses publishes.  If *failed*, stop using it."""
        for topic in list(self._topics.values()):
            if topic.lookups is not None and endpoint in topic.endpoints:
                if failed:
                    topic.mark_failed(endpoint)
                self._look_again(topic)

    def on_room(self, endpoint: Endpoint) -> None:
        """Send held publishes to *endpoint*, which accepts publishes again."""
        for topic in list(self._topics.values()):
            for partition in list(topic.held):
                if partition < 0 or endpoint.partition in (None, partition):
                    self._flush(topic, partition)

    # -- held publishes, and the end

    def waiting(self) -> list[RoutedPublish]:
        """Return all publishes that are not sent yet."""
        topics = self._topics.values()
        held = [each for topic in topics for heap in topic.held.values() for each in heap]
        queued = [each for topic in topics for heap in topic.queues.values() for each in heap[1:]]
        return [publish for _, publish in held + queued]

    def forget_done(self) -> None:
        """Drop settled publishes, of each heap up to the first publish without an outcome."""
        for topic in list(self._topics.values()):
            for partition, held in list(topic.held.items()):
                if not _drop_done(held):
                    del topic.held[partition]
            for queue in list(topic.queues.values()):
                _drop_done(queue)

    def unavailable(self, publish: RoutedPublish) -> NSQError | None:
        """Return the reason why a held publish has no leader.

        Return None if the publish has a leader, or if no nsqlookupd has answered yet.
        """
        topic = self._topic(publish.topic)
        if topic.lookup is None and topic.lookups is not None:
            return None
        if next(self._candidates(topic, publish, self._partition(topic, publish)), None) is not None:
            queue = topic.queues.get(_queue_name(publish))
            if queue and queue[0][1] is not publish:
                return NotSent(f"{topic.name}: an earlier publish with the same key or partition has no outcome yet")
            return None
        if topic.lookup is not None and not topic.lookup.endpoints:
            why = "no nsqlookupd lists a writable partition that allowed_addresses permits; does the topic exist?"
            return NotSent(f"{topic.name}: {why}")
        return NotSent(_NO_LEADER)

    def not_sent(self, publish: RoutedPublish, error: NotSent) -> NotSent:
        """Return *error*, or PartitionUnavailable with the same text if the partition of the publish is known."""
        partition = self._partition(self._topic(publish.topic), publish)
        if partition < 0:
            return error
        unavailable = PartitionUnavailable(publish.topic, partition, str(error))
        unavailable.__cause__ = error.__cause__
        return unavailable

    def close(self) -> None:
        """Stop the timers of the lookups.  The host stops the queries."""
        self._closed = True
        for topic in list(self._topics.values()):
            if topic.timer is not None:
                topic.timer.close()
