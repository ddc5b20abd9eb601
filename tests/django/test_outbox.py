"""The outbox on PostgreSQL, if it is found, and on SQLite: at least once, in order, no rolled-back message."""

from __future__ import annotations

import signal

import pytest

from tests.programs import STARTING, wait_for

pytest.importorskip("django")

from tests.django import outbox_shops
from tests.django.outbox_shops import OutboxShop

migrated = outbox_shops.migrated
server = outbox_shops.server
shop = outbox_shops.shop


STORE = """
from django.db import transaction
from gnsq_lite.contrib.django import outbox
from shop.models import Order
outbox = outbox()
with transaction.atomic():
    Order.objects.create(number="1")
    outbox.publish("orders", b"1")
    outbox.publish_many("orders", [b"2", b"3"], key="k")
    try:
        with transaction.atomic():
            outbox.publish("orders", b"never: savepoint")
            raise KeyError
    except KeyError:
        pass
try:
    with transaction.atomic():
        outbox.publish("orders", b"never: transaction")
        raise KeyError
except KeyError:
    pass
with transaction.atomic(using="other"):
    Order.objects.using("other").create(number="4")
    outbox.publish("others", b"4", using="other", defer=0.001)
"""


def test_what_a_transaction_has_stored_is_relayed_from_each_database_and_nothing_of_one_that_rolled_back(
    shop: OutboxShop,
) -> None:
    shop.script(STORE)
    assert (shop.stored(), shop.stored("other")) == (3, 1)
    assert (shop.depth("orders"), shop.depth("others")) == (0, 0)  # no process has relayed yet
    with shop.manage("nsq_worker", "--topic", "mails", "--processes", "2") as program:
        wait_for(lambda: (shop.stored(), shop.stored("other")) == (0, 0), STARTING)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "Error" not in program.output
    assert shop.received("orders", 3) == [b"1", b"2", b"3"]
    assert shop.received("others", 1) == [b"4"]


REFUSED = """
from gnsq_lite.contrib.django import outbox
outbox = outbox()
def refused(*args, **options):
    try:
        outbox.publish(*args, **options)
    except Exception as error:
        print("refused:", type(error).__name__)
refused("no good", b"x")
refused("t", "text")
refused("t", b"")
refused("t", b"x" * 2_000_000)
refused("t", b"x", defr=1)
refused("t", b"x", using="nowhere")
refused("t", b"x", key="k" * 256)
"""


def test_what_can_never_be_published_is_refused_before_it_is_stored(shop: OutboxShop) -> None:
    said = [line.split()[1] for line in shop.script(REFUSED).splitlines() if line.startswith("refused:")]
    errors = ["InvalidName", "BodyTypeError", "InvalidBody", "MessageTooLarge", "TypeError", "ImproperlyConfigured"]
    assert said == [*errors, "OptionError"]
    assert shop.stored() == 0


HELD_UP = """
from gnsq_lite.contrib.django import outbox
from gnsq_lite.contrib.django.models import OutboxMessage
outbox = outbox()
outbox.publish_many("orders", [b"a1", b"a2"], key="a")
outbox.publish("orders", b"b1", key="b")
outbox.publish("orders", b"alone")
OutboxMessage.objects.filter(pk=OutboxMessage.objects.earliest("pk").pk).update(body=b"x" * 2_000_000)
"""


def test_a_message_that_nsqd_refuses_holds_up_its_key_alone_and_says_why(shop: OutboxShop) -> None:
    shop.script(HELD_UP)
    assert "to orders; retrying in 1 s: MessageTooLarge" in shop.call("nsq_outbox", "--once")
    assert shop.received("orders", 2) == [b"b1", b"alone"]
    assert shop.stored() == 2
    assert shop.select("select failures from gnsq_lite_outboxmessage order by id") == ["1", "0"]
    table = "gnsq_lite_outboxmessage"
    repaired = f"OutboxMessage.objects.filter(failures=1).update(body=b'a1', due_at=0)  # {table}"
    shop.script(f"from gnsq_lite.contrib.django.models import OutboxMessage\n{repaired}\n")
    shop.call("nsq_outbox", "--once")
    assert shop.received("orders", 2) == [b"a1", b"a2"]


def test_an_nsqd_that_is_away_keeps_all_in_the_outbox_until_it_is_back(shop: OutboxShop) -> None:
    shop.script(STORE)
    address = shop.env["SHOP_NSQD"]
    shop.env["SHOP_NSQD"] = "127.0.0.1:1"
    change = shop.folder / "settings.py"
    text = change.read_text(encoding="utf-8")
    change.write_text(text.replace('"publish_timeout": 20.0', '"publish_timeout": 0.5'), encoding="utf-8")
    assert "CommandError" in shop.call("nsq_outbox", "--once", code=1)
    assert shop.stored() == 3
    shop.env["SHOP_NSQD"] = address
    shop.call("nsq_outbox", "--once")
    assert (shop.stored(), shop.stored("other")) == (0, 0)


KILLED = """
import os, random, signal, sys, time
import django
django.setup()
from django.db import transaction
from gnsq_lite.contrib.django import direct_writer, outbox
from gnsq_lite.contrib.django.outbox import source
from gnsq_lite.contrib.relay import Relay, relay_until
from shop.models import Order

rng = random.Random(20)
relay_aliases = ("default", "default", "other")

def relay(alias):
    def wait(seconds):
        time.sleep(min(seconds, 0.01))
        return False
    relay_until(wait, Relay(source(alias), direct_writer(), batch=3), 0.01)

def store(first):
    # Orders by turns in both databases; every third transaction rolls back.
    stored = outbox()
    for number in range(first, first + 100_000):
        alias = ("default", "other")[number % 2]
        key = "k%d" % (number % 6)
        try:
            with transaction.atomic(using=alias):
                Order.objects.using(alias).create(number=str(number))
                stored.publish("orders", b"%d" % number, key=key, using=alias)
                if number % 3 == 0:
                    raise KeyError
        except KeyError:
            pass

def begin(function, *args):
    pid = os.fork()
    if pid:
        return pid
    try:
        function(*args)
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(9)

def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

relays = [begin(relay, alias) for alias in relay_aliases]
stores, first = begin(store, 0), 0
for moment in range(20):
    time.sleep(0.05 + 0.2 * rng.random())
    which = rng.randrange(len(relays))
    kill(relays[which])
    relays[which] = begin(relay, relay_aliases[which])
    if moment % 5 == 4:
        kill(stores)
        first += 100_000 * 6
        stores = begin(store, first) if moment < 19 else None
for pid in relays:
    kill(pid)
print("killed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_through_20_kills_no_committed_message_is_lost_none_was_rolled_back_and_each_key_keeps_its_order(
    shop: OutboxShop,
) -> None:
    (shop.folder / "killed.py").write_text(KILLED, encoding="utf-8")
    shop.env["DJANGO_SETTINGS_MODULE"] = "settings"
    from tests.programs import running

    with running(["killed.py"], shop.folder, env=shop.env, name="killed") as program:
        assert program.ends(200) == 0, program.output
        assert "Traceback" not in program.output
    shop.call("nsq_outbox", "--once")
    assert (shop.stored(), shop.stored("other")) == (0, 0)
    committed = {number for name in ("shop", "other") for number in shop.select("select number from shop_order", name)}
    received = [body.decode() for body in shop.received("orders", len(committed))]
    assert len(committed) > 50
    assert set(received) == committed
    assert len(received) - len(committed) <= 20 * 3  # a kill doubles a batch; two that relay at once would double all
    assert not any(int(number) % 3 == 0 for number in committed)
    firsts = list(dict.fromkeys(received))
    for key in range(6):
        numbers = [int(number) for number in firsts if int(number) % 6 == key]
        assert numbers == sorted(numbers)


def test_after_the_server_has_ended_idle_connections_no_message_fails(shop: OutboxShop) -> None:
    if shop.server is None:
        return  # SQLite has no connections to end
    with shop.manage("nsq_worker", "--topic", "orders") as program:
        program.says("connected")
        shop.publish("orders", b"1", b"2", b"3", b"4")  # both threads have a connection now, perhaps
        program.says("billed", times=4)
        for round in range(3):
            assert shop.server.end_connections() >= 1
            shop.publish("orders", *[b"r%d-%d" % (round, number) for number in range(6)])
            program.says(f"billed r{round}-", times=6)
        shop.script("from gnsq_lite.contrib.django import outbox\noutbox().publish('orders', b'stored')\n")
        program.says("billed stored")  # the relay has a new connection too
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "handler failed" not in program.output
    assert len(shop.select("select number from shop_order where billed")) == 4 + 18 + 1


QUERIES = """
from django.db import connection
from gnsq_lite.contrib.django import CloseOldConnections
from gnsq_lite.contrib.django.outbox import source
connection.force_debug_cursor = True   # as DEBUG=True does
middleware, relayed = CloseOldConnections(), source("default")
counts = []
for _ in range(5):
    middleware.before(None)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    middleware.after(None)
    counts.append(len(connection.queries))
for _ in range(5):
    with relayed.begin() as table:
        table.is_due(0.0)
    counts.append(len(connection.queries))
print(max(counts[:5]), max(counts[5:]))
"""


def test_the_sql_that_django_keeps_under_debug_is_forgotten_after_each_message_and_batch(shop: OutboxShop) -> None:
    message, batch = map(int, shop.script(QUERIES).split()[-2:])
    assert message == 1
    assert 1 <= batch <= 4  # BEGIN, SELECT, COMMIT of one batch


COLUMNS = """
import sqlite3
from gnsq_lite.contrib.django.models import OutboxMessage
from gnsq_lite.contrib.outbox import Table, insert_into
cursor = sqlite3.connect(":memory:").cursor()
Table("made", cursor, "?", False).create()
created = [row[1] for row in cursor.execute("PRAGMA table_info(made)")]
inserted = insert_into("made", "?").partition("(")[2].partition(")")[0].split(", ")
modelled = [field.column for field in OutboxMessage._meta.fields]
assert created == ["id", *inserted] == modelled, (created, inserted, modelled)
"""


def test_the_table_of_an_outbox_its_insert_and_djangos_model_have_the_same_columns(shop: OutboxShop) -> None:
    shop.script(COLUMNS)
