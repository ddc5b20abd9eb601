"""A backend for Django's tasks: ``django.tasks`` of Django 6, or the package ``django-tasks`` for older versions.

::

    TASKS = {"default": {"BACKEND": "gnsq_lite.contrib.django.tasks.NSQBackend", "QUEUES": ["default", "mails"]}}

``manage.py nsq_worker`` runs the tasks.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from django.core.checks import Error
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS
from django.utils import timezone
from django.utils.module_loading import import_string

from gnsq_lite import stacks
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.contrib.django.conf import nsq_settings
from gnsq_lite.contrib.django.outbox import outbox_databases
from gnsq_lite.contrib.django.publishing import direct_writer, outbox, writer
from gnsq_lite.errors import InvalidName, MissingExtra, NSQError, OptionError
from gnsq_lite.message import GiveUp, Message
from gnsq_lite.worker import Handler, Worker
from gnsq_lite.worker.failures import Failures
from gnsq_lite.worker.specs import split

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ModuleNotFoundError:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskError
        from django_tasks.signals import task_enqueued, task_finished, task_started
    except ModuleNotFoundError as missing:
        raise MissingExtra("gnsq_lite.contrib.django.tasks", "django-tasks", "django-tasks") from missing

__all__ = ["NSQBackend", "add_handlers"]

log = logging.getLogger("gnsq_lite.django")

#: The channel of the tasks' topics.
CHANNEL = "tasks"
#: Seconds after its publish in which an early task is requeued, not replaced by a copy: nsqd defers nothing now.
_NEW = 5.0


class NSQBackend(BaseTaskBackend):
    """Publishes tasks.  Each queue is a topic.

    A task is published when the current transaction commits, or by the outbox.  ``OPTIONS`` has these keys:

    ``using``
        Name of the database whose commit the publish waits for.  The default is "default".
    ``outbox``
        Whether to store tasks in the outbox of the database ``using``.
    ``prefix``
        Prefix of topics.  A queue's topic is the prefix and the queue's name.  The default is "tasks.".
    further keys
        Keyword arguments of the handler that runs the tasks, such as ``concurrency`` and ``max_attempts``.
    """

    supports_defer = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        own = dict(self.options)
        self._using, self._prefix = own.pop("using", DEFAULT_DB_ALIAS), own.pop("prefix", "tasks.")
        self._outbox = bool(own.pop("outbox", False))
        self._reader = own

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Publish a task after the commit, and return its TaskResult.  The result cannot be refreshed.

        Raises InvalidTask, PublishError, and TypeError for arguments that are not JSON.
        """
        self.validate_task(task)
        result = _result(task, uuid.uuid4().hex, self.alias, args, kwargs, TaskResultStatus.READY, timezone.now())
        job = {"id": result.id, "task": task.module_path, "args": result.args, "kwargs": result.kwargs}
        if task.run_after is not None:
            job["run_after"] = task.run_after.isoformat()
        body = json.dumps({**job, "enqueued_at": result.enqueued_at.isoformat()}).encode()
        topic = self._prefix + task.queue_name
        if self._outbox:
            outbox().publish(topic, body, at=task.run_after, using=self._using)
        else:
            writer(self._using).publish(topic, body, defer=_defer(task.run_after))
        task_enqueued.send(type(self), task_result=result)
        return result

    def handlers(self, defaults: dict[str, Any]) -> Iterator[Handler]:
        """Yield a handler for each queue.  *defaults* are the Worker's defaults.  Raises ImproperlyConfigured."""
        if not self.queues:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]['QUEUES'] must name the queues: each queue is a topic")
        if self._outbox and self._using not in outbox_databases():
            raise ImproperlyConfigured(f"NSQ['OUTBOX'] does not name {self._using!r}, the tasks' database")
        for queue in sorted(self.queues):
            options = {**self._reader, "decode": json.loads, "not_before": not_before}
            _, failures, _ = split(Handler("", "", print, options).merged(defaults))
            run_task = _running(self.alias, failures)
            run_task.__module__, run_task.__qualname__ = "django.tasks", f"queue {queue}"  # the handler's name in logs
            yield Handler(self._prefix + queue, CHANNEL, run_task, options)

    def check(self, **kwargs: Any) -> list[Error]:
        """Return an error if an option is invalid."""
        try:
            worker = Worker()
            for handler in self.handlers({}):
                worker.add(handler)
        except (ImproperlyConfigured, OptionError, InvalidName, TypeError) as error:
            return [Error(f"TASKS[{self.alias!r}]: {error}", id="gnsq_lite.E002")]
        return []


def add_handlers(worker: Worker) -> None:
    """Add the handlers of each :class:`NSQBackend` to *worker*.  Raises ImproperlyConfigured, OptionError."""
    for backend in task_backends.all():
        if isinstance(backend, NSQBackend):
            for handler in backend.handlers(worker.defaults):
                worker.add(handler)


def not_before(message: Message) -> float | None:
    """Return the task's *run_after* in seconds since 1970.  If the task comes early, replace it by a deferred copy.

    nsqd loses delays when it restarts, and when a topic's memory queue is full.  The copy begins with the first attempt
    again.  The caller requeues a message that is early and not finished: the message itself may be a copy that came
    early within seconds, or its copy cannot be published.  Raises ValueError if the time cannot be read.
    """
    if b'"run_after"' not in message.body:
        return None
    try:
        job = json.loads(message.body)
    except ValueError:  # the handler reports it
        return None
    when = job.get("run_after") if isinstance(job, dict) else None
    if when is None:
        return None
    due = datetime.fromisoformat(when)
    is_new = SYSTEM_CLOCK.wall() - message.timestamp_ns * 1e-9 < _NEW
    if not is_new and (defer := _defer(due)):
        try:
            direct_writer().publish(message.topic, message.body, defer=defer)
        except NSQError as error:
            log.warning("cannot publish a copy of the task %r, which came early; requeuing it: %s", message.id, error)
        else:
            message.finish()
    return due.timestamp()


def _running(alias: str, failures: Failures) -> Callable[[Any, Message], None]:
    worker_id = f"{os.uname().nodename}-{os.getpid()}"

    def run_task(job: Any, message: Message) -> None:
        try:
            run(job, message)
        except BaseException as error:
            vars(error).setdefault("__notes__", []).append(f"in the task {job['task']}")  # add_note() of Python 3.11
            raise

    def run(job: Any, message: Message) -> None:
        task = import_string(job["task"])
        if not isinstance(task, Task):
            raise GiveUp(f"{job['task']} is not a Django task")
        enqueued_at = datetime.fromisoformat(job["enqueued_at"])
        args, kwargs, status = job["args"], job["kwargs"], TaskResultStatus.RUNNING
        result = _result(task, job["id"], alias, args, kwargs, status, enqueued_at)
        _set(result, started_at=timezone.now(), last_attempted_at=timezone.now())
        result.worker_ids.extend([worker_id] * message.attempts)
        task_started.send(NSQBackend, task_result=result)
        try:
            context = [TaskContext(task_result=result)] if task.takes_context else []
            task.call(*context, *result.args, **result.kwargs)
        except BaseException as error:
            if failures.gives_up(message, error) is not None:
                kind = f"{type(error).__module__}.{type(error).__qualname__}"
                trace = stacks.of_error(error)
                result.errors.append(TaskError(exception_class_path=kind, traceback=trace))
                _set(result, finished_at=timezone.now(), status=TaskResultStatus.FAILED)
                task_finished.send(NSQBackend, task_result=result)
            raise
        _set(result, finished_at=timezone.now(), status=TaskResultStatus.SUCCESSFUL)
        task_finished.send(NSQBackend, task_result=result)

    return run_task


def _result(task: Any, id: str, alias: str, args: Any, kwargs: Any, status: Any, enqueued_at: datetime) -> Any:
    none = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
    values = {"task": task, "id": id, "backend": alias, "args": list(args), "kwargs": kwargs, "status": status}
    return TaskResult(**values, **none, enqueued_at=enqueued_at, errors=[], worker_ids=[])


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # TaskResult is frozen; Django's own backends do this too


def _defer(when: datetime | None) -> float:
    """Return the seconds until *when*, but at most those for which nsqd defers a message."""
    longest = nsq_settings().get("WRITER", {}).get("max_defer", 3600.0)
    return 0.0 if when is None else min(longest, max(0.0, (when - timezone.now()).total_seconds()))
