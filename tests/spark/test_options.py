"""Options: names, types, refusals; what Spark passes is text."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from gnsq_lite.errors import InvalidName, OptionError
from gnsq_lite.options import TLSOptions
from gnsq_lite.spark.options import (
    SPARK_NAMES,
    SinkOptions,
    SourceOptions,
    camel,
    connection_arguments,
    parse,
    redacted,
)
from tests.fakes import FakeClock

BASE = {"topic": "t", "channel": "c", "recording": "/spool", "nsqdTCPAddresses": "one:4150, two"}


def source(**more: str) -> SourceOptions:
    return parse(SourceOptions, {**BASE, **more})


def test_names_are_camel_case_and_their_case_does_not_matter() -> None:
    assert camel("max_offsets_per_trigger") == "maxOffsetsPerTrigger"
    options = parse(SourceOptions, {key.upper(): value for key, value in BASE.items()} | {"MAXINFLIGHT": "7"})
    assert (options.max_in_flight, options.nsqd_tcp_addresses) == (7, ("one:4150", "two"))


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("topik", "topic"), ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"), ("recordin", "recording")],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(given: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"{given}.*did you mean {nearest}\\?"):
        source(**{given: "x"})


def test_an_unknown_connection_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match=r"nsq\.authSecrets.*did you mean nsq\.authSecret\?"):
        connection_arguments({"authSecrets": "hunter2"})


def test_options_spark_adds_itself_are_let_through() -> None:
    for name in SPARK_NAMES:
        source(**{name: "whatever"})


def test_a_table_whose_options_spark_would_forget_is_refused_with_what_works() -> None:
    doubled = {f"option.{name}": value for name, value in BASE.items()}
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        parse(SourceOptions, {**doubled, **BASE, "provider": "nsq", "owner": "me"})


def test_a_path_is_refused_with_what_to_use() -> None:
    with pytest.raises(OptionError, match=r"takes no path.*topic"):
        source(path="clicks")


@pytest.mark.parametrize("name", ["topic", "recording"])
def test_what_is_required_is_asked_for_by_its_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*is required"):
        parse(SourceOptions, {key: value for key, value in BASE.items() if key != name})


def test_some_address_is_required_and_an_invalid_one_is_named() -> None:
    with pytest.raises(OptionError, match="nsqdTCPAddresses or lookupdHTTPAddresses"):
        parse(SourceOptions, {**BASE, "nsqdTCPAddresses": ""})
    with pytest.raises(OptionError, match="port must be a number"):
        source(nsqdTCPAddresses="one:port")


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64k", 65536), ("16m", 16 << 20), ("1G", 1 << 30), ("2gb", 2 << 30)]
)
def test_sizes_take_a_suffix(text: str, size: int) -> None:
    assert source(maxWaitingBytes=text).max_waiting_bytes == size


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("maxWaitingBytes", "lots", "number of bytes"),
        ("maxWaitingBytes", "1.5g", "number of bytes"),
        ("maxInFlight", "1e3", "whole number"),
        ("maxInFlight", "0", "between 1 and"),
        ("maxOffsetsPerTrigger", "0", "at least 1"),
        ("failOnDataLoss", "yes", "true or false"),
        ("onMissingNsqd", "wait", "'error' or 'warn'"),
        ("startingOffsets", "latest", "at its channel.s position"),
        ("topic", "a b", "topic"),
        ("channel", "", "channel=''.*is empty"),
        ("topic", " ", "topic=' '.*is empty"),
        ("maxTriggerDelay", "soon", "2 minutes"),
        ("startingTimestamp", "soon", "startingTimestamp='soon'.*an age such as 2h"),
        ("startingTimestamp", "-5", "ISO time"),
        ("endingTimestamp", "90000d", "ISO time"),
        ("nsq.heartbeatIntervalMs", "soon", "a number"),
        ("nsq.heartbeatIntervalMs", "10", r"nsq\.heartbeatIntervalMs='10': .*between 1.0.*\(in seconds\)"),
        ("nsq.sampleRate", "100", r"nsq\.sampleRate='100': .*between 0 and 99"),
        ("nsqdHTTPAddresses", "one:4151", "one address for each of nsqdTCPAddresses"),
        ("nsq.tlsKeyFile", "/key", r"nsq\.tlsKeyFile='/key': needs"),
        ("nsq.authSecret", "", r"nsq\.authSecret='<hidden>': "),
    ],
)
def test_a_value_out_of_type_or_range_is_refused_with_its_name(name: str, text: str, why: str) -> None:
    with pytest.raises((OptionError, InvalidName), match=why):
        source(**{name: text})


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1795233600000", 1795233600000),
        ("0", 0),
        ("20261121", 1795219200000),
        ("2026-11-21T04:00:00.5+04:00", 1795219200500),
        ("2h", 1795219200000 - 7_200_000),
        ("1 hour 30m", 1795219200000 - 5_400_000),
    ],
)
def test_a_time_is_milliseconds_or_an_iso_time_or_an_age(text: str, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsq_lite.spark.options.SYSTEM_CLOCK", FakeClock(95_219_200.0))
    found = parse(SourceOptions, {"recording": "/spool", "startingTimestamp": text, "endingTimestamp": text})
    assert (found.starting_timestamp, found.ending_timestamp) == (ms, ms)


def test_milliseconds_become_seconds_for_the_reader() -> None:
    arguments = source(**{"nsq.heartbeatIntervalMs": "5000", "nsq.outputBufferTimeoutMs": "-1"}).client_arguments()
    assert (arguments["heartbeat_interval"], arguments["output_buffer_timeout"]) == (5.0, -1)


@pytest.mark.rule("PIPE-4")
def test_tls_and_auth_reach_the_reader_as_its_own_options() -> None:
    options = source(**{"nsq.tls": "true", "nsq.tlsCaFile": "/ca.pem", "nsq.authSecret": "hunter2"})
    arguments = options.client_arguments()
    assert arguments["tls"] == TLSOptions(ca_file="/ca.pem")
    assert arguments["auth_secret"] == "hunter2"


def test_tls_switched_off_and_given_options_is_a_contradiction() -> None:
    with pytest.raises(OptionError, match="contradicted"):
        source(**{"nsq.tls": "false", "nsq.tlsCaFile": "/ca.pem"})


def test_a_secret_shows_in_no_repr_no_log_and_no_error() -> None:
    raw = {**BASE, "nsq.authSecret": "hunter2"}
    assert "hunter2" not in repr(parse(SourceOptions, raw))
    assert "hunter2" not in str(redacted(raw))
    with pytest.raises(OptionError) as caught:
        parse(SourceOptions, {**raw, "authSecret": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_options_survive_pickle_and_every_one_is_documented() -> None:
    options = source(**{"nsq.compression": "snappy"})
    assert pickle.loads(pickle.dumps(options)) == options
    for cls in (SourceOptions, SinkOptions):
        assert all(field.metadata["doc"] for field in dataclasses.fields(cls))


def test_the_sink_needs_no_topic_option() -> None:
    assert parse(SinkOptions, {"nsqdTCPAddresses": "one", "mpubMaxBytes": "1m"}).mpub_max_bytes == 1 << 20


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize(
    "url", ["hdfs://n:1/x", "dbfs:/x", "ftp://h/x", "file://host/x", "file:///x?y", "s3x://b/x", "s3://", "gs:///x"]
)
def test_a_place_nobody_here_can_write_to_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="recording"):
        source(recording=url)
    with pytest.raises(OptionError, match="markerDir"):
        parse(SinkOptions, {"topic": "t", "nsqdTCPAddresses": "n", "markerDir": url})


def test_markers_need_a_directory() -> None:
    with pytest.raises(OptionError, match="markerDir"):
        parse(SinkOptions, {"topic": "t", "nsqdTCPAddresses": "n", "markerDir": "s3://b/x"})


def test_settings_of_an_object_store_are_the_sources_and_kept_apart() -> None:
    given = source(recording="S3A://b/x/", **{"nsq.storage.secretAccessKey": "hunter2", "nsq.clientId": "me"})
    assert given.recording == "S3A://b/x"
    assert (given.storage, given.nsq) == ({"secretAccessKey": "hunter2"}, {"client_id": "me"})
    assert "hunter2" not in repr(given) + str(redacted({"nsq.storage.accountKey": "hunter2"}))
    with pytest.raises(OptionError, match="storage"):
        parse(SinkOptions, {"topic": "t", "nsqdTCPAddresses": "n", "nsq.storage.region": "x"})


@pytest.mark.parametrize("given", ["/a b/c", "file:/a%20b/c", "file:///a%20b/c", "file://localhost/a%20b/c"])
def test_a_file_url_means_its_path(given: str) -> None:
    assert source(recording=given).recording == "/a b/c"


def test_a_relative_path_is_made_absolute_where_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/usr")
    assert source(recording="x:y/./spool").recording == "/usr/x:y/spool"
