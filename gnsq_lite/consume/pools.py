"""The pool that runs a Reader's handlers: which there are, and how to choose one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from gnsq_lite.consume.greenlet_pool import GreenletPool, InlinePool
from gnsq_lite.consume.thread_pool import ThreadPool
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import is_patched
from gnsq_lite.speed import Runner

#: Handlers at once where the user does not say.
DEFAULT_GREENLETS = 100
DEFAULT_THREADS = 8


class Pool(Protocol):
    """Runs jobs: messages, or lists of them."""

    #: Each worker, a greenlet or a thread's ident, and the job it is at, or None.
    seats: list[list[Any]]

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*; in the loop's thread; never waits."""

    def take_queued(self) -> list[Any]:
        """Remove and return the jobs that no handler has begun."""

    def queued(self) -> int:
        """How many jobs no handler has begun."""

    def jobs(self) -> list[Any]:
        """Return the jobs that no handler has begun, and those that handlers are at."""

    def busy(self) -> int:
        """How many handlers run now."""

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many handlers may run at once."""

    def look(self, now: float) -> None:
        """Replace workers that are gone; in the loop's thread, every now and then."""

    def reset(self) -> None:
        """Forget what was not begun, after an exception that may have cut into this pool; running handlers go on."""

    def close(self) -> None:
        """Start no more handlers; workers end when theirs is done."""

    def abandon(self) -> None:
        """In a forked child: the jobs are the parent's; a worker that forked ends when its handler returns."""


def pool_kind(asked: Literal["auto", "greenlet", "thread", "inline"]) -> Literal["greenlet", "thread", "inline"]:
    """Return the pool that *asked* means in this process: "auto" is greenlets where it is monkey-patched."""
    if asked == "auto":
        return "greenlet" if is_patched() else "thread"
    return asked


def make_pool(
    kind: Literal["greenlet", "thread", "inline"],
    loop: Loop,
    runner: Runner,
    concurrency: int,
    on_exit: Callable[[BaseException], None],
) -> Pool:
    """Return a pool; *on_exit* gets what a handler raised that is no Exception."""
    if kind == "inline":
        return InlinePool(runner, on_exit)
    if kind == "greenlet":
        return GreenletPool(loop, runner, concurrency, on_exit)
    return ThreadPool(loop, runner, concurrency, on_exit)


def default_concurrency(kind: str, max_in_flight: int) -> int:
    """Return how many handlers run at once where the user does not say: never more than messages can be here."""
    most = DEFAULT_GREENLETS if kind == "greenlet" else DEFAULT_THREADS
    return 1 if kind == "inline" else max(1, min(max_in_flight, most))
