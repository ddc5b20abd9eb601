"""Jars of Delta and Iceberg for the tests, each for one version of Spark."""

from __future__ import annotations

import os

#: Folder of the jars of each kind of table, and the settings of a session that has it.
JARS = {kind: os.environ.get(f"GNSQ_{kind.upper()}", "") for kind in ("delta", "iceberg")}
SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": "{work}/lake",
        # Unused for 30 s the query's table leaves the cache: what a later read puts there does not see its commits.
        "spark.sql.catalog.lake.cache-enabled": "false",
    },
}
