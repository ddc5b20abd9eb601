"""``gnsq-lite recording``: list, verify, seal, trim and retire the logs of a recording."""

from __future__ import annotations

import json
from typing import Any

import click

from gnsq_lite.cli import flags
from gnsq_lite.cli.output import echo
from gnsq_lite.cli.params import CONNECTION, Command, Duration, Size, option

_URL = click.argument("url")
storage = option(
    "--storage",
    metavar="NAME=VALUE",
    multiple=True,
    section=CONNECTION,
    help="A setting of the object store, such as region=eu-central-1.  "
    "Settings that are not given come from environment variables, such as AWS_REGION.",
)


def opened(url: str, settings: tuple[str, ...]) -> Any:
    """Return the recording at a path or URL.  Raises OptionError, MissingExtra."""
    from gnsq_lite.recording import Recording

    given = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError("--storage must be NAME=VALUE")  # the error omits the value, which may be a secret
        given[name.strip()] = value
    recording = Recording(url, given)
    recording.check()
    return recording


def existing(url: str, settings: tuple[str, ...]) -> Any:
    """Return the existing recording at a path or URL.  Raises UsageError if there is no recording."""
    recording = opened(url, settings)
    try:
        recording.meta()
    except FileNotFoundError:
        raise click.UsageError(f"there is no recording at {recording.url}") from None
    return recording


@click.group("recording")
def command() -> None:
    """List, verify, seal, trim and retire the logs of a recording."""


@command.command("ls", cls=Command, example="recording ls /var/lib/clicks")
@_URL
@storage
@flags.as_json
def ls_command(url: str, storage: tuple[str, ...], as_json: bool) -> int:
    """Print each log of URL with its rows and bytes."""
    recording = existing(url, storage)
    found = []
    for name, bounds in recording.bounds().items():
        reader = recording.reader(name)
        log = {"log": name, "first": bounds.first, "last": bounds.last, "rows": bounds.last - bounds.first + 1}
        rest = {"bytes": reader.size(), "sealed": reader.sealed_to(), "retired": reader.is_retired()}
        found.append({**log, **rest})
    meta = recording.meta()
    if as_json:
        echo(json.dumps({"topic": meta.topic, "channel": meta.channel, "logs": found}))
        return 0
    echo(f"{meta.topic}/{meta.channel}")
    for log in found:
        end = f"\tsealed up to {log['sealed']}" if log["sealed"] else ""
        end += "\tretired" if log["retired"] else ""
        echo(f"{log['log']}\trows {log['first']} to {log['last']}\t{log['bytes']} bytes{end}")
    return 0


@command.command("verify", cls=Command, example="recording verify /var/lib/clicks")
@_URL
@storage
def verify_command(url: str, storage: tuple[str, ...]) -> int:
    """Read every row of URL and check its checksum.  Exit with 1 if a row is damaged or missing."""
    failed = False
    for name, bounds, wrong in existing(url, storage).verify():
        failed = failed or bool(wrong)
        echo(f"{name}\trows {bounds.first} to {bounds.last}\t{wrong or 'ok'}")
    return int(failed)


@command.command("seal", cls=Command, example="recording seal /var/lib/clicks")
@_URL
@storage
def seal_command(url: str, storage: tuple[str, ...]) -> int:
    """Turn the rows of the logs that no recorder writes into Parquet files, in URL/parquet.

    Recorders of URL that start later do the same, as with record --parquet.  Exit with 1 if a log cannot be sealed.
    """
    from gnsq_lite.recording.sealer import seal_free_logs

    recording = existing(url, storage)
    recording.begin_sealing()
    failed = False
    for name, why in seal_free_logs(recording):
        failed = failed or bool(why)
        echo(f"{name}\t{why or 'sealed'}")
    return int(failed)


@command.command("trim", cls=Command, example="recording trim /var/lib/clicks --retain 7d")
@_URL
@storage
@option("--retain", type=Duration(), default=0.0, help="Remove files older than this, such as 7d.")
@option("--retain-bytes", type=Size(), help="Remove the oldest files until at most this size is left, such as 200g.")
def trim_command(url: str, storage: tuple[str, ...], retain: float, retain_bytes: int | None) -> int:
    """Remove the oldest files or objects of URL.  The newest file or object of each log stays."""
    if not retain and retain_bytes is None:
        raise click.UsageError("give --retain or --retain-bytes")
    recording = existing(url, storage)
    if recording.meta().owned:
        raise click.UsageError(f"{recording.url} belongs to a Spark query, which removes committed rows itself")
    echo(f"{recording.trim(retain, retain_bytes)} bytes removed")
    return 0


@command.command("retire", cls=Command, example="recording retire /var/lib/clicks 1f0c9a7e")
@_URL
@click.argument("log")
@storage
def retire_command(url: str, log: str, storage: tuple[str, ...]) -> int:
    """Retire LOG of URL.  No recorder appends rows to a retired log, and its rows stay readable."""
    existing(url, storage).retire(log)
    echo(f"{log} retired")
    return 0
