"""Magic, SUB, RDY, CLS, NOP and unknown commands."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, MakeBroker
from tests.rawclient import CLOSE_WAIT, MESSAGE, OK, identify, mpub, pub, sub
from tests.servers import ServerHandle


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (b"  V2FOO\n", "closed"),
        (b"  V2FOO\n" + b"NOP\n" * 250, "closed"),  # read already, though not looked at
        (b"  V2FOO\n" + b"NOP\n" * 5000, "reset"),
        (b"  V2" + b"x" * 16384, "closed"),
        (b"  V2" + b"x" * 20000, "reset"),
        (b"GET ", "closed"),
        (b"GET / HTTP/1.1\r\n\r\n", "reset"),
    ],
    ids=["error", "error, little more", "error, more than is read", "line", "longer line", "magic", "magic and more"],
)
@pytest.mark.rule("ERR-2")
def test_a_client_that_is_refused_is_reset_where_what_it_sent_was_not_read(
    broker: ServerHandle, connect: Connect, sent: bytes, end: str
) -> None:
    client = connect(broker, magic=b"")
    client.socket.sendall(sent)
    client.socket.settimeout(10)
    try:
        while client.socket.recv(4096):
            pass
        seen = "closed"
    except ConnectionResetError:
        seen = "reset"
    assert seen == end


@pytest.mark.parametrize("magic", [b"  V1", b"  V3", b"GET ", b"PUB "])
@pytest.mark.rule("WIRE-1")
def test_other_magic_bytes_are_refused(broker: ServerHandle, connect: Connect, magic: bytes) -> None:
    client = connect(broker, magic=magic)
    assert client.error() == "E_BAD_PROTOCOL"
    assert client.is_closed()


def test_nop_is_not_answered(broker: ServerHandle, connect: Connect) -> None:
    client = connect(broker)
    client.send(b"NOP\n", b"NOP\n")
    client.sync()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"FOO bar\n", "E_INVALID invalid command FOO"),
        (b"\n", "E_INVALID invalid command "),
        (b"pub t\n", "E_INVALID invalid command pub"),
        (b"SUB_ORDERED t c 0\n", "E_INVALID invalid command SUB_ORDERED"),
        (b"SUB\n", "E_INVALID SUB insufficient number of parameters"),
        (b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
        (b"SUB a!b c\n", 'E_BAD_TOPIC SUB topic name "a!b" is not valid'),
        (b"SUB  c\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
        (b"SUB t a!b\n", 'E_BAD_CHANNEL SUB channel name "a!b" is not valid'),
        (b"SUB t \n", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB t %s\n" % (b"x" * 65), f'E_BAD_CHANNEL SUB channel name "{"x" * 65}" is not valid'),
        (b"SUB \x01\xff c\n", 'E_BAD_TOPIC SUB topic name "\\x01\\xff" is not valid'),
        (b'SUB "t c\n', 'E_BAD_TOPIC SUB topic name "\\"t" is not valid'),
        (b"RDY 1\n", "E_INVALID cannot RDY in current state"),
        (b"CLS\n", "E_INVALID cannot CLS in current state"),
        (b"FIN 0123456789abcdef\n", "E_INVALID cannot FIN in current state"),
        (b"REQ 0123456789abcdef 0\n", "E_INVALID cannot REQ in current state"),
        (b"TOUCH 0123456789abcdef\n", "E_INVALID cannot TOUCH in current state"),
    ],
)
@pytest.mark.rule("ERR-2")
def test_an_unknown_or_bad_command_closes_the_connection(
    broker: ServerHandle, connect: Connect, line: bytes, text: str
) -> None:
    client = connect(broker)
    client.send(line)
    assert client.error() == text
    assert client.is_closed()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"SUB t c\n", "E_INVALID cannot SUB in current state"),
        (b"IDENTIFY\n", "E_INVALID cannot IDENTIFY in current state"),
        (b"AUTH\n", "E_INVALID cannot AUTH in current state"),
        (b"RDY x\n", "E_INVALID RDY could not parse count x"),
        (b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
        (b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
        (b"FIN\n", "E_INVALID FIN insufficient number of params"),
        (b"FIN 0\n", "E_INVALID invalid message ID"),
        (b"REQ 0123456789abcdef\n", "E_INVALID REQ insufficient number of params"),
        (b"REQ 0 0\n", "E_INVALID invalid message ID"),
        (b"REQ 0123456789abcdef x\n", "E_INVALID REQ could not parse timeout x"),
        (b"REQ 0123456789abcdef -1\n", "E_INVALID REQ could not parse timeout -1"),
        (b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
        (b"TOUCH 0\n", "E_INVALID invalid message ID"),
    ],
)
@pytest.mark.rule("CFG-6")
@pytest.mark.rule("ERR-2")
def test_a_bad_command_of_a_subscriber_closes_the_connection(
    broker: ServerHandle, connect: Connect, line: bytes, text: str
) -> None:
    client = connect(broker)
    client.subscribe("t", "c")
    client.send(line)
    assert client.error() == text
    assert client.is_closed()


@pytest.mark.rule("RDY-1")
def test_nothing_comes_before_rdy(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.publish(topic, b"x")
    client = connect(broker)
    client.subscribe(topic, "c")
    assert client.is_silent(0.2)
    client.send(b"RDY 1\n")
    assert client.message().body == b"x"


@pytest.mark.rule("RDY-4")
def test_rdy_bounds_what_is_in_flight(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.ask(mpub(topic, *[b"x"] * 10))
    client.subscribe(topic, "c", ready=3)
    messages = [client.message() for _ in range(3)]
    assert client.is_silent(0.2)
    client.finish(messages[0])
    assert client.message().attempts == 1
    assert client.is_silent(0.1)
    assert broker.stats(topic, "c")["in_flight_count"] == 3


def test_rdy_counts_anew_and_not_on_top(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.ask(mpub(topic, *[b"x"] * 10))
    client.subscribe(topic, "c", ready=2)
    messages = [client.message() for _ in range(2)]
    client.send(b"RDY 1\n")
    assert client.is_silent(0.1)
    client.finish(messages[0])  # 1 in flight, RDY 1
    assert client.is_silent(0.1)
    client.finish(messages[1])
    client.message()
    assert client.is_silent(0.1)


@pytest.mark.rule("RDY-8")
def test_rdy_0_stops_the_flow(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=5)
    client.send(b"RDY 0\n")
    client.sync()
    broker.publish(topic, b"x")
    assert client.is_silent(0.2)
    client.send(b"RDY 1\n")
    assert client.message().body == b"x"


def test_rdy_without_a_number_is_rdy_1(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c")
    client.send(b"RDY\n")
    client.sync()
    assert broker.stats(topic, "c")["clients"][0]["ready_count"] == 1


@pytest.mark.rule("RDY-5")
def test_the_largest_rdy_is_max_rdy_count(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    server = make_broker(max_rdy_count=10)
    client = connect(server)
    assert client.identify()["max_rdy_count"] == 10
    client.subscribe(topic, "c", ready=10)
    client.sync()
    client.send(b"RDY 11\n")
    assert client.error() == "E_INVALID RDY count 11 out of range 0-10"
    assert client.is_closed()


@pytest.mark.rule("CLOSE-1")
def test_cls_is_answered_and_stops_the_flow(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.ask(mpub(topic, *[b"x"] * 5))
    client.subscribe(topic, "c", ready=2)
    messages = [client.message() for _ in range(2)]
    client.send(b"CLS\n")
    assert client.frame() == CLOSE_WAIT
    client.finish(messages[0])
    client.requeue(messages[1])
    client.send(b"RDY 1\n")  # ignored
    assert client.is_silent(0.2)
    found = broker.stats(topic, "c")
    assert (found["in_flight_count"], found["depth"], found["requeue_count"]) == (0, 4, 1)


def test_cls_twice_closes_the_connection(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c")
    assert client.ask(b"CLS\n") == b"CLOSE_WAIT"
    client.send(b"CLS\n")
    assert client.error() == "E_INVALID cannot CLS in current state"
    assert client.is_closed()


@pytest.mark.rule("HB-1")
def test_sub_with_heartbeats_off_is_refused(broker: ServerHandle, connect: Connect) -> None:
    client = connect(broker)
    client.identify(heartbeat_interval=-1)
    client.send(sub("t", "c"))
    assert client.error() == "E_INVALID cannot SUB with heartbeats disabled"
    assert client.is_closed()


def test_more_consumers_than_allowed_are_refused(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    server = make_broker(max_channel_consumers=1)
    connect(server).subscribe(topic, "c")
    second = connect(server)
    second.send(sub(topic, "c"))
    assert second.error() == f"E_SUB_FAILED SUB failed consumers for {topic}:c exceeds limit of 1"
    assert second.is_closed()
    connect(server).subscribe(topic, "other")


@pytest.mark.rule("CONN-1")
def test_identify_sub_and_rdy_may_be_sent_in_one_packet(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.publish(topic, b"x")
    client = connect(broker)
    client.send(identify(client_id="me"), sub(topic, "c"), b"RDY 1\n")
    assert client.frame() == OK
    assert client.frame() == OK
    assert client.frame()[0] == MESSAGE


def test_after_a_fatal_error_nothing_more_is_carried_out(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.send(b"FOO\n", pub(topic, b"x"))
    assert client.error() == "E_INVALID invalid command FOO"
    assert client.is_closed()
    assert broker.stats(topic) == {}
