"""The recipes of docs/recordings.rst for Spark: it reads sealed files without this library's source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import running
from tests.recording.recipes import Place, recipe
from tests.spark.conftest import spark_session
from tests.spark.jars import JARS, SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.short, pytest.mark.timeout(600)]


def test_spark_reads_the_folder_as_a_batch_and_each_file_once_as_a_stream(tmp_path: Path) -> None:
    spark = spark_session("local[2]")
    clicks = Place(tmp_path / "clicks")
    batch, stream = recipe("SparkSession"), recipe("readStream")
    assert clicks.run(batch)[0] == "0"
    stream = stream.replace('format("noop")', f'format("parquet").option("path", "{clicks.path}-out")')
    clicks.add(3)
    clicks.add(2)
    for more in (4, 1):
        query = clicks.run(stream, spark=spark)[1]["query"]
        clicks.add(more)
        query.processAllAvailable()
        query.stop()
    assert clicks.run(batch)[0] == "10"
    out = spark.read.parquet(f"{clicks.path}-out")
    assert sorted(row.id for row in out.collect()) == [f"{n:016x}" for n in range(10)]
    assert [field.dataType.simpleString() for field in out.schema][4:] == ["timestamp", "int", "binary"]


PROGRAM = """
from gnsq_lite.spark import session

spark = session("local[1]", "iceberg", {conf!r})
for table in ("copied", "added"):
    spark.read.parquet({folder!r}).limit(0).writeTo(f"lake.db.{{table}}").using("iceberg").create()
{copy}
{add}
print([spark.table(f"lake.db.{{table}}").count() for table in ("copied", "added")])
"""


def test_iceberg_copies_the_rows_and_adds_a_file(tmp_path: Path) -> None:
    if not JARS["iceberg"]:
        pytest.skip("no Iceberg: name a folder of its jars for this PySpark in GNSQ_ICEBERG")
    clicks = Place(tmp_path / "clicks")
    clicks.add(5)
    jars = ",".join(str(jar) for jar in Path(JARS["iceberg"]).glob("*.jar"))
    text = PROGRAM.format(
        conf={name: value.format(work=tmp_path) for name, value in {**SETTINGS["iceberg"], "spark.jars": jars}.items()},
        folder=str(clicks.path / "parquet"),
        copy=recipe("INSERT INTO").replace("db.clicks", "db.copied"),
        add=recipe("add_files").replace("1f0c9a7e", clicks.writer.name).replace("db.clicks", "db.added"),
    )
    (tmp_path / "program.py").write_text(text.replace("/var/lib/clicks", str(clicks.path)))
    with running(["program.py"], tmp_path, env={"PYSPARK_PYTHON": sys.executable}) as program:
        assert program.ends(300) == 0, program.output
        assert "[5, 5]" in program.output
