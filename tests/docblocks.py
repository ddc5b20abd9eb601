"""Runs the Python blocks of an .rst file in order, in one namespace, against an embedded broker."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from gnsq_lite import Reader, Worker
from gnsq_lite.broker import Broker

_BLOCK = re.compile(r"^( *)\.\. code-block:: (\w+)\n(?:\1 +:[^\n]*\n)*\n((?:\1   [^\n]*\n|\n)+)", re.M)


def blocks(path: Path, language: str = "python") -> Iterator[tuple[int, str]]:
    """Yield (line, source) of each block of that language."""
    text = path.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text + "\n"):
        if found.group(2) == language:
            yield text.count("\n", 0, found.start(3)) + 1, textwrap.dedent(found.group(3))


def local(source: str, broker: Broker) -> str:
    """Return *source* with nsqd's well-known ports replaced by the broker's."""
    here = {
        "4150": broker.nsqd_tcp_address,
        "4151": broker.http_address,
        "4161": broker.lookupd_http_address,
    }
    return re.sub(r"127\.0\.0\.1:(4150|4151|4161)\b", lambda known: here[known.group(1)], source)


def run(path: Path, folder: Path) -> int:
    """Run every Python block of *path*; return how many there were.  ``start()`` and ``run()`` do not block here.

    A failure names the file and its line.
    """
    started: list[Reader] = []
    start = Reader.start

    def start_beside(reader: Reader, block: bool = True) -> None:
        started.append(reader)
        start(reader, block=False)

    def run_beside(worker: Worker, **options: Any) -> int:
        worker.start()
        stack.callback(worker.close, 2.0)
        return 0

    count = 0
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        stack.enter_context(mock.patch.object(Reader, "start", start_beside))
        stack.enter_context(mock.patch.object(Worker, "run", run_beside))
        stack.callback(lambda: [reader.close(timeout=2.0) for reader in started])
        monkey = stack.enter_context(mock.patch.dict("os.environ", {"DOCS_FOLDER": str(folder)}))
        assert monkey is not None
        for line, source in blocks(path):
            code = compile("\n" * (line - 1) + local(source, broker), str(path), "exec")
            exec(code, namespace)
            count += 1
    return count
