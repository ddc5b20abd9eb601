"""Compressed bodies between a Writer and a Reader, on the embedded cluster and a real one."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.errors import CompressedBodyError
from gnsq_lite.youzan.compression import CODEC_KEY
from tests.compressed import BODY, BOMBS, CODECS, GO, said
from tests.contract import youzan_clients
from tests.contract.youzan_clients import Cluster, a_reader, a_writer, subscribed
from tests.programs import wait_for

cluster = youzan_clients.cluster

pytestmark = pytest.mark.rule("YZ-15")


@pytest.mark.parametrize("codec", CODECS)
def test_a_handler_reads_the_body_that_the_go_client_compressed(cluster: Cluster, codec: str) -> None:
    topic, got = cluster.topic(1, extend="true"), []
    with a_reader(cluster, topic, lambda m: got.append((m.body, m.headers, m.raw_body))) as reader:
        subscribed(reader, 1)
        with a_writer(cluster) as writer:
            writer.publish(topic, GO[codec], headers=said(codec, a="1"))
            writer.publish(topic, b"plain")
        wait_for(lambda: len(got) == 2)
    assert sorted(got, key=lambda one: -len(one[0])) == [(BODY, {"a": "1"}, GO[codec]), (b"plain", None, b"plain")]


@pytest.mark.rule("MSG-4")
def test_a_bomb_fails_its_message_alone_until_it_is_given_up(cluster: Cluster) -> None:
    topic, got, errors, given_up = cluster.topic(1, extend="true"), [], [], []

    def handle(message: Any) -> None:
        try:
            got.append(message.body)
        except CompressedBodyError as error:
            errors.append(error)
            raise

    with a_reader(
        cluster,
        topic,
        handle,
        max_attempts=2,
        requeue_delay=0.0,
        on_give_up=given_up.append,
        max_decompressed_size=1000,
    ) as reader:
        subscribed(reader, 1)
        with a_writer(cluster) as writer:
            writer.publish(topic, b"before")
            writer.publish(topic, BOMBS["lz4"], headers=said("lz4", None))
            writer.publish(topic, GO["lz4"], headers=said("lz4"))
        wait_for(lambda: given_up and len(got) == 2, 60.0)
        assert reader.stats().connections
    assert sorted(got) == [b"before", BODY]
    assert len(errors) == 2
    assert given_up[0].raw_body == BOMBS["lz4"]


def test_a_relay_leaves_bodies_packed(cluster: Cluster) -> None:
    topic, got = cluster.topic(1, extend="true"), []
    with a_reader(cluster, topic, got.append, decompress=False) as reader:
        subscribed(reader, 1)
        with a_writer(cluster) as writer:
            writer.publish(topic, GO["gzip"], headers=said("gzip"))
        wait_for(lambda: got)
    assert (got[0].body, got[0].headers[CODEC_KEY]) == (GO["gzip"], "1")
