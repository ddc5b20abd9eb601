"""The status pages of a supervisor: those of its processes, taken together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gnsq_lite.supervise.children import Child
from gnsq_lite.supervise.processes import Supervisor
from gnsq_lite.supervise.status import Page, Verdict, fetch

#: Seconds a process has to answer; below the 10 s after which Prometheus gives up.
TIMEOUT = 5.0

#: Makes one page of the processes' pages, by their number.
Merge = Callable[[Mapping[str, bytes]], Page]


class GroupPages:
    """Asks every process when it is asked itself; nothing is kept, and nothing happens while nobody asks."""

    def __init__(self, supervisor: Supervisor, merge: Merge) -> None:
        self._supervisor, self._merge = supervisor, merge

    def metrics(self) -> Page:
        """The metrics of all processes, told apart by a label; one that does not answer is left out."""
        return self._merge({str(n): body for n, (status, body) in self._ask("/metrics").items() if status == 200})

    def health(self) -> Verdict:
        """The supervisor's own life: it looks after its processes, of which one may just be starting again."""
        pids = {str(child.number): child.pid for child in tuple(self._supervisor.children)}
        return self._supervisor.is_well(), {"pid": os.getpid(), "processes": pids}

    def ready(self) -> Verdict:
        """Ready when every process is."""
        answers = self._ask("/readyz")
        details: dict[str, Any] = {}
        for number, (_, body) in sorted(answers.items()):
            try:
                details[str(number)] = json.loads(body)
            except ValueError:
                details[str(number)] = {"ok": False, "why": body.decode("utf-8", "replace")}
        good = bool(answers) and all(status == 200 for status, _ in answers.values())
        return good, {"processes": details}

    def _ask(self, page: str) -> dict[int, tuple[int, bytes]]:
        def ask(child: Child) -> tuple[int, bytes]:
            try:
                return fetch(child.socket, page, TIMEOUT)
            except OSError as error:
                return 0, json.dumps({"ok": False, "why": f"no answer: {error}"}).encode()

        children: tuple[Child, ...] = ()
        answers: dict[int, tuple[int, bytes]] = {}
        while children != (now := tuple(self._supervisor.children)):  # one replaced meanwhile would say that it drains
            children = now
            with ThreadPoolExecutor(max_workers=min(32, len(children))) as pool:
                answers = dict(zip((child.number for child in children), pool.map(ask, children), strict=True))
        return answers
