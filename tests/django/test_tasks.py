"""The backend of Django's tasks: django.tasks of Django 6, or the package django-tasks."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from tests.programs import STARTING, wait_for

pytest.importorskip("django")

from tests.django import shops
from tests.django.shops import Shop

FRAMEWORK = "django.tasks" if find_spec("django.tasks") else "django_tasks"
pytest.importorskip(FRAMEWORK)

migrated = shops.migrated
TASKS = f"""
import os
from {FRAMEWORK} import task
from {FRAMEWORK}.signals import task_enqueued, task_finished, task_started
from gnsq_lite import GiveUp

def say(line):
    os.write(1, line.encode() + b"\\n")

for signal in (task_enqueued, task_started, task_finished):
    name = [name for name, value in globals().items() if value is signal][0]
    def heard(task_result, name=name, **rest):
        errors = [error.exception_class.__name__ for error in task_result.errors]
        say(f"{{name}} {{task_result.task.name}} {{task_result.status}} {{task_result.attempts}} {{errors}}")
    signal.connect(heard, weak=False)

@task
def add(a, b):
    say(f"added {{a + b}}")

@task(queue_name="mails", takes_context=True)
def mail(context, to, **more):
    say(f"mailed {{to}} {{more}} attempt {{context.attempt}}")

@task
def fail(why):
    raise GiveUp(why) if why == "bad" else KeyError(why)

def plain():
    pass
"""


class TaskShop(Shop):
    """The project with tasks; *options* are the backend's."""

    def configure(self, **options: Any) -> None:
        found = {"BACKEND": "gnsq_lite.contrib.django.tasks.NSQBackend", "QUEUES": ["default", "mails"]}
        self.env["SHOP_TASKS"] = json.dumps({"default": {**found, "OPTIONS": options}})

    def script(self, text: str) -> list[str]:
        return self.call("shell", "-v", "0", "-c", text).splitlines()


@pytest.fixture
def shop(tmp_path: Path, migrated: Path) -> Iterator[TaskShop]:
    shutil.copytree(migrated, tmp_path / "project")
    (tmp_path / "project" / "shop" / "tasks.py").write_text(TASKS, encoding="utf-8")
    with Broker(lookupd=False) as nsqd:
        made = TaskShop(tmp_path / "project", nsqd)
        made.configure()
        yield made


ENQUEUE = """
import asyncio
from django.db import transaction
from django.utils import timezone
from datetime import timedelta
from shop.tasks import add, fail, mail
with transaction.atomic():
    result = add.enqueue(1, b=2)
    print("status", result.status, result.is_finished, len(result.id), result.args, result.kwargs)
    mail.enqueue("ann", subject="hello")
    mail.using(run_after=timezone.now() + timedelta(seconds=2)).enqueue("later")
try:
    with transaction.atomic():
        add.enqueue(10, 10)
        raise KeyError
except KeyError:
    pass
fail.enqueue("bad")
fail.enqueue("always")
asyncio.run(mail.aenqueue("async"))
"""


@pytest.mark.parametrize("outbox", [False, True])
def test_the_worker_runs_tasks_of_committed_transactions_only(shop: TaskShop, outbox: bool) -> None:
    shop.env["SHOP_OUTBOX"] = "default"
    shop.configure(outbox=outbox, max_attempts=2)
    assert "no issues" in shop.call("check")
    said = shop.script(ENQUEUE)
    assert "status READY False 32 [1] {'b': 2}" in said
    assert [line.split()[1] for line in said if line.startswith("task_enqueued")] == [
        *("add", "mail", "mail", "add", "fail", "fail", "mail")
    ]
    with shop.manage("nsq_worker", "--log-level", "error") as program:
        for text in (
            "added 3",
            "mailed ann {'subject': 'hello'} attempt 1",
            "mailed later {} attempt 1",
            "mailed async",
        ):
            program.says(text)
        program.says("task_finished fail FAILED 1 ['GiveUp']")
        program.says("task_finished fail FAILED 2 ['KeyError']")
        program.says("task_started fail RUNNING", times=3)
        program.says("task_finished mail SUCCESSFUL 1 []", times=3)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert "added 20" not in program.output
        assert "worker runs" not in program.output  # --log-level also applies to a logging configuration of the project
        assert program.output.count("task_finished fail") == 2
        assert program.output.index("mailed ann") < program.output.index("mailed later")


WRONG = f"""
import asyncio
from datetime import datetime
from {FRAMEWORK} import default_task_backend as backend, task
from shop.tasks import add, plain

def tried(act):
    try:
        print("wrong:", act())
    except Exception as error:
        print("wrong:", type(error).__name__.removesuffix("Error"), error)

async def coroutine():
    pass

tried(lambda: (backend.supports_defer, backend.supports_async_task, backend.supports_get_result,
               backend.supports_priority))
tried(lambda: task(lambda: None))
tried(lambda: task(coroutine))
tried(lambda: task(takes_context=True)(plain))
tried(lambda: add.using(priority=5))
tried(lambda: add.using(priority=101))
tried(lambda: add.using(queue_name="none"))
tried(lambda: add.using(run_after=datetime(2100, 1, 1)))
tried(lambda: add.enqueue(object()))
tried(lambda: add.enqueue("x" * 2_000_000))
tried(lambda: backend.get_result("x"))
tried(lambda: add.get_result("x"))
tried(lambda: asyncio.run(backend.aget_result("x")))
tried(lambda: add.enqueue(1, 1).refresh())
tried(lambda: add.enqueue(1, 1).return_value)
"""


def test_each_unsupported_feature_raises_the_documented_error(shop: TaskShop) -> None:
    said = [line.removeprefix("wrong: ") for line in shop.script(WRONG) if line.startswith("wrong: ")]
    wanted = [
        "(True, False, False, False)",
        "InvalidTask Task function must be defined at a module level",
        "InvalidTask Backend does not support async",
        "InvalidTask Task takes context but does not have a first argument",
        "InvalidTask Backend does not support setting priority",
        "InvalidTask Backend does not support setting priority",
        "InvalidTask Queue 'none' is not valid",
        "InvalidTask run_after must be an aware datetime",
        "Type",
        "MessageTooLarge",
        *["NotImplemented This backend does not support retrieving"] * 4,
        "Value Task has not finished yet",
    ]
    assert len(said) == len(wanted)
    for line, start in zip(said, wanted, strict=True):
        assert line.startswith(start)


def test_the_checks_report_each_wrong_setting(shop: TaskShop) -> None:
    wrong: dict[str, tuple[Any, list[str], str]] = {
        "option": ({"concurency": 2}, ["default"], "did you mean 'concurrency'"),
        "outbox": ({"outbox": True, "using": "other"}, ["default"], "NSQ['OUTBOX'] does not name 'other'"),
        "no queue": ({}, [], "must name the queues"),
        "name": ({}, ["no good"], "tasks.no good"),
        "default": ({}, ["default"], ""),
    }
    shop.env["SHOP_TASKS"] = json.dumps(
        {
            name: {"BACKEND": "gnsq_lite.contrib.django.tasks.NSQBackend", "QUEUES": queues, "OPTIONS": options}
            for name, (options, queues, _) in wrong.items()
        }
    )
    output = shop.call("check", code=1)
    for name, (_, _, text) in wrong.items():
        assert text in output
        assert (f"TASKS['{name}']: " in output) == (name != "default")


def test_a_message_without_a_valid_task_is_given_up(shop: TaskShop) -> None:
    folder = shop.folder / "dead"
    shop.configure(on_give_up=f"directory:{folder}", max_attempts=3)
    job = {"id": "x", "args": [], "kwargs": {}, "enqueued_at": "2026-01-01T00:00:00+00:00"}
    bodies = [json.dumps({**job, "task": name}).encode() for name in ("os.getcwd", "shop.tasks.none")]
    shop.publish("tasks.default", b"{", *bodies)
    with shop.manage("nsq_worker") as program:
        wait_for(lambda: folder.is_dir() and len(list(folder.glob("*.json"))) == 3, STARTING)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert re.search(r"handler failed on .*ImportError: .*: in the task shop.tasks.none", program.output)
        assert "django.tasks.queue default handles tasks.default/tasks" in program.output
        assert 'gnsq_lite/consume/run_handler.py", line' not in program.output
    letters = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert any(each["error"].endswith(": in the task shop.tasks.none") for each in letters)
    assert sorted((each["attempts"], each["error"].partition(":")[0]) for each in letters) == [
        (1, "cannot decode the body"),
        (1, "os.getcwd is not a Django task"),
        (3, 'Module "shop.tasks" does not define a "none" attribute/class'),
    ]


def job(run_after: str | None, **values: Any) -> bytes:
    found = {"id": "x", "task": "shop.tasks.mail", "args": ["ann"], "kwargs": {}, **values}
    found["enqueued_at"] = "2026-01-01T00:00:00+00:00"
    return json.dumps(found if run_after is None else {**found, "run_after": run_after}).encode()


def in_seconds(seconds: float) -> str:
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()


def test_a_task_that_comes_early_runs_after_its_time_and_that_is_no_attempt(shop: TaskShop) -> None:
    shop.configure(max_attempts=1)
    began = time.monotonic()
    shop.publish("tasks.mails", job(in_seconds(8.0)), job(None, args=["at once"]))  # nsqd has lost the delay
    with shop.manage("nsq_worker") as program:
        program.says("mailed at once {} attempt 1")
        assert "mailed ann" not in program.output
        program.says("mailed ann {} attempt 1")
        assert time.monotonic() - began >= 8.0
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
        assert program.output.count("mailed ann") == 1
        assert "failed" not in program.output


EARLY = """
import json, time
from datetime import datetime, timedelta, timezone
from gnsq_lite import errors
from gnsq_lite.contrib.django import tasks
from gnsq_lite.testing import make_message

class FakeWriter:
    error = None
    def publish(self, topic, body, defer):
        if self.error is not None:
            raise self.error
        print("copy of", topic, round(defer))

writer = FakeWriter()
tasks.direct_writer = lambda: writer
now = datetime.now(timezone.utc)

def early(seconds, age, **job):
    message = make_message(json.dumps({"run_after": (now + timedelta(seconds=seconds)).isoformat(), **job}).encode(),
                           topic="t", timestamp_ns=int((time.time() - age) * 1e9))
    due = tasks.not_before(message)
    print("early:", message.answers, round(due - now.timestamp()))

early(100, 60)
early(10_000, 60)
early(100, 1)
early(-100, 60)
writer.error = errors.NotSent("nsqd is away")
early(100, 60)
for body in (b"[]", b'{"run_after": null}', b'{"run_after"'):
    print("none:", tasks.not_before(make_message(body)))
try:
    tasks.not_before(make_message(b'{"run_after": "soon"}'))
except ValueError as error:
    print("refused:", error)
"""


def test_an_early_task_is_replaced_by_a_copy_or_requeued(shop: TaskShop) -> None:
    said = [line for line in shop.script(EARLY) if line.startswith(("copy", "early", "none", "refused"))]
    assert said[:-1] == [
        "copy of t 100",
        "early: [('finish',)] 100",
        "copy of t 3600",  # nsqd's limit
        "early: [('finish',)] 10000",
        "early: [] 100",  # new: nsqd defers nothing now
        "early: [] -100",
        "early: [] 100",  # no copy could be published
        *["none: None"] * 3,
    ]
    assert "Invalid isoformat string" in said[-1]
