"""Durations, help texts and errors of the command line."""

from __future__ import annotations

from typing import Any

import click
import pytest

from gnsq_lite.cli.app import COMMANDS, main
from gnsq_lite.cli.hints import in_flags
from gnsq_lite.cli.params import Command
from gnsq_lite.errors import OptionError
from gnsq_lite.units import parse_duration


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5m", 300.0),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("1h2m3.5s", 3723.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("7us", 7e-6),
        ("0", 0.0),
        ("0.2", 0.2),
        ("30", 30.0),
    ],
)
def test_durations_have_units_or_are_seconds(text: str, found: float) -> None:
    assert parse_duration(text) == pytest.approx(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5 x",
        "5x",
        "m",
        "s5",
        "1h30",
        "--5s",
        "+5s",
        "9ns",
        "1e-3",
        "inf",
        "nan",
        "1_000",
        "\u0665s",
        "5M",
        ".s",
        "1.2.3s",
    ],
)
def test_other_texts_are_refused_as_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_is_grouped_and_has_an_example_that_parses(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    command = main.get_command(click.Context(main), name)
    groups = [command] if not isinstance(command, click.Group) else list(command.commands.values())
    monkeypatch.chdir(tmp_path)
    for file in ("lines.txt", "access.log", "program.py"):
        (tmp_path / file).write_text("")
    for each in groups:
        assert isinstance(each, Command)
        context = click.Context(each, info_name=name)
        assert "Example:" in each.get_help(context)
        words = each.example.split()
        assert name in words[:1]
        with each.make_context(name, words[1 + (each is not command) :]):
            pass


# -- go-nsq's options


def test_an_error_names_flags_instead_of_options() -> None:
    assert in_flags(OptionError("http_timeout", 0.0, "too short")).startswith("--http-timeout 0.0")
    assert in_flags(OptionError("msg_timeout", 0, "must be more")).startswith("--msg-timeout")
    assert "--tls-cert" in in_flags(OptionError("key_file", "k", "needs cert_file"))
    assert "--auth-secret" in in_flags(ValueError("this nsqd requires AUTH; set auth_secret"))
    assert in_flags("GET /x?topic=http_timeout_1") == "GET /x?topic=http_timeout_1"
