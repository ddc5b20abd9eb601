"""The documentation as a site: generated pages are complete, and every public name is listed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from gnsq_lite import Message, Publication, Reader, Worker, Writer, errors
from gnsq_lite.cli.app import main
from tests import browse

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


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


def test_every_error_is_in_troubleshooting() -> None:
    page = (DOCS / "troubleshooting.rst").read_text(encoding="utf-8")
    explained = set(re.findall(r"``(\w+)``", page))
    classes = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert len(classes) > 60
    assert sorted(classes - explained) == []
    codes = set(errors.ERROR_CODES) - {"E_BAD_PARTITION", "E_BAD_EXT", "E_EXT_NOT_SUPPORT", "E_INVALID_JSON_HEADER"}
    assert sorted(code for code in codes - {"INVALID_TRACE_ID"} if f"``{code}" not in page) == []


@pytest.mark.parametrize("module", ["gnsq_lite", "gnsq_lite.http", "gnsq_lite.broker", "gnsq_lite.worker"])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.rst"))
    if f"automodule:: {module}\n" in pages:  # with all its members
        return
    names = set(importlib.import_module(module).__all__) - {"__version__", "errors"}
    assert sorted(name for name in names if f".{name}\n" not in pages and f".{name}()\n" not in pages) == []


#: Methods and properties of public classes that the library alone calls.
INNER = {
    "Reader": {"after_fork"},
    "Writer": {"after_fork"},
    "Worker": {"stages"},
    "Publication": {
        "ask",
        "asked",
        "command",
        "command_behind",
        "conclude_again",
        "expired",
        "hand_to",
        "is_ok",
        "mark_sent",
        "open_gate",
        "outcome",
        "settle",
        "stand_in",
    }
    | {"wait_in", "wake"},
}


@pytest.mark.parametrize("kind", [Reader, Writer, Worker, Message, Publication], ids=lambda kind: kind.__name__)
def test_every_public_method_is_in_the_reference(kind: type) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.rst"))
    shown = re.search(rf"autoclass:: gnsq_lite\.{kind.__name__}(?:\(\))?\n   :members: (.+)", pages)
    assert shown is not None
    has = {
        name
        for each in kind.__mro__
        if each.__module__.startswith("gnsq_lite")
        for name, value in vars(each).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, (property, classmethod)))
    }
    assert set(shown[1].split(", ")) == has - INNER.get(kind.__name__, set())


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from commands(command, inner)
        else:
            yield inner.command_path, command


def test_every_command_and_flag_is_in_the_generated_page() -> None:
    page = loaded(DOCS / "generate.py").command_page()
    found = list(commands(main, click.Context(main, info_name="gnsq-lite")))
    assert len(found) > 15
    for path, command in found:
        section = page[page.index(f"\n{path}\n") :]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name != "help":
                assert parameter.opts[0] in section[:20_000], (path, parameter.opts)


def test_the_generated_pages_render_clean() -> None:
    docutils_core = pytest.importorskip("docutils.core")
    generate = loaded(DOCS / "generate.py")
    for make in generate.PAGES.values():
        text = re.sub(r":(?:doc|class|meth|mod):", "", make())
        warnings = io.StringIO()
        docutils_core.publish_string(text, writer="html5", settings_overrides={"warning_stream": warnings})
        assert warnings.getvalue() == ""


def test_chromium_sees_what_is_wrong_with_a_page(tmp_path: Path) -> None:
    program = browse.chromium()
    if program is None:
        pytest.skip("no Chromium was found; tox -e site needs it")
    body = '<div style="width:1400px">wide</div><script>console.error("bad thing")</script>'
    (tmp_path / "bad.html").write_text(f"<!doctype html><title>Bad</title><body>{body}</body>", encoding="utf-8")
    (tmp_path / "good.html").write_text("<!doctype html><title>Good</title><body>fits</body>", encoding="utf-8")
    with browse.served(tmp_path) as (address, missing):
        faults = browse.look(program, tmp_path, address, "phone", "light")
    assert len(faults) == 2
    assert "bad thing" in faults[0]
    assert "bad.html is" in faults[1]
    assert missing == []


def test_every_extra_is_on_the_page_of_installation() -> None:
    declared = (ROOT / "setup.py").read_text(encoding="utf-8").split("extras_require=")[1].split("},")[0]
    extras = re.findall(r'^        "([\w-]+)": ', declared, re.M)
    page = (DOCS / "installation.rst").read_text(encoding="utf-8")
    assert len(extras) >= 10
    assert [extra for extra in extras if f"``{extra}``" not in page] == []
