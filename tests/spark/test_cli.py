"""``gnsq-lite spark`` without Spark: help, usage, and what is said when something is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from gnsq_lite.cli import spark as module
from gnsq_lite.cli.app import run
from gnsq_lite.errors import OptionError

WORK = ["--topic", "t", "--channel", "c", "--nsqd", "n:4150"]


@pytest.mark.parametrize("name", ["archive", "relay", "replay", "summarize", "compact"])
def test_each_pipeline_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spark", name, "--help"]) == 0
    assert "Usage:" in capsys.readouterr().out


def test_a_missing_spark_is_one_line_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert run(["spark", "archive", str(tmp_path), "--work-dir", str(tmp_path), *WORK]) == 1
    assert 'pip install ".[spark]"' in capsys.readouterr().err


def test_options_of_the_command_line_become_sparks() -> None:
    assert module.addresses(("a:1", "b:2"), (), ("maxInFlight=7", "nsq.authSecret=x=y")) == {
        "nsqdTCPAddresses": "a:1,b:2",
        "maxInFlight": "7",
        "nsq.authSecret": "x=y",
    }
    with pytest.raises(OptionError, match="NAME=VALUE"):
        module.pairs(["maxInFlight"], "--option")
    source = module.stream_source("t", "c", "work", {"maxInFlight": "7"})
    assert source["spoolDir"].endswith("/work/spool")


def test_a_place_nobody_can_write_to_is_no_work_directory() -> None:
    with pytest.raises(OptionError, match="--work-dir"):
        module.stream_source("t", "c", "dbfs:/work", {})
    given = {"topic": "t", "channel": "c", "nsqd": ("n",), "lookupd": (), "option": (), "snapshot": None}
    with pytest.raises(OptionError, match="--work-dir"):
        module._snapshot_source(None, {**given, "work_dir": "s3a://bucket/work"})


def test_a_work_directory_and_an_archive_may_be_urls(capsys: pytest.CaptureFixture[str]) -> None:
    assert module.stream_source("t", "c", "s3a://bucket/work/", {})["spoolDir"] == "s3a://bucket/work/spool"
    assert module.ArchivePath(exists=True).convert("hdfs://n:1/x", None, None) == "hdfs://n:1/x"
    assert run(["spark", "replay", "/no/such/archive", "--topic", "t", "--nsqd", "n"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_relay_whose_spool_is_on_a_store_publishes_with_the_connections_options_alone() -> None:
    options = ("nsq.storage.region=eu", "NSQ.Storage.endpoint=e", "nsq.tls=true", "maxInFlight=7")
    given = {"nsqd": ("n",), "lookupd": ("l",), "option": options}
    addresses = {"nsqdTCPAddresses": "n", "lookupdHTTPAddresses": "l"}
    assert module._relay_sink(given, (), "u") == {**addresses, "nsq.tls": "true", "topic": "u"}
    assert module._relay_sink(given, ("m",), "u") == {"nsqdTCPAddresses": "m", "nsq.tls": "true", "topic": "u"}


def test_a_snapshot_to_summarize_has_a_name_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"topic": "t", "channel": "c", "work_dir": "/work", "nsqd": ("n",), "lookupd": (), "option": ()}
    named = module._snapshot_source(None, {**given, "snapshot": "monday"})
    made = module._snapshot_source(None, {**given, "snapshot": None})
    assert (named or {})["snapshot"] == "monday"
    assert f"--snapshot {(made or {})['snapshot']}" in capsys.readouterr().err
