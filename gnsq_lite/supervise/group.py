"""The status pages of a supervisor.  Each page is merged from the pages of the processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gnsq_lite.supervise.children import Child
from gnsq_lite.supervise.history import History
from gnsq_lite.supervise.merged import Document, empty, merge
from gnsq_lite.supervise.processes import Supervisor
from gnsq_lite.supervise.status import Page, Verdict, fetch
from gnsq_lite.version import __version__

#: Seconds within which a process must answer.  This is shorter than the scrape timeout of Prometheus (10 s).
TIMEOUT = 5.0

_METRICS = b"""# HELP gnsq_worker_hung_processes_total Processes that the supervisor killed because they hung.
# TYPE gnsq_worker_hung_processes_total counter
gnsq_worker_hung_processes_total %d
# HELP gnsq_worker_process_starts_total Processes that the supervisor started, including restarts and replacements.
# TYPE gnsq_worker_process_starts_total counter
gnsq_worker_process_starts_total %d
"""

#: Function that merges metrics pages.  Its argument maps process numbers to pages.
Merge = Callable[[Mapping[str, bytes]], Page]


class GroupPages:
    """Fetches the page of every process when a client requests the merged page."""

    def __init__(self, supervisor: Supervisor, merge: Merge) -> None:
        self._supervisor, self._merge = supervisor, merge
        self._history = History(lambda: self._live("/api/status?brief"))

    def start_history(self) -> None:
        """Sample the counts for the charts in a daemon thread, until the supervisor stops."""
        sample = self._history.sample_until
        stops = lambda: self._supervisor.is_stopping  # noqa: E731
        threading.Thread(target=sample, args=(stops,), name="gnsq_lite-history", daemon=True).start()

    def history(self) -> dict[str, Any]:
        """Return the samples of the last ten minutes."""
        return self._history.document()

    def metrics(self) -> Page:
        """Return the metrics of all processes that answer.  The label ``process`` is the process's number."""
        pages = {str(n): body for n, (status, body) in self._fetch_all("/metrics").items() if status == 200}
        starts = sum(child.restarts.starts for child in tuple(self._supervisor.children))
        return self._merge({**pages, "supervisor": _METRICS % (self._supervisor.hung, starts)})

    def health(self) -> Verdict:
        """Return whether the supervisor works.  A restarting process does not matter."""
        pids = {str(child.number): child.pid for child in tuple(self._supervisor.children)}
        return self._supervisor.is_well(), {"pid": os.getpid(), "processes": pids, "hung": self._supervisor.hung}

    def ready(self) -> Verdict:
        """Return whether every process is ready."""
        answers = self._fetch_all("/readyz")
        details: dict[str, Any] = {}
        for number, (_, body) in sorted(answers.items()):
            try:
                details[str(number)] = json.loads(body)
            except ValueError:
                details[str(number)] = {"ok": False, "why": body.decode("utf-8", "replace")}
        good = bool(answers) and all(status == 200 for status, _ in answers.values())
        return good, {"processes": details}

    def live(self, brief: bool) -> dict[str, Any]:
        """Return the merged document for the live page.  Only the first running process polls depths."""
        return self._live("/api/status", "?brief")

    def _live(self, page: str, others: str = "") -> Document:
        children = tuple(self._supervisor.children)
        documents: list[Document] = []
        for child, (status, body) in zip(children, self._answers(children, page, others), strict=True):
            document = json.loads(body) if status == 200 else _absent(child, body)
            document["processes"][0] |= {"number": child.number, "restarts": max(0, child.restarts.starts - 1)}
            for handler in document["handlers"]:
                for name in ("errors", "running"):
                    handler[name] = [{**each, "process": child.number} for each in handler[name]]
            documents.append(document)
        return {**merge(__version__, time.time(), documents), "draining": self._supervisor.is_stopping}

    def running(self) -> dict[str, Any]:
        """Return the running calls of all processes, and the stacks of processes that do not answer."""
        children = [child for child in self._supervisor.all_children() if child.is_loaded]
        calls: list[Document] = []
        silent: list[Document] = []
        for child, (status, body) in zip(children, self._answers(children, "/api/running"), strict=True):
            if status == 200:
                calls += [{**call, "process": child.number} for call in json.loads(body)["calls"]]
            elif child.memory is not None:
                named = {"process": child.number, "pid": child.pid, "last_message": child.memory.begun}
                silent.append({**named, "stacks": child.stacks()})
        return {"calls": sorted(calls, key=lambda call: -call["seconds"]), "silent": silent}

    def _fetch_all(self, page: str) -> dict[int, tuple[int, bytes]]:
        children: tuple[Child, ...] = ()
        answers: dict[int, tuple[int, bytes]] = {}
        while children != (now := tuple(self._supervisor.children)):  # fetch again after a replacement
            children = now
            answers = dict(zip((child.number for child in children), self._answers(children, page), strict=True))
        return answers

    def _answers(self, children: Sequence[Child], page: str, others: str = "") -> list[tuple[int, bytes]]:
        """Fetch *page* from the first running child, and *page* with *others* appended from the other children."""

        def fetch_one(child: Child) -> tuple[int, bytes]:
            try:
                return fetch(child.socket, page + ("" if child is first else others), TIMEOUT)
            except OSError as error:
                return 0, json.dumps({"ok": False, "why": f"no answer: {error}"}).encode()

        if not children:
            return []  # before the supervisor has started a process
        first = next((child for child in children if child.pid is not None), None)
        with ThreadPoolExecutor(max_workers=min(32, len(children))) as pool:
            return list(pool.map(fetch_one, children))


def _absent(child: Child, body: bytes) -> Document:
    """Make the document of a process that did not answer."""
    state, why = ("starting", "") if not child.is_loaded else ("no answer", body.decode("utf-8", "replace")[:200])
    if child.pid is None:
        ended = "" if child.last_exit is None else f"with {child.last_exit}"
        state, why = ("ended", ended) if child.last_exit is not None else ("starting", "")
    process = {"number": child.number, "pid": child.pid, "state": state, "why": why, "memory": None, "runs_for": None}
    return {**empty(__version__, time.time()), "processes": [{**process, "finished": 0, "in_flight": 0}]}
