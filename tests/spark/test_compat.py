"""What is said where Spark, or Java, is missing or old."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gnsq_lite.errors import MissingExtra
from gnsq_lite.spark import compat
from gnsq_lite.spark.compat import JavaMissing, OldSpark, java_version, require_java, require_pyspark, version_of


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "22-ea" 2024', 22),
        ("garbage", None),
    ],
)
def test_the_version_of_java_is_read(text: str, major: int | None) -> None:
    assert java_version(text) == major


def test_no_java_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"no java on PATH.*Java 17"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="has no bin/java"):
        require_java()


def test_an_old_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(JavaMissing, match="is Java 11"):
        require_java()


def test_a_missing_pyspark_is_said_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match=r"\.\[spark\]"):
        require_pyspark()


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        __version__ = "3.5.1"

    monkeypatch.setitem(sys.modules, "pyspark", Old)
    monkeypatch.setitem(sys.modules, "pyarrow", Old)
    with pytest.raises(OldSpark, match=r">= 4.0.*3\.5\.1"):
        require_pyspark()


@pytest.mark.parametrize(("text", "version"), [("4.0.5", (4, 0)), ("4.1.0.dev1", (4, 1)), ("5", (5, 0))])
def test_a_version_is_read(text: str, version: tuple[int, int]) -> None:
    assert version_of(text) == version


def test_the_package_imports_without_spark_and_arrow() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "import gnsq_lite.spark, gnsq_lite.spark.options\n"
        "from gnsq_lite.errors import MissingExtra\n"
        "try: gnsq_lite.spark.NsqDataSource\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert 'pip install ".[spark]"' in done.stdout, done.stderr


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import gnsq_lite.spark

    with pytest.raises(AttributeError, match="nothing"):
        _ = gnsq_lite.spark.nothing
    assert compat.OLDEST == (4, 0)
