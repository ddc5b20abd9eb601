"""All Python that is shown is run."""

from __future__ import annotations

import codeop
import io
import re
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import docblocks

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.rst",
    ROOT / "CONTRIBUTING.rst",
    *sorted(p for p in (ROOT / "docs").rglob("*.rst") if p.parent.name != "generated"),
]
#: Pages whose blocks need more than the core; tests/spark and tests/django run them.
ELSEWHERE = {"spark.rst", "django.rst"}
RUN = [page for page in PAGES if page.exists() and page.name not in ELSEWHERE and any(docblocks.blocks(page))]


@pytest.fixture(scope="module")
def pages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[int]]]:
    """The pages that are wanted, run side by side: their programs wait for most of their time."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {each.params["page"] for each in parameters if each is not None and "page" in each.params}
    with ThreadPoolExecutor(3) as pool:
        yield {
            page: pool.submit(docblocks.run, page, tmp_path_factory.mktemp("page")) for page in RUN if page in wanted
        }


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_every_program_of_a_page_runs_as_pasted(page: Path, pages: dict[Path, Future[int]]) -> None:
    assert pages[page].result() > 0


def test_a_block_that_fails_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text("Title\n=====\n\n.. code-block:: python\n\n   x = 1\n   y = x / 0\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"line 7[^$]*ZeroDivisionError"):
        docblocks.run(page, tmp_path)


FIRST = "import time\n\ndef handle(message):\n    pass\n"


@pytest.mark.parametrize(
    ("second", "lines"),
    [
        ("handle(None)\n", [6]),  # it goes on with what is above
        ("from time import time\n\ndef handle(message):\n    time()\n", [6, 15]),  # it needs nothing of that
        ("for time in range(2):\n    print(time)\n", [6, 15]),
    ],
)
def test_a_block_that_needs_nothing_from_above_is_a_program_of_its_own(
    second: str, lines: list[int], tmp_path: Path
) -> None:
    page = tmp_path / "page.rst"
    parts = [".. code-block:: python\n\n" + textwrap.indent(source, "   ") for source in (FIRST, second)]
    page.write_text("Title\n=====\n\n" + "\nText.\n\n".join(parts), encoding="utf-8")
    assert [source.line for source in docblocks.programs(page)] == lines


@pytest.mark.parametrize(
    ("last", "serves"),
    [
        ("reader.start()", True),
        ("sys.exit(worker.run())", True),
        ('Reader("a", "b", handle).start()', True),
        ("reader.start(block=False)", False),
        ("broker = Broker()", False),
        ("query = stream.start()", False),
    ],
)
def test_a_program_that_ends_by_serving_is_known(last: str, serves: bool) -> None:
    assert docblocks.Source(1, f"x = 1\n{last}\n").serves is serves


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists() and p.parent == ROOT], ids=lambda p: p.name)
def test_the_pages_shown_on_a_package_index_render_clean(page: Path) -> None:
    docutils_core = pytest.importorskip("docutils.core")
    warnings = io.StringIO()
    docutils_core.publish_string(
        page.read_text(encoding="utf-8"), writer="html5", settings_overrides={"warning_stream": warnings}
    )
    assert warnings.getvalue() == ""


def test_what_the_pages_install_is_a_checkout_with_extras_that_there_are() -> None:

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


def pasted(source: str) -> Iterator[str]:
    """Yield the statements that an interactive session makes of pasted text; a compound one ends with an empty line.

    Raises SyntaxError as the session does: one that is followed by another line at its own level, for one.
    """
    statement: list[str] = []
    for line in [*source.splitlines(), ""]:
        statement.append(line)
        if codeop.compile_command("\n".join(statement)) is not None:
            yield "\n".join(statement)
            statement = []


@pytest.mark.parametrize("page", [ROOT / "README.rst", ROOT / "docs" / "tutorial.rst"], ids=lambda page: page.stem)
def test_what_a_newcomer_pastes_runs_in_an_interactive_session_too(page: Path) -> None:
    for line, source in docblocks.blocks(page):
        try:
            assert list(pasted(source))
        except SyntaxError as error:
            pytest.fail(f"{page.name}, block at line {line}: {error}; put an empty line after the statement before")
    with pytest.raises(SyntaxError):
        list(pasted("while False:\n    pass\nprint()"))
