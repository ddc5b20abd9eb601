"""Creates a Spark session with the formats of this library.  Errors name the missing package."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from gnsq_lite.spark.compat import require_java, require_pyspark

#: Defaults of :func:`session`.  On a busy machine, Spark needs more than its default of 15 s to accept a connection
#: from its own Python processes.
DEFAULTS: Mapping[str, str] = {"spark.python.authenticate.socketTimeout": "90s"}


def session(master: str | None = None, app_name: str = "gnsq_lite", conf: Mapping[str, str] | None = None) -> Any:
    """Return the running SparkSession, or a new session with *conf* and DEFAULTS.

    Registers ``format("nsq")`` and ``format("nsq_log")``.

    Raises:
        MissingExtra, OldSpark, JavaMissing: the text names the package to install.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    from gnsq_lite.spark.nsq_log.source import NsqLogDataSource
    from gnsq_lite.spark.source import NsqDataSource

    spark = SparkSession.getActiveSession()
    if spark is None:
        require_java()
        # Without this variable Spark starts "python3" from PATH, in which this library may not be installed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(app_name)
        if master is not None:
            builder = builder.master(master)
        for key, value in {**DEFAULTS, **(conf or {})}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    spark.dataSource.register(NsqDataSource)
    spark.dataSource.register(NsqLogDataSource)
    return spark
