"""The page's recipe for bodies of Avro: columns of what parses, dead letters of what does not.

The jars of spark-avro are for one version of Spark: ``GNSQ_AVRO`` names a folder of those that fit.  They want a
session of their own, so the recipe runs as pasted in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from gnsq_lite import Reader
from tests.programs import running
from tests.servers import ServerHandle
from tests.spark.option_tables import PAGE
from tests.spark.test_session_source import until

JARS = os.environ.get("GNSQ_AVRO", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not JARS, reason="no jars of spark-avro: name their folder in GNSQ_AVRO"),
]

#: Each is no whole record of the recipe's schema.
BAD = [b"\x02", b"\xff\xff", b"plain text", b"{}"]

BEFORE = """
import json, pathlib
from gnsq_lite.spark import session, with_dead_letters
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.functions import col, concat, lit, struct

given = json.loads(pathlib.Path("given.json").read_text())
spark = session("local[2]", "avro", given["conf"])
record = struct(concat(lit("u"), "id").alias("user"), col("id").cast("int").alias("clicks"))
bad = spark.createDataFrame([(bytearray(body.encode("latin-1")),) for body in given["bad"]], "body BINARY")
clicks = spark.range(3).select(to_avro(record).alias("body")).union(bad)
"""

AFTER = """
def store(rows, batch_id):
    print("stored", json.dumps(sorted((row.user, row.clicks) for row in rows.collect())), flush=True)

with_dead_letters(store, given["sink"])(parsed, 0)
spark.stop()
"""


def test_bodies_of_avro_are_columns_or_dead_letters(nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    found = re.findall(r"::\n\n((?:   [^\n]*\n|\n)+)", PAGE.read_text(encoding="utf-8"))
    (recipe,) = [textwrap.dedent(text) for text in found if "import from_avro" in text]
    (tmp_path / "recipe.py").write_text(BEFORE + recipe + AFTER, encoding="utf-8")
    conf = {
        "spark.jars": ",".join(map(str, sorted(Path(JARS).glob("*.jar")))),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    sink = {"topic": topic, "nsqdTCPAddresses": nsqd.tcp_address}
    given = {"conf": conf, "sink": sink, "bad": [body.decode("latin-1") for body in BAD]}
    (tmp_path / "given.json").write_text(json.dumps(given))
    with running(["recipe.py"], tmp_path, env={"TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}) as program:
        assert program.ends(400) == 0, program.output
    assert 'stored [["u0", 0], ["u1", 1], ["u2", 2]]' in program.output
    dead: list[bytes] = []
    with Reader(topic, "look", lambda message: dead.append(message.body), nsqd_tcp_addresses=nsqd.tcp_address):
        until(lambda: len(dead) >= len(BAD))
    assert sorted(dead) == sorted(BAD)
