"""Publishes numbers until nsqd has confirmed each, and notes every outcome."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from typing import Any

from gnsq_lite import Writer, errors
from tests.ledger.book import Sent
from tests.ledger.worker import QUICK

TIMEOUT = 1.5


class Publisher:
    """One Writer and the numbers it is to publish; ``run()`` returns when all are confirmed."""

    def __init__(
        self,
        topic: str,
        seed: int,
        numbers: range,
        addresses: list[str],
        seconds: float,
        lie: str = "",
        threads: int = 0,
        **options: Any,
    ) -> None:
        self._rng = random.Random(f"{seed}-publisher-{numbers.start}")
        self._topic, self._seed, self._numbers, self._seconds = topic, seed, numbers, seconds
        self._addresses, self._lie, self._options = addresses, lie, options
        #: Threads that publish; 0: this thread publishes batches, and publishes of the loop.
        self._threads = threads
        self.sent: dict[int, Sent] = defaultdict(Sent)
        self.confirmed_at: dict[int, float] = {}
        #: Publishes that timed out before their time, in words.
        self.early: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Publish everything, spread over the seconds it has."""
        # The resends of coalesced publishes and of batches cannot be counted one by one: those have no retries.
        coalesce = not self._threads and self._rng.random() < 0.3
        retries = 0 if coalesce or self._threads else self._rng.choice([0, 1, 3])
        options: dict[str, Any] = {"publish_timeout": TIMEOUT, "coalesce": coalesce, "retries": retries, **QUICK}
        options.update(self._options)
        try:
            with Writer(self._addresses, **options) as writer:
                if self._threads:
                    self._publish_in_threads(writer)
                else:
                    self._publish_all(writer, retries)
        except BaseException as error:
            self.failure = error
            raise

    def _publish_in_threads(self, writer: Writer) -> None:
        todo, failures = deque(self._numbers), list[BaseException]()
        pause = self._seconds * self._threads / len(self._numbers)

        def publish() -> None:
            while not failures:
                try:
                    number = todo.popleft()
                except IndexError:
                    return
                error: Exception | None = None
                began = time.monotonic()
                try:
                    writer.publish(self._topic, self._body(number))
                except errors.NSQError as caught:
                    error = caught
                try:
                    if not self._note(number, error, began):
                        todo.append(number)
                except BaseException as wrong:
                    failures.append(wrong)
                time.sleep(pause)

        threads = [threading.Thread(target=publish, daemon=True) for _ in range(self._threads)]
        while todo and not failures:  # a thread that ended may have been the last one when another publish failed
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            threads = [threading.Thread(target=publish, daemon=True) for _ in range(self._threads)]
        for failure in failures:
            raise failure

    def _publish_all(self, writer: Writer, retries: int) -> None:
        todo = list(self._numbers)
        todo.reverse()
        began, total = time.monotonic(), len(todo)
        while todo:
            batch = [todo.pop() for _ in range(min(len(todo), self._rng.choice([1, 10, 60])))]
            if self._lie == "ok" and self._note(batch[-1], None, time.monotonic()):
                batch.pop()
            failed = (
                self._batch(writer, batch)
                if not retries and self._rng.random() < 0.3
                else self._each(writer, batch, retries)
            )
            todo.extend(reversed(failed))
            due = began + self._seconds * (1 - len(todo) / total)
            time.sleep(max(0.0, due - time.monotonic()))

    def _body(self, number: int) -> bytes:
        return b"%d:%d" % (self._seed, number)

    def _each(self, writer: Writer, numbers: list[int], retries: int) -> list[int]:
        failed, began = [], time.monotonic()
        waiting = [(number, writer.publish_nowait(self._topic, self._body(number))) for number in numbers]
        for number, publication in waiting:
            error: Exception | None = None
            try:
                publication.result()
            except errors.NSQError as caught:
                error = caught
            self.sent[number].resent += retries - publication._publish.retries
            if not self._note(number, error, began):
                failed.append(number)
        return failed

    def _batch(self, writer: Writer, numbers: list[int]) -> list[int]:
        error: Exception | None = None
        began = time.monotonic()
        try:
            writer.multipublish(self._topic, [self._body(number) for number in numbers])
        except errors.NSQError as caught:
            error = caught
        return [number for number in numbers if not self._note(number, error, began)]

    def _note(self, number: int, error: Exception | None, began: float) -> bool:
        outcome = self.sent[number]
        passed = time.monotonic() - began
        if f" within {TIMEOUT:g} s" in str(error) and passed < TIMEOUT - 0.01:
            self.early.append(f"{number}: timed out after {passed:.3f} s of {TIMEOUT:g}")
        if error is None:
            outcome.ok += 1
            self.confirmed_at[number] = time.monotonic()
            outcome.claims.append((began, self.confirmed_at[number]))
            return True
        if isinstance(error, errors.OutcomeUnknown):
            outcome.unknown += 1
        elif isinstance(error, errors.NotSent):
            outcome.not_sent += 1
        else:
            raise error
        return False
