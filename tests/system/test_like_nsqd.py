"""Connections of a broker that is as strict as nsqd."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from tests.rawclient import RawClient, identify


@pytest.mark.parametrize("like_nsqd", [True, False])
def test_two_nsqds_give_the_same_ids(like_nsqd: bool) -> None:
    with Broker(nsqds=2, like_nsqd=like_nsqd) as broker:
        ids = [nsqd.topics.get("t").ids.next(10**18) for nsqd in broker._nsqds]
    assert (ids[0] == ids[1]) == like_nsqd


@pytest.mark.parametrize("like_nsqd", [True, False])
def test_a_second_identify_changes_the_answer_and_not_the_connection(like_nsqd: bool) -> None:
    with Broker(like_nsqd=like_nsqd) as broker, RawClient(broker.nsqd_tcp_address) as client:
        for timeout in (5000, 7000):
            client.send(identify(msg_timeout=timeout, feature_negotiation=True))
            answer: dict[str, Any] = json.loads(client.frame()[1])
            assert answer["msg_timeout"] == timeout
        (session,) = broker._nsqds[0]._sessions.values()
        assert session.msg_timeout == (5.0 if like_nsqd else 7.0)
