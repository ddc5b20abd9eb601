"""Right and wrong uses of the public API, as type checkers see them: ``tests/test_types.py`` has each line's verdict.

Nothing of it runs.  A line that ends in ``# wrong`` must be an error for mypy and for pyright, every other line for
neither.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import assert_type

from gnsq_lite import BackoffOptions, Message, Publication, PublishReceipt, Reader, Requeue, TLSOptions, Worker, Writer
from gnsq_lite.contrib.bodies import JSON
from gnsq_lite.contrib.give_up import to_directory, to_topic
from gnsq_lite.errors import NSQError
from gnsq_lite.testing import deliver, make_message
from gnsq_lite.worker import Handler, Middleware
from gnsq_lite.youzan.dialect import YouzanDialect

seen: list[bytes] = []
messages: list[Message] = []


def one(message: Message) -> None:
    seen.append(message.body)
    if message.attempts > 3:
        raise Requeue(delay=5.0, backoff=False)


def batch(messages: list[Message]) -> None:
    seen.extend(message.body for message in messages)


def judged(message: Message) -> bool:
    return bool(message.body)


async def awaited(message: Message) -> None:
    seen.append(message.body)


async def awaited_batch(messages: list[Message]) -> None:
    seen.extend(message.body for message in messages)


class ByHand:
    def __call__(self, message: Message) -> None:
        message.enable_async()


# -- Readers

Reader("clicks", "log", one)
Reader("clicks", "log", ByHand())
Reader("clicks", "log", messages.append)
Reader("clicks", "log", lambda message: message.finish())
Reader("clicks", "log", batch, batch_size=10)
Reader("clicks", "log", batch, batch_size=10, batch_wait=0.5)
Reader("clicks", "log", messages.extend, batch_size=10)
Reader("clicks", "log", one, nsqd_tcp_addresses="127.0.0.1:4150", max_in_flight=8, concurrency=4)
Reader("clicks", "log", one, lookupd_http_addresses=["127.0.0.1:4161", ("::1", 4161)], handler_pool="inline")
Reader("clicks", "log", one, backoff=False, max_attempts=0, requeue_delay=0.5, msg_timeout=60.0, compression="snappy")
Reader("clicks", "log", one, backoff=BackoffOptions(longest=10.0), tls=TLSOptions(ca_file="ca.pem"), tls_=None)  # wrong
Reader("clicks", "log", one, on_give_up=to_directory("dead"), on_error=print, on_failure=lambda message, error: None)
Reader("clicks", "log", one, extra_identify={"desired_tag": "blue"}, allowed_addresses=lambda host, port: port == 4150)
Reader("clicks", "log", awaited)
Reader("clicks", "log", awaited_batch, batch_size=10)
Reader("clicks", "log", judged)  # wrong
Reader("clicks", "log", batch)  # wrong
Reader("clicks", "log", one, batch_size=10)  # wrong
Reader("clicks", "log", one, batch_wait=0.5)  # wrong
Reader("clicks", "log", one, max_in_fligth=8)  # wrong
Reader("clicks", "log", one, max_in_flight="8")  # wrong
Reader("clicks", "log", one, requeue_delay="90s")  # wrong
Reader("clicks", "log", one, handler_pool="process")  # wrong
Reader("clicks", "log", one, compression="gzip")  # wrong
Reader("clicks", "log", one, on_give_up="log")  # wrong
Reader("clicks", "log", one, on_give_up=awaited)  # wrong
Reader("clicks", "log", one, on_error=awaited)  # wrong
Reader(b"clicks", "log", one)  # wrong
Reader("clicks", "log")  # wrong


def disconnected(nsqd: str, error: NSQError) -> None:
    print(nsqd, error)


with Reader("clicks", "log", one, on_disconnected=disconnected, on_connected=print, on_backoff=print) as reader:
    assert_type(reader.join(1.0), bool)
    stats = reader.stats()
    assert_type(stats.in_flight, int)
    assert_type([health.ok for health in stats.lookupds.values()], "list[bool | None]")
    assert_type([c.negotiated.version for c in stats.connections if c.negotiated is not None], list[str])
    stats.in_flight = 5  # wrong
    stats.connections[0].negotiated.version  # wrong
    reader.set_max_in_flight("5")  # wrong


# -- messages


def answers(message: Message) -> None:
    assert_type(message.body, bytes)
    assert_type(message.has_responded, bool)
    message.requeue(delay=1.5)
    message.body + "x"  # wrong
    message.requeue("1.5")  # wrong
    message.body = 5  # wrong
    message.headers["x"]  # wrong
    message.finish(1)  # wrong


assert_type(deliver(one, make_message(b"x")), "tuple[str | float | bool | None, ...] | None")
deliver(awaited, make_message(b"x"))
make_message("x")  # wrong

# -- Writers

with Writer("127.0.0.1:4150", publish_timeout=5.0, coalesce=True) as writer:
    assert_type(writer, Writer)
    writer.publish("clicks", b"x", defer=5.0, timeout=1.0)
    writer.multipublish("clicks", (b"%d" % number for number in range(9)), timeout=1.0)
    publication = writer.publish_nowait("clicks", b"x")
    assert_type(publication, Publication)
    assert_type(publication.result(1.0), PublishReceipt | None)
    assert_type(publication.done(), bool)
    assert_type(writer.publish("clicks", b"x", trace_id=42), PublishReceipt | None)
    Reader("clicks", "relay", one, on_give_up=to_topic("dead", writer))
    writer.publish("clicks", "x")  # wrong
    writer.publish(b"clicks", b"x")  # wrong
    writer.publish("clicks", {"a": 1})  # wrong
    writer.publish("clicks", b"x", delay=5.0)  # wrong
    writer.publish("clicks", b"x", defer="5s")  # wrong
    writer.publish("clicks", b"x").partition  # wrong
    publication.result().partition  # wrong
    writer.multipublish("clicks", ["x"])  # wrong

assert_type(Writer(dialect="youzan", trace=True).publish("clicks", b"x"), PublishReceipt | None)
Writer(dialect=YouzanDialect(trace=True)).publish("clicks", b"x", key="k", headers={"a": 1})
Writer(publish_timeout="5s")  # wrong
Writer(publish_timout=5.0)  # wrong
Writer(trace=1)  # wrong


def one_or_many(given: Message | list[Message]) -> None:
    print(given)


def batched_or_not(batch_size: int | None) -> Reader:
    return Reader("clicks", "log", one_or_many, batch_size=batch_size)


# -- Workers


class Timing(Middleware):
    def before(self, message: Message) -> None:
        assert_type(message.attempts, int)

    def wrap(self, call: Callable[[Message], object], handler: Handler) -> Callable[[Message], object]:
        return call

    def after(self, message: bytes) -> None:  # wrong
        pass


class Counting(Middleware[list[Message]]):
    def after(self, message: list[Message]) -> None:
        assert_type(len(message), int)


worker = Worker(
    nsqd_tcp_addresses="127.0.0.1:4150", middleware=[Timing(), Counting()], max_attempts=3, on_give_up="log"
)
worker.configure(concurrency=4)
Worker(max_attemps=3)  # wrong
Worker(max_attempts="3")  # wrong
Worker(drain_timeout="30s")  # wrong
Worker(middleware=[Timing])  # wrong
worker.configure(concurency=4)  # wrong
worker.handler("clicks", "log", concurrency="4")  # wrong
worker.handler("clicks", "log", concurency=4)  # wrong


@worker.handler("clicks", "bill", concurrency=8, max_attempts=10, on_give_up="topic:clicks.dead")
def bill(message: Message) -> None:
    print(message.body)


@worker.handler("clicks", "store", batch_size=100, batch_wait=1.0)
def store(messages: list[Message]) -> None:
    print(len(messages))


assert_type(bill(make_message(b"x")), None)
worker.handler("clicks", "a")(one)
worker.handler("clicks", "a", batch_size=5)(batch)
worker.handler("clicks", "a")(batch)  # wrong
worker.handler("clicks", "a", batch_size=5)(one)  # wrong
worker.handler("clicks", "a")(awaited)
worker.handler("clicks", "a", batch_size=5)(awaited_batch)
worker.handler("clicks", "a")(judged)  # wrong
worker.handler("clicks", "a", batch_wait=5.0)  # wrong
bill("x")  # wrong
worker.handler("clicks", "a", give_up_on=(ValueError,), retry_delay={KeyError: 5.0})(one)
worker.handler("clicks", "a", give_up_on=("ValueError",))  # wrong


def number(body: bytes) -> int:
    return int(body)


@worker.handler("clicks", "count", decode=number, concurrency=2)
def count(value: int, message: Message) -> None:
    print(value + 1, message.id)


@worker.handler("clicks", "dump", decode=JSON)
def dump(value: object, message: Message) -> None:
    print(value)


def named(value: str, message: Message) -> None:
    print(value)


worker.handler("clicks", "a", decode=number)(named)  # wrong
worker.handler("clicks", "a", decode=number)(one)  # wrong
worker.handler("clicks", "a", decode=number, batch_size=5)  # wrong
worker.add(Handler("clicks", "b", one, {"max_attempts": 3}))
worker.add(Handler("clicks", "b", awaited))
