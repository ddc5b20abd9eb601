"""mypy and pyright accept right uses of the public API and refuse wrong uses, and no public type is Any."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USES = ROOT / "tests/typed/uses.py"
#: Classes and functions that users call or override, by module.
TOUCHED = {
    "reader.py": ("Reader", "log_give_up"),
    "writer.py": ("Writer",),
    "worker/app.py": ("Worker", "Middleware"),
    "worker/specs.py": ("Handler",),
    "message.py": ("Message", "Requeue", "GiveUp"),
    "stats.py": ("ConnectionStats", "ReaderStats", "WriterStats"),
    "options.py": ("BackoffOptions", "TLSOptions"),
    "contrib/give_up.py": ("to_log", "to_directory", "to_topic", "read"),
    "testing.py": ("make_message", "deliver", "RecordedMessage"),
    "dialect.py": ("PublishReceipt",),
}
#: A type that may contain Any, and a method that users do not call.
OF_ANY_KIND = re.compile(r"\bMiddleware\[Any\]")
INNER = {"Handler.merged"}


def marked(text: str) -> set[int]:
    """Return the numbers of the lines that a checker must refuse."""
    return {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}


def differences(refused: dict[int, str], text: str) -> list[str]:
    """Return the lines that a checker missed, and the lines that it refused wrongly."""
    lines, wrong = text.splitlines(), marked(text)
    missed = [f"{number}: not refused: {lines[number - 1]}" for number in sorted(wrong - set(refused))]
    return missed + [f"{number}: refused: {refused[number]}" for number in sorted(set(refused) - wrong)]


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(path: Path) -> dict[int, str]:
    """Return mypy's errors in *path* by line.  mypy must have no error in the package."""
    output = run([sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "gnsq_lite", str(path)])
    assert re.findall(r"^gnsq_lite/.*: error: .*", output, re.M) == []
    found = re.findall(rf"{path.name}:(\d+): error: (.*)", output)
    return {int(number): text for number, text in found}


def pyright(path: Path) -> dict[int, str]:
    """Return the errors of pyright or basedpyright by line.  GNSQ_PYRIGHT names the program, else PATH has it."""
    name = os.environ.get("GNSQ_PYRIGHT") or shutil.which("pyright") or shutil.which("basedpyright")
    if name is None:
        pytest.skip("no pyright: put it on PATH or name it in GNSQ_PYRIGHT")
    told = json.loads(run([name, "--outputjson", "--level", "error", "--pythonpath", sys.executable, str(path)]))
    return {each["range"]["start"]["line"] + 1: each["message"] for each in told["generalDiagnostics"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_a_type_checker_refuses_wrong_uses_only(checker: type) -> None:
    text = USES.read_text(encoding="utf-8")
    assert len(marked(text)) > 50
    assert differences(checker(USES), text) == []


Function = ast.FunctionDef | ast.AsyncFunctionDef


def annotations(tree: ast.Module, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (name, types) for each public function and attribute, and for each overload."""
    for node in tree.body:
        if isinstance(node, Function) and node.name in names:
            yield node.name, _types(node)
        elif isinstance(node, ast.ClassDef) and node.name in names:
            overloaded = {part.name for part in node.body if isinstance(part, Function) and part.decorator_list}
            for part in node.body:
                if isinstance(part, ast.AnnAssign):
                    yield f"{node.name}.{ast.unparse(part.target)}", ast.unparse(part.annotation)
                elif isinstance(part, Function) and _is_called(part, overloaded):
                    yield f"{node.name}.{part.name}", _types(part)


def _is_called(part: Function, overloaded: set[str]) -> bool:
    is_public = part.name == "__init__" or not part.name.startswith("_")
    return is_public and (bool(part.decorator_list) or part.name not in overloaded)


def _types(function: Function) -> str:
    given = function.args
    each = [*given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    types = [argument.annotation for argument in each] + [function.returns]
    return ", ".join(ast.unparse(one) for one in types if one is not None)


def loose(source: str, names: tuple[str, ...]) -> list[str]:
    """Return the public functions and attributes whose types contain Any."""
    found = annotations(ast.parse(source), names)
    return [f"{what}: {types}" for what, types in found if re.search(r"\bAny\b", OF_ANY_KIND.sub("", types))]


def test_no_public_type_is_any() -> None:
    found = []
    for name, parts in TOUCHED.items():
        source = (ROOT / "gnsq_lite" / name).read_text(encoding="utf-8")
        assert {part for part in parts if f"class {part}" in source or f"def {part}(" in source} == set(parts)
        found += [each for each in loose(source, parts) if each.partition(":")[0] not in INNER]
    assert found == []
