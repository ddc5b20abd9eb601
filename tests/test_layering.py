"""Which package may import which.  The table below has the rules; the checker is tested on wrong imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gnsq_lite"

FACADE = {"gnsq_lite"}  # the public API, as a user imports it
BASE = {"errors", "stacks", "text", "units", "version"}
CORE = BASE | {"clock", "option_fields", "options", "keywords", "message", "stats"}
CLIENT = CORE | FACADE | {"dialect", "youzan", "http", "net", "consume", "publish", "wire"}
CLIENT |= {"arguments", "dialects", "reader", "writer"}

#: Part (a module or package right below gnsq_lite) -> what of ours it may import; "wire.names" allows just that module.
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "text": set(),
    "units": set(),
    "stacks": set(),
    "errors": {"text"},
    "clock": set(),
    "_core": set(),
    "option_fields": BASE,
    "options": BASE | {"option_fields"},
    "keywords": BASE | {"options"},
    "stats": BASE | {"options", "dialect", "wire.identify"},
    "message": BASE | {"option_fields", "clock", "_core"},
    "wire": BASE | {"option_fields", "options", "_core"},
    "policy": BASE | {"option_fields", "options", "clock"},
    "dialect": BASE | {"clock", "options", "message", "wire", "policy"},
    "youzan": CORE | {"_core", "wire", "policy", "dialect"},
    "blocking_calls": set(),
    "http": {"blocking_calls"}
    | BASE
    | {"option_fields", "options", "clock", "keywords", "wire.names", "wire.commands"},
    "net": CORE | {"_core", "blocking_calls", "wire", "policy", "dialect", "http"},
    "consume": CORE | {"_core", "wire", "policy", "dialect", "net"},
    "publish": CORE | {"wire", "policy", "dialect", "http", "net"},
    "arguments": CORE | {"dialect", "net.settings", "consume.settings", "publish.middleware"},
    "dialects": BASE | {"option_fields", "dialect", "youzan"},
    "arrow_values": set(),
    "arrow": {"_core", "arrow_values", "consume.rows", "message"},
    "reader": CORE | {"arrow"} | {"arguments", "wire", "policy", "dialect", "dialects", "http", "net", "consume"},
    "writer": CORE | {"arguments", "wire", "policy", "dialect", "dialects", "http", "net", "publish"},
    "broker": {"errors", "clock", "version", "wire.constants"},
    "testing": CORE
    | FACADE
    | {"arguments", "broker", "consume", "policy", "reader", "wire.names", "worker.specs", "writer"},
    "supervise": BASE | {"clock", "stats"},
    "worker": CLIENT
    | {
        "policy",
        "supervise",
        "testing",
        "recording.backlog",
        "recording.files",
        "recording.options",
        "recording.receiver",
    },
    "recording": CLIENT | {"arrow", "arrow_values"},
    "spark": CLIENT | {"arrow", "arrow_values", "recording"},
    "contrib": CLIENT | {"broker", "worker", "testing", "supervise"},
    "cli": CLIENT | {"broker", "worker", "contrib", "recording", "spark", "testing", "supervise"},
    "__main__": {"cli", "errors", "version"},
    "__init__": CORE
    | {"reader", "writer", "worker", "consume.calls", "publish.middleware", "publish.publication", "dialect"},
}

#: Module of others -> the parts that may import it.
OWNERS: dict[str, set[str]] = {
    "gevent": {"net", "blocking_calls", "broker", "__main__"},
    "greenlet": {"net", "blocking_calls", "broker"},
    "socket": {"net", "broker", "http", "recording", "spark", "cli", "supervise"},
    "select": {"net", "broker"},
    "ssl": {"net", "broker", "http", "options", "arguments"},
    "urllib3": {"http"},
    "pyspark": {"spark"},
    "pyarrow": {"arrow", "arrow_values", "recording", "spark", "cli"},
    "obstore": {"recording"},
    "click": {"cli"},
    "rich": {"cli"},
    "django": {"contrib"},
    "django_tasks": {"contrib"},
    "prometheus_client": {"contrib"},
    "opentelemetry": {"contrib"},
    "sentry_sdk": {"contrib"},
    "statsd": {"contrib"},
    "msgspec": {"contrib"},
    "pydantic": {"contrib"},
    "google": {"contrib"},
    "cronsim": {"contrib"},
    "pytest": {"contrib", "testing"},
    "asyncio": {"consume", "publish", "testing", "worker"},
}
#: The only modules of net, consume and publish that may use gevent: another loop would replace these.
EDGE = {"net/loop.py", "net/os_threads.py", "net/waiting.py"}
LOOP_USERS = {"net", "consume", "publish"}
#: These get clock and chance as arguments.
PURE = {"errors", "text", "option_fields", "options", "keywords", "wire", "policy", "dialect", "youzan"}
IMPURE = {"time", "random", "secrets", "threading", "subprocess", "selectors", "asyncio"}


def part_of(name: str) -> str:
    """Return the part of a path below the package such as ``wire/frames.py``."""
    return Path(name).parts[0].removesuffix(".py")


@functools.cache
def nodes(source: str) -> list[ast.AST]:
    """Return all nodes of a module."""
    return list(ast.walk(ast.parse(source)))


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import, in functions and under TYPE_CHECKING too; relative ones as ``.``."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "."
            elif node.module == "gnsq_lite":
                for alias in node.names:
                    is_module = (PACKAGE / alias.name).is_dir() or (PACKAGE / f"{alias.name}.py").is_file()
                    yield node.lineno, f"gnsq_lite.{alias.name}" if is_module else "gnsq_lite"
            elif node.module is not None and node.module.startswith("gnsq_lite."):
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"
            elif node.module is not None and [alias.name for alias in node.names] != ["Random"]:  # a type of arguments
                yield node.lineno, node.module


def violations(name: str, source: str) -> list[str]:
    """Return what the module *name*, a path below the package, imports against the rules."""
    part = part_of(name)
    found = []
    if part not in ALLOWED:
        return [f"{name}: part {part!r} is not in the table of tests/test_layering.py"]
    for line, target in imports(source):
        where = f"{name}:{line}: {target}"
        if target == ".":
            found.append(f"{where} is a relative import")
        elif target == "gnsq_lite":
            if "gnsq_lite" not in ALLOWED[part]:
                found.append(f"{where} imports the public API from below")
        elif target.startswith("gnsq_lite."):
            if not _is_allowed(part, target.removeprefix("gnsq_lite.")):
                found.append(f"{where} is not for {part}")
        else:
            top = target.split(".")[0]
            if part not in OWNERS.get(top, {part}) or (part in PURE and top in IMPURE):
                found.append(f"{where} is not for {part}")
            elif top in ("gevent", "greenlet") and part in LOOP_USERS and name not in EDGE:
                found.append(f"{where} is only for {sorted(EDGE)}")
    if part in LOOP_USERS and name not in EDGE:
        found += [f"{name}:{line}: uses gevent's hub" for line in _uses_hub(source)]
    found += [f"{name}:{line}: monkey-patches" for line in _patches(source) if part not in ("cli", "__main__")]
    return found


def _is_allowed(part: str, target: str) -> bool:
    words = target.split(".")
    if words[0] == part:
        return True
    return any(".".join(words[:count]) in ALLOWED[part] for count in range(1, len(words) + 1))


def _uses_hub(source: str) -> Iterator[int]:
    """Yield the lines that use a hub for more than to compare it, and its parent, with a greenlet."""
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and node.attr != "parent":
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if owner in ("hub", "_hub"):
                yield node.lineno


def _patches(source: str) -> Iterator[int]:
    for node in nodes(source):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("patch_all", "patch_socket", "patch_thread", "patch_time", "patch_ssl"):
                yield node.lineno


def module_of(name: str) -> str:
    """Return the dotted name of a path below the package: ``wire.frames`` of ``wire/frames.py``."""
    dotted = name.removesuffix(".py").replace("/", ".")
    return dotted.removesuffix(".__init__")


def references(name: str, source: str, modules: set[str]) -> set[str]:
    """Return the *modules* that one names: in imports, late ones and TYPE_CHECKING's too, and in strings.

    What a logger or a package is called by is a title, no reference.
    """
    found: set[str] = set()
    packages = {module.rpartition(".")[0] for module in modules}
    names = {target for _, target in imports(source)}
    titles: set[int] = set()
    for node in nodes(source):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
            titles |= {id(argument) for argument in node.args}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in titles:
            names |= {node.value.partition(":")[0]} - {f"gnsq_lite.{package}" for package in packages}
    for target in names:
        if target.startswith("gnsq_lite."):
            dotted = target.removeprefix("gnsq_lite.")
            found.add(dotted if dotted in modules else dotted.rpartition(".")[0])
    return (found & modules) - {module_of(name)}


def circles(sources: dict[str, str]) -> list[list[str]]:
    """Return the groups of modules that lead to each other, each sorted; *sources* are texts by path."""
    modules = {module_of(name) for name in sources}
    below = {module_of(name): references(name, source, modules) for name, source in sources.items()}
    for _ in modules:  # take away, again and again, what leads nowhere
        ends = {module for module, names in below.items() if not names & set(below)}
        below = {module: names for module, names in below.items() if module not in ends}
    groups = {
        tuple(sorted(a for a in below if _leads(below, module, a) and _leads(below, a, module))) for module in below
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def _leads(below: dict[str, set[str]], start: str, end: str) -> bool:
    seen, left = {start}, [start]
    while left:
        names = below.get(left.pop(), set())
        if end in names:
            return True
        left += names - seen
        seen |= names
    return False


def test_no_two_files_lead_to_each_other() -> None:
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert circles(sources) == []


@pytest.mark.parametrize(
    "line",
    [
        "from gnsq_lite.net import b",
        "def f():\n    from gnsq_lite.net.b import x",
        "LATE = 'gnsq_lite.net.b:Thing'",
    ],
)
def test_a_planted_circle_is_found(line: str) -> None:
    sources = {"net/a.py": line, "net/b.py": "from gnsq_lite.net.c import y", "net/c.py": "import gnsq_lite.net.a"}
    assert circles(sources) == [["net.a", "net.b", "net.c"]]
    assert circles({**sources, "net/a.py": "import os"}) == []


def test_every_import_goes_downwards() -> None:
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found += violations(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wire/frames.py", "import time"),
        ("policy/rdy.py", "from gnsq_lite.wire import names"),
        ("policy/rdy.py", "def f():\n    import gevent"),
        ("http/client.py", "from gnsq_lite.wire.frames import Frame"),
        ("net/stream.py", "from gnsq_lite import Reader"),
        ("net/stream.py", "import gevent"),
        ("net/stream.py", "def f(loop):\n    loop.hub.switch()"),
        ("net/stream.py", "import pyspark"),
        ("net/stream.py", "from gevent import monkey\nmonkey.patch_all()"),
        ("wire/frames.py", "from . import names"),
        ("novelty/thing.py", "import json"),
    ],
)
def test_a_planted_fault_is_found(name: str, line: str) -> None:
    assert violations(name, f"from __future__ import annotations\n\n{line}\n")
