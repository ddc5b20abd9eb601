"""Runs the Python blocks of an .rst page as they are pasted: as programs of their own, against an embedded broker.

A page is a list of programs.  A block begins a new one, unless it uses a name that only an earlier block has: then it
continues the programs that have it, as in one interpreter.  A program that ends by serving (``reader.start()``,
``worker.run()``) runs beside those below it, as in a second terminal; it gets SIGTERM when all is handled.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import re
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from gnsq_lite.broker import Broker
from tests.programs import Program, running, wait_for
from tests.youzan_broker import YouzanBroker

_BLOCK = re.compile(r"^( *)\.\. code-block:: (\w+)\n(?:\1 +:[^\n]*\n)*\n((?:\1   [^\n]*\n|\n)+)", re.M)
#: Seconds a program may take, on a busy machine; each is done in one or two.
LIMIT = 60.0
DOCS = Path(__file__).parent.parent / "docs"


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


@dataclass
class Source:
    """One program of a page; its lines have the numbers that they have on the page."""

    line: int
    text: str

    @property
    def serves(self) -> bool:
        """Whether it goes on until it gets SIGTERM."""
        return _serves(ast.parse(self.text))

    @property
    def is_test(self) -> bool:
        """Whether it is for pytest to run."""
        return any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in _body(self.text))


def _body(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _serves(tree: ast.Module) -> bool:
    if not isinstance(tree.body[-1], ast.Expr):  # keep the result of start(), if the object is no Reader
        return False
    for call in ast.walk(tree.body[-1]):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("start", "run"):
            return not call.args and not any(keyword.arg == "block" for keyword in call.keywords)
    return False


def names(text: str) -> tuple[set[str], set[str]]:
    """Return the names that a block uses without having made them, and those it makes."""
    made: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return used - made - set(dir(builtins)), made


def programs(path: Path) -> list[Source]:
    """Return the programs of a page."""
    found: list[Source] = []
    for line, text in blocks(path):
        wanted, _ = names(text)
        made = {name: source for source in found for name in names(source.text)[1]}
        above = [source for source in found if source in (made[name] for name in wanted & set(made))]
        for source in above:
            assert not source.serves, f"{path.name}:{line}: uses {sorted(wanted)} of a program that does not end"
            found.remove(source)
        found.append(_joined([*above, Source(line, "\n" * (line - 1) + text)]))
    return found


def _joined(parts: list[Source]) -> Source:
    """Return the blocks of several programs as one, each line where it is on the page."""
    lines: dict[int, str] = {}
    for part in parts:
        lines.update({at: line for at, line in enumerate(part.text.splitlines()) if line})
    text = "\n".join(lines.get(at, "") for at in range(max(lines) + 1)) + "\n"
    return Source(min(part.line for part in parts), text)


def run(path: Path, folder: Path, before: str = "", env: Mapping[str, str] | None = None) -> int:
    """Run every program of *path* in *folder*; return how many there were.

    *before* is put in front of each, on its first line.  A failure shows what the program printed, with the page's
    line.
    """
    found = programs(path)
    files = {source.line: f"{path.stem}_line_{source.line}.py" for source in found}
    serving: list[Program] = []
    with ExitStack() as stack:
        broker = stack.enter_context(_youzan_broker() if path.stem == "youzan" else Broker())

        def start(*words: str, name: str) -> Program:
            return stack.enter_context(running(words, folder, env=env, name=name))

        for source in found:
            (folder / files[source.line]).write_text(before + local(source.text, broker), encoding="utf-8")
        # The tests of a page run in one pytest: its start costs more than they do.
        if tests := [files[source.line] for source in found if source.is_test]:
            program = start("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, name="tests")
            assert program.ends(LIMIT) == 0, program.output
        for source in found:
            if source.is_test:
                continue
            clients = _clients(broker)
            program = start("-W", "error", files[source.line], name=files[source.line])
            if source.serves:
                wait_for(partial(_is_up, program, broker, clients), LIMIT, f"{program.log} shows no connection")
                serving.append(program)
            else:
                assert program.ends(LIMIT) == 0, program.output
        for program in serving:
            wait_for(lambda: not _left(broker), LIMIT, "not all was handled")
            program.signal(signal.SIGTERM)
            assert program.ends(LIMIT) == 0, program.output
            assert "Traceback" not in program.output, program.output
    return len(found)


@contextmanager
def _youzan_broker() -> Iterator[Broker]:
    """Run the servers of the page on Youzan's NSQ, with its topic."""
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("orders", partitions=4, ordered=True)
        broker.youzan.create_channel("orders", "billing")
        yield broker


def _channels(broker: Broker) -> list[dict[str, Any]]:
    return [channel for topic in broker.node.stats()["topics"] for channel in topic["channels"]]


def _clients(broker: Broker) -> int:
    return sum(len(channel["clients"]) for channel in _channels(broker))


def _left(broker: Broker) -> int:
    """Return how many messages wait where somebody reads."""
    waiting = [channel for channel in _channels(broker) if channel["clients"]]
    return sum(c["in_flight_count"] + c["deferred_count"] + c["depth"] for c in waiting)


def _is_up(program: Program, broker: Broker, clients: int) -> bool:
    assert program.process.poll() is None, program.output
    return _clients(broker) > clients and _catches_sigterm(program.process.pid)


def _catches_sigterm(pid: int) -> bool:
    """Whether that process has a handler for SIGTERM; True where the system does not say."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return True
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status.read_text(encoding="ascii", errors="replace"), re.M)
    return caught is not None and bool(int(caught.group(1), 16) >> (signal.SIGTERM - 1) & 1)


def loaded(path: Path) -> ModuleType:
    """Return a script of the documentation as a module; what it needs from beside it is found."""
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
