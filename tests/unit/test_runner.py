"""C and Python call handlers and answer messages in the same way, whatever a handler does."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import gevent
import pytest
from greenlet import GreenletExit, getcurrent, greenlet
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import _core
from gnsq_lite._core import Fins
from gnsq_lite.consume import pools, run_handler
from gnsq_lite.consume.pools import GreenletPool, InlinePool
from gnsq_lite.consume.run_handler import BatchCalls, HandlerCalls
from gnsq_lite.message import EXPIRED, Message, Requeue
from gnsq_lite.net.loop import loop_here
from tests.unit.runners import (
    BOTH,
    MOST,
    FakeConnection,
    FakeOutcomes,
    FastRunner,
    PureRunner,
    a_runner,
    queue_of,
    taken,
)


def fail(error: BaseException) -> None:
    raise error


def expire(message: Message) -> None:
    message._token = EXPIRED


async def coroutine(message: Message) -> None:
    message.finish()


def generator(message: Message) -> Iterator[None]:
    yield message.finish()


async def async_generator(message: Message) -> AsyncIterator[None]:
    yield message.finish()


#: What a handler may do.  The last three end the worker.
ACTS: dict[str, Callable[[Message], Any]] = {
    "return": lambda message: None,
    "return a value": lambda message: object(),
    "return a coroutine": coroutine,
    "return a generator": generator,
    "return an async generator": async_generator,
    "finish, return a generator": lambda message: (message.finish(), generator(message))[1],
    "finish": Message.finish,
    "requeue": Message.requeue,
    "requeue later": lambda message: message.requeue(3.0, backoff=False),
    "finish twice": lambda message: (message.finish(), message.finish()),
    "touch": Message.touch,
    "enable_async": Message.enable_async,
    "enable_async, finish": lambda message: (message.enable_async(), message.finish()),
    "raise": lambda message: fail(ValueError("no")),
    "raise Requeue": lambda message: fail(Requeue(2.0, backoff=False)),
    "finish, raise": lambda message: (message.finish(), fail(KeyError())),
    "enable_async, raise": lambda message: (message.enable_async(), fail(KeyError())),
    "expire": expire,
    "expire, raise": lambda message: (expire(message), fail(ValueError())),
    "GreenletExit": lambda message: fail(GreenletExit()),
    "Timeout": lambda message: fail(gevent.Timeout(1)),
    "KeyboardInterrupt": lambda message: fail(KeyboardInterrupt()),
}


#: The acts that return a coroutine or generator, after which the message has failed.
UNRUN = ["return a coroutine", "return a generator", "return an async generator", "finish, return a generator"]


def play(runner: Any, fins: Any, script: list[tuple[str, int, bool, bool]]) -> list[Any]:
    """Handle the messages of *script*: (act, attempts, expired, slow connection).  Return all recorded calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_handler, "Runner", runner)
        acts = iter([ACTS[act] for act, attempts, expired, _slow in script if attempts != MOST + 1 and not expired])
        outcomes = FakeOutcomes()
        made = HandlerCalls(lambda message: next(acts)(message), outcomes, MOST).runner()  # noqa: PLW0108 - it takes the next each time
    connections = [FakeConnection(fins, slow) for slow in (False, True)]
    queue: deque[Any] = deque()
    for number, (_act, attempts, expired, slow) in enumerate(script):
        queue.append(Message(connections[slow], 1, attempts, b"%016d" % number, b""))
        if expired:
            queue[-1]._token = EXPIRED
    ended: list[str] = []
    while queue:
        try:
            assert made.drain(queue) is False
        except BaseException as error:
            ended.append(type(error).__name__)
    return [outcomes.told, ended, *((c.told, taken(c.box)) for c in connections)]


one_message = st.tuples(st.sampled_from(sorted(ACTS)), st.integers(MOST - 1, MOST + 2), st.booleans(), st.booleans())


@pytest.mark.rule("MSG-1")
@pytest.mark.rule("MSG-2")
@given(st.lists(one_message, max_size=12))
def test_both_drains_answer_in_the_same_way_whatever_handlers_do(script: list[tuple[str, int, bool, bool]]) -> None:
    assert play(FastRunner, Fins, script) == play(PureRunner, Fins, script)


@BOTH
@pytest.mark.rule("MSG-1")
@pytest.mark.rule("MSG-4")
def test_each_act_of_a_handler_has_one_answer(runner: Any, fins: Any) -> None:
    one, none = [b"0" * 16], list[bytes]()
    wanted: dict[str, tuple[Any, Any]] = {
        "return": (["wake"], one),
        "return a value": (["wake"], one),
        "finish": (["finish", "wake"], one),
        "finish twice": (["finish", "wake"], one),
        "requeue": ([("requeue", b"0" * 16, None, True)], none),
        "requeue later": ([("requeue", b"0" * 16, 3.0, False)], none),
        "touch": ([("touch", b"0" * 16), "wake"], one),
        "enable_async": ([("open", b"0" * 16)], none),
        "enable_async, finish": (["finish", "wake"], one),
        "raise": ([("requeue", b"0" * 16, None, True)], none),
        "raise Requeue": ([("requeue", b"0" * 16, 2.0, False)], none),
        **dict.fromkeys(UNRUN[:3], ([("requeue", b"0" * 16, None, True)], none)),
        "finish, return a generator": (["finish", "wake"], one),
        "finish, raise": (["finish", "wake"], one),
        "enable_async, raise": ([("requeue", b"0" * 16, None, True)], none),
        "expire": ([("late", b"0" * 16, True)], none),
        "expire, raise": ([("late", b"0" * 16, False)], none),
        **dict.fromkeys(("GreenletExit", "Timeout", "KeyboardInterrupt"), ([("requeue", b"0" * 16, None, True)], none)),
    }
    assert set(wanted) == set(ACTS)
    for act, answer in wanted.items():
        told, ended, plain, _slow = play(runner, fins, [(act, 1, False, False)])
        assert plain == answer, act
        assert bool(ended) == (act in ("GreenletExit", "Timeout", "KeyboardInterrupt")), act
        assert [what for what, *_ in told] == (
            ["failed"] if "raise" in act or ended or act == "finish twice" or act in UNRUN else []
        ), act
    assert play(runner, fins, [("return", MOST + 1, False, False)])[0] == [("too many", b"0" * 16)]
    assert play(runner, fins, [("return", 1, True, False)])[2] == ([("expired", b"0" * 16)], none)


@BOTH
def test_a_drain_ends_if_the_queue_is_empty_the_slice_is_over_or_workers_are_surplus(runner: Any, fins: Any) -> None:
    connection = FakeConnection(fins)
    made = a_runner(runner, lambda message: None)
    queue = queue_of(connection, 9)
    made.slice_ends = 0.0
    assert made.drain(queue) is True
    assert len(queue) == 8
    made.slice_ends = float("inf")
    made.surplus = 1
    assert made.drain(queue) is False
    assert len(queue) == 8
    made.surplus = 0
    assert made.drain(queue) is False
    assert made.drain(queue) is False
    assert len(taken(connection.box)) == 9


@BOTH
def test_a_drain_ends_after_a_handler_that_makes_its_worker_surplus(runner: Any, fins: Any) -> None:
    made = a_runner(runner, lambda message: setattr(made, "surplus", 1))
    queue = queue_of(FakeConnection(fins), 3)
    assert made.drain(queue) is False
    assert len(queue) == 2


@BOTH
def test_workers_whose_handlers_wait_share_a_queue(runner: Any, fins: Any) -> None:
    """Several greenlets drain one queue; their handlers wait, and continue in another order."""
    connections = [FakeConnection(fins), FakeConnection(fins, slow=True), FakeConnection(fins)]
    me = getcurrent()
    made = a_runner(runner, lambda message: me.switch())
    queue: deque[Any] = deque()
    for number in range(60):
        queue.append(Message(connections[number % 3], 1, 1, b"%016d" % number, b""))
    workers = [greenlet(lambda: made.drain(queue)) for _ in range(7)]
    while any(not worker.dead for worker in workers):
        for worker in reversed(workers):
            if not worker.dead:
                worker.switch()
    for place, connection in enumerate(connections):
        assert sorted(taken(connection.box)) == [b"%016d" % number for number in range(place, 60, 3)]


@BOTH
def test_errors_of_the_queue_and_of_callbacks_propagate(runner: Any, fins: Any) -> None:
    class Stubborn:
        def __len__(self) -> int:
            return 1

        def popleft(self) -> Any:
            raise ZeroDivisionError

    class Deceptive(Stubborn):
        def popleft(self) -> Any:
            raise IndexError

    class Broken(FakeOutcomes):
        def on_exception(self, job: Any, error: BaseException) -> None:
            raise LookupError("broken")

    made = a_runner(runner, lambda message: fail(ValueError("first")), Broken())
    with pytest.raises(ZeroDivisionError):
        made.drain(Stubborn())
    assert made.drain(Deceptive()) is False
    with pytest.raises(LookupError) as caught:
        made.drain(queue_of(FakeConnection(fins), 1))
    assert isinstance(caught.value.__context__, ValueError)
    with pytest.raises(AttributeError):  # the connection has no attribute fins
        a_runner(runner, lambda message: None).drain(queue_of(FakeConnection, 1))


@BOTH
def test_a_job_that_is_no_plain_message_goes_to_run(runner: Any, fins: Any) -> None:
    seen: list[Any] = []
    made = runner(fail, 5, seen.append, fail, fail)
    odd = queue_of(FakeConnection(fins), 3)
    odd[0].attempts, odd[1].attempts = "many", 2**70
    del odd[2].attempts
    jobs = [None, [], Message, *odd]
    assert made.drain(deque(jobs)) is False
    assert seen == jobs


def test_fins_wake_once_until_they_are_taken() -> None:
    woken: list[int] = []
    box = Fins(lambda: woken.append(len(box.ids)))
    for length in (16, 0, 1, 5000):
        box.add(b"x" * length)
    assert (box.ids, woken, box.due) == ([b"x" * 16, b"", b"x", b"x" * 5000], [1], True)
    assert len(taken(box)) == 4
    box.add(b"y")
    assert len(woken) == 1
    box.due = False
    box.add(b"z")
    assert (len(woken), box.ids) == (2, [b"y", b"z"])


@pytest.mark.skipif(not _core.is_accelerated, reason="only C leaves FINs to the caller of drain()")
@pytest.mark.parametrize(
    ("is_alone", "is_held", "writes", "told"),
    [
        (False, False, True, ["a", "wake", "b", "b", "wake", "b"]),
        (True, False, True, ["a", "write 1", "b", "write 1", "b", "write 1", "b", "write 1"]),
        (False, True, True, ["a", "b", "b", "write 2", "b", "write 2"]),
        (True, True, False, ["a", "wake", "b", "b", "wake", "b"]),
    ],
    ids=["not held", "alone", "held", "not in a thread"],
)
def test_a_thread_writes_held_fins_before_it_waits_and_before_another_connection(
    monkeypatch: pytest.MonkeyPatch, is_alone: bool, is_held: bool, writes: bool, told: list[str]
) -> None:
    acts: list[str] = []

    class Connection(FakeConnection):
        def __init__(self) -> None:
            super().__init__(lambda wake: Fins(lambda: acts.append("wake"), self.write))
            self.box.is_alone, self.box.is_held = is_alone, is_held

        def write(self) -> None:
            acts.append(f"write {len(taken(self.box))}")

    def handle(message: Message) -> None:
        acts.append(message.body.decode())

    first, second = Connection(), Connection()
    messages = [
        Message(each, 0, 1, b"%016d" % number, body)
        for number, (each, body) in enumerate([(first, b"a"), (first, b"b"), (second, b"b"), (second, b"b")])
    ]
    made = HandlerCalls(handle, FakeOutcomes(), MOST).runner()
    made.writes_fins = writes
    _core.drain(made, deque(messages), [None, None])
    assert acts == told


def test_add_raises_the_error_of_wake() -> None:
    box = Fins(lambda: fail(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        box.add(b"a")
    assert box.ids == [b"a"]


@pytest.mark.skipif(not _core.is_accelerated, reason="the accelerator was not built")
def test_the_drain_in_c_checks_its_arguments() -> None:
    made = a_runner(FastRunner, print)
    for queue in (None, 1, object()):
        with pytest.raises(AttributeError):
            made.drain(queue)
    with pytest.raises(AttributeError):
        made.drain([1])
    with pytest.raises(TypeError):
        _core.drain(print, deque(), [None, None])
    for name in ("run", "handler"):
        delattr(made, name)
        with pytest.raises(AttributeError):
            made.drain(deque([1]))


@BOTH
def test_no_fin_is_lost_between_threads(runner: Any, fins: Any) -> None:
    """Several threads answer while one thread sends.  Each FIN is sent once, and each wake-up arrives."""
    wanted = threading.Semaphore(0)
    connection = FakeConnection(fins)
    connection.fins = connection.box = fins(wanted.release)
    made, queue = a_runner(runner, lambda message: None), queue_of(connection, 20_000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    sent: list[bytes] = []
    try:
        workers = [threading.Thread(target=made.drain, args=(queue,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        while len(sent) < 20_000:
            assert wanted.acquire(timeout=30)
            connection.box.due = False
            sent += taken(connection.box)
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(sent) == [b"%016d" % n for n in range(20_000)]


@BOTH
def test_runners_and_fins_keep_no_reference_and_are_collected(runner: Any, fins: Any) -> None:
    class Handler:
        def __call__(self, message: Message) -> Any:
            return ACTS[message.body.decode()](message)

    def once() -> list[Any]:
        handler, connection = Handler(), FakeConnection(fins)
        made = a_runner(runner, handler)
        handler.made, connection.made = made, made  # type: ignore[attr-defined]
        for act in ACTS:
            try:
                made.drain(deque([Message(connection, 1, 1, b"%016d" % 0, act.encode())]))
            except BaseException:
                pass
        return [weakref.ref(handler), weakref.ref(connection)]

    gc.collect()
    refs = once()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    before = sys.getrefcount(Message), sys.getrefcount(None), len(gc.get_objects())
    for _ in range(100):
        once()
    gc.collect()
    after = sys.getrefcount(Message), sys.getrefcount(None), len(gc.get_objects())
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert max(*grown, -grown[0], -grown[1]) < 50, grown  # there are fewer objects if an earlier test left some


@BOTH
def test_a_batch_is_handled_as_one_job(runner: Any, fins: Any) -> None:
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_handler, "Runner", runner)
        made = BatchCalls(lambda batch: seen.append(len(batch)), FakeOutcomes(), 0).runner()
    connection = FakeConnection(fins)
    messages = list(queue_of(connection, 5))
    messages[1].finish()
    messages[1]._token = EXPIRED
    assert made.drain(deque([messages[:3], messages[3:]])) is False
    assert seen == [2, 2]
    assert len(taken(connection.box)) == 5


@BOTH
@pytest.mark.rule("HB-1")
@pytest.mark.parametrize("kind", ["greenlet", "inline"])
def test_the_loop_polls_its_sockets_after_each_slow_handler(
    runner: Any, fins: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gevent runs fifty callbacks before it polls.  Fifty handlers that compute may take longer than nsqd waits."""
    monkeypatch.setattr(pools, "SLICE", -1.0)  # each takes longer than a time slice
    seen: list[Any] = []
    here, there = os.pipe()
    with os.fdopen(here), os.fdopen(there, "wb", 0) as pipe, gevent.get_hub().loop.io(here, 1) as watcher:

        def heard() -> None:
            watcher.stop()
            seen.append("heartbeat")

        watcher.start(heard)
        pipe.write(b"x")
        made = a_runner(runner, lambda message: seen.append(message.id))
        pool: Any = InlinePool(made, seen.append)
        if kind == "greenlet":
            pool = GreenletPool(loop_here(), made, 3, seen.append)
        pool.submit(list(queue_of(FakeConnection(fins), 9)))
        while len(seen) < 10:
            gevent.sleep(0)
    assert seen.index("heartbeat") <= 2
    assert pool.busy() == 0
    pool.close()
