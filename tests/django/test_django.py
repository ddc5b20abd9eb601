"""``manage.py nsq_worker`` and the writer, in a real project with SQLite."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
from contextlib import closing
from typing import Any

import click
import pytest

from gnsq_lite.cli import worker
from tests import docblocks
from tests.django import shops
from tests.django.shops import PROJECT, Shop
from tests.programs import STARTING, running, wait_for
from tests.servers import http_call

pytest.importorskip("django")

migrated = shops.migrated
shop = shops.shop


#: Wrong settings, each with a part of the text that ``manage.py check`` shows.
WRONG = {
    "not a dict": (["127.0.0.1:4150"], "NSQ must be a dict"),
    "unknown key": ({"LOOKUPD_ADDRESSES": []}, "did you mean 'LOOKUPD_HTTP_ADDRESSES'?"),
    "nsqd address": ({"NSQD_TCP_ADDRESSES": ["127.0.0.1:port"]}, "NSQ['NSQD_TCP_ADDRESSES']: nsqd_tcp_addresses"),
    "lookupd address": ({"LOOKUPD_HTTP_ADDRESSES": ["ftp://a"]}, "NSQ['LOOKUPD_HTTP_ADDRESSES']: lookupd_http"),
    "reader option": ({"READER": {"max_atempts": 3}}, "NSQ['READER']: max_atempts"),
    "reader value": ({"READER": {"time_limit": -1.0}}, "NSQ['READER']: time_limit"),
    "reader type": ({"READER": [("max_attempts", 3)]}, "NSQ['READER']: "),
    "writer option": ({"WRITER": {"publish_timout": 5.0}}, "NSQ['WRITER']: publish_timout"),
    "writer value": ({"WRITER": {"publish_timeout": "5s"}}, "NSQ['WRITER']: publish_timeout"),
    "missing middleware": ({"MIDDLEWARE": ["shop.missing.Tracing"]}, "NSQ['MIDDLEWARE']: No module named"),
    "no middleware": ({"MIDDLEWARE": ["shop.models.Order"]}, "shop.models.Order is not a subclass of"),
    "middleware as text": ({"MIDDLEWARE": "shop.middleware.Tracing"}, "must be a list of dotted paths"),
    "drain timeout": ({"DRAIN_TIMEOUT": "30"}, "NSQ['DRAIN_TIMEOUT']: drain_timeout"),
    "outbox": ({"OUTBOX": ["replica"]}, "NSQ['OUTBOX'] must be a list of names of DATABASES"),
    "outbox interval": ({"OUTBOX_INTERVAL": 0}, "NSQ['OUTBOX_INTERVAL']"),
}
CHECKS = """
import json, os, sys
import django
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()
found = {}
for name, wrong in json.loads(sys.argv[1]).items():
    with override_settings(NSQ=wrong):
        try:
            call_command("check")
            found[name] = ""
        except SystemCheckError as error:
            found[name] = str(error)
print("found:", json.dumps(found), flush=True)
"""


def test_the_system_checks_name_each_wrong_setting(shop: Shop) -> None:
    assert "no issues" in shop.call("check")
    wrong = json.dumps({name: setting for name, (setting, _) in WRONG.items()})
    with shop.program("-c", CHECKS, wrong) as program:
        assert program.ends() == 0, program.output
        found = json.loads(program.output.split("found: ")[1])
    assert {name: text for name, (_, text) in WRONG.items() if text not in found[name]} == {}, found
    assert all(text.count("(gnsq_lite.E001)") == 1 for text in found.values()), found


def test_the_worker_feeds_every_apps_handlers_which_use_the_database(shop: Shop) -> None:
    with shop.manage("nsq_worker") as program:
        program.says("connected", times=2)
        shop.publish("orders", b"1", b"2", b"3")
        shop.publish("mails", b"hello")
        program.says("billed", times=3)
        program.says("sent hello")
        assert "connection open: True" not in program.output  # closed around each message, CONN_MAX_AGE being 0
        assert program.output.count("connection open: False") == 4
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "Error" not in program.output
    assert shop.billed() == {"1": True, "2": True, "3": True}


IN_A_TEST = """
import os
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()
from django.test import TestCase
from django.test.runner import DiscoverRunner
from gnsq_lite.contrib.django import make_worker
from gnsq_lite.testing import deliver, make_message
from shop.models import Order
from shop.nsq import bill

class InATransaction(TestCase):
    def test_it(self):
        Order.objects.create(number="1")
        assert deliver(bill, make_message(b"1")) == ("finish",)
        assert make_worker().deliver(bill, b"1").kind == "finish"
        assert Order.objects.get(number="1").billed

runner = DiscoverRunner(verbosity=0)
databases = runner.setup_databases()
result = runner.run_suite(runner.test_loader.loadTestsFromTestCase(InATransaction))
runner.teardown_databases(databases)
print("passed:", result.testsRun - len(result.failures) - len(result.errors))
"""


def test_a_delivery_without_nsqd_uses_the_transaction_of_the_test(shop: Shop) -> None:
    with shop.program("-c", IN_A_TEST) as program:
        assert program.ends() == 0, program.output
        assert "passed: 1" in program.output


@pytest.mark.rule("CLOSE-1")
def test_it_drains_on_term_and_shares_work_between_processes(shop: Shop) -> None:
    with shop.manage("nsq_worker", "--processes", "2", "--topic", "orders") as program:
        program.says("connected", times=2)
        shop.publish("orders", b"slow")
        program.says("begun slow")
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "mails" not in program.output
    assert shop.billed() == {"slow": True}


def test_what_is_published_in_a_transaction_goes_out_with_its_commit_only(shop: Shop) -> None:
    output = shop.call("order", "1")
    assert "nothing was published: True" in output
    assert (shop.depth("orders"), shop.depth("mails")) == (1, 1)
    assert "rolled back" in shop.call("order", "2", "--how", "rollback", code=1)
    assert (shop.depth("orders"), shop.depth("mails"), shop.billed()) == (1, 1, {"1": False})
    shop.call("order", "3", "--how", "plain")
    assert shop.depth("orders") == 2


def test_a_bad_body_raises_while_the_transaction_can_still_be_rolled_back(shop: Shop) -> None:
    assert "call .encode() on it" in shop.call("order", "1", "--how", "bad", code=1)
    assert shop.billed() == {}


def test_an_option_that_there_is_not_raises_while_the_transaction_can_still_be_rolled_back(shop: Shop) -> None:
    assert "unexpected keyword argument 'defr'" in shop.call("order", "1", "--how", "misspelt", code=1)
    assert shop.billed() == {}


def change(shop: Shop, file: str, old: str, new: str) -> None:
    path = shop.folder / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new", "shown"),
    [
        ("shop/nsq.py", '"mails", "sender"', '"orders", "billing"', "shop.nsq.bill already handles this channel"),
        ("shop/nsq.py", "import time", "import no_such_thing", "No module named 'no_such_thing'"),
    ],
)
def test_wrong_settings_and_handlers_are_explained_once_and_are_exit_code_2(
    shop: Shop, file: str, old: str, new: str, shown: str
) -> None:
    change(shop, file, old, new)
    output = shop.call("nsq_worker", code=2)
    assert output.count(shown) == 1
    assert "importlib" not in output
    assert ("Traceback" in output) == old.startswith("import")


def test_a_wrong_flag_is_exit_code_2_without_a_traceback(shop: Shop) -> None:
    output = shop.call("nsq_worker", "--processes", "x", code=2)
    assert "Traceback" not in output
    assert "_number" not in output


def test_an_unknown_topic_is_refused_and_no_supervise_runs_in_the_process_itself(shop: Shop) -> None:
    output = shop.call("nsq_worker", "--no-supervise", "--topic", "x", code=2)
    assert "has no handler; topics with a handler: mails, orders" in output


def test_the_pages_and_json_logs_are_there_too(shop: Shop) -> None:
    with shop.manage("nsq_worker", "--metrics-port", "0", "--log-format", "json", "--reload") as program:
        program.says("live page: http://")
        address = program.output.split("live page: http://")[1].split("/")[0]
        program.says("connected", times=2)
        wait_for(lambda: http_call(address, "GET", "/readyz").status == 200)
        assert 'gnsq_connections{channel="billing",process="0",topic="orders"} 1.0' in str(
            http_call(address, "GET", "/metrics").body, "utf-8"
        )
        change(shop, "shop/nsq.py", "import time", "import no_such_thing")
        program.says("waiting for a source to change")
        change(shop, "shop/nsq.py", "sent", "SENT OFF")
        change(shop, "shop/nsq.py", "import no_such_thing", "import time")
        program.says("which was draining, ended (0)")
        shop.publish("mails", b"x")
        program.says("SENT OFF x")
        lines: list[dict[str, Any]] = [json.loads(line) for line in program.output.splitlines() if line[:1] == "{"]
        assert {line["process"] for line in lines} == {"main", "0"}


def test_it_takes_the_flags_of_the_command_line_but_for_what_the_settings_say(shop: Shop) -> None:
    there = {parameter.opts[0] for parameter in worker.command.params if isinstance(parameter, click.Option)}
    settings = {"--nsqd-tcp-address", "--lookupd-http-address", "--patch", "--help"}
    here = set(re.findall(r"--[a-z-]+", shop.call("nsq_worker", "--help")))
    assert sorted(there - here - settings) == []


def test_a_project_without_logging_sees_what_the_worker_does(shop: Shop) -> None:
    change(shop, "settings.py", "LOGGING =", "UNUSED =")
    with shop.manage("nsq_worker") as program:
        program.says("connected, subscribed to mails/sender")


ADMIN_SETTINGS = """
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
"""
ADMIN = """
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from gnsq_lite.contrib.django.models import DeadMessage

admin.ModelAdmin.message_user = lambda self, request, text, *level: print(text)
User.objects.create_superuser("root")
client = Client()
client.force_login(User.objects.get())
page = client.get("/admin/gnsq_lite/deadmessage/").content.decode()
print("TypeError poison" in page, "Publish to their topic again" in page)
row = DeadMessage.objects.earliest("pk")
print("Traceback" in client.get(f"/admin/gnsq_lite/deadmessage/{row.pk}/change/").content.decode())
for pk, values in enumerate(({"nsqd_address": "127.0.0.1:1"}, {"body": b"x" * 2**21}), 10):
    fields = {**vars(row), **values, "pk": pk, "id": pk, "name": pk}
    del fields["_state"]
    DeadMessage.objects.create(**fields)
client.post("/admin/gnsq_lite/deadmessage/", {"action": "_retry", "_selected_action": [10, 11, row.pk]})
print([each.pk == row.pk for each in DeadMessage.objects.all()])
DeadMessage.objects.filter(pk__gte=10).delete()
"""


def add_admin(shop: Shop) -> None:
    """Add the admin site to the project."""
    apps = '"django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages"'
    change(shop, "settings.py", '"shop"]', f'"shop", {apps}, "django.contrib.sessions"]')
    with (shop.folder / "settings.py").open("a", encoding="utf-8") as file:
        file.write(ADMIN_SETTINGS)
    (shop.folder / "urls.py").write_text(
        "from django.contrib import admin\nfrom django.urls import path\n"
        'urlpatterns = [path("admin/", admin.site.urls)]\n',
        encoding="utf-8",
    )


def test_dead_letters_go_to_a_table_which_the_admin_and_the_command_retry(shop: Shop) -> None:
    add_admin(shop)
    change(shop, "settings.py", '"backoff": False', '"backoff": False, "max_attempts": 1, "on_give_up": "django"')
    change(shop, "settings.py", '"publish_timeout": 20.0', '"publish_timeout": 5.0')
    with (shop.folder / "shop/nsq.py").open("a", encoding="utf-8") as file:
        file.write('\n@handler("dead", "ch")\ndef handle(message):\n    raise TypeError("poison")\n')
    shop.call("migrate", "--verbosity", "0")
    shop.publish("dead", b"one", b"two")
    with shop.manage("nsq_worker", "--topic", "dead") as program:
        program.says("kept in django: TypeError: poison", times=2)
    *shown, unreachable, large, stayed, published, left = shop.call("shell", "-c", ADMIN).splitlines()
    assert {"True True", "True"} <= set(shown)
    assert "127.0.0.1:1: cannot connect" in unreachable
    assert large.startswith("cannot publish the letter")
    assert stayed == "1 letters of 127.0.0.1:1 stay, because it cannot be reached"
    assert published == "1 messages were published"
    assert left == "[False, False, False]"  # the other letter and the two that stay
    env = {**shop.env, "DJANGO_SETTINGS_MODULE": "settings"}
    for arguments, shown in ((["list", "--group-by", "error"], "TypeError"), (["retry"], "dead: 1 letters published")):
        words = ["-m", "gnsq_lite", "dead", arguments[0], "django", *arguments[1:]]
        with running(words, shop.folder, env=env) as program:
            assert program.ends() == 0
            assert shown in program.output
    assert shop.depth("dead") == 0
    assert shop.call("makemigrations", "gnsq_lite", "--check", "--dry-run")


SCHEDULES = """
from django.test import Client
from django.contrib import admin
from django.contrib.auth.models import User
from gnsq_lite.contrib.django.models import OutboxMessage, OutboxSchedule

admin.ModelAdmin.message_user = lambda self, request, text, *level: print(text)
User.objects.create_superuser("root")
client = Client()
client.force_login(User.objects.get())
OutboxSchedule.objects.create(name="dropped", last=60.0)
page = client.get("/admin/gnsq_lite/outboxschedule/").content.decode()
print("report" in page, "1970-01-01 00:01:00 UTC" in page, page.count("not declared"))
names = ["report", "dropped"]
client.post("/admin/gnsq_lite/outboxschedule/", {"action": "_run_now", "_selected_action": names})
print(OutboxMessage.objects.filter(topic="reports").count())
"""


def test_schedules_of_the_apps_are_stored_by_workers_and_shown_by_the_admin(shop: Shop) -> None:
    add_admin(shop)
    shop.env["SHOP_OUTBOX"] = "default"
    with (shop.folder / "shop/nsq.py").open("a", encoding="utf-8") as file:
        file.write(
            "\nfrom gnsq_lite.contrib.django import every\n"
            'every("tick", 1, "ticks", lambda when: b"%d" % when)\nevery("report", "366d", "reports", b"x")\n'
        )
    shop.call("migrate", "--verbosity", "0")

    def seen() -> int:
        with closing(sqlite3.connect(shop.env["SHOP_DATABASE"])) as database:
            return int(database.execute("SELECT COUNT(*) FROM gnsq_lite_outboxschedule").fetchone()[0])

    with shop.manage("nsq_worker", "--topic", "mails", "--no-schedules") as program:
        program.says("handles mails/sender")
        time.sleep(1.5)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0, program.output
    assert (seen(), shop.depth("ticks")) == (0, 0)
    with shop.manage("nsq_worker", "--topic", "mails", "--processes", "2") as program:
        wait_for(lambda: shop.depth("ticks") >= 2, STARTING)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0, program.output
    assert seen() == 2
    shown = shop.call("shell", "-c", SCHEDULES).splitlines()[-4:]
    assert shown == ["True True 1", "dropped: no app declares it", "1 messages were stored", "1"]
    shop.call("nsq_outbox", "--once")
    assert shop.depth("reports") == 1


def test_every_program_of_the_page_runs_as_pasted(shop: Shop) -> None:
    page = PROJECT.parent.parent.parent / "docs" / "django.rst"
    env = {**shop.env, "DJANGO_SETTINGS_MODULE": "settings", "SHOP_OUTBOX": "default"}
    assert docblocks.run(page, shop.folder, before="import django; django.setup()", env=env) >= 3


AT_ONCE = """
import threading
from gnsq_lite.contrib.django import publishing, writer

class Slow(publishing.Writer):
    both = threading.Barrier(2)
    def __init__(self, **options):
        super().__init__(**options)
        self.both.wait(20)

publishing.Writer, found = Slow, []
threads = [threading.Thread(target=lambda: found.append(writer())) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("writers:", len({id(each) for each in [*found, writer()]}))
"""


def test_threads_that_ask_for_the_first_writer_at_once_get_the_same_one(shop: Shop) -> None:
    assert "writers: 1" in shop.call("shell", "-c", AT_ONCE)


INDEPENDENT = """
from django.db import connection, transaction
from gnsq_lite import PublishMiddleware, Writer
from gnsq_lite.contrib.django import OnCommit
from gnsq_lite.errors import PublishError
from shop.models import Order

class Failing(PublishMiddleware):
    def wrap(self, send):
        def wrapped(call):
            if call.topic == "full":
                raise PublishError(call.bodies[0].decode())
            print("published", call.bodies[0].decode())
        return wrapped

writer = Writer("127.0.0.1:1", middleware=[OnCommit(), Failing()])
for round in "ab":
    try:
        with transaction.atomic():
            Order.objects.create(number=round)
            writer.publish("full", b"%s first" % round.encode())
            writer.publish("orders", b"%s second" % round.encode())
            try:
                with transaction.atomic():
                    writer.publish("orders", b"never")
                    raise KeyError
            except KeyError:
                pass
            writer.publish("full", b"%s third" % round.encode())
            writer.publish("orders", b"%s fourth" % round.encode())
            try:
                with transaction.atomic():
                    writer.publish("orders", b"never")
                    raise KeyError
            except KeyError:
                pass
    except PublishError as error:
        print("raised", error)
with transaction.atomic():
    writer.publish("orders", b"fine")
try:
    writer.publish("full", b"at once")
except PublishError as error:
    print("raised", error)
"""


def test_each_publish_of_a_transaction_is_tried_and_the_first_error_is_raised_at_the_end(shop: Shop) -> None:
    output = shop.call("shell", "-c", INDEPENDENT)
    said = [line for line in output.splitlines() if line.startswith(("published", "raised"))]
    assert said == [
        *("published a second", "published a fourth", "raised a first"),
        *("published b second", "published b fourth", "raised b first"),
        *("published fine", "raised at once"),
    ]
    assert output.count("a publish to full after the commit failed") == 4
    assert shop.billed() == {"a": False, "b": False}
