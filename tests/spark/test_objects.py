"""The source with its spool on a real S3 server: it moves, and is killed, and so is the server."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.errors import OptionError
from gnsq_lite.recording import lease
from gnsq_lite.recording.daemon import running_recorder
from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.recording.recording import Recording
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.source import NsqDataSource
from gnsq_lite.spark.stream import NsqStreamReader
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.spark import queries
from tests.spark.gateway import LACKS, Gateway
from tests.spark.queries import Query, publish, settled

server = queries.server

__all__ = ["server"]  # the fixture
pytestmark = pytest.mark.timeout(600)

BASE = {"topic": "t", "channel": "c", "nsqdTCPAddresses": "n:4150"}


@pytest.fixture
def store() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.kill()


def options(server: ServerHandle, store: Gateway, **more: str) -> SourceOptions:
    where = {**store.options("spool"), "nsqdTCPAddresses": server.tcp_address}
    return parse(SourceOptions, {**BASE, **where, **more})


@pytest.mark.parametrize(
    ("url", "why"),
    [
        *[(url, "BUCKET") for url in ("s3://", "s3://b/x?y", "gs:///x")],
        ("dbfs:/x", "not supported"),
    ],
)
def test_a_url_that_names_no_place_is_refused(url: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        parse(SourceOptions, {**BASE, "recording": url})


def test_settings_are_no_secret_told() -> None:
    given = {**BASE, "recording": "s3a://bucket/x/", "nsq.storage.secretAccessKey": "hunter2"}
    given["nsq.storage.accessKeyId"] = "me"
    with pytest.raises(OptionError, match=r"did you mean nsq\.storage\.secretAccessKey"):
        NsqDataSource({**given, "nsq.storage.secretAccesKey": "x"}).schema()
    with pytest.raises(OptionError, match="refuses its settings"):
        NsqDataSource({**given, "nsq.storage.tenantId": "x"}).schema()
    source = NsqDataSource({name.lower(): text for name, text in given.items()})  # as Spark passes it
    assert source.schema().startswith("topic STRING")
    assert "hunter2" not in repr(source) + repr(parse(SourceOptions, given))
    assert parse(SourceOptions, given).recording == "s3a://bucket/x"


PLACES: dict[str, dict[str, str]] = {
    "s3a://b/x": {"accessKeyId": "me", "secretAccessKey": "hunter2", "sessionToken": "hunter2", "region": "r"},
    "az://b/x": {"accountName": "me", "sasKey": "sv=2020&sig=hunter2"},
    "az://b/y": {"accountName": "me", "token": "hunter2"},
}


@pytest.mark.parametrize("place", PLACES)
def test_credentials_that_are_refused_are_told_at_once_and_never_shown(place: str) -> None:
    """A store tells in its answer what it was asked, headers too; Spark shows an error's text, and those behind it."""
    pytest.importorskip("obstore")
    with echoing() as address:
        given = {"endpoint": f"http://me:hunter2@{address}", "allowHttp": "true", **PLACES[place]}
        raw = {**BASE, "recording": place, **{f"nsq.storage.{name}": text for name, text in given.items()}}
        reader = NsqStreamReader(parse(SourceOptions, raw))
        begun = time.monotonic()
        with pytest.raises(
            RecordingError, match=r"cannot be opened: .*403 Forbidden: AuthFailed: no such key$"
        ) as told:
            reader.initialOffset()
    assert time.monotonic() - begun < lease.OPENING
    assert "hunter2" not in "".join(traceback.format_exception(told.value))
    assert "hunter2" not in repr(NsqDataSource(raw))


@pytest.mark.parametrize(
    ("place", "variable"), [("s3a://b/x", "AWS_ACCESS_KEY_ID"), ("az://b/x", "AZURE_STORAGE_SAS_KEY")]
)
def test_a_store_without_credentials_is_refused_if_the_metadata_service_is_disabled(
    place: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    given = {"instanceMetadata": "false", "region": "r"} if place.startswith("s3") else {"instanceMetadata": "false"}
    given |= {} if place.startswith("s3") else {"accountName": "me"}
    with pytest.raises(OptionError, match="needs credentials in the options or in the environment"):
        Recording(place, given).check()
    monkeypatch.setenv(variable, "sv=2020" if place.startswith("az") else "me")
    if place.startswith("s3"):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    Recording(place, given).check()


def test_a_url_with_a_password_is_refused() -> None:
    with pytest.raises(OptionError, match="must not have a password") as told:
        parse(SourceOptions, {**BASE, "recording": "s3a://me:hunter2@bucket/x"})
    assert "hunter2" not in str(told.value)


@contextmanager
def echoing() -> Iterator[str]:
    """Run a store that refuses, and answers with what it was asked, as S3 does; yield its address."""

    class Echo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = f"{self.path}\n{self.headers}"
            answer = f"<Error><Code>AuthFailed</Code><Asked>{asked}</Asked><Message>no such key</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    store = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=store.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{store.server_address[1]}"
    finally:
        store.shutdown()
        store.server_close()
        thread.join()


if not LACKS:

    @pytest.mark.rule("PIPE-3")
    def test_a_driver_that_moves_finds_all_of_it_there(server: ServerHandle, store: Gateway) -> None:
        publish(server, 2000)
        first = Query(NsqStreamReader(options(server, store, maxInFlight="100", maxOffsetsPerTrigger="500")))
        first.run(lambda: len(first.rows) >= 500)
        first.reader.stop()
        again = NsqStreamReader(options(server, store, maxOffsetsPerTrigger="500"))  # with the checkpoint's offsets
        replayed = [batch for p in again.partitions(first.start, first.end) for batch in again.read(p)]
        tail = [int(body) for batch in replayed for body in batch.column("body").to_pylist()]
        assert first.rows[len(first.rows) - len(tail) :] == tail, "the batch that was not committed is the same"
        second = Query(again, first.end)
        second.run(lambda: len(first.rows) + len(second.rows) >= 2000)
        second.run(settled(server))
        again.stop()
        assert sorted(first.rows + second.rows) == list(range(2000))

    def test_a_second_driver_is_refused_and_a_server_that_is_away_for_a_while_costs_nothing(
        server: ServerHandle, store: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "PATIENCE", 300.0)
        publish(server, 1000)
        query = Query(NsqStreamReader(options(server, store)))
        with pytest.raises(Exception, match="written by another process"):
            NsqStreamReader(options(server, store)).initialOffset()
        query.run(lambda: len(query.rows) >= 1000)
        store.kill()
        publish(server, 500)
        time.sleep(1.0)
        store.start()
        query.run(lambda: len(query.rows) >= 1500)
        query.run(settled(server))
        query.reader.stop()
        assert sorted(query.rows) == sorted([*range(1000), *range(500)])

    def test_a_server_that_goes_and_comes_back_under_a_running_query_costs_nothing(
        server: ServerHandle, store: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "PATIENCE", 300.0)
        publish(server, 2000)
        query = Query(NsqStreamReader(options(server, store, maxInFlight="200", maxOffsetsPerTrigger="200")))
        assert query.reader._embedded is not None
        collector = query.reader._embedded.started()
        wait_for(lambda: collector.stored >= 1000)
        query.run(lambda: len(query.rows) >= 200)
        store.kill()  # with batches to plan, to read and to commit
        back = threading.Timer(5.0, store.start)
        back.start()
        try:
            query.run(lambda: len(query.rows) >= 2000, 300.0)
        finally:
            back.join()  # or it starts one that nobody ends
        query.run(settled(server))
        query.reader.stop()
        assert sorted(query.rows) == list(range(2000))

    @pytest.mark.rule("PIPE-2")
    def test_a_recorder_whose_store_loses_answers_and_delays_them_stores_each_message_once(
        server: ServerHandle, store: Gateway
    ) -> None:
        given = options(server, store)
        recording, settings = Recording(given.recording, given.storage), replace(given.recorder(), max_waiting=None)
        with running_recorder(recording, settings) as recorder:
            for number in range(8):
                store.proxy.cut_after = 0  # the server executes requests, but the client receives no answer
                publish(server, 500)
                time.sleep(0.3)
                store.proxy.clear()
                store.proxy.delay = 0.1 * (number % 3)
                # The client's retries wait for more than ten seconds at times.
                wait_for(lambda n=number: recorder.stored >= 500 * (n + 1), 60)
            wait_for(settled(server))
        bodies = [int(body) for batch in recording.batches() for body in batch["body"].to_pylist()]
        assert sorted(bodies) == sorted([*range(500)] * 8)
        assert [wrong for *_, wrong in recording.verify()] == [""]
        assert store.answered(412, "PUT"), "no conditional put was retried after its answer was lost"

    @pytest.mark.slow
    @pytest.mark.rule("PIPE-2")
    @pytest.mark.rule("PIPE-3")
    def test_driver_and_server_killed_at_any_moment_lose_nothing(
        server: ServerHandle, store: Gateway, tmp_path: Path
    ) -> None:
        messages, kills, rng = 12_000, 5, random.Random(11)
        publish(server, messages)
        given = options(server, store, maxInFlight="500", maxOffsetsPerTrigger="1500")
        context = multiprocessing.get_context("spawn")
        for number in range(kills):
            child = context.Process(target=run_as_spark, args=(given, tmp_path))
            child.start()
            until_batches(tmp_path, 1 + number, child)
            time.sleep(rng.random())
            if number % 2:
                store.kill()
                time.sleep(rng.random())
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join(30)
            if number % 2:
                store.start()
        child = context.Process(target=run_as_spark, args=(given, tmp_path))
        child.start()
        deadline = time.monotonic() + 120
        while len(delivered(tmp_path)) < messages or not settled(server)():
            assert time.monotonic() < deadline, len(delivered(tmp_path))
            assert child.is_alive()
            time.sleep(0.2)
        child.kill()
        child.join(30)
        rows = [row for batch in batches(tmp_path) for row in batch]
        assert sorted(rows) == list(range(messages))
        assert (tmp_path / "differ").exists() is False

    def run_as_spark(given: SourceOptions, base: Path) -> None:
        """The calls of a query and its checkpoint: the offset is noted, then the batch stored under its number."""
        checkpoint = base / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        reader = NsqStreamReader(given)
        noted = sorted(int(path.name) for path in checkpoint.glob("[0-9]*"))
        start = json.loads((checkpoint / str(noted[-2])).read_text()) if len(noted) > 1 else None
        number = noted[-1] if noted else 0
        if start is None:
            begin = checkpoint / "begin"
            if not begin.exists():
                write(begin, reader.initialOffset())
            start = json.loads(begin.read_text())
        pending = json.loads((checkpoint / str(noted[-1])).read_text()) if noted else None
        while True:
            end = pending or reader.latestOffset(start, None)
            if end != start:
                number += 0 if pending else 1
                write(checkpoint / str(number), end)
                if not pending:
                    reader.commit(start)
                rows = []
                for partition in reader.partitions(start, end):
                    for batch in reader.read(partition):
                        rows += [int(body) for body in batch.column("body").to_pylist()]
                kept = base / f"batch-{number:05d}.json"
                if kept.exists() and json.loads(kept.read_text()) != rows:
                    (base / "differ").touch()
                write(kept, rows)
                start, pending = end, None
            time.sleep(0.05)

    def write(path: Path, value: Any) -> None:
        fresh = path.with_name("." + path.name)
        fresh.write_text(json.dumps(value))
        fresh.rename(path)

    def batches(base: Path) -> list[list[int]]:
        return [json.loads(path.read_text()) for path in sorted(base.glob("batch-*.json"))]

    def delivered(base: Path) -> set[int]:
        return {row for batch in batches(base) for row in batch}

    def until_batches(base: Path, count: int, child: Any) -> None:
        wait_for(lambda: len(batches(base)) >= count or not child.is_alive())
        assert child.is_alive(), "the query ended by itself"
