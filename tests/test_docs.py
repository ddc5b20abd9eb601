"""All Python that is shown is run."""

from __future__ import annotations

import codeop
import io
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import docblocks

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.rst",
    ROOT / "CONTRIBUTING.rst",
    *sorted(p for p in (ROOT / "docs").rglob("*.rst") if p.parent.name != "generated"),
]
#: Pages whose blocks need more than the core; tests/spark and tests/django run them.
ELSEWHERE = {"recordings.rst", "spark.rst", "django.rst"}
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
