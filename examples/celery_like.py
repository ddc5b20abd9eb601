"""Tasks as in Celery: call ``add.delay(2, 3)`` anywhere, and a worker runs it.

    gnsq-lite worker examples.celery_like --processes 2 --concurrency 4
    python -c "from examples.celery_like import add; add.delay(2, 3)"

nsqd's address comes from NSQD_TCP_ADDRESSES or NSQ_LOOKUPD_HTTP_ADDRESSES.  Arguments are JSON.  A task may run twice.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from gnsq_lite import Message, Worker, Writer

worker = Worker(max_attempts=3, requeue_delay=1.0, on_give_up="topic:tasks.dead")
writer = Writer()  # connects at the first publish, so it may be made before a fork
tasks: dict[str, Task] = {}


class Task:
    """A function that a worker can also run."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = f"{function.__module__}.{function.__name__}"
        tasks[self.name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> None:
        """Publish a call of the task, and return when nsqd has stored the message."""
        self.apply_async(args, kwargs)

    def apply_async(self, args: Any = (), kwargs: Any = None, countdown: float = 0.0) -> None:
        """Publish a call that runs after *countdown* seconds."""
        body = json.dumps({"task": self.name, "args": list(args), "kwargs": kwargs or {}}).encode()
        writer.publish("tasks", body, defer=countdown)


@worker.handler("tasks", "workers")
def run_task(message: Message) -> None:
    call = json.loads(message.body)
    tasks[call["task"]](*call["args"], **call["kwargs"])


@Task
def add(one: int, other: int) -> int:
    print(f"{one} + {other} = {one + other}", flush=True)
    return one + other
