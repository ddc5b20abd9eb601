"""All Python that is shown is run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import docblocks

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.rst", ROOT / "CONTRIBUTING.rst", *sorted((ROOT / "docs").glob("*.rst"))]
#: Pages whose blocks need more than the core; their own tests run them.
ELSEWHERE = {"spark.rst", "django.rst", "youzan.rst", "from_pynsq.rst", "from_gnsq.rst"}


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists() and p.name not in ELSEWHERE], ids=lambda p: p.name)
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    docblocks.run(page, tmp_path)


def test_every_test_that_a_page_names_exists() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = {name for page in PAGES if page.exists() for name in re.findall(r"``(test_\w+)``", page.read_text("utf-8"))}
    assert len(named) >= 9
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_the_readme_has_blocks_and_its_first_screen_says_the_two_commands() -> None:
    readme = ROOT / "README.rst"
    assert len(list(docblocks.blocks(readme))) >= 3
    first_screen = "\n".join(readme.read_text(encoding="utf-8").splitlines()[:40])
    assert 'pip install ".[cli]" && gnsq-lite demo' in first_screen
    assert "pip install tox && tox" in first_screen


def test_a_block_that_fails_names_the_file_and_the_line(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text("Title\n=====\n\n.. code-block:: python\n\n   x = 1\n   y = x / 0\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError) as caught:
        docblocks.run(page, tmp_path)
    frame = caught.traceback[-1]
    assert (str(frame.path), frame.lineno + 1) == (str(page), 7)


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists() and p.parent == ROOT], ids=lambda p: p.name)
def test_the_pages_shown_on_a_package_index_render_clean(page: Path) -> None:
    docutils_core = pytest.importorskip("docutils.core")
    warnings = io.StringIO()
    docutils_core.publish_string(
        page.read_text(encoding="utf-8"), writer="html5", settings_overrides={"warning_stream": warnings}
    )
    assert warnings.getvalue() == ""


def test_the_page_of_options_is_that_of_the_code() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "options.rst").read_text(encoding="utf-8") == module.text()


def test_what_the_pages_install_is_a_checkout_with_extras_that_there_are() -> None:
    import re

    known = set(re.findall(r'^ +"(\w+)": ', (ROOT / "setup.py").read_text(encoding="utf-8"), re.M))
    found = [
        (page.name, *each)
        for page in PAGES
        for each in re.findall(r'pip install (?:-e )?"([^"\[]+)\[([\w,]+)\]"', page.read_text(encoding="utf-8"))
    ]
    assert len(found) >= 4
    for page, what, extras in found:
        assert what in (".", "/src/gnsq_lite"), (page, what)  # it is on no index
        assert set(extras.split(",")) <= known, (page, extras)


def test_every_test_that_the_pages_name_exists() -> None:
    import re

    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for page in (ROOT / "docs").glob("*.rst"):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"``(test_\w+)``", text):
            assert f"def {name}(" in sources, (page.name, name)
        for path in re.findall(r"``(tests/[\w/.]+)``", text):
            assert (ROOT / path).exists(), (page.name, path)


def test_a_port_that_begins_as_another_one_is_replaced_once() -> None:
    broker: Any = SimpleNamespace(
        nsqd_tcp_address="127.0.0.1:41517", http_address="127.0.0.1:41612", lookupd_http_address="127.0.0.1:5"
    )
    source = docblocks.local('a("127.0.0.1:4150", "127.0.0.1:4151", "http://127.0.0.1:4161/x")', broker)
    assert source == 'a("127.0.0.1:41517", "127.0.0.1:41612", "http://127.0.0.1:5/x")'
