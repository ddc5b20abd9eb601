"""The source and the sink through Spark Connect, whose client has neither a JVM nor a SparkContext."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests import servers
from tests.programs import python
from tests.spark.conftest import ROOT, stop_spark

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from gnsq_lite.errors import OptionError
from gnsq_lite.spark import NsqDataSource, record

nsqd, work = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.dataSource.register(NsqDataSource)
frame = spark.range(300).selectExpr("string(id) AS body")
frame.write.format("nsq").option("topic", "t").option("nsqdTCPAddresses", nsqd).mode("append").save()
options = {"topic": "t", "channel": "c", "nsqdTCPAddresses": nsqd, "recording": f"{work}/recording"}
source = spark.readStream.format("nsq").options(**options, idleTimeoutMs="500").load()
sink = source.writeStream.format("parquet").option("path", f"{work}/rows")
query = sink.option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True).start()
query.awaitTermination(240)
rows = spark.read.parquet(f"{work}/rows").selectExpr("int(string(body)) AS n").collect()
print("stored:", sorted(row.n for row in rows) == list(range(300)))
print("recorded:", spark.read.format("nsq").option("recording", f"{work}/recording").load().count())
given = {"recording": f"{work}/recording", "startingOffsets": "earliest"}
copy = spark.readStream.format("nsq").options(**given).load()
relay = copy.select("body").writeStream.format("nsq").option("topic", "u").option("nsqdTCPAddresses", nsqd)
relay.option("checkpointLocation", f"{work}/relay").trigger(availableNow=True).start().awaitTermination(240)
try:
    record(spark, "t", "d", f"{work}/recorded", options={"nsqdTCPAddresses": nsqd})
except OptionError as error:
    print("record:", error)
spark.stop()
"""


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason='no grpc: pip install "pyspark[connect]"')
def test_source_and_sink_work_through_spark_connect_and_record_is_an_error(
    nsqd: servers.ServerHandle, tmp_path: Path
) -> None:
    stop_spark()  # two JVMs take a gigabyte
    for topic in ("t", "u"):
        nsqd.prepare(topic, "c")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = python(PROGRAM, nsqd.tcp_address, str(tmp_path), limit=300.0, env=env)
    printed = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    assert "stored: True" in printed
    assert "recorded: 300" in printed
    assert "record: spark='Spark Connect': needs a session with a SparkContext" in printed
    assert nsqd.stats("u", "c")["depth"] == 300
    assert not (tmp_path / "recorded").exists()
