"""``gnsq-lite doctor``: list, by line, the changes that a program for pynsq or gnsq needs."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from gnsq_lite.cli import doctor_rules as rules
from gnsq_lite.cli import flags
from gnsq_lite.cli.output import echo, visible
from gnsq_lite.cli.params import command as tool

_LIBRARIES = {"nsq": "pynsq", "gnsq": "gnsq"}
_PRINT = re.compile(r"^(\s*)print +([^(\s=].*)$", re.M)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, order=True)
class Finding:
    """A line to change.  If ``silent`` is true, the unchanged line runs without an error but behaves differently."""

    file: str
    line: int
    text: str
    silent: bool = False


def examine(source: str, name: str) -> list[Finding]:
    """Return a Finding for each line of *source* that must change, in order of the lines."""
    found: set[tuple[int, str]] = set()
    try:
        tree = ast.parse(source, name)
    except (SyntaxError, ValueError):
        found.update(
            (source.count("\n", 0, at.start()) + 1, "print is a function: print(...)") for at in _PRINT.finditer(source)
        )
        try:
            tree = ast.parse(_PRINT.sub(r"\1print(\2)", source), name)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            return [Finding(name, line, f"this is not Python 3: {getattr(error, 'msg', error)}")]
    found.update(Program(tree).findings())
    marked = ((line, text.removeprefix(rules.SILENT), rules.SILENT in text) for line, text in found)
    return sorted(Finding(name, line, text.replace(rules.SILENT, ""), silent) for line, text, silent in marked)


class Program:
    """The syntax tree of a program.  :meth:`findings` yields the lines that must change."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._nodes = list(ast.walk(tree))
        #: Name in the program -> (library, name in the library or "" for the module).
        self._imported: dict[str, tuple[str, str]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    if top in _LIBRARIES:
                        self._imported[alias.asname or top] = (_LIBRARIES[top], "")
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in _LIBRARIES:
                library = _LIBRARIES[node.module.split(".")[0]]
                self._imported.update({a.asname or a.name: (library, a.name) for a in node.names})
            elif isinstance(node, ast.Assign) and (top := _imported_by_call(node.value)) in _LIBRARIES:
                self._imported.update({ast.unparse(target): (_LIBRARIES[top], "") for target in node.targets})
        # Code without imports may be an example from a manual.
        bound = {node.id for node in self._nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        used = {
            node.value.id
            for node in self._nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        for name in (used - bound) & set(_LIBRARIES):
            self._imported.setdefault(name, (_LIBRARIES[name], ""))
        self.libraries = {library for library, _ in self._imported.values()}
        self._handlers = {name for node in self._nodes for name in self._named_handlers(node)}

    def findings(self) -> Iterator[tuple[int, str]]:
        """Yield the number of each line to change, and the text for the user."""
        if not self.libraries:
            return
        for node in self._nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self._of_import(node)
            elif isinstance(node, ast.Call):
                yield from self._of_call(node)
            elif isinstance(node, ast.ClassDef):
                yield from self._of_class(node)
            if isinstance(node, (ast.Attribute, ast.Name)):
                yield from self._of_name(node)
            if isinstance(node, _FUNCTIONS) and self._is_handler(node):
                yield from self._of_handler(node)

    def _origin(self, node: ast.AST) -> tuple[str, str] | None:
        """Return (library, name in the library) for *node*, or None if the name is not from pynsq or gnsq."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        if isinstance(node, ast.Attribute):
            owner: ast.AST = node
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            found = self._imported.get(owner.id) if isinstance(owner, ast.Name) else None
            return (found[0], node.attr) if found is not None and found[1] == "" else None
        return None

    def _of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        tops = {name.split(".")[0] for name in names}
        if tops & set(_LIBRARIES):
            yield node.lineno, "from gnsq_lite import Reader, Writer, Requeue"
        if "tornado" in tops and "pynsq" in self.libraries:
            yield node.lineno, "gnsq_lite needs no Tornado loop: calls block, and a Reader runs in the background"

    def _of_call(self, node: ast.Call) -> Iterator[tuple[int, str]]:
        origin = self._origin(node.func)
        if origin is None:
            yield from self._of_publish(node)
            return
        library, name = origin
        kind, text = rules.MAKERS[library].get(name, ("", ""))
        if not kind:
            return
        yield node.lineno, f"{name}(): {text}"
        if kind == "reader":
            for note in rules.READERS[library]:
                yield node.lineno, note
            given = {keyword.arg for keyword in node.keywords}
            if library == "gnsq" and "requeue_delay" not in given:
                yield (
                    node.lineno,
                    rules.SILENT
                    + "gnsq requeues a failed message without a delay, gnsq_lite after 90 s: pass requeue_delay=0",
                )
        for keyword in node.keywords:
            if keyword.arg in rules.KEYWORDS[library]:
                yield keyword.value.lineno, _labelled(f"{keyword.arg}=", rules.KEYWORDS[library][keyword.arg])

    def _of_publish(self, node: ast.Call) -> Iterator[tuple[int, str]]:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called in ("publish", "multipublish") and "gnsq" in self.libraries:
            if any(keyword.arg == "defer" for keyword in node.keywords) or len(node.args) > 2:
                yield node.lineno, _labelled("defer=", rules.SILENT + "is in seconds, not in milliseconds")
            for keyword in node.keywords:
                if keyword.arg in ("block", "raise_error"):
                    yield keyword.value.lineno, f"{keyword.arg}=: publish_nowait() does not block; publish() raises"
        if called in ("publish", "multipublish", "pub", "mpub", "dpub"):
            bodies = [each for arg in node.args[1:] for each in (arg.elts if isinstance(arg, ast.List) else [arg])]
            if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in bodies):
                yield node.lineno, "a body is bytes: b'...' or text.encode()"
        if called == "start" and "gnsq" in self.libraries and _last(node.func, 1) in ("producer", "writer"):
            yield node.lineno, "a Writer needs no start(): remove the call"

    def _of_class(self, node: ast.ClassDef) -> Iterator[tuple[int, str]]:
        for base in node.bases:
            origin = self._origin(base)
            if origin is not None and origin[1] in rules.MAKERS[origin[0]]:
                yield node.lineno, f"a subclass of {origin[1]}: pass functions to Reader instead"
                for part in node.body:
                    if isinstance(part, ast.FunctionDef) and part.name in rules.ATTRIBUTES[origin[0]]:
                        yield part.lineno, _labelled(part.name, rules.ATTRIBUTES[origin[0]][part.name])

    def _of_name(self, node: ast.Attribute | ast.Name) -> Iterator[tuple[int, str]]:
        origin = self._origin(node)
        if origin is not None and origin[1] in rules.NAMES[origin[0]]:
            yield node.lineno, _labelled(origin[1], rules.NAMES[origin[0]][origin[1]])
        elif origin is None and isinstance(node, ast.Attribute):
            for library in sorted(self.libraries):
                if node.attr in rules.ATTRIBUTES[library] and _last(node, 1) not in ("message", "msg", "m"):
                    yield node.lineno, _labelled(node.attr, rules.ATTRIBUTES[library][node.attr])

    # -- handlers

    def _named_handlers(self, node: ast.AST) -> Iterator[str]:
        """Yield the names of the functions that the call *node* registers as handlers."""
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "message_handler":
                    yield _last(keyword.value, 0)
            if isinstance(node.func, ast.Attribute) and _last(node.func, 1) == "on_message" and node.args:
                yield _last(node.args[0], 0)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "set_message_handler" and node.args:
                yield _last(node.args[0], 0)

    def _is_handler(self, node: ast.AST) -> bool:
        name = getattr(node, "name", "")
        decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
        is_connected = any(text.endswith("on_message.connect") for text in decorators)
        return bool(name) and (name in self._handlers or name == "process_message" or is_connected)

    def _of_handler(self, node: ast.AST) -> Iterator[tuple[int, str]]:
        taken = node.args.args if isinstance(node, _FUNCTIONS) else []
        arguments = [each.arg for each in taken if each.arg not in ("self", "cls")]
        if len(arguments) == 2 and "gnsq" in self.libraries:
            yield getattr(node, "lineno", 1), f"a handler has one argument, the message: def handler({arguments[1]})"
        message = arguments[-1] if arguments else ""
        for part in ast.walk(node):
            if isinstance(part, ast.Return):
                yield from _of_return(part, self.libraries)
            elif isinstance(part, (ast.Yield, ast.YieldFrom)):
                yield part.lineno, "a generator: a handler must be a plain function, which may block, or an async def"
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == message:
                if part.attr in rules.MESSAGE:
                    yield part.lineno, _labelled(f"message.{part.attr}", rules.MESSAGE[part.attr])
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "requeue":
                given = {keyword.arg for keyword in part.keywords}
                if "time_ms" in given or ("gnsq" in self.libraries and (part.args or given - {"backoff"})):
                    yield part.lineno, _labelled("requeue", rules.SILENT + "the delay is in seconds, not milliseconds")


def _imported_by_call(node: ast.AST) -> str:
    """Return the module that ``import_module("gnsq")`` or ``__import__("gnsq")`` imports, or ""."""
    if isinstance(node, ast.Call) and _last(node.func, 0) in ("import_module", "__import__") and node.args:
        return str(getattr(node.args[0], "value", "")).split(".")[0]
    return ""


def _of_return(node: ast.Return, libraries: set[str]) -> Iterator[tuple[int, str]]:
    value = node.value
    if (
        isinstance(value, ast.Constant) and value.value is False and "pynsq" in libraries
    ):  # in gnsq, as in gnsq_lite, False finishes the message
        yield node.lineno, rules.SILENT + "return False finishes the message: raise Requeue()"
    elif value is not None and not isinstance(value, ast.Constant) and "pynsq" in libraries:
        yield (node.lineno, rules.SILENT + "the return value is ignored: raise Requeue() instead of False")


def _labelled(name: str, text: str) -> str:
    silent = rules.SILENT if text.startswith(rules.SILENT) else ""
    return f"{silent}{name}: {text.removeprefix(rules.SILENT)}"


def _last(node: ast.AST, back: int) -> str:
    """Return the last part of a dotted name, or the part *back* places before it."""
    for _ in range(back):
        node = node.value if isinstance(node, ast.Attribute) else ast.Constant(None)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@tool("doctor", example="doctor program.py")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@flags.as_json
def command(files: tuple[Path, ...], as_json: bool) -> int:
    """List the changes that programs for pynsq or gnsq need, by line, without running the programs.

    "silent" marks code that runs without an error but behaves differently.  Exit codes: 0 no change is
    needed, 1 changes are needed.
    """
    found = []
    for path in files:
        found += examine(path.read_text(encoding="utf-8", errors="replace"), str(path))
    if as_json:
        echo(json.dumps([asdict(each) for each in found]))
    for each in () if as_json else found:
        echo(visible(f"{each.file}:{each.line}: {'[silent] ' if each.silent else ''}{each.text}"))
    return 1 if found else 0
