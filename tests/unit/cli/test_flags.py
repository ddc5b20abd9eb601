"""Command lines as Go's programs take them, and go-nsq's options."""

from __future__ import annotations

from typing import Any

import click
import pytest

from gnsq_lite.cli import flags, goconfig
from gnsq_lite.cli.app import COMMANDS, main
from gnsq_lite.cli.goflags import GoCommand, Option, normalized, seconds, truth
from gnsq_lite.cli.hints import in_flags
from gnsq_lite.errors import OptionError
from gnsq_lite.options import BackoffOptions, TLSOptions


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5m", 300.0),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("1h2m3.5s", 3723.5),
        ("-1.5h", -5400.0),
        ("+5s", 5.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("7us", 7e-6),
        ("7\u00b5s", 7e-6),
        ("9ns", 9e-9),
        ("0", 0.0),
        ("0.2", 0.2),
        ("30", 30.0),
        ("1e-3", 0.001),
    ],
)
def test_durations_are_gos_or_seconds(text: str, found: float) -> None:
    assert seconds(text) == pytest.approx(found)


@pytest.mark.parametrize(
    "text", ["", "5 m", "5x", "m", "s5", "1h30", "--5s", "inf", "nan", "1_000", "\u0665s", "5M", ".s", "1.2.3s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        seconds(text)


def test_bools_are_gos() -> None:
    assert [truth(text) for text in ("1", "t", "TRUE", "True")] == [True] * 4
    assert [truth(text) for text in ("0", "f", "FALSE", "False")] == [False] * 4
    with pytest.raises(ValueError, match="neither"):
        truth("yes")


PARAMS: list[click.Parameter] = [
    Option(["--topic"], multiple=True),
    Option(["--gzip"], is_flag=True),
    Option(["-n", "most"], type=int),
    Option(["--sync-interval"]),
    Option(["--deep/--no-deep"]),
]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["-topic", "x"], ["--topic=x"]),
        (["-topic=x"], ["--topic=x"]),
        (["--topic", "-x"], ["--topic=-x"]),
        (["--topic=a=b"], ["--topic=a=b"]),
        (["--topic="], ["--topic="]),
        (["-gzip", "-topic", "-gzip"], ["--gzip", "--topic=-gzip"]),
        (["-gzip=false"], []),
        (["-gzip", "--gzip=F"], []),
        (["--gzip=0", "-gzip=true"], ["--gzip"]),
        (["-n", "5"], ["-n", "5"]),
        (["-n=5"], ["-n", "5"]),
        (["--n", "5"], ["-n", "5"]),
        (["-n5"], ["-n5"]),
        (["-no-deep"], ["--no-deep"]),
        (["a", "--", "-topic"], ["a", "--", "-topic"]),
        (["-"], ["-"]),
        (["-unknown", "-topic"], ["-unknown", "--topic"]),
        (["---topic"], ["---topic"]),
    ],
)
def test_flags_are_written_with_one_dash_or_two(given: list[str], made: list[str]) -> None:
    assert normalized(PARAMS, given) == made


def test_a_bool_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(click.UsageError, match="--gzip"):
        normalized(PARAMS, ["-gzip=maybe"])


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"broker", "spark"}))
def test_help_is_grouped_and_has_an_example_that_parses(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    command = main.get_command(click.Context(main), name)
    groups = [command] if not isinstance(command, click.Group) else list(command.commands.values())
    monkeypatch.chdir(tmp_path)
    for file in ("lines.txt", "access.log", "program.py"):
        (tmp_path / file).write_text("")
    for each in groups:
        assert isinstance(each, GoCommand)
        context = click.Context(each, info_name=name)
        assert "Example:" in each.get_help(context)
        words = each.example.split()
        assert name in words[:1]
        with each.make_context(name, words[1 + (each is not command) :]):
            pass


# -- go-nsq's options


def test_a_consumers_options_are_read_as_go_nsq_reads_them() -> None:
    given = {
        "dial_timeout": "2s",
        "max-attempts": "7",
        "default_requeue_delay": "1m",
        "low_rdy_idle_timeout": "3s",
        "lookupd_poll_interval": "250ms",
        "sample_rate": "10",
        "msg_timeout": "1h",
        "backoff_strategy": "full_jitter",
        "max_backoff_duration": "90s",
        "tls_v1": "true",
        "tls_root_ca_file": "ca.pem",
        "tls_insecure_skip_verify": "true",
        "tls_min_version": "tls1.0",
        "snappy": "1",
        "read_timeout": "1m",
    }
    found, notes = goconfig.keywords([f"{name},{value}" for name, value in given.items()], flag="--consumer-opt")
    assert found == {
        "connect_timeout": 2.0,
        "max_attempts": 7,
        "requeue_delay": 60.0,
        "rdy_idle_timeout": 3.0,
        "lookupd_poll_interval": 0.25,
        "sample_rate": 10,
        "msg_timeout": 3600.0,
        "backoff": BackoffOptions(strategy="full-jitter", longest=90.0),
        "tls": TLSOptions(ca_file="ca.pem", verify=False, minimum_version="TLSv1.2"),
        "compression": "snappy",
    }
    assert len(notes) == 1
    assert "read_timeout" in notes[0]


def test_an_option_without_a_value_is_true_and_the_last_one_counts() -> None:
    assert goconfig.keywords(["tls_v1"], flag="--producer-opt")[0] == {"tls": TLSOptions()}
    assert goconfig.keywords(["deflate", "deflate,false"], flag="--producer-opt")[0] == {}
    assert goconfig.keywords(["tls_v1,false", "tls_cert,c.pem"], flag="--producer-opt")[0] == {"tls": None}


def test_what_a_producer_has_no_use_for_is_told_and_does_nothing() -> None:
    found, notes = goconfig.keywords(["max_attempts,5"], flag="--producer-opt")
    assert (found, len(notes)) == ({}, 1)


@pytest.mark.parametrize("text", ["no_such,1", "local_addr,127.0.0.1", "max_attempts,many", "snappy,perhaps"])
def test_a_wrong_option_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.UsageError, match=text.split(",")[0]):
        goconfig.keywords([text], flag="--consumer-opt")


NONE: dict[str, Any] = dict.fromkeys(("tls_root_ca_file", "tls_cert", "tls_key", "compression", "auth_secret"))


def test_a_flag_wins_over_a_consumers_option_and_that_over_a_default() -> None:
    options = {**NONE, "tls": False, "auth_secret": "flag", "consumer_opts": ("auth_secret,opt", "max_attempts,3")}
    assert flags.of_reader(options, max_attempts=0, requeue_delay=1.0) == {
        "auth_secret": "flag",
        "max_attempts": 3,
        "requeue_delay": 1.0,
    }


def test_a_lower_longest_delay_lowers_the_default_one() -> None:
    options = {**NONE, "tls": False, "consumer_opts": ("max_requeue_delay,500ms",)}
    assert flags.of_reader(options, requeue_delay=5.0)["requeue_delay"] == 0.5


def test_an_error_speaks_of_this_programs_flags() -> None:
    assert in_flags(OptionError("http_timeout", 0.0, "too short")).startswith("--http-client-request-timeout 0.0")
    assert in_flags(OptionError("rotate_size", 0, "must be more")).startswith("--rotate-size")
    assert "--tls-cert" in in_flags(OptionError("key_file", "k", "needs cert_file"))
    assert "--auth-secret" in in_flags(ValueError("this nsqd requires AUTH; set auth_secret"))
    assert in_flags("GET /x?topic=work_dir_1") == "GET /x?topic=work_dir_1"
