"""The documentation as a site: generated pages are complete, and every public name is listed."""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gnsq_lite import errors
from gnsq_lite.cli.app import main
from tests.docblocks import DOCS, loaded

ROOT = Path(__file__).parent.parent


def test_every_error_is_in_troubleshooting() -> None:
    page = (DOCS / "troubleshooting.rst").read_text(encoding="utf-8")
    explained = set(re.findall(r"``(\w+)``", page))
    classes = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert len(classes) > 50
    assert sorted(classes - explained) == []
    assert sorted(code for code in errors.ERROR_CODES if f"``{code}" not in page) == []


@pytest.mark.parametrize("module", ["gnsq_lite", "gnsq_lite.http", "gnsq_lite.broker", "gnsq_lite.worker"])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.rst"))
    if f"automodule:: {module}\n" in pages:  # with all its members
        return
    names = set(importlib.import_module(module).__all__) - {"__version__", "errors"}
    assert sorted(name for name in names if f".{name}\n" not in pages and f".{name}()\n" not in pages) == []


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


def test_every_extra_is_on_the_page_of_installation() -> None:
    declared = (ROOT / "setup.py").read_text(encoding="utf-8").split("extras_require=")[1].split("},")[0]
    extras = re.findall(r'^        "([\w-]+)": ', declared, re.M)
    page = (DOCS / "installation.rst").read_text(encoding="utf-8")
    assert len(extras) >= 10
    assert [extra for extra in extras if f"``{extra}``" not in page] == []
