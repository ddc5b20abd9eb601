"""The broker's cluster answers what Youzan's servers answered, byte for byte but for ids, places and times."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.golden.youzan import Conversation, frames_of
from tests.golden.youzan import conversation as golden
from tests.golden.youzan.conversations import CONVERSATIONS
from tests.youzan_broker import YouzanBroker

TOPICS = {
    "gplain": {"partitions": 2},
    "gordered": {"partitions": 2, "ordered": True},
    "gext": {"ext": True},
    "gextord": {"ext": True, "ordered": True},
    "gclosed": {"disable_channel_auto_create": True},
}


@pytest.fixture(scope="module")
def broker() -> Iterator[YouzanBroker]:
    with YouzanBroker(nsqds=2) as running:
        for name, kinds in TOPICS.items():
            running.youzan.create_topic(name, **kinds)  # type: ignore[arg-type]
        yield running


class Client:
    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.got = b""
        #: How many messages it has given back or finished, each of which brings another.
        self.given_back = 0

    def say(self, data: bytes) -> None:
        """Send, and read until nothing comes for a while."""
        if b"<ID>" in data:
            while len(bodies := [body for kind, body in frames_of(self.got) if kind == 2]) <= self.given_back:
                self.read_more()
            # It is back after the conversation at the earliest, also where that takes seconds.
            data = data.replace(b" 300\n", b" 30000\n").replace(b"<ID>", bodies[-1][10:26])
            self.given_back += not data.endswith(b" 30000\n")
        try:
            self.sock.sendall(data)
        except ConnectionError:
            return
        self.read(1 << 30, 0.02)

    def wait_for(self, frames: int) -> None:
        """Read until that many have come."""
        while len(frames_of(self.got)) < frames:
            self.read_more()

    def read_more(self) -> None:
        """Read something; fails where nothing comes."""
        had = len(self.got)
        self.read(had + 1, 20.0)
        assert len(self.got) > had, self.got

    def read(self, enough: int, patience: float) -> None:
        self.sock.settimeout(patience)
        try:
            while len(self.got) < enough and (data := self.sock.recv(65536)):
                self.got += data
        except (TimeoutError, ConnectionError):
            pass

    def ended(self) -> bool:
        self.sock.settimeout(0.1)
        try:
            return self.sock.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True


def shape(frame: tuple[int, bytes], conversation: Conversation) -> tuple[int, bytes]:
    """The frame without what differs from run to run: times, counters in ids, offsets."""
    kind, data = frame
    if kind == 2:
        attempts, internal, trace, rest = data[8:10], data[10:18], data[18:26], data[26:]
        if b"SUB gext" not in b"".join(conversation.sent) and len(rest) > 12 and rest[:5] == b"\0\0\0\0\0":
            rest = rest[8:]  # the queue offset; the size stays
        rest = re.sub(rb"\0\0\0\0\0\0..(?=\0\0\0.)", b"<place>", rest, flags=re.S)
        return kind, attempts + internal[:2] + trace + rest
    if kind == 0 and len(data) == 30:
        return kind, data[:4] + data[10:18] + data[26:]
    return kind, data


def replay(broker: YouzanBroker, conversation: Conversation) -> tuple[bytes, bool]:
    """Send what was sent then; return what came back, and whether the broker closed."""
    leader = broker.youzan.leader(conversation.topic, conversation.partition)
    assert leader is not None
    number = 1 - leader if conversation.other else leader
    client = Client(broker.nodes[number].tcp_address)
    try:
        frames, closing = conversation.frames(), (0, b"CLOSE_WAIT")
        for data in conversation.sent:
            if data == b"CLS\n" and closing in frames:  # what came before its answer then does so now, however slowly
                client.wait_for(frames.index(closing))
            client.say(data)
        client.read(len(conversation.received), 2.0)
        return client.got, client.ended()
    finally:
        client.sock.close()


@pytest.fixture(scope="module")
def answers(broker: YouzanBroker) -> dict[str, tuple[bytes, bool]]:
    """All of them, in the order of the capture: what one conversation publishes, a later one may read."""
    return {name: replay(broker, golden(name)) for name in CONVERSATIONS}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_broker_answers_as_the_real_servers_did(answers: dict[str, tuple[bytes, bool]], name: str) -> None:
    conversation, (received, ended) = golden(name), answers[name]
    expected = [shape(frame, conversation) for frame in conversation.frames()]
    got = [shape(frame, conversation) for frame in frames_of(received)]
    assert got[: len(expected)] == expected
    assert len(got) == len(expected)
    assert ended is conversation.closed
