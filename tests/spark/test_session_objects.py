"""A query whose spool is on a real S3 server or HDFS, in a real Spark session: tasks read objects, its driver moves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.programs import running
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session, stop_spark
from tests.spark.gateway import HADOOP_AWS, PROGRAM, Gateway
from tests.spark.hadoop import JARS, Hdfs
from tests.spark.kill_harness import harness
from tests.spark.test_session_source import Feed, Sink, stream, until

STORES = [*([Gateway] if PROGRAM and HADOOP_AWS else []), *([Hdfs] if JARS else [])]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

if PROGRAM:

    @pytest.mark.rule("PIPE-5")
    def test_a_query_goes_on_where_nothing_of_its_first_driver_is_left(
        nsqd: ServerHandle, topic: str, tmp_path: Path
    ) -> None:
        spark = spark_session("local[2]")
        gateway = Gateway(tmp_path / "gateway")
        feed = Feed(nsqd, topic, tmp_path)
        sink = Sink()
        where: dict[str, Any] = gateway.options("clicks")
        try:
            for run in range(2):
                feed.publish(1000 * run, 1000)
                query = stream(spark, feed, sink, **where)
                until(lambda n=1000 * run + 1000, q=query: len(sink.rows()) >= n or not q.isActive)
                query.stop()
                until(lambda: feed.channel()["clients"] == [])
                assert sink.rows() == list(range(1000 * run + 1000)), query.exception()
            assert not (tmp_path / "spool").exists()
            assert feed.channel()["in_flight_count"] == feed.channel()["depth"] == 0
        finally:
            gateway.kill()


if PROGRAM and HADOOP_AWS:

    @pytest.mark.rule("PIPE-3")
    def test_the_command_line_archives_to_the_store_and_replays_from_it(
        nsqd: ServerHandle, topic: str, tmp_path: Path
    ) -> None:
        stop_spark()  # each command has a session of its own
        gateway = Gateway(tmp_path / "gateway")
        feed = Feed(nsqd, topic, tmp_path)
        spool = [f"{name}={text}" for name, text in gateway.options("").items() if name.startswith("nsq.storage.")]
        conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **gateway.hadoop()}
        where = ["--nsqd", nsqd.tcp_address, *[part for one in conf.items() for part in ("--conf", "=".join(one))]]
        work = ["--topic", topic, "--channel", "c", "--work-dir", "s3a://bucket/work", "--available-now"]
        work += [part for one in spool for part in ("-o", one)]
        noted = tmp_path / "gateway" / "data" / "bucket" / "work" / "checkpoint" / "commits"
        try:
            feed.publish(0, 1000)
            assert "archive: 1,000 rows" in command(tmp_path, "archive", "s3a://bucket/archive", *work, *where)
            newest = max((path for path in noted.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
            newest.unlink()  # the archive has the batch, and Spark died before it noted that
            feed.publish(1000, 1000)
            again = command(tmp_path, "archive", "s3a://bucket/archive", *work, *where)
            found = re.search(r"archive: ([\d,]+) rows", again)
            assert found is not None, again
            assert int(found[1].replace(",", "")) > 1000, "a batch ran again"
            told = command(tmp_path, "replay", "s3a://bucket/archive", "--topic", f"{topic}-again", *where)
        finally:
            gateway.kill()
        assert "replay: 2,000 messages" in told
        assert nsqd.stats(f"{topic}-again")["message_count"] == 2000

    def command(folder: Path, *arguments: str) -> str:
        """Return what ``gnsq-lite spark`` prints."""
        with running(["-m", "gnsq_lite", "spark", *arguments], folder, env={"TMPDIR": str(folder)}) as program:
            assert program.ends(400) == 0, program.output
            return program.output


if STORES:

    @pytest.mark.timeout(1200)
    @pytest.mark.rule("PIPE-2")
    @pytest.mark.rule("PIPE-5")
    @pytest.mark.parametrize("make", STORES)
    def test_killed_drivers_go_on_elsewhere_with_spool_and_checkpoint_on_the_store(
        make: type[Gateway] | type[Hdfs], nsqd: ServerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop_spark()  # the harness runs sessions of its own, each on an empty disk
        store = make(tmp_path / "store")
        place = {"options": store.options("spool"), "conf": store.hadoop(), "checkpoint": f"{store.url}/checkpoint"}
        monkeypatch.setenv("GNSQ_HARNESS_PLACE", json.dumps(place))
        try:
            base = tmp_path / "harness"
            result = harness(base, nsqd, messages=8_000, kills=3, seed=3, receiver="driver", quiet=True)
        finally:
            store.kill()
        told = {name: result[name] for name in ("kills", "lost", "duplicates", "replays_that_differ")}
        assert told == {"kills": 3, "lost": 0, "duplicates": 0, "replays_that_differ": 0}
        assert not (base / "checkpoint").exists()
