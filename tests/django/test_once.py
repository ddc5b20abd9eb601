"""Handlers of a Django project that run once for each key, through kills; on PostgreSQL where it is found."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from tests.programs import wait_for

pytest.importorskip("django")

from tests.django import outbox_shops
from tests.django.outbox_shops import OutboxShop

migrated = outbox_shops.migrated
server = outbox_shops.server
shop = outbox_shops.shop

HANDLER = """

from gnsq_lite.contrib.django import once

@handler("effects", "ch", concurrency=4)
@once(key=lambda message: message.body)
def effect(message):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (name) VALUES (%s)", [message.body.decode()])
        time.sleep(0.005)
        if message.body.endswith(b"7") and message.attempts == 1:
            raise ValueError("after its effect")
"""
PUBLISH = """
from django.db import connection, transaction
from gnsq_lite.contrib.django import outbox

for number in range({start}, {end}):
    with transaction.atomic():
        outbox().publish("effects", b"%d" % number)
        outbox().publish("effects", b"%d" % number)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_outbox_to_inbox_each_effect_is_there_once_through_kills(shop: OutboxShop) -> None:
    with (shop.folder / "shop/nsq.py").open("a", encoding="utf-8") as file:
        file.write(HANDLER)
    shop.script("from django.db import connection; connection.cursor().execute('CREATE TABLE effects (name text)')")
    count, kills = 100, 5
    with shop.manage("nsq_worker", "--processes", "2") as program:
        for part in range(kills):
            shop.script(PUBLISH.format(start=part * count // kills, end=(part + 1) * count // kills))
            pids = [int(pid) for pid in re.findall(r"process \d+ started.*?pid=(\d+)", program.output)]
            for pid in pids[-2:]:
                os.kill(pid, signal.SIGKILL)  # the relay runs in one of them
            time.sleep(0.5)
        wait_for(lambda: len(set(shop.select("SELECT name FROM effects"))) == count, 120.0)
        wait_for(lambda: shop.stored() == 0 and shop.depth("effects") == 0, 120.0)
        program.signal(signal.SIGTERM)
        program.ends()
    assert sorted(map(int, shop.select("SELECT name FROM effects"))) == list(range(count))
    assert len(shop.select("SELECT message FROM gnsq_lite_inboxmessage")) == count


def test_the_worker_refuses_to_start_while_the_table_of_once_is_missing(shop: OutboxShop) -> None:
    with (shop.folder / "shop/nsq.py").open("a", encoding="utf-8") as file:
        file.write(HANDLER)
    shop.script("from django.db import connection; connection.cursor().execute('DROP TABLE gnsq_lite_inboxmessage')")
    with shop.manage("nsq_worker") as program:
        assert program.ends() == 2
        assert "gnsq_lite_inboxmessage is missing in the database 'default'. You have unapplied migrations. Run" in (
            program.output
        )
        assert "connected" not in program.output
