"""Every imported distribution is declared, and every declared one is imported."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Distribution -> the module that it brings, where the two differ.
MODULES = {
    "python-snappy": "snappy",
    "prometheus-client": "prometheus_client",
    "Django": "django",
    "opentelemetry-api": "opentelemetry",
    "protobuf": "google",
}
#: Brought by a dependency that is declared: gevent cannot be without greenlet, nor the pytest plugin without pytest.
BROUGHT = {"greenlet", "pytest"}
#: What only the benchmarks' plots and tests of Spark need, which run by themselves.
UNTESTED = {"matplotlib", "pyspark", "pyarrow", "obstore"}
#: Pinned along with gevent and opentelemetry-api: newer ones want newer versions of these.
ALONG = {"greenlet", "gunicorn", "opentelemetry-sdk"}
#: For type checkers alone.
TYPES = {"typing_extensions"}


def imported() -> set[str]:
    """Return the top names of all modules of others that the package imports, late ones too."""
    found = set()
    for path in (ROOT / "gnsq_lite").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"gnsq_lite"}


def declared() -> set[str]:
    """Return the modules of the packages that setup.py requires, extras included."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named = {found[1] for text in texts if (found := re.fullmatch(r"([A-Za-z][\w-]*)[<>=].*", text))}
    return {MODULES.get(name, name.replace("-", "_")) for name in named}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    assert imported() - BROUGHT - TYPES - declared() == set()
    assert declared() - imported() <= {"matplotlib"}  # the benchmarks' plots


def test_the_oldest_versions_that_are_tested_are_those_that_are_asked_for() -> None:
    texts = re.findall(r'"([A-Za-z][\w-]*)>=([\d.]+)', (ROOT / "setup.py").read_text(encoding="utf-8"))
    asked = {name.lower(): lowest for name, lowest in texts if name not in UNTESTED}
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "tests/oldest.txt").read_text(encoding="utf-8"), re.M))
    tested = {name.lower(): version for name, version in pinned.items() if name not in ALONG}
    assert {name: (version + ".0")[: len(asked[name])] for name, version in tested.items()} == asked


def test_the_extra_of_contributors_brings_what_tox_installs_for_the_suite() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (listed,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "DEV"
    )
    packages = {node.value for node in ast.walk(listed) if isinstance(node, ast.Constant)}
    (own,) = (each for each in packages if each.startswith("gnsq_lite["))
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    assert set(tox["testenv"]["extras"].split()) == set(own.partition("[")[2].rstrip("]").split(","))
    wanted = re.findall(r"^([\w.-]+(?:\[\w+\])?)", tox["testenv"]["deps"].strip(), re.M)
    assert len(wanted) > 5
    assert set(wanted) <= packages
