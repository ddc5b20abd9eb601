"""Checks of the package's source: docstrings, and statements that library code never contains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gnsq_lite"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check(name: str, source: str, documented: frozenset[str] = frozenset()) -> list[str]:
    """Return each breach of the rules in one module; *documented* are methods that some class elsewhere explains."""
    tree = ast.parse(source, name)
    found = [f"{name}:{line}: {what}" for line, what in _statements(tree)]
    if (
        any(isinstance(node, (ast.ClassDef, Function)) for node in tree.body)
        and "from __future__ import annotations" not in source
    ):
        found.append(f"{name}: no 'from __future__ import annotations'")
    if tree.body and ast.get_docstring(tree) is None:
        found.append(f"{name}: no module docstring")
    found += [f"{name}:{line}: {what} has no docstring" for line, what in _undocumented(tree, documented)]
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            found.append(f"{name}:{number}: a note of unfinished work")
    return found


def _statements(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert in library code"
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("eval", "exec", "__import__"):
            yield node.lineno, f"{getattr(node.func, 'id', '')}()"
        elif isinstance(node, ast.Call) and _asks_a_dialect(node):
            yield node.lineno, "a dialect is asked for what its protocol does not name"
        elif isinstance(node, ast.Compare) and any(_is_class_name(side) for side in (node.left, *node.comparators)):
            yield node.lineno, "a decision by the name of a class"


def _asks_a_dialect(call: ast.Call) -> bool:
    is_lookup = getattr(call.func, "id", "") in ("getattr", "hasattr", "callable")
    return is_lookup and "dialect" in ast.unparse(call.args[0]).lower()


def _is_class_name(side: ast.expr) -> bool:
    return isinstance(side, ast.Attribute) and side.attr in ("__name__", "__qualname__")


def _methods(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                    yield node, part


def _undocumented(tree: ast.Module, documented: frozenset[str]) -> Iterator[tuple[int, str]]:
    for node in tree.body:
        is_public = isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
        is_overload = any(getattr(one, "id", "") == "overload" for one in getattr(node, "decorator_list", ()))
        if is_public and not is_overload and ast.get_docstring(node) is None:
            yield node.lineno, node.name
    for owner, method in _methods(tree):
        if ast.get_docstring(method) is None and method.name not in documented and not owner.bases:
            yield method.lineno, f"{owner.name}.{method.name}"


def test_the_package_keeps_the_house_rules() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    explained = frozenset(
        method.name
        for source in sources.values()
        for _, method in _methods(ast.parse(source))
        if ast.get_docstring(method) is not None
    )
    found = [breach for name in sorted(sources) for breach in check(name, sources[name], explained)]
    assert found == []


HEAD = '"""Doc."""\n\nfrom __future__ import annotations\n\n'


@pytest.mark.parametrize(
    "fault",
    [
        HEAD + "assert True\n",
        HEAD + "try:\n    pass\nexcept:\n    pass\n",
        HEAD + "eval('1')\n",
        HEAD + "x = getattr(settings.dialect, 'prepare', None)\n",
        HEAD + "x = hasattr(self._dialect, 'decide')\n",
        HEAD + "x = type(decision).__name__ == 'Hold'\n",
        HEAD + "# TODO later\n",
        HEAD + "def f():\n    return 1\n",
        HEAD + "class C:\n    pass\n",
        HEAD + "class C:\n    '''Doc.'''\n    def f(self):\n        return 1\n",
        '"""Doc."""\ndef _f():\n    return 1\n',
        "from __future__ import annotations\nx = 1\n",
    ],
)
def test_a_planted_fault_is_found(fault: str) -> None:
    assert check("planted.py", fault)


#: Who may touch what says whether a message is answered; speed.py's Python does what its C does.
ANSWERERS = {"gnsq_lite/message.py", "gnsq_lite/speed.py"}


def touches_a_token(source: str) -> bool:
    """Whether the module reads, sets or deletes the ``_token`` of anything."""
    nodes = list(ast.walk(ast.parse(source)))
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return "_token" in named | {node.value for node in nodes if isinstance(node, ast.Constant)}


def test_a_message_is_answered_in_one_place() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py") if touches_a_token(path.read_text())}
    assert found == ANSWERERS
    for planted in ("del message._token", "x = message._token == 2", "getattr(message, '_token', None)"):
        assert touches_a_token(planted)


def test_no_test_is_skipped_or_expected_to_fail_by_mark() -> None:
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"mark\.(skip\b|xfail)|pytest\.xfail", line) and path != Path(__file__):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
