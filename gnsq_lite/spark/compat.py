"""Differences between the versions of PySpark, and checks before Spark is used."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from gnsq_lite.errors import MissingExtra, NSQError

OLDEST = (4, 0)


class JavaMissing(NSQError):
    """Spark needs a Java 17 runtime, and none is installed."""


class OldSpark(NSQError):
    """The installed PySpark is too old."""


def require_pyspark() -> Any:
    """Return the module ``pyspark``.

    Raises:
        MissingExtra: pyspark or pyarrow is not installed.
        OldSpark: pyspark is older than 4.0, and has no Python data sources.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark
    except ImportError as error:
        raise MissingExtra("gnsq_lite.spark", "spark", error.name or "pyspark") from error
    if version_of(pyspark.__version__) < OLDEST:
        raise OldSpark(f"gnsq_lite.spark needs pyspark >= 4.0 (Python data sources); this is {pyspark.__version__}")
    return pyspark


def version_of(text: str) -> tuple[int, int]:
    """Parse (major, minor) from a version."""
    major, minor = (text.split(".") + ["0"])[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def require_java() -> None:
    """Raise JavaMissing, with instructions, if no Java 17 or later can be started."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = "install a Java 17 runtime (Debian: openjdk-17-jre-headless) or set JAVA_HOME to one"
    if not java or not os.access(java, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        raise JavaMissing(f"Spark needs Java, but {where}: {advice}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = java_version(shown.stderr + shown.stdout)
    if version is not None and version < 17:
        raise JavaMissing(f"Spark 4 needs Java 17 or later, but {java} is Java {version}: {advice}")


def java_version(text: str) -> int | None:
    """Return the major version that ``java -version`` prints, or None."""
    _, found, rest = text.partition('version "')
    if not found:
        return None
    parts = rest.partition('"')[0].split(".")
    major = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    digits = major.split("-")[0]
    return int(digits) if digits.isdigit() else None


def available_now_mixin() -> type[Any]:
    """Return SupportsTriggerAvailableNow, or an empty class if this PySpark lacks it."""
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return _NoAvailableNow
    found: type[Any] = SupportsTriggerAvailableNow
    return found


def supports_available_now() -> bool:
    """Return whether this PySpark informs a Python source about Trigger.AvailableNow."""
    return available_now_mixin() is not _NoAvailableNow


def stream_arrow_writer() -> type[Any] | None:
    """Return DataSourceStreamArrowWriter, or None if this PySpark (4.0) has only the row-wise writer."""
    from pyspark.sql import datasource

    found: type[Any] | None = getattr(datasource, "DataSourceStreamArrowWriter", None)
    return found


class _NoAvailableNow:
    """Replacement for SupportsTriggerAvailableNow in a PySpark that lacks it."""
