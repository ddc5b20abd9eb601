"""``gnsq-lite topics | channels | nodes``: registrations at the nsqlookupds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from rich.table import Table

from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import topic_names
from gnsq_lite.cli.output import console, echo, errors, visible
from gnsq_lite.cli.params import command as tool
from gnsq_lite.errors import HTTPError
from gnsq_lite.http import LookupdClient
from gnsq_lite.options import HTTPOptions, format_address

T = TypeVar("T")

_printed: set[str] = set()


def query_all(
    lookupds: tuple[str, ...], query: Callable[[LookupdClient], Iterable[T]], options: HTTPOptions | None = None
) -> list[T]:
    """Call *query* with a client of each nsqlookupd, and return all results without duplicates.

    Each error is printed once.  Raises AllFailed if every nsqlookupd failed.
    """
    found: dict[Any, T] = {}
    failed: HTTPError | None = None
    answered = False
    for url in flags.lookupd_urls(lookupds):
        try:
            with LookupdClient(url, options) as client:
                for item in query(client):
                    found.setdefault(str(item), item)
            answered = True
        except HTTPError as error:
            failed = error
            _print_once(str(error))
    if failed is not None and not answered:
        raise AllFailed(str(failed))
    return list(found.values())


class AllFailed(click.ClickException):
    """Every nsqlookupd failed, and the errors are already printed."""

    def show(self, file: Any = None) -> None:
        """Print nothing."""


def _print_once(text: str) -> None:
    if text not in _printed:
        _printed.add(text)
        errors.print(f"gnsq-lite: {text}", markup=False)


def show(title: str, columns: list[str], rows: list[list[Any]], as_json: bool) -> None:
    """Print *rows*: as JSON if *as_json* is true, as a table on a terminal, or else as tab-separated lines."""
    if as_json:
        echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
        return
    texts = [[visible(", ".join(each) if isinstance(each, list) else str(each)) for each in row] for row in rows]
    if not console.is_terminal:
        for row in texts:
            echo("\t".join(row))
    else:
        table = Table(*columns, title=title)
        for row in texts:
            table.add_row(*row)
        console.print(table)


@tool("topics", example="topics --lookupd-http-address 127.0.0.1:4161")
@flags.lookupds
@flags.as_json
def topics(lookupds: tuple[str, ...], as_json: bool) -> int:
    """List the topics registered at the nsqlookupds."""
    show("topics", ["topic"], [[t] for t in sorted(query_all(lookupds, LookupdClient.topics))], as_json)
    return 0


@tool("channels", example="channels clicks")
@click.argument("topic", shell_complete=topic_names)
@flags.lookupds
@flags.as_json
def channels(topic: str, lookupds: tuple[str, ...], as_json: bool) -> int:
    """List the channels of TOPIC; an unknown topic is an error."""

    def query(client: LookupdClient) -> list[tuple[bool, str]]:
        found = client.channels(topic)
        return [(True, name) for name in found] or [(client.lookup(topic).found, "")]

    answers = query_all(lookupds, query)
    if not any(known for known, _ in answers):
        raise click.ClickException(f"no nsqlookupd knows a topic {topic!r}")
    show(f"channels of {topic}", ["channel"], [[name] for _, name in sorted(answers) if name], as_json)
    return 0


@tool("nodes", example="nodes --json")
@flags.lookupds
@flags.as_json
def nodes(lookupds: tuple[str, ...], as_json: bool) -> int:
    """List the nsqds registered at the nsqlookupds."""
    rows: list[list[Any]] = [
        [
            format_address((node.broadcast_address, node.tcp_port)),
            format_address((node.broadcast_address, node.http_port)),
            node.version,
            list(node.topics),
        ]
        for node in query_all(lookupds, LookupdClient.nodes)
    ]
    show("nsqds", ["tcp", "http", "version", "topics"], sorted(rows), as_json)
    return 0
